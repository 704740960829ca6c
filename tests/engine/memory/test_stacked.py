"""Stackings: offsets for other sizes, checked by the validator."""

import random

import pytest

from app.engine.memory import greedy
from app.engine.memory.problem import Buffer, Part, Problem, Solution, lower_bound, validate
from app.engine.memory.stacked import stacked


def _drawn(rng: random.Random, steps: int, count: int) -> list[tuple[str, int, int, int]]:
    rows = []
    for i in range(count):
        lower = rng.randrange(steps)
        rows.append((f"b{i}", lower, rng.randint(lower + 1, steps), rng.choice((0, 64, 100, 4096, 70000))))
    return rows


def _solved(problem: Problem) -> Solution:
    return greedy.by_size(problem) or greedy.solve(problem)


@pytest.mark.parametrize("seed", range(60))
def test_offsets_are_valid_at_every_size(seed: int) -> None:
    rng = random.Random(seed)
    rows = _drawn(rng, 12, rng.randint(1, 30))
    problem = Problem(tuple(Buffer(*row) for row in rows))
    stacking = stacked(problem, _solved(problem))
    for _ in range(8):
        sizes = {name: rng.choice((0, 1, size // 3, size, size * 2, size + 999)) for name, *_, size in rows}
        other = Problem(tuple(Buffer(n, a, b, sizes[n]) for n, a, b, _ in rows))
        validate(other, stacking.solution(other))


@pytest.mark.parametrize("seed", range(60))
def test_parts_stay_apart_at_every_size(seed: int) -> None:
    rng = random.Random(1000 + seed)

    def problem_of(rows: list[tuple[str, int, int, tuple[int, ...], tuple[int, ...]]]) -> Problem:
        buffers = []
        for name, lower, upper, widths, firsts in rows:
            parts, at = [], 0
            for width, first in zip(widths, firsts):
                parts.append(Part(at, width * 64, first, upper))
                at += width * 64
            buffers.append(Buffer(name, lower, upper, at, 64, tuple(parts)))
        return Problem(tuple(buffers))

    rows = []
    for i in range(rng.randint(2, 12)):
        lower = rng.randrange(8)
        upper = rng.randint(lower + 1, 10)
        firsts = (lower, *sorted(rng.randrange(lower, upper) for _ in range(rng.randint(0, 3))))
        rows.append((f"b{i}", lower, upper, tuple(rng.randint(1, 40) for _ in firsts), firsts))
    problem = problem_of(rows)
    solution = _solved(problem)
    validate(problem, solution)
    stacking = stacked(problem, solution)
    for _ in range(8):
        other = problem_of(
            [
                (n, a, b, tuple(max(1, w * rng.randint(1, 5) // 2) for w in widths), f)
                for n, a, b, widths, f in rows
            ]
        )
        validate(other, stacking.solution(other))


def test_the_peak_at_the_shape_of_the_placement_is_at_most_that_of_the_placement() -> None:
    for seed in range(40):
        rows = _drawn(random.Random(seed), 10, 20)
        problem = Problem(tuple(Buffer(*row) for row in rows))
        solution = _solved(problem)
        found = stacked(problem, solution).solution(problem)
        assert lower_bound(problem) <= found.peak <= solution.peak


def test_the_peak_does_not_fall_where_sizes_grow() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        rows = _drawn(rng, 10, 20)
        problem = Problem(tuple(Buffer(*row) for row in rows))
        stacking = stacked(problem, _solved(problem))
        peaks = []
        for factor in (0, 1, 2, 3, 5):
            other = Problem(tuple(Buffer(n, a, b, size * factor) for n, a, b, size in rows))
            peaks.append(stacking.solution(other).peak)
        assert peaks == sorted(peaks)


def test_other_buffers_are_refused() -> None:
    problem = Problem((Buffer("a", 0, 2, 64), Buffer("b", 1, 3, 64)))
    stacking = stacked(problem, _solved(problem))
    with pytest.raises(ValueError, match="not those that were stacked: c"):
        stacking.solution(Problem((Buffer("a", 0, 2, 64), Buffer("c", 1, 3, 64))))


@pytest.mark.parametrize("seed", range(20))
def test_buffers_come_and_go_with_the_rows_of_a_shape(seed: int) -> None:
    """Workspaces of another row lie above all that lives with them; those that are not there take nothing."""
    rng = random.Random(seed)
    problem = Problem(tuple(Buffer(*row) for row in _drawn(rng, 12, rng.randint(1, 30))))
    stacking = stacked(problem, _solved(problem))
    kept = (b for b in problem.buffers if rng.random() < 0.7)
    steps = [rng.randrange(12) for _ in range(3)]
    fresh = (Buffer(f"w{i}", s, s + 1, rng.randint(1, 500)) for i, s in enumerate(steps))
    other = Problem((*kept, *fresh))
    extended = stacking.extended(other)
    solution = extended.solution(other)
    validate(other, solution)
    assert solution.offsets.keys() == {b.id for b in other.buffers}
    assert extended.extended(other) is extended
    assert stacking.extended(problem) is stacking
