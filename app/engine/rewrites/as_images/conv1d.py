"""Convolutions along one axis as those of images of height one, whose layouts and kernels they then share.

A sequence [N, C, L] becomes an image [N, C, 1, L], which costs nothing: the bytes are the same. What
follows such a convolution works on the image as well and drops the height behind it, so that chains of
convolutions stay images and chains of elementwise operators stay one kernel.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.registry import Operator
from app.engine.core.rewriter import Replacement, RewriteRule, constant, reshape, typed
from app.engine.operators.tables.elementwise import OPERATORS
from app.engine.rewrites import transpose_sinking

SWAPPED = (0, 2, 1)  # the permutation of a sequence to channels last, and the one from there
TO_LAST, FROM_LAST = (0, 2, 3, 1), (0, 3, 1, 2)  # those of an image

FIRST, LAST = -2, -3  # where the height goes with channels first, and last, counted from the end


class Given(NamedTuple):
    """Parameters of a node on images: attributes, arrays in place of inputs, height of its output."""

    attributes: Mapping[str, ir.Attr] = {}
    constants: Mapping[int, np.ndarray] = {}
    height: int = FIRST


Rule: TypeAlias = Callable[[ir.Node], Given | None]


def _as_it_is(_node: ir.Node) -> Given | None:
    return Given()


def _window(node: ir.Node) -> Given | None:
    """Attributes for each axis, with those of the height in front."""
    if graph.attribute(node, "auto_pad", "NOTSET") not in ("", "NOTSET") or "output_shape" in node.attributes:
        return None
    first, last = graph.attribute(node, "pads", (0, 0))
    wide = {"pads": [0, first, 0, last]}
    for name, of_height in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
        given = graph.attribute(node, name, None)
        if given is not None:
            wide[name] = [of_height, *given]
    return Given({name: ir.AttrInt64s(name, values) for name, values in wide.items()})


def _concat(node: ir.Node) -> Given | None:
    axis = graph.attribute(node, "axis", 0) % 3
    return Given({"axis": ir.AttrInt64("axis", axis + (axis == 2))})


def _pad(node: ir.Node) -> Given | None:
    pads = graph.constant(graph.input_at(node, 1))
    if pads is None or graph.input_at(node, 3) is not None:
        return None
    return Given(constants={1: np.insert(pads.reshape(2, 3), 2, 0, axis=1).reshape(-1)})


def _transpose(node: ir.Node) -> Given | None:
    swaps = transpose_sinking.permutation(node) == SWAPPED
    return Given({"perm": ir.AttrInt64s("perm", TO_LAST)}, height=LAST) if swaps else None


CONVOLUTIONS: Mapping[str, Rule] = dict.fromkeys(("Conv", "ConvTranspose"), _window)
VIEWS = "Reshape", "Squeeze", "Unsqueeze", "Flatten"


def readers(operators: Iterable[Operator]) -> Mapping[str, Rule]:
    """Rules of the operators that read an image as they read a sequence."""
    return {
        **dict.fromkeys((row.op for row in operators if row.elementwise and not row.per_axis), _as_it_is),
        **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _as_it_is),
        **dict.fromkeys(("MaxPool", "AveragePool"), _window),
        "Concat": _concat,
        "Pad": _pad,
        "Transpose": _transpose,
    }


READERS = readers(OPERATORS)


def convolution_of_images(node: ir.Node) -> Replacement | None:
    """A convolution of a sequence by constant weights is one of an image, without its height."""
    weights = graph.input_at(node, 1)
    return _on_images(node, CONVOLUTIONS) if weights is not None and graph.is_constant(weights) else None


def reader_of_images(node: ir.Node) -> Replacement | None:
    """f(image without its height) = g(image) without its height."""
    reads = any(v is not None and _image(v) is not None for v in node.inputs)
    return _on_images(node, READERS) if reads else None


def _on_images(node: ir.Node, rules: Mapping[str, Rule]) -> Replacement | None:
    given = rules[node.op_type](node) if len(node.outputs) == 1 and _are_sequences(node) else None
    if given is None:
        return None
    nodes: list[ir.Node] = []
    inputs: list[ir.Value | None] = []
    for index, value in enumerate(node.inputs):
        name, array = f"{node.name}.{index}", given.constants.get(index)
        inputs.append(_lifted(value, name, nodes) if array is None else constant(array, name))
    (output,) = node.outputs
    shape = graph.static_shape(output)
    attributes = {**node.attributes, **given.attributes}
    new = ir.Node("", node.op_type, inputs, list(attributes.values()), name=node.name)
    typed(new, output, _with_height(shape, given.height), f"{output.name}.image")
    view = _view(new.outputs[0], shape, output.name or "")
    return Replacement(view.outputs, [*nodes, new, view])


def merge_views(node: ir.Node) -> Replacement | None:
    """A view of a sequence that is an image without its height is one of that image, or the image itself."""
    source, (output,) = node.inputs[0], node.outputs
    image, shape = None if source is None else _image(source), graph.shape(output)
    if image is None or shape is None:
        return None
    if shape == graph.shape(image):
        return Replacement([image])
    view = _view(image, shape, output.name or "")
    return Replacement(view.outputs, [view])


def _are_sequences(node: ir.Node) -> bool:
    """True if the output has three axes and no input more, all of them static and none empty."""
    output, *shapes = (graph.shape(v) for v in (*node.outputs, *node.inputs) if v is not None)
    fits = all(shape is not None and len(shape) <= 3 and 0 not in shape for shape in (output, *shapes))
    return fits and output is not None and len(output) == 3


def _image(value: ir.Value) -> ir.Value | None:
    """The image of which a value is a view without its height; None for what is no such view."""
    producer = value.producer()
    if producer is None or producer.op_type not in VIEWS or producer.inputs[0] is None:
        return None
    image = producer.inputs[0]
    before, after = graph.shape(image), graph.shape(value)
    is_view = before is not None and after is not None and len(after) == 3
    return image if is_view and before == _with_height(after, FIRST) else None  # type: ignore[arg-type]


def _lifted(value: ir.Value | None, name: str, nodes: list[ir.Node]) -> ir.Value | None:
    """An operand of images; what it takes is added to `nodes`. One of one axis broadcasts as before."""
    if value is None or len(graph.static_shape(value)) < 2:
        return value
    shape, array, image = graph.static_shape(value), graph.constant(value), _image(value)
    wide = _with_height(shape, FIRST)
    if image is not None:
        return image
    if array is not None:
        return constant(array.reshape(wide), name, value.dtype)
    producer = value.producer()
    swaps = producer is not None and transpose_sinking.permutation(producer) == SWAPPED
    source = producer.inputs[0] if producer is not None and swaps else None
    if source is None:
        nodes.append(_view(value, wide, name))
        return nodes[-1].outputs[0]
    last = _view(source, _with_height(graph.static_shape(source), LAST), f"{name}.last")
    nodes += [last, transpose_sinking.transpose(last.outputs[0], FROM_LAST, name)]
    return nodes[-1].outputs[0]


def _with_height(shape: tuple[int, ...], before: int) -> tuple[int, ...]:
    """A shape with an axis of one more, so many from its end."""
    at = len(shape) + 1 + before
    return (*shape[:at], 1, *shape[at:])


def _view(value: ir.Value, shape: tuple[int, ...], name: str) -> ir.Node:
    """A Reshape that leaves the node in whose place it comes its name."""
    node = reshape(value, shape, name)
    node.name = f"{name}.view"
    return node


def rows(backend: str) -> tuple[RewriteRule, ...]:
    """The rules of this module, for targets that have the backend."""
    return (
        RewriteRule(merge_views, VIEWS, nested=False, backends=(backend,)),
        RewriteRule(convolution_of_images, tuple(CONVOLUTIONS), nested=False, backends=(backend,)),
        RewriteRule(reader_of_images, tuple(READERS), nested=False, backends=(backend,)),
    )
