"""Sub-graphs are convex, free of cycles and, as brute force says, of most value."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.partition.convex import CUTS, Crossing, Dag, _Search, separated


def random_dag(draw: random.Random, count: int, density: float) -> Dag:
    successors = [[s for s in range(v + 1, count) if draw.random() < density] for v in range(count)]
    gains = [draw.randint(-3, 9) for _ in range(count)]
    crossings = [Crossing(v, tuple(after), draw.randint(0, 6)) for v, after in enumerate(successors) if after]
    crossings.append(Crossing(-1, tuple(draw.sample(range(count), min(2, count))), draw.randint(0, 4)))
    return Dag(successors, gains, crossings)


def reach(dag: Dag) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in dag.successors]
    for v in reversed(range(len(found))):
        for s in dag.successors[v]:
            found[v] |= {s} | found[s]
    return found


def is_convex(part: frozenset[int], after: list[set[int]]) -> bool:
    outside = set(range(len(after))) - part
    return not any(any(x in after[a] for a in part) and any(b in after[x] for b in part) for x in outside)


def brute_force(dag: Dag, candidate: list[int]) -> int:
    after = reach(dag)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(candidate, n) for n in range(len(candidate) + 1)
    )
    return max(dag.value(s) for s in map(frozenset, subsets) if is_convex(s, after))


def has_cycle(dag: Dag, parts: list[frozenset[int]]) -> bool:
    name = {v: -1 - i for i, part in enumerate(parts) for v in part}
    edges: dict[int, set[int]] = {}
    for v, after in enumerate(dag.successors):
        for s in after:
            if name.get(v, v) != name.get(s, s):
                edges.setdefault(name.get(v, v), set()).add(name.get(s, s))
    state: dict[int, int] = {}

    def visit(v: int) -> bool:
        state[v] = 1
        for s in edges.get(v, ()):
            if state.get(s) == 1 or (s not in state and visit(s)):
                return True
        state[v] = 2
        return False

    return any(v not in state and visit(v) for v in list(edges))


CASES = st.tuples(st.integers(0, 2**32), st.integers(1, 10), st.floats(0.1, 0.7))


@settings(max_examples=300, deadline=None)
@given(CASES)
def test_the_most_valuable_convex_part_is_that_of_brute_force(case: tuple[int, int, float]) -> None:
    draw = random.Random(case[0])
    dag = random_dag(draw, *case[1:])
    candidate = [v for v in range(case[1]) if draw.random() < 0.7]
    part = _Search(dag, candidate).best(10_000)[0]
    assert part <= set(candidate)
    assert is_convex(part, reach(dag))
    assert dag.value(part) == brute_force(dag, candidate)


@settings(max_examples=150, deadline=None)
@given(st.tuples(st.integers(0, 2**32), st.integers(1, 40), st.floats(0.03, 0.4)))
def test_parts_are_convex_disjoint_of_value_and_form_no_cycle(case: tuple[int, int, float]) -> None:
    draw = random.Random(case[0])
    dag = random_dag(draw, *case[1:])
    label = [draw.randrange(4) for _ in range(case[1])]
    candidates = [frozenset(v for v in range(case[1]) if label[v] == n) for n in (1, 2, 3)]
    parts = separated(dag, candidates)
    members = [v for part in parts for v in part]
    assert len(members) == len(set(members))
    assert all(any(part <= candidate for candidate in candidates) for part in parts)
    assert all(is_convex(part, reach(dag)) for part in parts)
    assert all(dag.value(part) > 0 for part in parts)
    assert not has_cycle(dag, parts)


@settings(max_examples=100, deadline=None)
@given(CASES)
def test_the_first_part_of_one_wish_is_the_best_there_is(case: tuple[int, int, float]) -> None:
    draw = random.Random(case[0])
    dag = random_dag(draw, *case[1:])
    candidate = frozenset(v for v in range(case[1]) if draw.random() < 0.7)
    if not candidate:
        return
    total = sum(dag.value(p) for p in separated(dag, [candidate]))
    assert total >= brute_force(dag, sorted(candidate))


def test_a_convex_wish_is_taken_whole() -> None:
    dag = Dag([[1], [2], [3], []], [5, 5, 5, 5], [Crossing(0, (1,), 1), Crossing(2, (3,), 1)])
    assert separated(dag, [frozenset({1, 2})]) == [frozenset({1, 2})]


def test_the_dearer_side_of_a_vertex_between_is_kept() -> None:
    # 0 -> 1 -> 2 -> 3 and 0 -> 3; 2 cannot be taken: 0, 1 or 3, but not all.
    chain = [[1, 3], [2], [3], []]
    assert separated(Dag(chain, [5, 5, 0, 20]), [frozenset({0, 1, 3})])[-1] == frozenset({3})
    assert _Search(Dag(chain, [5, 5, 0, 20]), {0, 1, 3}).best(CUTS)[0] == frozenset({3})
    assert _Search(Dag(chain, [15, 6, 0, 20]), {0, 1, 3}).best(CUTS)[0] == frozenset({0, 1})


@pytest.mark.parametrize("density", [0.2, 0.5, 0.8])
def test_fifty_thousand_vertices_are_separated_in_time(density: float) -> None:
    draw = random.Random(1)
    count = 50_000
    successors: list[list[int]] = [[] for _ in range(count)]
    for v in range(1, count):
        for _ in range(draw.choice((1, 1, 2))):
            successors[max(0, v - draw.randint(1, 40))].append(v)
    dag = Dag(successors, [draw.randint(1, 9) for _ in range(count)])
    candidate = frozenset(v for v in range(count) if draw.random() < density)
    started = time.process_time()
    parts = separated(dag, [candidate])
    assert len(parts) > 1
    print(density, len(parts), time.process_time() - started)
