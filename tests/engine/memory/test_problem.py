"""The validator and the bound, against brute force over steps and bytes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.memory.problem import Buffer, Problem, Solution, live_bytes, lower_bound, validate
from tests.engine.memory import planted


@st.composite
def problems(draw: st.DrawFn, most: int = 12, alignments: tuple[int, ...] = (1, 4, 16)) -> Problem:
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 8), st.integers(1, 6), st.integers(0, 40), st.sampled_from(alignments)),
            max_size=most,
        )
    )
    return Problem(tuple(Buffer(f"b{i}", lo, lo + n, size, a) for i, (lo, n, size, a) in enumerate(rows)))


def one_after_another(problem: Problem) -> Solution:
    """No byte used twice."""
    at, offsets = 0, {}
    for b in problem.buffers:
        at = -(-at // b.alignment) * b.alignment
        offsets[b.id] = at
        at += b.extent
    return solution_of(problem, offsets)


def solution_of(problem: Problem, offsets: dict[str, int]) -> Solution:
    peak = max((offsets[b.id] + b.extent for b in problem.buffers), default=0)
    return Solution(offsets, peak, lower_bound(problem), peak == lower_bound(problem), "test")


def overlaps(problem: Problem, offsets: dict[str, int]) -> bool:
    """Byte by byte, step by step."""
    owned: set[tuple[int, int]] = set()
    for b in problem.buffers:
        cells = {
            (t, x) for t in range(b.lower, b.upper) for x in range(offsets[b.id], offsets[b.id] + b.extent)
        }
        if cells & owned:
            return True
        owned |= cells
    return False


@settings(deadline=None)
@given(problems())
def test_the_lower_bound_is_the_most_bytes_alive_at_a_step(problem: Problem) -> None:
    steps = range(max((b.upper for b in problem.buffers), default=0))
    alive = [sum(b.extent for b in problem.buffers if b.lower <= t < b.upper) for t in steps]
    assert lower_bound(problem) == max(alive, default=0)
    profile = live_bytes(problem)
    for t, expected in enumerate(alive):
        assert [0, *(n for step, n in profile if step <= t)][-1] == expected


@settings(deadline=None)
@given(problems(), st.data())
def test_validate_finds_exactly_the_placements_that_overlap(problem: Problem, data: st.DataObject) -> None:
    offsets = {b.id: data.draw(st.integers(0, 4)) * 16 for b in problem.buffers}
    solution = solution_of(problem, offsets)
    if overlaps(problem, offsets):
        with pytest.raises(ValueError, match="overlap"):
            validate(problem, solution)
    else:
        validate(problem, solution)


@settings(deadline=None)
@given(problems())
def test_a_placement_without_reuse_is_valid(problem: Problem) -> None:
    validate(problem, one_after_another(problem))


PAIR = Problem((Buffer("a", 0, 2, 100), Buffer("b", 1, 3, 100)))
GOOD = Solution({"a": 0, "b": 128}, 256, 256, True, "test")


@pytest.mark.parametrize(
    ("problem", "solution", "message"),
    [
        (PAIR, replace(GOOD, offsets={"a": 0, "b": 64}), r"step 1 buffers 'a' and 'b'.*\[64, 192\)"),
        (PAIR, replace(GOOD, offsets={"a": 0, "b": 130}), "'b': offset 130 byte is no multiple"),
        (PAIR, replace(GOOD, offsets={"a": 0}), "'b' has no offset"),
        (PAIR, replace(GOOD, offsets={"a": 0, "b": -64}), "must not be negative"),
        (PAIR, replace(GOOD, offsets={"a": 0, "b": 128, "c": 0}), "'c', which is no buffer"),
        (replace(PAIR, capacity=255), GOOD, "beyond the capacity of 255 byte"),
        (PAIR, replace(GOOD, peak=200), "claims a peak of 200 byte"),
        (PAIR, replace(GOOD, lower_bound=128), "claims a lower bound of 128 byte"),
    ],
)  # fmt: skip
def test_validate_tells_what_is_wrong(problem: Problem, solution: Solution, message: str) -> None:
    validate(PAIR, GOOD)
    with pytest.raises(ValueError, match=message):
        validate(problem, solution)


def test_a_buffer_may_start_where_another_ends() -> None:
    problem = Problem((Buffer("a", 0, 1, 64), Buffer("b", 1, 2, 64)))
    validate(problem, Solution({"a": 0, "b": 0}, 64, 64, True, "test"))


def test_two_buffers_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two buffers are called 'a'"):
        Problem((Buffer("a", 0, 1, 4), Buffer("a", 3, 4, 4)))


def test_no_planted_overlap_is_missed() -> None:
    assert planted.run(4000)["overlap planted"] > 1000
