"""Cuts into segments beside brute force, and their arenas beside the checker."""

import zlib
from dataclasses import replace
from itertools import pairwise, product

import pytest

from app.engine.memory.rows.arena import arena
from app.engine.memory.rows.cuts import Counted, Cuts, Limits, Positions, pareto_cuts
from app.engine.memory.rows.geometry import Read, RowOperator, RowValue, Segment
from app.engine.memory.rows.replay import replay
from app.engine.memory.rows.schedule import Demand, schedule
from benchmarks.row_networks import mobilenet_v2
from tests.engine.memory.rows.networks import random_segment

FREE = frozenset({"x"})


def _needed(segment: Segment, number: int, row: int) -> set[tuple[str, int]]:
    """Rows that one row of an operator reads, tap by tap."""
    return {
        (read.value, i)
        for read in segment.operators[number].reads
        for tap in range(read.map.first, read.map.last + 1)
        if 0 <= (i := (row * read.map.step + tap) // read.map.per) < segment.by_name[read.value].rows
    }


def _alive(segment: Segment) -> list[dict[str, set[int]]]:
    """For each call the rows of each value that hold something that this call or a later one touches."""
    calls = schedule(segment).calls
    touched = [
        {(y, i) for y in segment.operators[o].outputs for i in range(first, first + rows)}
        | {r for i in range(first, first + rows) for r in _needed(segment, o, i)}
        for o, first, rows in calls
    ]
    found: list[dict[str, set[int]]] = [{} for _ in calls]
    for name, row in set().union(*touched):
        times = [t for t, rows in enumerate(touched) if (name, row) in rows]
        first = 0 if name in segment.inputs else times[0]
        last = len(calls) - 1 if name in segment.outputs else times[-1]
        for t in range(first, last + 1):
            found[t].setdefault(name, set()).add(row)
    return found


def _extent(rows: set[int] | None) -> int:
    """Rows from the first to the last."""
    return max(rows) - min(rows) + 1 if rows else 0


def _ring_bytes(segment: Segment) -> int:
    """Most bytes of whole values and rings at once in a chain without sums in place, by definition."""
    alive = _alive(segment)
    slots: dict[str, int] = {}
    for rows in alive:
        for name, own in rows.items():
            slots[name] = max(slots.get(name, 0), _extent(own))
    whole = [n for n in (*segment.inputs, *segment.outputs) if n not in FREE]
    total = sum(segment.by_name[n].rows * segment.by_name[n].row_bytes for n in whole)
    inner = [n for n in slots if n not in segment.inputs and n not in segment.outputs]
    return total + max(
        sum(slots[n] * segment.by_name[n].row_bytes for n in inner if n in rows)
        + segment.operators[call.operator].scratch
        for rows, call in zip(alive, schedule(segment).calls, strict=True)
    )


def _seconds(segment: Segment) -> float:
    """Seconds that depend on the operators and strips of a segment and on nothing else."""
    key = ",".join(f"{o.name}:{o.strip}" for o in segment.operators)
    return float(zlib.crc32(key.encode()) % 50 + 1)


def _stripped(segment: Segment, strip: int) -> Segment:
    whole = len(segment.operators) == 1
    return replace(
        segment,
        operators=tuple(o if o.aligned and not whole else replace(o, strip=strip) for o in segment.operators),
    )


def _brute_force(graph: Segment, strips: tuple[int, ...]) -> set[tuple[int, float]]:
    """Pareto points (bytes, seconds) over all subsets of cuts and all strips of each segment."""
    count = len(graph.operators)
    positions = Positions(graph, FREE, Limits(99), Counted.RINGS)
    known: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            segment = positions.segment(begin, end)
            sizes = [segment.rows(segment.operators[0])] if end - begin == 1 else strips
            known[begin, end] = [
                (_ring_bytes(one), _seconds(one)) for one in (_stripped(segment, r) for r in sizes)
            ]
    points: set[tuple[int, float]] = set()
    for chosen in product((False, True), repeat=count - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(chosen) if cut), count]
        options = {(0, 0.0)}
        for begin, end in pairwise(ends):
            options = {(max(b, m), s + t) for b, s in options for m, t in known[begin, end]}
            options = {a for a in options if not _beaten(a, options)}
        points |= options
    return {a for a in points if not _beaten(a, points)}


def _beaten(a: tuple[int, float], points: set[tuple[int, float]]) -> bool:
    return any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in points)


def _points(found: tuple[Cuts, ...]) -> set[tuple[int, float]]:
    return {(c.nbytes, c.seconds) for c in found}


@pytest.mark.parametrize("seed", range(12))
def test_cuts_of_chains_are_those_of_brute_force(seed: int):
    graph = random_segment(seed, longest=8, chain=True)
    graph = replace(graph, freed=())
    assert _points(pareto_cuts(graph, FREE, (1, 2, 4), _seconds)) == _brute_force(graph, (1, 2, 4))


def test_cuts_of_a_chain_of_twelve_layers_are_those_of_brute_force():
    seed = next(s for s in range(1000) if len(random_segment(s, 12, chain=True).operators) == 12)
    graph = replace(random_segment(seed, 12, chain=True), freed=())
    assert _points(pareto_cuts(graph, FREE, (1, 3), _seconds)) == _brute_force(graph, (1, 3))


@pytest.mark.parametrize("seed", range(12))
def test_cuts_within_a_number_of_bytes_are_those_of_all_that_need_no_more(seed: int):
    graph = replace(random_segment(seed, longest=8, chain=True), freed=())
    points = _points(pareto_cuts(graph, FREE, (1, 2, 4), _seconds))
    for most, _ in points:
        within = {p for p in points if p[0] <= most}
        assert _points(pareto_cuts(graph, FREE, (1, 2, 4), _seconds, limits=Limits(nbytes=most))) == within


@pytest.mark.parametrize("seed", range(6))
def test_segments_that_were_looked_at_are_known_to_the_next_search(seed: int):
    graph = replace(random_segment(seed, longest=8, chain=True), freed=())
    limits = Limits(known={})
    first = _points(pareto_cuts(graph, FREE, (1, 2, 4), _seconds, limits=limits))
    found = dict(limits.known or {})
    assert _points(pareto_cuts(graph, FREE, (1, 2, 4), _seconds, limits=limits)) == first
    assert found == limits.known


def test_segments_have_no_more_operators_than_allowed():
    graph = replace(random_segment(3, longest=8, chain=True), freed=())
    found = pareto_cuts(graph, FREE, (1, 2), _seconds, limits=Limits(operators=2))
    assert max(part.end - part.begin for cuts in found for part in cuts.parts) == 2


def test_too_few_bytes_for_the_end_give_the_cuts_of_the_longest_beginning():
    small, large = RowValue("a", 4, 8), RowValue("b", 4, 800)
    operators = RowOperator("first", (Read("x"),), ("a",)), RowOperator("second", (Read("a"),), ("b",))
    graph = Segment((RowValue("x", 4, 8), small, large), operators, ("x",), ("b",))
    (cuts,) = pareto_cuts(graph, FREE, (1,), limits=Limits(nbytes=100))
    assert [(part.begin, part.end) for part in cuts.parts] == [(0, 1)]


def test_constants_that_a_segment_keeps_lie_beside_its_rows():
    graph = replace(random_segment(1, chain=True), freed=())
    kept = replace(graph, operators=tuple(replace(o, kept=64) for o in graph.operators))
    whole = [o.name for o in graph.operators]
    plain, more = (arena(g, [g], {"x": 0}, 8).nbytes for g in (graph, kept))
    assert more == plain + 64 * len(whole)


@pytest.mark.parametrize("seed", range(40))
def test_live_bytes_are_those_of_the_rows_that_something_touches_later(seed: int):
    graph = random_segment(seed, chain=True)
    width = [v.row_bytes for v in graph.values]
    by_hand = max(
        sum(
            _extent(rows.get(v.name)) * v.row_bytes
            if v.name in graph.freed or v.name not in graph.inputs
            else v.rows * v.row_bytes
            for v in graph.values
        )
        + graph.operators[call.operator].scratch
        for rows, call in zip(_alive(graph), schedule(graph).calls, strict=True)
    )
    assert Demand(graph).live_bytes(width) == by_hand


@pytest.mark.parametrize("rings", [True, False])
@pytest.mark.parametrize("chain", [True, False])
def test_arenas_of_cut_graphs_run_at_their_addresses(rings: bool, chain: bool):
    for seed in range(40):
        graph = replace(random_segment(seed, longest=12, chain=chain), freed=())
        parts = pareto_cuts(graph, FREE, (1, 2), counted=Counted.RINGS if rings else Counted.ROWS)[0].parts
        segments = [p.segment for p in parts]
        size = arena(graph, segments, {"x": 0}, 8, rings).nbytes
        placed = arena(graph, segments, {"x": size}, 8, rings)
        assert placed.nbytes == size >= placed.solution.lower_bound
        replay(graph, list(placed.emitted(graph)), placed.whole, size + graph.by_name["x"].nbytes)


def test_inputs_that_are_counted_give_their_rows_to_what_follows():
    graph = replace(random_segment(3, chain=True), freed=("x",))
    placed = arena(graph, [graph], alignment=8)
    replay(graph, list(placed.emitted(graph)), placed.whole, placed.nbytes)


def test_rows_placed_one_by_one_take_less_than_rings():
    graph = mobilenet_v2(size=96, multiplier=0.35, width=1).segment
    rings, rows = (
        arena(
            graph,
            [
                p.segment
                for p in pareto_cuts(graph, FREE, (1,), counted=Counted.ROWS if b else Counted.RINGS)[0].parts
            ],
            {"x": 0},
            1,
            not b,
        )
        for b in (False, True)
    )
    assert rows.nbytes < rings.nbytes
    assert rows.table_rows > rings.table_rows == 0
