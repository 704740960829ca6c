"""Operators that move elements, of prefixes: the same of the wholes, with the axis where it lies then."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.rewrites.bounded.extents import elements, is_count
from app.engine.rewrites.bounded.prefix import (
    BOUND,
    COMPRESS,
    DOMAIN,
    WIDEST,
    Nodes,
    Prefix,
    Shape,
    fits,
    prefix_of,
    upper_bound,
)

Results = Sequence[ir.Value | Prefix] | None


def _with(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _axes(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """The constant axes in the second operand, from the front; None where there are none."""
    fixed = graph.constant(graph.input_at(node, 1))
    return None if fixed is None else tuple(int(a) % rank for a in fixed.reshape(-1))


def transpose(n: Nodes, node: ir.Node) -> Results:
    """Axes in another order."""
    of = prefix_of(node.inputs[0])
    if of is None:
        return None
    order = tuple(graph.attribute(node, "perm", tuple(reversed(range(len(of.shape))))))
    (whole,) = n.like(node, [of.whole], [tuple(of.shape[a] for a in order)])
    return [Prefix(whole, order.index(of.axis), of.count)]


def unsqueeze(n: Nodes, node: ir.Node) -> Results:
    """More axes of extent 1."""
    of, added = prefix_of(node.inputs[0]), graph.constant(graph.input_at(node, 1))
    if of is None or added is None:
        return None
    rank = len(of.shape) + added.size
    new = {int(a) % rank for a in added.reshape(-1)}
    kept = [a for a in range(rank) if a not in new]
    extents = dict(zip(kept, of.shape))
    (whole,) = n.like(node, [of.whole, node.inputs[1]], [tuple(extents.get(a, 1) for a in range(rank))])
    return [Prefix(whole, kept[of.axis], of.count)]


def squeeze(n: Nodes, node: ir.Node) -> Results:
    """Fewer axes of extent 1, which are known."""
    of = prefix_of(node.inputs[0])
    axes = None if of is None else _axes(node, len(of.shape))
    if of is None or axes is None or of.axis in axes:
        return None
    kept = [a for a in range(len(of.shape)) if a not in axes]
    (whole,) = n.like(node, [of.whole, node.inputs[1]], [tuple(of.shape[a] for a in kept)])
    return [Prefix(whole, kept.index(of.axis), of.count)]


def reshape(n: Nodes, node: ir.Node) -> Results:
    """Another shape that leaves the elements of the prefix in front."""
    of = prefix_of(node.inputs[0])
    wanted = None if of is None else _wanted(graph.input_at(node, 1), of)
    if of is None or wanted is None or graph.attribute(node, "allowzero", 0):
        return None
    target = _target(wanted, of)
    if target is None:
        return None
    axis, rest = target
    inner, before = math.prod(of.shape) // of.bound, math.prod(of.shape[: of.axis])
    outer, after = math.prod(rest), math.prod(rest[:axis])
    if inner == outer and before == after:
        count, bound = of.count, of.bound
    elif inner % outer == 0 and before == after == 1:
        factor = inner // outer
        bound = of.bound * factor
        count = n.counted(n.number("Mul", of.count, n.constant([factor])), bound)
    else:
        return None
    return [Prefix(n.reshaped(of.whole, (*rest[:axis], bound, *rest[axis:])), axis, count)]


def _wanted(shape: ir.Value | None, of: Prefix) -> list[int] | None:
    """Numbers of a shape, -1 in the place of the count of a prefix; None where they are not known."""
    told = elements(shape)
    if told is None or not all(isinstance(e, int) or e is of.count for e in told):
        return None
    found = [e if isinstance(e, int) else -1 for e in told]
    if found.count(-1) == 2 and of.axis == 0 and told[0] is of.count:
        found[0] = 0  # the extent of the operand, and the one that is left
    return found if found.count(-1) <= 1 else None


def flatten(n: Nodes, node: ir.Node) -> Results:
    """The slices of the prefix as rows of a matrix."""
    of = prefix_of(node.inputs[0])
    if of is None or of.axis or graph.attribute(node, "axis", 1) != 1:
        return None
    return [Prefix(n.reshaped(of.whole, (of.bound, math.prod(of.shape[1:]))), 0, of.count)]


def _target(wanted: Sequence[int], of: Prefix) -> tuple[int, list[int]] | None:
    """The axis of a shape whose extent only a run tells, and the extents of the others."""
    dims: list[int | None] = []
    axis: int | None = None
    for i, d in enumerate(wanted):
        copied = d == 0 and i < len(of.shape)
        axis = i if copied and i == of.axis else axis
        dims.append(None if d == -1 else of.shape[i] if copied else d)
    left = math.prod(of.shape) // of.bound
    if None in dims:
        open_ = dims.index(None)
        if axis is None:
            axis = open_
        else:
            known = math.prod(d for i, d in enumerate(dims) if d is not None and i != axis)
            if known == 0 or left % known:
                return None
            dims[open_] = left // known
    if axis is None:
        return None
    rest = [d for i, d in enumerate(dims) if i != axis and d is not None]
    return None if math.prod(rest) <= 0 else (axis, rest)


def shape(n: Nodes, node: ir.Node) -> Results:
    """The extents, the count among them."""
    of = prefix_of(node.inputs[0])
    if of is None:
        return None
    rank = len(of.shape)
    taken = range(rank)[graph.attribute(node, "start", 0) : graph.attribute(node, "end", rank)]
    if of.axis not in taken:
        return [n.constant([of.shape[a] for a in taken])]
    pieces = [
        n.constant([of.shape[a] for a in part]) if isinstance(part, range) else of.count
        for part in (range(taken.start, of.axis), of.axis, range(of.axis + 1, taken.stop))
        if not isinstance(part, range) or len(part)
    ]
    return pieces if len(pieces) == 1 else [n("Concat", pieces, ir.DataType.INT64, (len(taken),), axis=0)]


def size(n: Nodes, node: ir.Node) -> Results:
    """The number of elements."""
    of = prefix_of(node.inputs[0])
    if of is None:
        return None
    others = n.constant([math.prod(of.shape) // of.bound])
    total = n.counted(n.number("Mul", of.count, others), math.prod(of.shape))
    return [n("Squeeze", [total, n.constant([0])], ir.DataType.INT64, ())]


def _within(n: Nodes, indices: ir.Value, of: Prefix, taken: Prefix | None) -> ir.Value:
    """Indices of a prefix as those of its whole: from the front, and outside of it where they are.

    They may be a prefix too; those that mean nothing become 0.
    """
    dtype, extent = indices.dtype, graph.static_shape(indices)
    kind = graph.element_type(indices)
    count = of.count if dtype == ir.DataType.INT64 else n("Cast", [of.count], dtype, (1,), to=dtype)
    if not extent:
        count = n("Squeeze", [count, n.constant([0])], dtype, ())
    zero = n.constant(0, kind)
    turned = n("Add", [indices, count], dtype, extent)
    negative = n("Less", [indices, zero], ir.DataType.BOOL, extent)
    at = n("Where", [negative, turned, indices], dtype, extent)
    known = (n("Less", [at, count], ir.DataType.BOOL, extent),
             n("GreaterOrEqual", [at, zero], ir.DataType.BOOL, extent))  # fmt: skip
    inside = n("And", known, ir.DataType.BOOL, extent)
    found = n("Where", [inside, at, n.constant(of.bound, kind)], dtype, extent)
    return found if taken is None else n.filled(Prefix(found, taken.axis, taken.count), 0)


def gather(n: Nodes, node: ir.Node) -> Results:
    """Slices at indices, of a prefix or at a prefix of indices."""
    data, at = prefix_of(node.inputs[0]), prefix_of(node.inputs[1])
    x = graph.operand(node, 0) if data is None else data.whole
    indices = graph.operand(node, 1) if at is None else at.whole
    if graph.shape(x) is None or graph.shape(indices) is None:
        return None
    sizes, extents = graph.static_shape(x), graph.static_shape(indices)
    axis = graph.attribute(node, "axis", 0) % len(sizes)
    result = (*sizes[:axis], *extents, *sizes[axis + 1 :])
    if not fits(result, graph.dtype(x), WIDEST):
        return None
    if data is not None and data.axis == axis:
        indices = _within(n, indices, data, at)
    elif data is not None:
        if at is not None:
            return None
        to = data.axis if data.axis < axis else data.axis + len(extents) - 1
        (whole,) = n.like(node, [x, indices], [result])
        return [Prefix(whole, to, data.count)]
    (whole,) = n.like(node, [x, indices], [result])
    return [whole if at is None else Prefix(whole, axis + at.axis, at.count)]


def gather_nd(n: Nodes, node: ir.Node) -> Results:
    """Slices of a value of static shape at a prefix of tuples."""
    at, x = prefix_of(node.inputs[1]), graph.operand(node, 0)
    sizes = graph.shape(x)
    if at is None or sizes is None or graph.attribute(node, "batch_dims", 0) or at.axis == len(at.shape) - 1:
        return None
    result = (*at.shape[:-1], *sizes[at.shape[-1] :])
    if not fits(result, graph.dtype(x), WIDEST):
        return None
    (whole,) = n.like(node, [x, at.whole], [result])
    return [Prefix(whole, at.axis, at.count)]


def cut(n: Nodes, node: ir.Node) -> Results:
    """Slice: along other axes, or a part of the prefix; or up to an end that only a run tells."""
    of = prefix_of(node.inputs[0])
    starts, ends, axes, steps = (graph.constant(graph.input_at(node, i)) for i in range(1, 5))
    if starts is None or (axes is None and graph.input_at(node, 3) is not None):
        return None
    if steps is None and graph.input_at(node, 4) is not None:
        return None
    if ends is None:
        return _up_to(n, node, of, starts, axes, steps)
    if of is None:
        return None
    shape, rank = list(of.shape), len(of.shape)
    count, end = of.count, graph.operand(node, 2)
    of_axes = range(len(starts)) if axes is None else [int(a) % rank for a in axes]
    limits = list(ends)
    for i, (axis, start, stop) in enumerate(zip(of_axes, starts, ends)):
        step = 1 if steps is None else int(steps[i])
        if axis != of.axis:
            shape[axis] = len(range(shape[axis])[slice(int(start), int(stop), step)]) if step > 0 else -1
            continue
        if step != 1 or start < 0 or start >= of.bound:
            return None
        if start == 0 and stop >= of.bound:
            continue
        until = (
            n.number("Add", count, n.constant([stop])) if stop < 0
            else n.number("Min", count, n.constant([min(stop, of.bound)]))
        )  # fmt: skip
        shape[axis] = (of.bound if stop < 0 else min(int(stop), of.bound)) - int(start)
        limits[i] = int(start) + shape[axis]
        if start or stop < 0:
            until = n.number("Max", n.number("Sub", until, n.constant([start])), n.constant([0]))
        count = n.counted(until, max(shape[axis], 0))
    if min(shape) <= 0:
        return None
    if limits != list(ends):
        end = n.constant(limits)
    (whole,) = n.like(node, [of.whole, node.inputs[1], end, *node.inputs[3:]], [tuple(shape)])
    return [Prefix(whole, of.axis, count)]


def _up_to(
    n: Nodes, node: ir.Node, of: Prefix | None, starts: np.ndarray, axes: np.ndarray | None,
    steps: np.ndarray | None,
) -> Results:  # fmt: skip
    """The first elements, up to an end that only a run tells."""
    x, end = graph.operand(node, 0), graph.operand(node, 2)
    whole = x if of is None else of.whole
    sizes = graph.shape(whole)
    if sizes is None or end.dtype != ir.DataType.INT64 or len(starts) != 1 or starts[0] != 0:
        return None
    if (steps is not None and steps[0] != 1) or not fits(sizes, graph.dtype(whole)):
        return None
    axis = 0 if axes is None else int(axes[0]) % len(sizes)
    if of is not None and axis != of.axis:
        return None
    if of is not None and is_count(end, of.count):
        return [of]
    extent = n.constant([sizes[axis]]) if of is None else of.count
    if BOUND not in end.meta:
        negative = n("Less", [end, n.constant([0])], ir.DataType.BOOL, (1,))
        turned = n.number("Max", n.number("Add", end, extent), n.constant([0]))
        end = n.number("Where", negative, turned, end)
    count = n.counted(n.number("Min", end, extent), sizes[axis])
    return [Prefix(whole, axis, count)]


def expand(n: Nodes, node: ir.Node) -> Results:
    """The elements of a prefix repeated along other axes, or what is no prefix as often as a count tells."""
    of, target = prefix_of(node.inputs[0]), elements(graph.input_at(node, 1))
    x = graph.operand(node, 0) if of is None else of.whole
    if target is None or graph.shape(x) is None:
        return None
    rank = max(len(graph.static_shape(x)), len(target))
    shape = (*(1,) * (rank - len(graph.static_shape(x))), *graph.static_shape(x))
    sizes = (*(1,) * (rank - len(target)), *target)
    open_ = {a: e for a, e in enumerate(sizes) if not isinstance(e, int)}
    if of is not None:
        axis, count = of.axis + rank - len(of.shape), of.count
        if any(a != axis or e is not count for a, e in open_.items()) or sizes[axis] not in (1, count):
            return None
    elif len(open_) == 1:
        ((axis, count),) = open_.items()
        if shape[axis] != 1:
            return None
    else:
        return None
    bound = upper_bound(count) if of is None else of.bound
    if bound is None:
        return None
    wide = (bound if a == axis else e for a, e in enumerate(sizes))
    result = np.broadcast_shapes(shape, tuple(e for e in wide if isinstance(e, int)))
    if not fits(result, graph.dtype(x), WIDEST):
        return None
    (whole,) = n.like(node, [x, n.constant(result)], [result])
    return [Prefix(whole, axis, count)]


def scatter(n: Nodes, node: ir.Node) -> Results:
    """Slices of a prefix of updates in the place of others along the first axis.

    Updates that mean nothing are written to a slice behind those of the data.
    """
    data, at, updates = (prefix_of(v) for v in node.inputs)
    if at is None or updates is None or at.axis or updates.axis or at.count is not updates.count:
        return None
    rows = at.whole if node.op_type == "ScatterND" else _rows_of(n, node, at, updates)
    if rows is None or graph.static_shape(rows)[1:] != (1,) or (data is not None and data.axis):
        return None
    if data is None:
        x = graph.operand(node, 0)
        if graph.shape(x) is None:
            return None
        of = Prefix(x, 0, n.constant([graph.static_shape(x)[0]]))
    else:
        of = data
    if of.shape[1:] != updates.shape[1:]:
        return None
    bound = min(graph.static_shape(rows)[0], updates.bound)
    rows = n.shortened(Prefix(rows, 0, at.count), bound).whole
    given = n.shortened(updates, bound).whole
    known = _within(n, rows, of, None)
    whole = of.whole
    if of.count.meta.get(BOUND, of.bound) >= of.bound:
        shape = (of.bound + 1, *of.shape[1:])
        more = n.repeated(np.zeros((), graph.element_type(whole))[()], (1, *shape[1:]))
        whole = n("Concat", [whole, more], whole.dtype, shape, axis=0)
    shape = graph.static_shape(whole)
    last = n.constant(shape[0] - 1, graph.element_type(known))
    # An index that is out of range stays so: behind the slice that takes what means nothing.
    outside = n.constant(shape[0], graph.element_type(known))
    far = n("Less", [known, n.constant(of.bound, graph.element_type(known))], ir.DataType.BOOL, (bound, 1))
    known = n("Where", [far, known, outside], known.dtype, (bound, 1))
    mask = n.mask(bound, at.count, 2)
    places = n("Where", [mask, known, last], known.dtype, (bound, 1))
    reduction = graph.attribute(node, "reduction", "none")
    result = n("ScatterND", [whole, places, given], whole.dtype, shape, reduction=reduction)
    if data is not None:
        return [Prefix(result, 0, data.count)]
    return [n.shortened(Prefix(result, 0, of.count), of.bound).whole]


def _rows_of(n: Nodes, node: ir.Node, at: Prefix, updates: Prefix) -> ir.Value | None:
    """Indices of slices, int64[k, 1], of a ScatterElements that has one for all elements of a slice."""
    expanded = at.whole.producer()
    if expanded is None or expanded.op_type != "Expand" or graph.attribute(node, "axis", 0):
        return None
    index = graph.operand(expanded, 0)
    if graph.shape(index) != (at.bound, *(1,) * (len(at.shape) - 1)) or at.shape[1:] != updates.shape[1:]:
        return None
    return n.reshaped(index, (at.bound, 1))


def split(n: Nodes, node: ir.Node) -> Results:
    """Parts along an axis that is not that of the prefix."""
    of = prefix_of(node.inputs[0])
    if of is None:
        return None
    axis = graph.attribute(node, "axis", 0) % len(of.shape)
    extents = [None if v.shape is None else v.shape[axis] for v in node.outputs]
    if axis == of.axis or not all(isinstance(e, int) for e in extents):
        return None
    shapes = [_with(of.shape, axis, int(e)) for e in extents]  # type: ignore[arg-type]  # ints, as was asked
    wholes = n.like(node, [of.whole, *node.inputs[1:]], shapes)
    return [Prefix(whole, of.axis, of.count) for whole in wholes]


def concat(n: Nodes, node: ir.Node) -> Results:
    """Prefixes one after the other, without what lies behind each; or side by side, of one count."""
    parts = [prefix_of(v) for v in node.inputs]
    found = next((p for p in parts if p is not None), None)
    if found is None:
        return None
    axis = graph.attribute(node, "axis", 0) % len(found.shape)
    if axis != found.axis:
        return _beside(n, node, parts, axis)
    wholes = [graph.operand(node, i) if p is None else p.whole for i, p in enumerate(parts)]
    if any(graph.shape(v) is None for v in wholes) or any(p is not None and p.axis != axis for p in parts):
        return None
    sizes = [graph.static_shape(v)[axis] for v in wholes]
    bound = sum(sizes)
    result = _with(found.shape, axis, bound)
    if not fits(result, graph.dtype(found.whole), WIDEST):
        return None
    masks, counts = [], []
    for size, part in zip(sizes, parts):
        masks.append(n.constant(np.ones(size), np.bool_) if part is None else n.mask(size, part.count))
        counts.append(n.constant([size]) if part is None else part.count)
    (together,) = n.like(node, wholes, [result])
    mask, total = masks[0], counts[0]
    if len(masks) > 1:
        mask = n("Concat", masks, ir.DataType.BOOL, (bound,), axis=0)
        total = n("Concat", counts, ir.DataType.INT64, (len(counts),), axis=0)
        total = n("ReduceSum", [total, n.constant([0])], ir.DataType.INT64, (1,), keepdims=1)
    whole = n(COMPRESS, [together, mask], found.whole.dtype, result, DOMAIN, axis=axis)
    return [Prefix(whole, axis, n.counted(total, bound))]


def _beside(n: Nodes, node: ir.Node, parts: Sequence[Prefix | None], axis: int) -> Results:
    """Prefixes of one count side by side along another axis."""
    given = [p for p in parts if p is not None]
    if len(given) < len(parts) or any(
        p.axis != given[0].axis or p.count is not given[0].count for p in given
    ):
        return None
    bound = min(p.bound for p in given)
    given = [n.shortened(p, bound) for p in given]
    result = _with(given[0].shape, axis, sum(p.shape[axis] for p in given))
    (whole,) = n.like(node, [p.whole for p in given], [result])
    return [Prefix(whole, given[0].axis, given[0].count)]
