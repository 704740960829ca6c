"""Addresses in the tables of streams, replayed by the checker: it finds every row, and every planted fault."""

import dataclasses
from pathlib import Path
from random import Random

import numpy as np
import pytest

from app.engine.core.calls import Argument, Call, Constant, KernelCall
from app.engine.core.program import Step
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.memory.rows.replay import ReplayError
from app.engine.types.options import Streamed
from tests.engine.passes.streams.addresses import LENGTH, replayed
from tests.engine.passes.streams.chains import Plans, random_network, stream_of
from tests.engine.passes.streams.test_stream import target_of


def streamed(seed: int, lanes: int, folder: Path) -> Step:
    net, threads = random_network(seed), 1 + seed % 3
    plans = Plans(net.save(folder), target_of(lanes), fast=seed % 2 == 1, threads=threads)
    rows = (Random(seed).choice((1, 2, 3, 5)),) * len(plans.names)
    return stream_of(plans.planned(Streamed(plans.names, rows)))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("seed", range(30))
def test_addresses_of_random_networks_are_replayed(seed: int, lanes: int, tmp_path: Path) -> None:
    replayed(streamed(seed, lanes, tmp_path))


@pytest.mark.parametrize("seed", range(12))
def test_a_ring_that_is_a_row_shorter_is_found(seed: int, tmp_path: Path) -> None:
    step = streamed(seed, 8, tmp_path)
    assert isinstance(step.group, StreamGroup)
    rings = [r for r in step.group.memory.schedule.rings if r.rows > 1 and not r.transient]
    if not rings:
        pytest.skip("no ring of more than a row")
    ring = Random(seed).choice(rings)
    offset = step.group.memory.by_value[ring.values[0]][1] // 4
    shorter = dataclasses.replace(
        step.choice, calls=tuple(_with_shorter(call, offset, ring.rows) for call in step.calls)
    )
    with pytest.raises(ReplayError):
        replayed(dataclasses.replace(step, choice=shorter))


def _with_shorter(call: Call, offset: int, rows: int) -> Call:
    """The call with a row less of the ring that begins at an offset."""
    if not isinstance(call, KernelCall):
        return call
    arguments: list[Argument] = []
    for argument in call.arguments:
        if isinstance(argument, Constant) and argument.nbytes == 8 * LENGTH:
            table = np.array(argument.array)
            if table.dtype == np.int64 and table.shape == (LENGTH,):
                for at in (2, 5, 8):
                    if table[at] == offset and table[at + 1] == rows:
                        table[at + 1] -= 1
                argument = Constant(table)
        arguments.append(argument)
    return dataclasses.replace(call, arguments=tuple(arguments))
