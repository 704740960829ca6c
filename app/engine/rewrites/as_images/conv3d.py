"""Convolutions of one volume as those of images, whose layouts and kernels they then share.

The slices of a volume [1, C, D, H, W] along its depth become a batch of images [D, C, H, W]. A kernel that
is KD deep reads KD slices for each of its own: they stand side by side as KD * C channels, which copies KD
times the bytes of the volume, and saves arithmetic where images have kernels that multiply less (Winograd's).
What follows works on the images as well and makes a volume of them behind it, so that chains stay images.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.registry import Operator
from app.engine.core.rewriter import Replacement, RewriteRule, constant, reshape, typed
from app.engine.operators.tables.elementwise import OPERATORS
from app.engine.rewrites import transpose_sinking

SWAPPED = (1, 0, 2, 3)  # channels and slices of a volume without its batch of one
Shape: TypeAlias = tuple[int, ...]
Attributes: TypeAlias = Mapping[str, ir.Attr]
Rule: TypeAlias = Callable[[ir.Node], Attributes | None]


def _as_it_is(node: ir.Node) -> Attributes | None:
    return node.attributes


def _concat(node: ir.Node) -> Attributes | None:
    """Attributes of the same along the channels of images."""
    return node.attributes if graph.attribute(node, "axis", 0) % 5 == 1 else None


def _pool(node: ir.Node) -> Attributes | None:
    """Attributes of a pooling whose windows lie within a slice."""
    if graph.attribute(node, "auto_pad", "NOTSET") not in ("", "NOTSET"):
        return None
    axes = {name: graph.attribute(node, name, ()) for name in ("kernel_shape", "strides", "dilations")}
    pads = graph.attribute(node, "pads", (0,) * 6)
    if any(values and values[0] != 1 for values in axes.values()) or pads[0] or pads[3]:
        return None
    within: dict[str, Sequence[int]] = {name: values[1:] for name, values in axes.items() if values}
    within["pads"] = (*pads[1:3], *pads[4:])
    return {**node.attributes, **{name: ir.AttrInt64s(name, list(v)) for name, v in within.items()}}


def readers(operators: Iterable[Operator]) -> Mapping[str, Rule]:
    """Rules of the operators that read images as they read a volume."""
    return {
        **dict.fromkeys((row.op for row in operators if row.elementwise and not row.per_axis), _as_it_is),
        **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
        "Concat": _concat,
    }


READERS = readers(OPERATORS)


def convolution_of_slices(node: ir.Node) -> Replacement | None:
    """A convolution of one volume by constant weights, of one group, is one of its slices."""
    x, kernel, bias = (graph.input_at(node, i) for i in range(3))
    weights, y = graph.constant(kernel), node.outputs[0]
    if weights is None or weights.ndim != 5 or x is None or not (_is_volume(x) and _is_volume(y)):
        return None
    if (
        graph.attribute(node, "auto_pad", "NOTSET") not in ("", "NOTSET")
        or graph.attribute(node, "group", 1) != 1
    ):
        return None
    nodes: list[ir.Node] = []
    source = _windows(node, _images(x, f"{node.name}.0", nodes), weights.shape[2], nodes)
    outputs, channels, deep, *size = weights.shape
    flat = weights.transpose(0, 2, 1, 3, 4).reshape(outputs, deep * channels, *size)
    pads = graph.attribute(node, "pads", (0,) * 6)
    given = {
        "kernel_shape": size,
        "pads": [*pads[1:3], *pads[4:]],
        "strides": graph.attribute(node, "strides", (1,) * 3)[1:],
        "dilations": graph.attribute(node, "dilations", (1,) * 3)[1:],
    }
    images = constant(flat, f"{node.name}.weights", kernel.dtype if kernel is not None else None)
    operands = [source, images, *([bias] if bias is not None else [])]
    attributes = [ir.AttrInt64s(name, list(values)) for name, values in given.items()]
    nodes.append(ir.Node("", "Conv", operands, attributes, name=node.name))
    return _volume(nodes, y)


def reader_of_slices(node: ir.Node) -> Replacement | None:
    """f(volume of images) = volume of g(images)."""
    if len(node.outputs) != 1 or not _is_volume(node.outputs[0]):
        return None
    if not any(v is not None and _image(v) is not None for v in node.inputs):
        return None
    attributes = READERS[node.op_type](node)
    if attributes is None or not all(v is None or _can_be_images(v) for v in node.inputs):
        return None
    nodes: list[ir.Node] = []
    inputs = [None if v is None else _images(v, f"{node.name}.{i}", nodes) for i, v in enumerate(node.inputs)]
    nodes.append(ir.Node("", node.op_type, inputs, list(attributes.values()), name=node.name))
    return _volume(nodes, node.outputs[0])


def _is_volume(value: ir.Value) -> bool:
    """True if the shape is [1, C, D, H, W], static and not empty."""
    shape = graph.shape(value)
    return shape is not None and len(shape) == 5 and shape[0] == 1 and 0 not in shape


def _can_be_images(value: ir.Value) -> bool:
    """True if a value has slices, or one element for all, or is a constant that broadcasts as one volume."""
    shape = graph.shape(value)
    if shape is None or 0 in shape:
        return False
    return _is_volume(value) or (graph.is_constant(value) and len(shape) < 5)


def _image(value: ir.Value) -> ir.Value | None:
    """The images [D, C, H, W] of which a value is the volume; None for what is no such volume."""
    view = value.producer()
    if view is None or view.op_type != "Reshape" or not _is_volume(value):
        return None
    swapped = view.inputs[0]
    swap = None if swapped is None else swapped.producer()
    if swapped is None or swap is None or transpose_sinking.permutation(swap) != SWAPPED:
        return None
    return swap.inputs[0] if graph.shape(swapped) == graph.static_shape(value)[1:] else None


def _images(value: ir.Value, name: str, nodes: list[ir.Node]) -> ir.Value:
    """The slices of an operand; what makes them is added to `nodes`."""
    known, array = _image(value), graph.constant(value)
    if known is not None:
        return known
    shape = graph.static_shape(value)
    whole = (*(1,) * (5 - len(shape)), *shape)
    if array is not None:
        return constant(np.ascontiguousarray(array.reshape(whole[1:]).transpose(SWAPPED)), name, value.dtype)
    view = reshape(value, whole[1:], f"{name}.volume")
    swap = transpose_sinking.transpose(view.outputs[0], SWAPPED, name)
    nodes += [view, swap]
    return swap.outputs[0]


def _windows(node: ir.Node, images: ir.Value, deep: int, nodes: list[ir.Node]) -> ir.Value:
    """[slices of the output, deep * C, H, W]: what each of them reads."""
    pads = graph.attribute(node, "pads", (0,) * 6)
    step, apart = (graph.attribute(node, name, (1,) * 3)[0] for name in ("strides", "dilations"))
    name, shape = f"{node.name}.slices", graph.static_shape(images)
    count = graph.static_shape(node.outputs[0])[2]
    if pads[0] or pads[3]:
        ends = constant(np.array([pads[0], 0, 0, 0, pads[3], 0, 0, 0], np.int64), f"{name}.pads")
        wide = (shape[0] + pads[0] + pads[3], *shape[1:])
        nodes.append(typed(ir.Node("", "Pad", [images, ends]), images, wide, f"{name}.padded"))
        images = nodes[-1].outputs[0]
    if deep == step == 1:
        return images
    parts = []
    for k in range(deep):
        first = k * apart
        bounds = (first, first + (count - 1) * step + 1, 0, step)
        given = [constant(np.array([v], np.int64), f"{name}.{k}.{i}") for i, v in enumerate(bounds)]
        part = typed(ir.Node("", "Slice", [images, *given]), images, (count, *shape[1:]), f"{name}.{k}")
        nodes.append(part)
        parts.append(part.outputs[0])
    if deep == 1:
        return parts[0]
    along = [ir.AttrInt64("axis", 1)]
    joined = ir.Node("", "Concat", parts, along)
    nodes.append(typed(joined, images, (count, deep * shape[1], *shape[2:]), name))
    return joined.outputs[0]


def _volume(nodes: list[ir.Node], output: ir.Value) -> Replacement:
    """The replacement by images that the last node computes."""
    _, channels, count, *size = graph.static_shape(output)
    typed(nodes[-1], output, (count, channels, *size), f"{output.name}.slices")
    swap = transpose_sinking.transpose(nodes[-1].outputs[0], SWAPPED, f"{output.name}.swapped")
    view = reshape(swap.outputs[0], graph.static_shape(output), output.name or "")
    view.name = f"{output.name}.view"
    return Replacement(view.outputs, [*nodes, swap, view])


def rows(backend: str) -> tuple[RewriteRule, ...]:
    """The rows of this module, for targets that have the backend."""
    return (
        RewriteRule(convolution_of_slices, ("Conv",), nested=False, backends=(backend,), by_extents=True),
        RewriteRule(reader_of_slices, tuple(READERS), nested=False, backends=(backend,), by_extents=True),
    )
