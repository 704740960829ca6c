"""Images that are made of tokens and read as tokens again: transposes on the side of the image.

Vision transformers keep tokens, [n, pixels, c], and convolve them now and then as images. Exported, that is
a Transpose to [n, c, pixels] and a Reshape to [n, c, h, w], and back again. With the Reshape on the side of
the tokens, where it moves nothing, the Transpose is the one between channels last and first: kernels over
blocks of channels read or write through it, and those with channels last need neither. What is computed of
every token by itself is computed of the image, so that it joins the convolution.
"""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, reshape, sole_reader, value_like
from app.engine.operators.operands import data
from app.engine.operators.tables.elementwise import OPERATORS
from app.engine.rewrites.transpose_sinking import permutation, transpose

TO_TOKENS, FROM_TOKENS = (0, 2, 3, 1), (0, 3, 1, 2)
CONVOLVING = frozenset({"AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "MaxPool", "Resize"})
POINTWISE = frozenset(row.op for row in OPERATORS if not row.per_axis and row.op != "CastLike")


def shape_before_transpose(node: ir.Node) -> Replacement | None:
    """Reshape(Transpose(tokens)) = Transpose(Reshape(tokens)), where convolutions read the image."""
    image, channels = node.outputs[0], data(node)
    swap, shape = channels.producer(), graph.shape(image)
    if swap is None or permutation(swap) != (0, 2, 1) or sole_reader(channels) is not node:
        return None
    if shape is None or not _is_image(shape, channels):
        return None
    if not any(reader.op_type in CONVOLVING for reader in image.consumers()):
        return None
    n, c, h, w = shape
    rows = reshape(data(swap), (n, h, w, c), f"{image.name}.last")
    new = transpose(rows.outputs[0], FROM_TOKENS, f"{image.name}.first")
    return Replacement(new.outputs, [rows, new])


def transpose_before_shape(node: ir.Node) -> Replacement | None:
    """Transpose(Reshape(image)) = Reshape(Transpose(image)), where convolutions make the image."""
    channels = data(node)
    flat = channels.producer()
    if permutation(node) != (0, 2, 1) or flat is None or flat.op_type not in ("Reshape", "Flatten"):
        return None
    image = data(flat)
    shape = graph.shape(image)
    if shape is None or sole_reader(channels) is not node or not _is_image(shape, channels):
        return None
    if not _is_convolved(image):
        return None
    last = transpose(image, TO_TOKENS, f"{image.name}.last")
    new = reshape(last.outputs[0], graph.static_shape(node.outputs[0]), f"{image.name}.tokens")
    return Replacement(new.outputs, [last, new])


def compute_on_image(node: ir.Node) -> Replacement | None:
    """Elementwise(tokens of an image, numbers) = tokens of Elementwise(image, numbers)."""
    given = [v for v in node.inputs if v is not None and not _is_number(v)]
    images = {v: image for v in given if (image := _image_of(v)) is not None}
    if not given or len(images) < len(set(given)) or len(node.outputs) > 1:
        return None
    (result,) = node.outputs
    shape, *different = {graph.static_shape(image) for image in images.values()}
    if different or not all(reader.op_type in POINTWISE for v in images for reader in v.consumers()):
        return None
    made = value_like(result, f"{result.name}.image")
    made.shape = ir.Shape(shape)
    inputs = [v if v is None else images.get(v, v) for v in node.inputs]
    new = ir.Node("", node.op_type, inputs, list(node.attributes.values()), outputs=[made])
    last = transpose(made, TO_TOKENS, f"{result.name}.last")
    tokens = reshape(last.outputs[0], graph.static_shape(result), f"{result.name}.tokens")
    return Replacement(tokens.outputs, [new, last, tokens])


def _is_image(shape: tuple[int, ...], channels: ir.Value) -> bool:
    """True if a shape is [n, c, h, w] where that of `channels` is [n, c, h w], and has elements."""
    flat = graph.shape(channels)
    return len(shape) == 4 and flat == (*shape[:2], shape[2] * shape[3]) and 0 not in shape


def _is_convolved(image: ir.Value) -> bool:
    """True if a convolution makes an image, or an elementwise operator, as after a convolution."""
    producer = image.producer()
    return producer is not None and producer.op_type in CONVOLVING | POINTWISE


def _is_number(value: ir.Value) -> bool:
    return graph.is_constant(value) and graph.elements(value) == 1


def _image_of(tokens: ir.Value) -> ir.Value | None:
    """The image that tokens are made of, as `transpose_before_shape` leaves them; None for other values."""
    shaped = tokens.producer()
    if shaped is None or shaped.op_type != "Reshape" or len(graph.shape(tokens) or ()) != 3:
        return None
    last = data(shaped)
    swap = last.producer()
    if swap is None or permutation(swap) != TO_TOKENS or sole_reader(last) is not shaped:
        return None
    n, h, w, c = graph.static_shape(last)
    image = data(swap)
    return image if graph.shape(tokens) == (n, h * w, c) and _is_convolved(image) else None


REWRITES = tuple(
    RewriteRule(rule, ops, nested=False, backends=("numba-cpu",), by_extents=True)
    for rule, ops in (
        (shape_before_transpose, ("Reshape",)),
        (transpose_before_shape, ("Transpose",)),
        (compute_on_image, tuple(sorted(POINTWISE))),
    )
)
