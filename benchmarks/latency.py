"""`make bench`: our latency beside onnxruntime's and OpenVINO's, at batch 1 in single precision.

Every model and thread count has a process of its own, in which all runtimes take turns on the same
cores. Figures are medians of whole calls from Python, copies of inputs and outputs included; the
ratio is the better of onnxruntime and OpenVINO f32 over ours, so above 1 we are faster. Input
values and shapes are those recorded beside the model (`NAME.io.npz`), else drawn from a seed.
"""

import argparse
import json
import multiprocessing
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from app.engine.types.options import Options, Policy
from app.engine.types.precision import BF16_TOLERANCE, resolve
from app.engine.types.target import host
from app.settings import Settings
from benchmarks import models
from benchmarks.row import OURS, Request, attempt
from benchmarks.tables import counted, latency_table, operator_table, summary

PACKAGES = ("onnxruntime", "openvino", "numba", "numpy")


HOLD: Mapping[str, Callable[[Path], bool]] = {
    "development": lambda path: path.parent.resolve() == models.FOLDERS[0].resolve(),
    "all": lambda _path: True,
    "none": lambda _path: False,
}


def arguments_of(line: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=models.DEFAULT, help="names, or paths of ONNX files")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=6.0, help="per model, thread count and runtime")
    parser.add_argument("--operators", action="store_true", help="also print the slowest steps")
    parser.add_argument(
        "--no-fast-algorithms",
        action="store_true",
        help="without Winograd, Strassen and fixed point: plain products only",
    )
    parser.add_argument(
        "--precision",
        choices=get_args(Policy),
        default="f32",
        help="of ours; bf16 where the CPU computes it",
    )
    parser.add_argument(
        "--hold",
        choices=HOLD,
        default="development",
        help="in bf16: models whose nodes stay float32, as a verified job has them, until outputs of "
        "recorded inputs differ by at most 1e-2: those of the development folder, not those built with "
        "random weights; all; or none, as the peers have it",
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args(line)


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = arguments_of(line)
    machine, console = host(), Console(width=150)
    options = Options(
        fast_algorithms=not arguments.no_fast_algorithms,
        precision=arguments.precision,
        tolerance=BF16_TOLERANCE if arguments.precision == "auto" else Options().tolerance,
    )
    resolved = resolve(options, machine)
    if resolved.reason:
        console.print(resolved.reason)
    kernels = Settings.from_environment().data.absolute() / "kernels"
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    missing += [
        f"{n} threads: the machine has {machine.cores} cores" for n in arguments.threads if n > machine.cores
    ]
    counts = [n for n in arguments.threads if n <= machine.cores]
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(arguments.names, start=1):
            found = models.find(name, arguments.models, Path(scratch))
            if found.path is None:
                missing.append(f"{found.name}: {found.reason}")
                continue
            for threads in counts:
                request = Request(
                    found.path,
                    threads,
                    arguments.seconds,
                    kernels,
                    options,
                    operators=arguments.operators,
                    hold=HOLD[arguments.hold](found.path),
                )
                row = in_own_process(request)
                place = f"[{number}/{len(arguments.names)}] {found.name}, {counted(threads)}"
                if isinstance(row, str):
                    missing.append(f"{found.name}, {counted(threads)}: {row}")
                    console.print(f"{place}: {row}", markup=False, highlight=False)
                    continue
                rows.append({"model": found.name, **row})
                told = f"{row['milliseconds'][OURS]:.3f} ms, "
                told += f"{row['ratio']:.2f}x of {row['better']}" if row["better"] else "no peer runs it"
                told += f", {len(row['exact'])} nodes in float32" if row["exact"] else ""
                console.print(f"{place}: {told}", markup=False, highlight=False)
    plain = "" if options.fast_algorithms else ", no fast algorithms"
    title = f"batch 1{plain}, {machine.cpu_model}, {machine.cores} cores, {', '.join(machine.isa)}"
    console.print(latency_table(rows, title))
    for row in rows if arguments.operators else ():
        console.print(operator_table(row))
    for text in [*summary(rows), *(f"not measured: {m}" for m in missing)]:
        console.print(text, markup=False, highlight=False)
    if arguments.json:
        facts = {
            "machine": machine.cpu_model,
            "isa": machine.isa,
            "fast_algorithms": options.fast_algorithms,
            "python": platform.python_version(),
            "versions": {p: _version(p) for p in PACKAGES},
            "rows": rows,
            "missing": missing,
        }
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


def in_own_process(
    request: Request, measured: Callable[[Request], dict[str, Any]] | None = None
) -> dict[str, Any] | str:
    """A row, or why there is none; `measured` makes it, by default `measure`.

    No peer's thread pool or heap outlives its row. A peer that crashes on a specialized model gets the file
    as it is.
    """
    for form in (request, replace(request, specialize=False)):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                return pool.submit(attempt, form, measured).result()
            except BrokenProcessPool:
                continue
    return "its process died"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
