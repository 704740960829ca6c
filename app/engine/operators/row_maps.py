"""Rows of images that operators read: which nodes are maps of rows, and why others are barriers.

Rows are those of axis 2 of values [1, channels, rows, columns]; every other value is one row. A barrier reads
all rows of its operands before it writes one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import Registry
from app.engine.memory.rows.geometry import ROW, RowMap, every, only
from app.engine.operators.axes import reduced_axes
from app.engine.operators.conv_geometry import of_conv, of_conv_transpose
from app.engine.operators.operands import data
from app.engine.operators.pool_geometry import windows
from app.engine.operators.resize_geometry import nearest_indices, resized_axes, taps_along

Rows: TypeAlias = npt.NDArray[np.int64]  # int64[rows, 2]: first row read, and one after the last
Found: TypeAlias = Rows | str
AXIS = 2
_STEPS = (1, 2, 3, 4, 8)  # rows of an operand for rows of a result, and the other way round


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Rows of a group.

    Attributes:
        reads: operands from outside, constants excluded, and the rows of them that a row of an output reads.
        accumulated: its outputs are sums over the rows of its operands, one turn a row.
        barrier: reason why the group reads all rows first; None if it is a map of rows.
    """

    reads: tuple[tuple[ir.Value, RowMap], ...]
    accumulated: bool = False
    barrier: str | None = None


def rows_of(value: ir.Value) -> int:
    """Rows of a static value: those of an image of one item, else one."""
    shape = graph.static_shape(value)
    return shape[AXIS] if len(shape) == 4 and shape[0] == 1 and shape[AXIS] > 0 else 1


def group_rows(group: Group, registry: Registry) -> GroupRows:
    """Rows of a group whose values are all static."""
    operands = [v for v in group.inputs if not graph.is_constant(v) and not v.is_initializer()]
    if all(rows_of(v) == 1 for v in (*operands, *group.outputs)):
        return GroupRows(tuple((v, ROW) for v in operands))
    sums = _sum_rows(group, operands, registry)
    if sums is not None:
        return sums
    found = _composed(group, registry)
    if isinstance(found, str):
        return GroupRows(tuple((v, every(rows_of(v))) for v in operands), barrier=found)
    return GroupRows(tuple((v, _fitted(found[v], rows_of(v)) if v in found else only(0)) for v in operands))


def _sum_rows(group: Group, operands: list[ir.Value], registry: Registry) -> GroupRows | None:
    """Rows of a sum or mean over all rows, with elementwise nodes around it; None for other groups."""
    if group.op not in _SUMS or any(rows_of(v) > 1 for v in group.outputs):
        return None
    if AXIS not in (reduced_axes(group) or ()):
        return None
    others = [n for n in group.nodes if n is not group.anchor]
    turns = {rows_of(v) for v in operands if rows_of(v) > 1}
    if len(turns) != 1 or not all(_elementwise(n, registry) for n in others):
        return None
    return GroupRows(tuple((v, ROW if rows_of(v) > 1 else only(0)) for v in operands), accumulated=True)


def _composed(group: Group, registry: Registry) -> dict[ir.Value, Rows] | str:
    """By value that the group reads, the rows that each row of its outputs needs; or the reason why not."""
    counts = {rows_of(v) for v in group.outputs}
    if len(counts) != 1:
        return f"outputs have {sorted(counts)} rows"
    (rows,) = counts
    needed: dict[ir.Value, Rows] = {}
    own = np.stack([np.arange(rows), np.arange(rows) + 1], axis=1)
    for value in group.outputs:
        needed[value] = own
    for node in reversed(group.nodes):
        wanted = [needed[v] for v in node.outputs if v in needed]
        for i, operand in enumerate(node.inputs if wanted else ()):
            if operand is None or graph.is_constant(operand) or operand.is_initializer():
                continue
            found = _node_rows(node, i, operand, registry)
            if isinstance(found, str):
                return f"{node.op_type} {node.name!r}: {found}"
            for rows_wanted in wanted:
                read = _through(found, rows_wanted)
                needed[operand] = _union(needed[operand], read) if operand in needed else read
    return needed


def _node_rows(node: ir.Node, index: int, value: ir.Value, registry: Registry) -> Found:
    """The rows of an input that each row of a node's output reads."""
    rows, target = rows_of(value), rows_of(node.outputs[0])
    if _elementwise(node, registry) or node.op_type in _ALIKE:
        return _same(rows, target)
    rule = _RULES.get(node.op_type)
    if rule is None:
        return "reads rows in no order that is known"
    if index > 0 and node.op_type not in _ALL_INPUTS:
        return _same(1, target) if rows == 1 else f"input {index} has rows of its own"
    return rule(node, rows, target)


def _elementwise(node: ir.Node, registry: Registry) -> bool:
    row = registry.operator(node)
    return row is not None and row.elementwise


def _same(rows: int, target: int) -> Found:
    """Row by row, or a single row for all."""
    if rows == target:
        return _range(np.arange(rows), np.arange(rows) + 1)
    return _range(np.zeros(target), np.ones(target)) if rows == 1 else f"{rows} rows become {target}"


def _range(low: npt.NDArray[np.generic], high: npt.NDArray[np.generic]) -> Rows:
    return np.stack([low, high], axis=1).astype(np.int64)


def _through(reads: Rows, wanted: Rows) -> Rows:
    """The rows that intervals of rows read; an interval of padding alone stays empty."""
    last = len(reads) - 1
    low, high = np.clip(wanted[:, 0], 0, last), np.clip(wanted[:, 1] - 1, 0, last)
    return _range(reads[low, 0], np.where(wanted[:, 0] < wanted[:, 1], reads[high, 1], reads[low, 0]))


def _union(a: Rows, b: Rows) -> Rows:
    return _range(np.minimum(a[:, 0], b[:, 0]), np.maximum(a[:, 1], b[:, 1]))


def _fitted(reads: Rows, extent: int) -> RowMap:
    """The map that reads the fewest rows, of those that hold all intervals; ties to the simplest."""
    if extent == 1:
        return only(0)
    target = len(reads)
    divisor = math.gcd(extent, target)
    own = extent // divisor, target // divisor
    ratios = dict.fromkeys([*((s, p) for p in _STEPS for s in _STEPS), own])
    found = [m for step, per in ratios if (m := _least(reads, extent, step, per)) is not None]
    return min(found, key=lambda m: _total(m, target, extent), default=every(extent))


def _least(reads: Rows, extent: int, step: int, per: int) -> RowMap | None:
    """The least map of these steps that holds all intervals, if there is one.

    A window that begins before row 0, or ends after the last, was clipped there and says nothing of that end.
    """
    at = np.arange(len(reads)) * step
    inside = reads[:, 0] < reads[:, 1]
    low = ((reads[:, 0] + 1) * per - 1 - at)[inside & (reads[:, 0] > 0)]
    high = ((reads[:, 1] - 1) * per - at)[inside & (reads[:, 1] < extent)]
    # Where one end is clipped in all rows, the map reaches it from the first row, or up to the last.
    first = int(low.min()) if len(low) else -int(at[-1])
    last = int(high.max()) if len(high) else extent * per
    if first > last:
        return None
    found = RowMap(step, per, first, last)
    held = all(
        max(found.low(i), 0) <= low and min(found.high(i), extent) >= high
        for i, (low, high) in enumerate(reads.tolist())
        if low < high
    )
    return found if held else None


def _total(found: RowMap, target: int, extent: int) -> int:
    """Rows that a map reads in all."""
    return sum(max(min(found.high(i), extent) - max(found.low(i), 0), 0) for i in range(target))


def _conv(node: ir.Node, rows: int, target: int) -> Found:
    window = of_conv(_alone(node))
    if window.size[0] != 1 or window.size[1] != rows or window.out[1] != target:
        return "its rows are not those of an image"
    return _windows(rows, target, window.stride[1], window.offsets[1])


def _windows(rows: int, target: int, stride: int, offsets: tuple[int, ...]) -> Rows:
    first = np.arange(target) * stride
    return _range(np.clip(first + min(offsets), 0, rows), np.clip(first + max(offsets) + 1, 0, rows))


def _conv_transpose(node: ir.Node, rows: int, target: int) -> Found:
    low, high = np.full(target, rows), np.zeros(target)
    for phase in of_conv_transpose(node):
        offsets = phase.window.offsets[1]
        if phase.window.size[0] != 1 or phase.window.size[1] != rows:
            return "its rows are not those of an image"
        if not offsets:
            continue
        own = np.arange(phase.first[1], target, phase.step[1])
        at = np.arange(len(own))
        low[own] = np.minimum(low[own], np.clip(at + min(offsets), 0, rows))
        high[own] = np.maximum(high[own], np.clip(at + max(offsets) + 1, 0, rows))
    return _range(np.minimum(low, high), high)


def _pool(node: ir.Node, rows: int, target: int) -> Found:
    own = windows(node)
    if own.size[0] != 1 or own.size[1] != rows or len(node.outputs) > 1:
        return "its rows are not those of an image"
    taps = tuple(t * own.dilations[1] - own.before[1] for t in range(own.kernel[1]))
    return _windows(rows, target, own.strides[1], taps)


def resized_rows(node: ir.Node) -> RowMap:
    """The rows of an image that each row of a resized one reads."""
    rows, target = rows_of(data(node)), rows_of(node.outputs[0])
    return _fitted(_resize(node, rows, target), rows)


def _resize(node: ir.Node, rows: int, target: int) -> Rows:
    axis = resized_axes(node)[AXIS]
    if graph.attribute(node, "mode", "nearest") == "nearest":
        index = nearest_indices(node)[AXIS]
    else:
        index, _ = taps_along(node, axis)
    index = np.asarray(index).reshape(target, -1)
    inside = np.clip(index, 0, rows - 1)
    return _range(inside.min(axis=1), inside.max(axis=1) + 1)


def _depth_to_space(_node: ir.Node, rows: int, target: int) -> Found:
    at = np.arange(target) // max(target // rows, 1)
    return _range(at, at + 1)


def _space_to_depth(_node: ir.Node, rows: int, target: int) -> Found:
    block = max(rows // target, 1)
    return _range(np.arange(target) * block, np.arange(target) * block + block)


def _pad(node: ir.Node, rows: int, target: int) -> Found:
    pads = graph.constant(graph.input_at(node, 1))
    if graph.attribute(node, "mode", "constant") != "constant" or pads is None or len(node.inputs) > 3:
        return "it pads with what it reads, or along axes that are not known"
    if pads.size != 8:
        return "it pads along axes that are not known"
    low = np.clip(np.arange(target) - int(pads.reshape(-1)[AXIS]), 0, rows)
    return _range(low, np.clip(np.arange(target) - int(pads.reshape(-1)[AXIS]) + 1, 0, rows))


def _along_channels(node: ir.Node, rows: int, target: int) -> Found:
    axis = graph.attribute(node, "axis", 1 if node.op_type in ("Concat", "Split") else -1)
    if axis % 4 == AXIS:
        return "it works along the axis of rows"
    return _same(rows, target)


def _slice(node: ir.Node, rows: int, target: int) -> Found:
    axes = graph.constant(graph.input_at(node, 3)) if len(node.inputs) > 3 else None
    if axes is None or AXIS in [int(a) % 4 for a in axes.reshape(-1)]:
        return "it takes part of the rows"
    return _same(rows, target)


def _alone(node: ir.Node) -> Group:
    inputs = tuple(v for v in node.inputs if v is not None)
    return Group((node,), node, inputs, tuple(node.outputs), node.op_type)


_SUMS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"})
_ALIKE = frozenset(
    {"BatchNormalization", "ChangeLayout", "Dropout", "Identity", "LRN"}
)  # a row of each reads the same row
_ALL_INPUTS = frozenset({"Concat"})  # whose operands are all read alike
_RULES: Mapping[str, Callable[[ir.Node, int, int], Found]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Pad": _pad,
    "Concat": _along_channels,
    "Split": _along_channels,
    "Softmax": _along_channels,
    "LogSoftmax": _along_channels,
    "Slice": _slice,
}
