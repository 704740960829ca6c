"""Complete search over buffers with parts: brute force on small problems, proofs where bounds alone give none."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.memory.exact import partial_lifetimes
from app.engine.memory.exact.partial_lifetimes import Search, prove
from app.engine.memory.greedy import solve
from app.engine.memory.partial_lifetimes import improve
from app.engine.memory.problem import Buffer, Part, Problem, Solution, lower_bound, validate
from app.engine.planning import session
from tests.engine.memory.test_partial_lifetimes import optimum, overlap, problems


@settings(deadline=None, max_examples=100)
@given(problems(most=3))
def test_verdicts_are_those_of_brute_force(problem: Problem) -> None:
    least = optimum(problem)
    search = Search(problem)
    assert search.below(least - 1, 10_000).verdict == "infeasible"
    found = search.below(least, 10_000)
    assert found.verdict == "feasible"
    assert found.offsets is not None
    placed = {b.id: int(at) for b, at in zip(problem.buffers, found.offsets)}
    assert not overlap(problem, placed)
    assert max(placed[b.id] + b.extent for b in problem.buffers) <= least


@settings(deadline=None, max_examples=100)
@given(problems(most=6), st.data())
def test_alignments_are_kept_and_proofs_hold_with_them(problem: Problem, data: st.DataObject) -> None:
    aligned = Problem(
        tuple(
            Buffer(b.id, b.lower, b.upper, b.size, data.draw(st.sampled_from((1, 2, 4))), b.parts)
            for b in problem.buffers
        )
    )
    found = prove(aligned, solve(aligned), 10_000)
    validate(aligned, found)
    assert found.proved
    # Without alignments there is at least as much room.
    assert prove(problem, solve(problem), 10_000).peak <= found.peak


def test_the_budget_is_less_for_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(p for p in map(concatenations, range(50), [14] * 50) if not solve(p).proved)
    known = solve(problem)
    assert prove(problem, known, 10_000).proved
    monkeypatch.setattr(partial_lifetimes, "MOST_WORK", 0)
    assert prove(problem, known, 10_000) == known


def concatenations(seed: int, count: int) -> Problem:
    """Plain buffers among concatenations of two to four slices, each written at a step of its own."""
    chance, steps, buffers = random.Random(seed), count + 4, []
    for i in range(count):
        if chance.random() < 0.65:
            lower = chance.randrange(steps - 1)
            span = lower, min(steps, lower + chance.randint(1, 6))
            buffers.append(Buffer(f"b{i}", *span, 64 * chance.randint(1, 16)))
            continue
        end = chance.randint(6, steps)
        parts: list[Part] = []
        for _ in range(chance.randint(2, 4)):
            first = chance.randint(max(0, end - 10), end - 1)
            last = end if chance.random() < 0.7 else chance.randint(first + 1, end)
            at = sum(p.size for p in parts)
            parts.append(Part(at, 64 * chance.randint(1, 12), first, last))
        lower, upper = min(p.lower for p in parts), max(p.upper for p in parts)
        buffers.append(Buffer(f"b{i}", lower, upper, sum(p.size for p in parts), 64, tuple(parts)))
    return Problem(tuple(buffers))


@pytest.mark.parametrize("seed", range(12))
def test_seventeen_buffers_with_slices_are_proved(seed: int) -> None:
    problem = concatenations(seed, 17)
    known = improve(problem, solve(problem))
    found = prove(problem, known, session.PROOF_FAILURES)
    validate(problem, found)
    assert found.proved
    assert known.lower_bound <= found.lower_bound <= found.peak <= known.peak


@pytest.mark.parametrize("seed", [2, 3, 8, 10, 11, 14])
def test_sixty_four_buffers_with_slices_are_proved(seed: int) -> None:
    problem = concatenations(seed, 64)
    known = improve(problem, solve(problem))
    assert not known.proved
    found = prove(problem, known, session.PROOF_FAILURES)
    validate(problem, found)
    assert found.proved
    assert known.lower_bound <= found.lower_bound <= found.peak <= known.peak
    assert found == prove(problem, known, session.PROOF_FAILURES)


def test_without_a_budget_nothing_is_claimed() -> None:
    problem = next(p for p in (concatenations(s, 17) for s in range(50)) if not solve(p).proved)
    known = solve(problem)
    assert prove(problem, known, 0) == Solution(
        known.offsets, known.peak, known.lower_bound, known.proved, known.method, known.nodes
    )
    assert lower_bound(problem) <= known.lower_bound


def test_problems_with_too_many_pairs_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = concatenations(0, 17)
    known = solve(problem)
    monkeypatch.setattr(partial_lifetimes, "MOST_PAIRS", 3)
    assert prove(problem, known, 1_000) is known
    monkeypatch.setattr(partial_lifetimes, "MOST_PIECES", 3)
    monkeypatch.setattr(partial_lifetimes, "Search", None)  # not even made
    assert prove(problem, known, 1_000) is known
