"""Rows of tensors of strings, which Python moves and looks up: names of categories that a model is given.

Strings are objects of the host, so each of these steps is a call from Python, as long as its elements take.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.labels import SECONDS, Run, host
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.forest import DOMAIN
from app.engine.operators.operands import data

Array: TypeAlias = np.ndarray[Any, Any]
Move: TypeAlias = Callable[..., Array]  # of the arrays of the inputs
LOOKUP = 1e-7  # s of one string that is looked up


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why a group is not one node on strings of known shapes."""
    node = group.anchor
    if len(group.nodes) > 1:
        return "it computes one node"
    if data(node).dtype != ir.DataType.STRING:
        return f"value {data(node).name!r} holds no strings"
    for value in (data(node), node.outputs[0]):
        if graph.shape(value) is None:
            return f"value {value.name!r} has no static shape"
    return None


def _concatenated(node: ir.Node) -> Move:
    axis = graph.attribute(node, "axis", 0)
    return lambda *arrays: np.concatenate(arrays, axis)


def _gathered(node: ir.Node) -> Move:
    axis = graph.attribute(node, "axis", 0)
    return lambda x, index: x.take(index, axis)


def _transposed(node: ir.Node) -> Move:
    perm = graph.attribute(node, "perm", None)
    return lambda x: x.transpose(perm)


def _reshaped(node: ir.Node) -> Move:
    shape = graph.static_shape(node.outputs[0])
    return lambda x, *_: x.reshape(shape)


_MOVES: Mapping[str, Callable[[ir.Node], Move]] = {
    "Concat": _concatenated,
    "Gather": _gathered,
    "Transpose": _transposed,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), _reshaped),
}


def moved(node: ir.Node) -> Run:
    """Strings elsewhere, see `app.engine.core.calls.HostCall`; raises IndexError for an index outside."""
    move = _MOVES[node.op_type](node)
    return lambda values: [move(*values)]


def _encoder_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = _rejection(group, context)
    if reason is None:
        names, numbers, *_ = _table(group.anchor)
        if not names or len(names) != len(numbers):
            return "its keys are no strings, or its values no numbers"
    return reason


def _table(node: ir.Node) -> tuple[Sequence[str], Sequence[Any], Any, np.dtype[Any]]:
    """Names and numbers of an encoder, that of other names, and the type of numbers."""
    names = graph.attribute(node, "cats_strings", ()) or graph.attribute(node, "classes_strings", ())
    numbers: Sequence[Any] = range(len(names))
    missing, kind = graph.attribute(node, "default_int64", -1), np.dtype(np.int64)
    if node.op_type == "CategoryMapper":
        numbers = graph.attribute(node, "cats_int64s", ())
    elif keys := graph.attribute(node, "keys_strings", ()):
        names = keys
        numbers = graph.attribute(node, "values_int64s", ())
        if floats := graph.attribute(node, "values_floats", ()):
            numbers, kind = floats, np.dtype(np.float32)
            missing = graph.attribute(node, "default_float", -0.0)
    return names, numbers, missing, kind


def encoded(node: ir.Node) -> Run:
    """Numbers of names, see `app.engine.core.calls.HostCall`."""
    names, numbers, missing, kind = _table(node)
    # The first of equal names counts.
    table = {str(name): number for name, number in reversed([*zip(names, numbers)])}

    def run(values: Sequence[object | None]) -> list[object]:
        x = np.asarray(values[0])
        found = [table.get(name, missing) for name in x.reshape(-1).tolist()]
        return [np.array(found, kind).reshape(x.shape)]

    return run


def _one_hot_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = _rejection(group, context)
    names = graph.attribute(group.anchor, "cats_strings", ())
    if reason is None and (not names or len(set(names)) < len(names)):
        return "its categories are no strings, or one is there twice"
    return reason


def one_hot(node: ir.Node) -> Run:
    """1 where a category is met, see `app.engine.core.calls.HostCall`.

    Raises ValueError for others, where `zeros` is 0.
    """
    names: tuple[str, ...] = tuple(map(str, graph.attribute(node, "cats_strings", ())))
    table = {name: place for place, name in enumerate(names)}
    rows = np.vstack([np.eye(len(names), dtype=np.float32), np.zeros((1, len(names)), np.float32)])
    allowed = bool(graph.attribute(node, "zeros", 1))

    def run(values: Sequence[object | None]) -> list[object]:
        x = np.asarray(values[0])
        places = [table.get(name, len(names)) for name in x.reshape(-1).tolist()]
        if not allowed and len(names) in places:
            unknown = x.reshape(-1)[places.index(len(names))]
            raise ValueError(
                f"OneHotEncoder {node.name!r}: {unknown!r} is none of its {len(names)} categories"
            )
        return [rows.take(places, 0).reshape(*x.shape, len(names))]

    return run


def _cost(group: Group, _context: PlanningContext) -> float:
    return SECONDS + LOOKUP * graph.elements(data(group.anchor))


IMPLEMENTATIONS = (
    *(
        Implementation(f"names.{op.lower()}", op, "numba-cpu", _rejection, host(moved), _cost)
        for op in _MOVES
    ),
    *(
        Implementation(name, op, "numba-cpu", rejection, host(function), _cost, domain=DOMAIN)
        for name, op, rejection, function in (
            ("names.encode", "LabelEncoder", _encoder_rejection, encoded),
            ("names.categories", "CategoryMapper", _encoder_rejection, encoded),
            ("names.one_hot", "OneHotEncoder", _one_hot_rejection, one_hot),
        )
    ),
)
