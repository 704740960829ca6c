"""The rows of Loop and Scan: the body is planned ahead, and run once a turn.

The compiled driver runs the turns where kernels compute all of the body, else they are Python. A body is a
program in memory of its own, which reads what it captures where that is. What it carries is copied once a
turn. Stacked outputs are written where they stay, if their length is known before the run.

Source: ONNX operator specifications of Loop-25 and Scan-25.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.control_flow import driver_calls, subgraphs
from app.engine.backends.control_flow.driver_calls import FIRST
from app.engine.core import graph
from app.engine.core.calls import Body, Call, HostCall, RunBody
from app.engine.core.group import Group
from app.engine.core.program import Program
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.model.shape_inference import tensor_rules

SECONDS = 1e-5  # of a turn in Python: copies into a body and out of it
TRIPS = 16  # where their number is known when the loop runs only
ROOM = 16  # elements of a stack whose length is not known; doubled as they are used up

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[object | None]], list[object]]
Cost: TypeAlias = Callable[[Group, PlanningContext], float]


class _Stack:
    """Elements along a new first axis: in a place of known length, else as many as come."""

    def __init__(self, element: ir.Value, place: Array | None) -> None:
        self._grows = place is None
        shape = (ROOM, *graph.static_shape(element))
        self._array = np.empty(shape, graph.dtype(element)) if place is None else place

    def write(self, turn: int, element: Any) -> None:
        if turn == len(self._array) and self._grows:
            self._array = np.concatenate([self._array, np.empty_like(self._array)])
        self._array[turn] = element

    def first(self, count: int) -> Array:
        """The elements; the place itself where it is full."""
        return self._array[:count] if self._grows or count < len(self._array) else self._array


def prepare_loop(node: ir.Node, bodies: Sequence[RunBody | None], places: Sequence[Array | None]) -> Run:
    """A function of the node's inputs, then of what the body captures: last carried values, then stacks."""
    (body,) = (planned for planned in bodies if planned is not None)
    carried = len(node.inputs) - FIRST
    inner = node.attributes["body"].as_graph()
    count, flag = (np.zeros(graph.static_shape(v), graph.dtype(v)) for v in inner.inputs[:FIRST])
    named = [i for i, v in enumerate(node.outputs) if v.name]
    stacked = [
        (1 + i, place, inner.outputs[1 + i]) for i, place in zip(named, places, strict=True) if i >= carried
    ]

    def run(values: Sequence[object | None]) -> list[object]:
        trips, condition, *rest = values
        limit = sys.maxsize if trips is None else int(np.asarray(trips).item())
        going = condition is None or bool(np.asarray(condition).item())
        state, turn = rest[:carried], 0
        stacks = [(i, _Stack(v, place)) for i, place, v in stacked]
        while going and turn < limit:
            if turn == 0:
                count.fill(0)
                flag.fill(True)
                results = body((count, flag, *rest))
            else:
                results = body.again({0: turn, 1: True, **dict(enumerate(state, FIRST))})
            going, state = bool(results[0].item()), results[1 : 1 + carried]  # type: ignore[attr-defined]
            for i, stack in stacks:
                stack.write(turn, results[i])
            turn += 1
        found = {i: stack.first(turn) for i, stack in stacks}
        return [state[i] if i < carried else found[1 + i] for i in named]

    return run


def prepare_scan(node: ir.Node, bodies: Sequence[RunBody | None], places: Sequence[Array | None]) -> Run:
    """A function of the node's inputs, then of what the body captures: last states, then stacks."""
    (body,) = (planned for planned in bodies if planned is not None)
    states = _states(node)
    given = len(node.inputs)
    named = [i for i, v in enumerate(node.outputs) if v.name]
    stacks: list[tuple[int, Array]] = []
    for i, place in zip(named, places, strict=True):
        if i >= states:
            assert place is not None
            stacks.append((i, _turns_first(place, node, "output", i - states)))

    def run(values: Sequence[object | None]) -> list[object]:
        sources = [_turns_first(np.asarray(v), node, "input", k) for k, v in enumerate(values[states:given])]
        state = list(values[:states])
        for turn, elements in enumerate(zip(*sources, strict=True)):
            if turn == 0:
                results = body((*state, *elements, *values[given:]))
            else:
                results = body.again(dict(enumerate((*state, *elements))))
            state = results[:states]
            for i, stack in stacks:
                stack[turn] = results[i]
        return [state[i] if i < states else place for i, place in zip(named, places, strict=True)]

    return run


def _turns_first(array: Array, node: ir.Node, side: str, index: int) -> Array:
    """The array with the axis that a Scan goes along in front, in the order of the turns."""
    axes = graph.attribute(node, f"scan_{side}_axes", None)
    directions = graph.attribute(node, f"scan_{side}_directions", None)
    moved = np.moveaxis(array, axes[index] if axes else 0, 0)
    return moved[::-1] if directions and directions[index] else moved


def _states(node: ir.Node) -> int:
    return len(node.inputs) - int(graph.attribute(node, "num_scan_inputs", 0))


def _lengths(node: ir.Node) -> set[int]:
    """How many elements the scan inputs have; one number in a valid model."""
    axes = graph.attribute(node, "scan_input_axes", None)
    scanned = node.inputs[_states(node) :]
    return {graph.static_shape(v)[axes[k] if axes else 0] for k, v in enumerate(scanned) if v is not None}


def _program(node: ir.Node, context: PlanningContext) -> Program | str:
    return subgraphs.programs(node, ("body",), context)[0]


def _loop_rejection(group: Group, context: PlanningContext) -> str | None:
    return _rejection(group, context, FIRST, 1, len(group.anchor.inputs) - FIRST)


def _scan_rejection(group: Group, context: PlanningContext) -> str | None:
    node = group.anchor
    if subgraphs.opset(node) < 9:
        return "Scan of opset 8 has a batch axis; save the model with opset 9 or newer"
    reason = _rejection(group, context, 0, 0, _states(node))
    if reason is None and len(_lengths(node)) != 1:
        reason = f"the scan inputs have lengths {sorted(_lengths(node))}"
    return reason


def _rejection(group: Group, context: PlanningContext, first: int, results: int, carried: int) -> str | None:
    """Reason why a body is not run here; its carried values begin at input `first` and output `results`."""
    node = group.anchor
    for value in node.inputs[first:]:
        if value is None or graph.is_dynamic(value):
            return f"input {value.name if value else ''!r} has no fixed shape"
    reason = subgraphs.rejection(group)
    if reason:
        return reason
    program = _program(node, context)
    if isinstance(program, str):
        return f"the body cannot be planned: {program}"
    body = program.compilation.graph
    for k in range(carried):
        initial = graph.operand(node, first + k)
        if not _type(initial) == _type(body.inputs[first + k]) == _type(body.outputs[results + k]):
            return f"carried value {initial.name!r} changes its type or shape"
    loose = next((v for v in (*body.inputs, *body.outputs) if graph.is_dynamic(v)), None)
    return None if loose is None else f"value {loose.name!r} of the body has no fixed shape"


def _type(value: ir.Value) -> object:
    return graph.shape(value), graph.dtype(value)


def _turns(node: ir.Node) -> int:
    """Turns of a run, as far as they are known."""
    if node.op_type == "Scan":
        return min(_lengths(node))
    trips = tensor_rules.trip_count(node)
    return TRIPS if trips is None else trips


def _lower(function: str, *, driven: bool) -> Callable[[Group, PlanningContext], tuple[Call, ...]]:
    """`driven` if the compiled driver may run the turns."""

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        node = group.anchor
        program = _program(node, context)
        assert not isinstance(program, str)
        inner = program.compilation.graph
        given, made = len(inner.inputs), len(inner.outputs)
        body = Body("body", program, tuple(range(given)), tuple(range(made)), len(node.inputs), _turns(node))
        inputs = (*node.inputs, *subgraphs.captured(node))
        outputs = tuple(v for v in node.outputs if v.name)
        if not (driven and driver_calls.is_compiled(program) and _has_known_length(node)):
            return (HostCall(f"{__name__}:{function}", node, inputs, outputs, (body,)),)
        if node.op_type == "Scan":
            return driver_calls.scan(node, body, inputs, min(_lengths(node)))
        return driver_calls.loop(node, body, inputs)

    return lower


def _has_known_length(node: ir.Node) -> bool:
    """True if it stacks nothing, or so many elements as the plan says, whatever the inputs are."""
    if node.op_type == "Scan":
        return True
    stacks = node.outputs[len(node.inputs) - FIRST :]
    return not any(v.name for v in stacks) or tensor_rules.trip_count(node) is not None


def _cost(lower: Callable[[Group, PlanningContext], tuple[Call, ...]]) -> Cost:
    def cost(group: Group, context: PlanningContext) -> float:
        program, turns = _program(group.anchor, context), _turns(group.anchor)
        assert not isinstance(program, str)
        calls = lower(group, context)
        if len(calls) > 1:
            return driver_calls.seconds(calls, turns) + turns * program.seconds
        return SECONDS + turns * (SECONDS + program.seconds)

    return cost


def rows(backend: str, prefix: str = "") -> tuple[Implementation, ...]:
    """The rows of Loop and Scan whose bodies a backend runs; the compiled driver runs kernels of the CPU."""
    found = []
    for op, rejection in (("Loop", _loop_rejection), ("Scan", _scan_rejection)):
        lower = _lower(f"prepare_{op.lower()}", driven=backend == "numba-cpu")
        name = f"{prefix}{op.lower()}.body"
        found.append(Implementation(name, op, backend, rejection, lower, cost=_cost(lower)))
    return tuple(found)


IMPLEMENTATIONS = rows("numba-cpu")
