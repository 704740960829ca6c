"""Nodes for the parameters and sizes of one run.

Parameters are operands whose elements decide the shape of a result, or along which axes it is computed: axes,
sizes, pads. Where they are no constants, or the sizes of an operand are unknown, a run finds them out, and a
node of the same operator with constant parameters and operands of static shape stands for this run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.shape_inference import inference
from app.engine.operators.operands import data

Array: TypeAlias = np.ndarray[Any, Any]
Mismatch: TypeAlias = Callable[[ir.Node], str | None]


@dataclass(frozen=True, slots=True)
class Specialization:
    """Nodes that stand for others in one run, and the value that each of their operands stands for."""

    nodes: tuple[ir.Node, ...]
    operands: Mapping[ir.Value, ir.Value]


def specialized(nodes: Sequence[ir.Node], arrays: Mapping[ir.Value, Array]) -> Specialization:
    """Nodes in execution order with operands like these arrays, parameters as constants; others are left out.

    Raises:
        ValueError: the operands do not fit an operator.
    """
    made: dict[tuple[ir.Value, bool], ir.Value] = {}
    operands: dict[ir.Value, ir.Value] = {}

    def operand(value: ir.Value | None, *, fixed: bool) -> ir.Value | None:
        if value is None or (value, fixed) in made:
            return None if value is None else made[value, fixed]
        if (value, False) in made:  # what a node before it makes
            return made[value, False]
        if value not in arrays:
            return None
        array = arrays[value]
        found = ir.Value(name=value.name, type=value.type, shape=ir.Shape(array.shape))
        if fixed:
            found.const_value = ir.tensor(array.copy(), dtype=value.dtype)
        operands[found] = value
        made[value, fixed] = found
        return found

    results = []
    for node in nodes:
        positions = PARAMETERS.get(node.op_type, ())
        inputs = [operand(v, fixed=i in positions) for i, v in enumerate(node.inputs)]
        attributes, count = tuple(node.attributes.values()), len(node.outputs)
        found = ir.Node(node.domain, node.op_type, inputs, attributes, name=node.name, num_outputs=count)
        for value, output in zip(node.outputs, found.outputs):
            output.name, output.type = value.name, value.type
            made[value, False] = output
        if (reason := _mismatch(found, node)) is not None:
            raise ValueError(reason)
        results.append(found)
    return Specialization(tuple(results), operands)


def _mismatch(found: ir.Node, node: ir.Node) -> str | None:
    """Reason why the operands of a node do not fit; else None, and its results have shapes."""
    try:
        reason = MISMATCHES[node.op_type](found) if node.op_type in MISMATCHES else None
        if reason is None:
            inference.infer_node(found, {} if node.graph is None else node.graph.opset_imports)
            reason = _unsized(found)
    except IndexError:
        return f"an axis is out of range of {[None if v is None else str(v.shape) for v in found.inputs]}"
    return reason


def _unsized(node: ir.Node) -> str | None:
    """Reason why results of a node have no place; None where all do."""
    for value in node.outputs:
        if value.name and (graph.is_dynamic(value) or min(graph.static_shape(value), default=0) < 0):
            return f"{value.name!r} would have the shape {value.shape}"
    return None


def _numbers(node: ir.Node, index: int) -> list[int] | None:
    array = graph.constant(graph.input_at(node, index))
    return None if array is None else [int(n) for n in array.reshape(-1)]


def _rank(node: ir.Node) -> int:
    return len(graph.static_shape(data(node)))


def _bad_axes(axes: Sequence[int] | None, rank: int) -> str | None:
    """Reason why these are no axes, each once; None where they are."""
    if axes is None:
        return None
    outside = next((a for a in axes if not -rank <= a < rank), None)
    if outside is not None:
        return f"axis {outside} is out of range for rank {rank}"
    return f"axes {list(axes)} repeat one" if len({a % rank for a in axes}) < len(axes) else None


def _axes(node: ir.Node) -> str | None:
    axes, rank = _numbers(node, 1), _rank(node)
    return _bad_axes(axes and list(dict.fromkeys(axes)), max(rank, 1))


def _reshape(node: ir.Node) -> str | None:
    sizes, shape = _numbers(node, 1) or [], graph.static_shape(data(node))
    if not graph.attribute(node, "allowzero", 0):
        if any(n == 0 and i >= len(shape) for i, n in enumerate(sizes)):
            return f"{sizes} copies a dimension that {list(shape)} lacks"
        sizes = [shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    known = math.prod(n for n in sizes if n != -1)
    total, free = math.prod(shape), sizes.count(-1)
    fits = known == total if free == 0 else free == 1 and known > 0 and total % known == 0
    return None if fits and all(n >= -1 for n in sizes) else f"{list(shape)} does not become {sizes}"


def _slice(node: ir.Node) -> str | None:
    starts, ends, axes, steps = (_numbers(node, i) for i in range(1, 5))
    rank = _rank(node)
    lists = [a for a in (starts, ends, axes, steps) if a is not None]
    if len({len(a) for a in lists}) > 1 or len(lists[0]) > rank:
        return (
            f"bounds, axes and steps have the lengths {[len(a) for a in lists]}, the operand has rank {rank}"
        )
    return "a step is zero" if steps is not None and 0 in steps else _bad_axes(axes, rank)


def _split(node: ir.Node) -> str | None:
    sizes, shape = _numbers(node, 1), graph.static_shape(data(node))
    extent = shape[graph.attribute(node, "axis", 0)]
    fits = sizes is None or (len(sizes) == len(node.outputs) and sum(sizes) == extent and min(sizes) >= 0)
    return None if fits else f"{len(node.outputs)} parts of {extent} elements have not the sizes {sizes}"


def _tile(node: ir.Node) -> str | None:
    repeats, rank = _numbers(node, 1) or [], _rank(node)
    fits = len(repeats) == rank and min(repeats, default=0) >= 0
    return None if fits else f"repeats {repeats} do not fit rank {rank}"


def _expand(node: ir.Node) -> str | None:
    sizes, shape = _numbers(node, 1) or [], graph.static_shape(data(node))
    if min(sizes, default=0) < 0:
        return f"sizes {sizes} are negative"
    try:
        np.broadcast_shapes(tuple(sizes), shape)
    except ValueError:
        return f"{list(shape)} does not broadcast with {sizes}"
    return None


def _top(node: ir.Node) -> str | None:
    shape, axis = graph.static_shape(data(node)), graph.attribute(node, "axis", -1)
    k = (_numbers(node, 1) or [0])[0]
    return None if 0 <= k <= shape[axis] else f"the first {k} of {shape[axis]} elements"


def _pad(node: ir.Node) -> str | None:
    pads, axes, rank = _numbers(node, 1) or [], _numbers(node, 3), _rank(node)
    count = rank if axes is None else len(axes)
    if len(pads) != 2 * count:
        return f"{len(pads)} pads for {count} axes"
    return _bad_axes(axes, rank)


def _resize(node: ir.Node) -> str | None:
    given = [graph.constant(graph.input_at(node, i)) for i in range(1, 4)]
    if node.op_type == "Upsample":
        given = [None, given[0], None]
    rank = _rank(node)
    count = len(graph.attribute(node, "axes", tuple(range(rank))))
    roi, *factors = (None if a is None or not a.size else a for a in given)
    stated = [a for a in factors if a is not None]
    if len(stated) != 1 or len(stated[0]) != count or not np.all(stated[0] > 0):
        return f"scales or sizes must be {count} positive numbers, found {[a.tolist() for a in stated]}"
    if roi is not None and len(roi) != 2 * count:
        return f"{len(roi)} bounds of a region along {count} axes"
    return None


def _one_hot(node: ir.Node) -> str | None:
    depth = (_numbers(node, 1) or [0])[0]
    return None if depth > 0 else f"depth {depth} is not positive"


def _shape(node: ir.Node) -> str | None:
    sizes = _numbers(node, 0) or []
    return None if min(sizes, default=0) >= 0 else f"sizes {sizes} are negative"


_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceSumSquare", "ReduceLogSumExp"),
)
# Positions of the parameters by operator.
PARAMETERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_REDUCTIONS, (1,)),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Expand", "Tile", "Split", "TopK", "Upsample"), (1,)),
    "OneHot": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
}
# Reasons why constant parameters do not fit, beyond those that shape inference finds.
MISMATCHES: dict[str, Mismatch] = {
    **dict.fromkeys(_REDUCTIONS, _axes),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Expand": _expand,
    "TopK": _top,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "OneHot": _one_hot,
    "ConstantOfShape": _shape,
}
