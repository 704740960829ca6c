"""Rules that compute what is known before the graph runs, and drop what does nothing.

Constants are computed by the reference backend, whose operators are corrected; what it cannot
compute stays in the graph. The graph may grow by a stated number of bytes at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import reference
from app.engine.core import graph
from app.engine.core.rewriter import (
    ANY,
    Replacement,
    RewriteRule,
    constant,
    constant_of,
    takes_over,
    value_like,
)
from app.engine.model.shape_inference import tensor_rules
from app.engine.operators.interpolation import COORDINATES
from app.engine.operators.operands import fixed_inputs
from app.engine.operators.resize_geometry import resized_axes, transformation
from app.engine.types.errors import KernelError

NONDETERMINISTIC = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Dropout",
    }
)
# A dequantized weight takes four times the bytes, and its quantization parameters would be lost.
KEPT = frozenset({"DequantizeLinear", "Constant", "Identity"})
# Operators whose outputs depend on the data in size, but not beyond the size of the data.
BOUNDED = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
EVALUATED = 4096  # nodes that are computed to count the turns of a loop: about 0.2 s
REPEATED = 2**24  # byte: what repeats an element more often is computed, which is no slower than to read it
COUNTED = 64  # elements of a value that a condition is computed from
_LITERALS = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Budget:
    """Bytes by which constants may still make the graph grow."""

    nbytes: int


def rows(budget: Budget) -> tuple[RewriteRule, ...]:
    """All rules of this module."""

    def evaluate(node: ir.Node) -> Replacement | None:
        return _evaluate(node, budget)

    return (
        RewriteRule(lift_constant, ("Constant",)),
        RewriteRule(fold_shape, ("Shape",)),
        RewriteRule(fold_size, ("Size",)),
        RewriteRule(inline_branch, ("If",)),
        RewriteRule(count_turns, ("Loop",)),
        RewriteRule(drop_identity, ("Identity",)),
        RewriteRule(drop_dropout, ("Dropout",)),
        RewriteRule(drop_cast, ("Cast", "CastLike")),
        RewriteRule(cast_like, ("CastLike",)),
        RewriteRule(drop_reshape, ("Reshape", "Expand", "Flatten", "Squeeze", "Unsqueeze")),
        RewriteRule(drop_transpose, ("Transpose",)),
        RewriteRule(drop_slice, ("Slice",)),
        RewriteRule(drop_pad, ("Pad",)),
        RewriteRule(drop_tile, ("Tile",)),
        RewriteRule(drop_resize, ("Resize",)),
        RewriteRule(drop_single, ("Concat", "Sum", "Max", "Min", "Mean")),
        RewriteRule(drop_split, ("Split",)),
        RewriteRule(drop_empty_operands, ("Concat",)),
        RewriteRule(evaluate, (ANY,)),
    )


def same(node: ir.Node, index: int = 0) -> Replacement | None:
    """The first output is this input: nothing is computed.

    None where the input cannot take the output's place or the other outputs are read.
    """
    source = graph.input_at(node, index)
    first, *rest = node.outputs
    if source is None or any(v.uses() or v.is_graph_output() for v in rest):
        return None
    if node.op_type == "Identity" and not takes_over(source, first):
        return None
    return Replacement([source, *(None for _ in rest)])


def _unchanged(node: ir.Node) -> bool:
    """True if input and output have the same static shape."""
    source = graph.input_at(node, 0)
    return (
        source is not None
        and graph.shape(source) is not None
        and graph.shape(source) == graph.shape(node.outputs[0])
    )


def lift_constant(node: ir.Node) -> Replacement | None:
    """Constant() is an initializer."""
    (name, attribute), *others = node.attributes.items()
    label = node.outputs[0].name or "constant"
    if others:
        return None
    if name == "value":
        return Replacement([constant_of(attribute.value, label)])
    if name in _LITERALS:
        return Replacement([constant(np.array(attribute.value, _LITERALS[name]), label)])
    if name in ("value_string", "value_strings"):
        return Replacement([constant_of(_strings(np.array(attribute.value, object)), label)])
    return None


def _strings(array: Array) -> ir.StringTensor:
    """Strings as a file holds them, in UTF-8."""
    encoded = np.empty(array.shape, object)
    encoded.reshape(-1)[:] = [s.encode() if isinstance(s, str) else s for s in array.reshape(-1)]
    return ir.StringTensor(encoded, shape=ir.Shape(array.shape))


def fold_shape(node: ir.Node) -> Replacement | None:
    """Shape(x)[start:end], of a static x."""
    source = node.inputs[0]
    shape = None if source is None else graph.shape(source)
    if shape is None:
        return None
    start, end = graph.attribute(node, "start", 0), graph.attribute(node, "end", len(shape))
    # As slices of a list do, the operator clamps both ends to the rank.
    array = np.array(shape[start:end], np.int64)
    return Replacement([constant(array, node.outputs[0].name or "shape")])


def fold_size(node: ir.Node) -> Replacement | None:
    """Size(x), of a static x."""
    source = node.inputs[0]
    if source is None or graph.shape(source) is None:
        return None
    return Replacement([constant(np.array(graph.elements(source), np.int64), node.outputs[0].name or "size")])


def inline_branch(node: ir.Node) -> Replacement | None:
    """If(c) { a } else { b } = a, for a true constant c; its nodes move into the graph around it."""
    condition = graph.constant(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    branch: ir.Graph = node.attributes["then_branch" if condition.item() else "else_branch"].value
    outputs, nodes = tuple(branch.outputs), tuple(branch)
    branch.outputs.clear()
    branch.remove(nodes)
    for member in nodes:
        member.name = f"{node.name}.{member.name}"
    return Replacement(outputs, nodes)


def count_turns(node: ir.Node) -> Replacement | None:
    """A Loop whose condition is computed from constants and counters alone has a constant trip count."""
    limit, start = (graph.input_at(node, i) for i in range(2))
    if tensor_rules.trip_count(node) is not None or not all(
        v is None or graph.is_constant(v) for v in (limit, start)
    ):
        return None
    turns = _turns(node, graph.constant(limit), graph.constant(start))
    if turns is None:
        return None
    body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
    more = ir.Node(
        "", "Identity", [body.inputs[1]], outputs=[value_like(body.outputs[0], f"{node.name}.more")]
    )
    body.append(more)
    body.outputs[0] = more.outputs[0]
    count = constant(np.array(turns, np.int64), f"{node.name}.turns")
    always = constant(np.array(True), f"{node.name}.always")
    attributes = [a for a in node.attributes.values() if a.name != "body"]
    new = ir.Node(
        "",
        "Loop",
        (count, always, *node.inputs[2:]),
        (*attributes, ir.AttrGraph("body", body)),
        num_outputs=len(node.outputs),
    )
    return Replacement(new.outputs, [new])


def _turns(node: ir.Node, limit: Array | None, start: Array | None) -> int | None:
    """Turns until the condition ends a Loop, found by computing it; None where it depends on more."""
    body = node.attributes["body"].as_graph()
    first = 2  # of the carried values
    needed: dict[ir.Value, None] = {}
    waiting = [body.outputs[0]]
    while waiting:
        value = waiting.pop()
        if value in needed or graph.is_constant(value):
            continue
        needed[value] = None
        producer = value.producer()
        if producer is not None and producer.graph is body:
            if graph.bodies(producer) or producer.op_type in NONDETERMINISTIC:
                return None
            waiting += [v for v in producer.inputs if v is not None]
        elif value in body.inputs:
            k = body.inputs.index(value) - first
            initial = node.inputs[first + k] if k >= 0 else None
            if k >= 0 and (initial is None or not graph.is_constant(initial)):
                return None
            waiting += [body.outputs[1 + k]] if k >= 0 else []
        else:
            return None
    if any(graph.is_dynamic(v) or graph.elements(v) > COUNTED for v in needed):
        return None
    counters = [k for k, v in enumerate(body.inputs[first:]) if v in needed]
    state = {k: graph.constant(node.inputs[first + k]) for k in counters}
    members = [member for member in body if any(v in needed for v in member.outputs)]
    try:
        works = [(member, reference.prepare(member)) for member in members]
        turn, going = 0, start is None or bool(start.item())
        while going and (limit is None or turn < int(limit.item())):
            if turn * len(members) > EVALUATED:
                return None
            found: dict[ir.Value, object] = {
                v: state[k] for k, v in enumerate(body.inputs[first:]) if k in state
            }
            for value, now in zip(body.inputs[:first], (turn, True), strict=True):
                if value in needed:
                    found[value] = np.full(graph.static_shape(value), now, graph.dtype(value))
            for member, work in works:
                results = work([found[v] if v in found else graph.constant(v) for v in member.inputs])
                found.update(zip((v for v in member.outputs if v.name), results, strict=True))
            state = {k: _read(body.outputs[1 + k], found) for k in counters}
            going = bool(_read(body.outputs[0], found).item())
            turn += 1
    except KernelError:
        return None
    return turn


def _read(value: ir.Value, found: Mapping[ir.Value, object]) -> Array:
    array = found[value] if value in found else graph.constant(value)
    assert isinstance(array, np.ndarray)
    return array


def drop_identity(node: ir.Node) -> Replacement | None:
    """Identity(x) = x, unless it gives an input or a constant the name of an output."""
    return same(node)


def drop_dropout(node: ir.Node) -> Replacement | None:
    """Dropout(x) = x in inference; the mask is then true everywhere."""
    training = graph.input_at(node, 2)
    active = False if training is None else graph.constant(training)
    ratio = graph.constant(graph.input_at(node, 1))
    if (active is None or np.any(active)) and not (ratio is not None and not np.any(ratio)):
        return None
    if len(node.outputs) == 1 or not (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return same(node)
    mask = node.outputs[1]
    shape = graph.shape(mask)
    if shape is None or mask.dtype != ir.DataType.BOOL:
        return None
    return Replacement([node.inputs[0], constant(np.ones(shape, np.bool_), mask.name or "mask")])


def drop_cast(node: ir.Node) -> Replacement | None:
    """Cast(x) = x where x has that type already."""
    source = node.inputs[0]
    if source is None or source.dtype is None or source.dtype != node.outputs[0].dtype:
        return None
    return same(node)


def cast_like(node: ir.Node) -> Replacement | None:
    """CastLike(x, y) = Cast(x), to the known type of y."""
    like = node.inputs[1]
    if like is None or like.dtype is None:
        return None
    attributes = [ir.AttrInt64("to", int(like.dtype)), *(a for a in node.attributes.values())]
    cast = ir.Node("", "Cast", [node.inputs[0]], attributes)
    return Replacement(cast.outputs, [cast])


def drop_reshape(node: ir.Node) -> Replacement | None:
    """A reshape to the shape that is there already."""
    return same(node) if _unchanged(node) else None


def drop_transpose(node: ir.Node) -> Replacement | None:
    """Transpose(x, (0, 1, ...)) = x."""
    perm = graph.attribute(node, "perm", None)
    return same(node) if perm is not None and list(perm) == sorted(perm) else None


def drop_slice(node: ir.Node) -> Replacement | None:
    """A slice of everything, forwards."""
    steps = graph.input_at(node, 4)
    if not _unchanged(node) or len(node.inputs) < 2:
        return None
    forwards = steps is None or ((array := graph.constant(steps)) is not None and bool(np.all(array == 1)))
    return same(node) if forwards else None


def drop_pad(node: ir.Node) -> Replacement | None:
    """A pad of nothing."""
    pads = graph.constant(graph.input_at(node, 1))
    return same(node) if pads is not None and not np.any(pads) else None


def drop_tile(node: ir.Node) -> Replacement | None:
    """Tile(x, (1, 1, ...)) = x."""
    repeats = graph.constant(graph.input_at(node, 1))
    return same(node) if repeats is not None and bool(np.all(repeats == 1)) else None


def drop_resize(node: ir.Node) -> Replacement | None:
    """A resize to the size that the image has; frameworks export one where a size is computed."""
    if not _unchanged(node) or fixed_inputs(node, (1, 2, 3)) or 0 in graph.static_shape(node.outputs[0]):
        return None
    if transformation(node) not in COORDINATES or transformation(node) == "tf_crop_and_resize":
        return None
    return same(node) if all(axis.is_same for axis in resized_axes(node)) else None


def drop_single(node: ir.Node) -> Replacement | None:
    """A sum, extremum, mean or concatenation of one operand."""
    return same(node) if len(node.inputs) == 1 else None


def drop_split(node: ir.Node) -> Replacement | None:
    """A split into one part."""
    return same(node) if len(node.outputs) == 1 and _unchanged(node) else None


def drop_empty_operands(node: ir.Node) -> Replacement | None:
    """Concat(a, empty, b) = Concat(a, b)."""
    shapes = [None if v is None else graph.shape(v) for v in node.inputs]
    kept = [v for v, s in zip(node.inputs, shapes) if s is None or 0 not in s]
    if not kept or len(kept) == len(node.inputs) or graph.shape(node.outputs[0]) is None:
        return None
    if 0 in graph.static_shape(node.outputs[0]):
        return None
    concat = ir.Node("", "Concat", kept, list(node.attributes.values()))
    return Replacement(concat.outputs, [concat])


def _evaluate(node: ir.Node, budget: Budget) -> Replacement | None:
    """f(constants) is a constant, if it does not make the graph grow beyond the budget."""
    if node.op_type in KEPT or node.op_type in NONDETERMINISTIC or graph.bodies(node) or not node.inputs:
        return None
    if not all(v is None or graph.is_constant(v) for v in node.inputs):
        return None
    growth = _growth(node)
    if growth is None or growth > budget.nbytes:
        return None
    if node.op_type in ("Expand", "ConstantOfShape") and growth > REPEATED:
        return None
    try:
        results = reference.prepare(node)([graph.constant(v) for v in node.inputs])
    except KernelError:
        return None  # it will be reported when the node runs, with its operands
    replaced = _constants(node, results)
    if replaced is not None:
        budget.nbytes -= max(growth, 0)
    return replaced


def _growth(node: ir.Node) -> int | None:
    """Bytes that the outputs take and the inputs, where nothing else reads them, give back."""
    freed = sum(
        graph.nbytes(v)
        for v in dict.fromkeys(node.inputs)
        if v is not None and graph.dtype(v) is not None and len(v.uses()) == 1
    )
    read = [v for v in node.outputs if v.name]
    if any(graph.is_dynamic(v) for v in read):
        return 0 if node.op_type in BOUNDED or all(_is_string(v) for v in read) else None
    return sum(graph.nbytes(v) for v in read) - freed


def _is_string(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.STRING and graph.shape(value) is not None


def _constants(node: ir.Node, results: Sequence[object]) -> Replacement | None:
    """The results as constants; None where one is not a tensor."""
    found = iter(results)
    outputs: list[ir.Value | None] = []
    for value in node.outputs:
        result = next(found) if value.name else None
        if result is not None and not isinstance(result, np.ndarray):
            return None
        if result is None:
            outputs.append(None)
        elif result.dtype == object:
            outputs.append(constant_of(_strings(result), value.name or "folded"))
        else:
            outputs.append(constant(np.asarray(result, order="C"), value.name or "folded", value.dtype))
    return Replacement(outputs)
