"""The checker of streamed segments: right addresses pass, broken ones do not."""

import pytest

from app.engine.memory.rows.geometry import ROW, Read, RowOperator, RowValue, Segment, every, only
from app.engine.memory.rows.replay import Access, EmittedCall, ReplayError, replay
from benchmarks.row_networks import mobilenet_v2
from tests.engine.memory.rows.faults import FAULTS, survivors
from tests.engine.memory.rows.networks import addressed, random_segment


@pytest.mark.parametrize("chain", [True, False])
def test_random_segments_run_at_their_addresses(chain: bool):
    for seed in range(150):
        segment = random_segment(1000 + seed, chain=chain)
        _, calls, whole, nbytes = addressed(segment)
        replay(segment, calls, whole, nbytes)


def test_a_network_runs_at_its_addresses():
    segment = mobilenet_v2(size=96, strip=2).segment
    _, calls, whole, nbytes = addressed(segment)
    replay(segment, calls, whole, nbytes)


def test_every_kind_of_fault_is_tried_and_rejected():
    tried, accepted = survivors(400)
    assert accepted == []
    assert set(tried) == {f.__name__ for f in FAULTS}


def _pooled() -> Segment:
    """A sum over all rows, and an operator that scales every row by it."""
    values = (RowValue("x", 3, 4), RowValue("sum", 3, 4, accumulated=True), RowValue("y", 3, 4))
    operators = (
        RowOperator("pool", (Read("x"),), ("sum",)),
        RowOperator("scale", (Read("x"), Read("sum", only(2))), ("y",), strip=3, takes="x"),
    )
    return Segment(values, operators, ("x",), ("y",))


def test_a_sum_over_rows_has_one_place_until_its_last_turn_is_read():
    segment = _pooled()
    placed, calls, whole, nbytes = addressed(segment)
    assert placed.schedule.by_value["sum"].rows == 1
    replay(segment, calls, whole, nbytes)


def test_a_call_that_reads_every_row_needs_them_all():
    values = (RowValue("x", 3, 4), RowValue("a", 3, 4), RowValue("y", 2, 4))
    operators = (
        RowOperator("copy", (Read("x"),), ("a",)),
        RowOperator("all", (Read("a", every(3)),), ("y",)),
    )
    segment = Segment(values, operators, ("x",), ("y",))
    placed, calls, whole, nbytes = addressed(segment)
    assert placed.schedule.by_value["a"].rows == 3
    replay(segment, calls, whole, nbytes)


def _overwriting(freed: tuple[str, ...]) -> tuple[Segment, list[EmittedCall]]:
    values = (RowValue("x", 2, 4), RowValue("y", 2, 4))
    segment = Segment(
        values, (RowOperator("f", (Read("x", ROW),), ("y",), takes="x"),), ("x",), ("y",), freed
    )
    return segment, [
        EmittedCall(0, i, 1, (Access("x", i, 0, 4 * i, 4),), (Access("y", i, 0, 4 * i, 4),)) for i in (0, 1)
    ]


def test_an_input_is_overwritten_only_where_the_segment_frees_it():
    segment, calls = _overwriting(("x",))
    replay(segment, calls, {"x": 0, "y": 0}, 8)
    segment, calls = _overwriting(())
    with pytest.raises(ReplayError, match="read later"):
        replay(segment, calls, {"x": 0, "y": 0}, 8)


def test_scratch_must_not_lie_over_what_the_call_reads():
    segment, calls = _overwriting(("x",))
    calls[0] = calls[0]._replace(scratch=(6, 4))
    with pytest.raises(ReplayError, match="scratch"):
        replay(segment, calls, {"x": 0, "y": 0}, 12)
