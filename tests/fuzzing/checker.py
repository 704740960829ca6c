"""A validator of programs that shares nothing with the planner: it executes the plan on names instead of bytes.

Every byte range of the arena remembers which values it holds. A kernel that writes a range takes the range from
all values that were there; a kernel that reads a value whose bytes were taken is an error of the plan.
"""

from dataclasses import dataclass, field

import onnx_ir as ir

from app.engine.core.placement import Location
from app.engine.core.program import Program, Step


class InvalidPlanError(AssertionError):
    """A plan that would compute on the wrong bytes."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes [first, last) of one memory: the arena, or what a graph input, output or initializer owns."""

    memory: object
    first: int
    last: int

    def overlaps(self, other: "_Range") -> bool:
        return self.memory == other.memory and self.first < other.last and other.first < self.last

    def without(self, other: "_Range") -> list["_Range"]:
        """What is left of it."""
        if not self.overlaps(other):
            return [self]
        parts = (self.first, min(other.first, self.last)), (max(other.last, self.first), self.last)
        return [_Range(self.memory, a, b) for a, b in parts if a < b]


def _range(at: Location) -> _Range:
    owner: object = "arena" if at.space == "arena" else (at.space, at.root)
    return _Range(owner, at.offset, at.offset + at.nbytes)


@dataclass
class _Memory:
    """The values whose bytes are intact, with their ranges."""

    held: dict[ir.Value, _Range] = field(default_factory=dict)

    def write(self, where: _Range) -> None:
        """Bytes are overwritten: values that lie there are lost."""
        self.held = {v: r for v, r in self.held.items() if not r.overlaps(where)}


def check_program(program: Program) -> None:
    """Execute the plan on names.

    Raises:
        InvalidPlanError: a step reads a value that is not there, writes outside the arena or over what it
            still reads, an output of the graph is lost, or the peak is not that of the buffers.
    """
    placement = program.placement
    locations = placement.values
    graph = program.compilation.graph
    memory = _Memory()
    constants = set(graph.initializers.values())
    for value in graph.inputs:
        if value in locations:
            memory.held[value] = _range(locations[value])
    scratch = [b for b in placement.buffers if not b.values]
    for step in program.steps:
        for buffer in (b for b in scratch if b.first <= step.index <= b.last):
            _scratch(step, _Range("arena", buffer.offset, buffer.offset + buffer.nbytes), memory, program)
        _execute(step, memory, program, constants)
    for value in graph.outputs:
        if value in locations and value not in memory.held and value not in constants:
            raise InvalidPlanError(f"output {value.name!r} of the graph is overwritten before the end")
    for value, where in locations.items():
        if where.space == "arena" and not 0 <= where.offset <= program.arena_bytes - where.nbytes:
            raise InvalidPlanError(
                f"value {value.name!r} lies outside the arena of {program.arena_bytes} byte"
            )
    first = program.compilation.target.memories[0].name
    peak = max((b.offset + b.nbytes for b in placement.buffers if b.memory == first), default=0)
    if peak > placement.solution.peak:
        raise InvalidPlanError(f"buffers end at byte {peak}, the plan says {placement.solution.peak}")
    if placement.solution.lower_bound > placement.solution.peak:
        raise InvalidPlanError("the lower bound is above the peak")


def _scratch(step: Step, where: _Range, memory: _Memory, program: Program) -> None:
    """Workspace of a step: neither what it reads nor what it writes may lie there."""
    locations = program.placement.values
    for value in (*step.group.inputs, *step.group.outputs):
        if value in locations and _range(locations[value]).overlaps(where):
            raise InvalidPlanError(f"step {step.group.name!r}: its workspace lies over {value.name!r}")
    memory.write(where)


def _execute(step: Step, memory: _Memory, program: Program, constants: set[ir.Value]) -> None:
    locations = program.placement.values
    inputs = [v for v in step.group.inputs if v in locations and v not in constants]
    outputs = [v for v in step.group.outputs if v in locations]
    for value in inputs:
        if value not in memory.held:
            raise InvalidPlanError(
                f"step {step.group.name!r} reads {value.name!r}, whose bytes were overwritten"
            )
    written = {out: _written(out, step, memory, program) for out in outputs}
    row = step.choice.implementation
    copies = row.partial and row.backend == "accelerator"  # rows of described machines have no calls
    runs = bool(step.calls) or not step.choice.views or copies
    for out in outputs:
        if written[out] and not runs:
            raise InvalidPlanError(f"view {out.name!r}: bytes {written[out]} are none of its sources'")
        for value in inputs:
            over = any(memory.held[value].overlaps(r) for r in written[out])
            if over and (value, out) not in step.choice.inplace:
                raise InvalidPlanError(
                    f"step {step.group.name!r} writes {out.name!r} over {value.name!r}, which it reads"
                )
        for other in outputs:
            if other is not out and any(r.overlaps(s) for r in written[out] for s in written[other]):
                raise InvalidPlanError(f"outputs {out.name!r} and {other.name!r} of one step overlap")
    for ranges in written.values():
        for where in ranges:
            memory.write(where)
    memory.held.update((v, _range(locations[v])) for v in outputs)


def _written(out: ir.Value, step: Step, memory: _Memory, program: Program) -> list[_Range]:
    """The bytes of an output that are not views of what the step reads."""
    locations = program.placement.values
    left = [_range(locations[out])]
    for source, view, offset in step.choice.views:
        if out not in (source, view) or source not in locations or view not in locations:
            continue
        if out is source and view not in memory.held:
            continue
        at, inside = _range(locations[source]), _range(locations[view])
        if inside.memory != at.memory or inside.first != at.first + offset:
            raise InvalidPlanError(f"{view.name!r} is no view of byte {offset} of {source.name!r}")
        left = [part for r in left for part in r.without(inside)]
    return left
