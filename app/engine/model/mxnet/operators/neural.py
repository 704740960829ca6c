"""MXNet's layers as ONNX nodes: convolution, pooling, normalization, products with weights, embedding."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators.elementwise import Translation, Values
from app.engine.types.storage import SPARSE_GRADIENT

_MOST_WINDOWS = 4096  # along an axis
LAYOUTS = ("None", "NCW", "NCHW", "NCDHW")  # the others, MXNet computes on GPUs alone


def window(c: Call) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Kernel, strides, and pads at both ends."""
    kernel = c.attributes.integers("kernel")
    stride = c.attributes.integers("stride", (1,) * len(kernel)) or (1,) * len(kernel)
    pad = c.attributes.integers("pad", (0,) * len(kernel)) or (0,) * len(kernel)
    if not 1 <= len(kernel) <= 3 or not len(kernel) == len(stride) == len(pad):
        raise c.error(
            f"kernel {kernel}, stride {stride} and pad {pad}; expected as many numbers in each, 1 to 3"
        )
    return kernel, stride, [*pad, *pad]


def _bias(c: Call) -> tuple[ir.Value, ...]:
    if c.attributes.flag("no_bias", c.node.op == "Deconvolution"):
        return ()
    if len(c.inputs) != 3:
        raise c.error(f"{len(c.inputs)} operands; expected data, weight and bias, or no_bias=True")
    return c.inputs[2:]


def _convolution(c: Call) -> ir.Value:
    c.attributes.text("layout", "None", LAYOUTS)
    c.attributes.integer("num_filter")
    kernel, stride, pads = window(c)
    return c.one(
        "Conv",
        *c.inputs[:2],
        *_bias(c),
        kernel_shape=kernel,
        strides=stride,
        pads=pads,
        dilations=c.attributes.integers("dilate", (1,) * len(kernel)) or (1,) * len(kernel),
        group=c.attributes.integer("num_group", 1),
    )


def _deconvolution(c: Call) -> ir.Value:
    c.attributes.text("layout", "None", LAYOUTS)
    c.attributes.integer("num_filter")
    if c.attributes.integers("target_shape", ()):
        raise c.error("target_shape is not supported; expected pad and adj")
    kernel, stride, pads = window(c)
    return c.one(
        "ConvTranspose",
        *c.inputs[:2],
        *_bias(c),
        kernel_shape=kernel,
        strides=stride,
        pads=pads,
        dilations=c.attributes.integers("dilate", (1,) * len(kernel)) or (1,) * len(kernel),
        group=c.attributes.integer("num_group", 1),
        output_padding=c.attributes.integers("adj", (0,) * len(kernel)) or (0,) * len(kernel),
    )


def _fully_connected(c: Call) -> ir.Value:
    x, weight = c.inputs[:2]
    c.attributes.integer("num_hidden")
    bias = _bias(c)
    flat = c.attributes.flag("flatten", True)
    if flat or (x.shape is not None and len(x.shape) == 2):
        x = x if x.shape is not None and len(x.shape) == 2 else c.one("Flatten", x, axis=1)
        return c.one("Gemm", x, weight, *bias, transB=1)
    product = c.one("MatMul", x, c.one("Transpose", weight, perm=[1, 0]))
    return c.one("Add", product, *bias) if bias else product


def _moved(c: Call, x: ir.Value, axis: int, back: bool = False) -> ir.Value:
    """An axis as axis 1, or back from there."""
    rank = c.rank(x) if axis != 1 else 0
    if axis % max(rank, 1) == 1 or axis == 1:
        return x
    order = list(range(rank))
    order.insert(1, order.pop(axis))
    return c.one("Transpose", x, perm=[int(i) for i in np.argsort(order)] if back else order)


def _batch_norm(c: Call) -> Values:
    """By the given statistics, in a training graph by those of the batch unless `use_global_stats` is set."""
    x, gamma, beta, mean, variance = c.inputs
    of_batch = not c.attributes.flag("use_global_stats") and c.builder.is_training
    if c.attributes.flag("output_mean_var"):
        raise c.error("output_mean_var=True is of training; expected False")
    if c.attributes.flag("fix_gamma", True):
        size = c.dims(gamma)
        one = c.const(np.ones(size or ()), gamma)
        gamma = one if size else c.one("Expand", one, c.one("Shape", gamma))
    axis = c.attributes.integer("axis", 1)
    epsilon = c.attributes.number("eps", 1e-3)
    operands = _moved(c, x, axis), gamma, beta, mean, variance
    if of_batch:
        many = c.many("BatchNormalization", *operands, count=3, epsilon=epsilon, training_mode=1)
        found = many[0]
    else:
        found = c.one("BatchNormalization", *operands, epsilon=epsilon)
    return _moved(c, found, axis, back=True)


def _pooled(c: Call, kind: str, window: dict[str, object], ceil: bool) -> ir.Value:
    """Pooling in a window; a window that reaches beyond the padding counts what is padded, and no more."""
    x, pads = c.inputs[0], window["pads"]
    assert isinstance(pads, list)
    counted = c.attributes.flag("count_include_pad", True)
    if kind == "max":
        return c.one("MaxPool", x, ceil_mode=int(ceil), **window)
    if kind == "lp":
        if ceil:
            raise c.error("pool_type=lp with the convention full is not supported; expected valid")
        return c.one("LpPool", x, p=c.attributes.integer("p_value"), **window)
    if kind == "sum" or (counted and ceil and any(pads)):
        half = len(pads) // 2
        if any(pads):
            x = c.one("Pad", x, c.ints(0, 0, *pads[:half], 0, 0, *pads[half:]), c.const(0, x))
        window = window | {"pads": [0] * len(pads)}
    found = c.one(
        "AveragePool", x, ceil_mode=int(ceil), count_include_pad=int(counted and not ceil), **window
    )
    if kind == "sum":
        kernel = window["kernel_shape"]
        assert isinstance(kernel, tuple)
        if ceil:
            raise c.error("pool_type=sum with the convention full is not supported; expected valid")
        found = c.one("Mul", found, c.const(np.prod(kernel), found))
    return found


def pooling(c: Call) -> ir.Value:
    """The largest, the average, the sum or the norm of windows."""
    c.attributes.text("layout", "None", LAYOUTS)
    kind = c.attributes.text("pool_type", "max", ("max", "avg", "sum", "lp"))
    convention = c.attributes.text("pooling_convention", "valid", ("valid", "full"))
    for name in ("kernel", "stride", "pad", "count_include_pad", "p_value"):
        c.attributes.text(name, "")
    if c.attributes.flag("global_pool"):
        x = c.inputs[0]
        if kind == "sum":
            return c.one("ReduceSum", x, c.ints(*range(2, c.rank(x))), keepdims=1)
        if kind == "lp":
            return c.one("GlobalLpPool", x, p=c.attributes.integer("p_value"))
        return c.one("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", x)
    kernel, stride, pads = window(c)
    options: dict[str, object] = {"kernel_shape": kernel, "strides": stride, "pads": pads}
    return _pooled(c, kind, options, convention == "full")


def _adaptive_pool(c: Call) -> ir.Value:
    """Averages of windows that cover the axes evenly, as products with their weights."""
    x, size = c.inputs[0], c.attributes.integers("output_size", (1,)) or (1,)
    if set(size) == {1}:
        return c.one("GlobalAveragePool", x)
    counts = size if len(size) == 2 else size * 2
    extents = [c.extent(x, axis) for axis in (2, 3)]
    if len(counts) != 2 or None in extents or not all(1 <= n <= _MOST_WINDOWS for n in counts):
        raise c.error(f"output_size {size} of a shape {x.shape}; expected known heights and widths")
    rows, columns = (_shares(e or 0, n) for e, n in zip(extents, counts))
    found = c.one("MatMul", c.const(rows, x), x)
    return c.one("MatMul", found, c.const(columns.T, x))


def _shares(extent: int, count: int) -> np.ndarray[Any, Any]:
    """The weight of each element in each of so many windows."""
    found = np.zeros((count, extent))
    for i, row in enumerate(found):
        begin, end = i * extent // count, -(-(i + 1) * extent // count)
        row[begin:end] = 1 / (end - begin)
    return found


def _lrn(c: Call) -> ir.Value:
    a = c.attributes
    return c.one(
        "LRN",
        c.inputs[0],
        size=a.integer("nsize"),
        alpha=a.number("alpha", 1e-4),
        beta=a.number("beta", 0.75),
        bias=a.number("knorm", 2.0),
    )


def _instance_norm(c: Call) -> ir.Value:
    return c.one("InstanceNormalization", *c.inputs, epsilon=c.attributes.number("eps", 1e-3))


def _group_norm(c: Call) -> ir.Value:
    """One scale and shift a group; ONNX has one a channel."""
    x, *pair = c.inputs
    groups, epsilon = c.attributes.integer("num_groups", 1), c.attributes.number("eps", 1e-5)
    channels = c.extent(x, 1)
    if channels is None or groups < 1 or channels % groups:
        raise c.error(
            f"{channels} channels in {groups} groups; expected a known number of channels, a multiple"
        )
    shape, flat = c.ints(groups, channels // groups), c.ints(-1)
    wide = (c.one("Reshape", c.one("Expand", c.one("Unsqueeze", v, flat), shape), flat) for v in pair)
    return c.one("GroupNormalization", x, *wide, num_groups=groups, epsilon=epsilon)


def _layer_norm(c: Call) -> ir.Value:
    """Along one axis; another one than the last is moved there."""
    x, gamma, beta = c.inputs
    if c.attributes.flag("output_mean_var"):
        raise c.error("output_mean_var=True is of training; expected False")
    epsilon, axis = c.attributes.number("eps", 1e-5), c.attributes.integer("axis", -1)
    if axis == -1:
        return c.one("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)
    order = list(range(c.rank(x)))
    order.append(order.pop(c.axis("axis", c.rank(x), -1)))
    x = c.one("Transpose", x, perm=order)
    found = c.one("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)
    return c.one("Transpose", found, perm=[int(i) for i in np.argsort(order)])


def _l2_normalization(c: Call) -> ir.Value:
    x, epsilon = c.inputs[0], c.attributes.number("eps", 1e-10)
    mode = c.attributes.text("mode", "instance", ("instance", "channel", "spatial"))
    first, last = {"instance": (1, c.rank(x)), "channel": (1, 2), "spatial": (2, c.rank(x))}[mode]
    total = c.one("ReduceSum", c.one("Mul", x, x), c.ints(*range(first, last)), keepdims=1)
    return c.one("Div", x, c.one("Sqrt", c.one("Add", total, c.const(epsilon, x))))


def _pad(c: Call) -> ir.Value:
    widths = c.attributes.integers("pad_width")
    mode = c.attributes.text("mode", "constant", ("constant", "edge", "reflect"))
    value = c.attributes.number("constant_value", 0.0)
    x = c.inputs[0]
    operands = (x, c.ints(*widths[::2], *widths[1::2]), *([c.const(value, x)] if mode == "constant" else []))
    return c.one("Pad", *operands, mode=mode)


def _resized(c: Call, scales: list[float], **attributes: object) -> ir.Value:
    factors = c.builder.constant(np.array(scales, np.float32), f"{c.node.name}.scales")
    return c.one("Resize", c.inputs[0], None, factors, **attributes)


def _up_sampling(c: Call) -> ir.Value:
    scale = c.attributes.integer("scale")
    c.attributes.text("sample_type", "", ("nearest",))
    c.attributes.text("multi_input_mode", "concat")
    c.attributes.text("num_filter", "0")
    if len(c.inputs) != 1:
        raise c.error(f"{len(c.inputs)} operands are not supported; expected 1")
    nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resized(c, [1, 1, scale, scale], mode="nearest", **nearest)


def _bilinear_resize(c: Call) -> ir.Value:
    c.attributes.text("mode", "size", ("size",))
    c.attributes.text("scale_height", "None", ("None", "1", "1.0"))
    c.attributes.text("scale_width", "None", ("None", "1", "1.0"))
    corners = c.attributes.flag("align_corners", True)
    height, width = c.attributes.integer("height", 1), c.attributes.integer("width", 1)
    head = c.one("Shape", c.inputs[0], end=2)
    sizes = c.one("Concat", head, c.ints(height, width), axis=0)
    mode = "align_corners" if corners else "half_pixel"
    return c.one("Resize", c.inputs[0], None, None, sizes, mode="linear", coordinate_transformation_mode=mode)


def clipped(c: Call, indices: ir.Value, size: ir.Value) -> ir.Value:
    """Indices as int64 from 0 to size - 1."""
    whole = c.cast(indices, ir.DataType.INT64)
    last = c.one("Sub", size, c.ints(1))
    return c.one("Min", c.one("Max", whole, c.ints(0)), last)


def embedding(c: Call) -> ir.Value:
    """Rows of the weight; indices outside of it are those of its edges. The lookup notes `sparse_grad`."""
    c.attributes.integer("input_dim")
    c.attributes.integer("output_dim")
    c.attributes.dtype("dtype", "float32")
    indices, weight = c.inputs
    shape = c.one("Shape", indices)
    flat = clipped(c, c.one("Reshape", indices, c.ints(-1)), c.one("Shape", weight, start=0, end=1))
    found = c.one("Gather", weight, c.one("Reshape", flat, shape), axis=0)
    asked = c.attributes.flag("sparse_grad", c.node.op == "_contrib_SparseEmbedding")
    if asked and (node := found.producer()) is not None:
        node.metadata_props[SPARSE_GRADIENT] = "1"
    return found


def _dropout(c: Call) -> ir.Value:
    """Nothing is left out in an inference; a training graph takes the mask, 0 or 1 / (1 - p), as an input."""
    share = c.attributes.number("p", 0.5)
    axes, mode = (
        c.attributes.integers("axes", ()),
        c.attributes.text("mode", "training", ("training", "always")),
    )
    if c.builder.is_training:
        x = c.inputs[0]
        if not 0 <= share < 1:
            raise c.error(f"p is {share:g}; expected 0 or more, and less than 1")
        rank = c.rank(x)
        shape = [1 if i in {a % rank for a in axes} else x.shape[i] for i in range(rank)]  # type: ignore[index]
        return c.one("Mul", x, c.builder.mask(c.node.name, x, shape, share))
    if mode == "always":
        raise c.error("mode=always is random; expected training, which an inference leaves out")
    return c.one("Identity", c.inputs[0])


ROWS: Mapping[str, Translation] = {
    **dict.fromkeys(("Convolution", "Convolution_v1"), _convolution),
    "Deconvolution": _deconvolution,
    "FullyConnected": _fully_connected,
    **dict.fromkeys(("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm"), _batch_norm),
    "_contrib_SyncBatchNorm": _batch_norm,
    **dict.fromkeys(("Pooling", "Pooling_v1"), pooling),
    "_contrib_AdaptiveAvgPooling2D": _adaptive_pool,
    "LRN": _lrn,
    "InstanceNorm": _instance_norm,
    "GroupNorm": _group_norm,
    "LayerNorm": _layer_norm,
    "L2Normalization": _l2_normalization,
    **dict.fromkeys(("Pad", "pad"), _pad),
    "UpSampling": _up_sampling,
    "_contrib_BilinearResize2D": _bilinear_resize,
    **dict.fromkeys(("Embedding", "_contrib_SparseEmbedding"), embedding),
    "Dropout": _dropout,
}
# Operands of layers: those that have no data are looked up by the name of the node and theirs.
OPERANDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("Convolution", "Convolution_v1", "Deconvolution", "FullyConnected"), ("data", "weight", "bias")
    ),
    **dict.fromkeys(
        ("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm"),
        ("data", "gamma", "beta", "moving_mean", "moving_var"),
    ),
    **dict.fromkeys(("InstanceNorm", "LayerNorm", "GroupNorm"), ("data", "gamma", "beta")),
    **dict.fromkeys(("Embedding", "_contrib_SparseEmbedding"), ("data", "weight")),
    **dict.fromkeys(("_contrib_quantized_conv", "_contrib_quantized_fully_connected"), ("data", "weight")),
    "RNN": ("data", "parameters", "state", "state_cell"),
}
