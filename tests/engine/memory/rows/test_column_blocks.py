"""Segments in blocks of columns, beside columns counted tap by tap."""

from dataclasses import replace

import pytest

from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.replay import replay
from benchmarks.microcontrollers import recomputed
from benchmarks.row_networks import Chain, mobilenet_v2
from tests.engine.memory.rows.networks import addressed


def _network() -> Chain:
    net = Chain(24, 3, 1)
    x = net.convolution(8, 3, 2)
    net.convolution(16)
    net.convolution(16, 3, groups=16)
    net.convolution(8, residual=x)
    net.convolution(12, 5, 2)
    return net


def _columns(net: Chain, low: int, high: int) -> dict[str, set[int]]:
    """Columns of every value that columns [low, high) of the last need, tap by tap."""
    needed = {v.name: set() for v in net.values}
    needed[net.last] = set(range(low, high))
    for operator in reversed(net.operators):
        for read in operator.reads:
            extent = net.values_by_name[read.value].rows
            for column in needed[operator.outputs[0]]:
                taps = (column * read.map.step + t for t in range(read.map.first, read.map.last + 1))
                needed[read.value] |= {t for t in taps if 0 <= t < extent}
    return needed


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_block_has_the_columns_that_it_needs_and_no_others(count: int):
    net = _network()
    found, total = net.columns.narrowed(net.segment, count)
    blocks = [_columns(net, 6 * b // count, 6 * (b + 1) // count) for b in range(count)]
    for value in net.values:
        wide = value.name in ("x", net.last)
        widest = value.rows if wide else max(len(b[value.name]) for b in blocks)
        assert found.by_name[value.name].row_bytes == value.row_bytes // value.rows * widest
    work = sum(
        net.work[o.name] * net.values_by_name[o.name].rows * len(block[o.name])
        for block in blocks
        for o in net.operators
    )
    assert total == pytest.approx(work)


def test_the_widest_block_runs_at_its_addresses():
    net = _network()
    found, _ = net.columns.narrowed(net.segment, 3)
    _, calls, whole, nbytes = addressed(found)
    replay(found, calls, whole, nbytes)


def test_one_block_is_the_segment_itself():
    net = _network()
    segment: Segment = replace(net.segment, freed=("x",))
    assert net.columns.narrowed(segment, 1) == (segment, net.columns.total(segment))


def test_more_multiplications_buy_fewer_bytes():
    points = recomputed(mobilenet_v2(48, 0.35, 1, 1))
    assert len(points) > 3
    assert points[-1][1] == pytest.approx(1.0)
    assert [f for _, f in points] == sorted((f for _, f in points), reverse=True)
    assert points[0][0] < 0.7 * points[-1][0]
