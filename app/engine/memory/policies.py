"""Memory of the same buffers under the published policies of other systems.

A replay on one plan's buffers: order, lifespans, sizes and what is shared in place are ours, only the way
to find room is theirs. Where they place whole blocks again, the arena is the sum of the blocks.
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.engine.memory.problem import Buffer

RANGE = 16  # a free block serves requests up to this factor smaller or larger than itself

Kinds: TypeAlias = Mapping[str, str]  # element type by buffer id


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of another system.

    `source` is the repository path where it is published.
    """

    name: str
    source: str
    peak: Callable[[Sequence[Buffer], Kinds], int]


def _events(buffers: Sequence[Buffer]) -> list[tuple[int, bool, int]]:
    """(step, begins, buffer) in execution order: what ends does so before what begins."""
    rows = [(b.upper, False, i) for i, b in enumerate(buffers)] + [
        (b.lower, True, i) for i, b in enumerate(buffers)
    ]
    return sorted(rows)


def naive(buffers: Sequence[Buffer], _kinds: Kinds) -> int:
    """No byte used twice."""
    return sum(b.extent for b in buffers)


def blocks(buffers: Sequence[Buffer], _kinds: Kinds) -> int:
    """Whole blocks are used again: the smallest free one that is large enough, else the largest, grown."""
    return _reuse(buffers, {b.id: "" for b in buffers})


def tokens(buffers: Sequence[Buffer], kinds: Kinds) -> int:
    """As `blocks`, but a block only serves tensors of its element type."""
    return _reuse(buffers, kinds)


def _reuse(buffers: Sequence[Buffer], kinds: Kinds) -> int:
    sizes: list[int] = []  # by block
    free: dict[str, list[tuple[int, int]]] = {}  # (bytes, block), ordered, by kind
    held: dict[int, int] = {}
    for _, begins, i in _events(buffers):
        buffer = buffers[i]
        pool = free.setdefault(kinds.get(buffer.id, ""), [])
        if not begins:
            insort(pool, (sizes[held[i]], held[i]))
            continue
        need = buffer.extent
        larger = [e for e in pool if need <= e[0] <= need * RANGE]
        smaller = [e for e in pool if need <= e[0] * RANGE and e[0] < need]
        if larger or smaller:
            entry = larger[0] if larger else smaller[-1]
            pool.remove(entry)
            held[i] = entry[1]
            sizes[held[i]] = max(sizes[held[i]], need)
        else:
            held[i] = len(sizes)
            sizes.append(need)
    return sum(sizes)


def online(buffers: Sequence[Buffer], _kinds: Kinds) -> int:
    """Offsets in execution order: the smallest gap between live buffers that holds it, else the top."""
    live: list[tuple[int, int, int]] = []  # (offset, end, buffer), ordered
    peak = 0
    for _, begins, i in _events(buffers):
        if not begins:
            live = [row for row in live if row[2] != i]
            continue
        need, at, best = buffers[i].extent, 0, None
        for offset, end, _ in live:
            room = offset - at
            if room >= need and (best is None or room < best[0]):
                best = room, at
            at = max(at, end)
        start = best[1] if best else at
        insort(live, (start, start + need, i))
        peak = max(peak, start + need)
    return peak


def by_size(buffers: Sequence[Buffer], _kinds: Kinds) -> int:
    """Offsets by decreasing size: the smallest gap between what is alive at the same time."""
    placed: list[tuple[int, int, Buffer]] = []
    for buffer in sorted(buffers, key=lambda b: -b.extent):
        at, best = 0, None
        for offset, end, other in placed:
            if other.upper <= buffer.lower or other.lower >= buffer.upper:
                continue
            room = offset - at
            if room >= buffer.extent and (best is None or room < best[0]):
                best = room, at
            at = max(at, end)
        start = best[1] if best else at
        insort(placed, (start, start + buffer.extent, buffer), key=lambda row: row[:2])
    return max((end for _, end, _ in placed), default=0)


POLICIES = (
    Policy("no reuse", "", naive),
    Policy("NNVM, MXNet: blocks", "dmlc/nnvm: src/pass/plan_memory.cc", blocks),
    Policy("TVM Relax: tokens", "apache/tvm: src/relax/transform/static_plan_block_memory.cc", tokens),
    Policy(
        "ONNX Runtime: best fit in execution order",
        "microsoft/onnxruntime: onnxruntime/core/framework/mem_pattern_planner.h",
        online,
    ),
    Policy("TFLite: greedy by size", "arXiv:2001.03288, section 5", by_size),
)


def replay(buffers: Sequence[Buffer], kinds: Kinds, limit: int = 1000) -> list[dict[str, object]]:
    """Peak bytes by policy; nothing for more than `limit` buffers, where a replay would take long."""
    if len(buffers) > limit:
        return []
    alone = [b for b in buffers if b.extent]
    return [{"policy": p.name, "source": p.source, "peak_bytes": p.peak(alone, kinds)} for p in POLICIES]
