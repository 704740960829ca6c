"""The multiple-choice knapsack, against brute force."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.planning.precision.knapsack import Option, choose

NUMBERS = st.integers(0, 12).map(float)
ITEMS = st.lists(
    st.lists(st.builds(Option, NUMBERS, NUMBERS), min_size=1, max_size=4), min_size=1, max_size=8
)


def by_brute_force(items, budget):
    """The least cost within the budget, over all choices; None without any."""
    costs = [
        math.fsum(o.cost for o in choice)
        for choice in itertools.product(*items)
        if math.fsum(o.weight for o in choice) <= budget
    ]
    return min(costs, default=None)


@given(ITEMS, st.integers(0, 60))
def test_the_choice_is_that_of_brute_force(items, budget):
    found, least = choose(items, float(budget)), by_brute_force(items[:5], float(budget))
    if len(items) > 5:  # 4^8 choices of every example are too many; the others fill the budget
        least = by_brute_force(items, float(budget)) if math.prod(map(len, items)) <= 4000 else None
        if least is None:
            return
    if found is None:
        assert least is None
        return
    assert found.cost == pytest.approx(least)
    assert found.weight == math.fsum(o[k].weight for o, k in zip(items, found.indices)) <= budget
    assert found.gap == 0


@given(ITEMS, st.integers(0, 60), st.integers(0, 3))
def test_with_few_nodes_the_bound_holds_and_the_gap_is_told(items, budget, nodes):
    found, best = choose(items, float(budget), nodes), choose(items, float(budget))
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.bound <= best.cost + 1e-9
        assert found.cost >= best.cost
        assert found.weight <= budget
        assert found.gap * found.cost >= found.cost - best.cost - 1e-9


def test_an_option_of_infinite_weight_is_never_taken():
    items = [[Option(2.0, 0.0), Option(0.0, math.inf)]]
    found = choose(items, 1e300)
    assert found is not None
    assert found.indices == (0,)
    assert choose([[Option(0.0, math.inf)]], 1e300) is None


def test_a_thousand_items_are_no_recursion():
    items = [[Option(1.0 + i % 7, 0.0), Option(0.5, 1.0)] for i in range(1200)]
    found = choose(items, 300.0)
    assert found is not None
    assert found.weight <= 300.0
    assert found.gap <= 1e-9
