"""Rows of labels: LabelEncoder on numbers, and what makes strings or maps, which Python does.

The maps of a ZipMap are made when somebody reads them; a run only keeps the scores.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import pointer
from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import after, group_roofline, single_rejection
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, HostCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.forest import DOMAIN
from app.engine.operators.operands import data
from app.engine.types.map_type import Label, ScoreMaps

Array: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Callable[[Sequence[object | None]], list[object]]
SECONDS = 1e-6  # of a call of Python that takes few elements
_NAN_IS_FOUND = 4  # version of LabelEncoder from which on


def _table(node: ir.Node, kind: str) -> Array:
    """Keys or values of a LabelEncoder; none where they are no numbers."""
    tensor = graph.attribute(node, f"{kind}_tensor", None)
    if tensor is not None:
        return np.zeros(0) if tensor.dtype == ir.DataType.STRING else np.asarray(tensor.numpy()).reshape(-1)
    for name, dtype in (("int64s", np.int64), ("floats", np.float32)):
        found = graph.attribute(node, f"{kind}_{name}", ())
        if len(found):
            return np.asarray(found, dtype)
    return np.zeros(0)


def _default(node: ir.Node, values: Array) -> Array:
    tensor = graph.attribute(node, "default_tensor", None)
    if tensor is not None:
        return np.asarray(tensor.numpy()).reshape(-1)[:1].astype(values.dtype)
    whole = values.dtype.kind == "i"
    found = (
        graph.attribute(node, "default_int64", -1) if whole else graph.attribute(node, "default_float", -0.0)
    )
    return np.array([found], values.dtype)


@after(single_rejection)
def _encoder_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    keys, values = _table(node, "keys"), _table(node, "values")
    if not len(keys) or len(keys) != len(values):
        return "keys and values are no numbers, or not as many"
    if graph.element_type(data(node)) != keys.dtype or graph.element_type(node.outputs[0]) != values.dtype:
        return f"keys are {keys.dtype} and values {values.dtype}, its operands are others"
    return None


def _encoder_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, y = data(node), node.outputs[0]
    keys, values = _table(node, "keys"), _table(node, "values")
    # The first of equal keys counts; NaN, of which there is one at most then, comes last.
    known, first = np.unique(keys, return_index=True)
    missing = _default(node, values)
    nan = missing
    if known.dtype.kind == "f" and np.isnan(known[-1]):
        version = {} if node.graph is None else node.graph.opset_imports
        nan = values[first[-1:]] if version.get(node.domain, 0) >= _NAN_IS_FOUND else missing
        known, first = known[:-1], first[:-1]
    table = np.concatenate([values[first], missing, nan])
    operands: Operands = (
        *of_values(x, y),
        (pointer(x), Constant(known if len(known) else np.zeros(1, keys.dtype))),
        (pointer(y), Constant(table)),
        len(known),
    )
    return (kernel_call("app.kernels.cpu.search:encode", operands, graph.elements(x)),)


def _encoder_cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, 10 * graph.elements(data(group.anchor)), 0.02)


def _names_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    table, index = graph.constant(node.inputs[0]), graph.input_at(node, 1)
    if len(group.nodes) > 1 or table is None or table.dtype != object or table.ndim != 1:
        return "it looks up no names of a constant list"
    if index is None or not graph.is_tensor(index) or graph.shape(index) is None:
        return "its indices have no static shape"
    return None


def look_up(node: ir.Node) -> Run:
    """Gather of names; raises IndexError where an index is outside. See `app.engine.core.calls.HostCall`."""
    table = graph.array(node.inputs[0])

    def run(values: Sequence[object | None]) -> list[object]:
        return [table[np.asarray(values[1])]]

    return run


def map_labels(node: ir.Node) -> tuple[Label, ...]:
    """Keys of the maps of a ZipMap, in the order of the scores."""
    return tuple(
        graph.attribute(node, "classlabels_strings", ()) or graph.attribute(node, "classlabels_int64s", ())
    )


def _maps_rejection(group: Group, _context: PlanningContext) -> str | None:
    x = data(group.anchor)
    shape = graph.shape(x)
    if len(group.nodes) > 1 or shape is None or len(shape) not in (1, 2):
        return f"input {x.name!r} has the shape {x.shape}, expected samples of scores"
    if shape[-1] != len(map_labels(group.anchor)):
        return f"input {x.name!r} has {shape[-1]} scores a sample for {len(map_labels(group.anchor))} labels"
    return None


def zip_map(node: ir.Node) -> Run:
    """Maps of scores, see `app.engine.core.calls.HostCall`."""
    labels = map_labels(node)
    matrix = (1, *graph.static_shape(data(node)))[-2:]

    def run(values: Sequence[object | None]) -> list[object]:
        return [ScoreMaps(labels, np.asarray(values[0]).reshape(matrix).copy())]

    return run


def host(function: Callable[[ir.Node], Run]) -> Callable[[Group, PlanningContext], tuple[Call, ...]]:
    """A lowering to one call from Python that `function` prepares."""

    def lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
        node = group.anchor
        name = f"{function.__module__}:{function.__name__}"
        return (HostCall(name, node, tuple(node.inputs), tuple(node.outputs)),)

    return lower


def _host_cost(_group: Group, _context: PlanningContext) -> float:
    return SECONDS


IMPLEMENTATIONS = tuple(
    Implementation(name, op, "numba-cpu", rejection, lower, cost, domain=domain)
    for name, domain, op, rejection, lower, cost in (
        ("labels.encode", DOMAIN, "LabelEncoder", _encoder_rejection, _encoder_lower, _encoder_cost),
        ("labels.names", "", "Gather", _names_rejection, host(look_up), _host_cost),
        ("labels.zip_map", DOMAIN, "ZipMap", _maps_rejection, host(zip_map), _host_cost),
    )
)
