"""Operators of ONNX that move, select and combine elements, in MXNet's spelling."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from app.engine.core import graph
from app.engine.model.mxnet.symbol_file import Entry
from app.engine.operators import resize_geometry
from app.engine.report.mxnet.operators.elementwise import Row, Written, broadcast
from app.engine.report.mxnet.spelling import FAR, Array, Dims, Spelling, Unspelled


def _ints(array: Array) -> tuple[int, ...]:
    return tuple(int(v) for v in array.reshape(-1))


def _codes(dims: Dims, free: int = -1) -> tuple[int, ...]:
    """A shape as an attribute; one free dimension follows from the others."""
    if sum(d is None for d in dims) > 1:
        raise Unspelled(
            f"{sum(d is None for d in dims)} dimensions of the result are free; bind the shapes of the inputs"
        )
    return tuple(free if d is None else d for d in dims)


def _reshape(c: Spelling) -> Entry:
    """ONNX's codes 0 and -1 mean the same in MXNet."""
    shape = graph.constant(c.value(1))
    if shape is not None and not (c.attribute("allowzero", 0) and 0 in shape):
        return c.reshaped(c.input(0), _ints(shape))
    return c.reshaped(c.input(0), _codes(c.dims(c.result())))


def _reshaping(c: Spelling) -> Entry:
    """An operator whose result is its operand in another shape, which is known."""
    return c.reshaped(c.input(0), _codes(c.dims(c.result())))


def _axes(c: Spelling, place: int = 1) -> tuple[int, ...]:
    return _ints(c.constant(place)) if c.has(place) else ()


def _unsqueeze(c: Spelling) -> Entry:
    axes, rank = _axes(c), c.rank()
    entry = c.input(0)
    if rank == 0:
        return c.reshaped(entry, (1,) * len(axes))
    for axis in sorted(a % (rank + len(axes)) for a in axes):
        entry = c.add("expand_dims", entry, axis=axis)
    return entry


def _squeeze(c: Spelling) -> Entry:
    axes, rank = _axes(c), c.rank()
    places = {a % rank for a in axes} if axes else {i for i, d in enumerate(c.dims(c.value(0))) if d == 1}
    if len(places) == rank:
        return c.reshaped(c.input(0), (1,))
    return c.add("squeeze", c.input(0), axis=tuple(sorted(places))) if places else c.add("_copy", c.input(0))


def _flatten(c: Spelling) -> Entry:
    if c.attribute("axis", 1) == 1:
        return c.add("Flatten", c.input(0))
    return _reshaping(c)


def _transpose(c: Spelling) -> Entry:
    rank = c.rank()
    perm = tuple(int(p) for p in c.attribute("perm", ())) or tuple(reversed(range(rank)))
    return c.add("transpose", c.input(0), axes=perm) if rank > 1 else c.add("_copy", c.input(0))


def _concat(c: Spelling) -> Entry:
    axis = c.axis("axis", 0)
    entries = c.inputs()
    return (
        c.add("Concat", *entries, dim=axis, num_args=len(entries))
        if len(entries) > 1
        else c.add("_copy", *entries)
    )


def _split(c: Spelling) -> Written:
    axis, count = c.axis("axis", 0), len(c.node.outputs)
    extent = c.dims(c.value(0))[axis]
    if c.has(1):
        sizes = _ints(c.constant(1))
    elif extent is None:
        raise Unspelled(f"axis {axis} of {c.value(0).shape} is free; bind the shapes of the inputs")
    else:
        size = -(-extent // count)
        sizes = tuple(min(size, extent - i * size) for i in range(count))
    x = c.input(0)
    if len(set(sizes)) == 1 and count > 1:
        index = c.add("SliceChannel", x, num_outputs=count, axis=axis)[0]
        return [(index, i) for i in range(count)]
    starts = np.cumsum((0, *sizes))
    return [c.add("slice_axis", x, axis=axis, begin=int(a), end=int(b)) for a, b in pairwise(starts)]


def _slice(c: Spelling) -> Entry:
    """Lists for the first axes; None stands for an end of the axis."""
    starts, ends = _ints(c.constant(1)), _ints(c.constant(2))
    rank, dims = c.rank(), c.dims(c.value(0))
    axes = tuple(a % rank for a in _axes(c, 3)) or tuple(range(len(starts)))
    steps = _axes(c, 4) or (1,) * len(starts)
    begin: list[int | None] = [None] * rank
    end: list[int | None] = [None] * rank
    step: list[int | None] = [None] * rank
    for axis, a, b, s in zip(axes, starts, ends, steps):
        extent = dims[axis]
        if extent is not None:
            first, last, _ = slice(a, b if s > 0 or b >= -extent else None, s).indices(extent)
            begin[axis], end[axis], step[axis] = first, None if last < 0 else last, s
        else:
            begin[axis], end[axis], step[axis] = a, None if abs(b) >= FAR else b, s
            if s < 0 or abs(a) >= FAR:
                raise Unspelled(f"axis {axis} of {c.value(0).shape} is free; bind the shapes of the inputs")
    return c.add("slice", c.input(0), begin=tuple(begin), end=tuple(end), step=tuple(step))


def _expand(c: Spelling) -> Entry:
    return broadcast(c, 0, c.result())


def _tile(c: Spelling) -> Entry:
    return c.add("tile", c.input(0), reps=_ints(c.constant(1)))


def padded(c: Spelling, x: Entry, dims: Dims, pads: list[int], fill: float) -> Entry:
    """A tensor with constants around it: by the layer, which pads the last axes of 4 or 5, or by joining."""
    rank = len(pads) // 2
    if rank in (4, 5) and not any(pads[i] or pads[rank + i] for i in (0, 1)):
        widths = tuple(p for i in range(rank) for p in (pads[i], pads[rank + i]))
        return c.add("Pad", x, mode="constant", pad_width=widths, constant_value=fill)
    shape = [d if d is not None else 0 for d in dims]
    for axis in range(rank):
        sides = []
        for width in (pads[axis], pads[rank + axis]):
            shape[axis] = width
            if width and 0 in shape:
                raise Unspelled("a free shape is padded; bind the shapes of the inputs")
            sides.append(
                [c.add("_full", shape=tuple(shape), value=fill, dtype=str(c.dtype(c.value(0))))]
                if width
                else []
            )
        extent = dims[axis]
        shape[axis] = 0 if extent is None else extent + pads[axis] + pads[rank + axis]
        parts = (*sides[0], x, *sides[1])
        x = c.add("Concat", *parts, dim=axis, num_args=len(parts)) if len(parts) > 1 else x
    return x


def _pad(c: Spelling) -> Entry:
    pads, rank = list(_ints(c.constant(1))), c.rank()
    mode = c.attribute("mode", "constant")
    axes = [a % rank for a in _axes(c, 3)] or list(range(rank))
    whole = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        whole[axis], whole[rank + axis] = pads[i], pads[len(axes) + i]
    x = c.input(0)
    if min(whole) < 0:
        return _cropped(c, x, whole, mode)
    if mode == "constant":
        return padded(c, x, c.dims(c.value(0)), whole, float(c.constant(2).reshape(())) if c.has(2) else 0.0)
    if mode not in ("edge", "reflect"):
        raise Unspelled(f"mode={mode}; MXNet has constant, edge and reflect")
    return _mirrored(c, x, whole, mode)


def _cropped(c: Spelling, x: Entry, pads: list[int], mode: str) -> Entry:
    """Pads below 0 cut off."""
    rank = len(pads) // 2
    if max(pads) > 0:
        raise Unspelled(f"pads {pads} of both signs in the mode {mode}")
    ends = tuple(pads[rank + i] or None for i in range(rank))
    return c.add("slice", x, begin=tuple(-p or None for p in pads[:rank]), end=ends)


def _mirrored(c: Spelling, x: Entry, pads: list[int], mode: str) -> Entry:
    """Padding of at most three last axes, of 4 or 5 as MXNet has it."""
    rank = len(pads) // 2
    first = min((i for i in range(rank) if pads[i] or pads[rank + i]), default=rank)
    if rank - first > 3 or (rank > 5 and first < rank):
        raise Unspelled(f"{rank - first} padded axes of {rank}; MXNet pads the last three of five")
    if first == rank:
        return c.add("_copy", x)
    if rank in (4, 5) and first >= 2:
        return _layer(c, x, pads, mode)
    # Axes of one in front, and those before the padded ones as they are.
    shape = c.static(c.value(0))
    count = 4 if rank - first <= 2 else 5
    kept = count - (rank - first)
    head = (1,) * (kept - first) + shape[:first] if first <= kept else None
    if head is None:
        raise Unspelled(f"{rank} axes in the mode {mode}; MXNet has 4 and 5")
    moved = c.reshaped(x, (*head, *shape[first:]))
    wide = [*[0] * kept, *pads[first:rank], *[0] * kept, *pads[rank + first :]]
    return c.reshaped(_layer(c, moved, wide, mode), c.static(c.result()))


def _layer(c: Spelling, x: Entry, pads: list[int], mode: str) -> Entry:
    rank = len(pads) // 2
    widths = tuple(p for i in range(rank) for p in (pads[i], pads[rank + i]))
    return c.add("Pad", x, mode=mode, pad_width=widths)


def _taken(c: Spelling, x: Entry, axis: int, indices: Array) -> Entry:
    """Elements at constant places along an axis."""
    return c.add("take", x, c.array(indices.astype(np.int64), f"indices{axis}"), axis=axis, mode="clip")


def _resize(c: Spelling) -> Entry:
    """The layer that repeats elements, or look-ups or products with weights, axis by axis."""
    c.static(c.value(0))
    c.static(c.result())
    for place in range(1, len(c.node.inputs)):
        if c.has(place):
            c.constant(place)
    x, mode = c.input(0), c.attribute("mode", "nearest")
    axes = resize_geometry.resized_axes(c.node)
    if mode == "nearest":
        return _nearest(c, x)
    c.floats()
    for number, axis in enumerate(axes):
        if axis.is_same:
            continue
        places, weights = resize_geometry.taps_along(c.node, axis)
        c.writing.room.take(nbytes=8 * axis.size * axis.target)
        if (places < 0).any():
            raise Unspelled("places outside of the data have a value of their own")
        matrix = np.zeros((axis.target, axis.size), np.float64)
        np.add.at(matrix, (np.arange(axis.target)[:, None], places), weights)
        x = _along(c, x, number, len(axes), c.array(matrix.astype(c.dtype(c.value(0))), f"weights{number}"))
    return x


def _along(c: Spelling, x: Entry, axis: int, rank: int, matrix: Entry) -> Entry:
    """The product of a matrix with every line along an axis."""
    order = [i for i in range(rank) if i != axis] + [axis]
    moved = c.add("transpose", x, axes=tuple(order))
    found = c.add("dot", moved, matrix, transpose_b=True)
    return c.add("transpose", found, axes=tuple(int(i) for i in np.argsort(order)))


def _nearest(c: Spelling, x: Entry) -> Entry:
    found = resize_geometry.nearest_indices(c.node)
    if any((places < 0).any() for places in found):
        raise Unspelled("places outside of the data have a value of their own")
    shape = c.static(c.value(0))
    wanted = c.static(c.result())
    scale = wanted[-1] // shape[-1]
    repeats = [np.array_equal(p, np.arange(len(p)) // s) for p, s in zip(found, (1, 1, scale, scale))]
    if len(shape) == 4 and all(repeats) and wanted == (*shape[:2], shape[2] * scale, shape[3] * scale):
        return c.add("UpSampling", x, scale=scale, sample_type="nearest", num_args=1)
    for axis, places in enumerate(found):
        if not np.array_equal(places, np.arange(shape[axis])):
            x = _taken(c, x, axis, places)
    return x


def _space(op: str) -> Row:
    def written(c: Spelling) -> Entry:
        size = int(c.attribute("blocksize", 1))
        if c.attribute("mode", "DCR") == "DCR":
            return c.add(op, c.input(0), block_size=size)
        n, d, h, w = c.static(c.value(0))
        split = c.reshaped(c.input(0), (n, d // size**2, size, size, h, w))
        turned = c.add("transpose", split, axes=(0, 1, 4, 2, 5, 3))
        return c.reshaped(turned, c.static(c.result()))

    return written


def _trilu(c: Spelling) -> Entry:
    """Product with a matrix of 0 and 1."""
    *_, rows, columns = c.static(c.value(0))
    c.writing.room.take(nbytes=rows * columns)
    upper, k = bool(c.attribute("upper", 1)), int(c.constant(1).reshape(())) if c.has(1) else 0
    mask = (np.triu if upper else np.tril)(np.ones((rows, columns), bool), k)
    x = c.input(0)
    wide = c.add("broadcast_like", c.array(mask.reshape(*(1,) * (c.rank() - 2), rows, columns), "mask"), x)
    return c.add("where", wide, x, c.add("zeros_like", x))


ROWS: Mapping[str, Row] = {
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Resize": _resize,
    "DepthToSpace": _space("depth_to_space"),
    "SpaceToDepth": _space("space_to_depth"),
    "Trilu": _trilu,
}
