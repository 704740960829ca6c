"""MXNet's reductions, products and look-ups as ONNX nodes."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators.elementwise import Translation, Values
from app.engine.model.mxnet.operators.neural import clipped

_FAR = 2**31 - 1


def reduced_axes(c: Call) -> tuple[int, ...] | None:
    """Axes of a reduction; None are all."""
    axes = c.attributes.integers("axis", ())
    if not c.attributes.flag("exclude"):
        return axes or None
    rank = c.rank(c.inputs[0])
    return tuple(i for i in range(rank) if i not in {a % rank for a in axes})


def _reduction(op: str) -> Translation:
    """A reduction; that of all axes has the shape [1] unless it keeps them: MXNet has no scalars."""

    def translated(c: Call) -> ir.Value:
        axes, keeps = reduced_axes(c), c.attributes.flag("keepdims")
        c.attributes.flag("safe_accumulation")
        found = c.one(op, c.inputs[0], *([c.ints(*axes)] if axes else []), keepdims=int(keeps))
        rank = None if c.inputs[0].shape is None else len(c.inputs[0].shape)
        return (
            c.one("Reshape", found, c.ints(1)) if not keeps and (axes is None or len(axes) == rank) else found
        )

    return translated


def _norm(c: Call) -> ir.Value:
    if c.attributes.given("out_dtype"):
        raise c.error("out_dtype is not supported; expected None")
    order = c.attributes.integer("ord", 2)
    if order not in (1, 2):
        raise c.attributes.error("ord", "1 or 2")
    found = _reduction(f"ReduceL{order}")(c)
    assert isinstance(found, ir.Value)
    return found


def _arg(op: str) -> Translation:
    """Index of an extreme, in the element type of the operand."""

    def translated(c: Call) -> ir.Value:
        x, keeps = c.inputs[0], c.attributes.flag("keepdims")
        if c.attributes.given("axis"):
            is_list = x.shape is not None and len(x.shape) == 1
            axis = c.attributes.integer("axis")
            return c.cast(c.one(op, x, axis=axis, keepdims=int(keeps or is_list)), c.dtype(x))
        found = c.cast(c.one(op, c.one("Reshape", x, c.ints(-1)), axis=0, keepdims=1), c.dtype(x))
        return c.one("Reshape", found, c.ints(*[1] * c.rank(x))) if keeps else found

    return translated


def _argmax_channel(c: Call) -> ir.Value:
    return c.cast(c.one("ArgMax", c.inputs[0], axis=1, keepdims=0), c.dtype(c.inputs[0]))


def _index(c: Call, indices: ir.Value, size: ir.Value, mode: str) -> ir.Value:
    """Indices as int64 inside of an axis: those of its edges, or modulo its size."""
    if mode == "wrap":
        return c.one("Mod", c.cast(indices, ir.DataType.INT64), size)
    return clipped(c, indices, size)


def _take(c: Call) -> ir.Value:
    x, indices = c.inputs
    mode, axis = c.attributes.text("mode", "clip", ("clip", "wrap", "raise")), c.attributes.integer("axis", 0)
    if mode == "raise":
        return c.one("Gather", x, c.cast(indices, ir.DataType.INT64), axis=axis)
    size = c.one("Shape", x, start=axis, end=axis + 1 or None)
    flat = _index(c, c.one("Reshape", indices, c.ints(-1)), size, mode)
    return c.one("Gather", x, c.one("Reshape", flat, c.one("Shape", indices)), axis=axis)


def _sparse_retain(c: Call) -> ir.Value:
    """The rows of some places, and zeros in the others."""
    x, places = c.inputs
    off, on = (c.const(value, np.dtype(bool)) for value in (False, True))
    none = c.one("Expand", off, c.one("Shape", x, start=0, end=1))
    index = c.cast(c.one("Reshape", places, c.ints(-1)), ir.DataType.INT64)
    kept = c.one("ScatterElements", none, index, c.one("Expand", on, c.one("Shape", index)), axis=0)
    return c.one("Where", c.one("Reshape", kept, c.ints(-1, *[1] * (c.rank(x) - 1))), x, c.const(0, x))


def _pick(c: Call) -> ir.Value:
    """One element along an axis for each place."""
    x, indices = c.inputs
    mode, keeps = c.attributes.text("mode", "clip", ("clip", "wrap")), c.attributes.flag("keepdims")
    axis = c.attributes.integer("axis", -1)
    if indices.shape is None or x.shape is None or len(indices.shape) != len(x.shape):
        indices = c.one("Unsqueeze", indices, c.ints(axis))
    size = c.one("Shape", x, start=axis, end=axis + 1 or None)
    found = c.one("GatherElements", x, _index(c, indices, size, mode), axis=axis)
    return found if keeps else c.one("Squeeze", found, c.ints(axis))


def _batch_take(c: Call) -> ir.Value:
    x, indices = c.inputs
    places = clipped(c, c.one("Unsqueeze", indices, c.ints(-1)), c.one("Shape", x, start=1, end=2))
    return c.one("Squeeze", c.one("GatherElements", x, places, axis=1), c.ints(-1))


def _one_hot(c: Call) -> ir.Value:
    """Indices outside of 0 to depth - 1 have no place that is on."""
    depth = c.attributes.integer("depth")
    if not 1 <= depth <= 2**24:
        raise c.attributes.error("depth", "1 to 16777216")
    dtype = c.attributes.dtype("dtype", "float32") or np.dtype("f4")
    on, off = c.attributes.number("on_value", 1.0), c.attributes.number("off_value", 0.0)
    indices = c.one("Unsqueeze", c.cast(c.inputs[0], ir.DataType.INT64), c.ints(-1))
    places = c.const(np.arange(depth), np.dtype("i8"))
    return c.one("Where", c.one("Equal", indices, places), c.const(on, dtype), c.const(off, dtype))


def _gather_nd(c: Call) -> ir.Value:
    """Indices of the first axes are the rows of the second operand; of ONNX, its last axis."""
    x, indices = c.inputs
    order = (*range(1, c.rank(indices)), 0)
    return c.one("GatherND", x, c.cast(c.one("Transpose", indices, perm=order), ir.DataType.INT64))


def _scatter_nd(c: Call) -> ir.Value:
    """Elements of zeros replaced; those that meet are added where it is the gradient of a look-up."""
    reduction = "add" if c.node.op.startswith("_backward_") else "none"
    updates, indices = c.inputs
    order = (*range(1, c.rank(indices)), 0)
    places = c.cast(c.one("Transpose", indices, perm=order), ir.DataType.INT64)
    zeros = c.one("Expand", c.const(0, updates), c.ints(*c.attributes.integers("shape")))
    return c.one("ScatterND", zeros, places, updates, reduction=reduction)


def _sorted(c: Call, k: int, *, ascends: bool) -> tuple[ir.Value, ir.Value]:
    """The first k elements along the axis in order, or all for 0, and their indices."""
    x, axis = (
        c.inputs[0],
        c.attributes.integer("axis", -1) if c.attributes.text("axis", "-1") != "None" else None,
    )
    if axis is None:
        x, axis = c.one("Reshape", x, c.ints(-1)), 0
    count = c.ints(k) if k > 0 else c.one("Shape", x, start=axis, end=axis + 1 or None)
    values, indices = c.many("TopK", x, count, count=2, axis=axis, largest=int(not ascends), sorted=1)
    return values, indices


def _topk(c: Call) -> Values:
    kind = c.attributes.text("ret_typ", "indices", ("indices", "value", "both"))
    dtype = c.attributes.dtype("dtype", "float32") or np.dtype("f4")
    ascends = c.attributes.flag("is_ascend")
    values, indices = _sorted(c, c.attributes.integer("k", 1), ascends=ascends)
    if kind == "value":
        return values
    indices = c.cast(indices, dtype)
    return (values, indices) if kind == "both" else indices


def _sort(c: Call) -> ir.Value:
    return _sorted(c, 0, ascends=c.attributes.flag("is_ascend", True))[0]


def _argsort(c: Call) -> ir.Value:
    dtype = c.attributes.dtype("dtype", "float32") or np.dtype("f4")
    return c.cast(_sorted(c, 0, ascends=c.attributes.flag("is_ascend", True))[1], dtype)


def _turned(c: Call, x: ir.Value, name: str) -> ir.Value:
    """An operand with its last two axes exchanged, if the attribute says so."""
    if not c.attributes.flag(name):
        return x
    order = list(range(c.rank(x)))
    if len(order) > 1:
        order[-2:] = order[-1], order[-2]
    return c.one("Transpose", x, perm=order)


def _dot(c: Call) -> ir.Value:
    """Sum over the last axis of the left operand and the first of the right one."""
    left, right = c.inputs
    for name, x in (("transpose_a", left), ("transpose_b", right)):
        if c.attributes.flag(name) and c.rank(x) > 2:
            raise c.error(f"{name} of {c.rank(x)} axes is not supported; expected at most 2")
    left, right = _turned(c, left, "transpose_a"), _turned(c, right, "transpose_b")
    ranks = [None if x.shape is None else len(x.shape) for x in (left, right)]
    if ranks == [2, 2]:
        return c.one("MatMul", left, right)
    if ranks == [1, 1]:
        return c.one("Reshape", c.one("MatMul", left, right), c.ints(1))
    head, tail = c.one("Shape", left, end=-1), c.one("Shape", right, start=1)
    inner = c.one("Shape", left, start=-1)
    a = c.one("Reshape", left, c.one("Concat", c.ints(-1), inner, axis=0))
    b = c.one("Reshape", right, c.one("Concat", inner, c.ints(-1), axis=0))
    return c.one("Reshape", c.one("MatMul", a, b), c.one("Concat", head, tail, axis=0))


def _batch_dot(c: Call) -> ir.Value:
    return c.one("MatMul", _turned(c, c.inputs[0], "transpose_a"), _turned(c, c.inputs[1], "transpose_b"))


def _gemm2(c: Call) -> ir.Value:
    if c.attributes.integer("axis", -2) != -2:
        raise c.attributes.error("axis", "-2")
    product, alpha = _batch_dot(c), c.attributes.number("alpha", 1.0)
    return product if alpha == 1.0 else c.one("Mul", product, c.const(alpha, product))


def _lengths(c: Call) -> ir.Value | None:
    """Lengths of the sequences of a batch, if they are used."""
    used = c.attributes.flag("use_sequence_length")
    return c.cast(c.inputs[1], ir.DataType.INT64) if used else None


def _sequence_mask(c: Call) -> ir.Value:
    """Steps past the end of each sequence have one value. Axes: time and batch, or batch and time."""
    x, lengths = c.inputs[0], _lengths(c)
    value, axis = c.attributes.number("value", 0.0), c.attributes.integer("axis", 0)
    if lengths is None:
        return c.one("Identity", x)
    if axis not in (0, 1):
        raise c.attributes.error("axis", "0 or 1")
    size = c.one("Squeeze", c.one("Shape", x, start=axis, end=axis + 1), c.ints(0))
    steps = c.one("Range", c.const(0, np.dtype("i8")), size, c.const(1, np.dtype("i8")))
    rest = [1] * (c.rank(x) - 2)
    steps = c.one("Reshape", steps, c.ints(*([-1, 1] if axis == 0 else [1, -1]), *rest))
    ends = c.one("Reshape", lengths, c.ints(*([1, -1] if axis == 0 else [-1, 1]), *rest))
    return c.one("Where", c.one("Less", steps, ends), x, c.const(value, x))


def _sequence_last(c: Call) -> ir.Value:
    x, lengths, axis = c.inputs[0], _lengths(c), c.attributes.integer("axis", 0)
    if lengths is None:
        return c.one("Gather", x, c.const(-1, np.dtype("i8")), axis=axis)
    if axis not in (0, 1):
        raise c.attributes.error("axis", "0 or 1")
    if axis == 0:
        x = c.one("Transpose", x, perm=[1, 0, *range(2, c.rank(x))])
    last = c.one("Unsqueeze", c.one("Sub", lengths, c.ints(1)), c.ints(-1))
    return c.one("GatherND", x, last, batch_dims=1)


def _sequence_reverse(c: Call) -> ir.Value:
    x, lengths = c.inputs[0], _lengths(c)
    if c.attributes.integer("axis", 0) != 0:
        raise c.attributes.error("axis", "0")
    if lengths is None:
        return c.one("Slice", x, c.ints(-1), c.ints(-_FAR), c.ints(0), c.ints(-1))
    return c.one("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)


def _cumsum(c: Call) -> ir.Value:
    x, dtype = c.inputs[0], c.attributes.dtype("dtype", None)
    if c.attributes.given("axis"):
        axis = c.attributes.integer("axis")
    else:
        x, axis = c.one("Reshape", x, c.ints(-1)), 0
    x = x if dtype is None else c.cast(x, dtype)
    return c.one("CumSum", x, c.const(axis, np.dtype("i8")))


def _head(c: Call, x: ir.Value, of: int, part: int) -> ir.Value:
    """One of the projections that (time, batch, heads * of * size) holds: (batch * heads, time, size)."""
    heads = c.attributes.integer("heads")
    split = c.one("Reshape", x, c.ints(0, 0, heads, of, -1))
    split = c.one("Gather", split, c.const(part, np.dtype("i8")), axis=3)
    turned = c.one("Transpose", split, perm=[1, 2, 0, 3])
    time, size = c.one("Shape", x, start=0, end=1), c.one("Shape", turned, start=3)
    return c.one("Reshape", turned, c.one("Concat", c.ints(-1), time, size, axis=0))


def _scores(c: Call, query: ir.Value, key: ir.Value) -> ir.Value:
    size = c.cast(c.one("Shape", query, start=-1), c.dtype(query))
    scaled = c.one("Div", query, c.one("Sqrt", size))
    return c.one("MatMul", scaled, c.one("Transpose", key, perm=[0, 2, 1]))


def _attended(c: Call, value: ir.Value) -> ir.Value:
    """Attention times values, the heads beside each other: (time, batch, heads * size)."""
    heads = c.attributes.integer("heads")
    product = c.one("MatMul", c.inputs[1], value)
    shape = c.one("Concat", c.ints(-1, heads), c.one("Shape", product, start=1), axis=0)
    split = c.one("Transpose", c.one("Reshape", product, shape), perm=[2, 0, 1, 3])
    return c.one("Reshape", split, c.ints(0, 0, -1))


ROWS: Mapping[str, Translation] = {
    **dict.fromkeys(("sum", "sum_axis"), _reduction("ReduceSum")),
    "mean": _reduction("ReduceMean"),
    **dict.fromkeys(("max", "max_axis"), _reduction("ReduceMax")),
    **dict.fromkeys(("min", "min_axis"), _reduction("ReduceMin")),
    "prod": _reduction("ReduceProd"),
    "norm": _norm,
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "argmax_channel": _argmax_channel,
    "take": _take,
    **dict.fromkeys(("_sparse_retain", "sparse_retain"), _sparse_retain),
    "pick": _pick,
    "batch_take": _batch_take,
    "one_hot": _one_hot,
    "gather_nd": _gather_nd,
    **dict.fromkeys(("scatter_nd", "_backward_gather_nd"), _scatter_nd),
    "topk": _topk,
    "sort": _sort,
    "argsort": _argsort,
    "dot": _dot,
    "batch_dot": _batch_dot,
    **dict.fromkeys(("_linalg_gemm2", "linalg_gemm2"), _gemm2),
    "SequenceMask": _sequence_mask,
    "SequenceLast": _sequence_last,
    "SequenceReverse": _sequence_reverse,
    **dict.fromkeys(("cumsum", "_np_cumsum"), _cumsum),
    "_contrib_interleaved_matmul_selfatt_qk": lambda c: _scores(
        c, _head(c, c.inputs[0], 3, 0), _head(c, c.inputs[0], 3, 1)
    ),
    "_contrib_interleaved_matmul_selfatt_valatt": lambda c: _attended(c, _head(c, c.inputs[0], 3, 2)),
    "_contrib_interleaved_matmul_encdec_qk": lambda c: _scores(
        c, _head(c, c.inputs[0], 1, 0), _head(c, c.inputs[1], 2, 0)
    ),
    "_contrib_interleaved_matmul_encdec_valatt": lambda c: _attended(c, _head(c, c.inputs[0], 2, 1)),
}
