"""Values in slower memories, where the first has no room for all: what costs least time moves out.

A value lives in one memory from its write to its last read; steps read and write it there. Workspaces
stay in the first memory. Where the last memory has no room either, nothing fits.

Source of the choice (cost by bytes freed at the fullest step, then moving back what was not needed):
Chaitin, 1982, "Register allocation and spilling via graph coloring", section 4.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.engine.buffers.buffer_assignment import buffer_of, touched
from app.engine.core.placement import Bank, BufferAssignment
from app.engine.core.plan import Compilation
from app.engine.memory import greedy, portfolio
from app.engine.memory.problem import Problem, Solution, live_bytes, validate
from app.engine.types.target import Memory


@dataclass(frozen=True, slots=True)
class Spread:
    """Buffers of a plan by memory.

    Attributes:
        solution: of the first memory; the peak may exceed it where nothing helps.
        banks: the further memories in use, each behind the one before it.
        seconds: that slower memories are predicted to cost.
    """

    solution: Solution
    banks: tuple[Bank, ...]
    seconds: float


def spread(compilation: Compilation, storage: BufferAssignment, budget: int) -> Spread | None:
    """Places in all memories of the target, the first within `budget` bytes; None where nothing fits."""
    memories = compilation.target.memories
    traffic = _traffic(compilation, storage)
    held = {s.id: s for s in storage.storages if s.space == "arena"}
    scratch = [buffer for buffer in storage.problem.buffers if buffer.id not in held]
    rest = set(held)
    found: list[tuple[Memory, Solution]] = []
    for level, memory in enumerate(memories):
        capacity = budget if level == 0 else memory.size
        buffers = [buffer_of(held[i], memory.alignment) for i in sorted(rest)]
        problem = Problem((*buffers, *(scratch if level == 0 else ())))
        moved = leaving(problem, rest, capacity, traffic)
        found.append((memory, solved(problem, moved)))
        if found[-1][1].peak > capacity:
            return None
        rest = moved
        if not rest:
            break
    if rest:
        return None
    banks: list[Bank] = []
    start, seconds = found[0][1].peak, 0.0
    for memory, solution in found[1:]:
        start += -start % memory.alignment
        banks.append(Bank(memory.name, start, solution))
        start += solution.peak
        slower = max(1 / memory.bandwidth - 1 / memories[0].bandwidth, 0.0)
        seconds += slower * sum(traffic[i] for i in solution.offsets)
    return Spread(found[0][1], tuple(banks), seconds)


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
    problem: Problem, movable: Collection[str], capacity: int, traffic: Mapping[str, int]
) -> set[str]:
    """Buffers that must leave so that the rest fits; where that is not enough, all that may.

    At the fullest step, the one with the least traffic for the bytes that are too many leaves first. What
    fits again at the end stays, the one with the most traffic first.
    """
    moved: set[str] = set()
    while (solution := solved(problem, moved)).peak > capacity:
        rest = _without(problem, moved)
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
        if solved(problem, moved - {back}).peak <= capacity:
            moved.discard(back)
    return moved


def solved(problem: Problem, moved: Collection[str]) -> Solution:
    """A validated placement of what has not moved."""
    rest = _without(problem, moved)
    found = greedy.solve(rest) if any(b.parts for b in rest.buffers) else portfolio.solve(rest)
    validate(rest, found)
    return found


def _without(problem: Problem, moved: Collection[str]) -> Problem:
    return Problem(tuple(b for b in problem.buffers if b.id not in moved))
