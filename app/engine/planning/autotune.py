"""Measured seconds of implementations on this machine: autotuning.

Before a graph is planned, the rows that may compute a group are run alone on memory of the right
shapes, and their times enter the timings table, where the choice of layouts and implementations
looks before it predicts. The table lies beside the compiled kernels it belongs to; what is in it is
never measured again, so plans are reproducible once it is filled.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import KernelCall
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import Implementation, PlanningContext, no_error
from app.engine.cost.calibration import calibration
from app.engine.cost.roofline import expected, key, run_storage, seconds
from app.engine.layouts.choice import choose
from app.engine.layouts.conversions import change, conversion, rows_between
from app.engine.layouts.options import LAST, level
from app.engine.passes.infer_storage import declared, returned
from app.engine.planning.kernel_timing import AROUND, Operands, Places, constant_arrays, least, sampler
from app.engine.planning.timing_cache import store, stored
from app.engine.storage.choice import rivals
from app.engine.types.layout import Layout
from app.engine.types.storage import StorageType
from app.kernels.cpu.runtime.compiler import Compiler, Request
from app.kernels.cpu.runtime.driver import Team
from app.kernels.cpu.runtime.parallel import helped

Array = np.ndarray[Any, Any]

# Predicted seconds in times of the best, beyond which an implementation is not measured:
FACTOR = 1.4  # at most; also where the kind of processor, or the number of threads, is not calibrated
LAST_FACTOR = 1.0  # over channels last, of the best in other layouts, where images come in another order
EXACT_FACTOR = 2.0  # the best that multiplies as often as the definition does
HOPELESS = 8.0  # one that stores a constant sparse
STORED_FACTOR = 3.0  # the same, in times of the best of these
# Shares of the predicted time of the graph:
WORTH = 0.002  # of a group, below which it is not measured
KERNEL_WORTH = 0.01  # saved by a kernel that the predicted plan lacks, below which it is not compiled
TUNING_WORTH = 0.0005  # saved by another cut of a group, below which it is not measured
TUNING_GAIN = 0.02  # of a group's time, that another cut seldom saves more than (4 % of 430 measured)

Candidates: TypeAlias = list[tuple[Group, Implementation, str]]
Storage: TypeAlias = Mapping[ir.Value, StorageType]
Rivals: TypeAlias = tuple[Group, tuple[Implementation, ...], Storage]
DENSE: Storage = MappingProxyType({})


def measure(
    compilation: Compilation,
    compiler: Compiler,
    likely: Callable[[], Sequence[Request]] = tuple,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, float]:
    """The timings table, with measured seconds of what the groups of a plan may be computed by.

    Groups with one candidate, or that hardly matter, are left to prediction. Where anything must be
    measured, the `likely` kernels of the plan are compiled while helpers compile those that are measured.
    """
    table = stored(compiler.folder)
    context = replace(PlanningContext.of(compilation), timings=table)
    worth = _worth_measuring(compilation, context)
    groups = worth.groups
    with closing(_Bench(context, compiler, table, _around(compilation, groups, context))) as bench:
        plain = [(group, row, row.tunings[0]) for group, rows in groups for row in rows]
        bench.add([*plain, *worth.conversions], likely, progress)
        bench.add(worth.tunings(context), tuple, progress)
        for group, rows, storage in _sparse(compilation, context):
            bench.add([(group, row, row.tunings[0]) for row in rows], tuple, progress, storage)
    return table


def _sparse(compilation: Compilation, context: PlanningContext) -> Iterator[Rivals]:
    """Groups that sparse values of a run may reach, of which rows on sparse and on dense operands compete."""
    if compilation.options.semantics != "stowplan":
        return
    for group, rows, storage in rivals(compilation, declared(compilation), returned(compilation)):
        if _is_measurable(group) and any(r.predicted(group, context) for r in rows):
            yield group, rows, storage


def _around(
    compilation: Compilation,
    groups: Sequence[tuple[Group, tuple[Implementation, ...]]],
    context: PlanningContext,
) -> Callable[[Group], int]:
    """Bytes of constants that a model uses between two uses of a group's own.

    A group is taken to be computed by the row that is predicted to be best: where that stores a constant
    sparse, what is left of the model may fit a cache that the dense one does not.
    """
    constants = {v for group in compilation.plan.groups for v in _constants(group)}
    total = sum(map(graph.nbytes, constants))
    own = {group: sum(map(graph.nbytes, _constants(group))) for group in compilation.plan.groups}
    for group, rows in groups:
        row = min(rows, key=lambda r: expected(r, group, context))
        if row.storage(group, context):
            stored = sum(a.nbytes for a in constant_arrays(_kernel_calls(row, group, context)))
            total += stored - own[group]
            own[group] = stored
    return lambda group: min(max(total - own.get(group, 0), 0), AROUND)


def _constants(group: Group) -> set[ir.Value]:
    return {v for v in group.inputs if graph.is_constant(v) and graph.dtype(v) is not None}


class _Bench:
    """The timings table of a folder, filled as asked."""

    def __init__(
        self,
        context: PlanningContext,
        compiler: Compiler,
        table: dict[str, float],
        around: Callable[[Group], int],
    ) -> None:
        self.table = table
        self.context = context  # sees what is added to the table
        self._around = around
        self._compiler = compiler
        self._team = Team(context.threads)

    def add(
        self,
        candidates: Candidates,
        likely: Callable[[], Sequence[Request]],
        progress: Callable[[int, int], None],
        storage: Storage = DENSE,
    ) -> None:
        """Measure rows with their tunings, on values stored so, where the table does not know them."""
        work: dict[str, tuple[Group, Implementation, PlanningContext, tuple[KernelCall, ...]]] = {}
        for group, row, tuning in candidates:
            facts = replace(self.context, tuning=tuning, storage=storage)
            name = key(row, group, facts)
            if name not in self.table and name not in work:
                work[name] = group, row, facts, _kernel_calls(row, group, facts)
        if not work:
            return
        timed = dict.fromkeys(call.request for *_, calls in work.values() for call in calls)
        with helped(self._compiler, timed):  # helpers begin while the likely plan is made
            kernels = dict.fromkeys(likely()) | timed
            for done, (kernel, types, static, takes_thread) in enumerate(kernels):
                progress(done, len(kernels) + len(work))
                self._compiler.compile(kernel, types, static, takes_thread=takes_thread)
        fresh: dict[str, float] = {}
        places = Places()
        rivals: dict[Group, list[str]] = {}
        for name, (group, *_) in work.items():
            rivals.setdefault(group, []).append(name)
        for names in rivals.values():
            progress(len(kernels) + len(fresh), len(kernels) + len(work))
            runs = []
            for name in names:
                group, row, facts, calls = work[name]
                layouts = row.required_layouts(group, facts)
                kinds = run_storage(row, group, facts).items()
                formats = {v: facts.sparse(v, kind) for v, kind in kinds}
                operands = Operands(layouts, facts.threads, formats, places)
                runs.append(sampler(calls, operands, facts, self._compiler, self._team, self._around(group)))
            fresh.update(zip(names, least(runs)))
            places.free()
        store(self._compiler.folder, fresh)
        self.table.update(fresh)

    def close(self) -> None:
        """End the threads."""
        self._team.close()


def _kernel_calls(row: Implementation, group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    calls = row.lower(group, context)
    assert all(isinstance(call, KernelCall) for call in calls), f"{row.name} runs outside the driver"
    return calls  # type: ignore[return-value]  # just asserted


@dataclass(frozen=True)
class _Candidates:
    """Implementations that may compute a group, with their predicted seconds.

    Attributes:
        layouts: those of the group where nothing was measured.
    """

    group: Group
    context: PlanningContext
    seconds: Mapping[Implementation, float]
    layouts: Mapping[ir.Value, Layout]

    @cached_property
    def best(self) -> float:
        """Least predicted seconds."""
        return min(self.seconds.values())

    @cached_property
    def planned(self) -> Implementation:
        """The row of the predicted plan."""
        ranked = sorted(self.seconds, key=lambda c: (self.seconds[c], c.rank))
        fitting = (c for c in ranked if c.required_layouts(self.group, self.context) == self.layouts)
        return next(fitting, ranked[0])

    def factor(self, candidate: Implementation) -> float:
        """Predicted seconds in times of the best, up to which a candidate may be as fast all the same."""
        known = calibration(self.context.target)
        if known is None or self.context.threads not in known.threads:
            return FACTOR
        best = min(self.seconds, key=self.seconds.__getitem__)
        return min(math.exp(math.hypot(known.of(candidate.name).error, known.of(best.name).error)), FACTOR)

    def saving(self, candidate: Implementation) -> float:
        """Seconds that a candidate saves if it is as fast as it may be."""
        return max(self.best - self.seconds[candidate] / self.factor(candidate), 0.0)

    @cached_property
    def measured(self) -> tuple[Implementation, ...]:
        """Those that no rule prunes."""
        return tuple(c for c in self.seconds if all(rule(c, self) is None for rule in PRUNE_RULES))

    @cached_property
    def computing(self) -> Mapping[Implementation, float]:
        """Predicted seconds of those that are no views."""
        return {c: s for c, s in self.seconds.items() if not c.views(self.group, self.context)}

    @cached_property
    def rivals(self) -> tuple[Implementation, ...]:
        """Where some store a constant sparse, those of them that may be best, and the best of the others.

        Which is faster is never left to prediction, unless it is hopeless: it depends on where the elements
        lie.
        """
        sparse = {c: s for c, s in self.seconds.items() if c.storage(self.group, self.context)}
        if not sparse or len(sparse) == len(self.seconds):
            return ()
        limit = min(STORED_FACTOR * min(sparse.values()), HOPELESS * self.best)
        dense = {c: s for c, s in self.computing.items() if c not in sparse}
        return (*(c for c, s in sparse.items() if s <= limit), *sorted(dense, key=dense.__getitem__)[:1])

    @cached_property
    def exact(self) -> Implementation | None:
        """The best that multiplies as often as the definition does, where no other near the best does.

        What the others save in products, they pay in weights.
        """
        near = {c for c, s in self.computing.items() if s <= FACTOR * self.best} | set(self.rivals)
        plainly = {c: s for c, s in self.computing.items() if c.error is no_error}
        found = min(plainly, key=plainly.__getitem__, default=None)
        needed = found is not None and all(c.error is not no_error for c in near)
        return found if needed and found and plainly[found] <= EXACT_FACTOR * self.best else None


def _view(candidate: Implementation, all_: _Candidates) -> str | None:
    return None if candidate in all_.computing else "it moves no bytes, which takes no time"


def _slow(candidate: Implementation, all_: _Candidates) -> str | None:
    ratio = all_.seconds[candidate] / (all_.best or 1.0)
    if ratio <= all_.factor(candidate) or candidate in (*all_.rivals, all_.exact):
        return None
    return f"it is predicted to take {ratio:.3g} times as long as the best"


# Each tells why a candidate is not measured, or None.
PRUNE_RULES: tuple[Callable[[Implementation, _Candidates], str | None], ...] = (_view, _slow)


def candidates(compilation: Compilation, context: PlanningContext) -> Iterator[tuple[Group, Implementation]]:
    """Every group with each row that may compute it, and the conversions of operands."""
    groups = _predicted(compilation, context)
    yield from ((found.group, row) for found in groups for row in found.computing)
    yield from ((group, row) for group, row, _ in _conversions(groups, compilation, context, 0.0))


@dataclass(frozen=True, slots=True)
class _Worth:
    """Work of measuring a graph that may pay.

    Attributes:
        groups: groups and the implementations that may compute them.
        conversions: those of their operands.
        total: predicted seconds of the graph.
        present: kernels of the predicted plan.
    """

    groups: list[tuple[Group, tuple[Implementation, ...]]]
    conversions: Candidates
    total: float
    present: frozenset[Request]

    def tunings(self, context: PlanningContext) -> Candidates:
        """Other cuts of the rows that are best as they are, where they may save enough."""
        found: list[tuple[Group, Implementation, str, str, tuple[Request, ...]]] = []
        saved: dict[object, float] = defaultdict(float)
        for group, rows in self.groups:
            best = min(rows, key=lambda row: seconds(row, group, context)[0])
            for tuning in best.tunings[1:]:
                cut = replace(context, tuning=tuning)
                missing = tuple(c.request for c in _kernel_calls(best, group, cut))
                missing = tuple(r for r in missing if r not in self.present)
                found.append((group, best, tuning, key(best, group, cut), missing))
                for what in (found[-1][3], *missing):
                    saved[what] += TUNING_GAIN * seconds(best, group, context)[0]
        return [
            (group, row, tuning)
            for group, row, tuning, name, missing in found
            if saved[name] >= TUNING_WORTH * self.total
            and all(saved[r] >= KERNEL_WORTH * self.total for r in missing)
        ]


def _worth_measuring(compilation: Compilation, context: PlanningContext) -> _Worth:
    """Groups that take long, the implementations that may compute them, and conversions of their operands.

    A kernel that the predicted plan lacks takes longer to compile than all its measurements: it must be able
    to save enough of the graph.
    """
    every = _predicted(compilation, context)
    total = sum(candidates.best for candidates in every)
    groups = [candidates for candidates in every if candidates.best >= WORTH * total]
    present = frozenset(r for found in every for r in _requests(found, found.planned))
    saved: dict[Request, float] = defaultdict(float)
    for found in groups:
        for row in found.measured:
            for request in set(_requests(found, row)):
                saved[request] += found.saving(row)
    rows = {
        found.group: tuple(
            row
            for row in found.measured
            if row in (*found.rivals, found.exact)
            or all(r in present or saved[r] >= KERNEL_WORTH * total for r in _requests(found, row))
        )
        for found in groups
    }
    several = [(g, found) for g, found in rows.items() if len(found) > 1 or any(r.tunings[1:] for r in found)]
    return _Worth(several, _conversions(groups, compilation, context, WORTH * total), total, present)


def _requests(found: _Candidates, row: Implementation) -> tuple[Request, ...]:
    """Kernels that a row runs; none where it runs outside the driver."""
    calls = row.lower(found.group, found.context)
    return tuple(call.request for call in calls if isinstance(call, KernelCall))


def _predicted(compilation: Compilation, context: PlanningContext) -> list[_Candidates]:
    """Candidates of every group of known shapes whose inputs may hold anything.

    Implementations over channels last are left out where the prediction takes another layout, unless they
    are as fast, or spare transposes that would take the difference: all images have such implementations,
    and blocks are faster for most.
    """
    partition = compilation.plan.require("partition")
    taken = choose(compilation, replace(context, timings={})).required_layouts
    spared = _spared_by_last(compilation, context)
    found = []
    for group in compilation.plan.groups:
        if group.op == SUBGRAPH:  # see `app.engine.planning.backend_assignment`
            continue
        if not _is_measurable(group):
            continue
        backend = partition[group.anchor].backend
        able = compilation.registry.candidates(group.op, (backend,))
        seconds = {
            c: expected(c, group, context)
            for c in able
            if c.op != "*" and c.rejection_reason(group, context) is None
        }
        if not _lies_last(taken[group]):
            others = {c: s for c, s in seconds.items() if not _lies_last(c.required_layouts(group, context))}
            limit = LAST_FACTOR * min(others.values(), default=0.0)
            limit += sum(spared.get(v, 0.0) for v in (*group.inputs, *group.outputs))
            near = {c: s for c, s in seconds.items() if s <= limit and not c.views(group, context)}
            seconds = {**others, **near}
        if seconds:
            found.append(_Candidates(group, context, seconds, taken[group]))
    return found


def _spared_by_last(compilation: Compilation, context: PlanningContext) -> dict[ir.Value, float]:
    """Seconds of the transposes that move nothing where a value lies with channels last, by that value."""
    partition = compilation.plan.require("partition")
    spared: dict[ir.Value, float] = {}
    for group in compilation.plan.groups:
        if group.op != "Transpose" or not _is_measurable(group):
            continue
        able = compilation.registry.candidates(group.op, (partition[group.anchor].backend,))
        rows = [c for c in able if c.op != "*" and c.rejection_reason(group, context) is None]
        views = [c for c in rows if c.views(group, context)]
        moving = [expected(c, group, context) for c in rows if c not in views]
        for layouts in (c.required_layouts(group, context) for c in views):
            if _lies_last(layouts):
                spared.update(dict.fromkeys(layouts, min(moving, default=0.0)))
    return spared


def _conversions(
    groups: Sequence[_Candidates], compilation: Compilation, context: PlanningContext, least: float
) -> Candidates:
    """Implementations of the conversions to layouts that candidates want, of `least` seconds or more."""
    wanted: dict[tuple[object, ...], tuple[ir.Value, Layout]] = {}
    for candidates in groups:
        for candidate in (candidates.planned, *candidates.measured):
            for value, layout in candidate.required_layouts(candidates.group, context).items():
                wanted.setdefault((graph.shape(value), layout), (value, layout))
    conversions: Candidates = []
    for value, layout in wanted.values():
        if conversion(value, layout, compilation, replace(context, timings={})) < least:
            continue
        group = change(value)
        for between in rows_between(group, layout, compilation, context):
            conversions += [(group, c, "") for c in between if not c.views(group, context)]
    return conversions


def _lies_last(layouts: Mapping[ir.Value, Layout]) -> bool:
    return any(level(layout) == LAST for layout in layouts.values())


def _is_measurable(group: Group) -> bool:
    """True where shapes are known and inputs may hold any elements: these are no indices or sizes."""
    values = (*group.inputs, *group.outputs)
    known = all(not graph.is_dynamic(v) and graph.dtype(v) is not None for v in values)
    return known and all(graph.is_constant(v) or _holds_anything(v) for v in group.inputs)


def _holds_anything(value: ir.Value) -> bool:
    kind = graph.element_type(value)
    return kind.kind == "f" or (kind.itemsize == 1 and kind.kind in "iu")
