"""Meaning of ONNX operators, shared by all backends."""
