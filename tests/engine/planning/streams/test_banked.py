"""Plans in strips of rows beside a store."""

from collections.abc import Set
from pathlib import Path
from random import Random

import pytest

from app.engine.core.program import Program
from app.engine.memory.rows.arena import arena
from app.engine.memory.rows.cuts import pareto_cuts
from app.engine.memory.rows.replay import replay
from app.engine.planning.streams.banked import banked, with_spilled
from app.engine.planning.streams.forecast import forecast
from app.engine.types.errors import EngineError
from tests.engine.memory.rows.networks import random_segment
from tests.engine.planning.streams.programs import BLOCK, planned

DEVICE = "edge-npu"
WEIGHTS = (32 * 8 + 32 * 9 + 8 * 32) * 4  # byte of the block's
IMAGE = 8 * 64 * 64 * 4  # of its input


@pytest.fixture
def block(tmp_path: Path) -> Program:
    """The plan of the block for a device."""
    inputs, body = BLOCK
    return planned(tmp_path, inputs.replace("N", "64"), body, "float[1,8,1,1] s", DEVICE)


def test_a_block_fits_less_than_its_rings_and_input(block: Program):
    rings = forecast(block).rings
    found = banked(block, rings + IMAGE // 4, 8e9)
    assert found.nbytes <= rings + IMAGE // 4
    assert found.spilled == ("x",)
    assert f"{found.nbytes:12} in rows within" in str(found)


def test_with_room_each_weight_comes_once_and_the_input_once_for_each_reader(block: Program):
    assert banked(block, 2**30, 8e9).moved == WEIGHTS + 2 * IMAGE


def test_moving_takes_its_time_by_the_bandwidth_of_the_store(block: Program):
    slow, fast = banked(block, 2**16, 1e6), banked(block, 2**16, 1e15)
    assert fast.seconds == pytest.approx(fast.computing)
    assert slow.seconds >= slow.moved / 1e6 * (1 - 1e-9)


@pytest.mark.parametrize("capacity", [24 * 1024, 32 * 1024, 48 * 1024])
def test_what_has_no_room_is_spilled(tmp_path: Path, capacity: int):
    inputs = "float[1,8,64,64] x, " + ", ".join(f"float[8,8,5,5] w{i}" for i in range(4))
    body = " ".join(f"y{i} = Conv<pads = [2, 2, 2, 2]>({f'y{i - 1}' if i else 'x'}, w{i})" for i in range(4))
    found = banked(planned(tmp_path, inputs, body, "float[1,8,64,64] y3", DEVICE), capacity, 8e9)
    assert found.nbytes <= capacity
    assert len(found.spilled) > 2


def test_an_operator_whose_rows_have_no_room_is_named(block: Program):
    with pytest.raises(EngineError, match="more than 4096 byte"):
        banked(block, 4096, 8e9)


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("seed", range(60))
def test_spilled_values_of_random_graphs_are_read_where_they_lie(seed: int, overlapped: bool):
    rows = random_segment(seed)
    random = Random(seed)
    able = [v.name for v in rows.values if not v.accumulated]
    away: Set[str] = {"x", *(name for name in able if random.random() < 0.4)}
    graph, free = with_spilled(rows, away, overlapped=overlapped)
    cuts = pareto_cuts(graph, free, (1, 2))[0]
    segments = [p.segment for p in cuts.parts]
    begin = sum(v.nbytes + 64 for v in graph.values) + sum(o.scratch + 64 for o in graph.operators)
    at = {}
    for name in sorted(free):
        at[name], begin = begin, begin + graph.by_name[name].nbytes
    placed = arena(graph, segments, at, 8)
    replay(graph, [*placed.emitted(graph)], placed.whole, begin)
    assert free == {n if n == "x" else f"{n} stored" for n in away}
