"""The register tile of convolutions over blocked images, as explicit vector IR.

Its rows are output pixels anywhere in the image: a table gives where each reads. So one tile serves
every kernel size, stride and dilation, a stem over plain planes (blocks of one channel) and the
products of Winograd's transform.
"""

from typing import Any

from numba import types

from app.kernels.cpu.codegen import memory
from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import ELEMENTS, Vectors, choose, number, repeat, typed
from app.kernels.cpu.codegen.tiles import (
    ACCUMULATE,
    ALPHA,
    CLAMP,
    COLUMN_BIAS,
    HIGH,
    LOW,
    RESIDUAL,
    right_element,
    symbol,
)


def pixels_tile(dtype: str, lanes: int, rows: int, columns: int, unroll: int = 2, step: int = 0) -> Any:
    """An intrinsic that computes `rows` pixels of `columns` blocks of output channels.

    It is called as
        tile(x, pixels, taps, tap_count, blocks, block_step, tail, weights, ahead, y, y_row, y_block,
             bias, residual, scalars, flags)
    and computes y[j * y_block + r * y_row + l] as the sum, over taps t and input channels c, of
    x[pixels[r] + taps[t] + c // step * block_step + c % step] * weights[t][c][j * lanes + l], where
    c counts `blocks` whole blocks and `tail` channels more, or pairs of them (`tiles.FLOAT_PAIRS`). As
    `flags` ask it adds y itself (ACCUMULATE), bias[j * lanes + l] (COLUMN_BIAS) and the residual at the
    place of y (RESIDUAL), and limits to [low, high] of `scalars` (CLAMP). Every element is read
    before it is written there. Every `unroll` steps it asks for the cache line `ahead` elements beyond
    the weights that it reads, which need not be valid.

    Args:
        dtype: of all elements, and of those of the weights (`tiles.HALF_RIGHTS`).
        lanes: channels of a block, elements of a vector.
        rows: pixels.
        columns: vectors of output channels; rows * columns accumulators live in registers.
        unroll: steps of the reduction without a branch; divides lanes.
        step: elements of a block of the input where they are not `lanes`; unroll divides it, or is cut.
    """
    scalar = ELEMENTS[dtype][0]
    address, size, table = types.CPointer(scalar), types.int64, types.CPointer(types.int64)
    right = memory.pointer(right_element(dtype))
    signature = types.void(
        address, table, table, size, size, size, size, right, size, address, size, size,
        address, address, address, size,
    )  # fmt: skip
    width = columns * lanes
    depth = step or lanes
    unroll = min(unroll, depth)

    def write(b: Any, values: Any) -> None:
        (x, pixels, taps, tap_count, blocks, block_step, tail, weights, ahead, y, y_row, y_block,
         bias, residual, scalars, flags) = values  # fmt: skip
        v = Vectors(b, dtype, lanes)
        starts = [v.at(x, b.load(v.at(pixels, r))) for r in range(rows)]

        def steps(index: Any, pointer: Any, sums: list[Any], times: int) -> list[Any]:
            for k in range(times):
                vectors = [v.load(v.at(pointer, k * width + j * lanes)) for j in range(columns)]
                for r in range(rows):
                    element = v.broadcast(v.at(v.at(starts[r], index), k))
                    for j in range(columns):
                        sums[r * columns + j] = v.dot(element, vectors[j], sums[r * columns + j])
            return sums

        def some(times: int) -> Any:
            def body(state: list[Any]) -> list[Any]:
                index, pointer, *sums = state
                v.prefetch(v.at(pointer, ahead), level=2)
                sums = steps(index, pointer, list(sums), times)
                return [b.add(index, number(times)), v.at(pointer, times * width), *sums]

            return body

        def block(state: list[Any]) -> list[Any]:
            start, pointer, *sums = state
            if depth == unroll:
                _, pointer, *sums = some(depth)([start, pointer, *sums])
            else:
                _, pointer, *sums = repeat(b, number(depth // unroll), [start, pointer, *sums], some(unroll))
            return [b.add(start, block_step), pointer, *sums]

        def tap(state: list[Any]) -> list[Any]:
            place, pointer, *sums = state
            index, pointer, *sums = repeat(b, blocks, [b.load(place), pointer, *sums], block)
            _, pointer, *sums = repeat(b, tail, [index, pointer, *sums], some(1))
            return [v.at(place, 1), pointer, *sums]

        _, end, *sums = repeat(b, tap_count, [taps, weights, *[v.no_sum] * (rows * columns)], tap)

        sums = v.scale(sums, end, columns, [v.at(scalars, ALPHA)])

        places = [
            (r, j, b.add(b.mul(number(r), y_row), b.mul(number(j), y_block)))
            for r in range(rows)
            for j in range(columns)
        ]

        def when(flag: int, sums: list[Any], changed: Any) -> list[Any]:
            asked = b.icmp_unsigned("!=", b.and_(flags, number(flag)), number(0))
            return choose(b, asked, sums, lambda i, u: changed(u, *places[i]))

        sums = when(ACCUMULATE, sums, lambda u, _r, _j, at: v.add(u, v.load(v.at(y, at))))
        sums = when(COLUMN_BIAS, sums, lambda u, _r, j, _at: v.add(u, v.load(v.at(bias, j * lanes))))
        sums = when(RESIDUAL, sums, lambda u, _r, _j, at: v.add(u, v.load(v.at(residual, at))))
        low, high = (v.broadcast(v.at(scalars, i)) for i in (LOW, HIGH))
        sums = when(CLAMP, sums, lambda u, *_: v.clamp(u, low, high))
        for u, (_, _, at) in zip(sums, places):
            v.store(u, v.at(y, at))
        b.ret_void()

    return typed(signature, outlined(f"tile_{symbol(dtype)}_{rows}x{columns}x{lanes}", write))
