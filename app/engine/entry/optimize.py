"""One job: from an uploaded file to its artifacts."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.engine.core import bodies
from app.engine.core.pipeline import Progress, silent
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.execution import Execution, Measured
from app.engine.entry.region import region_json, region_summary
from app.engine.entry.summary import summary_json, timed_steps, timings_json
from app.engine.export.artifacts import write_libraries
from app.engine.export.processors import processor_of
from app.engine.gradient import marks
from app.engine.model.load import Loaded, load
from app.engine.model.load import inspect as inspect_file
from app.engine.model.spool import Spool
from app.engine.planning import session, training_memory
from app.engine.planning.expansion import expanded
from app.engine.planning.heartbeat import Heartbeat
from app.engine.planning.precision.budgeted import PHASE as PRECISION
from app.engine.planning.precision.budgeted import Budgeted, budgeted
from app.engine.planning.precision_fallbacks import Attempt, PrecisionFallbacks
from app.engine.planning.verification import Verification
from app.engine.report import drawing, pages, report, text
from app.engine.report.decisions import decisions_json
from app.engine.report.exports import EXPORTS, Exported, write_plain, write_plan
from app.engine.report.npz import write_outputs
from app.engine.report.onnx import export_beside
from app.engine.report.trace import trace_json
from app.engine.report.units import duration
from app.engine.runtime.capabilities import absence
from app.engine.runtime.inputs import WrittenOut, tensors
from app.engine.types.deadline import TimeUpError
from app.engine.types.errors import EngineError, ExportError, NumericsError, TargetError, UnknownOperatorError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler

ARTIFACTS = (
    *EXPORTS.values(),
    "optimized.onnx.data",  # only with the option `external_data`
    "plan.json",
    "plan.txt",
    "memory.json",
    "memory.html",
    "timings.json",
    "trace.json",
    "decisions.json",
    "graph.json",
    "report.html",
    "outputs.npz",  # only when inputs were given
    "quantized.onnx",  # only with an error budget, as the next one
    "precision.json",
    "library.tar.gz",  # only with the option `export`, as the next two
    "module.whl",
    "operator.tar.gz",
    "static.tar.gz",
    "model.onnx",  # what `derive` makes, as these two
    "model-symbol.json",
    "model-0000.params",
)
LEAVING = ("numba-cpu",)  # backends whose steps run without this package
PHASES = (PRECISION, "load", "canonicalize", "tune", "plan", "compile", "verify", "benchmark", "report")
NO_FILES: Mapping[str, Path] = {}

Json = dict[str, Any]


def inspect(path: Path, external: Mapping[str, Path] = NO_FILES) -> Json:
    """Describe a model file without planning anything.

    Raises:
        GraphError: the file cannot be used.
    """
    return dataclasses.asdict(inspect_file(path, external=external))


def validate(
    path: Path,
    target: Target,
    options: Options,
    bindings: Bindings,
    external: Mapping[str, Path] = NO_FILES,
) -> list[Json]:
    """Reasons why an optimization is refused, `{code, detail, pointer}` each; empty when there is none.

    Plans, but compiles and runs nothing.
    """
    try:
        loaded = expanded(load(path, external=external), bindings)
        compilation = session.canonical(loaded, target, options, bindings, load_registry())
        session.planned(compilation, options)
        tensors(compilation, bindings, options.seed)
    except EngineError as error:
        return [{"code": error.code, "detail": error.message, "pointer": error.pointer}]
    return []


def optimize(
    path: Path,
    target: Target,
    options: Options,
    bindings: Bindings,
    folder: Path,
    *,
    kernels: Path,
    external: Mapping[str, Path] = NO_FILES,
    progress: Progress = silent,
) -> Json:
    """Optimize a model for a target; write the artifacts into `folder`; return the summary.

    Args:
        path: the ONNX file.
        target: what to plan for. The program runs only if this machine is that target.
        options: see Options.
        bindings: what is known of the inputs.
        folder: where the artifacts go.
        kernels: folder of compiled kernels, this machine's own.
        external: files of external data by the name the model gives them.
        progress: called with (phase, done, total), also from another thread: at least every two seconds
            the last is told again.

    Raises:
        EngineError: the model, the request or the result is refused; `code` says why.
    """
    options = _checked(options, target, bindings, absence(target))
    with Heartbeat(progress) as heartbeat:
        with tempfile.TemporaryDirectory() as scratch:
            spool = Spool(Path(scratch) / "weights")
            heartbeat.between = spool.release
            job = _budgeted(_Job(path, target, options, bindings, folder, kernels, external, heartbeat, None))
            heartbeat.progress("load", 0, 1)
            loaded = expanded(load(job.path, external=job.external, spool=spool), bindings)
            job = dataclasses.replace(job, absent=_rejection(loaded, target, options))
            model = _prepared(job, loaded, Path(scratch), spool)
            verified = _verified(job, model)
            chosen, planned = verified.program.compilation.options, verified.attempt.compilation
            points = session.pareto_front(planned, chosen) if options.pareto else ()
            build = session.builder(planned, chosen)
            training = training_memory.described(verified.program, model.gradients, build)
            built = _built(verified.program, kernels, heartbeat.progress) if target.device == "cuda" else None
            measured = _measured(job, verified)
            if bindings.tensors and job.runs_here:
                write_outputs(folder / "outputs.npz", verified.execution.outputs())
            verified.execution.close()
            tuning = _tuning(job, model, planned)
            region = region_json(job.path, job.external, target, options, bindings, tuning)
        heartbeat.progress("report", 0, 1)
        name = planned.graph.name or path.stem
        extra: Json = {"pareto": [dataclasses.asdict(p) for p in points], "training": training}
        if region:
            extra["region"] = region_summary(region["region"])
        extra["exports"] = write_libraries(verified.program, model.compiler, folder, name)
        if built is not None:
            extra["cuda"] = built
        summary = _reported(job, model, verified, measured, extra, region)
        heartbeat.progress("report", 1, 1)
        return summary


def _checked(options: Options, target: Target, bindings: Bindings, absent: str | None) -> Options:
    """Options that apply to a target; `absent` is the reason why its programs cannot run here.

    Raises:
        TargetError: measurements are asked for, and this machine is not the target, or the job is quick; or
            libraries, and it has no processor that they are made for.
        ExportError: libraries are asked for, and the inputs have no single shape.
    """
    if options.export and bindings.region is not None:
        told = ", ".join(map(str, bindings.region.symbols.values()))
        raise ExportError(
            f"a library has one shape and the input shapes have symbols ({told}): give numbers",
            pointer="/input_shapes",
        )
    if options.quick:
        if options.timings == "measured":
            raise TargetError(
                "a quick job measures nothing: ask for timings 'predicted' or 'auto'",
                pointer="/options/timings",
            )
        options = dataclasses.replace(options, autotune=False, timings="predicted")
    if options.error_budget is not None and (options.precision != "f32" or target.device == "cuda"):
        raise TargetError(
            "an error budget chooses precisions by itself, for CPUs and described devices: leave it or "
            f"`precision` {options.precision!r} for target {target.name!r}",
            pointer="/options/error_budget",
        )
    if options.export:
        processor_of(target)
    if options.timings == "measured" and absent is not None:
        raise TargetError(
            f"timings 'measured' need a machine that is {target.name!r}; this one is not ({absent}): "
            "ask for 'predicted' or 'auto'",
            pointer="/options/timings",
        )
    if options.export and not options.backends:
        # Steps of another vendor's library cannot leave with the program.
        return dataclasses.replace(options, backends=LEAVING)
    return options


def _rejection(loaded: Loaded, target: Target, options: Options) -> str | None:
    """Reason why the program of a model cannot run here, or None.

    Raises:
        UnknownOperatorError: it has nodes that nothing executes, and is to be measured or exported.
    """
    reason = session.unexecuted(loaded.model)
    if not reason:
        absent = absence(target)
        return None if absent is None else f"this machine is not the target: {absent}"
    if options.export:
        raise UnknownOperatorError(f"{reason}; ask for no export", pointer="/options/export")
    if options.timings == "measured":
        raise UnknownOperatorError(
            f"{reason}; ask for timings 'predicted' or 'auto'", pointer="/options/timings"
        )
    return reason


@dataclass(frozen=True, slots=True)
class _Job:
    """A request to optimize a model; `absent` is the reason why its program cannot run here."""

    path: Path
    target: Target
    options: Options
    bindings: Bindings
    folder: Path
    kernels: Path
    external: Mapping[str, Path]
    heartbeat: Heartbeat
    absent: str | None
    budgeted: Budgeted | None = None
    first: list[str] = field(default_factory=list)  # about the plan by predicted times

    @property
    def runs_here(self) -> bool:
        """True if this machine is the target."""
        return self.absent is None

    @property
    def measures(self) -> bool:
        """True if the program is measured."""
        return self.runs_here and self.options.timings != "predicted"

    def part(self, phase: str) -> Progress:
        """Progress of the parts of a phase."""
        return lambda _name, done, total: self.heartbeat.progress(phase, done, total)

    def tuning(self, done: int, total: int) -> None:
        """Progress of measurements before the plan."""
        self.heartbeat.progress(": ".join(("tune", *self.first)), done, total)

    def predicted(self, program: Program) -> None:
        """Tell the time of the first plan, which the measurements that follow refine."""
        self.first[:] = [f"{duration(program.seconds)} predicted, measuring"]
        self.tuning(0, 1)


def _budgeted(job: _Job) -> _Job:
    """The job with its products in the precisions that an error budget allows, where it has one."""
    if job.options.error_budget is None:
        return job
    job.heartbeat.progress(PRECISION, 0, 1)
    compiler = Compiler(job.kernels) if absence(job.target) is None else None
    found = budgeted(
        job.path,
        job.external,
        job.target,
        job.options,
        job.bindings,
        job.folder,
        compiler,
        job.heartbeat.progress,
    )
    _write(job.folder / "precision.json", found.report)
    if found.path is None:
        return dataclasses.replace(job, budgeted=found)
    return dataclasses.replace(job, budgeted=found, path=found.path, options=found.options, external={})


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that is ready to be planned.

    Attributes:
        converted: its file in the newest opset.
        plain: its canonical graph as a file.
        inputs: arrays that every run of the job computes on.
        gradients: outputs that are gradients.
        planner: makes each of its programs once.
    """

    loaded: Loaded
    converted: Path
    plain: Exported
    compilation: Compilation
    inputs: Mapping[str, object]
    verification: Verification
    compiler: Compiler
    spool: Spool
    gradients: frozenset[str]
    planner: session.Planner


def _prepared(job: _Job, loaded: Loaded, scratch: Path, spool: Spool) -> _Model:
    """Canonicalize and tune the model; `scratch` is a folder that lasts until it has been run."""
    gradients = marks.gradients(loaded.model)
    converted = scratch / "converted.onnx"
    export_beside(loaded.model, converted, spool)
    uncomputed = job.absent if session.unexecuted(loaded.model) else None
    original_ops = frozenset(node.op_type for node in loaded.model.graph.all_nodes())
    plain: list[Exported] = []
    compilation = session.canonical(
        loaded,
        job.target,
        job.options,
        job.bindings,
        load_registry(),
        job.part("canonicalize"),
        before_rewrites=lambda model: plain.append(write_plain(model, job.folder, job.options)),
    )
    compiler, planner = Compiler(job.kernels), session.Planner()
    if job.budgeted is None or job.bindings.tensors:
        inputs = tensors(compilation, job.bindings, job.options.seed)
    else:
        inputs = dict(job.budgeted.sample)  # levels fit what the model is given, not any numbers
    if job.measures:
        compilation = session.tuned(
            compilation, job.options, compiler, job.tuning, WrittenOut(inputs), job.predicted, planner
        )
    elif job.runs_here:
        compilation = session.on_this_machine(compilation, compiler)
    verification = Verification(converted, WrittenOut(inputs), original_ops, host(), spool, uncomputed)
    return _Model(
        loaded,
        converted,
        plain[0],
        compilation,
        inputs,
        verification,
        compiler,
        spool,
        gradients,
        planner,
    )


@dataclass(frozen=True, slots=True)
class _Verified:
    """The attempt whose outputs are the original's; `report` is None where nothing was compared."""

    attempt: Attempt
    execution: Execution
    report: Json | None

    @property
    def program(self) -> Program:
        """The optimized program."""
        return self.execution.fused


def _verified(job: _Job, model: _Model) -> _Verified:
    """Plan the model and verify the program, with less rounding until its outputs are the original's.

    Raises:
        NumericsError: the outputs differ even without any rounding that can be given up.
    """
    first = Attempt.first(job.options, model.compilation, job.target)
    fallbacks = PrecisionFallbacks(
        first, model.verification, model.compiler, job.measures, job.runs_here, job.tuning
    )
    for attempt in fallbacks:
        execution = _planned(job, model, attempt)
        exports = write_plan(execution.fused.compilation, model.plain)
        try:
            verifies = job.options.verify
            told = execution.verify(model.verification, exports, job.absent) if verifies else None
            return _Verified(attempt, execution, told)
        except NumericsError as error:
            execution.close()
            fallbacks.reject(error, execution.fused)
    raise AssertionError("attempts end with an error")


def _planned(job: _Job, model: _Model, attempt: Attempt) -> Execution:
    """The program of an attempt, and the same without fusion to compare with."""
    planning, compilation, options = job.part("plan"), attempt.compilation, attempt.options
    if job.runs_here:
        _, fused = session.runnable(
            compilation, options, model.compiler, model.inputs, planning, model.planner
        )
    else:
        fused = session.planned(compilation, options, planning)
    unfused = dataclasses.replace(options, fuse=False, prefer="latency", memory_budget=None)
    alone = [s.is_library for s in fused.steps] == [True]  # a second session of it has no use
    # Planned beside the verification, which waits for other runtimes most of its time.
    pool = ThreadPoolExecutor(1)
    plain = pool.submit(lambda: fused if alone else session.planned(compilation, unfused))
    pool.shutdown(wait=False)
    return Execution(
        fused, plain, model.converted, model.inputs, model.compiler, job.heartbeat.progress, model.spool
    )


def _measured(job: _Job, verified: _Verified) -> Measured | str:
    """The benchmark of the program, or the reason why there is none."""
    if not job.measures:
        return job.absent or (
            "the job is quick" if job.options.quick else "timings 'predicted' are asked for"
        )
    try:
        return verified.execution.benchmark(job.options.benchmark_seconds, verified.report)
    except TimeUpError as cause:
        return f"not measured because {cause}"


def _tuning(job: _Job, model: _Model, planned: Compilation) -> Callable[[Compilation], Compilation]:
    """A function that adds times to a canonical graph: measured ones if the job measures."""
    if job.measures:
        return lambda c: session.measured(c, job.options, model.compiler, job.tuning)
    return lambda c: dataclasses.replace(c, timings=planned.timings, peak=planned.peak)


def _built(program: Program, folder: Path, progress: Progress) -> Json:
    """Resources that the kernels of a program for a GPU take, compiled on any machine."""
    from app.engine.runtime.cuda.offline import compiled

    return compiled(program, folder, lambda done, total: progress("compile", done, total))


def _reported(
    job: _Job,
    model: _Model,
    verified: _Verified,
    measured: Measured | str,
    extra: Mapping[str, object],
    region: Json,
) -> Json:
    """Write the reports, `region` into memory.json; returns the summary, with what is `extra` in it."""
    fused, plain = verified.program, verified.execution.plain
    if isinstance(measured, Measured):
        seconds, inner = measured.steps, measured.bodies
    else:
        seconds, inner = tuple(s.choice.seconds for s in fused.steps), bodies.predicted(fused.compilation)
    steps = timed_steps(fused, seconds, inner)
    timings = timings_json(fused, plain, measured, steps)
    summary = summary_json(
        job.path.stem, model.loaded, verified.execution, timings, verified.report, verified.attempt, measured
    )
    summary |= extra
    summary["precision_choice"] = None if job.budgeted is None else job.budgeted.report
    if isinstance(measured, str) and job.measures:
        summary["notes"].append(measured)
    files = [job.path, *job.external.values()]
    summary["memory"] = job.heartbeat.memory(sum(f.stat().st_size for f in files))
    _write_reports(job.folder, fused, summary, timings, (seconds, inner), region)
    return summary


def _write_reports(
    folder: Path,
    fused: Program,
    summary: Json,
    timings: Json,
    times: tuple[Sequence[float], Mapping[str, float]],
    region: Json,
) -> None:
    compilation, (seconds, inner) = fused.compilation, times
    memory = report.memory_json(compilation) | region
    decisions = decisions_json(compilation)
    _write(folder / "plan.json", report.plan_json(compilation))
    (folder / "plan.txt").write_text(text.text(compilation), encoding="utf-8")
    _write(folder / "memory.json", memory)
    (folder / "memory.html").write_text(pages.memory_html(memory, str(summary["model"])))
    _write(folder / "decisions.json", decisions)
    graph = drawing.graph_json(compilation)
    (folder / "graph.json").write_text(json.dumps(graph, separators=(",", ":"), allow_nan=False))
    _write(folder / "timings.json", timings)
    _write(folder / "trace.json", trace_json(compilation, memory, seconds, timings, inner))
    (folder / "report.html").write_text(pages.report_html(summary, memory, timings, decisions))


def _write(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")
