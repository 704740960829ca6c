"""Contents of padded lanes, inferred along a plan from the contracts of the chosen rows.

A row that computes lane by lane leaves f(0) where it reads zeros: zero if f keeps it, the predicate by
which sparse tensors stay sparse; else a finite number, which a product with a zero makes zero again.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from app.engine import reference
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Compilation, Lanes
from app.engine.types.layout import Layout

Need = tuple[ir.Value, Group]


def _always(_node: ir.Node) -> bool:
    return True


def _extrapolates_zero(node: ir.Node) -> bool:
    return graph.attribute(node, "coordinate_transformation_mode", "") != "tf_crop_and_resize"


def _pads_with_zero(node: ir.Node) -> bool:
    value = graph.input_at(node, 2)
    return graph.attribute(node, "mode", "constant") != "constant" or value is None or _number(value) == 0


# Operators beside the elementwise ones whose rows work lane by lane: whether zeros become zeros.
_KEEPING: Mapping[str, Callable[[ir.Node], bool]] = {
    **dict.fromkeys(("Conv", "Concat", "Upsample"), _always),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _always),
    **dict.fromkeys(("ReduceMean", "ReduceMax"), _always),
    "Resize": _extrapolates_zero,
    "Pad": _pads_with_zero,
}


def has_padding(value: ir.Value, layout: Layout) -> bool:
    """True where the layout of a value fills up an axis."""
    if not layout.blocks:
        return False
    shape = graph.static_shape(value)
    return layout.padded_shape(shape) != shape


def infer(compilation: Compilation) -> tuple[dict[ir.Value, Lanes], tuple[Need, ...]]:
    """Contents of padded lanes of every value, and each (value, reader) that lacks zeros it needs."""
    chosen, layout = compilation.plan.require("implementation"), compilation.plan.require("layout")
    held: dict[ir.Value, Lanes] = {
        v: "undefined" if has_padding(v, layout[v]) else "none" for v in graph.values(compilation.graph)
    }
    needs: list[Need] = []
    if "undefined" not in held.values():
        return held, ()
    evaluated: dict[object, Lanes] = {}
    for group in _in_order(compilation):
        contract = chosen[group].implementation.padding
        if contract.reads == "zero":
            needs += [(v, group) for v in group.inputs if held[v] in ("undefined", "f(0)")]
        padded = [v for v in group.outputs if held[v] == "undefined"]
        if contract.leaves == "zero":
            held.update(dict.fromkeys(padded, "zero"))
        elif contract.leaves == "f(0)" and padded:
            found = _at_zero(group, held, evaluated)
            held.update({v: found[v] for v in padded})
    return held, tuple(needs)


def _in_order(compilation: Compilation) -> Iterable[Group]:
    """Groups by their last node, which is the one that others read."""
    fusion = compilation.plan.require("fusion")
    last = {fusion[node]: node for node in compilation.graph}
    position = {node: i for i, node in enumerate(compilation.graph)}
    return sorted(last, key=lambda group: position[last[group]])


def _at_zero(
    group: Group, held: Mapping[ir.Value, Lanes], evaluated: dict[object, Lanes]
) -> dict[ir.Value, Lanes]:
    """Contents that the nodes of a group which computes lane by lane leave in padded lanes."""
    lanes: dict[ir.Value, Lanes] = {v: held[v] for v in group.inputs if held[v] != "none"}
    for node in group.nodes:
        found: Lanes
        if node.op_type in _KEEPING:
            read = {lanes[v] for v in node.inputs if v in lanes}
            found = "zero" if read <= {"zero"} and _KEEPING[node.op_type](node) else "undefined"
        else:
            found = _elementwise(node, lanes, evaluated)
        lanes.update(dict.fromkeys(node.outputs, found))
    return lanes


def _elementwise(node: ir.Node, lanes: Mapping[ir.Value, Lanes], evaluated: dict[object, Lanes]) -> Lanes:
    """F of what a lane's operands hold."""
    read = [None if v is None else _operand(v, lanes) for v in node.inputs]
    if any(isinstance(r, str) and r == "undefined" for r in read):
        return "undefined"
    if "f(0)" in read:
        finite = all(r in ("zero", "f(0)") or (isinstance(r, float) and np.isfinite(r)) for r in read)
        return "zero" if node.op_type == "Mul" and finite and ("zero" in read or 0.0 in read) else "undefined"
    attributes = tuple((a.name, str(a.value)) for a in node.attributes.values())
    key = (node.op_type, attributes, tuple(read))
    if key not in evaluated:
        kind = graph.dtype(node.outputs[0])
        operands = [
            None if v is None else np.zeros(1, graph.dtype(v) or kind) if r == "zero" else graph.constant(v)
            for v, r in zip(node.inputs, read)
        ]
        result = np.asarray(reference.first_result(node, operands))
        evaluated[key] = (
            "zero" if not np.any(result) else "f(0)" if np.all(np.isfinite(result)) else "undefined"
        )
    return evaluated[key]


def _operand(value: ir.Value, lanes: Mapping[ir.Value, Lanes]) -> Lanes | float:
    """Content of a lane's operand: a state, or the number that it is everywhere.

    A constant with an element per channel is packed with zeros in padded lanes.
    """
    if value in lanes:
        return lanes[value]
    number = _number(value)
    if number is not None:
        return number
    shape = graph.shape(value)
    varies = graph.is_constant(value) and shape is not None and len(shape) > 2 and shape[-3] > 1
    return "zero" if varies else "undefined"


def _number(value: ir.Value | None) -> float | None:
    """The number that a constant of one element is; None for others."""
    array = graph.constant(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fiub":
        return None
    return float(array.reshape(-1)[0])
