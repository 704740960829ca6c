"""Buffers with parts: their rectangles against cells of bytes and steps, and placements that use the holes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.memory import disjunctive_bound, partial_lifetimes
from app.engine.memory.greedy import solve
from app.engine.memory.partial_lifetimes import improve
from app.engine.memory.problem import Buffer, Part, Problem, Solution, lower_bound, validate


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> Problem:
    """Buffers of one to three slices, each with a lifespan of its own."""
    buffers = []
    for i in range(draw(st.integers(1, most))):
        rows, at = [], 0
        for _ in range(draw(st.integers(1, 3))):
            size, lower = draw(st.integers(1, 4)), draw(st.integers(0, 6))
            rows.append(Part(at, size, lower, lower + draw(st.integers(1, 4))))
            at += size
        span = min(r.lower for r in rows), max(r.upper for r in rows)
        buffers.append(Buffer(f"b{i}", *span, at, 1, tuple(rows)))
    return Problem(tuple(buffers))


def cells(buffer: Buffer, offset: int) -> set[tuple[int, int]]:
    return {
        (t, offset + p.offset + x)
        for p in buffer.pieces
        for t in range(p.lower, p.upper)
        for x in range(p.size)
    }


def overlap(problem: Problem, offsets: dict[str, int]) -> bool:
    owned = [cells(b, offsets[b.id]) for b in problem.buffers]
    return sum(map(len, owned)) > len(set().union(*owned))


@settings(deadline=None)
@given(problems())
def test_what_is_placed_is_valid_and_never_worse(problem: Problem) -> None:
    known = solve(problem)
    found = improve(problem, known)
    validate(problem, found)
    assert not overlap(problem, dict(found.offsets))
    assert lower_bound(problem) <= found.lower_bound <= found.peak <= known.peak
    assert found.proved == (found.peak == found.lower_bound)


@settings(deadline=None, max_examples=60)
@given(problems(most=3), st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_the_validator_sees_every_overlap_of_parts(problem: Problem, at: list[int]) -> None:
    offsets = {b.id: o for b, o in zip(problem.buffers, at, strict=False)}
    peak = max(offsets[b.id] + b.extent for b in problem.buffers)
    bound = lower_bound(problem)
    solution = Solution(offsets, peak, bound, False, "test")
    if overlap(problem, offsets):
        with pytest.raises(ValueError, match="overlap"):
            validate(problem, solution)
    else:
        validate(problem, solution)


def test_a_slice_that_is_not_written_yet_leaves_room_for_others() -> None:
    joined = Buffer("joined", 0, 4, 20, 1, (Part(0, 10, 0, 4), Part(10, 10, 2, 4)))
    early = Buffer("early", 0, 2, 10, 1)
    found = improve(Problem((joined, early)), solve(Problem((joined, early))))
    assert found.peak == 20
    assert found.proved


def test_where_too_much_is_live_at_once_the_known_placement_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = Buffer("joined", 0, 4, 20, 1, (Part(0, 10, 0, 4), Part(10, 10, 2, 4)))
    problem = Problem((joined, Buffer("early", 0, 2, 10, 1)))
    known = solve(problem)
    monkeypatch.setattr(partial_lifetimes, "ENTRIES", 1)
    assert improve(problem, known) is known


@settings(deadline=None, max_examples=40)
@given(problems())
def test_neighbours_are_the_pieces_of_others_that_live_at_a_common_step(problem: Problem) -> None:
    pieces = [p for b in problem.buffers for p in b.pieces]
    owners = [i for i, b in enumerate(problem.buffers) for _ in b.pieces]
    beside, others = partial_lifetimes._neighbours(np.array(pieces, np.int64), np.array(owners), 10_000)
    for i, (_, _, first, last) in enumerate(pieces):
        steps = set(range(first, last))
        expected = [
            j for j, q in enumerate(pieces) if owners[i] != owners[j] and steps & set(range(q[2], q[3]))
        ]
        assert sorted(others[beside[i] : beside[i + 1]]) == expected


def optimum(problem: Problem) -> int:
    """The least peak, by trying every offset of every buffer."""
    names = [b.id for b in problem.buffers]
    for peak in itertools.count(lower_bound(problem)):
        places = [range(peak - b.extent + 1) for b in problem.buffers]
        if any(not overlap(problem, dict(zip(names, at, strict=True))) for at in itertools.product(*places)):
            return peak
    raise AssertionError


@settings(deadline=None, max_examples=60)
@given(problems(most=3))
def test_what_is_proved_is_what_brute_force_finds(problem: Problem) -> None:
    found, least = improve(problem, solve(problem)), optimum(problem)
    assert found.lower_bound <= least <= found.peak
    if any(b.parts for b in problem.buffers):  # three buffers are all that is around each
        assert found.lower_bound == least


# At step 1 half of the middle part's buffer is free on either side, too little for the long one.
CUT = Problem(
    (
        Buffer("joined", 0, 4, 40, 1, (Part(0, 15, 3, 4), Part(15, 10, 0, 4), Part(25, 15, 3, 4))),
        Buffer("long", 1, 2, 30, 1),
        Buffer("copy", 3, 4, 10, 1),
    )
)


def test_a_part_between_others_cuts_the_arena_in_two() -> None:
    found = improve(CUT, solve(CUT))
    assert lower_bound(CUT) == 50
    assert (found.peak, found.lower_bound, found.proved) == (55, 55, True)


def test_where_nodes_do_not_suffice_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disjunctive_bound, "NODES", 0)
    found = improve(CUT, solve(CUT))
    assert (found.peak, found.lower_bound, found.proved) == (55, 50, False)
