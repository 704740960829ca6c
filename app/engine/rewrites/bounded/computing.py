"""Operators that compute, of prefixes, and those that find out how many elements their results have."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.shape_inference import inference
from app.engine.operators.independent_rows import SAME, MixedRowsError, axis_of_rows
from app.engine.rewrites.bounded.extents import elements
from app.engine.rewrites.bounded.movement import Results
from app.engine.rewrites.bounded.prefix import (
    COMPRESS,
    DOMAIN,
    SUPPRESS,
    WIDEST,
    Nodes,
    Prefix,
    Shape,
    fits,
    prefix_of,
    upper_bound,
)

FEW = 1024  # boxes of a class
# Operators of `app.engine.operators.independent_rows` that compute slices one by one.
SLICEWISE = (
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Softmax", "LogSoftmax", "Hardmax", "LayerNormalization"),
    *("RMSNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization", "LRN"),
    *("AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"),
    *("CumSum", "Pad", "Resize", "DepthToSpace", "SpaceToDepth", "LpNormalization", "RoiAlign"),
)
_SIZED = "Pad", "Resize", "CumSum"


def elementwise(n: Nodes, node: ir.Node) -> Results:
    """Prefixes of one count, and values that are broadcast along their axis."""
    parts = [prefix_of(v) for v in node.inputs]
    given = [p for p in parts if p is not None]
    if not given or len(node.outputs) != 1:
        return None
    values = [v for v, p in zip(node.inputs, parts) if v is not None and p is None]
    if any(graph.shape(v) is None for v in values):
        return None
    last = len(given[0].shape) - given[0].axis  # counted from the end, as shapes are aligned
    if any(p.count is not given[0].count or len(p.shape) - p.axis != last for p in given):
        return None
    if any(len(s) >= last and s[-last] != 1 for s in map(graph.static_shape, values)):
        return None
    bound = min(p.bound for p in given)
    shorter = {id(p): n.shortened(p, bound) for p in given}
    wholes = [v if p is None else shorter[id(p)].whole for v, p in zip(node.inputs, parts)]
    shape = np.broadcast_shapes(*(graph.static_shape(v) for v in wholes if v is not None))
    if not fits(shape, graph.dtype(node.outputs[0]), WIDEST):
        return None
    (whole,) = n.like(node, wholes, [shape])
    return [Prefix(whole, len(shape) - last, given[0].count)]


def by_slice(n: Nodes, node: ir.Node) -> Results:
    """An operator that computes the slices along the axis of the prefix one by one."""
    parts = [prefix_of(v) for v in node.inputs]
    given = [p for p in parts if p is not None]
    others = [v for v, p in zip(node.inputs, parts) if v is not None and p is None]
    if any(graph.shape(v) is None for v in others) or any(v.name for v in node.outputs[1:]):
        return None
    if node.op_type in _SIZED and not all(map(graph.is_constant, others)):
        return None  # a number of slices may be among its sizes
    if any(p.count is not given[0].count for p in given):
        return None
    bound = min(p.bound for p in given)
    shorter = {id(p): n.shortened(p, bound) for p in given}
    wholes = [v if p is None else shorter[id(p)].whole for v, p in zip(node.inputs, parts)]
    whole, *_ = n.like(node, wholes, [()] * len(node.outputs))
    for value in n.made[-1].outputs:
        value.shape = None
    try:
        inference.infer_node(n.made[-1], graph.owner(node).opset_imports)
        axis = axis_of_rows(n.made[-1], [SAME if p is None else p.axis for p in parts])
    except (ValueError, MixedRowsError):
        return None
    if axis < 0 or graph.is_dynamic(whole) or graph.static_shape(whole)[axis] != bound:
        return None
    if not fits(graph.static_shape(whole), graph.dtype(node.outputs[0]), WIDEST):
        return None
    return [Prefix(whole, axis, given[0].count), *node.outputs[1:]]


def _least(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _largest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


# The element that changes no result.
_NEUTRAL: dict[str, Callable[[np.dtype[Any]], Any]] = {
    "ReduceSum": lambda _dtype: 0,
    "ReduceMean": lambda _dtype: 0,
    "ReduceSumSquare": lambda _dtype: 0,
    "ReduceL1": lambda _dtype: 0,
    "ReduceL2": lambda _dtype: 0,
    "ReduceProd": lambda _dtype: 1,
    "ReduceMax": _least,
    "ReduceMin": _largest,
}
REDUCTIONS = tuple(_NEUTRAL)


def reduction(n: Nodes, node: ir.Node) -> Results:
    """A reduction over other axes, or over the elements of the prefix among them."""
    of, given = prefix_of(node.inputs[0]), graph.input_at(node, 1)
    axes = graph.constant(given)
    if of is None or (given is not None and axes is None):
        return None
    rank, kind = len(of.shape), graph.element_type(of.whole)
    over = {int(a) % rank for a in axes.reshape(-1)} if axes is not None and axes.size else set(range(rank))
    if (axes is None or not axes.size) and graph.attribute(node, "noop_with_empty_axes", 0):
        return None
    kept = [a for a in range(rank) if a not in over]
    is_kept = graph.attribute(node, "keepdims", 1)
    result = tuple(1 if a in over else n_ for a, n_ in enumerate(of.shape) if is_kept or a not in over)
    if of.axis not in over:
        (whole,) = n.like(node, [of.whole, *node.inputs[1:]], [result])
        return [Prefix(whole, of.axis if is_kept else kept.index(of.axis), of.count)]
    filled = n.filled(of, _NEUTRAL[node.op_type](kind))
    if node.op_type != "ReduceMean":
        return n.like(node, [filled, *node.inputs[1:]], [result])
    if kind.kind != "f":
        return None
    total = n("ReduceSum", [filled, *node.inputs[1:]], of.whole.dtype, result, keepdims=is_kept)
    others = math.prod(of.shape[a] for a in over if a != of.axis)
    count = n.number("Mul", of.count, n.constant([others]))
    divisor = n("Cast", [count], of.whole.dtype, (1,), to=of.whole.dtype)
    if not result:
        divisor = n("Squeeze", [divisor, n.constant([0])], of.whole.dtype, ())
    return [n("Div", [total, divisor], of.whole.dtype, result)]


def extremum(n: Nodes, node: ir.Node) -> Results:
    """ArgMax or ArgMin along the axis of the prefix or another one."""
    of = prefix_of(node.inputs[0])
    if of is None:
        return None
    kind, rank = graph.element_type(of.whole), len(of.shape)
    axis, is_kept = graph.attribute(node, "axis", 0) % rank, graph.attribute(node, "keepdims", 1)
    result = tuple(1 if a == axis else e for a, e in enumerate(of.shape) if is_kept or a != axis)
    if axis != of.axis:
        (whole,) = n.like(node, [of.whole], [result])
        return [Prefix(whole, of.axis - (not is_kept and axis < of.axis), of.count)]
    if graph.attribute(node, "select_last_index", 0):
        return None
    fill = _least(kind) if node.op_type == "ArgMax" else _largest(kind)
    return n.like(node, [n.filled(of, fill)], [result])


def top(n: Nodes, node: ir.Node) -> Results:
    """TopK of a prefix, or of a number of elements that only a run tells."""
    of, x, k = prefix_of(node.inputs[0]), graph.operand(node, 0), graph.operand(node, 1)
    whole = x if of is None else of.whole
    sizes, fixed = graph.shape(whole), graph.constant(k)
    if sizes is None or (of is None and fixed is not None) or k.dtype != ir.DataType.INT64:
        return None
    axis, kind = graph.attribute(node, "axis", -1) % len(sizes), graph.element_type(whole)
    along = of is None or of.axis == axis
    if fixed is not None:
        taken = int(fixed.reshape(()))
    else:
        known = upper_bound(k)
        taken = sizes[axis] if known is None else min(known, sizes[axis])
    result = (*sizes[:axis], taken, *sizes[axis + 1 :])
    if not 0 < taken <= sizes[axis] or not fits(result, np.dtype(np.int64)) or (fixed is None and not along):
        return None
    if of is not None and along:
        fill = _least(kind) if graph.attribute(node, "largest", 1) else _largest(kind)
        whole = n.filled(of, fill)
    wholes = n.like(node, [whole, n.constant([taken])], [result] * len(node.outputs))
    if fixed is not None:
        return wholes if of is None or along else [Prefix(w, of.axis, of.count) for w in wholes]
    count = n.clamped(k, taken)
    return [Prefix(w, axis, count) for w in wholes]


def full(n: Nodes, node: ir.Node) -> Results:
    """ConstantOfShape of a shape of which only a run tells one extent."""
    told, length = elements(graph.operand(node, 0)), graph.operand(node, 0)
    if told is None and graph.shape(length) == (1,):
        told = (length,)
    open_ = [(axis, e) for axis, e in enumerate(told or ()) if not isinstance(e, int)]
    if told is None or len(open_) != 1:
        return None
    ((axis, count),) = open_
    bound = upper_bound(count)
    if bound is None:
        return None
    given = graph.attribute(node, "value", None)
    value = np.zeros(1, np.float32) if given is None else given.numpy()
    shape = tuple(bound if isinstance(e, ir.Value) else e for e in told)
    if not fits(shape, value.dtype, WIDEST):
        return None
    return [Prefix(n.repeated(value.reshape(-1)[0], shape), axis, n.clamped(count, bound))]


def numbers(n: Nodes, node: ir.Node) -> Results:
    """Range in steps of 1 up to a number that only a run tells."""
    start, delta = (graph.constant(graph.input_at(node, i)) for i in (0, 2))
    limit, kind = graph.operand(node, 1), graph.dtype(node.outputs[0])
    most = upper_bound(limit)
    if start is None or delta is None or delta.item() != 1 or most is None or kind != np.int64:
        return None
    bound = most - int(start.item())
    if graph.is_constant(limit) or not fits((bound,), kind):
        return None
    count = n("Reshape", [limit, n.constant([1])], ir.DataType.INT64, (1,))
    if start.item():
        count = n.number("Sub", count, n.constant([start.item()]))
    return [Prefix(n.constant(np.arange(bound) + start.item()), 0, n.clamped(count, bound))]


def nonzero(n: Nodes, node: ir.Node) -> Results:
    """Indices of what is not zero, those that are as many as there are elements."""
    of, x = prefix_of(node.inputs[0]), graph.operand(node, 0)
    whole = x if of is None else of.whole
    sizes = graph.shape(whole)
    if not sizes or not fits((len(sizes), *sizes), np.dtype(np.int64)):
        return None
    if of is not None and of.axis != 0:
        return None
    size = math.prod(sizes)
    mask = whole
    if mask.dtype != ir.DataType.BOOL:
        mask = n("Cast", [mask], ir.DataType.BOOL, sizes, to=ir.DataType.BOOL)
    if of is not None:
        mask = n("And", [mask, n.mask(of.bound, of.count, len(sizes))], ir.DataType.BOOL, sizes)
    flat = n.reshaped(mask, (size,))
    # Vectors of 32 bits have quotients, by a division of float64.
    narrow = len(sizes) > 1 and size < 2**31
    kind = ir.DataType.INT32 if narrow else ir.DataType.INT64
    all_places = n.constant(np.arange(size), kind.numpy())
    index = n.reshaped(n(COMPRESS, [all_places, flat], kind, (size,), DOMAIN, axis=0), (1, size))
    if len(sizes) > 1:
        strides = [math.prod(sizes[a + 1 :]) for a in range(len(sizes))]
        for op, numbers in (("Div", strides), ("Mod", sizes)):
            column = n.constant(np.array(numbers)[:, None], kind.numpy())
            index = n(op, [index, column], kind, (len(sizes), size))
    if narrow:
        index = n("Cast", [index], ir.DataType.INT64, (len(sizes), size), to=ir.DataType.INT64)
    return [Prefix(index, 1, _holding(n, flat, size))]


def _holding(n: Nodes, mask: ir.Value, size: int) -> ir.Value:
    """Number of elements of a bool[size] that hold."""
    ones = n("Cast", [mask], ir.DataType.INT64, (size,), to=ir.DataType.INT64)
    total = n("ReduceSum", [ones, n.constant([0])], ir.DataType.INT64, (1,), keepdims=1)
    return n.counted(total, size)


def compress(n: Nodes, node: ir.Node) -> Results:
    """Slices where a condition of static length holds."""
    x, condition = graph.operand(node, 0), graph.operand(node, 1)
    sizes, length = graph.shape(x), graph.shape(condition)
    axis = graph.attribute(node, "axis", None)
    if not sizes or length is None or not fits(sizes, graph.dtype(x)):
        return None
    if axis is None:
        x, sizes, axis = n.reshaped(x, (math.prod(sizes),)), (math.prod(sizes),), 0
    axis %= len(sizes)
    size = sizes[axis]
    if length[0] > size:
        return None
    if length[0] < size:
        rest = n.constant(np.zeros(size - length[0]), np.bool_)
        condition = n("Concat", [condition, rest], ir.DataType.BOOL, (size,), axis=0)
    whole = n(COMPRESS, [x, condition], x.dtype, sizes, DOMAIN, axis=axis)
    return [Prefix(whole, axis, _holding(n, condition, size))]


def suppress(n: Nodes, node: ir.Node) -> Results:
    """NonMaxSuppression of boxes whose number is static or that of a prefix."""
    boxes, scores = (graph.operand(node, i) for i in range(2))
    parts = prefix_of(boxes), prefix_of(scores)
    if all(p is not None for p in parts):
        of, ranked = (p for p in parts if p is not None)
        if of.count is not ranked.count or (of.axis, ranked.axis) != (1, 2):
            return None
        bound = min(of.bound, ranked.bound)
        of, ranked = n.shortened(of, bound), n.shortened(ranked, bound)
        boxes, scores, count = of.whole, ranked.whole, of.count
    elif any(p is not None for p in parts):
        return None
    shape = graph.shape(scores)
    if shape is None or graph.shape(boxes) is None or boxes.dtype != ir.DataType.FLOAT:
        return None
    batch, classes, size = shape
    most = upper_bound(graph.input_at(node, 2))
    if most is None or most > FEW:  # few are the same bound whatever the size, which may be a symbol
        most = size if most is None else min(most, size)
    taken = batch * classes * max(most, 0)
    if graph.input_at(node, 2) is None or not fits((taken, 3), np.dtype(np.int64)):
        return None
    if parts[0] is None:
        count = n.constant([size])
    given = [boxes, scores, *(graph.input_at(node, i) for i in range(2, 5)), count]
    results: Sequence[tuple[ir.DataType, Shape]] = (
        (ir.DataType.INT64, (taken, 3)),
        (ir.DataType.INT64, (1,)),
    )
    attributes = {"center_point_box": graph.attribute(node, "center_point_box", 0), "bound": taken}
    chosen, total = n.several(SUPPRESS, given, results, DOMAIN, attributes)
    return [Prefix(chosen, 0, n.counted(total, taken))]
