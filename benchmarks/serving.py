"""`make bench-serving`: what a deployed model costs over its executor, called by a real client.

A service of its own optimizes the model and deploys it. Then, in turns of some calls: one client with
binary tensors beside the same program called in this process (the overhead is the median of the turns'
differences of medians), and several clients, each a process, beside the same program called back to back
(throughput). All share the machine's cores, as they would on a server.

With `--overload SECONDS` it offers a multiple of the capacity instead, on many connections. The capacity is
what a few connections get which always have a request, before and after. All loads come from a process on the
same cores, whose processor time is told: it counts in the capacity as in the overload.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from app.client import Client
from app.engine.entry.served_model import ServedModel
from app.engine.types.options import Bindings, Options
from app.settings import PREFIX, Settings
from benchmarks import http_load, models
from benchmarks.row import recorded_inputs

Array = np.ndarray[Any, Any]
NAME = "bench"
READY_SECONDS = 300.0
ALWAYS = 1e4  # requests per second, more than any connection sends: each has always one
TURN = 10  # calls of a turn: a client waits for answers, it does not run the model itself in between


def arguments_of(line: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="resnet50", help="name, or path of an ONNX file")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--threads", type=int, default=1, help="of the executor")
    parser.add_argument("--clients", type=int, default=2, help="at once, in the measurement of throughput")
    parser.add_argument("--requests", type=int, default=150, help="of one client, for the overhead")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round of throughput")
    parser.add_argument("--rounds", type=int, default=3, help="of throughput, each way")
    parser.add_argument(
        "--overload", type=float, metavar="SECONDS", help="offer more than the capacity so long"
    )
    parser.add_argument("--times", type=float, default=4.0, help="of the capacity, in an overload")
    parser.add_argument("--timeout", type=float, default=1.0, help="seconds that a request of it may take")
    parser.add_argument("--connections", type=int, default=256, help="of an overload")
    parser.add_argument("--instances", type=int, default=1, help="of the deployment")
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=(), help="requests computed together")
    parser.add_argument("--batch-delay", type=float, default=0.0, help="ms that one waits for others")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args(line)


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments, console = arguments_of(line), Console(width=120)
    kernels = Settings.from_environment().data.absolute() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        found = models.find(arguments.name, arguments.models, Path(scratch))
        if found.path is None:
            sys.exit(f"{found.name}: {found.reason}")
        inputs = recorded_inputs(found.path) or seeded_inputs(found.path, kernels)
        with service(Path(scratch), kernels) as url:
            batches = {"batch_sizes": arguments.batch_sizes, "batch_delay_ms": arguments.batch_delay}
            deploy(url, found.path, inputs, arguments.threads, instances=arguments.instances, **batches)
            if arguments.overload:
                row = overload(url, inputs, models.bindings_of(inputs).values, arguments)
            else:
                row = measure(url, found.path, inputs, kernels, arguments)
    row = {"model": found.name, "threads": arguments.threads, "clients": arguments.clients, **row}
    console.print(overload_table(row) if arguments.overload else table_of(row))
    if arguments.json:
        arguments.json.write_text(json.dumps(row, indent=1) + "\n")


def seeded_inputs(path: Path, kernels: Path) -> dict[str, Array]:
    """Random numbers for a model whose shapes are all known."""
    model = ServedModel(path, Options(), Bindings(), kernels=kernels)
    if model.first is None or any(p.dtype.kind != "f" for p in model.inputs):
        sys.exit(f"{path.name}: no {path.stem}.io.npz beside it, with inputs to send")
    random = np.random.default_rng(0)
    return {p.name: random.standard_normal(model.first[p.name]).astype(p.dtype) for p in model.inputs}


@contextlib.contextmanager
def service(scratch: Path, kernels: Path) -> Iterator[str]:
    """A whole service with data of its own, but for compiled kernels."""
    data = scratch / "data"
    data.mkdir()
    (data / "kernels").symlink_to(kernels)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {f"{PREFIX}DATA": str(data), f"{PREFIX}PORT": str(port), f"{PREFIX}WORKERS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", "serve"],
        env={**os.environ, **given},  # noqa: TID251  the service is to read what this run was given
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def deploy(url: str, path: Path, inputs: dict[str, Array], threads: int, **how: Any) -> None:
    """Optimize the model, deploy it as `Client.deploy` has it, and wait until it answers."""
    await_service(url)
    with Client(url) as client:
        deploy_job(client, optimized(client, path, inputs, threads), **how)


def await_service(url: str) -> None:
    """Wait until a service listens."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(address_of(url), timeout=1.0).close()
            break
        if time.monotonic() > deadline:
            sys.exit("the service did not start")
        time.sleep(0.1)


def address_of(url: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def optimized(client: Client, path: Path, inputs: dict[str, Array], threads: int) -> str:
    """Id of a job that has optimized the model."""
    bindings = models.bindings_of(inputs)
    job = client.submit(
        client.upload(path).id,
        input_shapes={k: list(v) for k, v in bindings.shapes.items()},
        input_values=dict(bindings.values),
        input_ranges=ranges_of(inputs),
        options={"threads": threads, "benchmark_seconds": 1.0, "tolerance": 1e-3},
    )
    done = client.wait(job.id)
    if done.state != "succeeded":
        sys.exit(f"the job {done.state}: {done.code} {done.detail}")
    return str(job.id)


def deploy_job(client: Client, job: str, **how: Any) -> None:
    """Deploy a job, and wait until it answers."""
    client.deploy(job, NAME, **how)
    deployed = client.wait_until_ready(NAME, timeout=READY_SECONDS)
    if deployed.state != "ready":
        sys.exit(f"the model is {deployed.state}: {deployed.detail}")


def ranges_of(inputs: Mapping[str, Array]) -> dict[str, list[int]]:
    """Half-open ranges of the integers in inputs, from which others are drawn."""
    return {
        name: [int(array.min()), int(array.max()) + 1]
        for name, array in inputs.items()
        if array.dtype.kind in "iu" and array.ndim
    }


def measure(
    url: str,
    path: Path,
    inputs: dict[str, Array],
    kernels: Path,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Overhead and throughput."""
    bindings = models.bindings_of(inputs)
    given = {k: v for k, v in inputs.items() if k not in bindings.values}
    shapes = {k: v.shape for k, v in given.items()}
    options = Options(threads=arguments.threads)
    model = ServedModel(path, options, Bindings(shapes=shapes, values=bindings.values), kernels=kernels)
    executor = model.program(shapes)
    caller = Caller(url, given)
    served, bare, differences = [], [], []
    for number in range(arguments.requests // TURN + 1):
        calls, runs = timed(caller, TURN), timed(lambda: executor.run(given), TURN)
        if number:  # after a first turn of each, to warm up
            served += calls
            bare += runs
            differences.append(statistics.median(calls) - statistics.median(runs))
    inside = {name: mean_ms(url, name) for name in ("", "_wait", "_run")}
    alone, shared = [], []
    for _ in range(arguments.rounds):
        alone.append(back_to_back(lambda: executor.run(given), arguments.seconds))
        shared.append(clients(url, given, arguments.clients, arguments.seconds))
    executor.close()
    return {
        "served_ms": statistics.median(served) * 1e3,
        "bare_ms": statistics.median(bare) * 1e3,
        "overhead_ms": statistics.median(differences) * 1e3,
        "overhead_of_medians_ms": (statistics.median(served) - statistics.median(bare)) * 1e3,
        "mean_ms_in_service": inside,
        "bare_per_second": statistics.median(alone),
        "served_per_second": statistics.median(shared),
        "share": statistics.median(s / a for s, a in zip(shared, alone)),
        "served_samples": served,
        "bare_samples": bare,
    }


def overload(
    url: str, inputs: dict[str, Array], fixed: Mapping[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """What becomes of requests of which more come than can be served."""
    address = address_of(url)
    given = {name: array for name, array in inputs.items() if name not in fixed}
    patient = http_load.request_of(NAME, given)
    hasty = http_load.request_of(NAME, given, arguments.timeout)
    few = 2 * arguments.instances + 2
    loads: list[dict[str, float]] = []  # processor seconds per second, of each load

    def load(request: bytes, rate: float, seconds: float, connections: int) -> http_load.Load:
        began = processor_seconds()
        found = http_load.offered(address, request, rate, seconds, connections)
        service = (processor_seconds() - began) / found.seconds
        loads.append({"service": service, "sender": found.processor_seconds / found.seconds})
        return found

    def capacity() -> float:
        seconds = max(5.0, arguments.seconds)
        return served(load(patient, ALWAYS, seconds, few).outcomes, seconds)

    capacity()  # to warm up
    before, memory = capacity(), resident_of_processes()
    rate = arguments.times * before
    # Connections have buffers of their own; flat is what does not grow once all are open.
    quarter: list[int] = []
    timer = threading.Timer(arguments.overload / 4, lambda: quarter.append(resident_of_processes()))
    timer.start()
    found = load(hasty, rate, arguments.overload, arguments.connections)
    timer.join()
    grown = {"buffers": quarter[0] - memory, "later": resident_of_processes() - quarter[0]}
    after = capacity()
    outcomes = found.outcomes
    refused = [o for o in outcomes if o.status == HTTPStatus.SERVICE_UNAVAILABLE]
    statuses = Counter(o.status for o in outcomes)
    return {
        "capacity_before": before,
        "capacity_after": after,
        "processors": dict(zip(("capacity_before", "overload", "capacity_after"), loads[1:], strict=True)),
        "offered": rate,
        "served": served(outcomes, arguments.overload),
        "share": served(outcomes, arguments.overload) / statistics.mean((before, after)),
        "statuses": dict(sorted(statuses.items())),
        "unsent": found.unsent,
        "late": sum(o.seconds > arguments.timeout for o in outcomes),
        "answered_ms": percentiles([o.seconds for o in outcomes if o.status == HTTPStatus.OK]),
        "refused_ms": percentiles([o.seconds for o in refused]),
        "sender_late_ms": percentiles([o.late for o in outcomes]),
        "without_retry_after": sum(o.retry_after is None for o in refused),
        "held_ms": held_ms(url),
        "grown_bytes": grown,
    }


def served(outcomes: Sequence[http_load.Outcome], seconds: float) -> float:
    """Inferences per second that were answered while the load lasted."""
    return sum(o.status == HTTPStatus.OK and o.at + o.seconds <= seconds for o in outcomes) / seconds


def percentiles(seconds: Sequence[float]) -> list[float]:
    """50th, 99th and 100th, in ms."""
    return [float(value) * 1e3 for value in np.percentile(seconds, (50, 99, 100))] if seconds else []


def resident_of_processes() -> int:
    """Resident bytes of the service: all processes that this one has started."""
    return sum(child.memory_info().rss for child in psutil.Process().children(recursive=True))


def processor_seconds() -> float:
    """Processor time of the processes of the service so far."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return float(sum(found.user + found.system for found in times))


def overload_table(row: dict[str, Any]) -> Table:
    """The figures of an overload, with what they are to be."""
    table = Table("", "measured", "wanted", title=f"{row['model']}, {row['offered']:.0f} requests/s offered")
    capacity = f"{row['capacity_before']:.1f}/s before, {row['capacity_after']:.1f}/s after"
    figures = [
        [f"{value:.0f}" for value in row[name]] for name in ("answered_ms", "refused_ms", "sender_late_ms")
    ]
    used, grown = row["processors"], row["grown_bytes"]
    told = [f"{used[load]['service']:.2f} and {used[load]['sender']:.2f}" for load in used]
    for line in (
        ("capacity", capacity, ""),
        ("cores used by the service and the sender", f"{told[0]} at the capacity, {told[1]}", ""),
        ("served", f"{row['served']:.1f}/s, {row['share']:.1%}", "at least 95 %"),
        ("answers by status", str(row["statuses"]), "200 and 503"),
        ("answers later than their deadline", str(row["late"]), "0"),
        ("answered, p50, p99, most", " ".join(figures[0]) + " ms", ""),
        ("refused, p50, p99, most", " ".join(figures[1]) + " ms", ""),
        ("refused without Retry-After", str(row["without_retry_after"]), "0"),
        ("not sent: no connection was free", str(row["unsent"]), ""),
        ("sent late, p50, p99, most", " ".join(figures[2]) + " ms", ""),
        ("held for a batch while an instance was free, p99", f"at most {row['held_ms']:g} ms", "its delay"),
        ("resident memory grown in the first quarter of the load", f"{grown['buffers'] / 2**20:.0f} MiB", ""),
        ("resident memory grown after it", f"{grown['later'] / 2**20:.0f} MiB", "flat"),
    ):
        table.add_row(*line)
    return table


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of calls one after the other."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def mean_ms(url: str, part: str) -> float:
    """Mean of a duration of all inferences so far, as the service counts it."""
    found = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        name, _, rest = line.partition("{")
        found[name] = float(rest.rpartition(" ")[2]) if rest else 0.0
    family = f"stowplan_inference{part}_seconds"
    return found[f"{family}_sum"] / found[f"{family}_count"] * 1e3


def held_ms(url: str) -> float:
    """Upper bound, of those that the service counts by, of 99 % of the times that requests were held."""
    counts: dict[float, float] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("stowplan_inference_held_seconds_bucket"):
            bound = float(line.partition('le="')[2].partition('"')[0])
            counts[bound] = float(line.rpartition(" ")[2])
    return min(bound for bound, count in counts.items() if count >= 0.99 * max(counts.values())) * 1e3


class Caller:
    """One client, and its tensors as binary data both ways."""

    def __init__(self, url: str, inputs: dict[str, Array]) -> None:
        import tritonclient.http as triton
        from tritonclient.utils import np_to_triton_dtype

        self._client = triton.InferenceServerClient(url.removeprefix("http://"))
        self._inputs = []
        for name, array in inputs.items():
            self._inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            self._inputs[-1].set_data_from_numpy(array, binary_data=True)

    def __call__(self) -> None:
        """One inference; outputs come as binary data unless they are asked for otherwise."""
        self._client.infer(NAME, self._inputs)


def back_to_back(call: Any, seconds: float) -> float:
    """Calls per second."""
    call()
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        call()
        count += 1
    return count / (time.perf_counter() - began)


def clients(url: str, inputs: dict[str, Array], number: int, seconds: float) -> float:
    """Inferences per second of several processes at once."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(number)
    with context.Pool(number, _prepare, (url, inputs, barrier)) as pool:
        return float(sum(pool.map(_call, [seconds] * number, chunksize=1)))


def _prepare(url: str, inputs: dict[str, Array], barrier: Any) -> None:
    global _CALLER, _BARRIER
    _CALLER, _BARRIER = Caller(url, inputs), barrier


def _call(seconds: float) -> float:
    _CALLER()
    _BARRIER.wait()
    return back_to_back(_CALLER, seconds)


def table_of(row: dict[str, Any]) -> Table:
    """The figures, with what they are to be."""
    threads = f"{row['threads']} thread" + "s" * (row["threads"] > 1)
    table = Table("", "served", "bare executor", "", "wanted", title=f"{row['model']}, {threads}")
    table.add_row(
        "one client, p50",
        f"{row['served_ms']:.2f} ms",
        f"{row['bare_ms']:.2f} ms",
        f"{row['overhead_ms']:+.2f} ms",
        "at most +1.5 ms",
    )
    for part, told in (("", "seen by the API"), ("_wait", "in the queue"), ("_run", "in the executor")):
        table.add_row(f"  of it {told}, mean", f"{row['mean_ms_in_service'][part]:.2f} ms", "", "", "")
    table.add_row(
        f"{row['clients']} clients, throughput",
        f"{row['served_per_second']:.2f}/s",
        f"{row['bare_per_second']:.2f}/s",
        f"{row['share']:.1%}",
        "at least 95 %",
    )
    return table


if __name__ == "__main__":
    main()
