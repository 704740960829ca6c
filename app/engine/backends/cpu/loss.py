"""Losses of class scores, and the determinant."""

import math

import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import pointer, takes_floats, type_name
from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import after, total_bytes
from app.engine.backends.cpu.softmax import along
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import first_input, first_output, output_at, split


@after(takes_floats)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    x, weight = first_input(group), graph.input_at(group.anchor, 2)
    if weight is not None and type_name(weight) != type_name(x):
        return f"weight {weight.name!r} is {type_name(weight)}, the scores {type_name(x)}"
    return None


def _likelihood(group: Group, scores: Argument) -> KernelCall:
    """The loss of log-probabilities `scores`."""
    node, x, y = group.anchor, first_input(group), first_output(group)
    target, weight = graph.operand(node, 1), graph.input_at(node, 2)
    batch, classes, inner = split(graph.static_shape(x), 1)
    ignored = node.attributes.get("ignore_index")
    reduction = graph.attribute(node, "reduction", "mean")
    t = pointer(x)
    operands: Operands = (
        *((t, scores), *of_values(target), (t, 0 if weight is None else weight), (t, y)),
        *(classes, inner, int(weight is not None), int(ignored is not None)),
        0 if ignored is None else int(ignored.value),
    )
    if reduction == "none":
        return kernel_call("app.kernels.cpu.loss:likelihood", operands, batch * inner)
    total: Operands = (*operands, batch * inner, int(reduction == "mean"))
    return kernel_call("app.kernels.cpu.loss:total_likelihood", total, 1)


def _lower_likelihood(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    return (_likelihood(group, first_input(group)),)


def _lower_cross_entropy(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x = first_input(group)
    scores: ir.Value | Workspace = output_at(group, 1) or Workspace(graph.nbytes(x))
    shape = split(graph.static_shape(x), 1)
    return (along("log_softmax", type_name(x), x, scores, shape), _likelihood(group, scores))


def _lower_determinant(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    shape = graph.static_shape(x)
    n = shape[-1]
    operands: Operands = (*of_values(x, y), ("float64*", Workspace(n * n * 8, per_thread=True)), n)
    units = math.prod(shape[:-2])
    return (kernel_call("app.kernels.cpu.loss:determinant", operands, units, takes_thread=True),)


def _cost(group: Group, context: PlanningContext) -> float:
    return roofline(
        context.target,
        flops=30 * graph.elements(first_input(group)),
        nbytes=total_bytes(group),
        efficiency=0.1,
    )


IMPLEMENTATIONS = tuple(
    Implementation(f"loss.{name}", op, "numba-cpu", rejection, lower, _cost)
    for name, op, rejection, lower in (
        ("likelihood", "NegativeLogLikelihoodLoss", _rejection, _lower_likelihood),
        ("cross_entropy", "SoftmaxCrossEntropyLoss", _rejection, _lower_cross_entropy),
        ("determinant", "Det", takes_floats, _lower_determinant),
    )
)
