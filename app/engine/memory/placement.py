"""A place for every buffer of an ordered plan: the best of the ways to share bytes in place."""

from app.engine.memory.greedy import solve
from app.engine.memory.problem import Solution
from app.engine.memory.rigid import improve
from app.engine.memory.storage_graph import StorageGraph, build
from app.engine.plan import Compilation


def place(compilation: Compilation, bound: int = 0) -> tuple[StorageGraph, Solution]:
    """The storage graph and the placement with the lowest peak.

    Whole values are computed in place. Where that takes more than `bound` bytes, parts of values are
    tried too.
    """
    storage = build(compilation)
    solution = _solved(storage)
    if solution.peak <= bound:
        return storage, solution
    parts = build(compilation, whole=False)
    if parts.problem == storage.problem:
        return storage, solution
    other = _solved(parts)
    return (parts, other) if other.peak < solution.peak else (storage, solution)


def _solved(storage: StorageGraph) -> Solution:
    return improve(storage.problem, solve(storage.problem))
