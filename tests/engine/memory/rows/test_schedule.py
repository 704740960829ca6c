"""Schedules of streamed segments: order of calls, rings, loops."""

import pytest

from app.engine.memory.rows.cuts import Counted, Limits, Positions
from app.engine.memory.rows.emit import emit
from app.engine.memory.rows.geometry import Read, RowOperator, RowValue, Segment, nearest, transposed, window
from app.engine.memory.rows.loops import length, pipelined, rolled
from app.engine.memory.rows.replay import replay
from app.engine.memory.rows.schedule import schedule
from app.engine.memory.rows.workspace import nested_loops, workspace
from benchmarks.row_networks import Chain, mobilenet_v2
from tests.engine.memory.rows.networks import random_segment


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(1, 1, 1), (3, 1, 1), (3, 2, 2), (5, 2, 1)])
def test_a_window_reads_what_its_taps_touch(kernel: int, stride: int, dilation: int):
    for top in range((kernel - 1) * dilation + 1):
        rows = window(kernel, stride, dilation, top)
        for i in range(7):
            taps = [i * stride - top + t * dilation for t in range(kernel)]
            assert (rows.low(i), rows.high(i)) == (min(taps), max(taps) + 1)


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(2, 2, 1), (3, 2, 1), (4, 2, 1), (5, 3, 2)])
def test_a_transposed_convolution_reads_every_row_that_reaches_its_output(
    kernel: int, stride: int, dilation: int
):
    for top in range(kernel):
        rows = transposed(kernel, stride, dilation, top)
        for o in range(9):
            reach = [i for i in range(-9, 19) for t in range(kernel) if i * stride + t * dilation - top == o]
            assert all(rows.low(o) <= i < rows.high(o) for i in reach)


def test_a_row_of_an_enlarged_image_reads_the_row_that_it_repeats():
    assert [nearest(2).low(i) for i in range(4)] == [0, 0, 1, 1]


def test_a_window_of_three_rows_needs_three_slots_and_what_follows_takes_turns():
    net = Chain(rows=8, channels=1, width=8)
    net.convolution(2)
    net.convolution(2, kernel=3)
    net.convolution(1)
    plan = schedule(net.segment)
    assert [(r.values, r.rows, r.transient) for r in plan.rings] == [(("v0",), 3, False), (("v1",), 1, True)]
    assert [c.operator for c in plan.calls[:8]] == [0, 0, 1, 2, 0, 1, 2, 0]


def test_a_sum_takes_the_slots_of_its_operand():
    net = Chain(rows=8, channels=1, width=8)
    x = net.convolution(2)
    net.convolution(4)
    net.convolution(4, kernel=3)
    net.convolution(2, residual=x)
    net.convolution(1)
    assert next(r.values for r in schedule(net.segment).rings) == ("v0", "v3")


def test_a_sum_does_not_take_slots_that_something_reads_later():
    values = tuple(RowValue(n, 6, 8) for n in "xabcd")
    operators = (
        RowOperator("a", (Read("x"),), ("a",)),
        RowOperator("b", (Read("a"),), ("b",), takes="a"),
        RowOperator("c", (Read("b", window(3, top=1)),), ("c",)),
        RowOperator("d", (Read("c"), Read("a")), ("d",)),
    )
    plan = schedule(Segment(values, operators, ("x",), ("d",)))
    assert [r.values for r in plan.rings] == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize("seed", range(60))
def test_calls_compute_every_row_once_and_in_order_after_what_they_read(seed: int):
    segment = random_segment(seed)
    done = dict.fromkeys((v.name for v in segment.values), 0)
    done["x"] = segment.by_name["x"].rows
    for number, first, rows in schedule(segment).calls:
        operator = segment.operators[number]
        assert 0 < rows <= operator.strip
        assert not operator.aligned or first % operator.strip == 0
        for i in range(first, first + rows):
            for read in operator.reads:
                extent = segment.by_name[read.value].rows
                assert min(read.map.high(i), extent) <= done[read.value]
        for name in operator.outputs:
            assert done[name] == first
            done[name] += rows
    assert all(done[name] == segment.by_name[name].rows for name in segment.outputs)


@pytest.mark.parametrize("seed", range(30))
def test_loops_unroll_to_the_calls_that_they_were_made_of(seed: int):
    found = schedule(random_segment(seed))
    extents = [found.segment.rows(o) for o in found.segment.operators]
    assert tuple(nested_loops(found).calls(extents)) == found.calls


def test_one_loop_with_clipped_calls_is_the_whole_schedule_with_the_same_rings():
    part = Positions(mobilenet_v2().segment, frozenset("x"), Limits(), Counted.RINGS).segment(0, 12)
    found = schedule(part)
    loop = pipelined(part, found.calls)
    assert loop is not None
    assert length(loop.items) < 0.7 * length(rolled(found.calls))
    calls = tuple(loop.calls([part.rows(o) for o in part.operators]))
    assert sorted(calls) == sorted(found.calls)
    assert [r.rows for r in schedule(part, calls).rings] == [r.rows for r in found.rings]


def test_clipped_calls_run_at_their_addresses():
    loops = 0
    for seed in range(300):
        segment = random_segment(seed)
        loop = pipelined(segment, schedule(segment).calls)
        if loop is None:
            continue
        loops += 1
        calls = tuple(loop.calls([segment.rows(o) for o in segment.operators]))
        placed = workspace(schedule(segment, calls))
        end = placed.nbytes
        whole: dict[str, int] = {}
        for name, place in placed.schedule.whole.items():
            if name in (*segment.inputs, *segment.outputs):
                whole.setdefault(place, end)
                whole[name] = whole[place]
                end += segment.by_name[place].nbytes
        replay(segment, list(emit(placed, whole)), whole, end)
    assert loops > 30


def test_the_table_of_loops_does_not_grow_with_the_image():
    sizes = []
    for rows in (32, 256):
        net = Chain(rows, 1, 4)
        for kernel in (3, 1, 3, 1):
            net.convolution(2, kernel)
        sizes.append(length(rolled(schedule(net.segment).calls)))
    assert sizes[0] == sizes[1] < 24


def test_the_workspace_of_a_network_is_near_what_lives_at_once():
    found = workspace(schedule(mobilenet_v2().segment))
    assert found.lower_bound <= found.nbytes <= 1.02 * found.lower_bound
