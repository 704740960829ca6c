"""CPUs on which libraries saturate sums of 8-bit products.

Without VNNI, x86 multiplies 8-bit operands in pairs whose sums saturate at 16 bits; onnxruntime
accepts that (its quantization guide advises 7-bit weights there).
"""

from collections.abc import Iterable

from app.engine.types.target import Target

VNNI = frozenset({"avx512_vnni", "avx_vnni"})
# Sums of products of 8-bit operands.
PRODUCTS = frozenset({"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "DynamicQuantizeLSTM"})


def saturated(ops: Iterable[str], machine: Target) -> str | None:
    """Reason why onnxruntime computes one of these operators wrong on a machine; None if it does not."""
    if VNNI & set(machine.isa):
        return None
    found = next((op for op in ops if op in PRODUCTS), None)
    return f"onnxruntime saturates the 8-bit products of {found} on a CPU without VNNI" if found else None


def fused(ops: Iterable[str], machine: Target) -> str | None:
    """The same for what its optimizations make of dequantized operands."""
    if VNNI & set(machine.isa) or "DequantizeLinear" not in ops:
        return None
    return (
        "its optimizations make 8-bit products of dequantized operands, which saturate on a CPU without VNNI"
    )
