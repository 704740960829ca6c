"""The lower bound of arenas of rows, beside all orders of the rows of small chains."""

import heapq
from dataclasses import replace

import pytest

from app.engine.buffers.row_bound import live_row_bound
from app.engine.memory.rows.arena import arena
from app.engine.memory.rows.cuts import Counted, pareto_cuts
from app.engine.memory.rows.geometry import Segment
from benchmarks.row_networks import mobilenet_v2
from tests.engine.memory.rows.networks import random_segment

FREE = frozenset({"x"})


def _least_peak(chain: Segment) -> int:
    """Least peak over all orders of rows of a chain: a bottleneck path over how far each operator is."""
    extents = [chain.rows(o) for o in chain.operators]
    maps = [o.reads[0].map for o in chain.operators]
    width = [chain.by_name[o.outputs[0]].row_bytes for o in chain.operators]
    last = len(extents) - 1

    def needed(k: int, row: int) -> list[int]:
        rows = chain.by_name[chain.operators[k].reads[0].value].rows
        taps = range(maps[k].first, maps[k].last + 1)
        return [i for t in taps if 0 <= (i := (row * maps[k].step + t) // maps[k].per) < rows]

    reads = [[needed(k, i) for i in range(n)] for k, n in enumerate(extents)]
    for k in range(last, 0, -1):  # rows after the last that is read are never computed
        extents[k - 1] = max((i + 1 for row in reads[k][: extents[k]] for i in row), default=0)

    def alive(done: tuple[int, ...], k: int) -> set[int]:
        if k == last:
            return set(range(done[k]))
        return {i for row in reads[k + 1][done[k + 1] : extents[k + 1]] for i in row if i < done[k]}

    start = (0,) * len(extents)
    best = {start: 0}
    heap = [(0, start)]
    while heap:
        peak, done = heapq.heappop(heap)
        if done[last] == extents[last]:
            return peak
        if peak > best[done]:
            continue
        held = sum(len(alive(done, k)) * width[k] for k in range(last + 1))
        for k, at in enumerate(done):
            if at == extents[k] or (k and any(i >= done[k - 1] for i in reads[k][at])):
                continue
            after = (*done[:k], at + 1, *done[k + 1 :])
            most = max(peak, held + width[k] + chain.operators[k].scratch)
            if most < best.get(after, 1 << 62):
                best[after] = most
                heapq.heappush(heap, (most, after))
    raise AssertionError("the last operator can always be completed")


def _small_chains() -> list[Segment]:
    found = []
    for seed in range(400):
        chain = replace(random_segment(seed, longest=4, chain=True), freed=())
        if max(v.rows for v in chain.values) <= 7 and len(chain.operators) > 1:
            found.append(chain)
    return found[:40]


def test_no_order_of_rows_has_a_lower_peak_than_the_bound():
    met = 0
    for chain in _small_chains():
        least, bound = _least_peak(chain), live_row_bound(chain, FREE)
        assert bound <= least
        met += bound == least
    assert met >= 30  # a bound of zero would hold as well


def test_arenas_stay_above_the_bound():
    for chain in _small_chains():
        parts = pareto_cuts(chain, FREE, (1,), counted=Counted.ROWS)[0].parts
        placed = arena(chain, [p.segment for p in parts], {"x": 0}, 1, rings=False)
        assert _least_peak(chain) <= placed.nbytes


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_of_a_graph_is_below_its_arena(seed: int):
    graph = replace(random_segment(seed), freed=())
    placed = arena(graph, [graph], {"x": 0}, 1, rings=False)
    assert live_row_bound(graph, FREE) <= placed.nbytes


def test_a_network_in_rows_is_near_its_bound():
    graph = mobilenet_v2(size=48, multiplier=0.35, width=1).segment
    bound = live_row_bound(graph, FREE)
    assert bound <= pareto_cuts(graph, FREE, (1,), counted=Counted.ROWS)[0].nbytes <= 1.25 * bound
