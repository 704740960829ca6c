"""Minimum cuts against all cuts."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from app.engine.partition.mincut import Network

EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=20)


@given(EDGES)
def test_cut_is_minimal(edges: list[tuple[int, int, int]]) -> None:
    """Vertex 0 is the source, vertex 5 the sink."""

    def cost(side: set) -> int:
        return sum(c for tail, head, c in edges if tail in side and head not in side)

    network = Network()
    for tail, head, capacity in edges:
        network.add(tail, head, capacity)
    found = network.source_side(0, 5)
    assert 0 in found
    assert 5 not in found
    inner = range(1, 5)
    sides = ({0, *chosen} for n in range(5) for chosen in itertools.combinations(inner, n))
    assert cost(set(found)) == network.flow == min(cost(side) for side in sides)


@given(EDGES, st.integers(0, 5), st.lists(st.integers(0, 5), max_size=3), st.integers(1, 9))
def test_a_shared_edge_is_paid_once_in_each_direction(
    edges: list[tuple[int, int, int]], writer: int, readers: list[int], capacity: int
) -> None:
    def cost(side: set) -> int:
        apart = {(writer in side, reader in side) for reader in readers} - {(True, True), (False, False)}
        return sum(c for tail, head, c in edges if tail in side and head not in side) + capacity * len(apart)

    network = Network()
    for tail, head, amount in edges:
        network.add(tail, head, amount)
    network.add_shared(writer, readers, "value", capacity)
    found = network.source_side(0, 5)
    inner = range(1, 5)
    sides = ({0, *chosen} for n in range(5) for chosen in itertools.combinations(inner, n))
    assert cost({v for v in found if isinstance(v, int)}) == network.flow == min(cost(side) for side in sides)
