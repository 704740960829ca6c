"""The row of If: branches are planned ahead, and the one that the condition names is run.

The compiled driver chooses where kernels compute all of both branches, else Python does. A branch that
cannot be planned, because it does not fit the shapes of this plan more often than not, is left to the
reference evaluator.
"""

from collections.abc import Callable, Sequence
from functools import partial

import onnx_ir as ir

from app.engine import reference
from app.engine.backends.control_flow import driver_calls, subgraphs
from app.engine.core import graph
from app.engine.core.calls import Body, Call, HostCall
from app.engine.core.group import Group
from app.engine.core.program import Program
from app.engine.core.registry import Implementation, PlanningContext

BRANCHES = ("then_branch", "else_branch")
SECONDS = 5e-6  # of a choice in Python, and the copies into a branch and out of it

Run = Callable[[Sequence[object | None]], list[object]]


def prepare(node: ir.Node, bodies: Sequence[Run | None], _places: Sequence[object]) -> Run:
    """A function that chooses: its argument holds the condition, then what the branches capture."""
    planned = [body for body in bodies if body is not None]
    if len(planned) < len(bodies):
        fallback = reference.prepare(node)
        planned = [body or fallback for body in bodies]
    then, otherwise = planned

    def run(values: Sequence[object | None]) -> list[object]:
        return (then if values[0] else otherwise)(values)

    return run


def _rejection(group: Group, context: PlanningContext) -> str | None:
    reason = subgraphs.rejection(group)
    if reason:
        return reason
    refused = [p for p in _planned(group.anchor, context) if isinstance(p, str)]
    return f"no branch can be planned: {'; '.join(refused)}" if len(refused) == len(BRANCHES) else None


def _unlike(program: Program, node: ir.Node) -> str | None:
    """Which output has another type than the node's, if one has."""
    for inner, outer in zip(program.compilation.graph.outputs, node.outputs, strict=True):
        types = [(graph.shape(v), graph.dtype(v)) for v in (inner, outer)]
        if outer.name and not graph.is_dynamic(outer) and types[0] != types[1]:
            return f"{inner.name!r} has not the type of {outer.name!r}"
    return None


def _planned(node: ir.Node, context: PlanningContext) -> list[Program | str]:
    """For each branch its program, or why it has none."""
    found: list[Program | str] = []
    for name, program in zip(BRANCHES, subgraphs.programs(node, BRANCHES, context), strict=True):
        unlike = None if isinstance(program, str) else _unlike(program, node)
        found.append(f"{name}: {unlike}" if unlike else program)
    return found


def _lower(group: Group, context: PlanningContext, *, driven: bool = False) -> tuple[Call, ...]:
    """`driven` if the compiled driver may choose."""
    node = group.anchor
    named = tuple(i for i, v in enumerate(node.outputs) if v.name)
    inputs = (node.inputs[0], *graph.captures(node))
    captured = subgraphs.captured(node)
    reads = tuple(i for i, v in enumerate(inputs) if i and v in captured)
    planned = dict(zip(BRANCHES, _planned(node, context), strict=True))
    bodies = tuple(None if isinstance(p, str) else Body(name, p, reads, named) for name, p in planned.items())
    refused = [name for name, p in planned.items() if isinstance(p, str)]
    evaluated = reference.evaluated(node, refused) if refused else ()
    outputs = tuple(node.outputs[i] for i in named)
    compiled = [b for b in bodies if b is not None and driver_calls.is_compiled(b.program)]
    if driven and len(compiled) == len(bodies) and not any(map(graph.is_dynamic, outputs)):
        return driver_calls.branch(node, compiled, inputs)
    return (HostCall(f"{__name__}:prepare", node, inputs, outputs, bodies, evaluated),)


def _cost(group: Group, context: PlanningContext, *, driven: bool = False) -> float:
    """That of the slower branch."""
    slower = max(p.seconds for p in _planned(group.anchor, context) if not isinstance(p, str))
    calls = _lower(group, context, driven=driven)
    return slower + (driver_calls.seconds(calls, 1) if len(calls) > 1 else SECONDS)


def rows(backend: str, prefix: str = "") -> tuple[Implementation, ...]:
    """The row of If whose branches a backend runs; the compiled driver runs kernels of the CPU."""
    driven = backend == "numba-cpu"
    lower, cost = partial(_lower, driven=driven), partial(_cost, driven=driven)
    return (Implementation(f"{prefix}if.branches", "If", backend, _rejection, lower, cost=cost),)


IMPLEMENTATIONS = rows("numba-cpu")
