"""Images that are made of tokens and read as tokens again: transposes on the side of the image.

Vision transformers keep tokens, [n, pixels, c], and convolve them now and then as images. Exported, that is
a Transpose to [n, c, pixels] and a Reshape to [n, c, h, w], and back again. With the Reshape on the side of
the tokens, where it moves nothing, the Transpose is the one between channels last and first: kernels over
blocks of channels read or write through it, and those with channels last need neither. What is computed of
every token by itself stays behind them: an activation such as Gelu takes longer row by row of a depthwise
convolution than of all tokens at once.
"""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, reshape, sole_reader
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


def _is_image(shape: tuple[int, ...], channels: ir.Value) -> bool:
    """True if a shape is [n, c, h, w] where that of `channels` is [n, c, h w], and has elements."""
    flat = graph.shape(channels)
    return len(shape) == 4 and flat == (*shape[:2], shape[2] * shape[3]) and 0 not in shape


def _is_convolved(image: ir.Value) -> bool:
    """True if a convolution makes an image, or an elementwise operator, as after a convolution."""
    producer = image.producer()
    return producer is not None and producer.op_type in CONVOLVING | POINTWISE


REWRITES = tuple(
    RewriteRule(rule, ops, nested=False, backends=("numba-cpu",), by_extents=True)
    for rule, ops in (
        (shape_before_transpose, ("Reshape",)),
        (transpose_before_shape, ("Transpose",)),
    )
)
