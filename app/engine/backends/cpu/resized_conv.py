"""1x1 convolutions of enlarged images, computed before the images are enlarged.

Interpolation is linear along pixels and a 1x1 convolution along channels, so they commute; where the weights
of interpolation sum to one, a bias commutes too. Decoders of segmentation resize maps of several scales to
one size, concatenate them and mix their channels: a map of a quarter of the pixels then costs a quarter of
the products.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, sole_reader
from app.engine.operators.operands import data, fixed_inputs
from app.engine.operators.resize_geometry import keeps_constants, resized_axes
from app.engine.rewrites.algebraic import FLOATS
from app.engine.rewrites.contrib import Nodes, others

# Floating point operations in the time in which an element is interpolated, copied or added to another: 0.2
# ns where a core computes 240 GFLOP/s (Zen 5); 0.5 ns at 70 GFLOP/s (AVX2) are fewer.
ELEMENT = 64


# Pixels of the image that a Resize enlarges, over those of the result; None where that is not told so.
_Share = Callable[[ir.Node], float | None]


def mix_before_scaling(node: ir.Node) -> Replacement | None:
    """Conv(Concat(Resize(a), b)) = Resize(Conv(a)) + Conv(b), where that saves more than it adds.

    Images are enlarged by constants, so that it saves at all extents or at none.
    """
    return _mixed_before(node, _share_of_scales)


def mix_before_resize(node: ir.Node) -> Replacement | None:
    """`mix_before_scaling` of images that are enlarged to some extent."""
    return _mixed_before(node, _share_of_extents)


def _share_of_scales(resize: ir.Node) -> float | None:
    scales = graph.constant(graph.input_at(resize, 2))
    return None if scales is None or not scales.size else 1.0 / float(np.prod(scales, dtype=np.float64))


def _share_of_extents(resize: ir.Node) -> float | None:
    if _share_of_scales(resize) is not None:
        return None
    extents = [graph.static_shape(image)[2:] for image in (data(resize), resize.outputs[0])]
    return math.prod(extents[0]) / max(math.prod(extents[1]), 1)


def _mixed_before(node: ir.Node, share: _Share) -> Replacement | None:
    weights, shape = graph.constant(node.inputs[1]), graph.shape(node.outputs[0])
    parts = _parts(node)
    if weights is None or shape is None or not parts or not _is_pointwise(node, shape):
        return None
    moves = [_is_cheaper_before(part, shape, share, summed=len(parts) > 1) for part in parts]
    if not any(moves):
        return None
    ends = np.cumsum([graph.static_shape(part)[1] for part in parts])
    terms = list(zip(parts, np.split(weights, ends[:-1], axis=1), moves, strict=True))
    n, bias = Nodes(node), graph.input_at(node, 2)
    sums: list[ir.Value] = []
    kept = [(part, own) for part, own, moved in terms if not moved]
    if kept:
        images, own = [part for part, _ in kept], np.concatenate([own for _, own in kept], axis=1)
        joined = images[0] if len(images) == 1 else n("Concat", *images, axis=1)
        sums.append(n("Conv", joined, n.constant(own, own.dtype), bias))
    for part, own, moved in terms:
        resize = part.producer()
        if moved and resize is not None:
            mixed = n("Conv", data(resize), n.constant(own, own.dtype), None if sums else bias)
            sums.append(_resized(n, resize, mixed, shape))
    total = sums[0]
    for enlarged in sums[1:]:
        total = n("Add", total, enlarged)
    return Replacement([total], n.made)


def _parts(node: ir.Node) -> Sequence[ir.Value]:
    """Operands whose channels, one after another, a Conv reads; none where a shape is not known."""
    image = data(node)
    parts: Sequence[ir.Value] = (image,)
    concat = image.producer()
    if concat is not None and concat.op_type == "Concat" and sole_reader(image) is node:
        if graph.attribute(concat, "axis", 0) not in (1, -3):
            return ()
        parts = graph.operands(concat)
    return parts if all(graph.shape(part) is not None for part in parts) else ()


def _is_pointwise(node: ir.Node, shape: tuple[int, ...]) -> bool:
    """True if a Conv mixes all channels of every pixel of an image, and nothing else."""
    image = graph.shape(data(node))
    kernel = graph.static_shape(graph.operand(node, 1))[2:]
    pads: Sequence[int] = graph.attribute(node, "pads", ())
    strides: Sequence[int] = graph.attribute(node, "strides", ())
    return (
        kernel == (1, 1)
        and image is not None
        and image[2:] == shape[2:]
        and graph.attribute(node, "group", 1) == 1
        and not any(pads)
        and all(stride == 1 for stride in strides)
        and data(node).dtype in FLOATS
    )


def _is_cheaper_before(part: ir.Value, shape: tuple[int, ...], share: _Share, *, summed: bool) -> bool:
    """True if an operand is an enlarged image and the products saved outweigh what is interpolated and added.

    `shape` is that of the convolution's result.
    """
    resize = part.producer()
    if resize is None or resize.op_type != "Resize" or sole_reader(part) is None:
        return False
    source = graph.shape(data(resize))
    if source is None or fixed_inputs(resize, (1, 2, 3)):
        return False
    if graph.attribute(resize, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    if not all(axis.is_same for axis in resized_axes(resize)[:2]) or not keeps_constants(resize):
        return False
    of_result = share(resize)
    if of_result is None:
        return False
    channels, results = source[1], shape[1]  # what follows is counted a pixel of the result
    saved = 2 * channels * results * (1.0 - of_result)
    added = results * (2 if summed else 1) - channels
    return saved > max(0, ELEMENT * added)


def _resized(n: Nodes, resize: ir.Node, image: ir.Value, shape: tuple[int, ...]) -> Any:
    """Another image, resized in the same way to the pixels of `shape`."""
    scales, sizes = graph.constant(graph.input_at(resize, 2)), graph.input_at(resize, 3)
    if scales is not None and scales.size:
        return n("Resize", image, None, resize.inputs[2], **others(resize))
    axes = [axis % len(shape) for axis in graph.attribute(resize, "axes", tuple(range(len(shape))))]
    known = graph.array(graph.operand(resize, 3)) if sizes is not None else ()
    target = [shape[axis] if axis > 0 else int(size) for axis, size in zip(axes, known, strict=True)]
    return n("Resize", image, None, None, n.constant(target), **others(resize))


REWRITES = (
    RewriteRule(mix_before_scaling, ("Conv",), nested=False, backends=("numba-cpu",)),
    RewriteRule(mix_before_resize, ("Conv",), nested=False, backends=("numba-cpu",), by_extents=True),
)
