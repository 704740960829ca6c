"""Matrix products."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("MatMul", "matmul", level=2, storage_rule="contracts"),
    Operator("Gemm", "matmul", level=2, storage_rule="contracts"),
    Operator("MatMulInteger", "matmul", level=5, storage_rule="contracts"),
    Operator("QLinearMatMul", "matmul", level=5, storage_rule="contracts"),
)
