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
    low, high = LIMITS[dtype]
    real, byte = ll.FloatType(), ll.IntType(8)
    pointer = types.CPointer(types.float32)
    result = types.CPointer(types.uint8 if dtype == "uint8" else types.int8)
    signature = types.void(types.CPointer(types.int32), result, types.int64, pointer, pointer, types.float32)

    def generate(context, builder, _signature, values):
        v, y, n, factor, addend, zero = values
        below, above = (builder.fsub(ll.Constant(real, limit), zero) for limit in (low, high))
        origin = builder.fptosi(zero, I32)

        def block(start: Any, width: int) -> None:
            def splat(scalar: Any) -> Any:
                kind = ll.VectorType(scalar.type, width)
                first = builder.insert_element(ll.Constant(kind, ll.Undefined), scalar, ll.Constant(I32, 0))
                zeros = ll.Constant(ll.VectorType(I32, width), [0] * width)
                return builder.shuffle_vector(first, ll.Constant(kind, ll.Undefined), zeros)

            def load(source: Any, element: Any, each: bool) -> Any:
                if not each:
                    return splat(builder.load(source))
                kind = ll.VectorType(element, width).as_pointer()
                return builder.load(builder.bitcast(builder.gep(source, [start]), kind), align=4)

            floats = ll.VectorType(real, width)
            x = builder.sitofp(load(v, I32, True), floats)
            x = builder.fmul(x, load(factor, real, along[0]))
            x = builder.fadd(x, load(addend, real, along[1]))
            least, most = splat(below), splat(above)
            x = builder.select(builder.fcmp_ordered(">", x, least), x, least)
            x = builder.select(builder.fcmp_ordered("<", x, most), x, most)
            integers = ll.VectorType(I32, width)
            nearest = cgutils.get_or_insert_function(
                builder.module, ll.FunctionType(integers, [floats]), f"llvm.lrint.v{width}i32.v{width}f32"
            )
            levels = builder.add(builder.call(nearest, [x]), splat(origin))
            narrow = ll.VectorType(byte, width)
            place = builder.bitcast(builder.gep(y, [start]), narrow.as_pointer())
            builder.store(builder.trunc(levels, narrow), place, align=1)

        done = number(0)
        for width in (4 * lanes, lanes, 1):
            stop = builder.and_(n, number(-width))
            with cgutils.for_range_slice(builder, done, stop, number(width)) as (start, _):
                block(start, width)
            done = stop
        return context.get_dummy_value()

    return typed(signature, generate)
