"""MXNet's operators on images and boxes, as ONNX nodes."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators.elementwise import Translation

_FAR = 2**31 - 1


def _affine_grid(c: Call, theta: ir.Value) -> ir.Value:
    """Places of the target in the source, [batch, 2, height, width], of six numbers a batch."""
    height, width = c.attributes.integers("target_shape")
    matrix = c.one("Reshape", theta, c.ints(-1, 2, 3))
    batch = c.one("Shape", matrix, start=0, end=1)
    size = c.one("Concat", batch, c.ints(1, height, width), axis=0)
    return c.one("AffineGrid", matrix, size, align_corners=1)


def _grid_generator(c: Call) -> ir.Value:
    """A grid of an affine map, or of how far each place of an image is moved."""
    kind = c.attributes.text("transform_type", "", ("affine", "warp"))
    if kind == "affine":
        return c.one("Transpose", _affine_grid(c, c.inputs[0]), perm=[0, 3, 1, 2])
    flow, dims = c.inputs[0], c.dims(c.inputs[0])
    if dims is None:
        raise c.error("the shape of the data is not known; bind the shapes of the inputs")
    height, width = dims[2:]
    c.attributes.text("target_shape", "")
    still = np.stack([*np.meshgrid(np.arange(width), np.arange(height))])[None]
    half = np.array([(width - 1) / 2, (height - 1) / 2]).reshape(1, 2, 1, 1)
    moved = c.one("Div", c.one("Add", flow, c.const(still.astype(np.float64), flow)), c.const(half, flow))
    return c.one("Sub", moved, c.const(1.0, flow))


def _sampled(c: Call, x: ir.Value, grid: ir.Value) -> ir.Value:
    """Elements between four of an image, zeros around it; the grid has x and y last."""
    return c.one("GridSample", x, grid, mode="linear", padding_mode="zeros", align_corners=1)


def _bilinear_sampler(c: Call) -> ir.Value:
    x, grid = c.inputs
    return _sampled(c, x, c.one("Transpose", grid, perm=[0, 2, 3, 1]))


def _spatial_transformer(c: Call) -> ir.Value:
    c.attributes.text("transform_type", "affine", ("affine",))
    c.attributes.text("sampler_type", "bilinear", ("bilinear",))
    x, theta = c.inputs
    return _sampled(c, x, _affine_grid(c, theta))


def _crop(c: Call) -> ir.Value:
    """A part of an image, as large as another one or as `h_w` says."""
    x = c.inputs[0]
    if c.attributes.integer("num_args", 1) > 1:
        sizes = c.dims(c.inputs[1])
        if sizes is None:
            raise c.error("the shape of the second operand is not known; bind the shapes of the inputs")
        high, wide = sizes[2:]
    else:
        high, wide = c.attributes.integers("h_w", (0, 0))
    top, left = c.attributes.integers("offset", (0, 0))
    if c.attributes.flag("center_crop"):
        dims = c.dims(x)
        if dims is None:
            raise c.error("the shape of the data is not known; bind the shapes of the inputs")
        top, left = (dims[2] - high) // 2, (dims[3] - wide) // 2
    return c.one("Slice", x, c.ints(top, left), c.ints(top + high, left + wide), c.ints(2, 3))


def _flipped(axis: int) -> Translation:
    """Along an axis of the last three."""
    return lambda c: c.one("Slice", c.inputs[0], c.ints(-1), c.ints(-_FAR), c.ints(axis), c.ints(-1))


def _to_tensor(c: Call) -> ir.Value:
    """Channels first, from 0 to 1."""
    x = c.inputs[0]
    rank = c.rank(x)
    order = [*range(rank - 3), rank - 1, rank - 3, rank - 2]
    found = c.one("Transpose", c.cast(x, np.dtype("f4")), perm=order)
    return c.one("Div", found, c.const(255.0, found))


def _numbers(c: Call, name: str, default: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    text = c.attributes.text(name, str(default)).strip("()[] ")
    try:
        return np.array([float(p) for p in text.split(",") if p.strip()]).reshape(-1, 1, 1)
    except ValueError:
        raise c.attributes.error(name, "numbers") from None


def _normalize(c: Call) -> ir.Value:
    """(x - mean) / std of every channel."""
    x = c.inputs[0]
    mean, deviation = c.const(_numbers(c, "mean", 0.0), x), c.const(_numbers(c, "std", 1.0), x)
    return c.one("Div", c.one("Sub", x, mean), deviation)


def _image_crop(c: Call) -> ir.Value:
    left, top, wide, high = (c.attributes.integer(name) for name in ("x", "y", "width", "height"))
    return c.one("Slice", c.inputs[0], c.ints(top, left), c.ints(top + high, left + wide), c.ints(-3, -2))


def _box_parts(c: Call, boxes: ir.Value) -> tuple[ir.Value, ...]:
    """The four numbers of boxes: corners, from centers and sizes too."""
    kind = c.attributes.text("format", "corner", ("corner", "center"))
    parts = c.many("Split", boxes, c.ints(1, 1, 1, 1), count=4, axis=-1)
    if kind == "corner":
        return parts
    half = c.const(0.5, boxes)
    x, y, wide, high = parts
    ends = [(v, c.one("Mul", size, half)) for v, size in ((x, wide), (y, high))]
    return (*(c.one("Sub", *pair) for pair in ends), *(c.one("Add", *pair) for pair in ends))


def _box_iou(c: Call) -> ir.Value:
    """The intersection of all pairs of boxes over their union."""
    sides: list[list[ir.Value]] = []
    for x, lead in zip(c.inputs, (c.rank(c.inputs[1]) - 1, c.rank(c.inputs[0]) - 1)):
        own = c.rank(x) - 1
        shape = [0] * own + [1] * lead if not sides else [1] * lead + [0] * own
        parts = _box_parts(c, x)
        flat = [c.one("Squeeze", p, c.ints(-1)) for p in parts]
        places = [i for i, n in enumerate(shape) if n == 1]
        sides.append([c.one("Unsqueeze", p, c.ints(*places)) for p in flat])
    zero = c.const(0.0, c.inputs[0])
    (a0, a1, a2, a3), (b0, b1, b2, b3) = sides

    def area(low: list[ir.Value], high: list[ir.Value]) -> ir.Value:
        spans = [c.one("Max", c.one("Sub", h, v), zero) for v, h in zip(low, high)]
        return c.one("Mul", *spans)

    inside = area([c.one("Max", a0, b0), c.one("Max", a1, b1)], [c.one("Min", a2, b2), c.one("Min", a3, b3)])
    either = c.one("Sub", c.one("Add", area([a0, a1], [a2, a3]), area([b0, b1], [b2, b3])), inside)
    is_empty = c.one("LessOrEqual", either, zero)
    return c.one(
        "Where", is_empty, zero, c.one("Div", inside, c.one("Where", is_empty, c.const(1.0, zero), either))
    )


ROWS: Mapping[str, Translation] = {
    "GridGenerator": _grid_generator,
    "BilinearSampler": _bilinear_sampler,
    "SpatialTransformer": _spatial_transformer,
    "Crop": _crop,
    "_image_flip_left_right": _flipped(-2),
    "_image_flip_top_bottom": _flipped(-3),
    "_image_to_tensor": _to_tensor,
    "_image_normalize": _normalize,
    "_image_crop": _image_crop,
    "_contrib_box_iou": _box_iou,
}
