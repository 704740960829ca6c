"""The row of Loop: its body is planned ahead, and run until the condition or the trip count ends it.

The turns are Python; a body is a program in memory of its own. What it captures is copied in once a run, what
it carries once a turn.

Source: ONNX operator specification of Loop-25.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu import nested
from app.engine.plan import Body, Call, Group, HostCall, RunBody
from app.engine.program import Program
from app.engine.registry import Implementation, Known

FIRST = 2  # of the carried values among the inputs, after the trip count and the condition
SECONDS = 1e-5  # of the copies into a body and out of it
TRIPS = 16  # where their number is known when the loop runs only

Run = Callable[[Sequence[object | None]], list[object]]


def prepare(node: ir.Node, bodies: Sequence[RunBody | None]) -> Run:
    """A function of the node's inputs, then of what the body captures: last carried values, then stacks."""
    (body,) = bodies
    assert body is not None
    carried = len(node.inputs) - FIRST
    elements = [
        (graph.static_shape(v), graph.dtype(v))
        for v in node.attributes["body"].as_graph().outputs[1 + carried :]
    ]
    named = [i for i, v in enumerate(node.outputs) if v.name]

    def run(values: Sequence[object | None]) -> list[object]:
        trips, condition, *rest = values
        limit = None if trips is None else int(np.asarray(trips).item())
        going: Any = np.asarray(True) if condition is None else condition
        state, rows, turn = rest[:carried], [[] for _ in elements], 0  # type: ignore[var-annotated]
        while going.item() and (limit is None or turn < limit):
            count = np.asarray(turn, np.int64)
            if turn == 0:
                results = body((count, going, *rest))
            else:
                results = body.again(dict(enumerate((count, going, *state))))
            going, state = results[0], results[1 : 1 + carried]
            for row, element in zip(rows, results[1 + carried :], strict=True):
                row.append(element)
            turn += 1
        stacks = [
            np.stack(row) if row else np.zeros((0, *shape), kind)
            for row, (shape, kind) in zip(rows, elements, strict=True)
        ]
        outputs = [*state, *stacks]
        return [outputs[i] for i in named]

    return run


def _program(node: ir.Node, known: Known) -> Program | str:
    return nested.programs(node, ("body",), known)[0]


def _unless(group: Group, known: Known) -> str | None:
    node = group.anchor
    for value in node.inputs[FIRST:]:
        if value is None or graph.is_dynamic(value):
            return f"carried value {value.name if value else ''!r} has no fixed shape"
    reason = nested.dynamic_capture(node)
    if reason:
        return reason
    program = _program(node, known)
    if isinstance(program, str):
        return f"the body cannot be planned: {program}"
    body = program.compilation.graph
    for initial, received, returned in zip(
        node.inputs[FIRST:], body.inputs[FIRST:], body.outputs[1:], strict=False
    ):
        assert initial is not None
        if not _type(initial) == _type(received) == _type(returned):
            return f"carried value {initial.name!r} changes its type or shape"
    loose = next((v for v in (*body.inputs, *body.outputs) if graph.is_dynamic(v)), None)
    return None if loose is None else f"value {loose.name!r} of the body has no fixed shape"


def _type(value: ir.Value) -> object:
    return graph.shape(value), graph.dtype(value)


def _lower(group: Group, known: Known) -> tuple[Call, ...]:
    node = group.anchor
    program = _program(node, known)
    assert not isinstance(program, str)
    inputs = (*(graph.input_at(node, i) for i in range(FIRST)), *node.inputs[FIRST:], *nested.captured(node))
    body = Body(
        program,
        tuple(range(len(program.compilation.graph.inputs))),
        tuple(range(len(program.compilation.graph.outputs))),
    )
    return (HostCall(f"{__name__}:prepare", node, inputs, tuple(v for v in node.outputs if v.name), (body,)),)


def _cost(group: Group, known: Known) -> float:
    node = group.anchor
    program = _program(node, known)
    assert not isinstance(program, str)
    trips = graph.constant(graph.input_at(node, 0))
    turns = TRIPS if trips is None else int(trips.item())
    return SECONDS + turns * (SECONDS + program.seconds)


IMPLEMENTATIONS = (Implementation("loop.body", "Loop", "numba-cpu", _unless, _lower, cost=_cost),)
