"""Axes of operators that work along one or several of them."""

import math

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group


def first_input(group: Group) -> ir.Value:
    """The anchor's first input, which is there."""
    return graph.operand(group.anchor, 0)


def output_at(group: Group, index: int) -> ir.Value | None:
    """An output of the anchor that something reads; None for others, which have no memory."""
    outputs = group.anchor.outputs
    return outputs[index] if index < len(outputs) and outputs[index] in group.outputs else None


def first_output(group: Group) -> ir.Value:
    """The anchor's first output, which something reads."""
    return group.anchor.outputs[0]


def split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """(outer, n, inner): elements before an axis, along it and after it. Rank 0 is one element."""
    full = shape or (1,)
    at = axis % len(full)
    return math.prod(full[:at]), full[at], math.prod(full[at + 1 :])


def along_axis(group: Group, default: int = -1) -> tuple[int, int, int]:
    """(outer, n, inner) of the first input around the attribute `axis`."""
    axis = graph.attribute(group.anchor, "axis", default)
    return split(graph.static_shape(first_input(group)), axis)


def reduced_axes(group: Group) -> tuple[int, ...] | None:
    """The axes that the anchor reduces, counted from the front; None when a run decides them."""
    node = group.anchor
    rank = len(graph.static_shape(first_input(group)))
    if node.op_type.startswith("Global"):
        return tuple(range(2, rank))
    given: tuple[int, ...] = tuple(graph.attribute(node, "axes", ()))
    value = graph.input_at(node, 1)
    if value is not None:
        constant = graph.constant(value)
        if constant is None:
            return None
        given = tuple(int(a) for a in constant.reshape(-1))
    if not given:
        return () if graph.attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(a % rank for a in given)) if rank else ()


def static_reduced_axes(group: Group) -> tuple[int, ...]:
    """The axes that the anchor reduces, which no run may decide: see `reduced_axes`.

    Raises:
        ValueError: a run decides them.
    """
    found = reduced_axes(group)
    if found is None:
        raise ValueError(
            f"{group.op} {group.name!r}: expected constant axes, found axes computed at run time"
        )
    return found
