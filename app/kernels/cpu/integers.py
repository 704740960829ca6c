"""Integer arithmetic that ONNX leaves to the processor, made total: no trap, no undefined result.

A division by zero gives 0, as NumPy does; the lowest number divided by -1 wraps around; a shift
by the width or more (or by a negative number) leaves copies of what moves in.
Operands of one function have one type, which is also the result's.
"""

import llvmlite.ir as ll
from numba import int64
from numba.extending import intrinsic

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.extrema import like
from app.kernels.cpu.runtime.processor import compiled_for


def _divide(kind, builder, a, b, *, remainder: bool):
    zero, one = ll.Constant(a.type, 0), ll.Constant(a.type, 1)
    by_zero = builder.icmp_unsigned("==", b, zero)
    trap = by_zero
    if kind.signed:
        lowest = ll.Constant(a.type, -(1 << (kind.bitwidth - 1)))
        overflow = builder.and_(
            builder.icmp_unsigned("==", a, lowest),
            builder.icmp_unsigned("==", b, ll.Constant(a.type, -1)),
        )
        trap = builder.or_(by_zero, overflow)
    divisor = builder.select(trap, one, b)
    if kind.bitwidth < 32 or (kind.signed and kind.bitwidth == 32):
        found = _quotient_of_floats(kind, builder, a, divisor)
        if remainder:
            found = builder.sub(a, builder.mul(found, divisor))
        return builder.select(by_zero, zero, found)
    if kind.signed and "+avx512dq" in compiled_for().features.split(","):  # vectors become float64 and back
        found = _parts_of_long(builder, a, divisor)[remainder]
    elif remainder:
        found = (builder.srem if kind.signed else builder.urem)(a, divisor)
    else:
        found = (builder.sdiv if kind.signed else builder.udiv)(a, divisor)
    return builder.select(by_zero, zero, found)


def _quotient_of_floats(kind, builder, a, b):
    """The quotient by a division of floats, which processors have for vectors.

    It is exact: between q + (b - 1) / b and q + 1 lies 1 / b, of quotients below 2^16 / b more than the
    rounding of float32, of those below 2^32 / b more than that of float64.
    """
    real = ll.FloatType() if kind.bitwidth <= 16 else ll.DoubleType()
    widened = builder.sext if kind.signed else builder.zext
    wide = [v if kind.bitwidth == 32 else widened(v, ll.IntType(32)) for v in (a, b)]
    ratio = builder.fdiv(*(builder.sitofp(v, real) for v in wide))
    found = builder.fptosi(ratio, ll.IntType(32))
    return found if kind.bitwidth == 32 else builder.trunc(found, a.type)


def _parts_of_long(builder, a, b):
    """(quotient, remainder) of 64 bits by two divisions of float64 and a step.

    The first quotient times b is a to 2^63 * 3 * 2^-53 and one b; of what is left the second one is at most
    one too large, which the sign of the remainder tells.
    """
    real, zero = ll.DoubleType(), ll.Constant(a.type, 0)
    wide = builder.sitofp(b, real)

    def estimate(n):
        ratio = builder.fdiv(builder.sitofp(n, real), wide)
        most = ll.Constant(real, float(2**63 - 1024))  # 2^63 is no int64
        return builder.fptosi(builder.select(builder.fcmp_ordered("<", ratio, most), ratio, most), a.type)

    found, rest = zero, a
    for _ in range(2):
        part = estimate(rest)
        found, rest = builder.add(found, part), builder.sub(rest, builder.mul(part, b))
    differ = builder.icmp_signed("<", builder.xor(rest, a), zero)
    beyond = builder.and_(differ, builder.icmp_signed("!=", rest, zero))
    sign = builder.or_(builder.ashr(builder.xor(a, b), ll.Constant(a.type, 63)), ll.Constant(a.type, 1))
    magnitude = builder.select(builder.icmp_signed("<", builder.xor(rest, b), zero), b, builder.neg(b))
    return (
        builder.sub(found, builder.select(beyond, sign, zero)),
        builder.add(rest, builder.select(beyond, magnitude, zero)),
    )


@intrinsic
def quotient(_context, a, b):
    """The quotient a / b, rounded towards zero."""

    def generate(_context, builder, _signature, values):
        return _divide(a, builder, *values, remainder=False)

    return a(a, a), generate


@intrinsic
def remainder(_context, a, b):
    """Remainder of a quotient, a - b * quotient(a, b): has the sign of a."""

    def generate(_context, builder, _signature, values):
        return _divide(a, builder, *values, remainder=True)

    return a(a, a), generate


@intrinsic
def floor_remainder(_context, a, b):
    """The residue of a modulo b: has the sign of b."""

    def generate(_context, builder, _signature, values):
        rest = _divide(a, builder, *values, remainder=True)
        if not a.signed:
            return rest
        zero = ll.Constant(rest.type, 0)
        differ = builder.icmp_signed("<", builder.xor(rest, values[1]), zero)
        wrong = builder.and_(differ, builder.icmp_signed("!=", rest, zero))
        return builder.add(rest, builder.select(wrong, values[1], zero))

    return a(a, a), generate


def _shift(kind, builder, operation, a, count):
    width = ll.Constant(a.type, kind.bitwidth)
    zero = ll.Constant(a.type, 0)
    inside = builder.icmp_unsigned("<", count, width)
    return operation(a, builder.select(inside, count, zero)), inside, zero


@intrinsic
def shifted_left(_context, a, count):
    """The bits of an integer moved up."""

    def generate(_context, builder, _signature, values):
        moved, inside, zero = _shift(a, builder, builder.shl, *values)
        return builder.select(inside, moved, zero)

    return a(a, a), generate


@intrinsic
def shifted_right(_context, a, count):
    """The bits of an integer moved down, copies of the sign moving in."""

    def generate(_context, builder, _signature, values):
        operation = builder.ashr if a.signed else builder.lshr
        moved, inside, zero = _shift(a, builder, operation, *values)
        if not a.signed:
            return builder.select(inside, moved, zero)
        negative = builder.icmp_signed("<", values[0], zero)
        return builder.select(inside, moved, builder.select(negative, ll.Constant(zero.type, -1), zero))

    return a(a, a), generate


@njit(error_model="numpy", boundscheck=False)
def integer_power(base, exponent):
    """base**exponent, wrapping around; of a negative exponent what is left of 1 / base**-exponent."""
    n = int64(exponent)
    if n < 0:
        if base == 1 or (base == like(base, -1) and n % 2 == 0):
            return like(base, 1)
        return base if base == like(base, -1) else like(base, 0)
    result = like(base, 1)
    while n > 0:
        if n & 1:
            result = like(base, result * base)
        base = like(base, base * base)
        n >>= 1
    return result
