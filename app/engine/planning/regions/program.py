"""One plan for a region of shapes: decisions are made once, sizes are filled in for each shape.

The graph of the plan gets the shapes of a point, and every row that was chosen lowers its group again: that
takes milliseconds, measures nothing and compiles nothing, since kernels take sizes as arguments. What rows
say of themselves is asked at every point, so a program is made only where all of them apply.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import build, outputs_of, view_classes
from app.engine.buffers.placement import place
from app.engine.core import graph, program
from app.engine.core.calls import Excess, KernelCall
from app.engine.core.group import Group
from app.engine.core.placement import OrderedBuffers
from app.engine.core.plan import Choice, Compilation
from app.engine.core.program import Program
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.core.signature import signature
from app.engine.cost.roofline import expected, key
from app.engine.memory.stacked import Stacking, stacked
from app.engine.passes.plan_memory import PlanMemory
from app.engine.planning.regions.alternatives import Alternatives, Candidate
from app.engine.planning.regions.extents import Extents
from app.engine.planning.regions.packed import Packed
from app.engine.planning.regions.sized_graph import SizedGraph
from app.engine.types.errors import RegionError
from app.engine.types.options import Denied, MemoryConcessions
from app.engine.types.regions.region import Point, Region
from app.kernels.cpu.runtime.compiler import Request

NOTHING = MemoryConcessions()
ROUNDS = 8  # of plans, each without the rows that some shape refuses
ZEROS = itertools.repeat(0)
COVERED = 1024  # points at which groups are lowered whose kernels have sizes as constants

Build = Callable[[MemoryConcessions], Program]


class Seconds(NamedTuple):
    """Time of a program at a shape, and the part of it that was measured; the rest is predicted."""

    total: float
    measured: float


class RowRefusedError(RegionError, code="region-row-refused"):
    """A row of the plan does not compute its group at a point."""

    def __init__(self, denied: Denied, message: str) -> None:
        super().__init__(message, pointer=f"node:{denied[0]}")
        self.denied = denied


class RegionProgram:
    """A plan for every shape of a region.

    Its graph has the shapes of the point that was asked for last: programs of several points are bound to
    memory one after the other, each before the next is made. One thread may ask.

    Args:
        planned: the program at one point, whose rows, layouts, fusion and order are kept.
        anchor: that point.
        region: the shapes that it serves; a part of those that `extents` is of.
        notes: see below.

    Attributes:
        notes: rows that were passed over, as some shape refuses them.
        varying: constants of the graph that depend on the shape.
        packed: constants that its programs share.
    """

    def __init__(
        self,
        planned: Program,
        anchor: Point,
        extents: Extents,
        region: Region,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.region = region
        self.anchor = anchor
        self.notes = notes
        self._planned = planned
        self._compilation = planned.compilation
        self._sized = SizedGraph(planned.compilation.graph, extents)
        self.varying = frozenset(self._sized.constants)
        self.packed = Packed(self.varying)
        self._kernels: dict[Request, None] = {}
        self._kernels_by_group: dict[str, set[tuple[Request, ...]]] = {}
        self._alternatives = Alternatives(planned.compilation)
        self._orders: dict[Hashable, Sequence[Candidate]] = {}  # rows by kind of a group, at `_point`
        self._point: Point = anchor
        self._workspaces: dict[str, tuple[str, ...]] = {}  # ids by name of a group, the most of any point

    @property
    def concessions(self) -> MemoryConcessions:
        """Concessions of its plan."""
        return self._compilation.concessions

    @property
    def stacking(self) -> Stacking:
        """Which buffer lies above which, at every point."""
        return self._stacked[0]

    @cached_property
    def _stacked(self) -> tuple[Stacking, bool]:
        """The stacking of the largest shape, and whether only whole values are computed in place."""
        if self.anchor == self.region.largest:
            self._resize(self.anchor)  # another region may have asked for a point of the same plan
            whole = self._compilation
            buffers = whole.plan.require("buffers")
            assignment, solution = buffers.assignment, self._planned.placement.solution
        else:
            largest = self.region.largest
            whole = self._chosen(largest)
            with _same_sharing(whole, largest):
                assignment, solution = place(whole)
        return stacked(assignment.problem, solution), build(whole).problem == assignment.problem

    def at(self, point: Point) -> Program:
        """The program at a point.

        Raises:
            RowRefusedError: a row does not compute its group there.
            RegionError: values share memory there in another way than at the largest shape.
            CapacityError: it takes more than the budget.
        """
        stacking, whole = self._stacked
        return self._placed(self._chosen(point), point, stacking, whole=whole)

    def seconds(self, point: Point, timings: Mapping[str, float], scales: Mapping[str, float]) -> Seconds:
        """Time of the program at a point, where it need not have memory.

        Args:
            point: the shape.
            timings: measured seconds, see `app.engine.cost.roofline.key`; what they lack is predicted.
            scales: factors of predictions by name of a group, see `scales`.

        Raises:
            RowRefusedError: a row does not compute its group there.
        """
        total = measured = 0.0
        for name, known, predicted in self._times(point, timings):
            measured += known or 0.0
            total += predicted * scales.get(name, 1.0) if known is None else known
        return Seconds(total, measured)

    def scales(self, point: Point, timings: Mapping[str, float]) -> dict[str, float]:
        """Measured over predicted seconds at a point, by name of a group that was measured there.

        Predictions for other rows of the group are on one scale with what was measured when they are
        multiplied by it.
        """
        times = self._times(point, timings)
        return {name: known / predicted for name, known, predicted in times if known and predicted}

    def _times(self, point: Point, timings: Mapping[str, float]) -> Iterator[tuple[str, float | None, float]]:
        """Name, measured seconds if there are any, and predicted seconds of every group at a point."""
        chosen = self._chosen(point)
        context = PlanningContext.of(chosen, chosen.plan.require("storage"))
        for group, choice in chosen.plan.require("implementation").items():
            row, tuned = choice.implementation, replace(context, tuning=choice.tuning)
            known = timings.get(key(row, group, tuned)) if timings else None
            yield group.name, known, expected(row, group, tuned)

    def _chosen(self, point: Point) -> Compilation:
        """The compilation at a point without places in memory.

        Raises:
            RowRefusedError: a row does not compute its group there.
        """
        kinds = self._anchor_kinds
        self._resize(point)
        before = self._compilation
        context = PlanningContext.of(before, before.plan.require("storage"))
        fresh = {g: _fresh(g) for g in before.plan.require("order")}
        chosen = {
            fresh[group]: self._choice(fresh[group], choice, context, kinds[group])
            for group, choice in before.plan.require("implementation").items()
        }
        return before.with_plan(
            implementation=chosen,
            fusion={node: fresh[g] for node, g in before.plan.require("fusion").items()},
            order=tuple(fresh.values()),
            buffers=None,
            placement=None,
        )

    def look(self, point: Point, timings: Mapping[str, float]) -> None:
        """Find rows that are faster at a point than those of the plan, or apply where these do not.

        Programs made from then on take, for each group, the row that is predicted to be the fastest at their
        shape. A budget and `prefer` `memory` keep the rows of the plan.
        """
        options = self._compilation.options
        if options.memory_budget is not None or options.prefer == "memory":
            return
        self._resize(point)
        plan = self._compilation.plan
        context = PlanningContext.of(self._compilation, plan.require("storage"))
        planned = {_fresh(g): choice for g, choice in plan.require("implementation").items()}

        def lowered(group: Group, row: Implementation, tuning: str) -> Choice | str:
            return self._lowered(group, planned[group], row, tuning, context)

        self._alternatives.look(point, planned, timings, lowered)

    @property
    def kernels(self) -> tuple[Request, ...]:
        """The distinct kernels of all programs that were made, and those that `cover` found."""
        return tuple(self._kernels)

    def cover(self) -> None:
        """Find the kernels of every shape: a few rows write sizes into the text of theirs.

        Only groups with several kernels or rows so far are lowered, one of each kind, at COVERED points
        evenly spaced.
        """
        plan = self._compilation.plan
        context = PlanningContext.of(self._compilation, plan.require("storage"))
        several = [
            (group, choice)
            for group, choice in plan.require("implementation").items()
            if len(self._kernels_by_group.get(group.name, ())) > 1 or self._alternatives.of(group)
        ]
        kinds = self._kinds(several)
        alone = [*{kinds[g]: (g, choice) for g, choice in several}.values()]
        count = self.region.count
        for index in range(0, count, -(-count // COVERED)) if alone else ():
            self._resize(self.region.at(index))
            for g, choice in alone:
                with contextlib.suppress(RowRefusedError):  # that point has a program of its own
                    fresh = _fresh(g)
                    self._count(g, self._choice(fresh, choice, context))

    @property
    def workspace_ids(self) -> frozenset[str]:
        """Ids of buffers that are workspaces, at the points that were asked for."""
        return frozenset(name for ids in self._workspaces.values() for name in ids)

    def workspace_sizes(self, names: Collection[str]) -> dict[str, list[int]]:
        """Bytes of workspaces by id, at every point of the region in order; one group of a kind is lowered.

        Raises:
            RowRefusedError: no row computes its group somewhere.
        """
        plan, threads = self._compilation.plan, self._compilation.options.threads
        context = PlanningContext.of(self._compilation, plan.require("storage"))
        found: dict[str, list[int]] = {name: [] for name in names}
        owners = [
            (group, choice)
            for group, choice in plan.require("implementation").items()
            if not found.keys().isdisjoint(self._workspaces.get(group.name, ()))
        ]
        kinds = self._kinds(owners)
        for point in self.region.points() if owners else ():
            self._resize(point)
            sizes: dict[Hashable, list[int]] = {}
            for g, choice in owners:
                if kinds[g] not in sizes:
                    calls = self._choice(_fresh(g), choice, context).calls
                    spaces = {id(space): space for space in program.scratch(calls)}.values()
                    sizes[kinds[g]] = [s.nbytes * (threads if s.per_thread else 1) for s in spaces]
                # One row may need fewer than another.
                for name, taken in zip(self._workspaces[g.name], itertools.chain(sizes[kinds[g]], ZEROS)):
                    if name in found:
                        found[name].append(taken)
        return found

    def _kinds(self, groups: Sequence[tuple[Group, Choice]]) -> dict[Group, Hashable]:
        """Keys of groups: those of one have the same rows, kernels and shapes at every sample so far."""
        alike: dict[Group, list[str]] = {g: [] for g, _ in groups}
        for point in self.region.samples() if groups else ():
            self._resize(point)
            for group, keys in alike.items():
                keys.append(signature(_fresh(group)))
        found: dict[Group, Hashable] = {}
        for g, c in groups:
            kernels = frozenset(self._kernels_by_group.get(g.name, ()))
            rows = c.implementation.name, c.tuning, *self._alternatives.of(g)
            found[g] = *alike[g], *rows, kernels
        return found

    def _count(self, group: Group, choice: Choice) -> None:
        requests = tuple(c.request for c in choice.calls if isinstance(c, KernelCall))
        self._kernels |= dict.fromkeys(requests)
        self._kernels_by_group.setdefault(group.name, set()).add(requests)

    def _resize(self, point: Point) -> None:
        """Give the graph the shapes, constants and attributes of a point."""
        self._point = point
        self._orders = {}
        self._sized.resize(point)

    @cached_property
    def _anchor_kinds(self) -> dict[Group, Hashable]:
        """Keys of groups: those of one are the same at the anchor, and their shapes have equal formulas.

        Rows of two such groups are in one order by predicted time at every point, as in equal layers.
        """
        self._resize(self.anchor)
        formulas = {value: tuple(map(str, dims)) for value, dims in self._sized.values}
        found: dict[Group, Hashable] = {}
        for group, choice in self._compilation.plan.require("implementation").items():
            shapes = tuple(formulas.get(v) for v in (*group.inputs, *group.outputs))
            found[group] = signature(_fresh(group)), shapes, choice.implementation.name, choice.tuning
        return found

    def _choice(
        self, group: Group, before: Choice, context: PlanningContext, kind: Hashable = None
    ) -> Choice:
        """The choice for a group with the shapes of `_point`: the fastest of its rows that apply.

        Args:
            group: with the shapes.
            before: the choice of the plan.
            context: what rows may see.
            kind: of the group, see `_anchor_kinds`; None orders the rows anew.

        Raises:
            RowRefusedError: none applies.
        """
        reasons: dict[Implementation, str] = {}
        key = kind, tuple(self._alternatives.of(group))
        if kind is None or key not in self._orders:
            self._orders[key] = [*self._alternatives.ordered(self._point, group, before)]
        for row, tuning in self._orders[key]:
            found = self._lowered(group, before, row, tuning, context)
            if isinstance(found, Choice):
                return found
            reasons[row] = found
        raise _refused(group, before, reasons[before.implementation])

    def _lowered(
        self, group: Group, before: Choice, row: Implementation, tuning: str, context: PlanningContext
    ) -> Choice | str:
        """The choice of a row in place of `before`; a reason where it cannot be."""
        reason = row.rejection_reason(group, context)
        if reason is not None:
            return reason
        shared, every = {view[:2] for view in before.views}, row.views(group, context)
        # One value has one place: of a part that comes twice the first shares, the others are copied.
        found = {v[:2]: v for v in reversed(every)}
        views = tuple(v for pair, v in reversed(found.items()) if pair in shared)
        if len(views) != len(shared) or (len(views) < len(every) and not (row.partial and views)):
            return "values that lie in others do not there"
        reason = self._misplaced(group, row.required_layouts(group, context))
        if reason is not None:
            return reason
        tuned = replace(context, tuning=tuning, granted=frozenset(views))
        if not set(before.inplace) <= set(row.inplace(group, tuned)):
            return "what is computed in place cannot be there"
        calls = tuple(self.packed.kept(group, row.name, i, c) for i, c in enumerate(row.lower(group, tuned)))
        for call in calls:
            if not isinstance(call, KernelCall):
                return "it runs outside the compiled driver"
            if any(isinstance(a, Excess) for a in call.arguments):
                return "what it stores has a bound that a run may exceed"
        return replace(before, implementation=row, tuning=tuning, calls=calls, views=views)

    def _misplaced(self, group: Group, required: Mapping[ir.Value, object]) -> str | None:
        """Reason why the layouts that a row asks for are not those of the plan; None where they are."""
        layouts = self._compilation.plan.require("layout")
        for value in (*group.inputs, *group.outputs):
            if value.name and not graph.is_constant(value):
                wanted = required.get(value)
                if wanted != layouts[value] and not (wanted is None and layouts[value].is_plain):
                    return f"it asks for {value.name!r} {wanted or 'row-major'}, which is {layouts[value]}"
        return None

    def _placed(self, compilation: Compilation, point: Point, stacking: Stacking, *, whole: bool) -> Program:
        with _same_sharing(compilation, point):
            assignment = build(compilation, whole=whole)
            solution = stacking.extended(assignment.problem).solution(assignment.problem)
            buffers = OrderedBuffers(assignment, solution)
            found = program.build(PlanMemory(policies=False)(compilation.with_plan(buffers=buffers)))
        for group, choice in compilation.plan.require("implementation").items():
            self._count(group, choice)
            ids = tuple(dict.fromkeys(assignment.workspaces.get(group, ())))
            if len(ids) > len(self._workspaces.get(group.name, ())):
                self._workspaces[group.name] = ids
        return found


@contextlib.contextmanager
def _same_sharing(compilation: Compilation, point: Point) -> Iterator[None]:
    """A block in which a ValueError means that values share memory at a point as they cannot there.

    Raises:
        RowRefusedError: the views of a row are not possible there.
        RegionError: anything else.
    """
    try:
        yield
    except ValueError as cause:
        classes = view_classes(compilation)
        for group, choice in compilation.plan.require("implementation").items():
            for reason in classes.share(choice.views, outputs_of(group)).values():
                raise _refused(group, choice, reason) from cause
        told = ", ".join(f"{n}={v}" for n, v in point.items())
        raise RegionError(f"at {told} values share memory in another way: {cause}") from cause


def _fresh(group: Group) -> Group:
    """The group without what is remembered of it: its values have other shapes."""
    return Group(group.nodes, group.anchor, group.inputs, group.outputs, group.op)


def _refused(group: Group, choice: Choice, reason: str) -> RowRefusedError:
    row = choice.implementation
    denied = group.name, row.name
    return RowRefusedError(
        denied, f"{group.op} {group.name!r}: {row.name} does not serve the region: {reason}"
    )


def region_program(
    build_plan: Build,
    anchor: Point,
    extents: Extents,
    region: Region,
    points: Sequence[Point],
    concessions: MemoryConcessions = NOTHING,
    timings: Mapping[str, float] = MappingProxyType({}),
) -> RegionProgram:
    """The program of a region by the plan of one of its points, without the rows that points refuse.

    Groups have other rows at some shapes where these are faster at one of the points, by measured times
    and predictions.

    Raises:
        RegionError: no such plan was found; the message names the last row, and the reason.
    """
    denied: frozenset[Denied] = frozenset()
    notes: list[str] = []
    for _ in range(ROUNDS):
        conceded = replace(concessions, denied=concessions.denied | denied)
        found = RegionProgram(build_plan(conceded), anchor, extents, region, tuple(notes))
        for point in points:
            found.look(point, timings)
        refused = {e.denied: e for e in reversed([*_refusals(found, points)])}
        if not refused:
            return found
        again = [error for key, error in refused.items() if key in denied]
        if again:
            raise again[0]
        denied |= refused.keys()
        notes += [e.message for e in refused.values()]
    raise RegionError(f"after {ROUNDS} plans rows were still refused somewhere: {notes[-1]}")


def _refusals(found: RegionProgram, points: Sequence[Point]) -> Iterator[RowRefusedError]:
    """Errors of the points that a program does not serve, the first of each."""
    for point in points:
        try:
            found.at(point)
        except RowRefusedError as error:
            yield error
