"""Measured seconds of implementations on this machine: autotuning.

Before a graph is planned, the rows that may compute a group are run alone on memory of the right
shapes, and their times enter the timings table, where the choice of layouts and implementations
looks before it predicts. The table lies beside the compiled kernels it belongs to; what is in it is
never measured again, so plans are reproducible once it is filled.
"""

import fcntl
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import SUBGRAPH, Compilation, Constant, Group, KernelCall, Workspace
from app.engine.core.registry import Implementation, PlanningContext, no_error
from app.engine.cost.roofline import key, seconds
from app.engine.layouts.choice import choose
from app.engine.layouts.conversions import change, conversion, rows_between
from app.engine.layouts.options import LAST, level
from app.engine.runtime.cpu.executor import aligned
from app.engine.types.layout import Layout, plain
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import KernelSequence, Team, compile_dispatch_loop
from app.kernels.cpu.runtime.parallel import Request, helped

Array = np.ndarray[Any, Any]

FACTOR = 1.4  # a row predicted to take longer than the best by this factor is not measured
LAST_FACTOR = 1.0  # the same for rows over channels last, where images come in another order
EXACT_FACTOR = 2.0  # the same for the best row that multiplies as often as the definition does
HOPELESS = 8.0  # the same for rows that store a constant sparse, if
STORED_FACTOR = 3.0  # they are not predicted to take longer than the best of them by this factor
WORTH = 0.002  # share of the predicted time of the graph below which a group is not measured
REPEATS = 5
CLOSE = 1.15  # rows of a group whose times are within this factor are sampled
MORE = 6  # times more
SAMPLE = 1e-3  # seconds of one sample, filled with as many runs as it takes
# Seconds of kernels that follow one another without Python, which takes a microsecond to start them: more
# than a small kernel lasts.
RUN = 2e-5
# In a run of a model its other constants pass through the caches before a kernel meets its own again. So
# runs of a sample take turns with copies of these, as large together as the other constants, up to
AROUND = 64 * 2**20  # byte, where few last caches still have the first: one of 32 MiB has most of 34 MB; and
COPIES = 64  # at most: smaller constants hardly matter


def stored(folder: Path) -> dict[str, float]:
    """The timings table of a folder; empty when there is none."""
    path = folder / "timings.json"
    return json.loads(path.read_text()) if path.exists() else {}


def store(folder: Path, timings: Mapping[str, float]) -> None:
    """Add to the timings table of a folder; what another process measured meanwhile is kept."""
    with (folder / "timings.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merged = {**stored(folder), **timings}
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
            json.dump(merged, file, indent=0, sort_keys=True)
        os.replace(file.name, folder / "timings.json")  # noqa: PTH105  # atomic: readers take no lock


Candidates: TypeAlias = list[tuple[Group, Implementation, str]]


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
    return table


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
    """What kernels are given of constants, one for each time."""
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
    ) -> None:
        """Measure rows with their tunings, where the table does not know them."""
        work: dict[str, tuple[Group, Implementation, PlanningContext, tuple[KernelCall, ...]]] = {}
        for group, row, tuning in candidates:
            facts = replace(self.context, tuning=tuning)
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
                runs.append(sampler(calls, layouts, facts, self._compiler, self._team, self._around(group)))
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


def _worth_measuring(
    compilation: Compilation, context: PlanningContext
) -> tuple[list[tuple[Group, tuple[Implementation, ...]]], Candidates]:
    """Groups and the rows that may compute them, and the conversions of what those read and write.

    Rows over channels last are measured where the prediction takes them, or nearly: all images have
    such rows, and blocks are faster for most.
    """
    partition = compilation.plan.partition
    assert partition is not None
    predictions: list[tuple[Group, dict[Implementation, float]]] = []
    taken = choose(compilation, replace(context, timings={})).required_layouts
    for group in compilation.plan.groups:
        backend = partition[group.anchor].backend
        if group.op == SUBGRAPH:  # see `app.engine.planning.backend_assignment`
            continue
        rows = [r for r in compilation.registry.candidates(group.op, (backend,)) if r.op != "*"]
        if any(graph.is_dynamic(v) or not _is_float(v) for v in (*group.inputs, *group.outputs)):
            continue
        predicted = {
            r: r.predicted(group, context) for r in rows if r.rejection_reason(group, context) is None
        }
        if not _lies_last(taken[group]):
            others = {
                r: s for r, s in predicted.items() if not _lies_last(r.required_layouts(group, context))
            }
            limit = LAST_FACTOR * min(others.values(), default=0.0)
            near = {r: s for r, s in predicted.items() if s <= limit and not r.views(group, context)}
            predicted = {**others, **near}
        if predicted:
            predictions.append((group, predicted))
    total = sum(min(predicted.values()) for _, predicted in predictions)
    found = []
    wanted: dict[tuple[object, ...], tuple[ir.Value, Layout]] = {}
    for group, predicted in predictions:
        best = min(predicted.values())
        rows = [r for r, s in predicted.items() if s <= FACTOR * best and not r.views(group, context)]
        for row in predicted:
            for value, layout in row.required_layouts(group, context).items():
                wanted.setdefault((graph.shape(value), layout), (value, layout))
        rows += [r for r in _rivals(predicted, group, context) if r not in rows]
        if all(r.error is not no_error for r in rows):  # what they save in products, they pay in weights
            exact = {
                r: s for r, s in predicted.items() if r.error is no_error and not r.views(group, context)
            }
            limit = EXACT_FACTOR * best
            rows += [r for r in exact if exact[r] <= limit and exact[r] == min(exact.values())][:1]
        several = len(rows) > 1 or any(len(r.tunings) > 1 for r in rows)
        if several and best >= WORTH * total:
            found.append((group, tuple(rows)))
    conversions: Candidates = []
    for value, layout in wanted.values():
        if conversion(value, layout, compilation, replace(context, timings={})) < WORTH * total:
            continue
        group = change(value)
        for rows in rows_between(group, layout, compilation, context):
            conversions += [(group, row, "") for row in rows if not row.views(group, context)]
    return found, conversions


def _lies_last(asked: Mapping[ir.Value, Layout]) -> bool:
    return any(level(layout) == LAST for layout in asked.values())


def _rivals(
    predicted: Mapping[Implementation, float], group: Group, context: PlanningContext
) -> tuple[Implementation, ...]:
    """Of rows of which some store a constant sparse, those that may be best, and the best of the others.

    Which is faster is never left to prediction, unless it is hopeless: it depends on where the elements lie.
    """
    sparse = {r: s for r, s in predicted.items() if r.storage(group, context)}
    if not sparse or len(sparse) == len(predicted):
        return ()
    limit = min(STORED_FACTOR * min(sparse.values()), HOPELESS * min(predicted.values()))
    dense = {r: s for r, s in predicted.items() if r not in sparse and not r.views(group, context)}
    return (*(r for r, s in sparse.items() if s <= limit), *sorted(dense, key=dense.__getitem__)[:1])


def _is_float(value: ir.Value) -> bool:
    kind = graph.dtype(value)
    return graph.is_constant(value) or (kind is not None and kind.kind == "f")


def least(samplers: Sequence[Callable[[], float]]) -> list[float]:
    """The least of several samples of each, taken in turn: what else the machine does hits all alike."""
    best = [float("inf")] * len(samplers)
    for turn in range(REPEATS + MORE):
        # Those that lost by far are left.
        close = [i for i, s in enumerate(best) if turn < REPEATS or s <= CLOSE * min(best)]
        if turn >= REPEATS and len(close) < 2:
            break
        for i in close:
            best[i] = min(best[i], samplers[i]())
    return best


def sampler(
    calls: Sequence[KernelCall],
    layouts: Mapping[ir.Value, Layout],
    context: PlanningContext,
    compiler: Compiler,
    team: Team,
    around: int = 0,
) -> Callable[[], float]:
    """What measures the seconds of calls, alone: the mean of a sample of runs.

    Operands are in cache, but for constants where so many bytes `around` them are used between.
    """
    drawn = np.random.default_rng(0).uniform(0.5, 1.0, 4096)
    memory: dict[ir.Value, Array] = {}
    keep: list[Array] = []
    scratch: dict[int, int] = {}

    def held(array: Array) -> int:
        place = aligned(array.nbytes)
        place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        keep.append(place)
        return int(place.ctypes.data)

    arrays = _arrays(calls)
    own = sum(a.nbytes for a in arrays)
    constants: Iterator[Array] = iter(())

    def address(argument: object) -> int:
        if isinstance(argument, int):
            return argument
        if isinstance(argument, Constant):
            return held(next(constants))
        if isinstance(argument, Workspace):
            if id(argument) not in scratch:
                copies = context.threads if argument.per_thread else 1
                scratch[id(argument)] = held(np.zeros(argument.nbytes * copies, np.uint8))
            return scratch[id(argument)]
        assert isinstance(argument, ir.Value)
        if argument not in memory:
            fixed, kind = graph.constant(argument), graph.dtype(argument)
            assert kind is not None
            shape = graph.static_shape(argument)
            size = layouts.get(argument, plain(len(shape))).elements(shape)
            array = np.resize(drawn.astype(kind), size) if fixed is None else fixed
            held(array)
            memory[argument] = keep[-1]
        return int(memory[argument].ctypes.data)

    tables = []
    for _ in range(min((around + own // 2) // own, COPIES) + 1 if own else 1):
        constants = iter(arrays)
        rows = []
        for call in calls:
            kernel = compiler.compile(call.kernel, call.types, call.static, takes_thread=call.takes_thread)
            rows.append((kernel.address, call.units, tuple(map(address, call.arguments))))
        tables.append(rows)
    # The time of this thread alone, where it does all the work: other load does not count.
    clock = time.thread_time if context.threads == 1 else time.perf_counter

    def prepared(repeats: int) -> tuple[list[KernelSequence], float]:
        """Runs of so many repeats for every copy of the constants, warm, and the seconds of the last."""
        stretches = [KernelSequence(compile_dispatch_loop(), rows * repeats, team) for rows in tables]
        for stretch in stretches:
            started = clock()
            stretch.run()
            once = clock() - started
        return stretches, max(once, 1e-7)

    stretches, once = prepared(1)
    repeats = max(int(RUN / once), 1)
    if repeats > 1:
        stretches, once = prepared(repeats)
    times = max(int(SAMPLE / once), 1)
    turns = itertools.cycle(stretches)

    def sample() -> float:
        assert keep is not None  # holds what the addresses in the rows point at; empty where nothing is done
        started = clock()
        for _ in range(times):
            next(turns).run()
        return (clock() - started) / (times * repeats)

    return sample
