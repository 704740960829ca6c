"""One job: from an uploaded file to its artifacts."""

import dataclasses
import hashlib
import itertools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine import allocation, cost, sensitivity, session
from app.engine.benchmark import Samples, measure_in_turn, pinned
from app.engine.errors import EngineError, NumericsError, TargetError
from app.engine.exchange import drawing, functions, report
from app.engine.exchange.onnx import export, write
from app.engine.exchange.trace import trace_json
from app.engine.inputs import tensors
from app.engine.layouts.conversions import changes
from app.engine.load import Loaded, load
from app.engine.load import inspect as inspect_file
from app.engine.machines import absence
from app.engine.options import Bindings, Options
from app.engine.oracle import Oracle, distrust, original, rounds, runtime, spread
from app.engine.pipeline import Progress, silent
from app.engine.plan import Compilation
from app.engine.precision import Resolved, exacter, resolve, tolerance
from app.engine.program import Program
from app.engine.registry import load as load_registry
from app.engine.target import Target, host
from app.engine.verify import Difference, allowing, check, compare
from app.kernels.cpu.compiler import Compiler

# By the place in the verification that tells how it compares: plain operators; the plan in local functions
# over blocked tensors; the same without functions.
EXPORTS = {
    "exported": "optimized.onnx",
    "functions": "optimized.functions.onnx",
    "inlined": "optimized.inlined.onnx",
}
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
    """What one run of the whole benchmark found; seconds by step for the optimized program."""

    optimized: Samples
    unfused: Samples
    peer: Samples | str  # a string tells why onnxruntime has no samples
    steps: tuple[float, ...]


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
        progress: called with (phase, done, total).

    Raises:
        EngineError: the model, the request or the result is refused; `code` says why.
    """
    absent = absence(target)
    runs_here = absent is None
    if options.timings == "measured" and not runs_here:
        raise TargetError(
            f"timings 'measured' need a machine that is {target.name!r}; this one is not ({absent}): "
            "ask for 'predicted' or 'auto'",
            pointer="/options/timings",
        )
    measures = runs_here and options.timings != "predicted"
    progress("load", 0, 1)
    loaded = load(path, external=external)
    with tempfile.TemporaryDirectory() as scratch:
        converted = Path(scratch) / "converted.onnx"
        export(loaded.model, converted)
        compilation = session.canonical(
            loaded, target, options, bindings, load_registry(), _part("canonicalize", progress)
        )
        compiler = Compiler(kernels)

        def tuning(done: int, total: int) -> None:
            progress("tune", done, total)

        inputs = tensors(compilation, bindings, options.seed)
        if measures:
            compilation = session.tuned(compilation, options, compiler, tuning, inputs)

        def verified(options: Options, compilation: Compilation) -> tuple[_Run, Json | None]:
            planning = _part("plan", progress)
            if runs_here:
                _, fused = session.runnable(compilation, options, compiler, inputs, planning)
            else:
                fused = session.planned(compilation, options, planning)
            unfused = dataclasses.replace(options, fuse=False, prefer="latency", memory_budget=None)
            alone = [s.is_library for s in fused.steps] == [True]  # a second session of it has no use
            plain = fused if alone else session.planned(compilation, unfused)
            _export(compilation, fused, folder)
            run = _Run(fused, plain, converted, folder, inputs, compiler, progress)
            try:
                return run, run.verify(runs_here) if options.verify else None
            except NumericsError:
                run.close()
                raise

        precision, given = resolve(options, target), options
        while True:
            try:
                run, verification = verified(given, compilation)
                break
            except NumericsError as error:
                if compilation.assignment:
                    compilation = allocation.given_up(compilation, compiler, error.message)
                    continue
                # Some models amplify rounding beyond what outputs may differ by.
                stricter = exacter(given, target)
                if stricter is None:
                    raise
                if stricter.precision != given.precision:
                    reason = f"in {precision.used} {error.message}"
                    if runs_here and sensitivity.mixes(given, target):
                        tried = dataclasses.replace(given, autotune=given.autotune and measures)
                        compilation, found = sensitivity.held(compilation, tried, compiler, inputs, tuning)
                        if found.exact:
                            stricter = dataclasses.replace(given, exact=found.exact)
                            reason = f"nodes that stay float32: {len(found.exact)}; {reason}"
                    used = precision.used if stricter.exact else "f32"
                    precision = Resolved(precision.asked, used, reason, stricter.exact)
                else:
                    note = f"fast algorithms are off: with them {error.message}"
                    compilation = dataclasses.replace(compilation, notes=(*compilation.notes, note))
                given = stricter
        fused, plain = run.fused, run.plain
        points = session.front(compilation, fused.compilation.options) if options.pareto else ()
        built = _built(fused, kernels, progress) if target.device == "cuda" else None
        measured = run.benchmark(options.benchmark_seconds) if measures else None
        if bindings.tensors and runs_here:
            _write_outputs(folder / "outputs.npz", run.outputs())
        run.close()
    progress("report", 0, 1)
    seconds = measured.steps if measured else tuple(s.choice.seconds for s in fused.steps)
    timings = _timings(fused, plain, measured, seconds, target)
    summary = _summary(path, loaded, fused, plain, timings, verification, precision)
    if built is not None:
        summary["cuda"] = built
    summary["pareto"] = [dataclasses.asdict(p) for p in points]
    _write_reports(folder, fused, summary, timings, seconds)
    progress("report", 1, 1)
    return summary


class _Run:
    """The programs of one job in memory, with what they are compared to."""

    def __init__(
        self,
        fused: Program,
        plain: Program,
        converted: Path,
        folder: Path,
        inputs: Mapping[str, object],
        compiler: Compiler,
        progress: Progress,
    ) -> None:
        self.fused = fused
        self.plain = plain
        self._converted = converted
        self._folder = folder
        self._inputs = inputs
        self._compiler = compiler
        self._progress = progress
        self._executors: dict[int, session.Running] = {}

    def executor(self, program: Program) -> session.Running:
        """The program's executor, its kernels compiled on first use."""
        if id(program) not in self._executors:
            self._executors[id(program)] = session.bound(
                program, self._compiler, progress=lambda done, total: self._progress("compile", done, total)
            )
        return self._executors[id(program)]

    def outputs(self) -> dict[str, object]:
        """What the optimized program computes."""
        return self.executor(self.fused).run(self._fed(self.fused))

    def close(self) -> None:
        """Give the threads back."""
        for executor in self._executors.values():
            executor.close()

    def verify(self, runs_here: bool) -> Json:
        """Compare the program, where it can run, and the exported graphs with the original.

        In a quantized model the last bit of a sum can move a value by a whole step: an output beyond the
        tolerance may differ by as much as the original itself moves when its operands are rounded.

        Raises:
            NumericsError: an output is beyond the tolerance.
        """
        options = self.fused.compilation.options
        if runs_here:
            self.executor(self.fused)
        self._progress("verify", 0, 2)
        refusal = distrust(self.fused.compilation.graph, host())
        expected, oracle = original(self._converted, self._inputs, refusal)
        program: tuple[Difference, ...] = ()
        if runs_here:
            target = self.fused.compilation.target
            program = compare(expected, self.outputs(), tolerance(options, target))
        self._progress("verify", 1, 2)
        graphs: dict[str, tuple[Difference, ...]] = dict.fromkeys(EXPORTS, ())
        if oracle.name == "onnxruntime":
            known: dict[bytes, tuple[Difference, ...]] = {}  # without blocked values the files are the same
            for place, name in EXPORTS.items():
                digest = hashlib.sha256((self._folder / name).read_bytes()).digest()
                if digest not in known:
                    known[digest] = compare(expected, self._exported_outputs(name), options.tolerance)
                graphs[place] = known[digest]
        quantized: dict[str, float] = {}
        if rounds(self.fused.compilation.graph) and not all(
            d.ok for d in (*program, *itertools.chain(*graphs.values()))
        ):
            quantized = spread(self._converted, self._inputs, oracle)
            program = allowing(program, quantized)
            graphs = {place: allowing(found, quantized) for place, found in graphs.items()}
        check((*program, *itertools.chain(*graphs.values())))
        self._progress("verify", 2, 2)
        return {**_verification(oracle, program, graphs), "spread": quantized}

    def _exported_outputs(self, name: str) -> dict[str, object]:
        try:
            return runtime(self._folder / name, threads=1, optimized=True)(self._inputs)
        except Exception as cause:  # onnxruntime raises many types
            raise NumericsError(
                f"{name} does not run in onnxruntime, where the original does: {cause}"
            ) from cause

    def benchmark(self, seconds: float) -> _Measured:
        """Samples of the program, of the same program unfused, and of onnxruntime, in turn."""
        threads = self.fused.compilation.options.threads
        fused, plain = self.executor(self.fused), self.executor(self.plain)
        self._progress("benchmark", 0, 1)
        with pinned(threads):
            works: list[Callable[[], object]] = [
                self._inference(fused),
                self._inference(plain),
            ]
            refused = ""
            try:
                if self.fused.compilation.target.device == "cuda":
                    refused = "the onnxruntime of this installation computes on processors"
                else:
                    peer = runtime(self._converted, threads=threads, optimized=True)
                    peer(self._inputs)
                    works.append(lambda: peer(self._inputs))
            except Exception as cause:  # any refusal of the peer is told in the report
                refused = str(cause).strip().splitlines()[0][:300]
            samples = measure_in_turn(works, seconds)
            fused.feed(self._fed(self.fused))
            runs = [fused.step_seconds() for _ in range(max(3, min(20, len(samples[0].seconds))))]
        self._progress("benchmark", 1, 1)
        steps = tuple(float(s) for s in np.median(np.array(runs), axis=0)) if runs[0] else ()
        return _Measured(samples[0], samples[1], refused or samples[2], steps)

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
    from app.engine.cuda.offline import compiled

    return compiled(program, folder, lambda done, total: progress("compile", done, total))


def _part(phase: str, progress: Progress) -> Progress:
    return lambda _name, done, total: progress(phase, done, total)


def _export(compilation: Compilation, fused: Program, folder: Path) -> None:
    """Write the plain graph, and the plan over blocked tensors with functions and without."""
    plain = folder / EXPORTS["exported"]
    export(compilation.model, plain)
    if not functions.rearranged(fused.compilation):
        for place in ("functions", "inlined"):
            shutil.copyfile(plain, folder / EXPORTS[place])
        return
    blocked = functions.with_functions(fused.compilation)
    write(blocked, folder / EXPORTS["functions"])
    write(functions.inlined(blocked), folder / EXPORTS["inlined"])


def _verification(
    oracle: Oracle, program: Iterable[Difference], graphs: Mapping[str, Iterable[Difference]]
) -> Json:
    return {
        "oracle": oracle.name,
        "reason": oracle.reason,
        "outputs": [d.to_json() for d in program],
        **{place: [d.to_json() for d in found] for place, found in graphs.items()},
    }


def _timings(
    fused: Program, plain: Program, measured: _Measured | None, steps: Sequence[float], target: Target
) -> Json:
    spilled = 0.0 if measured else fused.placement.delay  # what is measured contains it
    total = sum(steps) + spilled or 1.0
    operators = [
        {
            "name": step.group.name,
            "op": "+".join(n.op_type for n in step.group.nodes),
            "implementation": step.choice.implementation.name,
            "backend": step.choice.implementation.backend,
            "seconds": seconds,
            "share": seconds / total,
        }
        for step, seconds in zip(fused.steps, steps, strict=True)
    ]
    options = fused.compilation.options
    groups = fused.compilation.plan.groups
    return {
        "schema": "stowplan.timings/1",
        "kind": "measured" if measured else "predicted",
        "machine": {
            "cpu_model": target.cpu_model,
            "flags": list(target.isa),
            "cores": target.cores,
            "threads": options.threads,
        },
        "optimized": measured.optimized.to_json() if measured else _prediction(fused),
        "unfused": measured.unfused.to_json() if measured else _prediction(plain),
        "onnxruntime": _peer(measured),
        "operators": sorted(operators, key=lambda o: -float(str(o["seconds"]))),
        # What values in slower memories cost beside the steps: with it they are the whole.
        "spill_seconds": spilled,
        # What the choice of implementations and layouts was made from, as far as it was measured.
        "tuning": cost.consulted((*groups, *changes(groups)), fused.compilation.timings),
    }


def _peer(measured: _Measured | None) -> Json:
    if measured is None:
        return {"unavailable": "this machine is not the target"}
    if isinstance(measured.peer, str):
        return {"unavailable": measured.peer}
    return measured.peer.to_json()


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
    precision: Resolved,
) -> Json:
    compilation: Compilation = fused.compilation
    solution = fused.placement.solution
    host = [s for s in fused.steps if s.is_host]
    libraries = [s for s in host if s.is_library]
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
            "onnxruntime": timings["onnxruntime"].get("p50"),
        },
        "timings": timings["kind"],
        "precision": {
            **dataclasses.asdict(precision),
            "fast_algorithms": compilation.options.fast_algorithms,
            "steps": dict(Counter(s.choice.implementation.precision for s in fused.steps)),
        },
        "verification": verification,
        "steps": {
            "compiled": sum(bool(s.calls) and not s.is_host for s in fused.steps),
            "views": sum(not s.calls for s in fused.steps),
            "fallback": len(host) - len(libraries),
            "library": len(libraries),
        },
        "backends": dict(Counter(p.backend for p in (compilation.plan.partition or {}).values())),
        "fallbacks": report.fallbacks(compilation),
        "libraries": report.libraries(compilation),
        "operators": timings["operators"][:25],
        "spill_seconds": timings["spill_seconds"],
        "passes": [{"name": r.name, "seconds": r.seconds, "nodes": r.nodes} for r in compilation.records],
        "notes": [*loaded.notes, *compilation.notes],
    }


def _write_reports(
    folder: Path, fused: Program, summary: Json, timings: Json, seconds: Sequence[float]
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
    _write(folder / "trace.json", trace_json(compilation, memory, seconds, timings))
    (folder / "report.html").write_text(report.report_html(summary, memory, timings, decisions))


def _write(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")


def _write_outputs(path: Path, outputs: Mapping[str, object]) -> None:
    """Outputs as arrays in an .npz; a sequence becomes one array per element, `name.0` and on."""
    arrays: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, list):
            arrays.update({f"{name}.{i}": np.asarray(v) for i, v in enumerate(value)})
        else:
            arrays[name] = np.asarray(value)
    np.savez_compressed(path, **arrays)
