"""Reductions, look-ups and quantization of ONNX in MXNet's spelling."""

import math
from collections.abc import Mapping

import numpy as np

from app.engine.core import graph
from app.engine.model.mxnet.symbol_file import Entry
from app.engine.report.mxnet.operators.elementwise import Row, Written, half_to_even
from app.engine.report.mxnet.spelling import FLOAT, Array, Spelling, Unspelled

_WHOLE = (np.dtype("i4"), np.dtype("i8"))


def _reduced(c: Spelling) -> tuple[int, ...]:
    """Axes of a reduction; none where it does nothing."""
    rank = c.rank()
    axes = tuple(int(a) % max(rank, 1) for a in c.constant(1).reshape(-1)) if c.has(1) else ()
    axes = axes or tuple(int(a) % max(rank, 1) for a in c.attribute("axes", ()))
    return axes or (() if c.attribute("noop_with_empty_axes", 0) else tuple(range(max(rank, 1))))


def _reduction(op: str, before: str = "", after: str = "") -> Row:
    """after(op(before(x))), where the empty text is the identity."""

    def written(c: Spelling) -> Entry:
        axes, keeps = _reduced(c), bool(c.attribute("keepdims", 1))
        if before or after or op == "mean" or c.dtype(c.value(0)) not in _WHOLE:
            c.floats()
        x = c.add(before, c.input(0)) if before else c.input(0)
        if axes:
            x = c.add(op, x, axis=tuple(sorted(axes)), keepdims=keeps)
        elif not before and not after:
            x = c.add("_copy", x)
        return c.add(after, x) if after else x

    return written


def _log_sum_exp(c: Spelling) -> Entry:
    """The largest element apart, so that exp stays finite."""
    axes, keeps, x = _reduced(c), bool(c.attribute("keepdims", 1)), c.input(0)
    c.floats()
    largest = c.add("max", x, axis=axes, keepdims=True)
    total = c.add("sum", c.add("exp", c.add("broadcast_sub", x, largest)), axis=axes, keepdims=True)
    found = c.add("broadcast_add", c.add("log", total), largest)
    return found if keeps else c.add("sum", found, axis=axes)


def _arg(op: str) -> Row:
    """MXNet gives indices as floats."""

    def written(c: Spelling) -> Entry:
        c.floats()
        if c.attribute("select_last_index", 0):
            raise Unspelled("select_last_index=1; MXNet gives the first index")
        keeps = bool(c.attribute("keepdims", 1))
        found = c.add(op, c.input(0), axis=c.axis("axis", 0), keepdims=keeps)
        return c.add("Cast", found, dtype="int64")

    return written


def _gather(c: Spelling) -> Entry:
    """Places below 0 count from the end: known ones are written from the front, others wrap around."""
    axis, x = c.axis("axis", 0), c.input(0)
    indices = graph.constant(c.value(1))
    extent = c.dims(c.value(0))[axis]
    if indices is None or (extent is None and indices.min() < 0):
        found = c.add("take", x, c.input(1), axis=axis, mode="wrap")
        scalar = c.rank(1) == 0
    else:
        places = indices if extent is None else indices % extent
        scalar = places.ndim == 0
        if scalar:
            found = c.add("slice_axis", x, axis=axis, begin=int(places), end=int(places) + 1)
        else:
            found = c.add("take", x, c.array(places.astype(np.int64), "indices"), axis=axis, mode="clip")
    if not scalar or c.rank() == 1:
        return found
    return c.add("squeeze", found, axis=(axis,))


def _places(c: Spelling, shape: tuple[int, ...]) -> Array:
    """Indices of every element of a shape along every axis, int64[rank, *shape]."""
    c.writing.room.take(nbytes=8 * len(shape) * math.prod(shape))
    return np.indices(shape, dtype=np.int64)


def _at(c: Spelling, axis: int) -> Entry:
    """Places of elements that an operand of indices names along one axis, the others as they lie."""
    shape, extent = c.static(c.value(1)), c.static(c.value(0))[axis]
    if len(shape) > 6:
        raise Unspelled(f"{len(shape)} axes; MXNet looks up at most 6")
    grid = _places(c, shape)
    indices = graph.constant(c.value(1))
    if indices is not None:
        grid[axis] = indices % extent
        return c.array(grid, "places")
    found = c.input(1)
    low = c.add("broadcast_lesser", found, c.array(np.zeros(1, np.int64), "zero"))
    shifted = c.add("broadcast_mul", low, c.array(np.array([extent], np.int64), "extent"))
    found = c.add("expand_dims", c.add("elemwise_add", found, shifted), axis=0)
    parts = [found if i == axis else c.array(grid[i : i + 1], f"places{i}") for i in range(len(shape))]
    return c.add("Concat", *parts, dim=0, num_args=len(parts)) if len(parts) > 1 else found


def _gather_elements(c: Spelling) -> Entry:
    return c.add("gather_nd", c.input(0), _at(c, c.axis("axis", 0)))


def _gather_nd(c: Spelling) -> Entry:
    """Rows of indices are the last axis of ONNX, the first one of MXNet."""
    if c.attribute("batch_dims", 0):
        raise Unspelled("batch_dims; MXNet has none")
    indices = graph.constant(c.value(1))
    rank = c.rank(1)
    if indices is not None:
        count = indices.shape[-1]
        extents = np.array(c.static(c.value(0))[:count])
        return c.add("gather_nd", c.input(0), c.array(np.moveaxis(indices % extents, -1, 0), "places"))
    moved = c.add("transpose", c.input(1), axes=(rank - 1, *range(rank - 1))) if rank > 1 else c.input(1)
    return c.add("gather_nd", c.input(0), moved)


def _replaced(c: Spelling, places: Entry) -> Entry:
    """Elements of the data where nothing is put; MXNet's operator puts elements into zeros."""
    kind = c.attribute("reduction", "none")
    x, updates, shape = c.input(0), c.input(2), c.static(c.value(0))
    if kind == "add":  # the gradient of a look-up adds what meets
        return c.add("elemwise_add", x, c.add("_backward_gather_nd", updates, places, shape=shape))
    if kind != "none":
        raise Unspelled(f"reduction={kind}; MXNet replaces elements or adds them")
    put = c.add("scatter_nd", updates, places, shape=shape)
    return c.add("where", c.add("scatter_nd", c.add("ones_like", updates), places, shape=shape), put, x)


def _scatter_nd(c: Spelling) -> Entry:
    indices, shape = c.constant(1), c.static(c.value(0))
    places = np.moveaxis(indices % np.array(shape[: indices.shape[-1]]), -1, 0)
    return _replaced(c, c.array(places, "places"))


def _scatter_elements(c: Spelling) -> Entry:
    return _replaced(c, _at(c, c.axis("axis", 0)))


def _one_hot(c: Spelling) -> Entry:
    """Along the last axis; another one is moved there."""
    depth, values = int(c.constant(1).reshape(())), c.constant(2)
    rank, axis = c.rank(), int(c.attribute("axis", -1))
    dtype = c.dtype(c.result())
    indices = c.input(0)
    indices = c.add("_mod_scalar", indices, scalar=float(depth)) if c.dtype(c.value(0)) == FLOAT else indices
    if graph.constant(c.value(0)) is not None:
        indices = c.array(graph.array(c.value(0)) % depth, "indices")
    found = c.add(
        "one_hot",
        indices,
        depth=depth,
        on_value=float(values[1]),
        off_value=float(values[0]),
        dtype=str(dtype),
    )
    axis %= rank + 1
    order = list(range(rank))
    order.insert(axis, rank)
    return found if axis == rank else c.add("transpose", found, axes=tuple(order))


def _topk(c: Spelling) -> Written:
    c.floats()
    k, axis = int(c.constant(1).reshape(())), c.axis("axis", -1)
    options = {"is_ascend": not c.attribute("largest", 1), "dtype": "int64"}
    index = c.add("topk", c.input(0), k=k, axis=axis, ret_typ="both", **options)[0]
    return [(index, 0), (index, 1)]


def _cumsum(c: Spelling) -> Entry:
    if c.attribute("exclusive", 0):
        raise Unspelled("exclusive=1; MXNet's sums include each element")
    axis, x = int(c.constant(1).reshape(())) % c.rank(), c.input(0)
    if not c.attribute("reverse", 0):
        return c.add("cumsum", x, axis=axis)
    return c.add("flip", c.add("cumsum", c.add("flip", x, axis=(axis,)), axis=axis), axis=(axis,))


def _scale(c: Spelling, place: int) -> Entry:
    """Parameters of a quantization, in the shape that broadcasts with the data."""
    array = c.constant(place).astype(np.float32)
    if array.ndim > 1 or c.attribute("block_size", 0):
        raise Unspelled("a scale for each block; one for all or one a channel can be written")
    if array.size == 1:
        return c.array(array.reshape(1), f"scale{place}")
    axis, rank = c.axis("axis", 1), c.rank()
    return c.array(array.reshape(-1, *(1,) * (rank - 1 - axis)), f"scale{place}")


def _quantize(c: Spelling) -> Entry:
    """clip(round(x / scale) + zero point), rounding half to even; the result is an integer tensor."""
    dtype = c.dtype(c.result())
    if dtype not in (np.dtype("i1"), np.dtype("u1")):
        raise Unspelled(f"quantization to {dtype}; int8 and uint8 can be written")
    c.floats()
    found = half_to_even(c, c.add("broadcast_div", c.input(0), _scale(c, 1)))
    if c.has(2) and c.constant(2).any():
        found = c.add("broadcast_add", found, _scale(c, 2))
    limits = np.iinfo(dtype)
    found = c.add("clip", found, a_min=float(limits.min), a_max=float(limits.max))
    return c.add("Cast", found, dtype=str(dtype))


def _dequantize(c: Spelling) -> Entry:
    found = c.cast(c.input(0), c.dtype(c.value(0)), FLOAT)
    if c.dtype(c.result()) != FLOAT:
        raise Unspelled(f"dequantization to {c.dtype(c.result())}; float32 can be written")
    if c.has(2) and c.constant(2).any():
        found = c.add("broadcast_sub", found, _scale(c, 2))
    return c.add("broadcast_mul", found, _scale(c, 1))


ROWS: Mapping[str, Row] = {
    "ReduceSum": _reduction("sum"),
    "ReduceMean": _reduction("mean"),
    "ReduceMax": _reduction("max"),
    "ReduceMin": _reduction("min"),
    "ReduceProd": _reduction("prod"),
    "ReduceL1": _reduction("sum", "abs"),
    "ReduceL2": _reduction("sum", "square", "sqrt"),
    "ReduceSumSquare": _reduction("sum", "square"),
    "ReduceLogSum": _reduction("sum", "", "log"),
    "ReduceLogSumExp": _log_sum_exp,
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "ScatterElements": _scatter_elements,
    "OneHot": _one_hot,
    "TopK": _topk,
    "CumSum": _cumsum,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
