"""Instructions that numba has no word for: on numbers, so that loops become vector loops, and on vectors.

Each is one LLVM instruction or a short fixed sequence on the operand's own type: no branch, no
widening, no call. Nothing here is undefined for NaN or infinities.
"""

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen.vectors import Vector, called, common, filled

_I16, _I32, _I64 = ll.IntType(16), ll.IntType(32), ll.IntType(64)
# Per width of a float: bits of the fraction, bias of the exponent, sqrt(1/2), and 1.5 * 2**fraction:
# added to a small whole number, it leaves that number in the low bits of the sum.
_FORMATS = {32: (23, 127, 0x3F3504F3, 12582912.0), 64: (52, 1023, 0x3FE6A09E667F3BCD, 6755399441055744.0)}


def _whole_bits(builder, n, width: int):
    """A whole number held in a float, as an integer of the same width (modulo 2**fraction)."""
    bits = ll.IntType(width)
    kind = ll.VectorType(bits, n.type.count) if isinstance(n.type, ll.VectorType) else bits
    return builder.bitcast(builder.fadd(n, filled(n.type, _FORMATS[width][3])), kind)


def _unary(name: str, x: types.Type):
    def generate(_context, builder, _signature, values):
        return called(builder, name, values)

    return x(x), generate


@intrinsic
def floor(_context, x):
    """The largest whole number that is not above x."""
    return _unary("floor", x)


@intrinsic
def ceil(_context, x):
    """The smallest whole number that is not below x."""
    return _unary("ceil", x)


@intrinsic
def rint(_context, x):
    """The nearest whole number, the even one of two."""
    return _unary("roundeven", x)


@intrinsic
def sqrt(_context, x):
    """The square root; NaN below zero."""
    return _unary("sqrt", x)


@intrinsic
def frem(_context, a, b):
    """Remainder of a division of floats: exact, with the sign of a; a call of the C library."""

    def generate(_context, builder, _signature, values):
        return builder.frem(*values)

    return a(a, a), generate


@intrinsic
def copysign(_context, magnitude, sign):
    """The magnitude of one number with the sign of another of its type."""

    def generate(_context, builder, _signature, values):
        return called(builder, "copysign", values)

    return magnitude(magnitude, sign), generate


def _ternary(name: str, *operands: types.Type):
    kind = common(*operands)

    def generate(_context, builder, _signature, values):
        return called(builder, name, values)

    return kind(kind, kind, kind), generate


@intrinsic
def fma(_context, a, b, c):
    """The sum a * b + c, rounded once on every processor."""
    return _ternary("fma", a, b, c)


@intrinsic
def muladd(_context, a, b, c):
    """The sum a * b + c, rounded once where the processor can."""
    return _ternary("fmuladd", a, b, c)


@intrinsic
def horner(_context, x, coefficients):
    """c[0] + c[1] x + c[2] x^2 + ...; fused where the processor can. All of one float type."""

    def generate(context, builder, _signature, values):
        given = [
            context.cast(builder, c, coefficients.dtype, x) for c in cgutils.unpack_tuple(builder, values[1])
        ]
        result, *rest = reversed(given)
        for coefficient in rest:
            result = called(builder, "fmuladd", (result, values[0], coefficient))
        return result

    return x(x, coefficients), generate


@intrinsic
def opaque(_context, n):
    """The same integer, of which LLVM knows nothing else; no instruction."""

    def generate(_context, builder, _signature, values):
        kind = values[0].type
        return builder.asm(ll.FunctionType(kind, [kind]), "", "=r,0", values, side_effect=False)

    return n(n), generate


@intrinsic
def select(_context, condition, a, b):
    """`a` where the condition holds, else `b`, both computed; of one type, of two numbers that of `a`."""
    kind = common(a, b)

    def generate(context, builder, signature, values):
        other = context.cast(builder, values[2], signature.args[2], signature.return_type)
        return builder.select(values[0], values[1], other)

    holds = condition if isinstance(condition, Vector) else types.boolean
    return kind(holds, kind, b), generate


@intrinsic
def scaled(_context, x, n):
    """The product x * 2**n for a whole number n (a float, -bias <= n <= bias); the least n gives 0 * x."""
    floating = common(x, n)

    def generate(_context, builder, _signature, values):
        fraction, bias, _, _ = _FORMATS[floating.bitwidth]
        whole = _whole_bits(builder, values[1], floating.bitwidth)
        bits = builder.shl(whole, filled(whole.type, fraction))
        power = builder.add(bits, filled(whole.type, bias << fraction))
        return builder.fmul(values[0], builder.bitcast(power, values[0].type))

    return floating(floating, floating), generate


@intrinsic
def exponent_bits(_context, x):
    """The float32 whose exponent and sign are the lowest 9 bits of another one, and its fraction zero."""

    def generate(_context, builder, _signature, values):
        whole = ll.VectorType(_I32, values[0].type.count) if isinstance(x, Vector) else _I32
        bits = builder.bitcast(values[0], whole)
        return builder.bitcast(builder.shl(bits, filled(whole, _FORMATS[32][0])), values[0].type)

    return x(x), generate


@intrinsic
def has_bit(_context, n, bit):
    """True if a whole number held in a float has a bit (1, 2, 4 ...) set."""

    def generate(_context, builder, _signature, values):
        bits = _whole_bits(builder, values[0], n.bitwidth)
        if n.bitwidth == 64:
            bits = builder.trunc(bits, _I32)
        wanted = builder.trunc(values[1], _I32)
        return builder.icmp_unsigned("!=", builder.and_(bits, wanted), ll.Constant(_I32, 0))

    return types.boolean(n, types.int64), generate


@intrinsic
def split(_context, x):
    """(m, e) with x = m * 2**e and sqrt(1/2) <= m < sqrt(2), both floats; x positive and normal."""

    def generate(context, builder, signature, values):
        fraction, _, root, _ = _FORMATS[x.bitwidth]
        kind = ll.IntType(x.bitwidth)
        bits = builder.bitcast(values[0], kind)
        above = builder.sub(bits, ll.Constant(kind, root))
        exponent = builder.ashr(above, ll.Constant(kind, fraction))
        mantissa = builder.sub(bits, builder.shl(exponent, ll.Constant(kind, fraction)))
        if x.bitwidth == 64:  # AVX2 converts 32-bit integers only
            exponent = builder.trunc(exponent, _I32)
        parts = builder.bitcast(mantissa, values[0].type), builder.sitofp(exponent, values[0].type)
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(x, 2)(x), generate


@intrinsic
def biased_exponent(_context, x):
    """The exponent field of a float32, 0 to 255, as int64."""

    def generate(_context, builder, _signature, values):
        bits = builder.lshr(builder.bitcast(values[0], _I32), ll.Constant(_I32, 23))
        return builder.zext(builder.and_(bits, ll.Constant(_I32, 255)), _I64)

    return types.int64(x), generate


@intrinsic
def from_half(_context, x):
    """The float32 that the bits of a float16 stand for."""

    def generate(_context, builder, _signature, values):
        return builder.fpext(builder.bitcast(values[0], ll.HalfType()), ll.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def to_half(_context, x):
    """The bits of the nearest float16."""

    def generate(_context, builder, _signature, values):
        return builder.bitcast(builder.fptrunc(values[0], ll.HalfType()), _I16)

    return types.uint16(types.float32), generate


@intrinsic
def from_bfloat(_context, x):
    """The float32 that the bits of a bfloat16 stand for."""

    def generate(_context, builder, _signature, values):
        wide = builder.shl(builder.zext(values[0], _I32), ll.Constant(_I32, 16))
        return builder.bitcast(wide, ll.FloatType())

    return types.float32(types.uint16), generate


def _bfloat_bits(builder, x):
    """The bits of the nearest bfloat16 of a float32, in the low half of an i32."""
    bits = builder.bitcast(x, _I32)
    sixteen = ll.Constant(_I32, 16)
    odd = builder.and_(builder.lshr(bits, sixteen), ll.Constant(_I32, 1))
    rounded = builder.add(bits, builder.add(odd, ll.Constant(_I32, 0x7FFF)))
    quiet = builder.or_(bits, ll.Constant(_I32, 0x400000))  # a NaN must not round to infinity
    nan = builder.fcmp_unordered("uno", x, x)
    return builder.lshr(builder.select(nan, quiet, rounded), sixteen)


@intrinsic
def to_bfloat(_context, x):
    """The bits of the nearest bfloat16, the even one of two."""

    def generate(_context, builder, _signature, values):
        return builder.trunc(_bfloat_bits(builder, values[0]), _I16)

    return types.uint16(types.float32), generate


@intrinsic
def bfloats(_context, low, high):
    """A float32 whose halves are the nearest bfloat16 of two float32: an element of `tiles.BFLOATS`."""

    def generate(_context, builder, _signature, values):
        first, second = (_bfloat_bits(builder, x) for x in values)
        both = builder.or_(first, builder.shl(second, ll.Constant(_I32, 16)))
        return builder.bitcast(both, ll.FloatType())

    return types.float32(types.float32, types.float32), generate
