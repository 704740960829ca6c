"""A place for every buffer of an ordered plan: the best of the ways to share bytes in place."""

from app.engine.buffers.buffer_assignment import build
from app.engine.core.placement import BufferAssignment
from app.engine.core.plan import Compilation
from app.engine.memory import greedy, portfolio
from app.engine.memory.problem import Solution


def place(
    compilation: Compilation, bound: int = 0, *, search: bool = True
) -> tuple[BufferAssignment, Solution]:
    """The storage graph and the placement with the lowest peak.

    Whole values are computed in place. Where that takes more than `bound` bytes, parts of values are
    tried too. Without `search`, placements are greedy.
    """
    storage = build(compilation)
    solution = offsets(storage, search)
    if solution.peak <= bound:
        return storage, solution
    parts = build(compilation, whole=False)
    if parts.problem == storage.problem:
        return storage, solution
    other = offsets(parts, search)
    return (parts, other) if other.peak < solution.peak else (storage, solution)


def offsets(storage: BufferAssignment, search: bool = True) -> Solution:
    """An offset for every buffer of a storage graph; without `search` greedily."""
    problem = storage.problem
    parts = any(b.parts for b in problem.buffers)
    return portfolio.solve(problem) if search or parts else greedy.solve(problem)


def greedy_peak(compilation: Compilation) -> int:
    """Bytes of the arena that a plan with an order takes, placed greedily."""
    return place(compilation, search=False)[1].peak
