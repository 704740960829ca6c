"""One row of the benchmark: a model at a number of threads, ours and the peers' in one process."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.cost.roofline import flops
from app.engine.model.load import load
from app.engine.planning import mixed_precision, session
from app.engine.runtime.benchmark import keep_to, measure_in_turn, pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import tensors
from app.engine.runtime.verify import compare
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.peak import peak_flops
from benchmarks import models
from benchmarks.peers import ONNXRUNTIME, OPENVINO, OPENVINO_F32, Peer, onnxruntime_peer, openvino_peer

OURS = "stowplan"
LONGEST = 300  # characters of a peer's error
REPEATS = 9  # runs behind the median time of a step


@dataclass(frozen=True, slots=True)
class Request:
    """A measurement, as a process is given it."""

    path: Path
    threads: int
    seconds: float  # per runtime
    kernels: Path  # cache of machine code
    options: Options = Options()  # noqa: RUF009  # frozen
    operators: bool = False
    specialize: bool = True  # tell the peers shapes and bound scalars, not only the planner
    hold: bool = False  # in bf16: outputs of recorded inputs within the tolerance, as a job holds them


def attempt(
    request: Request, measured: Callable[[Request], dict[str, Any]] | None = None
) -> dict[str, Any] | str:
    """A row, or why the engine has none; `measured` makes it, by default `measure`."""
    try:
        return (measured or measure)(request)
    except EngineError as cause:
        return f"{type(cause).__name__}: {cause}"


def measure(request: Request) -> dict[str, Any]:
    """One row: median milliseconds of every runtime, and how far our outputs are from onnxruntime's.

    A runtime that cannot run the model has no time, and its reason is among `refused`.
    """
    threads = request.threads
    options = replace(request.options, threads=threads)
    case = recorded_inputs(request.path)
    bindings = models.bindings_of(case) if case else Bindings()
    compilation = session.canonical(load(request.path), host(), options, bindings, load_registry())
    inputs = case or {k: np.asarray(v) for k, v in tensors(compilation, bindings, seed=0).items()}
    free = {v.name for v in compilation.graph.inputs}
    fed = {k: v for k, v in inputs.items() if k in free}
    compiler = Compiler(request.kernels)
    with tempfile.TemporaryDirectory() as scratch, pinned(threads) as cores:
        files = [request.path]
        if request.specialize:
            files.insert(0, Path(scratch) / "specialized.onnx")
            models.specialize(request.path, inputs, bindings.values, files[0])
        peers, refused = peers_of(files, threads, inputs)
        compilation = session.tuned(compilation, options, compiler)
        if request.hold and case and mixed_precision.mixes(options, host()):
            compilation, options = mixed_precision.held(compilation, options, compiler, inputs)
        program = session.planned(compilation, options)
        executor = Executor(program, compiler, cores=cores)
        # All pools stand by now. They share the cores with this thread, which keeps to the first: else the
        # system may run it beside a helper on one core and leave the other idle. OpenVINO gives the calling
        # thread all cores again whenever it has run.
        keep = partial(keep_to, cores[:1])
        keep()
        differences = [
            d for p in peers if p.name == ONNXRUNTIME for d in compare(p.run(inputs), executor.run(fed), 0.0)
        ]
        works: list[Callable[[], object]] = [lambda: executor.run(fed)]
        works += [lambda peer=peer: peer.run(inputs) for peer in peers]
        names = [OURS, *(p.name for p in peers)]
        samples = dict(zip(names, measure_in_turn(works, request.seconds, before=keep), strict=True))
        peak = peak_flops(compiler, host().vector_lanes, threads, cores)
        operators = step_rows(program, executor) if request.operators else []
        executor.close()
    milliseconds = {name: s.p50 * 1e3 for name, s in samples.items()}
    rivals = {n: t for n, t in milliseconds.items() if n in (ONNXRUNTIME, OPENVINO_F32)}
    better = min(rivals, key=rivals.__getitem__) if rivals else None
    return {
        "threads": threads,
        "milliseconds": milliseconds,
        "precision": {p.name: p.precision for p in peers},
        "refused": refused,
        "better": better,
        "ratio": rivals[better] / milliseconds[OURS] if better else None,
        "exact": list(options.exact),
        "max_rel": max((d.max_rel for d in differences), default=None),
        "inputs": "recorded" if case else "seeded",
        "as_it_is": [p.name for p in peers if p.file == request.path],
        "reference": reference_steps(program),
        "peak_gflops": peak / 1e9,
        "operators": operators,
        "samples": {name: len(s.seconds) for name, s in samples.items()},
    }


def reference_steps(program: Program) -> list[str]:
    """Steps that Python runs, outside compiled code: operator and implementation."""
    return [
        f"{s.group.op} {s.group.name!r} ({s.choice.implementation.name})" for s in program.steps if s.is_host
    ]


def step_rows(program: Program, executor: Executor) -> list[dict[str, Any]]:
    """Median time of every step that is no view, slowest first, and its arithmetic."""
    times = np.median([executor.step_seconds() for _ in range(REPEATS)], axis=0)
    rows = [
        {
            "name": step.group.name,
            "op": step.group.op,
            "implementation": step.choice.implementation.name,
            "milliseconds": float(seconds) * 1e3,
            "gflops": flops(step.group) / max(float(seconds), 1e-9) / 1e9,
        }
        for step, seconds in zip(program.steps, times, strict=True)
        if step.calls
    ]
    return sorted(rows, key=lambda row: -row["milliseconds"])


def recorded_inputs(path: Path) -> dict[str, np.ndarray[Any, Any]] | None:
    """Those of the first recorded case."""
    if not path.with_suffix(".io.npz").exists():
        return None
    return models.recorded(path.parent, path.stem)[0][0]


def _try_apart(name: str, file: Path) -> None:
    """Open a file that a peer may refuse in a process of its own first.

    onnxruntime that fails on a model leaves its process broken: slower libraries, or a crash.

    Raises:
        RuntimeError: it does not open the file.
    """
    load = (
        "import onnxruntime; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
        if name == ONNXRUNTIME
        else "import openvino; openvino.Core().compile_model(sys.argv[1], 'CPU')"
    )
    tried = subprocess.run(
        [sys.executable, "-c", f"import sys; {load}", str(file)], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise RuntimeError(tried.stderr.strip().rpartition("\n")[2] or f"it ends with {tried.returncode}")


def peers_of(
    files: Sequence[Path], threads: int, inputs: dict[str, Any], names: Sequence[str] = ()
) -> tuple[list[Peer], dict[str, str]]:
    """The peers that run the model, and why the others do not; `files`: its forms, the best first."""
    makers: Mapping[str, Callable[[Path], Peer]] = {
        ONNXRUNTIME: lambda file: onnxruntime_peer(file, threads),
        OPENVINO_F32: lambda file: openvino_peer(file, threads, precision="f32"),
        OPENVINO: lambda file: openvino_peer(file, threads, precision=None),
    }
    peers: dict[str, Peer] = {}
    refused: dict[str, str] = {}
    for name, make in makers.items():
        if names and name not in names:
            continue
        for file in files:
            try:
                if file is not files[-1]:
                    _try_apart(name, file)
                peer = make(file)
                peer.run(inputs)
            except Exception as cause:  # peers raise types of their own, and any of them is one
                refused[name] = f"{type(cause).__name__}: {' '.join(str(cause).split())[:LONGEST]}"
            else:
                peers[name] = peer
                break
    return list(peers.values()), {n: why for n, why in refused.items() if n not in peers}
