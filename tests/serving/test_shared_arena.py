"""Regions of shared memory."""

import random

from app.serving.shared_arena import Region, SharedArena


def test_regions_do_not_overlap_and_come_back() -> None:
    chance, arena = random.Random(0), SharedArena(1 << 16)
    held: list[Region] = []
    for _ in range(2000):
        if held and chance.random() < 0.5:
            arena.give(held.pop(chance.randrange(len(held))))
            continue
        region = arena.take(chance.randrange(1, 1 << 14))
        if region is None:
            assert sum(r.nbytes for r in held) > 0
            continue
        assert 0 <= region.start < region.end <= arena.nbytes
        assert region.start % 64 == 0
        assert all(region.end <= r.start or r.end <= region.start for r in held)
        held.append(region)
    for region in held:
        arena.give(region)
    assert arena.take(1 << 16) == Region(0, 1 << 16)
    assert arena.take(1) is None


def test_what_a_burst_used_goes_back_to_the_system() -> None:
    arena = SharedArena(64 << 20)
    region = arena.take(64 << 20)
    assert region is not None
    arena.view[-1] = 7
    arena.give(region)
    assert arena.view[-1] == 0
