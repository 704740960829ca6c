"""Drawings: boxes do not overlap, edges lead downwards, and the same graph is drawn the same."""

import random
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.report.layered import BOX_GAP, MOST_POINTS, POINTS_PER_BOX, Drawing, draw

Edges = list[tuple[int, int]]


def graph_of(boxes: int, seed: int, more: float = 0.4, reach: int = 40) -> Edges:
    rng = random.Random(seed)
    edges: Edges = []
    for sink in range(1, boxes):
        edges.append((max(0, sink - 1 - rng.randrange(3)), sink))
        if rng.random() < more:
            edges.append((rng.randrange(max(0, sink - reach), sink), sink))
    return list(dict.fromkeys(edges))


def check(sizes: list[tuple[float, float]], edges: Edges) -> Drawing:
    found = draw(sizes, edges)
    rows = defaultdict(list)
    for i, (x, y) in enumerate(found.centers):
        w, h = sizes[i]
        assert -1e-6 <= x - w / 2 <= x + w / 2 <= found.width + 1e-6
        assert -1e-6 <= y - h / 2 <= y + h / 2 <= found.height + 1e-6
        rows[found.layers[i]].append((x, w, y, h))
    for row in rows.values():
        row.sort()
        for (a, wide, *_), (b, w, *_) in pairwise(row):
            assert b - a >= (wide + w) / 2 + BOX_GAP - 1e-6
    order = sorted(rows)
    for upper, lower in pairwise(order):
        assert max(y + h / 2 for *_, y, h in rows[upper]) < min(y - h / 2 for *_, y, h in rows[lower])
    assert len(found.ways) == len(edges)
    for (source, sink), way in zip(edges, found.ways):
        assert found.layers[source] < found.layers[sink]
        if way:
            assert way[0] == pytest.approx(
                (found.centers[source][0], found.centers[source][1] + sizes[source][1] / 2)
            )
            assert way[-1] == pytest.approx(
                (found.centers[sink][0], found.centers[sink][1] - sizes[sink][1] / 2)
            )
            assert all(a[1] < b[1] for a, b in pairwise(way))
    return found


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 40))
def test_boxes_stay_apart_and_edges_lead_down(boxes: int, seed: int, more: float, reach: int) -> None:
    rng = random.Random(seed)
    sizes = [(float(rng.randrange(40, 220)), float(rng.randrange(20, 50))) for _ in range(boxes)]
    edges = graph_of(boxes, seed, more, reach)
    assert check(sizes, edges) == draw(sizes, edges)


def test_a_chain_is_a_straight_line() -> None:
    found = check([(100.0, 38.0)] * 50, [(i, i + 1) for i in range(49)])
    assert len({x for x, _ in found.centers}) == 1
    assert all(len(way) == 2 for way in found.ways)


def test_a_tree_has_no_crossing() -> None:
    edges = [((i - 1) // 2, i) for i in range(1, 63)]
    assert check([(80.0, 38.0)] * 63, edges).crossings == 0


def test_two_ladders_that_can_be_told_apart_do_not_cross() -> None:
    """Branches between a split and a join, given in the order that crosses the most."""
    #     0 splits into 1..4, each leads to one of 5..8 in the opposite order, joined by 9
    edges = [(0, i) for i in range(1, 5)] + [(i, 9 - i) for i in range(1, 5)] + [(i, 9) for i in range(5, 9)]
    assert check([(80.0, 38.0)] * 10, edges).crossings == 0


def test_what_feeds_a_late_step_comes_right_before_it() -> None:
    edges = [(0, 2), (2, 3), (3, 4), (1, 4)]
    found = check([(80.0, 38.0)] * 5, edges)
    assert found.layers[1] == found.layers[4] - 1


def test_edges_of_one_source_share_their_points_and_too_long_ones_are_left_out() -> None:
    boxes = 400
    chain = [(i, i + 1) for i in range(boxes - 1)]
    shared = chain + [(0, sink) for sink in range(2, boxes)]
    assert all(check([(80.0, 38.0)] * boxes, shared).ways), "one row of points serves all"
    every = chain + [(i, boxes - 1) for i in range(boxes - 2)]
    found = check([(80.0, 38.0)] * boxes, every)
    assert not all(found.ways)
    assert sum(len(w) for w in found.ways) <= 2 * len(every) + min(POINTS_PER_BOX * boxes + 512, MOST_POINTS)


def test_an_edge_that_leads_back_is_refused() -> None:
    with pytest.raises(ValueError, match=r"edge \(1, 0\).*topological order"):
        draw([(1.0, 1.0)] * 2, [(1, 0)])
    assert draw([], []).centers == ()
