"""`make bench-capacity`: what `stowplan capacity` chooses, beside what it promises and beside peers.

For each model: how long the answer took; requests per second back to back of one stream (one instance of
one thread), of the chosen configuration, of OpenVINO's throughput hint and of onnxruntime with its best of
threads and sessions, all in turns on the same cores; and a load of random moments at the rate of the answer,
whose throughput and percentiles are compared with the predicted ones. The bound is a multiple of one run.

With `--http` a service of its own answers instead: the capacity is that of a client over HTTP, and the load
comes from a process over HTTP to the deployment that was chosen.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from app.client import Client
from app.engine.entry.capacity import SIZES, capacity
from app.engine.entry.served_model import ServedModel, stacked
from app.engine.planning.capacity import load
from app.engine.planning.capacity.configuration import Configuration, cores_of, steps
from app.engine.planning.capacity.queueing import arrivals
from app.engine.runtime.cpu.memory import placed
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings, Options
from app.settings import Settings
from benchmarks import http_load, models, serving
from benchmarks.row import recorded_inputs
from benchmarks.serving import ranges_of

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
MODELS = ("resnet50", "minilm_l6", "ppocrv4_det", "mobilenetv2")
ROUNDS = 3
_CONNECTIONS = 64  # of a load over HTTP
_PART = 5.0  # seconds of a part of the load whose percentile is told by itself


@dataclass(frozen=True, slots=True)
class Case:
    """A model with the inputs of one request.

    Attributes:
        fixed: inputs whose values are known when it is planned.
    """

    path: Path
    inputs: Mapping[str, Array]
    fixed: Mapping[str, Any]
    kernels: Path
    weights: Path

    @property
    def bindings(self) -> Bindings:
        """Answer that a job would get."""
        shapes = {name: array.shape for name, array in self.inputs.items()}
        ranges = {name: (first, end) for name, (first, end) in ranges_of(self.inputs).items()}
        return Bindings(shapes=shapes, values=dict(self.fixed), ranges=ranges)

    @property
    def fed(self) -> dict[str, Array]:
        """Inputs of a request, on cache lines as in the process of a deployment."""
        return {k: placed(v) for k, v in self.inputs.items() if k not in self.fixed}

    def model(self, threads: int, *, tune: bool) -> ServedModel:
        """The model for programs of so many threads."""
        files: Json = {"kernels": self.kernels, "weights": self.weights}
        return ServedModel(self.path, Options(threads=threads), self.bindings, tune=tune, **files)

    def instances(self, way: Configuration) -> list[load.Instance]:
        """The instances of a configuration, as a deployment has them."""
        model = self.model(way.threads, tune=way.threads == 1)
        shapes = {k: v.shape for k, v in self.fed.items()}
        cores = cores_of(way.instances, way.threads)
        programs = {
            size: model.programs(shapes if size == 1 else stacked(shapes, size), cores) for size in way.sizes
        }
        return [
            load.Instance({size: found[i] for size, found in programs.items()}, self.fed, cores[i])
            for i in range(way.instances)
        ]


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.capacity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=MODELS, help="names, or paths of ONNX files")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the load")
    parser.add_argument("--bound", type=float, default=5.0, help="of the 99th percentile, in runs")
    parser.add_argument("--without", choices=("load", "throughput"), help="leave this part out")
    parser.add_argument("--turn", type=float, default=2.0, help="seconds of each runtime in a round")
    parser.add_argument("--http", action="store_true", help="capacity of a service, and load over HTTP")
    parser.add_argument("--prepare", action="store_true", help="only tune and compile what is measured later")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    kernels = Settings.from_environment().data.absolute() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    console, rows = Console(width=150), []
    for name in arguments.names:
        with tempfile.TemporaryDirectory() as scratch:
            found = models.find(name, arguments.models, Path(scratch))
            inputs = None if found.path is None else recorded_inputs(found.path)
            if found.path is None or inputs is None:
                console.print(f"{name}: {found.reason or 'no recorded inputs'}", markup=False)
                continue
            fixed = models.bindings_of(inputs).values
            case = Case(found.path, inputs, fixed, kernels, Path(scratch) / "weights")
            run = prepare(case)
            if arguments.http:
                rows.append({"model": found.name, **over_http(case, run, Path(scratch), arguments)})
                console.print(table_of(rows[-1]))
            elif not arguments.prepare:
                rows.append({"model": found.name, **measured(case, run, Path(scratch), arguments)})
                console.print(table_of(rows[-1]))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def prepare(case: Case) -> float:
    """Tune the program of one request as a job does, and compile kernels of others; seconds of a run."""
    shapes = {k: v.shape for k, v in case.fed.items()}
    for threads in steps(cores_here()):
        model = case.model(threads, tune=threads == 1)
        with closing(model.program(shapes)) as program:
            program.run(case.fed)
            began = time.perf_counter()
            program.run(case.fed)
            if threads == 1:
                seconds = time.perf_counter() - began
    for size in SIZES[1:]:
        try:
            case.model(1, tune=False).rows_of_outputs(shapes, size)
        except EngineError:
            break
        case.model(1, tune=False).program(stacked(shapes, size)).close()
    return seconds


def cores_here() -> int:
    """Cores of this process."""
    return len(cores_of(1 << 10, 1)) and len({core for (core,) in cores_of(1 << 10, 1)})


def measured(case: Case, run: float, scratch: Path, arguments: argparse.Namespace) -> Json:
    """All figures of a model."""
    request = {"percentile": 99.0, "seconds": arguments.bound * run, "memory_bytes": None}
    began = time.monotonic()
    answer = capacity(
        *(case.path, Options(threads=1), case.bindings, request | {"answer_seconds": 15.0}, scratch),
        kernels=case.kernels,
        external={},
        progress=lambda _phase, _done, _total: None,
    )
    row: Json = {
        "bound_ms": request["seconds"] * 1e3,
        "answer_seconds": time.monotonic() - began,
        "answer": answer,
    }
    if answer["chosen"] is None:
        return row
    told = answer["chosen"]["deployment"]
    way = Configuration(
        told["instances"],
        told["threads"],
        (1, *told["batch_sizes"]),
        told["batch_delay_ms"] * 1e-3,
    )
    instances = case.instances(way)
    if arguments.without != "load":
        row["load"] = loaded(answer["chosen"], way, instances, arguments.seconds)
    if arguments.without != "throughput":
        row["throughput"] = throughputs(case, way, instances, scratch, arguments.turn)
    return row


def over_http(case: Case, run: float, scratch: Path, arguments: argparse.Namespace) -> Json:
    """Capacity that a service answers with, and a load over HTTP on the deployment that it chose."""
    bound = {"percentile": 99.0, "seconds": arguments.bound * run}
    with serving.service(scratch, case.kernels) as url:
        serving.await_service(url)
        with Client(url) as client:
            job = serving.optimized(client, case.path, dict(case.inputs), 1)
            client.capacity(job, latency=bound, over_http=True)  # the first one measures what HTTP costs
            began = time.monotonic()
            answer = client.capacity(job, latency=bound, over_http=True)
            took = time.monotonic() - began
            row: Json = {"bound_ms": bound["seconds"] * 1e3, "answer_seconds": took, "answer": answer}
            if (chosen := answer["chosen"]) is None:
                return row
            serving.deploy_job(client, job, **chosen["deployment"])
        request = http_load.request_of(serving.NAME, case.fed)
        for seconds in (1.0, arguments.seconds):  # to warm up, and the load
            found = http_load.offered(
                serving.address_of(url), request, chosen["rate"], seconds, _CONNECTIONS
            ).outcomes
    latencies = np.array([outcome.seconds for outcome in found])
    parts = np.array_split(latencies[np.argsort([o.at for o in found])], max(1, round(seconds / _PART)))
    served = sum(outcome.status == HTTPStatus.OK for outcome in found)
    row["load"] = {
        "p99 of parts": [float(np.percentile(part, 99)) for part in parts],
        "rate": chosen["rate"],
        "throughput": served / max(outcome.at + outcome.seconds for outcome in found),
        "p50": float(np.percentile(latencies, 50)),
        "p99": float(np.percentile(latencies, 99)),
    }
    return row


def throughputs(
    case: Case, way: Configuration, instances: Sequence[load.Instance], scratch: Path, seconds: float
) -> dict[str, float]:
    """Requests per second of the configuration, of one stream and of peers: medians of rounds in turn."""
    file = scratch / "specialized.onnx"
    models.specialize(case.path, dict(case.inputs), case.fixed, file)
    (single,) = case.instances(Configuration(1, 1))

    def ours() -> float:
        samples = load.back_to_back(instances, way.largest, seconds)
        return float(len(instances) * way.largest / samples.mean())

    works: dict[str, Callable[[], float]] = {
        "one stream": lambda: float(1.0 / load.back_to_back([single], 1, seconds).mean()),
        "chosen": ours,
        "openvino, throughput": openvino_of(file, case.fed, seconds),
    }
    cores = cores_here()
    for sessions, threads, callers in ((1, cores, 1), (cores, 1, cores), (1, 1, cores)):
        name = f"onnxruntime, {sessions} sessions of {threads} threads, {callers} callers"
        works[name] = onnxruntime_of(file, case.fed, (sessions, threads, callers), seconds)
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            found[name].append(work())
    return {name: float(np.median(values)) for name, values in found.items()}


def openvino_of(file: Path, inputs: Mapping[str, Array], seconds: float) -> Callable[[], float]:
    """OpenVINO with as many requests at once as its throughput hint wants, in float32."""
    import openvino

    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(file, "CPU", hints)
    queue = openvino.AsyncInferQueue(compiled)

    def work() -> float:
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            queue.start_async(inputs)
            count += 1
        queue.wait_all()
        return count / (time.perf_counter() - began)

    return work


def onnxruntime_of(
    file: Path, inputs: Mapping[str, Array], way: tuple[int, int, int], seconds: float
) -> Callable[[], float]:
    """Onnxruntime with so many sessions, threads of each, and callers at once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = way[1]
    sessions = [onnxruntime.InferenceSession(file, options) for _ in range(way[0])]

    def calls(index: int) -> int:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            sessions[index % len(sessions)].run(None, inputs)
            count += 1
        return count

    def work() -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(way[2]) as pool:
            count = sum(pool.map(calls, range(way[2])))
        return count / (time.perf_counter() - began)

    return work


def loaded(chosen: Json, way: Configuration, instances: Sequence[load.Instance], seconds: float) -> Json:
    """A long load at the rate of the answer, beside its prediction."""
    moments = arrivals(chosen["rate"], round(chosen["rate"] * seconds))
    offered = load.offered(instances, moments, way)
    found, runs = offered.seconds, np.concatenate(list(offered.runs.values()))
    parts = np.array_split(found, max(1, round(seconds / _PART)))
    return {
        "run": float(runs.mean()),
        "p99 of parts": [float(np.percentile(part, 99)) for part in parts],
        "rate": chosen["rate"],
        "throughput": len(moments) / float((moments + found).max()),
        "p50": float(np.percentile(found, 50)),
        "p99": float(np.percentile(found, 99)),
    }


def table_of(row: Json) -> Table:
    """The figures of a model, with what they are to be."""
    table = Table("", "measured", "wanted", title=f"{row['model']}, p99 at most {row['bound_ms']:.1f} ms")
    table.add_row("answered in", f"{row['answer_seconds']:.1f} s", "15 s")
    if (chosen := row["answer"]["chosen"]) is None:
        table.add_row("chosen", "none", "")
        return table
    table.add_row("chosen", str(chosen["deployment"]), "")
    rates = row.get("throughput", {})
    for name, value in rates.items():
        wanted = "chosen at least 1.9 times" if name == "one stream" else ""
        wanted = "chosen at least 1.3 times the best" if name.startswith(("open", "onnx")) else wanted
        table.add_row(name, f"{value:.1f}/s, chosen {rates['chosen'] / value:.2f} times", wanted)
    if found := row.get("load"):
        predicted = chosen["predicted"]
        pairs = (
            ("throughput", predicted["throughput"], found["throughput"], "/s", 1.0),
            ("p50", predicted["latency"]["p50"], found["p50"], " ms", 1e3),
            ("p99", predicted["latency"]["p99"], found["p99"], " ms", 1e3),
        )
        for name, told, value, unit, scale in pairs:
            shown = f"{told * scale:.2f}{unit} predicted, {value * scale:.2f}{unit} in the load"
            table.add_row(name, f"{shown}, {value / told - 1:+.1%}", "within 10 %")
    return table


if __name__ == "__main__":
    main()
