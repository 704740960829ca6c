"""Rows of what works along axes: softmax, normalization, reductions and global pooling.

Where a row is in the registers of its threads before they store, the result may overwrite it.
"""

import math
from collections.abc import Mapping

import onnx_ir as ir

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import Made, streaming
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.axes import along_axis, first_input, first_output, reduced_axes, static_reduced_axes
from app.engine.operators.elementwise import recipe_of
from app.engine.types.layout import Layout
from app.kernels.cuda.normalize import row_norm
from app.kernels.cuda.reduce import reduce
from app.kernels.cuda.softmax import softmax
from app.kernels.expressions import Recipe

Pairs = tuple[tuple[ir.Value, ir.Value], ...]


def over_first(group: Group, _context: PlanningContext) -> Pairs:
    """The output over the first input, unless that is read twice."""
    x = first_input(group)
    same = group.anchor.inputs.count(x) == 1 and graph.nbytes(x) == graph.nbytes(group.outputs[0])
    return ((x, group.outputs[0]),) if same else ()


# Softmax.


@of_group
def _softmax(group: Group) -> Made:
    outer, n, inner = along_axis(group)
    launches = softmax(outer, n, inner, element(first_input(group)), group.op == "LogSoftmax")
    return launches, {"x": first_input(group), "y": first_output(group)}


# Normalization of rows, with a chain of functions of one value after it.

_NORMS = {"LayerNormalization": "layer_norm", "RMSNormalization": "rms_norm"}


def _rows_of(group: Group) -> tuple[int, int]:
    shape = graph.static_shape(first_input(group))
    axis = graph.attribute(group.anchor, "axis", -1) % max(len(shape), 1)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


@of_group
def _after(group: Group) -> Recipe | str:
    """Recipe of the nodes after the normalization, element by element."""
    if not group.epilogue:
        return ()
    value = group.anchor.outputs[0]
    formula = recipe_of(group.epilogue, group.outputs, first=(value,))
    if isinstance(formula, str):
        return formula
    if len(formula.operands) > 1:
        return f"{formula.operands[1].value.name!r} takes part in what follows"
    return formula.recipe if formula.results[0][0] == len(formula.recipe) else "an inner value leaves"


def _norm_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = tensor_views.not_floats(group, first_input(group), group.outputs[0])
    if reason is not None:
        return reason
    if len(group.outputs) > 1:
        return f"{len(group.outputs)} values leave the group; this one writes one"
    _, n = _rows_of(group)
    scale = graph.operand(group.anchor, 1)
    for operand in (scale, graph.input_at(group.anchor, 2)):
        if operand is None:
            continue
        reason = tensor_views.not_floats(group, operand, scale)
        if reason is None and graph.elements(operand) != n:
            reason = f"operand {operand.name!r} has {graph.elements(operand)} elements, rows have {n}"
        if reason is not None:
            return reason
    if n == 0:
        return "the rows are empty"
    if graph.attribute(group.anchor, "stash_type", 1) != 1:
        return "statistics in another type than float32"
    found = _after(group)
    if isinstance(found, str):
        return found
    if found and element(first_input(group)) != "float32":
        return "what follows rounds to 16 bits in between"
    return None


@of_group
def _norm(group: Group) -> Made:
    rows, n = _rows_of(group)
    kind, epsilon = element(first_input(group)), float(graph.attribute(group.anchor, "epsilon", 1e-5))
    scale, bias = graph.operand(group.anchor, 1), graph.input_at(group.anchor, 2)
    after, name = _after(group), _NORMS[group.op]
    assert not isinstance(after, str)
    has_bias = name == "layer_norm" and bias is not None
    parameters = element(scale)
    launches = row_norm(name, rows, n, kind, epsilon, parameters=parameters, bias=has_bias, after=after)
    roles = {"x": first_input(group), "y": group.outputs[0], "scale": scale}
    return launches, roles if bias is None else {**roles, "bias": bias}


# Reductions, row-major or of images with channels last.

_OPERATIONS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceSumSquare": "sum_square",
    "GlobalAveragePool": "mean",
    "GlobalMaxPool": "max",
}
_WHOLE = ("sum", "prod", "max", "min", "l1", "sum_square", "mean")  # that integers have too
_INTEGERS = ("int32", "int64", "int8", "uint8")


def _reduce_rejection(group: Group, _context: PlanningContext) -> str | None:
    operation = _OPERATIONS[group.op]
    whole = _INTEGERS if operation in _WHOLE else ()
    x = first_input(group)
    reason = tensor_views.group_rejection(group) or tensor_views.untyped(x, (*tensor_views.FLOATS, *whole))
    if reason is not None:
        return reason
    axes = reduced_axes(group)
    if axes is None:
        return "the axes change between runs"
    if not axes:
        return "no axis is reduced"
    if graph.elements(x) == 0:
        return "the input is empty"
    return None


def _reduce_last_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = tensor_views.not_image(first_input(group)) or _reduce_rejection(group, context)
    if reason is None and set(reduced_axes(group) or ()) != set(
        range(2, len(graph.static_shape(first_input(group))))
    ):
        return f"axes {reduced_axes(group)} are reduced; channels last are worth it for all places"
    return reason


@of_group
def _reduction(group: Group, last: bool) -> Made:
    x, axes = first_input(group), static_reduced_axes(group)
    shape = graph.static_shape(x)
    strides = tensor_views.last_strides(shape) if last else None
    launches = reduce(_OPERATIONS[group.op], shape, axes, element(x), strides=strides)
    return launches, {"x": x, "y": first_output(group)}


def _read_last(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
    return tensor_views.lasts((first_input(group),))


def _reduce_rows(op: str) -> tuple[Implementation, ...]:
    name = f"cuda.{op.lower()}"
    return (
        streaming(name, op, _reduce_rejection, lambda group: _reduction(group, False)),
        streaming(
            f"{name}_last",
            op,
            _reduce_last_rejection,
            lambda group: _reduction(group, True),
            layouts=_read_last,
            rank=1,
        ),
    )


IMPLEMENTATIONS = (
    *(
        streaming(
            f"cuda.{op.lower()}",
            op,
            lambda group, _context: tensor_views.group_rejection(group, tensor_views.FLOATS),
            _softmax,
            inplace=over_first,
        )
        for op in ("Softmax", "LogSoftmax")
    ),
    *(
        streaming(f"cuda.{name}", op, _norm_rejection, _norm, inplace=over_first)
        for op, name in _NORMS.items()
    ),
    *(row for op in _OPERATIONS for row in _reduce_rows(op)),
)
