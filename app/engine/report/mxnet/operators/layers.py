"""Layers of ONNX in MXNet's spelling: convolution, pooling, normalization, products."""

import math
from collections.abc import Mapping

import numpy as np

from app.engine.model.mxnet.symbol_file import Entry
from app.engine.operators import pool_geometry
from app.engine.report.mxnet.operators.elementwise import Row
from app.engine.report.mxnet.operators.movement import padded
from app.engine.report.mxnet.spelling import FLOAT, FLOATS, Array, Spelling, Unspelled

_EXACT = (np.dtype("i1"), np.dtype("u1"))  # whole numbers that float32 holds


def _spatial(c: Spelling) -> int:
    """The number of spatial axes."""
    count = c.rank() - 2
    if not 1 <= count <= 3:
        raise Unspelled(f"{count} spatial axes; MXNet has 1 to 3")
    return count


def _listed(c: Spelling, name: str, count: int, default: int) -> tuple[int, ...]:
    return tuple(int(v) for v in c.attribute(name, ())) or (default,) * count


def _pads(
    c: Spelling, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> list[int]:
    """Pads of a convolution at the beginnings, then at the ends."""
    count, automatic = len(kernel), c.attribute("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID"):
        return list(_listed(c, "pads", 2 * count, 0)) if automatic == "NOTSET" else [0] * (2 * count)
    totals = []
    for size, k, s, d in zip(c.static(c.value(0))[2:], kernel, strides, dilations):
        totals.append(max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size))
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return [*small, *large] if automatic == "SAME_UPPER" else [*large, *small]


def _even(c: Spelling, x: Entry, pads: list[int], fill: float = 0.0) -> tuple[Entry, tuple[int, ...]]:
    """The data and equal pads for both ends; others are written as a node of their own."""
    half = len(pads) // 2
    if min(pads) < 0:
        raise Unspelled(f"pads {pads}; expected none below 0")
    if pads[:half] == pads[half:]:
        return x, tuple(pads[:half])
    return padded(c, x, c.dims(c.value(0)), [0, 0, *pads[:half], 0, 0, *pads[half:]], fill), (0,) * half


def _kernel(c: Spelling) -> tuple[int, ...]:
    return _listed(c, "kernel_shape", 0, 0) or c.static(c.value(1))[2:]


def _conv(c: Spelling) -> Entry:
    count = _spatial(c)
    c.floats()
    kernel, strides, dilations = (
        _kernel(c),
        _listed(c, "strides", count, 1),
        _listed(c, "dilations", count, 1),
    )
    x, pad = _even(c, c.input(0), _pads(c, kernel, strides, dilations))
    bias = [c.input(2)] if c.has(2) else []
    return c.add(
        "Convolution",
        x,
        c.input(1),
        *bias,
        kernel=kernel,
        stride=strides,
        dilate=dilations,
        pad=pad,
        num_filter=c.static(c.value(1))[0],
        num_group=int(c.attribute("group", 1)),
        no_bias=not bias,
    )


def _deconv(c: Spelling) -> Entry:
    """Without pads where those differ or an output shape is asked for; what is too much is cut off."""
    count = _spatial(c)
    c.floats()
    kernel, strides, dilations = (
        _kernel(c),
        _listed(c, "strides", count, 1),
        _listed(c, "dilations", count, 1),
    )
    extra, groups = _listed(c, "output_padding", count, 0), int(c.attribute("group", 1))
    pads = list(_listed(c, "pads", 2 * count, 0))
    out: tuple[int, ...] = ()
    if c.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or c.attribute("output_shape", ()):
        out = c.static(c.result())[2:]
        sizes = c.static(c.value(0))[2:]
        totals = [
            s * (n - 1) + e + (k - 1) * d + 1 - o
            for s, n, e, k, d, o in zip(strides, sizes, extra, kernel, dilations, out)
        ]
        upper = c.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
        first = [t // 2 if upper else t - t // 2 for t in totals]
        pads = [*first, *(t - f for t, f in zip(totals, first))]
    if min(pads) < 0:
        raise Unspelled(f"pads {pads}; expected none below 0")
    even = pads[:count] == pads[count:]
    bias = [c.input(2)] if c.has(2) else []
    found = c.add(
        "Deconvolution",
        c.input(0),
        c.input(1),
        *bias,
        kernel=kernel,
        stride=strides,
        dilate=dilations,
        pad=tuple(pads[:count]) if even else (0,) * count,
        adj=extra,
        num_filter=c.static(c.value(1))[1] * groups,
        num_group=groups,
        no_bias=not bias,
    )
    if even:
        return found
    out = out or c.static(c.result())[2:]
    begin = (None, None, *pads[:count])
    return c.add("slice", found, begin=begin, end=(None, None, *(p + o for p, o in zip(pads, out))))


def _max_pool(c: Spelling) -> Entry:
    count = _spatial(c)
    if len(c.node.outputs) > 1 and c.node.outputs[1].name:
        raise Unspelled("indices of the largest elements are an output; MXNet has none")
    if set(_listed(c, "dilations", count, 1)) != {1}:
        raise Unspelled("dilations; MXNet pools without")
    dtype = c.dtype(c.value(0))
    if dtype not in (*FLOATS, *_EXACT):
        raise Unspelled(f"the largest of {dtype}; MXNet computes it in float32 and float64")
    kernel, strides = _listed(c, "kernel_shape", count, 1), _listed(c, "strides", count, 1)
    pads = _pads(c, kernel, strides, (1,) * count)
    if c.attribute("ceil_mode", 0):
        pads = _completed(c, kernel, strides, pads)
    x = c.cast(c.input(0), dtype, FLOAT) if dtype in _EXACT else c.input(0)
    x, pad = _even(c, x, pads, float(np.finfo(np.float32).min))
    found = c.add("Pooling", x, kernel=kernel, stride=strides, pad=pad, pool_type="max")
    return c.cast(found, FLOAT, dtype) if dtype in _EXACT else found


def _completed(c: Spelling, kernel: tuple[int, ...], strides: tuple[int, ...], pads: list[int]) -> list[int]:
    """Pads with which whole windows are those that rounding up gives."""
    count = len(kernel)
    sizes, out = c.static(c.value(0))[2:], c.static(c.result())[2:]
    ends = [(o - 1) * s + k - n - p for o, s, k, n, p in zip(out, strides, kernel, sizes, pads)]
    return [*pads[:count], *(max(e, p) for e, p in zip(ends, pads[count:]))]


def _average_pool(c: Spelling) -> Entry:
    """MXNet's average where it counts the same elements, else a sum times the reciprocal counts."""
    count = _spatial(c)
    c.floats()
    kernel, strides = _listed(c, "kernel_shape", count, 1), _listed(c, "strides", count, 1)
    pads = _pads(c, kernel, strides, (1,) * count)
    counted, ceil = bool(c.attribute("count_include_pad", 0)), bool(c.attribute("ceil_mode", 0))
    if set(_listed(c, "dilations", count, 1)) != {1}:
        raise Unspelled("dilations; MXNet pools without")
    if not ceil and (pads[:count] == pads[count:]):
        return c.add(
            "Pooling",
            c.input(0),
            kernel=kernel,
            stride=strides,
            pad=tuple(pads[:count]),
            pool_type="avg",
            count_include_pad=counted,
        )
    c.static(c.value(0))
    c.static(c.result())
    windows = pool_geometry.windows(c.node)
    counts = [windows.counted(3 - count + i, counted) for i in range(count)]
    c.writing.room.take(nbytes=8 * math.prod(len(n) for n in counts))
    divisor: Array = np.ones((1, 1), np.float64)
    for n in counts:
        divisor = divisor[..., None] * np.maximum(n, 1)
    pads = _completed(c, kernel, strides, pads) if ceil else pads
    x, pad = _even(c, c.input(0), pads)
    total = c.add("Pooling", x, kernel=kernel, stride=strides, pad=pad, pool_type="sum")
    scale = (1 / divisor).astype(c.dtype(c.value(0)))
    return c.add("broadcast_mul", total, c.array(scale, "scale"))


def _global(kind: str) -> Row:
    def written(c: Spelling) -> Entry:
        count = _spatial(c)
        c.floats()
        return c.add("Pooling", c.input(0), kernel=(1,) * count, global_pool=True, pool_type=kind)

    return written


def _batch_norm(c: Spelling) -> Entry:
    """Arithmetic: statistics of MXNet's layer are its states; those that are constant were folded."""
    if c.attribute("training_mode", 0) or len([v for v in c.node.outputs if v.name]) > 1:
        raise Unspelled("training_mode=1; an inference is written")
    c.floats()
    wide = (1, -1, *(1,) * (c.rank() - 2))
    scale, shift, mean, variance = (c.reshaped(c.input(i), wide) for i in range(1, 5))
    deviation = c.add("sqrt", c.add("_plus_scalar", variance, scalar=float(c.attribute("epsilon", 1e-5))))
    found = c.add("broadcast_sub", c.input(0), mean)
    found = c.add("broadcast_mul", found, c.add("broadcast_div", scale, deviation))
    return c.add("broadcast_add", found, shift)


def _instance_norm(c: Spelling) -> Entry:
    c.floats()
    return c.add("InstanceNorm", *c.inputs(), eps=float(c.attribute("epsilon", 1e-5)))


def _layer_norm(c: Spelling) -> Entry:
    """Over the last axis; more axes are made one and back."""
    c.floats()
    if len([v for v in c.node.outputs if v.name]) > 1:
        raise Unspelled("mean and deviation are outputs; an inference is written")
    rank, axis, x = c.rank(), c.axis("axis", -1), c.input(0)
    dims = c.dims(c.value(0))
    sizes = tuple(d for d in dims[axis:] if d is not None)
    if len(sizes) < rank - axis:
        raise Unspelled(f"normalized axes are free: {c.value(0).shape}; bind the shapes of the inputs")
    size, dtype = math.prod(sizes), c.dtype(c.value(0))
    if axis < rank - 1:
        x = c.reshaped(x, (*(0,) * axis, size))
    operands = []
    for place, name in ((1, "gamma"), (2, "beta")):
        if not c.has(place):
            operands.append(c.array(np.zeros(size, dtype), name))
            continue
        array = c.known(place)
        if array is None and c.static(c.value(place)) != (size,):
            raise Unspelled(
                f"{name} of the shape {c.value(place).shape}; expected that of the normalized axes"
            )
        whole = array is not None and (array.ndim > 1 or array.size != size)
        operands.append(
            c.array(np.broadcast_to(array, sizes).reshape(size), name)
            if whole and array is not None
            else c.input(place)
        )
    found = c.add("LayerNorm", x, *operands, axis=-1, eps=float(c.attribute("epsilon", 1e-5)))
    return c.reshaped(found, (*(0,) * axis, *sizes)) if axis < rank - 1 else found


def _group_norm(c: Spelling) -> Entry:
    """MXNet has one scale a group; that of ONNX, one a channel, follows."""
    c.floats()
    dims, groups = c.dims(c.value(0)), int(c.attribute("num_groups", 1))
    dtype = c.dtype(c.value(0))
    pair = [c.array(f(groups).astype(dtype), n) for f, n in ((np.ones, "gamma"), (np.zeros, "beta"))]
    found = c.add("GroupNorm", c.input(0), *pair, num_groups=groups, eps=float(c.attribute("epsilon", 1e-5)))
    for place, op in ((1, "broadcast_mul"), (2, "broadcast_add")):
        wide = c.reshaped(c.input(place), (1, -1, *(1,) * (len(dims) - 2)))
        found = c.add(op, found, wide)
    return found


def _rms_norm(c: Spelling) -> Entry:
    c.floats()
    axes = tuple(range(c.axis("axis", -1), c.rank()))
    x = c.input(0)
    mean = c.add("mean", c.add("square", x), axis=axes, keepdims=True)
    scale = c.add("rsqrt", c.add("_plus_scalar", mean, scalar=float(c.attribute("epsilon", 1e-5))))
    return c.add("broadcast_mul", c.add("broadcast_mul", x, scale), c.input(1))


def _lrn(c: Spelling) -> Entry:
    return c.add(
        "LRN",
        c.input(0),
        nsize=int(c.attribute("size", 1)),
        alpha=float(c.attribute("alpha", 1e-4)),
        beta=float(c.attribute("beta", 0.75)),
        knorm=float(c.attribute("bias", 1.0)),
    )


def _lp_normalization(c: Spelling) -> Entry:
    order, axis, x = int(c.attribute("p", 2)), c.axis("axis", -1), c.input(0)
    size = c.add("abs", x) if order == 1 else c.add("square", x)
    total = c.add("sum", size, axis=(axis,), keepdims=True)
    return c.add("broadcast_div", x, total if order == 1 else c.add("sqrt", total))


def _gemm(c: Spelling) -> Entry:
    """A layer where its options are those of one, else a product and what is added to it."""
    c.floats()
    alpha, beta = float(c.attribute("alpha", 1.0)), float(c.attribute("beta", 1.0))
    turned = [bool(c.attribute(name, 0)) for name in ("transA", "transB")]
    hidden = c.dims(c.value(1))[0 if turned[1] else 1]
    bias = c.dims(c.value(2)) if c.has(2) else None
    if alpha == beta == 1.0 and turned == [False, True] and hidden and bias in (None, (hidden,)):
        operands = [c.input(2)] if c.has(2) else []
        options = {"num_hidden": hidden, "no_bias": not operands, "flatten": True}
        return c.add("FullyConnected", c.input(0), c.input(1), *operands, **options)
    found = c.add("dot", c.input(0), c.input(1), transpose_a=turned[0], transpose_b=turned[1])
    if alpha != 1.0:
        found = c.add("_mul_scalar", found, scalar=alpha)
    if not c.has(2):
        return found
    more = c.input(2) if beta == 1.0 else c.add("_mul_scalar", c.input(2), scalar=beta)
    return c.add("broadcast_add", found, more)


def _matmul(c: Spelling) -> Entry:
    c.floats()
    return product(c, c.input(0), c.input(1))


def product(c: Spelling, x: Entry, y: Entry) -> Entry:
    """The matrix product of the first two operands, which these entries stand for."""
    a, b = c.value(0), c.value(1)
    left, right = c.dims(a), c.dims(b)
    if len(right) <= 2:
        return c.add("dot", x, y)
    if len(left) == 1:
        x = c.reshaped(x, (1, -1))
        left = (1, *left)
    batch = np.broadcast_shapes(*(tuple(d if d is not None else -1 for d in s[:-2]) for s in (left, right)))
    x, y = (_batched(c, e, s, tuple(batch)) for e, s in ((x, left), (y, right)))
    found = c.add("batch_dot", x, y)
    return c.reshaped(found, c.static(c.result())) if len(c.dims(a)) == 1 else found


def _batched(c: Spelling, entry: Entry, dims: tuple[int | None, ...], batch: tuple[int, ...]) -> Entry:
    """A stack of matrices in the shape of a batch."""
    own = tuple(-1 if d is None else d for d in dims[:-2])
    if own == batch:
        return entry
    if any(d is None for d in dims) or -1 in batch:
        raise Unspelled("stacks of matrices of free shapes; bind the shapes of the inputs")
    tail = tuple(d for d in dims[-2:] if d is not None)
    missing = len(batch) - len(own)
    entry = c.reshaped(entry, ((1,) * missing) + own + tail) if missing else entry
    return c.add("broadcast_to", entry, shape=batch + tail)


ROWS: Mapping[str, Row] = {
    "Conv": _conv,
    "ConvTranspose": _deconv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global("avg"),
    "GlobalMaxPool": _global("max"),
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "RMSNormalization": _rms_norm,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
