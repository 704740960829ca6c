"""The proved order search against every topological order of small graphs."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.memory.beam_order import Step
from app.engine.memory.optimal_order import least_order, segments
from tests.engine.memory.test_beam_order import Drawn, graphs, peak_of, valid


@settings(deadline=None, max_examples=200)
@given(graphs(most=7))
def test_the_peak_is_the_least_of_all_orders(drawn: Drawn) -> None:
    steps, sizes = drawn
    orders = [o for o in itertools.permutations(range(len(steps))) if valid(steps, o)]
    best = min(peak_of(steps, sizes, o) for o in orders)
    found = least_order(steps, sizes)
    assert found is not None
    assert valid(steps, found.order)
    assert peak_of(steps, sizes, found.order) == best == found.peak == found.lower_bound


@settings(deadline=None, max_examples=200)
@given(graphs(most=9), st.integers(-2, 2))
def test_a_limit_below_the_best_peak_is_told_and_one_above_finds_it(drawn: Drawn, away: int) -> None:
    steps, sizes = drawn
    best = least_order(steps, sizes)
    assert best is not None
    found = least_order(steps, sizes, limit=best.peak + away)
    assert found is not None
    if away < 0:
        assert not found.order
        assert best.peak + away < found.lower_bound <= best.peak
    else:
        assert found.peak == best.peak == peak_of(steps, sizes, found.order)


@settings(deadline=None)
@given(graphs(most=80))
def test_long_graphs_get_a_valid_order_of_the_peak_it_claims(drawn: Drawn) -> None:
    steps, sizes = drawn
    found = least_order(steps, sizes, states=1 << 14)
    if found is not None:
        assert valid(steps, found.order)
        assert peak_of(steps, sizes, found.order) == found.peak
        assert found.peak <= peak_of(steps, sizes, tuple(range(len(steps))))


@settings(deadline=None)
@given(graphs(most=12), st.randoms(use_true_random=False))
def test_the_peak_does_not_depend_on_the_order_in_the_file(drawn: Drawn, random) -> None:  # type: ignore[no-untyped-def]
    steps, sizes = drawn
    shuffled = list(range(len(steps)))
    random.shuffle(shuffled)
    # Steps must come in a topological order: the first that may, of the shuffled ones.
    order: list[int] = []
    while len(order) < len(steps):
        order.append(next(i for i in shuffled if i not in order and set(steps[i].needs) <= set(order)))
    at = {i: k for k, i in enumerate(order)}
    again = [
        Step(tuple(at[n] for n in steps[i].needs), steps[i].touches, steps[i].inplace, steps[i].scratch)
        for i in order
    ]
    one, other = least_order(steps, sizes), least_order(again, sizes)
    assert one is not None
    assert other is not None
    assert one.peak == other.peak


def test_more_states_than_allowed_are_no_answer() -> None:
    steps = [Step((), (i,), scratch=i % 3) for i in range(20)]
    steps.append(Step(tuple(range(20)), tuple(range(21))))
    assert (
        least_order(steps, [0] * 20 + [1], states=10) is None or len(segments([s.needs for s in steps])) == 1
    )


def test_a_chain_of_diamonds_is_cut_at_their_ends() -> None:
    needs = [(), (0,), (0,), (1, 2), (3,), (3,), (4, 5)]
    assert segments(needs) == [(0,), (1, 2, 3), (4, 5, 6)]
    assert segments([(), (0,), (1,)]) == [(0,), (1,), (2,)]
    assert segments([(), ()]) == [(0, 1)]


@settings(deadline=None)
@given(graphs(most=9))
def test_segments_end_at_steps_comparable_with_all_others(drawn: Drawn) -> None:
    steps, _ = drawn
    needs = [set(s.needs) for s in steps]
    above: list[set[int]] = []
    for before in needs:
        above.append(before.union(*(above[b] for b in before)))
    n = len(steps)
    cuts = [k for k in range(n) if all(i in above[k] or k in above[i] for i in range(n) if i != k)]
    ends = [part[-1] for part in segments([tuple(x) for x in needs])]
    assert ends == sorted({*cuts, n - 1})
