"""Normalization by statistics of rows, groups, channels or neighbours."""

import math

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.single import (
    FLOATS,
    axis_of,
    first_input,
    first_output,
    output_at,
    pointer,
    refusal,
    total_bytes,
    type_name,
)
from app.engine.cost import roofline
from app.engine.plan import Argument, Call, Constant, Group, KernelCall
from app.engine.registry import Implementation, Known

BACKEND = "numba-cpu"


def _epsilon(group: Group) -> Constant:
    return Constant(np.array([graph.attribute(group.anchor, "epsilon", 1e-5)], np.float64))


def _suffix(shape: tuple[int, ...], normalized: tuple[int, ...]) -> int | None:
    """Elements of an operand that repeats along leading axes of `normalized`; None if it does otherwise."""
    trimmed = list(shape)
    while trimmed and trimmed[0] == 1:
        trimmed.pop(0)
    if not trimmed or tuple(trimmed) == normalized[len(normalized) - len(trimmed) :]:
        return math.prod(trimmed)
    return None


def _normalized(group: Group) -> tuple[int, tuple[int, ...]]:
    """Rows, and the shape of one."""
    shape = graph.static_shape(first_input(group))
    axis = axis_of(group.anchor, len(shape))
    return math.prod(shape[:axis]), shape[axis:]


def _layer_unless(group: Group, _known: Known) -> str | None:
    reason = refusal(group, FLOATS)
    if reason is not None:
        return reason
    _, row = _normalized(group)
    if 0 in row:
        return "the rows are empty"
    for operand in group.anchor.inputs[1:]:
        if operand is None:
            continue
        shape = graph.static_shape(operand)
        if _suffix(shape, row) is None:
            return f"operand {operand.name!r} of shape {shape} does not repeat along rows of shape {row}"
        if type_name(operand) != type_name(first_input(group)):
            return (
                f"operand {operand.name!r} is {type_name(operand)}, the input {type_name(first_input(group))}"
            )
    return None


def _optional(value: ir.Value | None) -> Argument:
    """The address of a value, or of nothing."""
    return 0 if value is None else value


def _lower_layer(group: Group, _known: Known) -> tuple[Call, ...]:
    node, x, y = group.anchor, first_input(group), first_output(group)
    rows, row = _normalized(group)
    scale, bias = node.inputs[1], graph.input_at(node, 2)
    assert scale is not None
    mean, deviation = output_at(group, 1), output_at(group, 2)
    t = pointer(x)
    return (
        KernelCall(
            "app.kernels.cpu.normalize:layer_norm",
            (
                t,
                t,
                t,
                "float64*",
                t,
                *(t if v is None else pointer(v) for v in (mean, deviation)),
                *("int64",) * 5,
            ),
            (
                x,
                scale,
                _optional(bias),
                _epsilon(group),
                y,
                _optional(mean),
                _optional(deviation),
                math.prod(row),
                _suffix(graph.static_shape(scale), row) or 0,
                0 if bias is None else _suffix(graph.static_shape(bias), row) or 0,
                int(mean is not None),
                int(deviation is not None),
            ),
            units=rows,
        ),
    )


def _cost(group: Group, known: Known) -> float:
    return roofline(
        known.target,
        flops=8 * graph.elements(first_input(group)),
        nbytes=total_bytes(group),
        efficiency=0.3,
        threads=known.threads,
    )


def _inplace(group: Group, _known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
    return ((first_input(group), first_output(group)),)


IMPLEMENTATIONS = (
    Implementation(
        "normalize.layer_norm", "LayerNormalization", BACKEND, _layer_unless, _lower_layer, _cost, _inplace
    ),
)
