"""From a model to something that runs, in this process.

Plans from predicted times need neither executors nor libraries: these are imported by the functions that
measure or run.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

import onnx_ir as ir

from app.engine.core import pipeline, program
from app.engine.core.pipeline import Observer, Pass, Progress, silent, unobserved
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import Registry
from app.engine.model.load import Loaded
from app.engine.passes.canonicalize import Canonicalize
from app.engine.passes.fuse import Fuse
from app.engine.passes.infer_layouts import InferLayouts
from app.engine.passes.infer_padding import InferPadding
from app.engine.passes.infer_storage import InferStorage
from app.engine.passes.infer_types import InferTypes
from app.engine.passes.narrow_storage import NarrowStorage
from app.engine.passes.order import Order
from app.engine.passes.partition import Partition
from app.engine.passes.plan_memory import PlanMemory
from app.engine.passes.rematerialize import Rematerialize
from app.engine.passes.rewrite_operators import RewriteOperators
from app.engine.passes.select_implementations import SelectImplementations
from app.engine.passes.streams.stream import Stream
from app.engine.planning import budget
from app.engine.planning.timing_cache import RecordedTimings, stored
from app.engine.types.accelerator import BACKEND
from app.engine.types.backend_names import UNEXECUTED
from app.engine.types.deadline import TimeUpError, limited
from app.engine.types.errors import LibraryError, OperandError
from app.engine.types.options import Bindings, MemoryConcessions, Options
from app.engine.types.storage import MXNET
from app.engine.types.target import Target, host, is_host, with_backends

if TYPE_CHECKING:
    from app.engine.planning.backend_assignment.bench import Planned
    from app.engine.runtime.cpu.memory import Weights
    from app.kernels.cpu.runtime.compiler import Compiler, Request

FIRST_SECONDS = 20.0  # of a run in the reference evaluator that only shows that libraries run
# Failed branches of the proof that an arena with concatenations written by slices is the least: 2 to 5
# seconds where they are used up, as by few problems of less than 64 buffers.
PROOF_FAILURES = 100_000

KEPT = 2  # programs that a planner keeps
_NAMED = 5  # nodes that a reason names
PREDICTED = "accelerator: times are predicted from the description of target {!r}, not measured"

FRONTEND_PASSES: tuple[Pass, ...] = (InferTypes(), Canonicalize(), RewriteOperators())


def grouping(options: Options) -> tuple[Pass, ...]:
    """The passes from a canonical graph to what one kernel or library computes."""
    return (
        NarrowStorage(),
        Rematerialize(),
        Partition(),
        # MXNet infers storage types operator by operator.
        Fuse(enabled=options.fuse and options.semantics == "stowplan"),
    )


def backend_passes(options: Options) -> tuple[Pass, ...]:
    """The passes from a canonical graph to a complete plan."""
    return (
        *grouping(options),
        InferStorage(),
        InferLayouts(),
        SelectImplementations(),
        InferPadding(),
        Stream(),
        Order(),
        PlanMemory(),
    )


def with_described(registry: Registry, target: Target) -> Registry:
    """The registry with the rows and rules that its describers make of what a target describes as data."""
    found = [described for describe in registry.describers if any(described := describe(target))]
    if not found:
        return registry
    table = dict(registry.implementations)
    for row in (row for rows, _ in found for row in rows):
        table[row.op] = (*table.get(row.op, ()), row)
    rewrites = (*registry.rewrites, *(rule for _, rules in found for rule in rules))
    return dataclasses.replace(registry, implementations=table, rewrites=rewrites, describers=())


def unexecuted(model: ir.Model) -> str:
    """Reason why a model cannot run: its nodes that only MXNet has; empty without any."""
    nodes = [f"{n.op_type} {n.name!r}" for n in model.graph.all_nodes() if n.domain == MXNET]
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    listed = f"{', '.join(nodes[:_NAMED])}{more}"
    return f"nothing executes {listed}: operators of MXNet that can be planned only" if nodes else ""


def canonical(
    loaded: Loaded,
    target: Target,
    options: Options,
    bindings: Bindings,
    registry: Registry,
    progress: Progress = silent,
    before_rewrites: Callable[[ir.Model], object] = lambda _model: None,
    observe: Observer = unobserved,
) -> Compilation:
    """The canonical graph of a loaded model in the operators of the target; the model is used up.

    `before_rewrites` is given the canonical graph before the target's backends rewrite its operators.

    Raises:
        UnknownBackendError: `options.backends`, or the target, names one that there is not.
    """
    target = with_backends(target, options.backends)
    if rejection := unexecuted(loaded.model):
        target = dataclasses.replace(target, backends=(*target.backends, UNEXECUTED))
    registry.check(target.backends)
    predicted = PREDICTED.format(target.name) if BACKEND in target.backends else ""
    notes = tuple(note for note in (predicted, rejection) if note)
    registry = with_described(registry, target)
    compilation = Compilation(
        loaded.model, target, registry, options, bindings, notes=notes, symbol=loaded.symbol
    )
    *portable, rewriting = FRONTEND_PASSES
    done = len(portable)
    compilation = pipeline.run(
        compilation, portable, lambda name, at, _: progress(name, at, done + 1), observe
    )
    before_rewrites(compilation.model)
    return pipeline.run(
        compilation, (rewriting,), lambda name, at, _: progress(name, done + at, done + 1), observe
    )


def tuned(
    compilation: Compilation,
    options: Options,
    compiler: "Compiler",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    inputs: Mapping[str, object] | None = None,
    first: Callable[[Program], object] = lambda _program: None,
    planner: "Planned | None" = None,
) -> Compilation:
    """The compilation with measured seconds of what may compute its groups; runs kernels.

    Without `options.autotune`, or for a target that is not this machine, it stays as it is. Where
    `options.choose` is not `first`, the whole model or sub-graphs are assigned to libraries that are faster
    on `inputs`, or on samples, see `app.engine.planning.backend_assignment`. Where anything must be measured,
    `first` is told the program by what is known before.
    """
    if not is_host(compilation.target, host()):
        return compilation
    compilation = measured(compilation, options, compiler, progress, first)
    if options.choose == "measured":
        from app.engine.planning.backend_assignment import by_subgraph

        return by_subgraph.measured(compilation, options, compiler, planner or planned, progress)
    return raced(compilation, options, compiler, progress, inputs, planner)


def raced(
    compilation: Compilation,
    options: Options,
    compiler: "Compiler",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    inputs: Mapping[str, object] | None = None,
    planner: "Planned | None" = None,
) -> Compilation:
    """The compilation with streams that are faster, or assigned whole to a library that is.

    The latter with `choose` of `auto`. Strips are computed by one thread.
    """
    if not options.autotune or options.prefer != "latency" or options.semantics != "stowplan":
        return compilation
    if options.threads == 1:
        from app.engine.planning.streams import race

        compilation = race.with_fastest(compilation, options, compiler, planner or planned, inputs)
    if options.choose != "auto":
        return compilation
    from app.engine.planning.backend_assignment import whole_model

    return whole_model.fastest_whole(compilation, options, compiler, planner or planned, inputs, progress)


def measured(
    compilation: Compilation,
    options: Options,
    compiler: "Compiler",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    first: Callable[[Program], object] = lambda _program: None,
) -> Compilation:
    """The compilation with measured seconds of kernels, for the backends that choose node by node.

    Without `options.autotune` with the peak of this machine alone.
    """
    compilation = on_this_machine(compilation, compiler)
    if not options.autotune:
        return compilation
    from app.engine.planning import autotune
    from app.engine.planning.backend_assignment.bench import kernels_first

    compilation, whole = kernels_first(compilation), compilation
    started = dataclasses.replace(compilation, model=compilation.model.clone(), options=options)
    groups = pipeline.run(started, grouping(options), silent)

    def likely() -> "tuple[Request, ...]":
        program = planned(dataclasses.replace(compilation, timings=stored(compiler.folder)), options)
        first(program)
        return program.kernels

    return dataclasses.replace(whole, timings=autotune.measure(groups, compiler, likely, progress))


def on_this_machine(compilation: Compilation, compiler: "Compiler") -> Compilation:
    """The compilation with the peak of this machine, which predictions for it follow."""
    if compilation.target.device != "cpu" or not is_host(compilation.target, host()):
        return compilation
    from app.engine.planning import utilization

    return dataclasses.replace(compilation, peak=utilization.kept(compiler, compilation.target))


def planned(
    compilation: Compilation, options: Options, progress: Progress = silent, observe: Observer = unobserved
) -> Program:
    """The program of a canonical graph under these options; the graph is left as it is.

    Raises:
        CapacityError: no plan that was tried fits the memory.
    """
    build = builder(compilation, options, progress, observe)
    found = budget.chosen(build, options, compilation.streams)
    placement = found.placement
    if placement.solution.proved or placement.banks or not any(b.parts for b in placement.buffers):
        return found
    return program.build(pipeline.run(found.compilation, (PlanMemory(PROOF_FAILURES),), progress, observe))


class Planner:
    """A function as `planned` that keeps its last programs.

    A compilation that differs only in timings that no plan looks up, and in notes, has the same program.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[Compilation, RecordedTimings, Program]] = deque(maxlen=KEPT)

    def __call__(self, compilation: Compilation, options: Options, progress: Progress = silent) -> Program:
        """See `planned`."""
        asked = dataclasses.replace(compilation, options=options)
        for known, timings, kept in self._kept:
            if timings.agrees(asked.timings) and _without_timings(known) == _without_timings(asked):
                return _told(kept, asked, len(known.notes))
        timings = RecordedTimings(asked.timings)
        found = planned(dataclasses.replace(asked, timings=timings), options, progress)
        self._kept.append((asked, timings, found))
        return _told(found, asked, len(asked.notes))


def _without_timings(compilation: Compilation) -> Compilation:
    return dataclasses.replace(compilation, timings={}, notes=())


def _told(found: Program, asked: Compilation, notes: int) -> Program:
    """A program as made for this compilation: with its timings and notes in place of the first `notes`."""
    told = (*asked.notes, *found.compilation.notes[notes:])
    made = dataclasses.replace(found.compilation, timings=asked.timings, notes=told, source=asked.source)
    return dataclasses.replace(found, compilation=made)


def pareto_front(compilation: Compilation, options: Options) -> tuple[budget.Point, ...]:
    """The plans of a canonical graph of which none is both smaller and faster."""
    return budget.pareto_front(builder(compilation, options), compilation.streams)


def builder(
    compilation: Compilation, options: Options, progress: Progress = silent, observe: Observer = unobserved
) -> budget.Build:
    """A function that plans a canonical graph with given memory concessions."""

    def build(concessions: MemoryConcessions) -> Program:
        # Passes insert conversions: they work on a copy.
        model = compilation.model.clone()
        started = dataclasses.replace(compilation, model=model, options=options, concessions=concessions)
        return program.build(pipeline.run(started, backend_passes(options), progress, observe))

    return build


def runnable(
    compilation: Compilation,
    options: Options,
    compiler: "Compiler",
    inputs: Mapping[str, object],
    progress: Progress = silent,
    planner: "Planner | None" = None,
) -> tuple[Compilation, Program]:
    """The compilation and a program of it whose libraries all run on these inputs.

    A sub-graph that a library fails on goes to the next backend, and a note says so.
    """
    from app.engine.runtime.cpu.executor import Executor

    while True:
        found = (planner or planned)(compilation, options, progress)
        names = {v.name or "" for v in compilation.graph.inputs}
        if not found.has_library:
            return compilation, found
        try:
            with closing(Executor(found, compiler, drawn=True)) as executor, limited(FIRST_SECONDS):
                if names <= inputs.keys():  # strings and sequences are not drawn
                    executor.run({k: v for k, v in inputs.items() if k in names})
        except TimeUpError:  # steps in the reference evaluator take long; the libraries before them ran
            return compilation, found
        except LibraryError as failure:
            told = {(name, failure.backend): failure.message for name in failure.nodes}
            if compilation.failures.keys() >= told.keys():
                raise
            compilation = dataclasses.replace(
                compilation,
                failures={**compilation.failures, **told},
                notes=(*compilation.notes, f"{failure.message}; the next backend runs it"),
            )
        except OperandError:  # sizes are drawn, and may fit nothing; the libraries before such a step ran
            return compilation, found
        else:
            return compilation, found


class Running(Protocol):
    """A program in memory: an `Executor` of `app.engine.runtime.cpu`, or one of `app.engine.runtime.cuda`."""

    program: Program

    def run(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Outputs by name."""

    def feed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs to where the program reads them."""

    def infer(self) -> None:
        """Run on the inputs that were fed; all is done when it returns."""

    def step_seconds(self) -> list[float]:
        """Seconds of every step in one run."""

    def body_seconds(self) -> dict[str, float]:
        """Seconds of the steps in bodies in that run, by path, all turns together."""

    def close(self) -> None:
        """Give back what it holds."""


def bound(
    program: Program,
    compiler: "Compiler",
    *,
    poison: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    weights: "Weights | None" = None,
    cores: Sequence[int] = (),
) -> Running:
    """A program bound to the memory of the machine that it is for, which this one must be.

    `weights` is where programs of this CPU keep equal constants once; `cores` are what its helpers keep to.

    Raises:
        NoDeviceError: it is for a GPU, and none answers.
    """
    target = program.compilation.target
    if target.device != "cuda":
        from app.engine.runtime.cpu.executor import Executor

        return Executor(program, compiler, poison=poison, progress=progress, weights=weights, cores=cores)
    from app.engine.runtime.cuda.driver import open_gpu
    from app.engine.runtime.cuda.executor import DeviceExecutor

    gpu = open_gpu(compiler.cache, target)
    return DeviceExecutor(program, gpu, poison=poison, owns_device=True, progress=progress)
