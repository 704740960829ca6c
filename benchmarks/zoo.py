"""Models of the zoo beside onnxruntime and OpenVINO: `python -m benchmarks.zoo [NAME ...]`, `make bench-zoo`.

Every model and thread count has a process of its own. The plan is the fastest of our own kernels (libraries
compete only as peers), its outputs for the recorded inputs are compared with the oracle that a job has:
onnxruntime without optimizations, or the reference evaluator where that saturates. Runtimes take turns; one
thread is timed by the processor time of the process, which other work on the machine does not lengthen. The
ratio is the better of onnxruntime and OpenVINO in float32 over ours, of those that agree with the oracle.
`elsewhere` counts the steps that no implementation of ours computes, by backend. `--target` plans for another
processor that this one can run, such as `cpu-avx2`, by predicted times. Ends with status 1 where a row is
missing, differs, has steps elsewhere, or is slower.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime import oracle
from app.engine.runtime.benchmark import keep_to, pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.verify import allowing, compare
from app.engine.types.errors import NumericsError
from app.engine.types.options import Bindings, Options
from app.engine.types.saturation import saturated
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.latency import in_own_process
from benchmarks.paired import SETTLING, in_turn, ratios
from benchmarks.peers import ONNXRUNTIME, OPENVINO_F32, Peer
from benchmarks.row import Request, peers_of, recorded_inputs
from benchmarks.tables import counted, geometric_mean

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "zoo"
FOLDERS = (models.ROOT / "build" / "zoo", DATA / "small")
QUANTILE = 0.25  # of the rounds of a runtime
OWN = "numba-cpu"
WRONG = 0.1  # of an output's maximum: a peer that differs by more computes something else


@dataclass(frozen=True, slots=True)
class Measuring:
    """Work of a process: a target by name, and whether kernels are timed for it first."""

    target: str
    tuned: bool

    def __call__(self, request: Request) -> dict[str, Any]:
        """One row. Raises EngineError where the engine refuses the model."""
        threads = request.threads
        options = Options(threads=threads, choose="first", backends=(OWN,), autotune=self.tuned)
        inputs = recorded_inputs(request.path)
        assert inputs is not None, request.path
        bindings = models.bindings_of(inputs)
        loaded = load(request.path)
        ops = {node.op_type for node in loaded.model.graph.all_nodes()}
        compilation = session.canonical(loaded, find(self.target), options, bindings, load_registry())
        free = {v.name for v in compilation.graph.inputs}
        fed = {k: v for k, v in inputs.items() if k in free}
        compiler = Compiler(request.kernels)
        with pinned(threads) as cores:
            compilation = session.tuned(compilation, options, compiler)
            program = session.planned(compilation, options)
            with closing(Executor(program, compiler, cores=cores)) as executor:
                expected, by = oracle.original(request.path, inputs, saturated(frozenset(ops), host()))
                row = checked(request.path, inputs, executor.run(fed), expected, by, options.tolerance)
                peers, refused = peers_that_agree(request, inputs, bindings, expected)
                found = timed(request, lambda: executor.run(fed), peers, inputs, cores)
                return row | elsewhere(program) | found | {"refused": refused}


def checked(
    path: Path,
    inputs: dict[str, Any],
    outputs: dict[str, object],
    expected: dict[str, object],
    by: oracle.Oracle,
    tolerance: float,
) -> dict[str, Any]:
    """The largest difference from the oracle, and whether a job would accept all of them."""
    found = compare(expected, outputs, tolerance)
    if not all(d.ok for d in found):
        allowed = (
            oracle.spread(path, inputs, by)
            if oracle.rounds(load(path).model.graph)
            else oracle.uncertainty(path, inputs, expected, by)
        )
        found = allowing(found, allowed)
    return {
        "difference": max((d.max_rel for d in found), default=0.0),
        "accepted": all(d.ok for d in found),
        "oracle": by.name,
    }


def peers_that_agree(
    request: Request, inputs: dict[str, Any], bindings: Bindings, expected: dict[str, object]
) -> tuple[list[Peer], dict[str, str]]:
    """Peers with the shapes that we plan for, or with the file as it is; none whose outputs are wrong."""
    peers, refused = [], {}
    with tempfile.TemporaryDirectory() as folder:
        specialized = Path(folder) / "specialized.onnx"
        models.specialize(request.path, inputs, bindings.values, specialized)
        for name in (ONNXRUNTIME, OPENVINO_F32):
            for file in (specialized, request.path):
                found, why = peers_of([file], request.threads, inputs, (name,))
                refused |= why
                try:
                    differences = [d for p in found for d in compare(expected, p.run(inputs), WRONG)]
                except NumericsError as cause:
                    refused[name] = str(cause)
                    continue
                if found and all(d.ok for d in differences):
                    peers += found
                    refused.pop(name, None)
                    break
                if found:
                    refused[name] = f"it differs by {max(d.max_rel for d in differences):.1e}"
    return peers, refused


def elsewhere(program: Program) -> dict[str, Any]:
    """Steps that no implementation of ours computes, by backend, and their names."""
    steps = [s for s in program.steps if s.calls and s.choice.implementation.backend != OWN]
    return {
        "elsewhere": dict(Counter(s.choice.implementation.backend for s in steps)),
        "steps": [f"{s.group.op} {s.group.name!r} ({s.choice.implementation.name})" for s in steps],
    }


def timed(
    request: Request,
    ours: Callable[[], object],
    peers: Sequence[Peer],
    inputs: dict[str, Any],
    cores: Sequence[int],
) -> dict[str, Any]:
    """Milliseconds of every runtime, in turn, and the ratio of the better peer."""
    one = request.threads == 1
    works: list[Callable[[], object]] = [ours]
    works += [lambda peer=peer: peer.run(inputs) for peer in peers]
    samples = in_turn(
        works,
        request.seconds,
        time.process_time if one else time.perf_counter,
        before=partial(keep_to, cores[:1]),
        settling=0.0 if one else SETTLING,
    )
    milliseconds = np.quantile(samples, QUANTILE, axis=0) * 1e3
    against = ratios(samples, 0)[1:]
    return {
        "milliseconds": dict(zip(("ours", *(p.name for p in peers)), map(float, milliseconds), strict=True)),
        "ratio": float(min(against)) if peers else None,
    }


def main(line: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="by default every model with recorded inputs")
    parser.add_argument("--models", type=Path, nargs="*", default=FOLDERS, help="folders to look in")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="per model, thread count and runtime")
    parser.add_argument("--target", default="host")
    parser.add_argument("--predicted", action="store_true", help="time no kernel before the choice")
    arguments = parser.parse_args(line)
    found = {p.name.removesuffix(".io.npz"): p for f in arguments.models for p in sorted(f.glob("*.io.npz"))}
    console, kernels = Console(width=150), Settings.from_environment().data.absolute() / "kernels"
    machine = host()
    table = Table(title=f"target {arguments.target}; {machine.cpu_model}: {' '.join(machine.isa)}")
    for heading in ("model", "threads", "stowplan ms", "onnxruntime ms", "OpenVINO ms", "ratio"):
        table.add_column(heading)
    for heading in ("difference", "elsewhere"):
        table.add_column(heading)
    failed, measured = [], []
    measuring = Measuring(arguments.target, not arguments.predicted)
    for name in arguments.names or sorted(found):
        if name not in found:
            failed.append(f"{name}: no {name}.io.npz in {', '.join(map(str, arguments.models))}")
            continue
        path = found[name].with_name(f"{name}.onnx")
        for threads in arguments.threads:
            request = Request(path, threads, arguments.seconds, kernels)
            row = in_own_process(request, measuring)
            place = f"{name}, {counted(threads)}"
            if isinstance(row, str):
                failed.append(f"{place}: {row}")
            else:
                table.add_row(name, str(threads), *cells(row))
                measured += [row["ratio"]] if row["ratio"] else []
                failed += [f"{place}: {reason}" for reason in shortfalls(row)]
            console.print(place, row if isinstance(row, str) else " ".join(cells(row)), markup=False)
    console.print(table)
    if measured:
        console.print(f"geometric mean {geometric_mean(measured):.2f}x, lowest {min(measured):.2f}x")
    for reason in failed:
        console.print(reason, markup=False)
    return 1 if failed else 0


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table after the model and its threads."""
    times = (row["milliseconds"].get(name) for name in ("ours", ONNXRUNTIME, OPENVINO_F32))
    return [
        *("-" if t is None else f"{t:.3f}" for t in times),
        f"{row['ratio']:.2f}x" if row["ratio"] else "-",
        f"{row['difference']:.1e}",
        ", ".join(f"{count} {backend}" for backend, count in row["elsewhere"].items()) or "none",
    ]


def shortfalls(row: dict[str, Any]) -> list[str]:
    """What a row does not fulfill."""
    reasons = []
    if not row["accepted"]:
        reasons.append(f"differs from {row['oracle']} by {row['difference']:.1e}")
    if row["steps"]:
        reasons.append(f"computed elsewhere: {', '.join(row['steps'])}")
    if row["ratio"] is not None and row["ratio"] < 1:
        reasons.append(f"slower than the better peer, {row['ratio']:.2f}x")
    return reasons


if __name__ == "__main__":
    sys.exit(main())
