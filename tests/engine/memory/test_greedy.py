"""Greedy placement: valid always, never below the optimum, close to the bound on recorded problems."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from app.engine.memory.greedy import solve
from app.engine.memory.problem import Buffer, Problem, lower_bound, validate
from tests.engine.memory.test_problem import problems


def optimum(problem: Problem) -> int:
    """The smallest peak, over every order of lowest-offset placement.

    Some order is optimal: lowering every buffer of an optimal placement, from the bottom up,
    until it rests on another keeps it optimal and is what that order gives.
    """
    best = sum(b.extent + b.alignment for b in problem.buffers)
    for order in itertools.permutations(problem.buffers):
        placed: list[tuple[Buffer, int]] = []
        for b in order:
            near = sorted((at, at + o.extent) for o, at in placed if o.lower < b.upper and b.lower < o.upper)
            offset = 0
            for low, high in near:
                if offset + b.extent <= low:
                    break
                offset = max(offset, -(-high // b.alignment) * b.alignment)
            placed.append((b, offset))
        best = min(best, max((at + b.extent for b, at in placed), default=0))
    return best


def recorded(path: Path) -> Problem:
    with path.open() as file:
        rows = [
            Buffer(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"]), 1) for r in csv.DictReader(file)
        ]
    return Problem(tuple(rows))


@settings(deadline=None)
@given(problems(most=40))
def test_every_greedy_placement_is_valid_and_at_least_the_lower_bound(problem: Problem) -> None:
    solution = solve(problem)
    validate(problem, solution)
    assert solution.peak >= solution.lower_bound == lower_bound(problem)
    assert solution.proved == (solution.peak == solution.lower_bound)


@settings(max_examples=60, deadline=None)
@given(problems(most=5))
def test_greedy_is_never_below_the_optimum_and_proves_only_optima(problem: Problem) -> None:
    solution = solve(problem)
    best = optimum(problem)
    assert solution.peak >= best >= solution.lower_bound
    if solution.proved:
        assert solution.peak == best


def test_the_smallest_gap_is_taken() -> None:
    # By size they stack up as p, x, d, y; at step 2 p has left 400 bytes at 0, d 300 bytes at 790.
    rows = [("p", 0, 1, 400), ("x", 0, 9, 390), ("d", 0, 1, 300), ("y", 0, 9, 290), ("e", 2, 3, 280)]
    solution = solve(Problem(tuple(Buffer(*row, alignment=1) for row in rows)))
    assert solution.peak == solution.lower_bound == 400 + 390 + 300 + 290
    assert solution.offsets["e"] == 790


def test_no_buffers_and_empty_buffers_take_nothing() -> None:
    assert solve(Problem(())).peak == 0
    solution = solve(Problem((Buffer("a", 0, 2, 0), Buffer("b", 0, 2, 0))))
    assert solution.peak == 0
    assert solution.proved


def test_the_same_problem_gives_the_same_offsets() -> None:
    random = np.random.default_rng(3)
    lower = random.integers(0, 200, 300)
    sizes = random.integers(1, 4, 300) * 1024  # many ties
    problem = Problem(
        tuple(Buffer(f"b{i}", int(t), int(t) + 9, int(n)) for i, (t, n) in enumerate(zip(lower, sizes)))
    )
    assert solve(problem) == solve(problem)


def test_resnet50_training_tensors_come_within_one_percent(shared: Path) -> None:
    problem = recorded(shared / "memory" / "idealloc_somas_resnet50.csv")
    solution = solve(problem)
    validate(problem, solution)
    assert solution.lower_bound == 1515472556
    assert solution.gap <= 0.01


@pytest.mark.parametrize("name", "ACEGIK")
def test_challenging_instances_are_placed_within_half_above_their_bound(shared: Path, name: str) -> None:
    problem = recorded(shared / "memory" / f"minimalloc_{name}.1048576.csv")
    solution = solve(problem)
    validate(problem, solution)
    assert solution.gap <= 0.5


def test_thirty_thousand_buffers_are_placed(shared: Path) -> None:
    problem = recorded(shared / "memory" / "idealloc_iopddl_S1.csv")
    solution = solve(problem)
    validate(problem, solution)
    assert len(solution.offsets) == 28526
    assert solution.gap <= 0.01
