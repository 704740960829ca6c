"""Sums of integer products to 8-bit numbers: scaled, rounded half to even, limited, four registers at once.

A plain loop converts one register of sums at a time, because they are the widest elements, and
stores a quarter of a register: three times slower.
"""

from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils

from app.kernels.cpu.codegen.instructions import I32, number, typed
from app.kernels.expressions import Recipe

_REAL = ll.FloatType()
LIMITS = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}


def is_requantization(recipe: Recipe) -> bool:
    """True if a recipe is saturate(round(float32(sum) * operand 1 + operand 2) + operand 3).

    These are its four inputs; the zero point may be of any type.
    """
    if not recipe or recipe[-1][0] != "Saturate" or recipe[-1][2][-1] not in LIMITS:
        return False
    cast = (("Cast", (3,), ("float32",)),)
    zero = 8 if len(recipe) == 7 else 3
    head: Recipe = (
        ("Cast", (0,), ("float32",)),
        ("Mul", (4, 1), ()),
        ("Add", (5, 2), ()),
        ("Round", (6,), ()),
    )
    tail: Recipe = (("Add", (7, zero), ()), ("Saturate", (zero + 1 if zero == 8 else 8,), recipe[-1][2]))
    return recipe == head + (cast if zero == 8 else ()) + tail


def requantizer(dtype: str, lanes: int, along: tuple[bool, bool]) -> Any:
    """An intrinsic that turns a run of sums into 8-bit numbers.

    run(v, y, n, factor, addend, zero): y[j] = saturate(round(float32(v[j]) * factor + addend) + zero)
    for j < n. v: int32; y: `dtype`; factor and addend: float32, one element or, where `along` says
    so, one for each j; zero: float32, integral.
    """
    pointer = types.CPointer(types.float32)
    signature = types.void(
        types.CPointer(types.int32), _result(dtype), types.int64, pointer, pointer, types.float32
    )

    def generate(context, builder, _signature, values):
        v, y, n, factor, addend, zero = values
        rounding = _Rounding(builder, dtype, zero)
        done = number(0)
        for width in (4 * lanes, lanes, 1):
            stop = builder.and_(n, number(-width))
            with cgutils.for_range_slice(builder, done, stop, number(width)) as (start, _):
                scale, bias = (
                    rounding.load(source, start if each else None, width)
                    for source, each in zip((factor, addend), along)
                )
                rounding.store(v, start, scale, bias, y, start, width)
            done = stop
        return context.get_dummy_value()

    return typed(signature, generate)


def rows_requantizer(dtype: str, lanes: int, along: tuple[bool, bool]) -> Any:
    """An intrinsic that turns rows of sums into 8-bit numbers, scales and addends in registers meanwhile.

    rows(v, row, m, n, y, y_row, factor, addend, zero): as `requantizer` does v[i * row + j] to
    y[i * y_row + j], for i < m and j < n, which is at least `lanes`.
    """
    pointer, size = types.CPointer(types.float32), types.int64
    signature = types.void(
        types.CPointer(types.int32), size, size, size, _result(dtype), size, pointer, pointer, types.float32
    )

    def generate(context, builder, _signature, values):
        v, row, m, n, y, y_row, factor, addend, zero = values
        rounding = _Rounding(builder, dtype, zero)

        def columns(width: int, column: Any) -> None:
            scale, bias = (
                rounding.load(source, column if each else None, width)
                for source, each in zip((factor, addend), along)
            )
            with cgutils.for_range(builder, m) as turn:
                place, to = (builder.add(builder.mul(turn.index, step), column) for step in (row, y_row))
                rounding.store(v, place, scale, bias, y, to, width)

        wide = builder.and_(n, number(-4 * lanes))
        with cgutils.for_range_slice(builder, number(0), wide, number(4 * lanes)) as (first, _):
            columns(4 * lanes, first)
        last = builder.sub(n, number(lanes))
        with cgutils.for_range_slice(builder, wide, n, number(lanes)) as (first, _):
            # The last vector overlaps the one before.
            columns(lanes, builder.select(builder.icmp_signed("<", first, last), first, last))
        return context.get_dummy_value()

    return typed(signature, generate)


def _result(dtype: str) -> Any:
    return types.CPointer(types.uint8 if dtype == "uint8" else types.int8)


class _Rounding:
    """Instructions that make 8-bit numbers of sums."""

    def __init__(self, builder: Any, dtype: str, zero: Any) -> None:
        self.b = builder
        self.limits = [builder.fsub(ll.Constant(_REAL, limit), zero) for limit in LIMITS[dtype]]
        self.origin = builder.fptosi(zero, I32)

    def splat(self, scalar: Any, width: int) -> Any:
        """A scalar in every lane."""
        kind = ll.VectorType(scalar.type, width)
        undefined = ll.Constant(kind, ll.Undefined)
        first = self.b.insert_element(undefined, scalar, ll.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, ll.Constant(ll.VectorType(I32, width), [0] * width))

    def load(self, source: Any, start: Any, width: int, element: Any = _REAL) -> Any:
        """A vector from an index on; where that is None, the first element in every lane."""
        if start is None:
            return self.splat(self.b.load(source), width)
        kind = ll.VectorType(element, width).as_pointer()
        return self.b.load(self.b.bitcast(self.b.gep(source, [start]), kind), align=4)

    def store(self, v: Any, start: Any, scale: Any, bias: Any, y: Any, to: Any, width: int) -> None:
        """Levels of a vector of sums."""
        b = self.b
        floats, integers = ll.VectorType(_REAL, width), ll.VectorType(I32, width)
        x = b.sitofp(self.load(v, start, width, I32), floats)
        x = b.fadd(b.fmul(x, scale), bias)
        least, most = (self.splat(limit, width) for limit in self.limits)
        x = b.select(b.fcmp_ordered(">", x, least), x, least)
        x = b.select(b.fcmp_ordered("<", x, most), x, most)
        nearest = cgutils.get_or_insert_function(
            b.module, ll.FunctionType(integers, [floats]), f"llvm.lrint.v{width}i32.v{width}f32"
        )
        levels = b.add(b.call(nearest, [x]), self.splat(self.origin, width))
        narrow = ll.VectorType(ll.IntType(8), width)
        b.store(b.trunc(levels, narrow), b.bitcast(b.gep(y, [to]), narrow.as_pointer()), align=1)
