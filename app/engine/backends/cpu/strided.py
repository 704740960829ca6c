"""Strided copies as kernel calls: merge axes, order them, choose the loop nest.

Data movement looks at element sizes only: float32 and int32 share a kernel.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall
from app.engine.operators.strides import StridedCopy, strides_of

LONG_ROW = 1024  # elements from which a row is worth a call of its own, so that threads share it
FEW_ROWS = 8
CACHED = 512 * 1024  # bytes of y that are copied from y itself where they repeat
TILES = {1: 16, 2: 16, 4: 8, 8: 4}  # extent of a square tile by bytes of an element, as the kernel has it
PLANES = 4  # up to which rows are shuffled to pixels, and pixels to rows
PLANE_BYTES = 32  # of a row at a time
CACHE_LINE = 64  # bytes of x, rows of y, at a time at least
LINES = 4  # of x at a time at most: more than one where pages of x are many
TRANSPOSE_BLOCK = 24 * 1024  # bytes of y at a time where there are several lines: most of a cache of 32 KiB
LONG_BLOCK = 1024  # of the longer side of a matrix with few rows or columns


def merged(copy: StridedCopy) -> StridedCopy:
    """The same copy with axes in the order of y, unit axes dropped, neighbours joined where they can be."""
    axes = sorted(
        ((sy, sx, n) for n, sx, sy in zip(copy.sizes, copy.sx, copy.sy) if n != 1), key=lambda a: -a[0]
    )
    joined: list[tuple[int, int, int]] = []
    for sy, sx, n in axes:
        if joined and joined[-1][0] == n * sy and joined[-1][1] == n * sx:
            joined[-1] = (sy, sx, joined[-1][2] * n)
        else:
            joined.append((sy, sx, n))
    return StridedCopy(
        tuple(n for _, _, n in joined),
        tuple(sx for _, sx, _ in joined),
        tuple(sy for sy, _, _ in joined),
        copy.x0,
        copy.y0,
    )


def widened(copy: StridedCopy, itemsize: int) -> tuple[StridedCopy, int]:
    """The same copy in larger elements, where an innermost block is as large as one: pairs of floats."""
    block = copy.sizes[-1] if copy.sizes else 1
    rest = (*copy.sx[:-1], *copy.sy[:-1], copy.x0, copy.y0)
    contiguous = copy.sizes and copy.sx[-1] == copy.sy[-1] == 1
    if not contiguous or block * itemsize not in (2, 4, 8) or any(n % block for n in rest):
        return copy, itemsize
    wide = StridedCopy(
        copy.sizes[:-1],
        tuple(n // block for n in copy.sx[:-1]),
        tuple(n // block for n in copy.sy[:-1]),
        copy.x0 // block,
        copy.y0 // block,
    )
    return wide, itemsize * block


def calls(copy: StridedCopy, itemsize: int, x: Argument, y: Argument) -> tuple[KernelCall, ...]:
    """The kernel calls that make a strided copy; none when it is empty."""
    if math.prod(copy.sizes) == 0:
        return ()
    plain, itemsize = widened(merged(copy), itemsize)
    rank = len(plain.sizes)
    if rank == 0:
        return (_line(itemsize, x, y, plain.x0, plain.y0, 1, 1, 1),)
    if rank == 1:
        return (_line(itemsize, x, y, plain.x0, plain.y0, plain.sx[0], plain.sy[0], plain.sizes[0]),)
    repeat = next((a for a in range(rank - 2) if plain.sx[a] == 0 and plain.sizes[a] <= FEW_ROWS), None)
    if repeat is not None and plain.sy[repeat] * itemsize <= CACHED and _is_dense(_from(plain, repeat)):
        first, again = _repeated(plain, repeat)
        return (*calls(first, itemsize, x, y), *calls(again, itemsize, y, y))
    column = next((a for a in range(rank - 1) if plain.sx[a] == 1), None)
    if column is not None and plain.sy[-1] == 1 and plain.sx[-1] != 0:
        transposed = _transpose(plain, column, itemsize, x, y)
        if transposed is not None:
            return (transposed,)
    if math.prod(plain.sizes[:-1]) <= FEW_ROWS and plain.sizes[-1] >= LONG_ROW:
        return tuple(
            _line(itemsize, x, y, *start, plain.sx[-1], plain.sy[-1], plain.sizes[-1])
            for start in _starts(plain)
        )
    return (_rows(plain, itemsize, x, y),)


def _from(copy: StridedCopy, axis: int) -> StridedCopy:
    """The copy along that axis and those after it."""
    return StridedCopy(copy.sizes[axis:], copy.sx[axis:], copy.sy[axis:], copy.x0, copy.y0)


def _repeated(copy: StridedCopy, axis: int) -> tuple[StridedCopy, StridedCopy]:
    """A copy that repeats along an axis: the first of what repeats, and the others from y itself."""
    n, block = copy.sizes[axis], copy.sy[axis]
    sizes, sx, sy = copy.sizes[:axis], copy.sx[:axis], copy.sy[:axis]
    behind = _from(copy, axis + 1)
    first = StridedCopy(sizes + behind.sizes, sx + behind.sx, sy + behind.sy, copy.x0, copy.y0)
    again = StridedCopy((*sizes, n - 1, block), (*sy, 0, 1), (*sy, block, 1), copy.y0, copy.y0 + block)
    return first, again


def _is_dense(copy: StridedCopy) -> bool:
    """True if y is contiguous in the order of the axes."""
    return copy.sy == strides_of(copy.sizes)


def general_copy(copy: StridedCopy, itemsize: int, x: Argument, y: Argument) -> tuple[KernelCall, ...]:
    """One call of the kernel that makes any strided copy; none when it is empty."""
    if math.prod(copy.sizes) == 0:
        return ()
    plain = merged(copy)
    ones = max(2 - len(plain.sizes), 0)
    padded = StridedCopy(
        (1,) * ones + plain.sizes, (0,) * ones + plain.sx, (0,) * ones + plain.sy, plain.x0, plain.y0
    )
    return (_rows(padded, itemsize, x, y),)


def whole_copy(x: ir.Value, y: Argument) -> tuple[KernelCall, ...]:
    """The kernel calls that copy all of a value as it lies in memory; none when it is empty."""
    return calls(StridedCopy((graph.elements(x),), (1,), (1,)), graph.element_type(x).itemsize, x, y)


def element_type(itemsize: int) -> str:
    """The kernel type of the address of elements of a size."""
    return f"uint{8 * itemsize}*"


def _starts(copy: StridedCopy) -> list[tuple[int, int]]:
    starts = [(copy.x0, copy.y0)]
    for n, sx, sy in zip(copy.sizes[:-1], copy.sx[:-1], copy.sy[:-1]):
        starts = [(x0 + i * sx, y0 + i * sy) for x0, y0 in starts for i in range(n)]
    return starts


def _line(
    itemsize: int, x: Argument, y: Argument, x0: int, y0: int, sx: int, sy: int, size: int
) -> KernelCall:
    operands: Operands = (*of_type(element_type(itemsize), x, y), x0, y0, sx, sy)
    return kernel_call("app.kernels.cpu.strided:line", operands, size)


def _outer(copy: StridedCopy, axes: Sequence[int], itemsize: int, x: Argument, y: Argument) -> Operands:
    """First operands of a loop nest: ends, table of these outer axes, and where the copy begins."""
    rows = [(copy.sizes[a], copy.sx[a], copy.sy[a]) for a in axes]
    table = Constant(np.array(rows or [(1, 0, 0)], np.int64))
    return (*of_type(element_type(itemsize), x, y), ("int64*", table), len(axes), copy.x0, copy.y0)


def _rows(copy: StridedCopy, itemsize: int, x: Argument, y: Argument) -> KernelCall:
    outer = range(len(copy.sizes) - 2)
    inner = [n for axis in (-2, -1) for n in (copy.sizes[axis], copy.sx[axis], copy.sy[axis])]
    operands = (*_outer(copy, outer, itemsize, x, y), *inner)
    return kernel_call("app.kernels.cpu.strided:rows", operands, math.prod(copy.sizes[:-1]))


def _transpose(copy: StridedCopy, column: int, itemsize: int, x: Argument, y: Argument) -> KernelCall | None:
    """The call that moves matrices of the innermost axis and of `column`, along which x is contiguous."""
    outer = [a for a in range(len(copy.sizes) - 1) if a != column]
    n1, n0, sy1, sx0 = copy.sizes[column], copy.sizes[-1], copy.sy[column], copy.sx[-1]
    tile, few, many = TILES[itemsize], min(n1, n0), max(n1, n0)
    is_dense = sy1 == n0 if n0 <= n1 else sx0 == n1
    head = _outer(copy, outer, itemsize, x, y)
    matrices = math.prod(copy.sizes[a] for a in outer)
    if few <= PLANES and is_dense and few < tile:
        units = matrices * -(-many // LONG_BLOCK)
        static = few, PLANE_BYTES // itemsize, n0 <= n1
        operands = (*head, many, sx0 if n0 <= n1 else sy1, LONG_BLOCK)
        return kernel_call("app.kernels.cpu.strided:planes", operands, units, static)
    if few >= tile:
        lines = min(max(TRANSPOSE_BLOCK // (n0 * CACHE_LINE), 1), LINES)
        block = lines * CACHE_LINE // itemsize
        operands = (*head, n1, sy1, n0, sx0, block)
        return kernel_call("app.kernels.cpu.strided:transpose", operands, matrices * -(-n1 // block))
    if is_dense and many >= tile:
        units = matrices * -(-many // LONG_BLOCK)
        return kernel_call(
            "app.kernels.cpu.strided:transpose_few", (*head, n1, sy1, n0, sx0, LONG_BLOCK), units
        )
    return None
