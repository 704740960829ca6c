"""The portfolio of methods and its complete search: equal to brute force on small problems, both verdicts."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from app.engine.memory import csv_table, greedy, greedy_core, portfolio
from app.engine.memory.exact.search import Search, instance
from app.engine.memory.problem import Buffer, Problem, Solution, lower_bound, validate
from tests.engine.memory.test_problem import problems


def optimum(problem: Problem) -> int:
    """The smallest peak: lowest-offset placement in all orders, cut where the peak is no better."""
    buffers = [b for b in problem.buffers if b.extent]
    best = sum(b.extent + b.alignment for b in buffers) + 1

    def extend(placed: list[tuple[Buffer, int]], left: list[Buffer], peak: int) -> None:
        nonlocal best
        if not left:
            best = peak
        for k, b in enumerate(left):
            offset = 0
            for at, o in sorted(
                (at, o.extent) for o, at in placed if o.lower < b.upper and b.lower < o.upper
            ):
                if offset + b.extent <= at:
                    break
                offset = max(offset, -(-(at + o) // b.alignment) * b.alignment)
            if max(peak, offset + b.extent) < best:
                extend([*placed, (b, offset)], left[:k] + left[k + 1 :], max(peak, offset + b.extent))

    extend([], buffers, 0)
    return best if buffers else 0


def random_problem(
    random: np.random.Generator, most: int, steps: int, sizes: int, alignments: tuple[int, ...] = (1,)
) -> Problem:
    n = int(random.integers(most // 2, most + 1))
    lower = random.integers(0, steps, n)
    upper = lower + random.integers(1, steps, n)
    size, alignment = random.integers(1, sizes, n), random.choice(alignments, n)
    columns = (lower.tolist(), upper.tolist(), size.tolist(), alignment.tolist())
    return Problem(tuple(Buffer(f"b{i}", *row) for i, row in enumerate(zip(*columns, strict=True))))


def tight_problem(random: np.random.Generator, most: int) -> Problem:
    """All steps are full: one or two buffers after another give their bytes to one or two new ones."""
    live = [(0, int(n)) for n in random.integers(1, 4, int(random.integers(2, 5)))]
    rows: list[tuple[int, int, int]] = []
    step = 0
    while len(rows) + len(live) < most:
        step += 1
        gone = random.permutation(len(live))[: int(random.integers(1, 3))]
        rows += [(live[k][0], step, live[k][1]) for k in gone]
        total = sum(live[k][1] for k in gone)
        live = [b for k, b in enumerate(live) if k not in gone]
        first = int(random.integers(1, total + 1))
        live += [(step, n) for n in (first, total - first) if n]
    rows += [(lower, step + 1, n) for lower, n in live]
    return Problem(tuple(Buffer(f"b{i}", *row, alignment=1) for i, row in enumerate(rows[:most])))


def two_pairings() -> Problem:
    """Buffers that do not fit their lower bound of 4.

    a and b take the place of one buffer, c and d of another; then a and c, b and d make room for one.
    """
    rows = [(0, 1, 2), (0, 2, 2), (1, 3, 1), (1, 4, 1), (2, 3, 1), (2, 4, 1), (3, 5, 2), (4, 5, 2)]
    return Problem(tuple(Buffer(str(i), *row, alignment=1) for i, row in enumerate(rows)))


def verdict(search: Search, problem: Problem, capacity: int) -> bool:
    """Whether the search finds a placement, which is then validated; it must decide."""
    outcome = search.below(capacity, 100_000)
    assert outcome.verdict != "undecided"
    if outcome.offsets is not None:
        offsets = {b.id: int(at) for b, at in zip(problem.buffers, outcome.offsets, strict=True)}
        peak = max(offsets[b.id] + b.extent for b in problem.buffers)
        solution = Solution(offsets, peak, lower_bound(problem), False, "search")
        validate(Problem(problem.buffers, capacity), solution)
    return outcome.verdict == "feasible"


@pytest.mark.parametrize("alignments", [(1,), (4,), (1, 2, 8), (3, 4)])
def test_the_search_and_brute_force_agree_on_both_verdicts(alignments: tuple[int, ...]) -> None:
    random = np.random.default_rng(len(alignments) + alignments[0])
    above = 0
    for k in range(500):
        if alignments == (1,):
            problem = tight_problem(random, 8)  # others nearly always fit their bound
        else:
            problem = random_problem(random, 8, *((5, 5), (7, 4), (9, 20))[k % 3], alignments)
        given = instance(greedy.columns_of(problem))
        assert given is not None
        search, bound = Search(given), lower_bound(problem)
        assert not verdict(search, problem, bound - 1)
        # A placement proves itself; that there is none, only brute force can tell.
        if verdict(search, problem, bound):
            continue
        above += 1
        if above > 25:
            break
        best = optimum(problem)
        assert best > bound
        assert verdict(search, problem, best)
        assert not verdict(search, problem, best - 1), problem
        solution = portfolio.solve(problem)
        assert (solution.peak, solution.lower_bound, solution.proved) == (best, best, True)
        tight = Problem(problem.buffers, best - 1)
        assert "complete search" in (portfolio.shortage(tight, portfolio.solve(tight)) or "")
    assert above > 0 or len(alignments) == 1  # where all is a multiple of one, the bound nearly always holds


@pytest.mark.parametrize("ahead", [58, 61, 64])
def test_verdicts_hold_where_bit_sets_of_buffers_have_two_words(ahead: int) -> None:
    problem = two_pairings()
    best = optimum(problem)
    assert best > lower_bound(problem)
    early = tuple(Buffer(f"early {k}", k, k + 1, 1, 1) for k in range(ahead))
    late = tuple(replace(b, lower=b.lower + ahead, upper=b.upper + ahead) for b in problem.buffers)
    longer = Problem((*early, *late))
    given = instance(greedy.columns_of(longer))
    assert given is not None
    search = Search(given)
    assert not verdict(search, longer, best - 1)
    assert verdict(search, longer, best)


def test_the_search_does_not_depend_on_the_order_of_buffers(shared: Path) -> None:
    file = shared / "memory" / "minimalloc_E.1048576.csv"
    buffers = csv_table.read(file.read_text()).buffers
    found = []
    for order in (range(len(buffers)), np.random.default_rng(0).permutation(len(buffers))):
        given = instance(greedy.columns_of(Problem(tuple(buffers[k] for k in order))))
        assert given is not None
        outcome = Search(given).below(1 << 20, 20_000)
        assert outcome.offsets is not None
        placed = zip(order, outcome.offsets.tolist(), strict=True)
        found.append((outcome.nodes, sorted((buffers[k].lower, buffers[k].upper, at) for k, at in placed)))
    assert found[0] == found[1]


def test_two_pairings_of_four_halves_do_not_fit_their_bound() -> None:
    problem = two_pairings()
    solution = portfolio.solve(problem)
    assert lower_bound(problem) == 4
    assert (solution.peak, solution.lower_bound, solution.proved) == (optimum(problem), 5, True)
    why = portfolio.shortage(Problem(problem.buffers, 4), portfolio.solve(Problem(problem.buffers, 4)))
    assert why is not None
    assert "infeasible" in why
    assert "complete search" in why


def test_pairings_of_any_sizes_agree_with_brute_force() -> None:
    random = np.random.default_rng(0)
    above = 0
    for _ in range(4):
        a, b, c, d = random.integers(1, 6, 4).tolist()
        t = np.cumsum(random.integers(1, 5, 7)).tolist()
        rows = [
            (t[0], t[1], a + b), (t[0], t[2], c + d), (t[1], t[3], a), (t[1], t[4], b),
            (t[2], t[3], c), (t[2], t[4], d), (t[3], t[5], a + c), (t[4], t[6], b + d),
        ]  # fmt: skip
        buffers = [Buffer(str(i), *rows[i], alignment=1) for i in random.permutation(8).tolist()]
        problem = Problem(tuple(buffers))
        best, bound = optimum(problem), lower_bound(problem)
        given = instance(greedy.columns_of(problem))
        assert given is not None
        search = Search(given)
        for capacity in range(bound - 1, best + 2):
            assert verdict(search, problem, capacity) == (capacity >= best)
        above += best > bound
    assert above > 0


# Greedy placement by size does not meet the bound. Columns: lower, upper, size.
TIGHT = ((4, 8, 3), (2, 5, 2), (5, 8, 5), (5, 7, 1), (0, 4, 4))


@settings(deadline=None, max_examples=60)
@given(problems(most=14, alignments=(1, 4, 16, 24)))
def test_every_result_is_valid_and_tells_the_truth_about_itself(problem: Problem) -> None:
    solution = portfolio.solve(problem)
    validate(problem, solution)
    assert lower_bound(problem) <= solution.lower_bound <= solution.peak
    assert solution.proved == (solution.peak == solution.lower_bound)
    assert portfolio.solve(problem) == solution


@settings(deadline=None, max_examples=40)
@given(problems(most=40))
def test_greedy_placements_are_the_same_compiled_and_not(problem: Problem) -> None:
    columns = greedy.columns_of(problem)
    for _, rank in greedy.ORDERS:
        order = greedy.order_by(columns, rank)
        row = (columns.lower, columns.upper, columns.extent, columns.alignment)
        offsets, peak = greedy_core.place(*row, order, 1 << 62)
        plain = greedy.place(columns, order)
        assert plain is not None
        np.testing.assert_array_equal(offsets, plain)
        for found, top in ((offsets, peak), greedy_core.rise(*row, order)):
            placed = {b.id: int(at) for b, at in zip(problem.buffers, found, strict=True)}
            validate(problem, Solution(placed, int(top), lower_bound(problem), False, "greedy"))
    quick = greedy.quick(problem)
    assert quick is not None
    by_size = greedy.place(columns, greedy.order_by(columns, greedy.ORDERS[0][1]))
    assert by_size is not None
    np.testing.assert_array_equal(quick[0], by_size)
    assert quick[1] == np.max(by_size + columns.extent, initial=0)


@settings(deadline=None, max_examples=40)
@given(problems(most=40), strategies.integers(0, 200))
def test_what_is_loaded_decides_no_plan(problem: Problem, pairs: int) -> None:
    columns = greedy.columns_of(problem)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(greedy, "QUICK_PAIRS", pairs)
        loaded = greedy.largest_first(problem, columns)
        patched.setitem(sys.modules, "app.engine.memory.greedy_core", None)
        plain = greedy.largest_first(problem, columns)
    assert (loaded is None) == (plain is None)
    if loaded is not None:
        assert plain is not None
        np.testing.assert_array_equal(loaded[0], plain[0])
        assert loaded[1] == plain[1]


@pytest.mark.parametrize("name", "ACEGK")
def test_challenging_instances_fit_their_capacity(shared: Path, name: str) -> None:
    path = shared / "memory" / f"minimalloc_{name}.1048576.csv"
    problem = csv_table.read(path.read_text(), 1_048_576)
    solution = portfolio.solve(problem)
    validate(problem, solution)
    # Mirrored in time it is another problem, with the same answer.
    mirrored = Problem(
        tuple(Buffer(b.id, -b.upper, -b.lower, b.size, b.alignment) for b in problem.buffers), 1_048_576
    )
    validate(mirrored, portfolio.solve(mirrored))


def test_a_capacity_below_the_live_bytes_is_infeasible_by_the_bound(shared: Path) -> None:
    problem = csv_table.read((shared / "memory" / "minimalloc_example.12.csv").read_text(), 11)
    why = portfolio.shortage(problem, portfolio.solve(problem))
    assert why is not None
    assert "infeasible: the capacity is 11 byte, and 12 byte live at step" in why


def test_training_tensors_are_proved_at_their_bound(shared: Path) -> None:
    problem = csv_table.read((shared / "memory" / "idealloc_somas_resnet50.csv").read_text())
    solution = portfolio.solve(problem)
    assert solution.proved
    assert solution.peak == 1515472556


def test_thirty_thousand_buffers_come_within_a_hundredth(shared: Path) -> None:
    problem = csv_table.read((shared / "memory" / "idealloc_iopddl_S1.csv").read_text())
    assert portfolio.solve(problem).gap <= 0.005


@pytest.mark.parametrize("seed", range(3))
def test_large_problems_are_placed_no_worse_than_by_any_greedy_order(seed: int) -> None:
    """Mostly short buffers of very different sizes among few long ones."""
    random = np.random.default_rng(seed)
    count, steps = 5_000, 1_200
    lower = random.integers(0, steps, count)
    long = random.random(count) < 0.1
    spans = np.where(long, random.integers(1, steps, count), random.integers(1, 12, count))
    sizes = (2 ** random.uniform(6, 20, count)).astype(int)
    problem = Problem(
        tuple(
            Buffer(f"b{i}", int(a), int(min(a + span, steps + 1)), int(size))
            for i, (a, span, size) in enumerate(zip(lower, spans, sizes))
        )
    )
    columns = greedy.columns_of(problem)
    peaks = []
    for _, rank in greedy.ORDERS:
        offsets = greedy.place(columns, greedy.order_by(columns, rank))
        assert offsets is not None
        peaks.append(int(np.max(offsets + columns.extent)))
    solution = portfolio.solve(problem)
    assert solution.peak <= max(min(peaks), solution.lower_bound * 257 // 256)


def test_loading_compiled_code_is_told_apart_from_solving() -> None:
    """By a clock that only loading moves: `load` is called before the first compiled method, once or not at all."""
    ticks = iter(range(100))
    easy = Problem((Buffer("a", 0, 2, 64), Buffer("b", 1, 3, 64)))
    timed = portfolio.timed(easy, lambda: float(next(ticks)))
    assert (timed.seconds, timed.load_seconds) == (1.0, 0.0)
    hard = Problem(tuple(Buffer(str(i), *row, alignment=1) for i, row in enumerate(TIGHT)))
    timed = portfolio.timed(hard, lambda: float(next(ticks)))
    assert (timed.seconds, timed.load_seconds) == (2.0, 1.0)
    assert timed.solution == portfolio.solve(hard)
