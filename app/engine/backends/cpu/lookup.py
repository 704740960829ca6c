"""Per-axis index lookups as kernel calls: merge axes, find the part of a row that is one block."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.backends.cpu.strided import element_type
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall
from app.engine.operators.strides import Indices, strides_of

SHORT_ROW = 16  # elements below which a whole innermost axis is joined to the next
SHORT_RUN = 8  # consecutive elements below which a block copy is not worth its start


def lookup_calls(
    axes: Sequence[Indices],
    shape: Sequence[int],
    itemsize: int,
    x: Argument,
    y: Argument,
    fill: Argument | None = None,
) -> tuple[KernelCall, ...]:
    """The call that computes y[i] = x[axes[0][i_0], axes[1][i_1], …], or `fill` where any is negative.

    Args:
        axes: one array of source indices for each axis.
        shape: of x.
        itemsize: bytes of an element.
        x: operand.
        y: result, row-major.
        fill: address of the fill value; zero where it is left out.
    """
    if any(a.size == 0 for a in axes):
        return ()
    address = element_type(itemsize)
    fill = Constant(np.zeros(1, f"u{itemsize}")) if fill is None else fill
    offsets = _offsets(axes, shape)
    numbers = _times(offsets[-1]), _step(offsets[-1])
    return (_call("app.kernels.cpu.lookup:lookup", offsets, address, (x, y), fill, *numbers),)


def adding_calls(
    axes: Sequence[Indices], shape: Sequence[int], x: ir.Value, added: ir.Value, y: ir.Value, fill: Argument
) -> tuple[KernelCall, ...]:
    """The call that computes y = `added` + what `lookup_calls` looks up, of floating-point elements."""
    if any(a.size == 0 for a in axes):
        return ()
    address = f"{graph.dtype(x)}*"
    offsets = _offsets(axes, shape)
    return (_call("app.kernels.cpu.lookup:lookup_add", offsets, address, (x, added, y), fill),)


def _offsets(axes: Sequence[Indices], shape: Sequence[int]) -> list[Indices]:
    """Offsets of the elements along each axis that is left once axes are joined."""
    return _merged(
        [np.where(a < 0, -1, a * s) for a, s in zip(axes, strides_of(shape))],
        [a.size == n and bool(np.all(a == np.arange(n))) for a, n in zip(axes, shape)],
    )


def _times(table: Indices) -> int:
    """How many times each of 0, 1, 2 ... stands in a table, in order; 0 if once, or if it holds others."""
    times = int(np.searchsorted(table, 1)) if table[0] == 0 else 0
    if times < 2 or table.size % times:
        return 0
    return times if np.array_equal(table, np.arange(table.size) // times) else 0


def _step(table: Indices) -> int:
    """By how much, more than one, each offset of a table is larger than the one before it; else 0."""
    step = int(table[1] - table[0]) if table.size > 1 and table[0] >= 0 else 0
    return step if step > 1 and np.all(np.diff(table) == step) else 0


def _call(
    kernel: str,
    offsets: Sequence[Indices],
    address: str,
    values: tuple[Argument, ...],
    fill: Argument,
    *numbers: int,
) -> KernelCall:
    rank = len(offsets) - 1
    places = 2 * rank + np.cumsum([0, *(o.size for o in offsets)])
    head = [number for o, place in zip(offsets[:-1], places) for number in (o.size, place)]
    table = Constant(np.concatenate([np.array(head, np.int64), *offsets]))
    operands: Operands = (
        *of_type(address, *values, fill),
        ("int64*", table),
        *(rank, int(places[rank]), offsets[-1].size, *longest_run(offsets[-1]), *numbers),
    )
    return kernel_call(kernel, operands, math.prod(o.size for o in offsets[:-1]))


def _merged(offsets: Sequence[Indices], whole: Sequence[bool]) -> list[Indices]:
    """Join axes that are taken whole: with their like, and a short innermost one with any neighbour."""
    joined: list[tuple[Indices, bool]] = []
    last = len(offsets) - 1
    for i, (table, is_whole) in enumerate(zip(offsets, whole)):
        if joined and is_whole and (joined[-1][1] or (i == last and table.size < SHORT_ROW)):
            before, before_whole = joined.pop()
            pairs = np.where(before[:, None] < 0, -1, before[:, None] + table[None, :])
            joined.append((pairs.reshape(-1), before_whole))
        else:
            joined.append((table, is_whole))
    return [table for table, _ in joined] or [np.zeros(1, np.int64)]


def longest_run(table: Indices) -> tuple[int, int]:
    """The longest half-open range in which offsets count up by one; (size, size) if there is no long one."""
    steps = np.diff(table, prepend=table[0]) != 1
    breaks = np.flatnonzero(steps | (table < 0) | (np.roll(table, 1) < 0))
    ends = np.append(breaks[breaks > 0], table.size)
    starts = np.concatenate([[0], ends[:-1]])
    best = int(np.argmax(np.where(table[starts] < 0, 0, ends - starts)))
    if table[starts[best]] < 0 or ends[best] - starts[best] < min(SHORT_RUN, table.size):
        return table.size, table.size
    return int(starts[best]), int(ends[best])
