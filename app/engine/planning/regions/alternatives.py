"""Rows that stand in for those of a plan at some shapes of its region.

Which row computes a group fastest depends on its sizes. Where two have the same interface, layouts, views and
contract about padded lanes, a program may take the one that is faster at its shape: the plan around stays.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from app.engine.core.group import Group
from app.engine.core.plan import Choice, Compilation
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost import roofline
from app.engine.types.regions.region import Point

SAVING = 0.002  # least part of the time of a program that another row of one group must save somewhere

# A group with the shapes of a point: its choice by this row and tuning, or the reason why there is none.
Lowered = Callable[[Group, Implementation, str], Choice | str]


class Candidate(NamedTuple):
    """A row and how it cuts its work."""

    row: Implementation
    tuning: str


class _Measured(NamedTuple):
    """Measured over predicted seconds of rows of one group at a point."""

    point: Point
    factors: Mapping[Implementation, float]


@dataclass
class Alternatives:
    """Rows of the groups of a plan, by name of a group; that of the plan comes first.

    Args:
        compilation: the plan.
    """

    compilation: Compilation
    _rows: dict[str, list[Candidate]] = field(default_factory=dict, init=False)
    _measured: dict[str, list[_Measured]] = field(default_factory=dict, init=False)

    def of(self, group: Group) -> list[Candidate]:
        """The rows of a group beside that of the plan."""
        return self._rows.get(group.name, [])

    def look(
        self,
        point: Point,
        groups: Mapping[Group, Choice],
        timings: Mapping[str, float],
        lowered: Lowered,
    ) -> None:
        """Add rows that are faster at a point than those of the plan, or apply where these do not.

        Args:
            point: the shape.
            groups: with the shapes of the point, and what the plan chose.
            timings: measured seconds, see `app.engine.cost.roofline.key`.
            lowered: see above.
        """
        context = self._context(timings)
        times = {group: self._times(group, choice, context) for group, choice in groups.items()}
        planned = {g: times[g].get(c.implementation, (math.inf, None))[0] for g, c in groups.items()}
        total = sum(seconds for seconds in planned.values() if seconds < math.inf)
        for group, choice in groups.items():
            found = times[group]
            self._remember(point, group, found, context)
            for row in sorted(found, key=lambda row: (found[row][0], row.rank)):
                seconds, tuning = found[row]
                if row is choice.implementation or seconds > planned[group] - SAVING * total:
                    break
                if isinstance(lowered(group, row, tuning or ""), Choice):
                    known = self._rows.setdefault(group.name, [])
                    if all(c.row is not row for c in known):
                        known.append(Candidate(row, tuning or ""))
                    break

    def ordered(self, point: Point, group: Group, choice: Choice) -> Iterable[Candidate]:
        """The rows of a group, the fastest at a point first; that of the plan among equals."""
        own = Candidate(choice.implementation, choice.tuning)
        others = self.of(group)
        if not others:
            return (own,)
        context = self._context({})
        rows = [c for c in (own, *others) if c.row.rejection_reason(group, context) is None]

        def seconds(candidate: Candidate) -> float:
            tuned = replace(context, tuning=candidate.tuning)
            return roofline.expected(candidate.row, group, tuned) * self._factor(point, group, candidate.row)

        return [*sorted(rows, key=seconds), *(c for c in (own,) if c not in rows)]

    def _context(self, timings: Mapping[str, float]) -> PlanningContext:
        context = PlanningContext.of(self.compilation, self.compilation.plan.require("storage"))
        return replace(context, timings=timings)

    def _times(
        self, group: Group, choice: Choice, context: PlanningContext
    ) -> Mapping[Implementation, tuple[float, str | None]]:
        """Seconds of the rows that may compute a group, and the tuning that was measured."""
        found = self.compilation.registry.candidates(group.op, self.compilation.target.backends)
        own = choice.implementation
        rows = [r for r in found if r is own or _same_interface(r, own)]
        applying = [r for r in rows if r.rejection_reason(group, context) is None]
        permitted = roofline.permitted(applying, group, context)
        times = {r: roofline.seconds(r, group, context) for r in permitted}
        return roofline.comparable(times, group, context)

    def _remember(
        self,
        point: Point,
        group: Group,
        times: Mapping[Implementation, tuple[float, str | None]],
        context: PlanningContext,
    ) -> None:
        factors = {}
        for row, (seconds, tuning) in times.items():
            predicted = roofline.expected(row, group, replace(context, tuning=tuning or ""))
            factors[row] = seconds / predicted if predicted else 1.0
        if any(tuning is not None for _, tuning in times.values()):
            self._measured.setdefault(group.name, []).append(_Measured(point, factors))

    def _factor(self, point: Point, group: Group, row: Implementation) -> float:
        """Measured over predicted seconds of a row where it was measured next to a point; 1 without any."""

        def distance(measured: _Measured) -> float:
            return sum(abs(math.log(measured.point[name] / size)) for name, size in point.items())

        known = [m for m in self._measured.get(group.name, ()) if row in m.factors]
        return min(known, key=distance).factors[row] if known else 1.0


def _same_interface(row: Implementation, other: Implementation) -> bool:
    """True if a row may stand in for another wherever layouts, views and values in place are the same."""
    return (
        row.backend == other.backend
        and row.padding == other.padding
        and row.precision == other.precision
        and row.makes_sparse == other.makes_sparse
        and row.memories is other.memories
    )
