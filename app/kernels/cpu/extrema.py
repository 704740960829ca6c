"""Maximum and minimum that keep NaN, of numbers and vectors, and numbers of another value's type.

A comparison in Python either loses a NaN on one side or costs a branch; `llvm.maximum` does
neither, and LLVM vectorizes a reduction made of it without fast-math.
"""

from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen.vectors import Vector, called


def _extremum(name: str, comparison: str):
    def typed(_context, a, b):
        def generate(_context, builder, signature, values):
            kind = (
                signature.return_type.dtype
                if isinstance(signature.return_type, Vector)
                else signature.return_type
            )
            p, q = values
            if isinstance(kind, types.Float):
                return called(builder, name, (p, q), ("nsz",))
            compare = builder.icmp_signed if kind.signed else builder.icmp_unsigned
            return builder.select(compare(comparison, p, q), p, q)

        return a(a, b), generate

    return typed


@intrinsic
def maximum(_context, a, b):
    """The larger of two numbers or vectors of one type; NaN if either is NaN."""
    return _extremum("maximum", ">")(_context, a, b)


@intrinsic
def minimum(_context, a, b):
    """The smaller of two numbers or vectors of one type; NaN if either is NaN."""
    return _extremum("minimum", "<")(_context, a, b)


@intrinsic
def like(_context, reference, number):
    """`number` in the type of `reference`: keeps float32 arithmetic from widening to float64."""

    def generate(context, builder, signature, values):
        return context.cast(builder, values[1], signature.args[1], signature.return_type)

    return reference(reference, number), generate
