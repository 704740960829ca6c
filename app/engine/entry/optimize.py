"""One job: from an uploaded file to its artifacts."""

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.core import bodies
from app.engine.core.pipeline import Progress, silent
from app.engine.core.plan import Compilation
from app.engine.core.program import Program, Step
from app.engine.core.registry import load as load_registry
from app.engine.cost import roofline
from app.engine.layouts.conversions import changes
from app.engine.model.load import Loaded, load
from app.engine.model.load import inspect as inspect_file
from app.engine.model.spool import Spool
from app.engine.planning import backend_assignment, precision_fallbacks, session, utilization
from app.engine.planning.heartbeat import Heartbeat, trim
from app.engine.planning.utilization import Peak
from app.engine.planning.verification import REFERENCE_SECONDS, Verification
from app.engine.report import drawing, report
from app.engine.report.exports import EXPORTS, Exported, write_plain, write_plan
from app.engine.report.npz import write_outputs
from app.engine.report.onnx import export_beside
from app.engine.report.trace import trace_json
from app.engine.runtime import comparison, onnxruntime_arena
from app.engine.runtime.benchmark import PATIENCE, Samples, chosen_cores, measure_in_turn, pinned
from app.engine.runtime.capabilities import absence
from app.engine.runtime.cpu.executor import Weights
from app.engine.runtime.inputs import tensors
from app.engine.runtime.peers import PEERS, Question, Rival, beside, rejection
from app.engine.types.deadline import TimeUpError, limited
from app.engine.types.errors import EngineError, ExportMismatchError, NumericsError, TargetError
from app.engine.types.options import Bindings, Options
from app.engine.types.precision import tolerance
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler

ARTIFACTS = (
    *EXPORTS.values(),
    "plan.json",
    "memory.json",
    "memory.html",
    "timings.json",
    "trace.json",
    "decisions.json",
    "graph.json",
    "report.html",
    "outputs.npz",  # only when inputs were given
)
PHASES = ("load", "canonicalize", "tune", "plan", "compile", "verify", "benchmark", "report")
NO_FILES: Mapping[str, Path] = {}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Measured:
    """What one run of the whole benchmark found.

    Attributes:
        steps: seconds by step of the optimized program.
        bodies: seconds of the steps in its bodies, by path.
    """

    optimized: Samples
    unfused: Samples
    rivals: tuple[Rival, ...]
    steps: tuple[float, ...]
    bodies: Mapping[str, float]
    peak: Peak
    arena: int | str  # high water of onnxruntime's arena, or why it is not known


def inspect(path: Path, external: Mapping[str, Path] = NO_FILES) -> Json:
    """What is in a model file, without planning anything.

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
    """What would stop an optimization: `{code, detail, pointer}` each; empty when nothing would.

    Plans, but compiles and runs nothing.
    """
    try:
        loaded = load(path, external=external)
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
    with Heartbeat(progress) as heartbeat:
        return _optimize(path, target, options, bindings, folder, kernels, external, heartbeat)


def _optimize(
    path: Path,
    target: Target,
    options: Options,
    bindings: Bindings,
    folder: Path,
    kernels: Path,
    external: Mapping[str, Path],
    heartbeat: Heartbeat,
) -> Json:
    progress, absent = heartbeat.progress, absence(target)
    runs_here = absent is None
    if options.timings == "measured" and not runs_here:
        raise TargetError(
            f"timings 'measured' need a machine that is {target.name!r}; this one is not ({absent}): "
            "ask for 'predicted' or 'auto'",
            pointer="/options/timings",
        )
    measures = runs_here and options.timings != "predicted"
    with tempfile.TemporaryDirectory() as scratch:
        progress("load", 0, 1)
        spool = Spool(Path(scratch) / "weights")
        heartbeat.between = spool.release
        loaded = load(path, external=external, spool=spool)
        converted = Path(scratch) / "converted.onnx"
        export_beside(loaded.model, converted, spool)
        original_ops = frozenset(node.op_type for node in loaded.model.graph.all_nodes())
        portable: list[Exported] = []
        compilation = session.canonical(
            loaded,
            target,
            options,
            bindings,
            load_registry(),
            _part("canonicalize", progress),
            before_rewrites=lambda model: portable.append(write_plain(model, folder)),
        )
        compiler = Compiler(kernels)

        def tuning(done: int, total: int) -> None:
            progress("tune", done, total)

        inputs = tensors(compilation, bindings, options.seed)
        if measures:
            compilation = session.tuned(compilation, options, compiler, tuning, inputs)
        against = Verification(converted, inputs, original_ops, host(), spool)

        def run_of(attempt: precision_fallbacks.Attempt) -> _Run:
            planning, compilation, options = _part("plan", progress), attempt.compilation, attempt.options
            if runs_here:
                _, fused = session.runnable(compilation, options, compiler, inputs, planning)
            else:
                fused = session.planned(compilation, options, planning)
            unfused = dataclasses.replace(options, fuse=False, prefer="latency", memory_budget=None)
            alone = [s.is_library for s in fused.steps] == [True]  # a second session of it has no use
            plain = fused if alone else session.planned(compilation, unfused)
            return _Run(fused, plain, converted, inputs, compiler, progress, spool)

        attempt = precision_fallbacks.Attempt.first(options, compilation, target)
        while True:
            run = run_of(attempt)
            exports = write_plan(run.fused.compilation, portable[0])
            try:
                verification = run.verify(against, exports, absent) if options.verify else None
                break
            except ExportMismatchError:
                run.close()
                raise
            except NumericsError as error:
                run.close()
                if any(attempt.compilation.assignment.values()):
                    ours = backend_assignment.given_up(attempt.compilation, compiler, error.message)
                    attempt = dataclasses.replace(attempt, compilation=ours)
                    continue
                attempt = precision_fallbacks.after(
                    attempt,
                    error,
                    run.fused,
                    against,
                    compiler,
                    measures=measures,
                    runs_here=runs_here,
                    progress=tuning,
                )
        compilation = attempt.compilation
        fused, plain = run.fused, run.plain
        points = session.front(compilation, fused.compilation.options) if options.pareto else ()
        built = _built(fused, kernels, progress) if target.device == "cuda" else None
        measured, unmeasured = None, "" if measures else "this machine is not the target"
        if measures:
            try:
                measured = run.benchmark(options.benchmark_seconds, verification)
            except TimeUpError as cause:
                unmeasured = f"not measured because {cause}"
        if bindings.tensors and runs_here:
            write_outputs(folder / "outputs.npz", run.outputs())
        run.close()
    progress("report", 0, 1)
    seconds = measured.steps if measured else tuple(s.choice.seconds for s in fused.steps)
    inner = measured.bodies if measured else bodies.predicted(fused.compilation)
    timings = _timings(fused, plain, measured or unmeasured, _steps(fused, seconds, inner), target)
    summary = _summary(path, loaded, fused, plain, timings, verification, attempt, measured or unmeasured)
    if built is not None:
        summary["cuda"] = built
    summary["pareto"] = [dataclasses.asdict(p) for p in points]
    if unmeasured and measures:
        summary["notes"].append(unmeasured)
    files = [path, *external.values()]
    summary["memory"] = heartbeat.memory(sum(f.stat().st_size for f in files))
    _write_reports(folder, fused, summary, timings, seconds, inner)
    progress("report", 1, 1)
    return summary


class _Run:
    """The programs of one job in memory, with what they are compared to."""

    def __init__(
        self,
        fused: Program,
        plain: Program,
        converted: Path,
        inputs: Mapping[str, object],
        compiler: Compiler,
        progress: Progress,
        spool: Spool,
    ) -> None:
        self.fused = fused
        self.plain = plain
        self._converted = converted
        self._inputs = inputs
        self._compiler = compiler
        self._progress = progress
        self._executors: dict[int, session.Running] = {}
        self._weights = Weights(spool.release)
        self.unmeasured = ""  # why no run of it is measured

    def executor(self, program: Program) -> session.Running:
        """The program's executor, its kernels compiled on first use."""
        if id(program) not in self._executors:
            self._executors[id(program)] = session.bound(
                program,
                self._compiler,
                progress=lambda done, total: self._progress("compile", done, total),
                weights=self._weights,
                cores=chosen_cores(program.compilation.options.threads),  # those of the benchmark
            )
        return self._executors[id(program)]

    def outputs(self) -> dict[str, object]:
        """What the optimized program computes."""
        return self.executor(self.fused).run(self._fed(self.fused))

    def close(self) -> None:
        """Give the threads back."""
        for executor in self._executors.values():
            executor.close()

    def verify(self, verification: Verification, exports: Mapping[str, Exported], absent: str | None) -> Json:
        """Compare the program, where it can run, and the exported graphs with the original.

        `absent` is why this machine cannot run the program.

        Raises:
            NumericsError: an output is beyond the tolerance.
        """
        self._progress("verify", 0, 1)
        program = self._bounded if absent is None else f"this machine is not the target: {absent}"
        found = verification.of(self.fused.compilation, program, exports)
        self._progress("verify", 1, 1)
        return found

    def _bounded(self) -> dict[str, object]:
        """The outputs; a run with steps in the reference evaluator may take REFERENCE_SECONDS.

        Raises:
            TimeUpError: it takes longer.
        """
        executor, inputs = self.executor(self.fused), self._fed(self.fused)
        slow = [step.group.name for step in self.fused.steps if step.is_host and not step.is_library]
        if not slow:
            return executor.run(inputs)
        try:
            with limited(REFERENCE_SECONDS):
                return executor.run(inputs)
        except TimeUpError as cause:
            self.unmeasured = (
                f"a run of the program takes {cause}; steps in the reference evaluator: {', '.join(slow[:5])}"
            )
            raise TimeUpError(self.unmeasured) from None

    def benchmark(self, seconds: float, verification: Json | None) -> _Measured:
        """Samples of the program in turn with the same program unfused, and with every peer that runs here.

        No two peers are in memory at once.

        Raises:
            TimeUpError: a run takes too long to be measured.
        """
        if self.unmeasured:
            raise TimeUpError(self.unmeasured)
        if not self.fused.compilation.options.verify:
            self._bounded()
        compilation = self.fused.compilation
        options, target = compilation.options, compilation.target
        fused, plain = self.executor(self.fused), self.executor(self.plain)
        parts = len(PEERS) + 2
        self._progress("benchmark", 0, parts)
        with pinned(options.threads) as cores:
            outputs = self.outputs()
            question = Question(
                path=self._converted,
                inputs=self._inputs,
                outputs=outputs,
                tolerances={d["name"]: d["tolerance"] for d in (verification or {}).get("outputs", ())},
                tolerance=tolerance(options, target),
                threads=options.threads,
                cores=cores,
            )
            works: list[Callable[[], object]] = [self._inference(fused), self._inference(plain)]
            samples: list[Samples] = []
            rivals = []
            for done, peer in enumerate(PEERS, 1):
                if target.device == "cuda":
                    reason = f"the {peer.name} of this installation computes on processors"
                    rivals.append(Rival(peer.name, "", reason=reason))
                else:
                    rival, taken = beside(peer, question, works[:1] if samples else works, seconds)
                    rivals.append(rival)
                    samples = samples or taken
                trim()
                self._progress("benchmark", done, parts)
            samples = samples or measure_in_turn(works, seconds, before=question.settle)
            question.settle()
            fused.feed(self._fed(self.fused))
            count = len(samples[0].seconds)
            repeats = max(3, min(20, count)) if samples[0].p50 * 3 < PATIENCE else 1
            runs = [(fused.step_seconds(), fused.body_seconds()) for _ in range(repeats)]
            here = target.device != "cuda"
            peak = (
                utilization.measured(self._compiler, target, options.threads, cores)
                if here
                else utilization.described(target, options.threads)
            )
            self._progress("benchmark", parts - 1, parts)
            water = self._arena(outputs, rivals[0])
        self._progress("benchmark", parts, parts)
        steps = tuple(float(s) for s in np.median(np.array([r for r, _ in runs]), axis=0))
        inner = {path: float(np.median([found[path] for _, found in runs])) for path in runs[0][1]}
        return _Measured(samples[0], samples[1], tuple(rivals), steps, inner, peak, water)

    def _arena(self, outputs: Mapping[str, object], rival: Rival) -> int | str:
        """High water of onnxruntime's arena on the same inputs, or why it is not known."""
        if rival.samples is None:
            return rival.reason
        if rival.samples.p50 * 3 > PATIENCE:
            return f"a run there takes {rival.samples.p50:.3g} s"
        threads = self.fused.compilation.options.threads
        try:
            return onnxruntime_arena.measured(
                self._converted, self._inputs, outputs, threads, self._converted.parent
            )
        except Exception as cause:  # onnxruntime raises many types, and any of them is a reason
            return rejection(cause)

    def _inference(self, executor: session.Running) -> Callable[[], object]:
        inputs = self._fed(executor.program)
        if executor.program.compilation.target.device == "cuda":  # inputs and outputs stay on the device
            executor.feed(inputs)
            return executor.infer
        return lambda: executor.run(inputs)

    def _fed(self, program: Program) -> dict[str, object]:
        """The inputs that the program still has; a bound value is none of them."""
        names = {v.name for v in program.compilation.graph.inputs}
        return {k: v for k, v in self._inputs.items() if k in names}


def _built(program: Program, folder: Path, progress: Progress) -> Json:
    """What the kernels of a program for a GPU take, compiled on any machine."""
    from app.engine.runtime.cuda.offline import compiled

    return compiled(program, folder, lambda done, total: progress("compile", done, total))


def _part(phase: str, progress: Progress) -> Progress:
    return lambda _name, done, total: progress(phase, done, total)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A step of the program, or of a body in it, by path, with its seconds in one inference.

    Attributes:
        own: seconds without those of the steps in its bodies.
        compilation: that the step is planned in.
        turns: times that one inference runs it, as far as that is known.
    """

    path: str
    parent: str | None
    step: Step
    seconds: float
    own: float
    compilation: Compilation
    turns: int


def _steps(program: Program, seconds: Sequence[float], inner: Mapping[str, float]) -> list[_Timed]:
    """Every step of a program, then those in bodies; `inner` are seconds of the latter by path."""
    found: list[tuple[str, str | None, Step, float, Compilation, int]] = [
        (s.group.name, None, s, t, program.compilation, 1)
        for s, t in zip(program.steps, seconds, strict=True)
    ]
    for nested in bodies.walk(program.compilation):
        for step in nested.body.program.steps:
            path = f"{nested.path}/{step.group.name}"
            found.append((path, nested.parent, step, inner[path], nested.compilation, nested.turns))
    within: dict[str | None, float] = {}
    for _, parent, _, spent, *_ in found:
        within[parent] = within.get(parent, 0.0) + spent
    return [
        _Timed(path, parent, step, spent, max(spent - within.get(path, 0.0), 0.0), compilation, turns)
        for path, parent, step, spent, compilation, turns in found
    ]


def _timings(
    fused: Program, plain: Program, taken: _Measured | str, steps: Sequence[_Timed], target: Target
) -> Json:
    """`taken` are the samples, or why there are none."""
    measured = None if isinstance(taken, str) else taken
    options = fused.compilation.options
    peak = measured.peak if measured else utilization.described(target, options.threads)
    spilled = 0.0 if measured else fused.placement.delay  # what is measured contains it
    # A run is its steps and what is outside of them: feeding, waking helpers, fetching.
    known = sum(timed.own for timed in steps) + spilled
    total = max(known, measured.optimized.p50 if measured else 0.0)
    operators = [
        {
            "name": timed.path,
            "parent": timed.parent,
            "op": "+".join(n.op_type for n in timed.step.group.nodes),
            "implementation": timed.step.choice.implementation.name,
            "backend": timed.step.choice.implementation.backend,
            "seconds": timed.own,
            "share": timed.own / (total or 1.0),
            "seconds_with_bodies": timed.seconds,
            **utilization.figures(timed.step, timed.compilation, timed.turns, timed.own, peak),
        }
        for timed in steps
    ]
    groups = fused.compilation.plan.groups
    return {
        "schema": "stowplan.timings/2",
        "kind": "measured" if measured else "predicted",
        "machine": {
            "cpu_model": target.cpu_model,
            "flags": list(target.isa),
            "cores": target.cores,
            "threads": options.threads,
        },
        "optimized": measured.optimized.to_json() if measured else _prediction(fused),
        "unfused": measured.unfused.to_json() if measured else _prediction(plain),
        "peers": {r.name: _samples(r) for r in (measured.rivals if measured else ())},
        "peak": peak.to_json(),
        "operators": sorted(operators, key=lambda o: -float(str(o["seconds"]))),
        "outside": {"seconds": total - known, "share": (total - known) / (total or 1.0)},
        # What values in slower memories cost beside the steps: with it they are the whole.
        "spill_seconds": spilled,
        # What the choice of implementations and layouts was made from, as far as it was measured.
        "tuning": roofline.consulted((*groups, *changes(groups)), fused.compilation.timings),
    }


def _samples(rival: Rival) -> Json:
    if rival.samples is None or rival.ours is None:
        return {"unavailable": rival.reason}
    return {**rival.samples.to_json(), "ours": rival.ours.to_json()}


def _comparison(fused: Program, timings: Json, taken: _Measured | str) -> Json:
    solution = fused.placement.solution
    measured = None if isinstance(taken, str) else taken
    water = measured.arena if measured else None
    memory = comparison.Memory(
        solution.peak,
        solution.lower_bound,
        solution.proved and not fused.placement.unplanned,
        water if isinstance(water, int) else None,
        water if isinstance(water, str) else "",
        len(fused.placement.unplanned),
    )
    rivals = measured.rivals if measured else ()
    reason = taken if isinstance(taken, str) else ""
    return comparison.comparison(timings["optimized"]["p50"], timings["kind"], rivals, memory, reason)


def _prediction(program: Program) -> Json:
    seconds = program.seconds
    return {"p10": seconds, "p50": seconds, "p90": seconds, "samples": [], "warmup": 0}


def _summary(
    path: Path,
    loaded: Loaded,
    fused: Program,
    plain: Program,
    timings: Json,
    verification: Json | None,
    attempt: precision_fallbacks.Attempt,
    taken: _Measured | str,
) -> Json:
    compilation: Compilation = fused.compilation
    solution = fused.placement.solution
    within = [s for nested in bodies.walk(compilation) for s in nested.body.program.steps]
    steps = [*fused.steps, *within]
    return {
        "schema": "stowplan.summary/1",
        "model": compilation.graph.name or path.stem,
        "target": compilation.target.name,
        "nodes": {
            "original": loaded.original_nodes,
            "canonical": len(compilation.graph),
            "before": len(plain.steps),
            "after": len(fused.steps),
        },
        "peak_bytes": {"before": plain.placement.solution.peak, "after": solution.peak},
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        "naive_bytes": fused.placement.naive,
        "latency": {
            "before": timings["unfused"]["p50"],
            "after": timings["optimized"]["p50"],
            "onnxruntime": timings["peers"].get("onnxruntime", {}).get("p50"),
        },
        "comparison": _comparison(fused, timings, taken),
        "timings": timings["kind"],
        "precision": {
            **dataclasses.asdict(attempt.precision),
            "fast_algorithms": compilation.options.fast_algorithms,
            "steps": dict(Counter(s.choice.implementation.precision for s in fused.steps)),
        },
        "verification": verification,
        "steps": {
            "compiled": sum(bool(s.calls) and not s.is_host for s in steps),
            "views": sum(not s.calls for s in steps),
            "control_flow": sum(s.is_control_flow and not s.is_fallback for s in steps),
            "fallback": sum(s.is_fallback for s in steps),
            "library": sum(s.is_library for s in steps),
            "in_bodies": len(within),  # of all of them
        },
        "unplanned": list(fused.placement.unplanned),
        "backends": dict(Counter(p.backend for p in (compilation.plan.partition or {}).values())),
        "fallbacks": report.fallbacks(compilation),
        "libraries": report.libraries(compilation),
        "operators": timings["operators"][:25],
        "outside": timings["outside"],
        "spill_seconds": timings["spill_seconds"],
        "passes": [{"name": r.name, "seconds": r.seconds, "nodes": r.nodes} for r in compilation.records],
        "notes": [*loaded.notes, *compilation.notes, *attempt.notes(fused)],
    }


def _write_reports(
    folder: Path,
    fused: Program,
    summary: Json,
    timings: Json,
    seconds: Sequence[float],
    inner: Mapping[str, float],
) -> None:
    compilation = fused.compilation
    memory = report.memory_json(compilation)
    decisions = report.decisions_json(compilation)
    _write(folder / "plan.json", report.plan_json(compilation))
    _write(folder / "memory.json", memory)
    (folder / "memory.html").write_text(report.memory_html(memory, str(summary["model"])))
    _write(folder / "decisions.json", decisions)
    graph = drawing.graph_json(compilation)
    (folder / "graph.json").write_text(json.dumps(graph, separators=(",", ":"), allow_nan=False))
    _write(folder / "timings.json", timings)
    _write(folder / "trace.json", trace_json(compilation, memory, seconds, timings, inner))
    (folder / "report.html").write_text(report.report_html(summary, memory, timings, decisions))


def _write(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")
