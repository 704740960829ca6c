"""If, Loop and Scan as calls of the compiled driver: kernels that copy and count, jumps, turns of bodies.

A body is run so when kernels compute all of it. Its turns cost no more than its kernels and the copies of
what it carries, scans and stacks.
"""

import math
import sys
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import kernel_call
from app.engine.core import graph
from app.engine.core.calls import (
    Argument,
    Body,
    BodyCall,
    BodyValue,
    Call,
    Constant,
    Jump,
    KernelCall,
    Workspace,
)
from app.engine.core.program import Program
from app.kernels.cpu.control_flow import CopySizes

KERNELS = "app.kernels.cpu.control_flow"
COPY = f"{KERNELS}:copy"
WORD = 8  # byte of a turn counter, and of a flag
SECONDS = 2e-8  # of a call that counts or copies next to nothing
BYTES_PER_SECOND = 2e10  # of a copy within a cache
FIRST = 2  # of the carried values of a Loop among the inputs, after the trip count and the condition

Values = Sequence[ir.Value | None]


def is_compiled(program: Program) -> bool:
    """True if kernels compute all of a program, on tensors of fixed shape."""
    model = program.compilation.graph
    values = (*model.inputs, *model.outputs)
    return not any(s.is_host for s in program.steps) and not any(map(graph.is_dynamic, values))


class _Calls:
    """Calls of a step as they are added, and the counter and the flag that they share."""

    def __init__(self, inputs: Values) -> None:
        self.calls: list[Call] = []
        self._inputs = tuple(inputs)
        self.turn, self._flag = Workspace(WORD), Workspace(WORD)
        self._still = Constant(np.zeros(1, np.int64))  # the turn of a copy that has none

    def choose(self, condition: ir.Value) -> None:
        """Set the flag to a condition."""
        self._kernel(f"{KERNELS}:choose", ("int64*", self._flag), ("uint8*", condition))

    def count(self, function: str, trips: Argument, condition: Argument) -> None:
        """Begin the turns, or go on to the next one: the flag says whether there is one."""
        words = ("int64*", self.turn), ("int64*", self._flag), ("int64*", trips)
        self._kernel(f"{KERNELS}:{function}", *words, ("uint8*", condition))

    def jump(self, expected: bool, target: int = -1) -> int:
        """Jump if the flag is as expected; the index of the call."""
        self.calls.append(Jump(self._flag, int(expected), target))
        return len(self.calls) - 1

    def land(self, jump: int) -> None:
        """Have a jump end at the next call."""
        self.calls[jump] = Jump(self._flag, self.calls[jump].expected, len(self.calls))  # type: ignore[union-attr]

    def run(self, body: Body) -> None:
        """One turn of a body."""
        self.calls.append(BodyCall(body, self._inputs))

    def copy(self, y: Argument, x: Argument, nbytes: int) -> None:
        """All bytes of a value."""
        zeros = dict.fromkeys(("y_at", "y_turn", "y_block", "x_at", "x_turn", "x_block"), 0)
        self._copy(y, x, self._still, CopySizes(blocks=1, block=nbytes, **zeros))

    def element(
        self, y: Argument, x: Argument, whole: ir.Value, axis: int, *, back: bool, reads: bool
    ) -> None:
        """The element of this turn along an axis of `whole`, which is x if it `reads`, else y."""
        shape = graph.static_shape(whole)
        axis %= len(shape)
        block = math.prod(shape[axis + 1 :]) * graph.element_type(whole).itemsize
        at, turn = ((shape[axis] - 1) * block, -block) if back else (0, block)
        strided = {"at": at, "turn": turn, "block": shape[axis] * block}
        dense = {"at": 0, "turn": 0, "block": block}
        sides = (("y", dense), ("x", strided)) if reads else (("y", strided), ("x", dense))
        sizes = {f"{side}_{name}": n for side, names in sides for name, n in names.items()}
        self._copy(y, x, self.turn, CopySizes(blocks=math.prod(shape[:axis]), block=block, **sizes))

    def carry(self, body: Body, first: int, results: Sequence[ir.Value]) -> None:
        """The results of a turn are the states of the next, which begin at input `first` of the body."""
        inner = body.program.compilation.graph
        states = inner.inputs[first : first + len(results)]
        moved = [(s, r) for s, r in zip(states, results, strict=True) if _root(body.program, r) is not s]
        held: dict[ir.Value, Argument] = {}
        for _, result in moved:  # one that lies in another state is written over as that is carried
            if result not in held and _root(body.program, result) in states:
                held[result] = Workspace(graph.nbytes(result))
                self.copy(held[result], BodyValue(body, result), graph.nbytes(result))
        for state, result in moved:
            self.copy(BodyValue(body, state), held.get(result, BodyValue(body, result)), graph.nbytes(state))

    def _copy(self, y: Argument, x: Argument, turn: Argument, sizes: CopySizes) -> None:
        if sizes.blocks * sizes.block:
            table = Constant(sizes.array())
            self._kernel(COPY, ("uint8*", y), ("uint8*", x), ("int64*", turn), ("int64*", table))

    def _kernel(self, kernel: str, *operands: tuple[str, Argument]) -> None:
        self.calls.append(kernel_call(kernel, operands, 1))


def _root(program: Program, value: ir.Value) -> ir.Value:
    return program.placement.values[value].root or value


def branch(node: ir.Node, bodies: Sequence[Body], inputs: Values) -> tuple[Call, ...]:
    """If: the branch that the condition names, then copies of its outputs."""
    made = _Calls(inputs)
    made.choose(graph.operand(node, 0))
    outputs = [v for v in node.outputs if v.name]
    then, otherwise = bodies
    away = made.jump(False)
    _results(made, then, outputs)
    end = made.jump(True)
    made.land(away)
    _results(made, otherwise, outputs)
    made.land(end)
    return tuple(made.calls)


def _results(made: _Calls, body: Body, outputs: Sequence[ir.Value]) -> None:
    made.run(body)
    inner = body.program.compilation.graph
    for i, outer in zip(body.outputs, outputs, strict=True):
        made.copy(outer, BodyValue(body, inner.outputs[i]), graph.nbytes(outer))


def loop(node: ir.Node, body: Body, inputs: Values) -> tuple[Call, ...]:
    """Loop: turns until the trip count is reached or the condition is false."""
    inner = body.program.compilation.graph
    carried = len(node.inputs) - FIRST
    made = _Calls(inputs)
    _begin(made, body, node, FIRST, carried)
    always = Constant(np.ones(1, np.uint8))
    trips = graph.input_at(node, 0)
    limit: Argument = Constant(np.array([sys.maxsize])) if trips is None else trips
    start = graph.input_at(node, 1)
    made.count("begin_turns", limit, always if start is None else start)
    away = made.jump(False)
    head = len(made.calls)
    number, flag = inner.inputs[:FIRST]
    if _is_read(body, number):
        made.copy(BodyValue(body, number), made.turn, WORD)
    if _is_read(body, flag):
        made.copy(BodyValue(body, flag), always, 1)
    made.run(body)
    for i, outer in enumerate(node.outputs):
        if i >= carried and outer.name:
            element = BodyValue(body, inner.outputs[1 + i])
            made.element(outer, element, outer, 0, back=False, reads=False)
    # Before its states change: the condition may be one of them.
    made.count("next_turn", limit, BodyValue(body, inner.outputs[0]))
    made.carry(body, FIRST, inner.outputs[1 : 1 + carried])
    made.jump(True, head)
    made.land(away)
    _end(made, body, FIRST, node.outputs[:carried])
    return tuple(made.calls)


def scan(node: ir.Node, body: Body, inputs: Values, length: int) -> tuple[Call, ...]:
    """Scan: a turn for every element of the scan inputs."""
    inner = body.program.compilation.graph
    states = len(node.inputs) - int(graph.attribute(node, "num_scan_inputs", 0))
    made = _Calls(inputs)
    _begin(made, body, node, 0, states)
    always, limit = Constant(np.ones(1, np.uint8)), Constant(np.array([length]))
    made.count("begin_turns", limit, always)
    away = made.jump(False)
    head = len(made.calls)
    for k, whole in enumerate(graph.operands(node)[states:]):
        if _is_read(body, inner.inputs[states + k]):
            axis, back = _along(node, "input", k)
            element = BodyValue(body, inner.inputs[states + k])
            made.element(element, whole, whole, axis, back=back, reads=True)
    made.run(body)
    for k, whole in enumerate(node.outputs[states:]):
        if whole.name:
            axis, back = _along(node, "output", k)
            element = BodyValue(body, inner.outputs[states + k])
            made.element(whole, element, whole, axis, back=back, reads=False)
    made.carry(body, 0, inner.outputs[:states])
    made.count("next_turn", limit, always)
    made.jump(True, head)
    made.land(away)
    _end(made, body, 0, node.outputs[:states])
    return tuple(made.calls)


def _begin(made: _Calls, body: Body, node: ir.Node, first: int, states: int) -> None:
    for index in range(first, first + states):
        state = body.program.compilation.graph.inputs[index]
        made.copy(BodyValue(body, state), graph.operand(node, index), graph.nbytes(state))


def _end(made: _Calls, body: Body, first: int, outputs: Sequence[ir.Value]) -> None:
    for state, outer in zip(body.program.compilation.graph.inputs[first:], outputs):
        if outer.name:
            made.copy(outer, BodyValue(body, state), graph.nbytes(outer))


def _is_read(body: Body, value: ir.Value) -> bool:
    """True if a body has memory for an input of its own."""
    return value in body.program.placement.values


def _along(node: ir.Node, side: str, index: int) -> tuple[int, bool]:
    """Axis of a scanned or stacked value, and whether turns go along it backwards."""
    axes = graph.attribute(node, f"scan_{side}_axes", None)
    directions = graph.attribute(node, f"scan_{side}_directions", None)
    return (axes[index] if axes else 0), bool(directions and directions[index])


def seconds(calls: Sequence[Call], turns: int) -> float:
    """Predicted seconds of the calls around bodies, those between the first and the last jump once a turn."""
    jumps = [i for i, call in enumerate(calls) if isinstance(call, Jump)]
    total = 0.0
    for i, call in enumerate(calls):
        times = turns if jumps[0] < i < jumps[-1] else 1
        total += times * SECONDS
        if isinstance(call, KernelCall) and call.kernel == COPY:
            blocks, block = _sizes(call)[:2]
            total += times * blocks * block / BYTES_PER_SECOND
    return total


def _sizes(call: KernelCall) -> list[int]:
    table = call.arguments[-1]
    assert isinstance(table, Constant)
    return [int(n) for n in table.array]
