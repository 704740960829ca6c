"""Shape rules of windows and images, where those of the inference library differ from onnxruntime.

Source: onnxruntime/core/providers/cpu (nn/pool_attributes.h, nn/conv_transpose_attributes.h,
nn/unpool.cc, tensor/upsamplebase.h, signal/window_functions.cc), version 1.31; ONNX operator specifications.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext

from app.engine.core import graph

Infer = Callable[[ShapeInferenceContext, ir.Node], None]
Corrected = Callable[[Infer, ShapeInferenceContext, ir.Node], None]
_SAME = ("SAME_UPPER", "SAME_LOWER")


def _ints(node: ir.Node, name: str, count: int = 0, default: int = 0) -> list[int]:
    """An attribute, or so many of the default where the node leaves it out."""
    return list(graph.attribute(node, name, ())) or [default] * count


def _static(node: ir.Node, index: int) -> tuple[int, ...] | None:
    value = graph.input_at(node, index)
    return None if value is None else graph.shape(value)


def _set(context: ShapeInferenceContext, node: ir.Node, dims: Sequence[int]) -> None:
    """The shape of the first output, whose elements are those of the first input."""
    x = graph.operand(node, 0)
    if x.dtype is not None:
        context.set_shape_and_dtype(node.outputs[0], ir.Shape(dims), x.dtype)


def pool(known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """Refuse windows that are larger than the padded image, of which the specification makes no output."""
    x, kernel = _static(node, 0), _ints(node, "kernel_shape")
    reaches = graph.attribute(node, "auto_pad", "") in _SAME or graph.attribute(node, "ceil_mode", 0)
    if x is not None and len(x) == 2 + len(kernel) and not reaches:
        rank = len(kernel)
        pads = _ints(node, "pads", 2 * rank)
        dilations = _ints(node, "dilations", rank, 1)
        for axis, (size, taps, dilation) in enumerate(zip(x[2:], kernel, dilations)):
            extent = (taps - 1) * dilation + 1
            padded = size + pads[axis] + pads[rank + axis]
            if 0 < padded < extent:
                context.record_error(
                    node,
                    f"axis {axis + 2}: expected at least {extent} elements, which a window spans, "
                    f"found {padded} with padding",
                )
    known(context, node)


def conv_transpose(known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """With auto_pad SAME, extent times stride, or less where the windows do not reach that far."""
    x, w = _static(node, 0), _static(node, 1)
    same = graph.attribute(node, "auto_pad", "") in _SAME
    if not same or _ints(node, "output_shape") or x is None or w is None:
        known(context, node)
        return
    rank = len(x) - 2
    strides, dilations = _ints(node, "strides", rank, 1), _ints(node, "dilations", rank, 1)
    extra = _ints(node, "output_padding", rank)
    reached = [
        (n - 1) * s + (k - 1) * d + 1 + e for n, k, s, d, e in zip(x[2:], w[2:], strides, dilations, extra)
    ]
    spatial = [min(n * s, r) for n, s, r in zip(x[2:], strides, reached)]
    _set(context, node, [x[0], w[1] * graph.attribute(node, "group", 1), *spatial])


def max_unpool(known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """Without an output shape, the extent from which the windows were taken."""
    x, kernel = _static(node, 0), _ints(node, "kernel_shape")
    if graph.input_at(node, 2) is not None or x is None:
        known(context, node)
        return
    rank = len(kernel)
    strides, pads = _ints(node, "strides", rank, 1), _ints(node, "pads", 2 * rank)
    spatial = [
        (n - 1) * s + k - pads[i] - pads[rank + i] for i, (n, s, k) in enumerate(zip(x[2:], strides, kernel))
    ]
    _set(context, node, [*x[:2], *spatial])


def resize(known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """Extents by scales and aspect ratios, in float32: 10 * 0.7 is 7."""
    x = _static(node, 0)
    scales, sizes = _numbers(node, 2), _numbers(node, 3)
    policy = graph.attribute(node, "keep_aspect_ratio_policy", "stretch")
    if x is None or (scales is None if sizes is None else policy == "stretch"):
        known(context, node)
        return
    axes = [a % len(x) for a in _ints(node, "axes")] or list(range(len(x)))
    dims = list(x)
    if sizes is not None:
        each = [np.float32(size) / np.float32(x[a]) for a, size in zip(axes, sizes)]
        scale = min(each) if policy == "not_larger" else max(each)
        for axis in axes:
            dims[axis] = math.floor(scale * np.float32(x[axis]) + np.float32(0.5))
    elif scales is not None:
        for axis, scale in zip(axes, scales.astype(np.float32)):
            dims[axis] = int(scale * np.float32(x[axis]))
    _set(context, node, dims)


def _numbers(node: ir.Node, index: int) -> np.ndarray[Any, Any] | None:
    """Elements of a constant input; None where it is omitted, empty or changes between runs."""
    found = graph.constant(graph.input_at(node, index))
    return found if found is not None and found.size > 0 else None


def mel_weight_matrix(_known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """[bins of the spectrum, mel bins]."""
    mel, length = (graph.constant(graph.input_at(node, i)) for i in (0, 1))
    dims = [
        context.new_symbolic_dim() if length is None else int(length.item()) // 2 + 1,
        context.new_symbolic_dim() if mel is None else int(mel.item()),
    ]
    kind = ir.DataType(graph.attribute(node, "output_datatype", int(ir.DataType.FLOAT)))
    context.set_shape_and_dtype(node.outputs[0], ir.Shape(dims), kind)


# By operator of ai.onnx, and the version since which it is so.
WINDOW_RULES: tuple[tuple[str, int, Corrected], ...] = (
    ("AveragePool", 1, pool),
    ("LpPool", 2, pool),
    ("MaxPool", 1, pool),
    ("ConvTranspose", 1, conv_transpose),
    ("MaxUnpool", 9, max_unpool),
    ("MelWeightMatrix", 17, mel_weight_matrix),
    ("Resize", 11, resize),
)
