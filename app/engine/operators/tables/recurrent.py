"""Recurrent layers, and the quantization that goes with one of them."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("LSTM", "recurrent", 5),
    Operator("GRU", "recurrent", 5),
    Operator("RNN", "recurrent"),
    Operator("DynamicQuantizeLSTM", "recurrent", domain="com.microsoft"),
    Operator("DynamicQuantizeLinear", "quantize", 5),
)
