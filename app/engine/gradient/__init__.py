"""Reverse-mode differentiation of canonical ONNX graphs, in plain ONNX operators.

`differentiate` walks the graph backward; `tables` has one row an operator, its vector-Jacobian product.
"""
