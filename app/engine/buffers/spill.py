"""Values in further memories: where all steps ask for one, and where the first has no room for all.

A value lives in one memory from its write to its last read: the one that its steps ask for, where they agree
(`Implementation.memories`), else the first. Steps read and write it there, or in a copy that is staged where
they ask for it. Workspaces stay in the first memory, constants live in the largest. What costs least time
moves out of a memory without room: to the first of one that steps ask for, to the next ones of the first.
Where the last has no room either, nothing fits.

Source of the choice (cost by bytes freed at the fullest step, then moving back what was not needed):
Chaitin, 1982, "Register allocation and spilling via graph coloring", section 4.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import buffer_of, touched, unique
from app.engine.core import graph
from app.engine.core.placement import Bank, BufferAssignment, Held, Scratch, Storage
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext, main_memory
from app.engine.memory import greedy, portfolio
from app.engine.memory.problem import Buffer, Problem, Solution, live_bytes, validate
from app.engine.types.target import Memory

Demands = Mapping[int, Mapping[ir.Value, Held]]  # by step

NO_COPIES: Mapping[str, tuple[Buffer, ...]] = {}


@dataclass(frozen=True, slots=True)
class Spread:
    """Buffers of a plan by memory.

    Attributes:
        solution: of the first memory; the peak may exceed it where nothing helps.
        banks: the further memories in use, each behind the one before it.
        seconds: that slower memories, and copies of values, are predicted to cost.
        staged: copies of operands; their offsets are those of their memory.
    """

    solution: Solution
    banks: tuple[Bank, ...]
    seconds: float
    staged: tuple[Scratch, ...] = ()


def demands(compilation: Compilation) -> Demands:
    """Memories that the chosen rows ask for, by step; empty where none asks."""
    implementation = compilation.plan.require("implementation")
    context = PlanningContext.of(compilation)
    found = {
        step: implementation[group].implementation.memories(group, context)
        for step, group in enumerate(compilation.plan.require("order"))
    }
    return {step: asked for step, asked in found.items() if asked}


def spread(
    compilation: Compilation, storage: BufferAssignment, budget: int, asked: Demands, *, spill: bool
) -> Spread | None:
    """Places in all memories of the target, the first within `budget` bytes; None where nothing fits.

    Without `spill` nothing leaves the first memory that its readers do not ask for elsewhere.
    """
    work = _Work(compilation, storage, asked)
    first, *further = compilation.target.memories
    for memory in further:
        own = work.residents(memory.name)
        work.move(work.leaving(memory, own, memory.size), first.name)
    rest = work.leaving(first, work.residents(first.name), budget) if spill else set()
    for memory in further:
        work.move(rest, memory.name)
        rest = work.leaving(memory, rest, memory.size) if rest else rest
    if rest:
        return None
    solutions = {memory.name: solved(work.problem(memory), ()) for memory in (first, *further)}
    if any(solutions[memory.name].peak > memory.size for memory in further):
        return None
    if spill and solutions[first.name].peak > budget:
        return None
    banks: list[Bank] = []
    start = solutions[first.name].peak
    for memory in further:
        if not solutions[memory.name].offsets:
            continue
        start += -start % memory.alignment
        banks.append(Bank(memory.name, start, solutions[memory.name]))
        start += solutions[memory.name].peak
    return Spread(solutions[first.name], tuple(banks), work.seconds(), work.staged())


@dataclass
class _Work:
    """Homes of storages, and the copies that steps ask for."""

    compilation: Compilation
    storage: BufferAssignment
    asked: Demands
    traffic: dict[str, int] = field(init=False)
    held: dict[str, Storage] = field(init=False)
    home: dict[str, str] = field(default_factory=dict)
    copies: dict[str, list[Scratch]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, str] = field(default_factory=dict)  # of copies, by id
    constants: set[str] = field(default_factory=set)  # copies of them
    taken: set[str] = field(init=False)

    def __post_init__(self) -> None:
        first, *_ = self.compilation.target.memories
        self.traffic = _traffic(self.compilation, self.storage)
        self.held = {s.id: s for s in self.storage.storages if s.space == "arena"}
        of = {value: row.id for row in self.storage.storages for value in row.values if row.id in self.held}
        self.taken = {row.id for row in self.storage.storages} | {s.id for s in self.storage.scratch}
        wanted: dict[str, set[str]] = defaultdict(set)
        for step, demands in self.asked.items():
            for value, held in demands.items():
                owner = of.get(value, "")
                wanted[owner].add(held.memory)
                self._copy(step, value, held, owner)
        for group, choice in self.compilation.plan.require("implementation").items():
            if choice.implementation.memories is main_memory:
                for value in touched(group, choice):
                    wanted[of.get(value, "")].add(first.name)
        for name in self.held:
            self.home[name] = next(iter(wanted[name])) if len(wanted[name]) == 1 else first.name

    def _copy(self, step: int, value: ir.Value, held: Held, owner: str) -> None:
        target = self.compilation.target
        outside = target.store.name if graph.is_constant(value) else target.memories[0].name
        if not owner and held.memory == outside:
            return
        name = unique(f"{value.name}.staged.{step}", self.taken)
        reason = f"{value.name!r} in {held.memory!r}, where step {step} asks for it"
        self.copies[owner].append(Scratch(name, step, step, held.nbytes, reason, "staged"))
        self.memory[name] = held.memory
        if graph.is_constant(value):
            self.constants.add(name)

    def residents(self, memory: str) -> set[str]:
        """Storages that live in a memory."""
        return {name for name, home in self.home.items() if home == memory}

    def move(self, names: Iterable[str], memory: str) -> None:
        """Let storages live elsewhere."""
        self.home.update(dict.fromkeys(names, memory))

    def staged(self) -> tuple[Scratch, ...]:
        """The copies of what lives elsewhere than a step asks for it."""
        return tuple(
            copy
            for owner, copies in self.copies.items()
            for copy in copies
            if self.home.get(owner) != self.memory[copy.id]
        )

    def problem(self, memory: Memory) -> Problem:
        """Everything in a memory: storages, workspaces in the first, copies."""
        rows = [buffer_of(self.held[i], memory.alignment) for i in sorted(self.residents(memory.name))]
        scratch: list[Buffer] = []
        if memory == self.compilation.target.memories[0]:
            scratch = [b for b in self.storage.problem.buffers if b.id not in self.held]
        copies = [s for s in self.staged() if self.memory[s.id] == memory.name]
        return Problem((*rows, *scratch, *(_buffer(s, memory) for s in copies)))

    def leaving(self, memory: Memory, movable: Collection[str], capacity: int) -> set[str]:
        """Those of some storages that leave a memory; steps that ask for them there get copies."""
        copies = {
            name: tuple(_buffer(s, memory) for s in self.copies[name] if self.memory[s.id] == memory.name)
            for name in movable
            if name in self.copies
        }
        return leaving(self.problem(memory), movable, capacity, self.traffic, copies)

    def seconds(self) -> float:
        """Seconds that slower memories and copies of values cost; copies of constants are part of steps."""
        memories = {memory.name: memory for memory in self.compilation.target.memories}
        first, *_ = self.compilation.target.memories
        left, found = dict(self.traffic), 0.0
        staged = {copy.id for copy in self.staged()}
        for owner, copies in self.copies.items():
            for copy in (c for c in copies if c.id in staged - self.constants):
                ends = memories[self.home.get(owner, first.name)], memories[self.memory[copy.id]]
                found += copy.nbytes / min(m.bandwidth for m in ends)
                if owner:
                    left[owner] = max(left[owner] - copy.nbytes, 0)
        for memory in self.compilation.target.memories[1:]:
            slower = max(1 / memory.bandwidth - 1 / first.bandwidth, 0.0)
            found += slower * sum(left[i] for i in sorted(self.residents(memory.name)))
        return found


def _buffer(copy: Scratch, memory: Memory) -> Buffer:
    return Buffer(copy.id, copy.first, copy.last + 1, copy.nbytes, memory.alignment)


def _traffic(compilation: Compilation, storage: BufferAssignment) -> dict[str, int]:
    """By storage, the bytes that steps read and write, as its values lie in it."""
    order, implementation = compilation.plan.require("order"), compilation.plan.require("implementation")
    size = {
        value: (row.id, part.nbytes)
        for row in storage.storages
        for value, part in zip(row.values, row.slices, strict=True)
    }
    found = {row.id: 0 for row in storage.storages}
    for group in order:
        for value in touched(group, implementation[group]):
            if value in size:
                row, nbytes = size[value]
                found[row] += nbytes
    return found


def leaving(
    problem: Problem,
    movable: Collection[str],
    capacity: int,
    traffic: Mapping[str, int],
    copies: Mapping[str, tuple[Buffer, ...]] = NO_COPIES,
) -> set[str]:
    """Buffers that must leave so that the rest fits; where that is not enough, all that may.

    `copies` are what stays of a buffer that leaves.
    At the fullest step, the one with the least traffic for the bytes that are too many leaves first. What
    fits again at the end stays, the one with the most traffic first.
    """
    moved: set[str] = set()
    while (solution := solved(problem, moved, copies)).peak > capacity:
        rest = _without(problem, moved, copies)
        step, needed = max(live_bytes(rest), key=lambda at: at[1])
        if needed <= capacity:  # there is room, in pieces: what ends highest is in the way
            highest = max(rest.buffers, key=lambda b: (solution.offsets[b.id] + b.extent, b.id))
            step, needed = highest.lower, solution.peak
        alive = [b for b in rest.buffers if b.id in movable and b.extent and b.lower <= step < b.upper]
        if not alive:
            return set(movable)
        excess = needed - capacity
        moved.add(min(alive, key=lambda b: (traffic[b.id] / min(b.extent, excess), b.id)).id)
    for back in sorted(moved, key=lambda i: (-traffic[i], i)):
        if solved(problem, moved - {back}, copies).peak <= capacity:
            moved.discard(back)
    return moved


def solved(
    problem: Problem, moved: Collection[str], copies: Mapping[str, tuple[Buffer, ...]] = NO_COPIES
) -> Solution:
    """A validated placement of what has not moved, and of the copies of what has."""
    rest = _without(problem, moved, copies)
    found = greedy.solve(rest) if any(b.parts for b in rest.buffers) else portfolio.solve(rest)
    validate(rest, found)
    return found


def _without(problem: Problem, moved: Collection[str], copies: Mapping[str, tuple[Buffer, ...]]) -> Problem:
    kept = (b for b in problem.buffers if b.id not in moved)
    return Problem((*kept, *(b for name in sorted(moved) for b in copies.get(name, ()))))
