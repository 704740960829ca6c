"""Offsets by a portfolio of methods, in turn: the next one only where those before left something to gain.

Lower bound; greedy placements, of which the first needs no compiled code; for small problems a complete
search at the lower bound, then by bisection; for large ones greedy placements again, in orders that learn
from the last. Budgets are counts, never times, so that the same problem gives the same plan everywhere.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.engine.memory import greedy
from app.engine.memory.exact.search import Search, instance
from app.engine.memory.greedy import Array, Columns
from app.engine.memory.problem import Buffer, Problem, Solution, live_bytes, lower_bound, validate

# Failed branches of all searches together. One costs about 20 microseconds on hundreds of buffers.
BUDGET = 30_000
WITH_CAPACITY = 100_000  # where a capacity is asked for, and not the least peak
# Of it, what the first search, at the lowest capacity of interest, may take.
FIRST_SHARE = 0.5
# Pairs of buffers and placed ones that the learning orders may look at.
LOOKS = 800_000_000
FEW = 1_500  # buffers: with more, greedy methods come in the order LARGE, and a peak near the bound is enough
CLOSE = 256  # part of the bound by which the peak of more than FEW buffers may exceed it
GREEDY_LOOKS = 4_000_000_000  # pairs of buffers that greedy placements of more than FEW may look at
# Greedy methods in the order of trial: `gap` places buffers in the order of a rank, each in the
# smallest gap that holds it; `skyline` always the one that can lie lowest, ranks break ties.
SMALL = (
    *(("skyline", name) for name in ("start", "duration", "pressure")),  # the quickest to rank first
    *(("gap", name) for name, _ in greedy.ORDERS),
)
LARGE = (
    ("gap", "conflicts"),
    ("gap", "size"),
    ("skyline", "pressure"),
    ("gap", "pressure"),
    ("gap", "duration"),
    ("skyline", "duration"),
    ("skyline", "start"),
    ("gap", "area"),
    ("gap", "start"),
)


@dataclass(slots=True)
class _Best:
    """The best placement so far, and what is known about the least peak."""

    columns: Columns
    bound: int  # byte, proved
    goal: int  # byte: a peak up to here ends the search
    offsets: Array | None = None
    peak: int = 0
    method: str = ""
    nodes: int = 0
    rank: str = "size"  # of the best greedy placement

    def offer(self, offsets: Array, peak: int, method: str) -> None:
        if self.offsets is None or peak < self.peak:
            self.offsets, self.peak, self.method = offsets, peak, method

    @property
    def done(self) -> bool:
        return self.offsets is not None and self.peak <= max(self.goal, self.bound)


def solve(problem: Problem, budget: int | None = None, load: Callable[[], None] = lambda: None) -> Solution:
    """The best placement that any method finds, validated; `budget` counts failed branches of searches.

    `load` is called once before the first compiled method, and not at all if none is needed.

    With a capacity, any placement below it will do, and the search ends at the first. Without one it
    looks for the least peak. A peak above the capacity is no error here: `proved` and `lower_bound` say
    whether a smaller one can exist. Imports numba only if the first greedy placement is not good enough.
    """
    if not problem.buffers:
        return Solution({}, 0, 0, True, "nothing to place")
    if budget is None:
        budget = BUDGET if problem.capacity is None else WITH_CAPACITY
    if any(b.parts for b in problem.buffers):
        return _with_parts(problem)
    columns = greedy.columns_of(problem)
    bound = lower_bound(problem)
    goal = max(bound, problem.capacity or 0)
    if problem.capacity is None and len(problem.buffers) > FEW:
        goal += goal // CLOSE
    best = _Best(columns, bound, goal)
    first = greedy.largest_first(problem, columns)
    if first is not None:
        best.offer(*first, "greedy by size")
    if not best.done:
        load()
        _greedy(best)
    if not best.done:
        given = instance(columns)
        if given is not None:
            _search(best, Search(given), given.unit, budget, problem.capacity)
        if not best.done:
            _learn(best)
    assert best.offsets is not None
    solution = Solution(
        {b.id: at for b, at in zip(problem.buffers, best.offsets.tolist(), strict=True)},
        best.peak,
        best.bound,
        best.peak == best.bound,
        best.method,
        best.nodes,
    )
    validate(Problem(problem.buffers), solution)
    return solution


def _with_parts(problem: Problem) -> Solution:
    """The best placement of buffers whose parts live at different times; no complete search knows them."""
    first = greedy.by_size(problem) or greedy.solve(problem)
    if first.proved:
        return first
    from app.engine.memory.partial_lifetimes import improve  # imports numba

    found = improve(problem, first)
    return found if found.proved else min(found, greedy.solve(problem), key=lambda s: s.peak)


@dataclass(frozen=True, slots=True)
class Timed:
    """A placement with the seconds that the solver took, and those of loading compiled code before."""

    solution: Solution
    seconds: float
    load_seconds: float


def timed(problem: Problem, clock: Callable[[], float] = time.perf_counter) -> Timed:
    """Solve a problem and tell solving from loading; code that is loaded already takes no time."""
    loading = 0.0

    def load() -> None:
        nonlocal loading
        started = clock()
        load_compiled()
        loading = clock() - started

    started = clock()
    solution = solve(problem, load=load)
    return Timed(solution, clock() - started - loading, loading)


def load_compiled() -> None:
    """Load the compiled methods, and compile those that the cache lacks."""
    rows = ((0, 3, 4), (3, 9, 4), (0, 9, 4), (9, 21, 4), (0, 21, 4), (2, 4, 3), (8, 10, 3), (1, 9, 2))
    problem = Problem(tuple(Buffer(str(i), *row, alignment=1) for i, row in enumerate(rows)))
    columns = greedy.columns_of(problem)
    bound = lower_bound(problem)
    best = _Best(columns, bound, bound)
    _greedy(best)
    _learn(best)
    given = instance(columns)
    assert given is not None
    Search(given).below(bound, 1)


def shortage(problem: Problem, solution: Solution) -> str | None:
    """Reason why a solution does not fit the capacity, with the proof if there is one; None if it fits."""
    capacity = problem.capacity
    if capacity is None or solution.peak <= capacity:
        return None
    step, needed = max(live_bytes(problem), key=lambda at: at[1])
    if needed > capacity:
        return (
            f"infeasible: the capacity is {capacity} byte, and {needed} byte live at step {step} "
            "(proof: lower bound)"
        )
    if solution.lower_bound > capacity:
        return (
            f"infeasible: no placement fits into {capacity} byte (proof: complete search, "
            f"{solution.nodes} nodes); the best one found needs {solution.peak} byte"
        )
    return (
        f"undecided: none was found that fits into {capacity} byte, the best needs {solution.peak} byte; "
        f"whether one exists is not proved (lower bound {solution.lower_bound} byte, {solution.nodes} nodes)"
    )


def _greedy(best: _Best) -> None:
    """The greedy methods in turn, those that place each buffer in a gap and those that fill a skyline."""
    from app.engine.memory import greedy_core

    n = len(best.columns.extent)
    methods, most = (SMALL, len(SMALL)) if n <= FEW else (LARGE, max(GREEDY_LOOKS // (n * n), 2))
    for method, name in methods[:most]:
        order = greedy.order_by(best.columns, dict(greedy.ORDERS)[name])
        if method == "gap":
            limit = 1 << 62 if best.offsets is None else best.peak
            offsets, peak = greedy_core.place(*_row(best.columns), order, limit)
        else:
            offsets, peak = greedy_core.rise(*_row(best.columns), order)
        if peak >= 0 and (best.offsets is None or peak < best.peak):
            best.offer(offsets, peak, f"greedy by {name}" if method == "gap" else f"lowest first, by {name}")
            best.rank = name
        if best.done:
            return


def _row(c: Columns) -> tuple[Array, Array, Array, Array]:
    return c.lower, c.upper, c.extent, c.alignment


def _search(best: _Best, search: Search, unit: int, budget: int, capacity: int | None) -> None:
    """Complete search at the goal, then between the proved bound and the best peak, by bisection."""
    low = -(-best.bound // unit)  # units: no smaller peak exists
    best.bound = low * unit
    floor = low  # below it the budget does not suffice
    share = budget if capacity is not None and capacity >= best.bound else int(budget * FIRST_SHARE)
    at = max(best.goal // unit, low)
    while not best.done and budget > 0:
        outcome = search.below(at * unit, min(share, budget))
        best.nodes += outcome.nodes
        budget -= outcome.failures
        if outcome.verdict == "feasible":
            assert outcome.offsets is not None
            best.offer(outcome.offsets, int(np.max(outcome.offsets + best.columns.extent)), "search")
        elif outcome.verdict == "infeasible":
            if best.bound < (at + 1) * unit:
                best.bound = (at + 1) * unit
            floor = max(floor, at + 1)
            if capacity is not None and at * unit >= capacity // unit * unit:
                return
        else:
            if capacity is not None and capacity >= best.bound:
                return
            floor = at + 1
        top = best.peak // unit - 1
        if floor > top:
            return
        # What was infeasible shortly above the bound often is so only there: look next to it first.
        at = floor if outcome.verdict == "infeasible" else (floor + top) // 2
        share = max(budget // 4, 1)


def _learn(best: _Best) -> None:
    """Greedy placements again: what ended highest comes earlier in the next order.

    Source: squeaky wheel optimization, Joslin and Clements, 1999.
    """
    from app.engine.memory import greedy_core

    n = len(best.columns.extent)
    order = greedy.order_by(best.columns, dict(greedy.ORDERS)[best.rank if n > FEW else "size"])
    priority = np.empty(n)
    priority[order] = np.arange(n)
    for _ in range(min(LOOKS // max(n * n, 1), 200)):
        offsets, peak = greedy_core.place(*_row(best.columns), np.argsort(priority, kind="stable"), 1 << 62)
        best.offer(offsets, peak, "greedy, learning")
        if best.done:
            return
        ends = offsets + best.columns.extent
        late = ends > best.bound + (peak - best.bound) // 2
        priority = np.argsort(np.argsort(priority - late * (n / 8), kind="stable"), kind="stable").astype(
            float
        )
