"""Operators that move elements, of prefixes: the same of the wholes, with the axis where it lies then."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.rewrites.bounded.prefix import BOUND, COMPRESS, DOMAIN, Nodes, Prefix, Shape, fits, prefix_of

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
    fixed = graph.constant(shape)
    if fixed is not None:
        return [int(d) for d in fixed.reshape(-1)]
    parts = None if shape is None else shape.producer()
    if parts is None or parts.op_type != "Concat":
        return None
    found: list[int] = []
    for part in parts.inputs:
        numbers = [-1] if _is_count(part, of) else graph.constant(part)
        if numbers is None:
            return None
        found += [int(d) for d in numbers]
    if found.count(-1) == 2 and of.axis == 0 and _is_count(parts.inputs[0], of):
        found[0] = 0  # the extent of the operand, and the one that is left
    return found if found.count(-1) <= 1 else None


def _is_count(value: ir.Value | None, of: Prefix, depth: int = 4) -> bool:
    """True if a value is the count of a prefix, alone or taken out of its shape."""
    if value is of.count or value is None or depth == 0:
        return value is of.count
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Identity") and graph.elements(value) == 1:
        return _is_count(node.inputs[0], of, depth - 1)
    place = graph.constant(graph.input_at(node, 1))
    whole = None if node.inputs[0] is None else node.inputs[0].producer()
    if node.op_type != "Gather" or place is None or place.size != 1 or whole is None:
        return False
    at = int(place.item())
    extents = [graph.shape(v) if v is not None else None for v in whole.inputs]
    if whole.op_type != "Concat" or at < 0 or None in extents:
        return False
    pieces = [v for v, s in zip(whole.inputs, extents) if s for _ in range(s[0])]
    return at < len(pieces) and pieces[at] is of.count


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
    if not fits(result, graph.dtype(x)):
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
    if not fits(result, graph.dtype(x)):
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
    extent = n.constant([sizes[axis]]) if of is None else of.count
    if BOUND not in end.meta:
        negative = n("Less", [end, n.constant([0])], ir.DataType.BOOL, (1,))
        turned = n.number("Max", n.number("Add", end, extent), n.constant([0]))
        end = n.number("Where", negative, turned, end)
    count = n.counted(n.number("Min", end, extent), sizes[axis])
    return [Prefix(whole, axis, count)]


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
    if not fits(result, graph.dtype(found.whole)):
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
