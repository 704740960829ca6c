"""Time to a first plan and to the final one: `python -m benchmarks.ready [NAME ...]`, `make bench-ready`.

Each model is submitted to services of its own: a quick job (the plan by the model alone, compiled and
verified) and a job where nothing is compiled and nothing timed; then both with those kernels, as an image
ships them, and an empty table of timings; then the job once more. Figures are seconds from the request to the
end, of jobs with the benchmark beside peers (in parentheses), and before them to the progress that tells the
predicted time. Last the time of the program of the quick plan over that of the tuned one, in turn in one
process, and the predicted time over the measured one.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.client import Client
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import tensors
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.paired import in_turn, ratios
from benchmarks.queue import part_of_service, wait_until_ready
from benchmarks.row import recorded_inputs
from benchmarks.tables import geometric_mean

DEFAULT = ("squeezenet", "resnet50", "gpt2_decode", "minilm_l6")
SETTLING = 10.0  # s until the worker has a child at hand, on a slow machine
PREDICTED = "predicted, measuring"  # in the phase of the first plan


@dataclass(frozen=True, slots=True)
class Job:
    """Seconds from the request to the first plan (NaN if none was told) and to the end; of the benchmark."""

    first: float
    final: float
    benchmark: float

    def __str__(self) -> str:
        first = "-" if math.isnan(self.first) else f"{self.first:.1f}"
        return f"{first} / {self.final:.1f} ({self.benchmark:.1f})"


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.ready", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=DEFAULT, help="names, or paths of ONNX files")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each program, to compare plans")
    parser.add_argument("--plans-only", action="store_true", help="only compare plans")
    parser.add_argument("--kernels", type=Path, help="cache to compare plans with (default: an empty one)")
    arguments = parser.parse_args(line)
    table = Table(title=f"{host().cpu_model}, {host().cores} cores; threads of a job: {arguments.threads}")
    titles = ("quick, nothing compiled", "job", "quick, compiled", "job, no timings", "again, less benchmark")
    for title in ("model", *titles, "quick / tuned", "predicted / quick"):
        table.add_column(title, justify="left" if title == "model" else "right")
    worse = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names:
            found = models.find(name, models.FOLDERS, Path(scratch))
            if found.path is None:
                print(found.reason)
                continue
            jobs = [] if arguments.plans_only else list(measured(found.path, arguments.threads))
            kernels = arguments.kernels or Path(scratch) / "kernels"
            ratio, told = compared(found.path, arguments.threads, arguments.seconds, kernels)
            worse.append(ratio)
            table.add_row(name, *(jobs or ["-"] * len(titles)), f"{ratio:.3f}", f"{told:.2f}")
            print(f"{name}: {', '.join(jobs)}; quick / tuned {ratio:.3f}", flush=True)
    Console(width=150).print(table)
    print(f"quick / tuned, geometric mean: {geometric_mean(worse):.3f}" if worse else "nothing was measured")


@contextmanager
def service(folder: Path) -> Iterator[Client]:
    """A client of a service whose data lie in a folder."""
    from tests.jobs.service import free_port

    settings = Settings(data=folder, port=free_port(), workers=1, max_model_bytes=4 << 30)
    with part_of_service("api", settings), Client(f"http://127.0.0.1:{settings.port}") as client:
        wait_until_ready(client)
        with part_of_service("workers", settings):
            yield client


def measured(path: Path, threads: int) -> Iterator[str]:
    """The columns of jobs of a model."""
    bindings = bindings_of(recorded_inputs(path) or {})
    request: dict[str, Any] = {
        "options": {"threads": threads},
        "reuse": False,
        "input_shapes": {name: list(shape) for name, shape in bindings.shapes.items()},
        "input_values": dict(bindings.values),
        "input_ranges": {name: list(ends) for name, ends in bindings.ranges.items()},
    }
    quick = {**request, "options": {"threads": threads, "quick": True}}
    for compiled in (False, True):
        with tempfile.TemporaryDirectory() as place, service(Path(place)) as client:
            model = client.upload(path).id
            time.sleep(SETTLING)
            if not compiled:
                yield f"{job_of(client, model, quick).final:.1f}"
                continue
            yield str(job_of(client, model, request))
            yield f"{job_of(client, model, quick).final:.1f}"
            forget(Path(place))
            yield str(job_of(client, model, request))
            again = job_of(client, model, request)
            yield f"{again.final - again.benchmark:.1f}"


def bindings_of(case: dict[str, Any]) -> Bindings:
    """Shapes and scalars of a case; other integers are drawn from the range of those recorded."""
    ranges = {
        name: (int(found.min()), int(found.max()) + 1)
        for name, found in case.items()
        if found.ndim and found.size and found.dtype.kind in "iu"
    }
    return replace(models.bindings_of(case), ranges=ranges)


def forget(folder: Path) -> None:
    """Remove the tables of timings of a service, not its kernels."""
    for table in (folder / "kernels").rglob("timings.json"):
        table.unlink()


def job_of(client: Client, model: str, request: dict[str, Any]) -> Job:
    """Run a job and time it; the clock is that of this process."""
    began = time.monotonic()
    job = client.submit(model, **request)
    first, benchmark, since = math.nan, 0.0, math.nan
    for event in client.events(job.id):
        now, phase = time.monotonic() - began, str(event.data.get("phase", ""))
        if PREDICTED in phase and math.isnan(first):
            first = now
        if phase == "benchmark":
            since = now if math.isnan(since) else since
            benchmark = now - since
    done = client.wait(job.id)
    if done.state != "succeeded":
        raise RuntimeError(f"{done.code}: {done.detail}")
    return Job(first, time.monotonic() - began, benchmark)


def compared(path: Path, threads: int, seconds: float, kernels: Path) -> tuple[float, float]:
    """Time of the quick program over that of the tuned one; its predicted time over the measured one."""
    case = recorded_inputs(path)
    bindings = bindings_of(case or {})
    options = Options(threads=threads, choose="first")
    compilation = session.canonical(load(path), host(), options, bindings, load_registry())
    drawn = tensors(compilation, bindings, seed=0)
    given = case or drawn
    fed = {v.name or "": given[v.name or ""] for v in compilation.graph.inputs}
    compiler = Compiler(kernels)
    quick = session.planned(session.on_this_machine(compilation, compiler), options)
    clock = time.thread_time if threads == 1 else time.perf_counter  # of one thread other load does not count
    with pinned(threads) as cores:
        tuned = session.planned(session.tuned(compilation, options, compiler), options)
        with (
            closing(Executor(quick, compiler, cores=cores)) as one,
            closing(Executor(tuned, compiler, cores=cores)) as two,
        ):
            samples = in_turn([lambda: one.run(fed), lambda: two.run(fed)], seconds, clock)
    return float(ratios(samples, 1)[0]), quick.seconds / float(sorted(samples[:, 0])[len(samples) // 2])


if __name__ == "__main__":
    main()
