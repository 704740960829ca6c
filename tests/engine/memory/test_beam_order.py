"""The order search against every topological order of small graphs."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.memory.beam_order import Step, least_peak, schedule

EVERYTHING = 1 << 40
Drawn = tuple[list[Step], list[int]]


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> Drawn:
    """Step i writes storage i and reads some before it; now and then in place, or with scratch."""
    count = draw(st.integers(1, most))
    sizes = [draw(st.integers(0, 9)) for _ in range(count)]
    steps = []
    for i in range(count):
        reads = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        inplace = tuple((r, i) for r in reads if draw(st.booleans()))
        steps.append(Step(tuple(reads), (*reads, i), inplace, draw(st.integers(0, 4)), f"s{i}"))
    return steps, sizes


def peak_of(steps: list[Step], sizes: list[int], order: tuple[int, ...]) -> int:
    """Bytes alive at the worst step, straight from the definition."""
    at = {i: t for t, i in enumerate(order)}
    touched = [[at[i] for i, x in enumerate(steps) if s in x.touches] for s in range(len(sizes))]
    first, last = [min(t) for t in touched], [max(t) for t in touched]
    worst = 0
    for t, i in enumerate(order):
        alive = sum(n for s, n in enumerate(sizes) if first[s] <= t <= last[s])
        reused: set[int] = set()
        for read, written in steps[i].inplace:
            dies = last[read] == t and first[written] == t
            if dies and sizes[read] >= sizes[written] and not reused & {read, written}:
                alive -= sizes[written]
                reused |= {read, written}
        worst = max(worst, alive + steps[i].scratch)
    return worst


def valid(steps: list[Step], order: tuple[int, ...]) -> bool:
    return sorted(order) == list(range(len(steps))) and all(
        order.index(before) < order.index(i) for i, step in enumerate(steps) for before in step.needs
    )


@settings(deadline=None)
@given(graphs())
def test_the_beam_finds_the_best_of_all_orders_where_it_holds_all_states(drawn: Drawn) -> None:
    steps, sizes = drawn
    orders = [o for o in itertools.permutations(range(len(steps))) if valid(steps, o)]
    best = min(peak_of(steps, sizes, o) for o in orders)
    found = schedule(steps, sizes, EVERYTHING)
    assert found is not None
    assert valid(steps, found)
    assert peak_of(steps, sizes, found) == best >= least_peak(steps, sizes)
    assert schedule(steps, sizes, best) is None


@settings(deadline=None)
@given(graphs(most=40))
def test_an_order_that_is_found_is_valid_and_below_the_limit(drawn: Drawn) -> None:
    steps, sizes = drawn
    given_order = tuple(range(len(steps)))
    limit = peak_of(steps, sizes, given_order)
    found = schedule(steps, sizes, limit)
    if found is not None:
        assert valid(steps, found)
        assert peak_of(steps, sizes, found) < limit


@settings(deadline=None)
@given(graphs(most=12), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_order_in_the_file(drawn: Drawn, random) -> None:  # type: ignore[no-untyped-def]
    steps, sizes = drawn
    shuffled = list(range(len(steps)))
    random.shuffle(shuffled)
    back = {i: at for at, i in enumerate(shuffled)}
    moved = [
        Step(
            tuple(back[b] for b in steps[i].needs),
            steps[i].touches,
            steps[i].inplace,
            steps[i].scratch,
            steps[i].name,
        )
        for i in shuffled
    ]
    names = [steps[i].name for i in schedule(steps, sizes, EVERYTHING) or ()]
    assert [moved[i].name for i in schedule(moved, sizes, EVERYTHING) or ()] == names


def test_two_hundred_branches_are_walked_one_after_the_other() -> None:
    # Each branch makes something large and shrinks it; in file order all that is large comes first.
    steps, sizes = [], []
    for stage in range(4):
        for branch in range(200):
            before = () if stage == 0 else ((stage - 1) * 200 + branch,)
            sizes.append(10 - stage)
            steps.append(Step(before, (*before, len(steps)), (), 0, f"{branch}.{stage}"))
    found = schedule(steps, sizes, 10 * 200)
    assert found is not None
    assert valid(steps, found)
    assert peak_of(steps, sizes, found) <= 19
