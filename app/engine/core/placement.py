"""Buffers of a plan, and where every byte of them lies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.memory.problem import Problem, Solution

Space = Literal["arena", "input", "output", "weights", "host"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value's bytes are: an offset in one of the program's memories.

    In space `arena` the offset counts from the arena's start. Graph inputs, graph outputs and
    weights have memory of their own (offset 0 unless they are a view into it); what is dynamic
    lives on the `host` as a Python object and has no address. `root` is the value that owns the
    memory: the graph input, graph output or initializer.
    """

    space: Space
    offset: int
    nbytes: int
    root: ir.Value | None = None


class Slice(NamedTuple):
    """Bytes of a buffer while one value lives there; steps are inclusive."""

    value: str
    offset: int  # within the buffer
    nbytes: int
    first: int
    last: int


class Span(NamedTuple):
    """Bytes of a buffer that are in use from step `first` to `last`, inclusive."""

    offset: int  # within the buffer
    nbytes: int
    first: int
    last: int


class Held(NamedTuple):
    """Demand of a step: an operand lies in this memory of the target while it runs."""

    memory: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The bytes of one alias class.

    Attributes:
        id: unique among storages and scratch.
        values: by first use.
        slices: where each of them lies, and from its first step to its last.
        nbytes: of all values together.
        root: what owns the memory outside the arena; None in the arena.
        first: the step that writes first; -1 for inputs and weights.
        last: the last step that reads or writes.
        reason: why it exists, and why it is shared.
    """

    id: str
    values: tuple[ir.Value, ...]
    slices: tuple[Slice, ...]
    space: Space
    nbytes: int
    root: ir.Value | None
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that holds no value of the plan: a workspace of one step, or a library's own, which it keeps.

    Attributes:
        nbytes: of all threads together.
        kind: `workspace`, `body`, `library`, or `staged`: a copy of an operand where the step asks for it.
    """

    id: str
    first: int
    last: int
    nbytes: int
    reason: str
    kind: str = "workspace"


@dataclass(frozen=True, slots=True)
class BufferAssignment:
    """Which values share a buffer, and every other piece of memory that a plan touches.

    Attributes:
        workspaces: ids of scratch by group, one per Workspace argument of its calls, in order;
            an object that is passed twice is named twice.
        bodies: id of the scratch that the bodies of a group's calls work in, one at a time.
        problem: what lies in the arena, as buffers.
        naive: bytes if no memory of the arena were ever used twice.
        unplanned: names of what has no bound: dynamic values, by first use, then bodies that are not planned.
    """

    storages: tuple[Storage, ...]
    scratch: tuple[Scratch, ...]
    workspaces: Mapping[Group, tuple[str, ...]]
    bodies: Mapping[Group, str]
    problem: Problem
    naive: int
    unplanned: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrderedBuffers:
    """Buffers of a plan in the order of its groups, and their offsets: what the order was chosen by.

    Attributes:
        bound: bytes below which no order of the chosen implementations stays; None where it is not known.
    """

    assignment: BufferAssignment
    solution: Solution
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedBuffer:
    """A row of memory.json: one rectangle of the memory map.

    Lifespan is half-open in steps: [first, last + 1) of the order.
    """

    name: str
    kind: str  # activation | conversion | workspace | body | library | staged
    offset: int  # byte
    nbytes: int
    first: int  # step that writes it
    last: int  # last step that reads it
    values: tuple[str, ...]  # every value that lives in it
    reason: str  # why it exists, and why it is shared
    slices: tuple[Slice, ...] = ()  # where each of its values lies, and when
    parts: tuple[Span, ...] = ()  # what of it is in use when; empty where all is from first to last
    memory: str = ""  # of the target

    @property
    def spans(self) -> tuple[Span, ...]:
        """The parts; all of the buffer where there are none."""
        return self.parts or (Span(0, self.nbytes, self.first, self.last),)


@dataclass(frozen=True, slots=True)
class Bank:
    """Part of a plan in a further memory; its offsets count from its start, which follows the others."""

    memory: str
    start: int  # byte of the arena
    solution: Solution


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every byte lives.

    Attributes:
        values: a location for every value that is not dynamic.
        workspaces: arena offset of each Workspace argument of a group's calls, in order.
        bodies: arena offset of what the bodies of a group's calls work in.
        solution: offsets with peak, lower bound and gap, as proved by `validate`, in the first memory.
        banks: slower memories in use; in the arena they follow the first.
        delay: seconds that slower memories are predicted to cost.
        naive: bytes if no memory were ever used twice.
        activations: most bytes of values alive at a step, workspace and alignment left out.
        policies: what the same buffers take under the policies of other systems.
        unplanned: what lives outside the arena and has no bound: dynamic values, and bodies that the
            reference evaluator runs, as `node/attribute`.
    """

    values: Mapping[ir.Value, Location]
    workspaces: Mapping[Group, tuple[int, ...]]
    buffers: tuple[PlacedBuffer, ...]
    solution: Solution
    naive: int
    activations: int = 0
    policies: tuple[Mapping[str, object], ...] = ()
    unplanned: tuple[str, ...] = ()
    bodies: Mapping[Group, int] = field(default_factory=dict)
    banks: tuple[Bank, ...] = ()
    delay: float = 0.0

    @property
    def arena_bytes(self) -> int:
        """Total size over all memories, in bytes."""
        return self.banks[-1].start + self.banks[-1].solution.peak if self.banks else self.solution.peak
