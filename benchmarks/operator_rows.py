"""Rows of `make bench-operators`: operators that whole models spend their time in once the rest is fast.

A row is one node in ONNX text and two sizes of its inputs. Rows are added to the table of their family,
or as a family of their own, to `ROWS`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Random: TypeAlias = np.random.Generator
Make: TypeAlias = Callable[[Random], Array]
Rows: TypeAlias = tuple["OperatorRow", ...]


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One node to measure.

    Attributes:
        name: of the row: the operator, and what is particular.
        size: a word for the size of the inputs.
        node: `Op <attributes> (inputs)` in ONNX text.
        inputs: arrays by name, made of seeded random numbers, in the order of the model.
        constants: inputs that are initializers.
        outputs: names, with the element types of those that are not float.
        opset: of the default domain.
        domain: of the node; version 1 is imported.
    """

    name: str
    size: str
    node: str
    inputs: Mapping[str, Make]
    constants: Mapping[str, Make] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=lambda: {"y": "float"})
    opset: int = 20
    domain: str = ""


def normal(*shape: int) -> Make:
    """Standard normal float32."""
    return lambda random: random.standard_normal(shape).astype(np.float32)


def uniform(low: float, high: float, *shape: int) -> Make:
    """Uniform float32."""
    return lambda random: random.uniform(low, high, shape).astype(np.float32)


def bytes_of(dtype: Any, *shape: int) -> Make:
    """Uniform integers of 8 bits, all that the type has."""
    limits = np.iinfo(dtype)
    return lambda random: random.integers(limits.min, limits.max + 1, shape).astype(dtype)


def below(limit: int, *shape: int) -> Make:
    """Uniform int64 from 0 to below a limit."""
    return lambda random: random.integers(0, limit, shape)


def given(values: Any, dtype: Any = np.int64) -> Make:
    """These numbers."""
    return lambda _random: np.array(values, dtype)


def permutation(n: int) -> Make:
    """The numbers below n in random order."""
    return lambda random: random.permutation(n)


def flags(share: float, *shape: int) -> Make:
    """Zeros, and ones for a share of the elements."""
    return lambda random: (random.uniform(size=shape) < share).astype(np.float32)


def boxes(count: int, extent: float, *lead: int) -> Make:
    """float32[*lead, count, 4] of corners (x1, y1, x2, y2) in a square of this extent."""

    def make(random: Random) -> Array:
        corner = random.uniform(0, 0.7 * extent, (*lead, count, 2))
        size = random.uniform(0.05 * extent, 0.3 * extent, (*lead, count, 2))
        return np.concatenate([corner, corner + size], -1).astype(np.float32)

    return make


def _suppression(size: str, n: int, classes: int, most: int) -> OperatorRow:
    return OperatorRow(
        "NonMaxSuppression", size, "NonMaxSuppression(boxes, scores, most, iou, least)",
        {"boxes": boxes(n, 320.0, 1), "scores": uniform(0, 1, 1, classes, n)},
        {"most": given([most]), "iou": given([0.5], np.float32), "least": given([0.3], np.float32)},
        {"y": "int64"},
    )  # fmt: skip


def _top(name: str, size: str, shape: tuple[int, ...], k: int, axis: int) -> OperatorRow:
    return OperatorRow(
        name, size, f"TopK <axis = {axis}> (x, k)", {"x": normal(*shape)}, {"k": given([k])},
        {"y": "float", "i": "int64"},
    )  # fmt: skip


def _align(size: str, channels: int, extent: int, rois: int, mode: str = "avg") -> OperatorRow:
    attributes = "output_height = 7, output_width = 7, sampling_ratio = 2, spatial_scale = 0.25"
    attributes += f', mode = "{mode}"'
    return OperatorRow(
        "RoiAlign" if mode == "avg" else f"RoiAlign {mode}", size, f"RoiAlign <{attributes}> (x, rois, b)",
        {"x": normal(1, channels, extent, extent), "rois": boxes(rois, 4.0 * extent), "b": below(1, rois)},
    )  # fmt: skip


def _grid(name: str, size: str, mode: str, shape: tuple[int, ...], places: tuple[int, ...]) -> OperatorRow:
    node = f'GridSample <mode = "{mode}", padding_mode = "zeros", align_corners = 0> (x, grid)'
    grid = uniform(-1.1, 1.1, shape[0], *places, len(places))
    return OperatorRow(name, size, node, {"x": normal(*shape), "grid": grid})


def _deform(size: str, channels: int, extent: int) -> OperatorRow:
    return OperatorRow(
        "DeformConv", size, "DeformConv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w, offset, b, mask)",
        {
            "x": normal(1, channels, extent, extent),
            "offset": normal(1, 18, extent, extent),
            "mask": uniform(0, 1, 1, 9, extent, extent),
        },
        {"w": normal(channels, channels, 3, 3), "b": normal(channels)}, opset=22,
    )  # fmt: skip


def _resize(name: str, size: str, attributes: str, shape: tuple[int, ...], target: int) -> OperatorRow:
    crop = "crop" in attributes
    roi = given([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9] if crop else [], np.float32)
    return OperatorRow(
        name, size, f"Resize <{attributes}> (x, roi, scales, sizes)", {"x": normal(*shape)},
        {"roi": roi, "scales": given([], np.float32), "sizes": given([*shape[:2], target, target])},
    )  # fmt: skip


def _one(name: str, size: str, node: str, x: Make, kind: str = "float", **more: Any) -> OperatorRow:
    return OperatorRow(name, size, node, {"x": x}, outputs={"y": kind}, **more)


def both(name: str, node: str, small: Make, large: Make, kind: str = "float", **more: Any) -> Rows:
    """A row at two sizes."""
    return _one(name, "small", node, small, kind, **more), _one(name, "large", node, large, kind, **more)


def _quotients(size: str, *shape: int) -> OperatorRow:
    def whole(random: Random) -> Array:
        return random.integers(1, 1000, shape).astype(np.int32)

    return OperatorRow("Div of int32", size, "Div(x, d)", {"x": whole, "d": whole}, outputs={"y": "int32"})


def _unpool(size: str, channels: int, extent: int) -> OperatorRow:
    half = extent // 2

    def places(random: Random) -> Array:
        corner = 2 * np.arange(half)
        rows, columns = (corner + random.integers(0, 2, (channels, half, half)) for _ in range(2))
        plane = np.arange(channels)[:, None, None] * extent * extent
        return (plane + np.swapaxes(rows, 1, 2) * extent + columns)[None]

    node = "MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)"
    return OperatorRow("MaxUnpool", size, node, {"x": normal(1, channels, half, half), "i": places}, opset=22)


def _max_roi(size: str, channels: int, extent: int, rois: int) -> OperatorRow:
    def corners(random: Random) -> Array:
        found = boxes(rois, float(extent))(random)
        return np.concatenate([np.zeros((rois, 1), np.float32), found], 1)

    node = "MaxRoiPool <pooled_shape = [7, 7], spatial_scale = 1.0> (x, rois)"
    return OperatorRow(
        "MaxRoiPool", size, node, {"x": normal(1, channels, extent, extent), "rois": corners}, opset=20
    )


def _scatter(name: str, size: str, node: str, rows: int, width: int, updates: int) -> OperatorRow:
    index = below(rows, updates, width if "Elements" in node else 1)
    return OperatorRow(name, size, node, {"x": normal(rows, width), "i": index, "u": normal(updates, width)})


def _spectrum(name: str, size: str, attributes: str, shape: tuple[int, ...]) -> OperatorRow:
    node = f"DFT <{attributes}> (x, n, axis)"
    constants = {"n": given(shape[1]), "axis": given(1)}
    return OperatorRow(name, size, node, {"x": normal(*shape)}, constants)


def _short_time(size: str, batch: int, length: int, frame: int, step: int) -> OperatorRow:
    window = uniform(0.1, 1, frame)
    constants = {"step": given(step), "w": window, "frame": given(frame)}
    return OperatorRow("STFT", size, "STFT(x, step, w, frame)", {"x": normal(batch, length, 1)}, constants)


def _scan(size: str, turns: int, width: int) -> OperatorRow:
    """A recurrent cell: two products, an addition, tanh."""
    cell = (
        f"cell (float[1,{width}] s, float[1,{width}] e) => (float[1,{width}] n, float[1,{width}] o) "
        "{ p = MatMul(e, wx) r = MatMul(s, wh) a = Add(p, r) n = Tanh(a) o = Identity(n) }"
    )
    return OperatorRow(
        "Scan cell", size, f"Scan <num_scan_inputs = 1, body = {cell}> (h, x)",
        {"h": normal(1, width), "x": normal(turns, 1, width)},
        {"wx": uniform(-0.1, 0.1, width, width), "wh": uniform(-0.1, 0.1, width, width)},
        {"y": "float", "all": "float"},
    )  # fmt: skip


def _running_sum(size: str, turns: int, width: int) -> OperatorRow:
    body = f"sum (float[{width}] s, float[{width}] e) => (float[{width}] n, float[{width}] o)"
    steps = "{ n = Add(s, e) o = Identity(n) }"
    return OperatorRow(
        "Scan sum", size, f"Scan <num_scan_inputs = 1, body = {body} {steps}> (h, x)",
        {"h": normal(width), "x": normal(turns, width)}, {}, {"y": "float", "all": "float"},
    )  # fmt: skip


def _loop(size: str, turns: int, width: int) -> OperatorRow:
    """A fixed-point iteration that also stacks what it passes."""
    body = (
        f"step (int64 i, bool c, float[{width}] s) => (bool d, float[{width}] n, float[{width}] o) "
        "{ d = Identity(c) t = Sin(s) n = Add(t, b) o = Identity(n) }"
    )
    return OperatorRow(
        "Loop", size, f"Loop <body = {body}> (trips, , x)", {"x": normal(width)},
        {"trips": given(turns), "b": uniform(-1, 1, width)}, {"y": "float", "all": "float"},
    )  # fmt: skip


def _search(size: str, turns: int, width: int) -> OperatorRow:
    """Newton's square root, ended by a condition that the body computes."""
    body = (
        f"step (int64 i, bool c, float[{width}] s) => (bool d, float[{width}] n) "
        "{ q = Div(x, s) t = Add(s, q) n = Mul(t, half) "
        "e = Sub(n, s) f = Abs(e) m = ReduceMax <keepdims = 0> (f) d = Less(least, m) }"
    )
    return OperatorRow(
        "Loop until", size, f"Loop <body = {body}> (trips, , x)", {"x": uniform(1, 2, width)},
        {"trips": given(turns), "half": given(0.5, np.float32), "least": given(1e-3, np.float32)},
    )  # fmt: skip


def _branch(size: str, rows: int, width: int) -> OperatorRow:
    branches = (
        f"then_branch = a () => (float[{rows},{width}] u) {{ p = MatMul(x, w) u = Relu(p) }}, "
        f"else_branch = b () => (float[{rows},{width}] v) {{ v = Neg(x) }}"
    )
    return OperatorRow(
        "If", size, f"If <{branches}> (c)", {"c": given(True, np.bool_), "x": normal(rows, width)},
        {"w": uniform(-1, 1, width, width)},
    )  # fmt: skip


def _conv(
    name: str, size: str, x: tuple[int, ...], w: tuple[int, ...], pads: tuple[int, ...] = (0, 0, 0, 0)
) -> OperatorRow:
    return OperatorRow(name, size, f"Conv <pads = {list(pads)}> (x, w)", {"x": normal(*x)}, {"w": normal(*w)})


def _product(name: str, size: str, rows: int, depth: int, columns: int) -> OperatorRow:
    return OperatorRow(name, size, "MatMul(x, w)", {"x": normal(rows, depth)}, {"w": normal(depth, columns)})


def _integer_conv(
    name: str, size: str, x: tuple[int, ...], w: tuple[int, ...], stride: int = 1, pad: int = 1
) -> OperatorRow:
    node = (
        f"ConvInteger <pads = {[pad] * 4}, strides = {[stride] * 2}, group = {x[1] // w[1]}> (x, w, origin)"
    )
    return OperatorRow(
        name, size, node, {"x": bytes_of(np.uint8, *x)},
        {"w": bytes_of(np.int8, *w), "origin": given(120, np.uint8)}, {"y": "int32"},
    )  # fmt: skip


def _quantized_conv(
    name: str, size: str, x: tuple[int, ...], w: tuple[int, ...], stride: int = 1, pad: int = 1
) -> OperatorRow:
    node = (
        f"QLinearConv <pads = {[pad] * 4}, strides = {[stride] * 2}, group = {x[1] // w[1]}>"
        " (x, scale, origin, w, scales, zero, step, middle, bias)"
    )
    return OperatorRow(
        name, size, node, {"x": bytes_of(np.uint8, *x)},
        {
            "scale": given(0.02, np.float32), "origin": given(120, np.uint8), "w": bytes_of(np.int8, *w),
            "scales": uniform(0.001, 0.002, w[0]), "zero": given(0, np.int8),
            "step": given(0.05 * (math.prod(w[1:]) / 64) ** 0.5, np.float32), "middle": given(110, np.uint8),
            "bias": lambda random: random.integers(-1000, 1000, w[0]).astype(np.int32),
        },
        {"y": "uint8"},
    )  # fmt: skip


def _integer_product(name: str, size: str, rows: int, depth: int, columns: int) -> OperatorRow:
    return OperatorRow(
        name, size, "MatMulInteger(x, w)", {"x": bytes_of(np.uint8, rows, depth)},
        {"w": bytes_of(np.int8, depth, columns)}, {"y": "int32"},
    )  # fmt: skip


_DETECTION = (
    _suppression("small", 200, 2, 20),
    _suppression("large", 3000, 8, 100),
    _top("TopK few", "small", (1, 1000), 5, -1),
    _top("TopK few", "large", (16, 20000), 10, -1),
    _top("TopK many", "small", (4, 500), 300, -1),
    _top("TopK many", "large", (2, 100000), 5000, -1),
    _top("TopK other axis", "small", (2, 200, 7), 5, 1),
    _top("TopK other axis", "large", (4, 3000, 32), 100, 1),
    _align("small", 16, 25, 10),
    _align("large", 256, 50, 100),
    _align("small", 16, 25, 10, "max"),
    _align("large", 64, 96, 50, "max"),
    _max_roi("small", 8, 20, 5),
    _max_roi("large", 64, 50, 64),
    _one("NonZero", "small", "NonZero(x)", flags(0.1, 8, 100), "int64"),
    _one("NonZero", "large", "NonZero(x)", flags(0.1, 300, 4000), "int64"),
    _one("Unique", "small", "Unique(x)", below(50, 300), "int64"),
    _one("Unique", "large", "Unique(x)", below(5000, 100000), "int64"),
    OperatorRow("Compress", "small", "Compress <axis = 0> (x, c)", {
        "x": normal(100, 4), "c": lambda random: random.uniform(size=100) < 0.3}),
    OperatorRow("Compress", "large", "Compress <axis = 0> (x, c)", {
        "x": normal(20000, 16), "c": lambda random: random.uniform(size=20000) < 0.3}),
)  # fmt: skip

_IMAGES = (
    _grid("GridSample linear", "small", "linear", (1, 4, 16, 16), (16, 16)),
    _grid("GridSample linear", "large", "linear", (1, 64, 80, 80), (80, 80)),
    _grid("GridSample nearest", "small", "nearest", (1, 4, 16, 16), (16, 16)),
    _grid("GridSample nearest", "large", "nearest", (1, 64, 80, 80), (80, 80)),
    _grid("GridSample cubic", "small", "cubic", (1, 4, 16, 16), (16, 16)),
    _grid("GridSample cubic", "large", "cubic", (1, 64, 80, 80), (80, 80)),
    _grid("GridSample volume", "small", "linear", (1, 2, 6, 8, 8), (6, 8, 8)),
    _grid("GridSample volume", "large", "linear", (1, 16, 16, 32, 32), (16, 32, 32)),
    _deform("small", 8, 14),
    _deform("large", 64, 56),
    _resize("Resize cubic", "small", 'mode = "cubic"', (1, 3, 20, 20), 41),
    _resize("Resize cubic", "large", 'mode = "cubic"', (1, 16, 128, 128), 256),
    _resize("Resize antialias", "small", 'mode = "linear", antialias = 1', (1, 3, 41, 41), 20),
    _resize("Resize antialias", "large", 'mode = "linear", antialias = 1', (1, 16, 256, 256), 100),
    _resize("Resize cubic excluded", "small", 'mode = "cubic", exclude_outside = 1', (1, 3, 20, 20), 33),
    _resize("Resize cubic excluded", "large", 'mode = "cubic", exclude_outside = 1', (1, 16, 128, 128), 200),
    _resize(
        "Resize crop", "small", 'mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"',
        (1, 3, 20, 20), 14,
    ),
    _resize(
        "Resize crop", "large", 'mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"',
        (1, 16, 256, 256), 224,
    ),
    _one("CenterCropPad", "small", "CenterCropPad <axes = [2, 3]> (x, s)", normal(1, 3, 20, 30),
         constants={"s": given([24, 24])}),
    _one("CenterCropPad", "large", "CenterCropPad <axes = [2, 3]> (x, s)", normal(1, 16, 300, 200),
         constants={"s": given([224, 224])}),
    _one("Col2Im", "small", "Col2Im <pads = [1, 1, 1, 1]> (x, image, block)", normal(1, 36, 64),
         constants={"image": given([8, 8]), "block": given([3, 3])}),
    _one("Col2Im", "large", "Col2Im <pads = [1, 1, 1, 1]> (x, image, block)", normal(1, 288, 6400),
         constants={"image": given([80, 80]), "block": given([3, 3])}),
    _unpool("small", 4, 16),
    _unpool("large", 64, 112),
)  # fmt: skip

_ND = 'ScatterND <reduction = "{}"> (x, i, u)'
_ELEMENTS = 'ScatterElements <axis = 0, reduction = "{}"> (x, i, u)'
_SCATTERS = (
    _scatter("ScatterElements add", "small", _ELEMENTS.format("add"), 100, 16, 300),
    _scatter("ScatterElements add", "large", _ELEMENTS.format("add"), 2700, 64, 20000),
    _scatter("ScatterElements max", "small", _ELEMENTS.format("max"), 100, 16, 300),
    _scatter("ScatterElements max", "large", _ELEMENTS.format("max"), 2700, 64, 20000),
    _scatter("ScatterND add", "small", _ND.format("add"), 100, 16, 300),
    _scatter("ScatterND add", "large", _ND.format("add"), 2700, 64, 20000),
    _scatter("ScatterND", "small", _ND.format("none"), 100, 16, 300),
    _scatter("ScatterND", "large", _ND.format("none"), 2700, 64, 20000),
)

_SIGNALS = (
    _spectrum("DFT power of two", "small", "onesided = 0", (1, 64, 1)),
    _spectrum("DFT power of two", "large", "onesided = 0", (32, 1024, 1)),
    _spectrum("DFT mixed radix", "small", "onesided = 1", (1, 60, 1)),
    _spectrum("DFT mixed radix", "large", "onesided = 1", (32, 1200, 1)),
    _spectrum("DFT prime", "small", "onesided = 0", (1, 67, 2)),
    _spectrum("DFT prime", "large", "onesided = 0", (16, 1009, 2)),
    _spectrum("DFT inverse", "small", "inverse = 1", (1, 48, 2)),
    _spectrum("DFT inverse", "large", "inverse = 1", (32, 960, 2)),
    _short_time("small", 1, 1000, 64, 32),
    _short_time("large", 1, 80000, 400, 160),
)

_MEL = OperatorRow(
    "MelWeightMatrix", "small", "MelWeightMatrix(bins, length, rate, low, high)",
    {"low": given(20.0, np.float32), "high": given(7600.0, np.float32)},
    {"bins": given(40), "length": given(256), "rate": given(16000)},
)  # fmt: skip

_CONTROL_FLOW = (
    _scan("small", 20, 16),
    _scan("large", 100, 256),
    _running_sum("small", 20, 16),
    _running_sum("large", 200, 4096),
    _loop("small", 10, 16),
    _loop("large", 100, 4096),
    _search("small", 10, 16),
    _search("large", 10, 20000),
    _branch("small", 4, 16),
    _branch("large", 64, 256),
)

_PRODUCTS = (
    _conv("Conv to few channels", "small", (1, 16, 64, 64), (2, 16, 3, 3), (1, 1, 1, 1)),
    _conv("Conv to few channels", "large", (1, 32, 224, 224), (3, 32, 9, 9), (4, 4, 4, 4)),
    _conv("Conv from few channels", "small", (1, 3, 64, 64), (16, 3, 3, 3), (1, 1, 1, 1)),
    _conv("Conv from few channels", "large", (1, 3, 224, 224), (32, 3, 9, 9), (4, 4, 4, 4)),
    _conv("Conv pointwise", "small", (1, 256, 32, 32), (64, 256, 1, 1)),
    _conv("Conv pointwise", "large", (1, 1024, 128, 128), (256, 1024, 1, 1)),
    _conv("Conv of one pixel", "small", (1, 240, 1, 1), (320, 240, 1, 1)),
    _conv("Conv of one pixel", "large", (1, 960, 1, 1), (1280, 960, 1, 1)),
    _conv("Conv along one axis", "small", (1, 16, 500), (16, 16, 11), (5, 5)),
    _conv("Conv along one axis", "large", (1, 16, 8000), (16, 16, 11), (5, 5)),
    _conv("Conv along one axis, few channels", "small", (1, 16, 1000), (1, 16, 7), (3, 3)),
    _conv("Conv along one axis, few channels", "large", (1, 32, 8192), (1, 32, 7), (3, 3)),
    _product("MatMul of one row", "small", 1, 384, 1000),
    _product("MatMul of one row", "large", 1, 384, 51865),
    _product("MatMul of few rows", "small", 35, 512, 1000),
    _product("MatMul of few rows", "large", 35, 512, 10000),
    _product("MatMul of many rows", "small", 49, 384, 96),
    _product("MatMul of many rows", "large", 196, 1536, 384),
)

_INTEGERS = (
    _integer_conv("ConvInteger of a stem", "small", (1, 3, 64, 64), (32, 3, 7, 7), 2, 3),
    _integer_conv("ConvInteger of a stem", "large", (1, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    _integer_conv("ConvInteger", "small", (1, 32, 14, 14), (32, 32, 3, 3)),
    _integer_conv("ConvInteger", "large", (1, 64, 56, 56), (64, 64, 3, 3)),
    _integer_conv("ConvInteger of few pixels", "small", (1, 128, 7, 7), (128, 128, 3, 3)),
    _integer_conv("ConvInteger of few pixels", "large", (1, 512, 7, 7), (512, 512, 3, 3)),
    _integer_conv("ConvInteger, depthwise", "small", (1, 32, 28, 28), (32, 1, 3, 3)),
    _integer_conv("ConvInteger, depthwise", "large", (1, 96, 112, 112), (96, 1, 3, 3)),
    _integer_conv("ConvInteger, depthwise in steps of two", "small", (1, 32, 28, 28), (32, 1, 3, 3), 2),
    _integer_conv("ConvInteger, depthwise in steps of two", "large", (1, 96, 112, 112), (96, 1, 3, 3), 2),
    _quantized_conv("QLinearConv of a stem", "small", (1, 3, 64, 64), (32, 3, 3, 3), 2),
    _quantized_conv("QLinearConv of a stem", "large", (1, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    _quantized_conv("QLinearConv", "small", (1, 32, 14, 14), (32, 32, 3, 3)),
    _quantized_conv("QLinearConv", "large", (1, 128, 28, 28), (128, 128, 3, 3)),
    _quantized_conv("QLinearConv of few pixels", "small", (1, 128, 7, 7), (128, 128, 3, 3)),
    _quantized_conv("QLinearConv of few pixels", "large", (1, 512, 7, 7), (512, 512, 3, 3)),
    _quantized_conv("QLinearConv pointwise", "small", (1, 128, 7, 7), (512, 128, 1, 1), 1, 0),
    _quantized_conv("QLinearConv pointwise", "large", (1, 96, 28, 28), (384, 96, 1, 1), 1, 0),
    _quantized_conv("QLinearConv of one pixel", "small", (1, 128, 1, 1), (256, 128, 1, 1), 1, 0),
    _quantized_conv("QLinearConv of one pixel", "large", (1, 960, 1, 1), (1280, 960, 1, 1), 1, 0),
    _quantized_conv("QLinearConv, depthwise", "small", (1, 192, 14, 14), (192, 1, 3, 3)),
    _quantized_conv("QLinearConv, depthwise", "large", (1, 96, 112, 112), (96, 1, 3, 3)),
    _integer_product("MatMulInteger of one row", "small", 1, 384, 384),
    _integer_product("MatMulInteger of one row", "large", 1, 768, 3072),
    _integer_product("MatMulInteger", "small", 32, 384, 384),
    _integer_product("MatMulInteger", "large", 64, 768, 3072),
)

_ASYMMETRIC = 'coordinate_transformation_mode = "asymmetric"'
_DOUBLED = {"s": given([1, 1, 2, 2], np.float32)}
_POOL = "com.microsoft.NhwcMaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)"
_MOVEMENTS = (
    *both(
        "Transpose to pixels", "Transpose <perm = [0, 2, 3, 1]> (x)", bytes_of(np.uint8, 1, 3, 32, 32),
        bytes_of(np.uint8, 1, 3, 640, 640), "uint8",
    ),
    *both(
        "Transpose to planes", "Transpose <perm = [0, 3, 1, 2]> (x)", normal(1, 32, 32, 3),
        normal(1, 640, 640, 3),
    ),
    *both(
        "Transpose of 85 rows", "Transpose <perm = [0, 1, 3, 4, 2]> (x)", normal(1, 3, 85, 4, 4),
        normal(1, 3, 85, 80, 80),
    ),
    *both(
        "Resize linear of bytes", 'Resize <mode = "linear"> (x, , s)', bytes_of(np.uint8, 1, 3, 20, 20),
        bytes_of(np.uint8, 1, 64, 96, 96), "uint8", constants=_DOUBLED,
    ),
    *both(
        "Resize nearest floor",
        f'Resize <mode = "nearest", nearest_mode = "floor", {_ASYMMETRIC}> (x, , s)',
        normal(1, 3, 20, 20), normal(1, 64, 96, 96), constants=_DOUBLED,
    ),
    *both(
        "NhwcMaxPool", _POOL, bytes_of(np.uint8, 1, 20, 20, 3), bytes_of(np.uint8, 1, 96, 96, 64), "uint8",
        domain="com.microsoft",
    ),
    *both(
        "Pad edge of bytes", 'Pad <mode = "edge"> (x, p)', bytes_of(np.uint8, 1, 8, 10, 6),
        bytes_of(np.uint8, 1, 8, 500, 200), "uint8", constants={"p": given([0, 0, 3, 4, 0, 0, 3, 4])},
    ),
    *both(
        "Tile of short rows", "Tile(x, t)", normal(10, 3), normal(500, 3), constants={"t": given([2, 200])}
    ),
    *both(
        "Expand of heads", "Expand(x, s)", normal(1, 4, 1, 10, 6), normal(1, 4, 1, 500, 200),
        constants={"s": given([1, 4, 4, 1, 1])},
    ),
    *both("Hardmax", "Hardmax <axis = 1> (x)", normal(2, 10, 6), normal(2, 500, 200)),
    *both(
        "ReduceMax of pixels", "ReduceMax <keepdims = 0> (x, a)", normal(2, 10, 6, 6), normal(2, 500, 200, 6),
        constants={"a": given([1, 2])},
    ),
    *both("CumSum of int64", "CumSum(x, a)", below(9, 10, 30), below(9, 500, 1000), "int64",
           constants={"a": given(0)}),
    _quotients("small", 10, 30),
    _quotients("large", 500, 1000),
)  # fmt: skip

ROWS: tuple[OperatorRow, ...] = (
    *_PRODUCTS,
    *_INTEGERS,
    *_MOVEMENTS,
    *_DETECTION,
    *_IMAGES,
    *_SCATTERS,
    *_SIGNALS,
    _MEL,
    *_CONTROL_FLOW,
)
