"""Sub-graphs are convex, complete and follow the order of the backends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.core.plan import Compilation
from app.engine.passes.partition import Partition
from app.engine.types.errors import UnknownOperatorError
from app.engine.types.target import Target
from tests.engine.graphs import ALL_ROWS, quotient, random_graph, reaches, registry, row

TARGET = Target("test")
GRAPHS = st.integers(2, 14).flatmap(
    lambda n: st.lists(st.integers(0, 99), min_size=3 * n, max_size=3 * n).map(lambda c: random_graph(c, n))
)


@settings(max_examples=150, deadline=None)
@given(GRAPHS)
def test_sub_graphs_are_complete_and_form_no_cycle(model) -> None:
    result = Partition()(Compilation(model, TARGET, registry(*ALL_ROWS)))
    partition = result.plan.partition
    assert set(partition) == set(model.graph)
    edges = quotient(model.graph, partition.__getitem__)
    assert all(part not in reaches(edges, part) for part in edges)


def test_a_node_goes_to_the_first_backend_that_accepts_it() -> None:
    model = random_graph([0, 0, 0, 2, 0, 0, 3, 0, 0], 3)
    partition = Partition()(Compilation(model, TARGET, registry(*ALL_ROWS))).plan.partition
    assert [partition[n].backend for n in model.graph] == ["numba-cpu", "numba-cpu", "reference"]


def test_a_node_that_nothing_runs_is_named_with_the_reasons() -> None:
    model = random_graph([2, 0, 0], 1)
    rows = registry(row("heavy", "Heavy", test=lambda _group: False))
    with pytest.raises(UnknownOperatorError, match=r"Heavy 'n0'.*heavy: the test refuses it"):
        Partition()(Compilation(model, TARGET, rows))
