"""Shape rules that the inference library lacks or gets wrong."""

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext, registry

from app.engine.core import graph
from app.engine.model import runtime_operators
from app.engine.model.shape_inference import mxnet_rules
from app.engine.model.shape_inference.ml_rules import ML_RULES
from app.engine.model.shape_inference.window_rules import WINDOW_RULES, Corrected
from app.engine.types.storage import MXNET

LONGEST = 2**31 - 1  # turns of a loop whose stacks could ever have a place
LARGEST_RANK = 64
NEWEST = 1 << 30  # beyond every version of an operator set
Infer = Callable[[ShapeInferenceContext, ir.Node], None]
Array = np.ndarray[Any, Any]


GRADIENT = ("ai.onnx.preview.training", "Gradient")
BACKWARD = ("stowplan", "Backward")  # made of backward operators of symbols, see `app.engine.gradient.expand`


def gradients(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Gradients have the types of what they are asked of: operands, after two for each seed of Backward."""
    count = graph.attribute(node, "count", 0)
    if not isinstance(count, int) or count < 0:
        return
    for output, value in zip(node.outputs, node.inputs[2 * count :]):
        if value is not None and value.shape is not None and value.dtype is not None:
            context.set_shape_and_dtype(output, value.shape, value.dtype)


def dynamic_quantize_lstm(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Y: [sequence, directions, batch, hidden]; Y_h and Y_c: [directions, batch, hidden]."""
    x = graph.input_at(node, 0)
    hidden = graph.attribute(node, "hidden_size", 0)
    if x is None or x.shape is None or x.shape.rank() != 3 or not hidden:
        return
    directions = 2 if graph.attribute(node, "direction", "forward") == "bidirectional" else 1
    sequence, batch, _ = x.shape
    shapes = ([sequence, directions, batch, hidden], [directions, batch, hidden], [directions, batch, hidden])
    for output, shape in zip(node.outputs, shapes):
        if x.dtype is not None:
            context.set_shape_and_dtype(output, ir.Shape(shape), x.dtype)


def unknown_split(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Split by sizes that are computed: the dimension that is split is known when the graph runs.

    The library takes such parts to be equal.
    """
    x = graph.operand(node, 0)
    for output in node.outputs:
        if x.shape is not None:
            dims = list(x.shape)
            dims[graph.attribute(node, "axis", 0)] = context.new_symbolic_dim()
            context.set_shape(output, ir.Shape(dims))
        if x.dtype is not None:
            context.set_dtype(output, x.dtype)


def unknown_squeeze(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Squeeze along axes that are computed: only the rank may be known before.

    The library takes all axes of extent 1.
    """
    x, axes = graph.operand(node, 0), node.inputs[1]
    count = None if axes is None else graph.shape(axes)
    if x.shape is not None and count is not None and len(count) == 1:
        rank = len(x.shape) - count[0]
        dims = [context.new_symbolic_dim() for _ in range(rank)]
        context.set_shape(node.outputs[0], ir.Shape(dims))
    if x.dtype is not None:
        context.set_dtype(node.outputs[0], x.dtype)


def taken_ranges(
    shape: Sequence[int], starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> tuple[range, ...]:
    """The indices that a Slice takes of every axis.

    As in Python, but a start before the first element is the first element for negative steps too.
    """
    taken = [range(n) for n in shape]
    of = range(len(starts)) if axes is None else axes
    for k, axis in enumerate(of):
        start, end, step, size = (
            int(starts[k]),
            int(ends[k]),
            1 if steps is None else int(steps[k]),
            shape[axis],
        )
        if step < 0 and start < -size:
            start = 0
        taken[axis] = range(*slice(start, end, step).indices(size))
    return tuple(taken)


def _bounds(node: ir.Node, rank: int) -> tuple[Array, Array, Array | None, Array | None] | None:
    """Constant bounds, axes and steps of a Slice; None where there are others, or they do not fit."""
    given = [graph.input_at(node, i) for i in range(1, 5)]
    tensors = [None if v is None else ir.convenience.get_const_tensor(v) for v in given]
    starts, ends, axes, steps = (None if t is None else t.numpy() for t in tensors)
    if starts is None or ends is None or any((t is None) != (v is None) for t, v in zip(tensors, given)):
        return None
    lists = [a for a in (starts, ends, axes, steps) if a is not None]
    fits = all(a.shape == (len(starts),) for a in lists) if starts.ndim == 1 else False
    if not fits or (len(starts) > rank if axes is None else np.any((axes < -rank) | (axes >= rank))):
        return None
    return None if steps is not None and not np.all(steps) else (starts, ends, axes, steps)


def _bounded_slice(known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """Slice along an axis of unknown extent: what is taken may end early, so its extent is unknown too.

    The library takes all that the bounds span, and nothing where a negative step starts before the first
    element.
    """
    known(context, node)
    x, y = graph.operand(node, 0), node.outputs[0]
    if x.shape is None or y.shape is None or len(x.shape) != len(y.shape):
        return
    if (shape := graph.shape(x)) is not None and (bounds := _bounds(node, len(shape))) is not None:
        y.shape = ir.Shape(map(len, taken_ranges(shape, *bounds)))
        return
    dims = [
        context.new_symbolic_dim() if n and isinstance(n, int) and not isinstance(whole, int) else n
        for whole, n in zip(x.shape, y.shape)
    ]
    if dims != list(y.shape):
        y.shape = ir.Shape(dims)


def _ranked_constant(known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """ConstantOfShape of a shape that is computed: its length is the rank."""
    known(context, node)
    shape, y = graph.shape(graph.operand(node, 0)), node.outputs[0]
    if y.shape is None and shape is not None and len(shape) == 1 and shape[0] <= LARGEST_RANK:
        context.set_shape(y, ir.Shape([context.new_symbolic_dim() for _ in range(shape[0])]))


def trip_count(node: ir.Node) -> int | None:
    """Turns of a Loop that no condition ends: of a constant trip count; None where only a run can tell."""
    limit, start = (_constant(graph.input_at(node, i)) for i in range(2))
    body = node.attributes["body"].as_graph()
    if start is False:
        return 0
    if limit is None or limit > LONGEST or (start is None and graph.input_at(node, 1) is not None):
        return None
    going = graph.source(body.outputs[0])
    return max(int(limit), 0) if going is body.inputs[1] or _constant(going) is True else None


def _constant(value: ir.Value | None) -> int | bool | None:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    found: int | bool | None = None if tensor is None or tensor.size != 1 else tensor.numpy().item()
    return found


def loop(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Loop: the last carried values, then stacks of the other results of the body.

    The library asks for a condition, which may be left out, and takes every loop for one that runs up to
    its trip count.
    """
    body = node.attributes["body"].as_graph()
    carried = len(node.inputs) - 2
    for k, (output, result) in enumerate(zip(node.outputs, body.outputs[1:], strict=False)):
        if result.type is not None and not isinstance(result.type, ir.TensorType):
            context.set_type(output, result.type)
        elif k < carried or result.shape is None:
            context.set_shape_and_dtype(output, result.shape if k < carried else None, result.dtype)
        else:
            turns = trip_count(node)
            first = context.new_symbolic_dim() if turns is None else turns
            context.set_shape_and_dtype(output, ir.Shape([first, *result.shape]), result.dtype)


def distances(context: ShapeInferenceContext, node: ir.Node) -> None:
    """CDist: rows of the first operand by rows of the second; onnxruntime tells no shape."""
    a, b = graph.operand(node, 0), graph.operand(node, 1)
    shapes = a.shape, b.shape
    known = all(s is not None and len(s) == 2 for s in shapes)
    shape = ir.Shape([s[0] for s in shapes if s is not None]) if known else None
    if a.dtype is not None:
        context.set_shape_and_dtype(node.outputs[0], shape, a.dtype)


def like_first(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Outputs of the shape and type of the first operand."""
    x = graph.operand(node, 0)
    for output in node.outputs:
        if output.name and x.shape is not None and x.dtype is not None:
            context.set_shape_and_dtype(output, x.shape, x.dtype)


def half_of_last(context: ShapeInferenceContext, node: ir.Node) -> None:
    """BiasSplitGelu: half of the last axis."""
    x = graph.operand(node, 0)
    if x.dtype is not None and x.shape is not None:
        *lead, last = x.shape
        half = last // 2 if isinstance(last, int) else context.new_symbolic_dim()
        context.set_shape_and_dtype(node.outputs[0], ir.Shape([*lead, half]), x.dtype)


def nhwc_conv(context: ShapeInferenceContext, node: ir.Node) -> None:
    """NhwcConv: [batch, rows, columns, channels]; weights [channels, height, width, channels of a group]."""
    x, w = graph.operand(node, 0), graph.operand(node, 1)
    shape, weights = graph.shape(x), graph.shape(w)
    if shape is None or weights is None or x.dtype is None or len(shape) != 4 or len(weights) != 4:
        return
    sizes = _image_sizes(node, shape[1:3], weights[1:3])
    context.set_shape_and_dtype(node.outputs[0], ir.Shape([shape[0], *sizes, weights[0]]), x.dtype)


def nhwc_max_pool(context: ShapeInferenceContext, node: ir.Node) -> None:
    """NhwcMaxPool: [batch, rows, columns, channels]."""
    x, window = graph.operand(node, 0), graph.attribute(node, "kernel_shape", ())
    shape = graph.shape(x)
    if shape is None or x.dtype is None or len(shape) != 4 or len(window) != 2:
        return
    sizes = _image_sizes(node, shape[1:3], window)
    context.set_shape_and_dtype(node.outputs[0], ir.Shape([shape[0], *sizes, shape[3]]), x.dtype)


def _image_sizes(node: ir.Node, image: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Rows and columns that a window of this kernel finds in an image."""
    strides, dilations = (graph.attribute(node, a, (1, 1)) for a in ("strides", "dilations"))
    pads = graph.attribute(node, "pads", (0, 0, 0, 0))
    form = str(graph.attribute(node, "auto_pad", "NOTSET"))
    sizes = []
    for i in range(2):
        window = dilations[i] * (kernel[i] - 1) + 1
        around = {"NOTSET": pads[i] + pads[2 + i], "VALID": 0}.get(form, window - 1)
        steps = image[i] + around - window
        size = steps // strides[i] + 1
        if graph.attribute(node, "ceil_mode", 0) and steps % strides[i] and form == "NOTSET":
            size += size * strides[i] < image[i] + pads[i]  # a window that begins in the image
        sizes.append(size)
    return sizes


def _with_statistics(known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """BatchNormalization below opset 14: in training, four more outputs, one element per channel."""
    known(context, node)
    mean = graph.input_at(node, 3)
    for output in node.outputs[1:]:
        if mean is not None and mean.shape is not None and mean.dtype is not None:
            context.set_shape_and_dtype(output, mean.shape, mean.dtype)


def _guarded(unknown: Infer, known: Infer, context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library's rule holds only if the second input is a constant; `unknown` holds else."""
    operand = graph.input_at(node, 1)
    computed = operand is not None and ir.convenience.get_const_tensor(operand) is None
    (unknown if computed else known)(context, node)


# By domain and operator, for all versions.
SHAPE_RULES: tuple[tuple[str, str, Infer], ...] = (
    ("com.microsoft", "BiasAdd", like_first),
    ("com.microsoft", "BiasSplitGelu", half_of_last),
    ("com.microsoft", "CDist", distances),
    ("com.microsoft", "DynamicQuantizeLSTM", dynamic_quantize_lstm),
    ("com.microsoft", "GroupQueryAttention", runtime_operators.group_query_attention),
    ("com.microsoft", "GroupNorm", like_first),
    ("com.microsoft", "NhwcConv", nhwc_conv),
    ("com.microsoft", "NhwcMaxPool", nhwc_max_pool),
    ("com.microsoft", "QGemm", runtime_operators.infer),  # the library's tells the type of the scale
    ("com.microsoft", "SkipGroupNorm", like_first),
    ("", "Loop", loop),
    (*GRADIENT, gradients),
    (*BACKWARD, gradients),
    *(("ai.onnx.ml", op, infer) for op, infer in ML_RULES),
    *((MXNET, op, mxnet_rules.infer) for op in mxnet_rules.RULES),
)

# By operator of ai.onnx, and the half-open range of versions: rules that are given the library's own.
CORRECTED: tuple[tuple[str, int, int, Corrected], ...] = (
    ("BatchNormalization", 1, 14, _with_statistics),
    ("ConstantOfShape", 9, NEWEST, _ranked_constant),
    ("Slice", 10, NEWEST, _bounded_slice),
    ("Split", 13, NEWEST, partial(_guarded, unknown_split)),
    ("Squeeze", 13, NEWEST, partial(_guarded, unknown_squeeze)),
    *((op, since, NEWEST, correct) for op, since, correct in WINDOW_RULES),
)


@cache
def complete() -> None:
    """Give the inference library the rules it lacks, once; its own rules stay where ours are silent."""
    registry.collect()
    # What it would warn of is an error of ours, or a note.
    logging.getLogger("onnx_shape_inference").setLevel(logging.CRITICAL)
    for domain, op, infer in SHAPE_RULES:
        for version in _versions(domain, op):
            registry.register(domain, op, version)(infer)
    for op, since, until, correct in CORRECTED:
        for version in _versions("", op, since):
            if version < until:
                known = registry.get("", op, version)
                registry.register("", op, version)(partial(correct, known))
    for domain, op in runtime_operators.operators():
        if not registry.has(domain, op):
            registry.register(domain, op, 1)(runtime_operators.infer)


def _versions(domain: str, op: str, since: int = 1) -> list[int]:
    """Versions at which a rule must be registered to hold from its own on.

    Of two rules for one version the library takes the one that was registered last.
    """
    boundaries = registry.version_boundaries(domain, op) or ()
    return sorted({since, *(v for v in boundaries if v >= since)})


def has_rule(domain: str, op: str) -> bool:
    """True if a rule or a schema tells the type of the operator's outputs."""
    complete()
    return bool(registry.has(domain, op))
