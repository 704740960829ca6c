"""Which plan serves which part of a region: plans of several points compared by time, and the region split.

A plan made at one point has rows and layouts that are best there. Plans of the corners, of the middle and
of expected shapes are candidates for the whole region; each is timed at all of these points. Where the best
loses more than LOSS against what is planned for a point alone, the region is cut in two, and each part gets
its own candidates.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from app.engine.core.program import Program
from app.engine.planning.regions.bounded_outputs import BoundedOutput
from app.engine.planning.regions.extents import Extents
from app.engine.planning.regions.program import NOTHING, Build, RegionProgram, Seconds, region_program
from app.engine.types.errors import CapacityError, EngineError, RegionError
from app.engine.types.options import MemoryConcessions
from app.engine.types.regions.region import Piece, Point, Region, WeightedPoint

MOST = 4  # pieces of a region
LOSS = 1.1  # times that a plan may take, of what is planned for a shape alone, before the region is split
GAIN = 0.01  # by which a cut must lower the largest loss
SIZES = {1: 9, 2: 5}  # of each symbol, by number of symbols, at which candidates are compared for a cut
FEW_SIZES = 3  # of each of more symbols

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Times at one shape: of the program that serves it, and of what is planned for it alone."""

    point: Point
    chosen: Seconds
    own: Seconds

    @property
    def loss(self) -> float:
        """Times that the program takes, of what is planned for the shape alone."""
        return self.chosen.total / self.own.total if self.own.total else 1.0


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """Programs that together serve a region.

    Attributes:
        region: the shapes.
        pieces: disjoint parts of it, each with one plan.
        curve: times at corners and middles of the pieces, and at expected shapes; empty where the pieces were
            given.
        outputs: those whose size a run finds out, by name.
    """

    region: Region
    pieces: tuple[RegionProgram, ...]
    curve: tuple[Sample, ...] = ()
    outputs: Mapping[str, BoundedOutput] = field(default_factory=dict)

    def piece(self, point: Point) -> RegionProgram:
        """The program that serves a point of the region."""
        return next(p for p in self.pieces if p.region.contains(point))

    def at(self, point: Point) -> Program:
        """The program at a point of the region; errors are those of `RegionProgram.at`."""
        return self.piece(point).at(point)

    @property
    def table(self) -> tuple[Piece, ...]:
        """The parts of the region, each with the point that it was planned at: enough to plan it again."""
        return tuple(Piece(p.region.symbols, p.anchor) for p in self.pieces)


class PointPlan(NamedTuple):
    """The function that plans a model at one point, and the measured times that it goes by."""

    build: Build
    timings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the region with its best candidate."""

    region: Region
    program: RegionProgram
    candidates: tuple[RegionProgram, ...]
    curve: tuple[Sample, ...]
    arena_bytes: int  # 0 where time alone counts

    @property
    def loss(self) -> float:
        return max(s.loss for s in self.curve)


@dataclass
class RegionPlanner:
    """Plans the region of some extents.

    Args:
        extents: of the model in the whole region.
        plan_at: the function that plans the model at a point, and what was measured for it there.
        expected: shapes and their weights; without any, corners and middle count equally.
        concessions: for memory, of all plans.
        smallest: whether fewer bytes of the arena come before time.
    """

    extents: Extents
    plan_at: Callable[[Point], PointPlan]
    expected: Sequence[WeightedPoint] = ()
    concessions: MemoryConcessions = NOTHING
    smallest: bool = False
    # Those of the point that was planned last: a table of measured times only grows.
    _timings: Mapping[str, float] = field(default_factory=dict, init=False)
    _own: dict[Key, RegionProgram] = field(default_factory=dict, init=False)

    def plan(self) -> RegionPlan:
        """The plan of the region; of the same input it is the same.

        Raises:
            RegionError: a part of the region has no plan; the message is that of its largest shape.
            CapacityError: no plan that was tried fits the memory at every shape.
        """
        parts = [self._part(self.extents.region)]
        final: set[int] = set()  # parts that no cut makes faster
        while len(parts) < MOST:
            open_parts = [p for p in parts if p.loss > LOSS and id(p) not in final]
            if not open_parts:
                break
            worst = max(open_parts, key=lambda p: p.loss)
            halves = self._halves(worst)
            if halves and _pays(worst, halves):
                at = parts.index(worst)
                parts[at : at + 1] = halves
            else:
                final.add(id(worst))
        curve = sorted((s for p in parts for s in p.curve), key=lambda s: self.extents.region.index(s.point))
        return RegionPlan(self.extents.region, tuple(map(self._finished, parts)), tuple(curve))

    def given(self, pieces: Sequence[Piece]) -> RegionPlan:
        """The plan of pieces that were chosen before; nothing is compared.

        Raises:
            RegionError: the pieces are not those of the region, or a piece has no plan.
        """
        region = self.extents.region
        regions = [replace(region, symbols=piece.symbols) for piece in pieces]
        ends = [p for r in regions for p in r.corners()]
        apart = not any(a.overlaps(b) for a, b in itertools.combinations(regions, 2))
        if not apart or sum(r.count for r in regions) != region.count or not all(map(region.contains, ends)):
            raise RegionError("the pieces are not those of the region")
        found = (self._program(part, piece.anchor, part.samples()) for part, piece in zip(regions, pieces))
        return RegionPlan(region, tuple(map(_covered, found)))

    def _program(
        self,
        region: Region,
        anchor: Point,
        points: Sequence[Point],
        concessions: MemoryConcessions | None = None,
    ) -> RegionProgram:
        conceded = self.concessions if concessions is None else concessions
        planned = self.plan_at(anchor)
        timings = self._timings or planned.timings
        return region_program(planned.build, anchor, self.extents, region, points, conceded, timings)

    def _finished(self, part: _Part) -> RegionProgram:
        """The program of a part, without rows that any sample refuses, and with all its kernels."""
        found = part.program
        again = self._program(part.region, found.anchor, part.region.samples(), found.concessions)
        again.notes = (*found.notes, *again.notes)
        return _covered(again)

    def _part(self, region: Region) -> _Part:
        """The best candidate of a part of the region."""
        expected = {_key(w.point): w.weight for w in self.expected if region.contains(w.point)}
        points = {
            _key(p): p for p in (*region.corners(), *(w.point for w in self.expected)) if region.contains(p)
        }
        for point in points.values():
            self._planned_alone(point)
        candidates: list[RegionProgram] = []
        missed: EngineError | None = None
        for point in points.values():
            try:
                candidates.append(self._program(region, point, tuple(points.values())))
            except (RegionError, CapacityError) as error:
                missed = missed or error
        if not candidates:
            assert missed
            raise missed
        own = [self._seconds(self._own[key], point) for key, point in points.items()]
        curves = [
            tuple(Sample(p, self._seconds(f, p), alone) for p, alone in zip(points.values(), own))
            for f in candidates
        ]
        weights = [expected.get(k, 0.0) if expected else 1.0 for k in points]
        largest = region.largest
        arenas = [found.at(largest).arena_bytes if self.smallest else 0 for found in candidates]
        best = min(range(len(candidates)), key=lambda i: (arenas[i], *_merit(curves[i], weights)))
        return _Part(region, candidates[best], tuple(candidates), curves[best], arenas[best])

    def _planned_alone(self, point: Point) -> None:
        """Plan a point alone."""
        if _key(point) not in self._own:
            planned = self.plan_at(point)
            self._timings = planned.timings
            # Without rows that no region has.
            self._own[_key(point)] = self._program(self.extents.region.only(point), point, (point,))

    def _seconds(self, found: RegionProgram, point: Point) -> Seconds:
        """Time of a program at a point, predictions on one scale with what was measured there."""
        own = self._own.get(_key(point))
        scales = {} if own is None else own.scales(point, self._timings)
        return found.seconds(point, self._timings, scales)

    def _or_infinite(self, found: RegionProgram, point: Point) -> float:
        """Seconds of a candidate at a point; infinite where a row refuses it."""
        try:
            return self._seconds(found, point).total
        except RegionError:
            return math.inf

    def _halves(self, part: _Part) -> tuple[_Part, _Part] | None:
        """A part cut where the best candidates of both sides lose least; None if it has one point."""
        region = part.region
        grid = region.grid(SIZES.get(len(region.symbols), FEW_SIZES))
        times = [[self._or_infinite(found, p) for p in grid] for found in part.candidates]
        least = [min(at) for at in zip(*times)]
        losses = [[t / least[i] if least[i] else 1.0 for i, t in enumerate(row)] for row in times]

        def lost(places: Sequence[int]) -> tuple[float, float]:
            return min((max(row[i] for i in places), sum(row[i] for i in places)) for row in losses)

        found: list[tuple[tuple[float, float], str, int]] = []
        for name in region.symbols:
            for size in sorted({p[name] for p in grid})[1:]:
                sides = [
                    [i for i, p in enumerate(grid) if (p[name] < size) == below] for below in (True, False)
                ]
                sums = [lost(side) for side in sides]
                found.append(((max(s[0] for s in sums), sum(s[1] for s in sums)), name, size))
        if not found:
            return None
        _, name, size = min(found, key=lambda f: f[0])
        low, high = region.cut(name, size)
        try:
            return self._part(low), self._part(high)
        except (RegionError, CapacityError):
            return None


def _key(point: Point) -> Key:
    return tuple(point.values())


def _pays(whole: _Part, halves: tuple[_Part, _Part]) -> bool:
    """True if a part is better served by its halves: the largest loss is less, and the arena no larger."""
    loss, arena = max(h.loss for h in halves), max(h.arena_bytes for h in halves)
    return loss < whole.loss - GAIN and arena <= whole.arena_bytes


def _merit(curve: Sequence[Sample], weights: Sequence[float]) -> tuple[float, float]:
    """By how much a candidate exceeds the loss that is allowed, and its mean loss."""
    mean = sum(w * s.loss for w, s in zip(weights, curve)) / sum(weights)
    return max(max(s.loss for s in curve) - LOSS, 0.0), mean


def _covered(found: RegionProgram) -> RegionProgram:
    found.cover()
    return found
