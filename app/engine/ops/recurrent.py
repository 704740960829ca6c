"""Recurrent layers."""

from app.engine.registry import Operator

OPERATORS = (
    Operator("LSTM", "recurrent", 5),
    Operator("GRU", "recurrent", 5),
    Operator("RNN", "recurrent"),
)
