"""Measured seconds of implementations on this machine: autotuning.

Before a graph is planned, the rows that may compute a group are run alone on memory of the right
shapes, and their times enter the timings table, where the choice of layouts and implementations
looks before it predicts. The table lies beside the compiled kernels it belongs to; what is in it is
never measured again, so plans are reproducible once it is filled.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import Implementation, PlanningContext, no_error
from app.engine.cost.roofline import key, run_storage, seconds
from app.engine.layouts.choice import choose
from app.engine.layouts.conversions import change, conversion, rows_between
from app.engine.layouts.options import LAST, level
from app.engine.passes.infer_storage import declared, returned
from app.engine.planning.timing_cache import store, stored
from app.engine.runtime.cpu.memory import aligned
from app.engine.storage.choice import rivals
from app.engine.types.layout import Layout, plain
from app.engine.types.sparse_array import SparseArray
from app.engine.types.storage import SparseFormat, StorageType, most_entries
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import Team, compile_dispatch_loop
from app.kernels.cpu.runtime.kernel_sequence import KernelRow, KernelSequence
from app.kernels.cpu.runtime.parallel import Request, helped

Array = np.ndarray[Any, Any]

# Predicted seconds in times of the best, beyond which an implementation is not measured:
FACTOR = 1.4  # in general
LAST_FACTOR = 1.0  # over channels last, of the best in other layouts, where images come in another order
EXACT_FACTOR = 2.0  # the best that multiplies as often as the definition does
HOPELESS = 8.0  # one that stores a constant sparse
STORED_FACTOR = 3.0  # the same, in times of the best of these
WORTH = 0.002  # share of the predicted time of the graph below which a group is not measured
REPEATS = 5  # samples of each implementation
CLOSE = 1.15  # times the best seconds of a group, up to which an implementation is sampled further
MORE = 6  # samples of those that are this close
SAMPLE = 1e-3  # s of one sample, filled with as many runs as it takes
# Seconds of kernels that follow one another without Python, which takes a microsecond to start them: more
# than a small kernel lasts.
RUN = 2e-5
# In a run of a model its other constants pass through the caches before a kernel meets its own again. So
# runs of a sample take turns with copies of its constants, as large together as the other constants:
AROUND = (
    64 * 2**20
)  # byte at most. Few last caches still have the first then: one of 32 MiB has most of 34 MB
COPIES = 64  # at most: smaller constants hardly matter


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
    measured, the `likely` kernels of the plan compile together with those, which all cores share.
    """
    table = stored(compiler.folder)
    context = replace(PlanningContext.of(compilation), timings=table)
    groups, conversions = _worth_measuring(compilation, context)
    with closing(_Bench(context, compiler, table, _around(compilation, groups, context))) as bench:
        candidates = [(group, row, row.tunings[0]) for group, rows in groups for row in rows]
        bench.add([*candidates, *conversions], likely, progress)
        # Only the row that is best as it is is cut in other ways.
        best = [(group, min(rows, key=lambda r: seconds(r, group, context)[0])) for group, rows in groups]
        bench.add([(g, row, tuning) for g, row in best for tuning in row.tunings[1:]], tuple, progress)
        for group, rows, storage in _sparse(compilation, context):
            bench.add([(group, row, row.tunings[0]) for row in rows], tuple, progress, storage)
    return table


def _sparse(compilation: Compilation, context: PlanningContext) -> Iterator[Rivals]:
    """Groups that sparse values of a run may reach, of which rows on sparse and on dense operands compete."""
    if compilation.options.semantics != "stowplan":
        return
    for group, rows, storage in rivals(compilation, declared(compilation), returned(compilation)):
        measurable = all(_is_measurable(v) for v in (*group.inputs, *group.outputs))
        if measurable and any(r.predicted(group, context) for r in rows):
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
        row = min(rows, key=lambda r: r.predicted(group, context))
        if row.storage(group, context):
            stored = sum(a.nbytes for a in _arrays(_kernel_calls(row, group, context)))
            total += stored - own[group]
            own[group] = stored
    return lambda group: min(max(total - own.get(group, 0), 0), AROUND)


def _constants(group: Group) -> set[ir.Value]:
    return {v for v in group.inputs if graph.is_constant(v) and graph.dtype(v) is not None}


def _arrays(calls: Sequence[KernelCall]) -> list[Array]:
    """Constants of the arguments, in order: one for each time that it is passed."""
    return [np.ascontiguousarray(a.array) for c in calls for a in c.arguments if isinstance(a, Constant)]


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
        kernels = dict.fromkeys(call.request for *_, calls in work.values() for call in calls)
        kernels.update(dict.fromkeys(likely()))
        with helped(self._compiler, kernels):
            for done, (kernel, types, static, takes_thread) in enumerate(kernels):
                progress(done, len(kernels) + len(work))
                self._compiler.compile(kernel, types, static, takes_thread=takes_thread)
        fresh: dict[str, float] = {}
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
                operands = _Operands(layouts, facts.threads, {v: facts.sparse(v, kind) for v, kind in kinds})
                runs.append(sampler(calls, operands, facts, self._compiler, self._team, self._around(group)))
            fresh.update(zip(names, least(runs)))
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
    """Implementations that may compute a group, with their predicted seconds."""

    group: Group
    context: PlanningContext
    seconds: Mapping[Implementation, float]

    @cached_property
    def best(self) -> float:
        """Least predicted seconds."""
        return min(self.seconds.values())

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
    if all_.seconds[candidate] <= FACTOR * all_.best or candidate in (*all_.rivals, all_.exact):
        return None
    return f"it is predicted to take {ratio:.3g} times as long as the best"


# Each tells why a candidate is not measured, or None.
PRUNE_RULES: tuple[Callable[[Implementation, _Candidates], str | None], ...] = (_view, _slow)


def _worth_measuring(
    compilation: Compilation, context: PlanningContext
) -> tuple[list[tuple[Group, tuple[Implementation, ...]]], Candidates]:
    """Groups and the implementations that may compute them, and conversions of their operands."""
    groups = _predicted(compilation, context)
    least = WORTH * sum(candidates.best for candidates in groups)
    found = []
    for candidates in groups:
        measured = candidates.measured
        several = len(measured) > 1 or any(len(c.tunings) > 1 for c in measured)
        if several and candidates.best >= least:
            found.append((candidates.group, measured))
    return found, _conversions(groups, compilation, context, least)


def _predicted(compilation: Compilation, context: PlanningContext) -> list[_Candidates]:
    """Candidates of every group of floats, whose shapes are known.

    Implementations over channels last are left out where the prediction takes another layout, unless they
    are as fast: all images have such implementations, and blocks are faster for most.
    """
    partition = compilation.plan.require("partition")
    taken = choose(compilation, replace(context, timings={})).required_layouts
    found = []
    for group in compilation.plan.groups:
        if group.op == SUBGRAPH:  # see `app.engine.planning.backend_assignment`
            continue
        if not all(_is_measurable(v) for v in (*group.inputs, *group.outputs)):
            continue
        backend = partition[group.anchor].backend
        able = compilation.registry.candidates(group.op, (backend,))
        seconds = {
            c: c.predicted(group, context)
            for c in able
            if c.op != "*" and c.rejection_reason(group, context) is None
        }
        if not _lies_last(taken[group]):
            others = {c: s for c, s in seconds.items() if not _lies_last(c.required_layouts(group, context))}
            limit = LAST_FACTOR * min(others.values(), default=0.0)
            near = {c: s for c, s in seconds.items() if s <= limit and not c.views(group, context)}
            seconds = {**others, **near}
        if seconds:
            found.append(_Candidates(group, context, seconds))
    return found


def _conversions(
    groups: Sequence[_Candidates], compilation: Compilation, context: PlanningContext, least: float
) -> Candidates:
    """Implementations of the conversions to layouts that candidates want, of `least` seconds or more."""
    wanted: dict[tuple[object, ...], tuple[ir.Value, Layout]] = {}
    for candidates in groups:
        for candidate in candidates.seconds:
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


def _is_measurable(value: ir.Value) -> bool:
    """True of constants, and of floats of known shape: the elements of others might be no indices."""
    kind = graph.dtype(value)
    return not graph.is_dynamic(value) and (
        graph.is_constant(value) or (kind is not None and kind.kind == "f")
    )


def least(samplers: Sequence[Callable[[], float]]) -> list[float]:
    """The least of several samples of each, taken in turn: other load on the machine hits all alike."""
    best = [float("inf")] * len(samplers)
    for turn in range(REPEATS + MORE):
        # Those that lost by far are left.
        close = [i for i, s in enumerate(best) if turn < REPEATS or s <= CLOSE * min(best)]
        if turn >= REPEATS and len(close) < 2:
            break
        for i in close:
            best[i] = min(best[i], samplers[i]())
    return best


class _Operands:
    """Memory for the arguments of calls, which lives as long as this object."""

    def __init__(
        self, layouts: Mapping[ir.Value, Layout], threads: int, formats: Mapping[ir.Value, SparseFormat]
    ) -> None:
        self._layouts = layouts
        self._threads = threads
        self._formats = formats
        self._random = np.random.default_rng(0)
        self._drawn = self._random.uniform(0.5, 1.0, 4096)
        self._kept: list[Array] = []
        self._addresses: dict[object, int] = {}  # by value, or identity of a workspace

    def arguments(self, call: KernelCall, constants: Iterator[Array]) -> tuple[int, ...]:
        """Arguments of a call as the driver takes them; its constants are copies of the next of these."""
        return tuple(
            self._held(next(constants)) if isinstance(a, Constant) else self._address(a)
            for a in call.arguments
        )

    def _address(self, argument: object) -> int:
        if isinstance(argument, int):
            return argument
        key = id(argument) if isinstance(argument, Workspace) else argument
        if key not in self._addresses:
            self._addresses[key] = self._held(self._array(argument))
        return self._addresses[key]

    def _array(self, argument: object) -> Array:
        if isinstance(argument, Workspace):
            copies = self._threads if argument.per_thread else 1
            return np.zeros(argument.nbytes * copies, np.uint8)
        assert isinstance(argument, ir.Value)
        fixed, shape = graph.constant(argument), graph.static_shape(argument)
        if fixed is not None:
            return fixed
        if argument in self._formats:
            return self._filled(self._formats[argument], shape, graph.element_type(argument))
        size = self._layouts.get(argument, plain(len(shape))).elements(shape)
        return np.resize(self._drawn.astype(graph.element_type(argument)), size)

    def _filled(self, form: SparseFormat, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """A sparse value that stores as much as it may, at places that are drawn."""
        entries = form.capacity * (form.columns if form.kind == "row_sparse" else 1)
        values, heads = np.resize(self._drawn.astype(kind), entries), None
        most = most_entries(form.kind, shape)
        places = np.sort(self._random.choice(most, form.capacity, replace=False, shuffle=False))
        if form.kind == "csr":
            rows, places = np.divmod(places, form.columns)
            heads = np.searchsorted(rows, np.arange(form.rows + 1))
        buffer = np.zeros(form.nbytes, np.uint8)
        SparseArray(form.kind, shape, values, places, heads).write(buffer, form)
        return buffer

    def _held(self, array: Array) -> int:
        place = aligned(array.nbytes)
        place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._kept.append(place)
        return int(place.ctypes.data)


def sampler(
    calls: Sequence[KernelCall],
    operands: "_Operands",
    context: PlanningContext,
    compiler: Compiler,
    team: Team,
    around: int = 0,
) -> Callable[[], float]:
    """A function that measures the seconds of calls, alone: the mean of a sample of runs.

    Operands are in cache, but for constants where so many bytes `around` them are used between.
    """
    arrays = _arrays(calls)
    own = sum(a.nbytes for a in arrays)
    kernels = [compiler.compile(c.kernel, c.types, c.static, takes_thread=c.takes_thread) for c in calls]
    copies = []
    for _ in range(min((around + own // 2) // own, COPIES) + 1 if own else 1):
        constants = iter(arrays)
        pairs = zip(kernels, calls, strict=True)
        copies.append([KernelRow(k.address, c.units, operands.arguments(c, constants)) for k, c in pairs])
    # The time of this thread alone, where it does all the work: other load does not count.
    clock = time.thread_time if context.threads == 1 else time.perf_counter

    def prepared(repeats: int) -> tuple[list[KernelSequence], float]:
        """Sequences of so many repeats for every copy of the constants, warm, and the seconds of the last."""
        sequences = [KernelSequence(compile_dispatch_loop(), copy * repeats, team) for copy in copies]
        for sequence in sequences:
            started = clock()
            sequence.run()
            once = clock() - started
        return sequences, max(once, 1e-7)

    sequences, once = prepared(1)
    repeats = max(int(RUN / once), 1)
    if repeats > 1:
        sequences, once = prepared(repeats)
    return _Sampler(operands, sequences, max(int(SAMPLE / once), 1), repeats, clock)


class _Sampler:
    """Mean seconds of calls over a sample of runs; holds the operands that the calls point at."""

    def __init__(
        self,
        operands: _Operands,
        sequences: Sequence[KernelSequence],
        times: int,
        repeats: int,
        clock: Callable[[], float],
    ) -> None:
        self._operands = operands
        self._turns = itertools.cycle(sequences)
        self._times, self._repeats, self._clock = times, repeats, clock

    def __call__(self) -> float:
        started = self._clock()
        for _ in range(self._times):
            next(self._turns).run()
        return (self._clock() - started) / (self._times * self._repeats)
