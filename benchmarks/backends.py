"""`make bench-backends`: single backends beside the choice by measurement, for every model of the list.

Every model has a process of its own, in which our kernels alone, onnxruntime, OpenVINO (both on the
file, specialized to the same shapes) and the program of `choose: measured` take turns on the same
cores, run by run, and are compared by the median of the ratios of neighbouring runs; a choice without
a library is our kernels alone. With one thread times are processor times of the process, so that other
load does not count.
The first run on a machine also measures what the choice needs, which is kept beside the kernels.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.backend_assignment.bench import without_libraries
from app.engine.runtime.benchmark import keep_to, pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import tensors
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.paired import SETTLING, in_turn, ratios
from benchmarks.peers import ONNXRUNTIME, OPENVINO_F32
from benchmarks.row import OURS, Request, attempt, peers_of, recorded_inputs

CHOICE = "measured choice"
COLUMNS = (OURS, ONNXRUNTIME, OPENVINO_F32, CHOICE)
BACKENDS = ("numba-cpu", "onnxruntime", "openvino")
SLOWER = 1.03  # times the fastest single backend, that the choice may take


def row(request: Request) -> dict[str, Any]:
    """Median milliseconds of every single backend and of the choice, and what was chosen."""
    options = replace(request.options, threads=request.threads, backends=BACKENDS, choose="measured")
    case = recorded_inputs(request.path)
    bindings = models.bindings_of(case) if case else Bindings()
    compilation = session.canonical(load(request.path), host(), options, bindings, load_registry())
    inputs = case or {k: np.asarray(v) for k, v in tensors(compilation, bindings, seed=0).items()}
    free = {v.name for v in compilation.graph.inputs}
    fed = {k: v for k, v in inputs.items() if k in free}
    compiler = Compiler(request.kernels)
    started = time.perf_counter()
    chosen = session.tuned(compilation, options, compiler)
    chosen, program = session.runnable(chosen, options, compiler, fed)
    preparing = time.perf_counter() - started
    parts = [s.choice.implementation.backend for s in program.steps if s.is_library]
    with tempfile.TemporaryDirectory() as scratch, pinned(request.threads) as cores:
        file = Path(scratch) / "specialized.onnx"
        models.specialize(request.path, inputs, bindings.values, file)
        ours = session.planned(without_libraries(chosen), options)
        # Before the peers: what OpenVINO compiles after onnxruntime has opened a model may be twice as slow.
        executors = [Executor(p, compiler, cores=cores) for p in (ours, program)]
        peers, refused = peers_of([file, request.path], request.threads, inputs, (ONNXRUNTIME, OPENVINO_F32))
        keep = partial(keep_to, cores[:1])  # as in `benchmarks.row`
        works: dict[str, Callable[[], object]] = {
            OURS: lambda: executors[0].run(fed),
            **{p.name: lambda p=p: p.run(inputs) for p in peers},  # type: ignore[misc]  # a default binds it
        }
        if parts:
            works[CHOICE] = lambda: executors[1].run(fed)
        clock = time.process_time if request.threads == 1 else time.perf_counter
        settling = SETTLING if request.threads > 1 else 0.0
        samples = in_turn(list(works.values()), request.seconds, clock, keep, settling)
        for executor in executors:
            executor.close()
    milliseconds = dict(zip(works, (np.median(samples, axis=0) * 1e3).tolist(), strict=True))
    names = list(works)
    fastest = min((n for n in names if n != CHOICE), key=milliseconds.__getitem__)
    against = dict(zip(names, ratios(samples, names.index(fastest)).tolist(), strict=True))
    return {
        "milliseconds": {CHOICE: milliseconds[OURS], **milliseconds},
        "fastest": fastest,
        "ratio": against[CHOICE if parts else OURS],
        "chosen": {name: parts.count(name) for name in dict.fromkeys(parts)},
        "steps": len(program.steps),
        "preparing": preparing,
        "refused": refused,
        "told": next((n for n in chosen.notes if n.startswith("choose:")), ""),
    }


def in_own_process(request: Request) -> dict[str, Any] | str:
    """A row, or why there is none."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(attempt, request, row).result()
        except BrokenProcessPool:
            return "its process died"


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.backends", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=models.DEFAULT, help="names, or paths of ONNX files")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="per model and backend")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    console, machine = Console(width=150), host()
    kernels = Settings.from_environment().data.absolute() / "kernels"
    rows: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(arguments.names, start=1):
            found = models.find(name, arguments.models, Path(scratch))
            if found.path is None:
                missing.append(f"{found.name}: {found.reason}")
                continue
            request = Request(found.path, arguments.threads, arguments.seconds, kernels, Options())
            measured = in_own_process(request)
            place = f"[{number}/{len(arguments.names)}] {found.name}"
            if isinstance(measured, str):
                missing.append(f"{found.name}: {measured}")
                continue
            rows[found.name] = measured
            told = f"{measured['ratio']:.3f}x of {measured['fastest']}; {measured['told'][:400]}"
            console.print(f"{place}: {told}", markup=False, highlight=False)
    title = f"batch 1, {arguments.threads} threads, {machine.cpu_model}, milliseconds"
    console.print(_table(rows, title))
    for text in [*_summary(rows), *(f"not measured: {m}" for m in missing)]:
        console.print(text, markup=False, highlight=False)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def _table(rows: dict[str, dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for heading in ("model", *COLUMNS, "choice / fastest single", "libraries in the choice"):
        table.add_column(
            heading, justify="left" if heading in ("model", "libraries in the choice") else "right"
        )
    for name, found in rows.items():
        times = found["milliseconds"]
        parts = ", ".join(f"{n} {count} of {found['steps']} steps" for n, count in found["chosen"].items())
        table.add_row(
            name,
            *("-" if c not in times else f"{times[c]:.4g}" for c in COLUMNS),
            f"{found['ratio']:.3f} ({found['fastest']})",
            parts or "none",
        )
    return table


def _summary(rows: dict[str, dict[str, Any]]) -> list[str]:
    slower = [n for n, r in rows.items() if r["ratio"] > SLOWER]
    faster = [n for n, r in rows.items() if r["ratio"] < 1.0 and r["chosen"]]
    lines = [
        f"over {SLOWER - 1:.0%} slower than the fastest single backend: {', '.join(slower) or 'none'}",
        f"faster than every single backend, with a library: {', '.join(faster) or 'none'}",
    ]
    lines += [f"{n}: {p} cannot run it: {why}" for n, r in rows.items() for p, why in r["refused"].items()]
    return lines


if __name__ == "__main__":
    main()
