"""`stowplan optimize`: upload a model, watch its job, show what came of it."""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.cli import service
from app.client import Client, Job

_REPEATABLE = (
    ("--input", "NAME=1x3x224x224", "shape of an input"),
    ("--shape-histogram", "N=1,L=128:0.9", "expected sizes of the symbols of inputs, and their weight"),
    ("--value", "NAME=16000", "value of a scalar input"),
    ("--range", "NAME=0:30522", "range of random integers"),
    ("--storage", "NAME=csr:0.01", "sparse input and the most that it holds, a number or a share below 1"),
    ("--value-storage", "NAME=csr:0.01", "the same of a value that a node makes"),
    ("--tensor", "NAME=file.npy", "tensor for an input, whose shape it binds"),
    (
        "--external",
        "LOCATION=file",
        "external data, or parameters of a symbol (default: the files beside the model)",
    ),
    ("--label", "NAME=VALUE", "label of the job"),
)
_ENTRIES = {"csr": "nnz", "row_sparse": "rows"}  # what a bound of a sparse input counts
# Options of a request that have the value of the argument of their name.
_OPTIONS = (
    "threads",
    "tolerance",
    "precision",
    "prefer",
    "semantics",
    "choose",
    "memory_budget",
    "opset",
    "error_budget",
    "error_metric",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model or a sample, a target, and what is known of the inputs."""
    add_request_arguments(parser)
    parser.add_argument(
        "--target", default="host", help="name of a target (default: host, the service's machine)"
    )
    parser.add_argument("--out", type=Path, help="folder for the artifacts (default: stowplan-<model>)")


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments for the model, its inputs and the options."""
    parser.add_argument("model", nargs="?", type=Path, help="ONNX file")
    parser.add_argument("--sample", help="instead of a file: a model built on the spot, such as squeezenet")
    add_repeatable_arguments(parser)
    parser.add_argument("--name", help="what to call the model (default: the file's name)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the executor (default: 1)")
    parser.add_argument(
        "--tolerance", type=float, help="largest difference, as a fraction of an output's maximum"
    )
    parser.add_argument(
        "--precision", choices=("f32", "tf32", "bf16", "fp16", "auto"), help="of arithmetic (default: f32)"
    )
    parser.add_argument(
        "--error-budget",
        type=share,
        metavar="1%",
        help="choose each product's precision, 8 and 4 bits among them, within this error of outputs",
    )
    parser.add_argument(
        "--error-metric",
        choices=("max", "cosine", "top1"),
        help="how it is counted: of an output's maximum, 1 - cosine, rows with another largest element",
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="calib.npz",
        help="samples for --error-budget: an array [samples, ...shape] for each input (default: random ones)",
    )
    parser.add_argument(
        "--no-fast-algorithms",
        action="store_true",
        help="without Winograd's and Strassen's algorithms and fixed point",
    )
    parser.add_argument("--prefer", choices=("latency", "memory"), help="what to plan for (default: latency)")
    parser.add_argument(
        "--quick", action="store_true", help="measure nothing: the plan by predicted times alone"
    )
    parser.add_argument("--pareto", action="store_true", help="also report plans with less memory or time")
    parser.add_argument(
        "--semantics", choices=("stowplan", "mxnet-1.9"), help="of storage types (default: stowplan)"
    )
    add_backend_arguments(parser)
    parser.add_argument("--memory-budget", type=int, metavar="BYTES", help="bytes that activations may take")
    parser.add_argument("--opset", type=int, help="of optimized.onnx (default: that of the plan)")
    parser.add_argument(
        "--external-data", action="store_true", help="weights of optimized.onnx go to a file beside it"
    )
    parser.add_argument(
        "--export",
        type=names,
        default=[],
        metavar="c,wheel,ort,static",
        help="libraries of the program for its target: for C, a Python module, an operator of onnxruntime, "
        "a device without an operating system",
    )
    parser.add_argument("--fresh", action="store_true", help="run even when an equal job has its result")
    service.add_arguments(parser)


def add_repeatable_arguments(parser: argparse.ArgumentParser, *flags: str) -> None:
    """Arguments that name inputs, files and labels; all of them, or those with these flags."""
    for flag, metavar, told in _REPEATABLE:
        if flag in flags or not flags:
            parser.add_argument(
                flag, action="append", default=[], metavar=metavar, help=f"{told}; repeatable"
            )


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """Which backends may run the model, and how they are chosen."""
    parser.add_argument(
        "--backends",
        type=names,
        default=[],
        metavar="NAME,...",
        help="that may run the model, in order of preference, such as numba-cpu,onnxruntime,openvino; the "
        "reference evaluator comes last (default: the target's)",
    )
    parser.add_argument(
        "--choose",
        choices=("auto", "first", "measured"),
        help="how: the first backend that can, unless a library is faster on the whole model (auto); the "
        "first; or sub-graph by sub-graph, by measurement (default: auto)",
    )


def share(text: str) -> float:
    """A share such as 0.01 or 1%."""
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 such as 0.01 or 1%, found {text!r}")
    return found


def names(text: str) -> list[str]:
    """The names in a list with commas."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, found {text!r}")
    return found


@service.asking
def run(client: Client, arguments: argparse.Namespace) -> int:
    """Exit codes as `app.cli.service` has them."""
    from rich.console import Console

    console = Console(stderr=arguments.json, emoji=False)
    body = request(arguments)
    model_id, name = upload(client, arguments)
    body |= put_files(client, arguments)
    job = client.submit(model_id, target=arguments.target, **body)
    console.print(f"Job {job.id}", highlight=False, soft_wrap=True)
    try:
        job = _watch(client, job, console)
    except KeyboardInterrupt:
        return service.left_behind("job", job.id, [job.id], arguments)
    folder = arguments.out or Path(f"stowplan-{name}")
    code = _show(client, job, folder, console)
    if arguments.json:
        service.print_json(asdict(job) | {"folder": str(folder) if code == service.DONE else None})
    return code


def put_files(client: Client, arguments: argparse.Namespace) -> dict[str, Any]:
    """Upload tensors that are given for inputs, and samples; the parts of a request that name them."""
    tensors = {name: client.put_blob(path) for name, path in pairs(arguments.tensor, "tensor").items()}
    samples = {} if arguments.samples is None else {"samples": client.put_blob(arguments.samples)}
    return {"inputs": tensors, **samples}


def request(arguments: argparse.Namespace) -> dict[str, Any]:
    """The body of a request, but for the model, its targets and given tensors.

    Raises:
        ValueError: an argument cannot be understood.
    """
    if (arguments.model is None) == (arguments.sample is None):
        raise ValueError("give either an ONNX file or --sample")
    options = {name: value for name in _OPTIONS if (value := getattr(arguments, name)) is not None}
    if arguments.pareto:
        options["pareto"] = True
    if arguments.quick:
        options["quick"] = True
    if arguments.no_fast_algorithms:
        options["fast_algorithms"] = False
    if arguments.external_data:
        options["external_data"] = True
    if arguments.export:
        options["export"] = arguments.export
        options["export_name"] = arguments.sample or arguments.model.stem
    if arguments.backends:
        options["backends"] = arguments.backends
    return {
        "input_shapes": input_shapes(arguments.input),
        "shape_histogram": [expected_shape(text) for text in arguments.shape_histogram],
        "input_values": {k: number(k, v) for k, v in pairs(arguments.value, "value").items()},
        "input_ranges": {k: _range(k, v) for k, v in pairs(arguments.range, "range").items()},
        "input_storage": _storages(arguments.storage, "storage"),
        "value_storage": _storages(arguments.value_storage, "value-storage"),
        "options": options,
        "labels": pairs(arguments.label, "label"),
        "reuse": not arguments.fresh,
    }


def pairs(given: list[str], option: str) -> dict[str, str]:
    """NAME=TEXT; a name may hold '=' itself, so the last one divides."""
    found = {}
    for text in given:
        name, sign, value = text.rpartition("=")
        if not sign or not name:
            raise ValueError(f"--{option}: expected NAME=VALUE, found {text!r}")
        found[name] = value
    return found


def input_shapes(given: list[str]) -> dict[str, list[int | str]]:
    """Shapes of inputs, from texts such as x=1x3x224x224 or ids=N<=8,L<=512."""
    found = pairs([text.replace("<=", "\0") for text in given], "input")
    return {name: dims(name, text.replace("\0", "<=")) for name, text in found.items()}


def expected_shape(text: str) -> dict[str, object]:
    """Sizes of symbols and their weight, from a text such as N=1,L=128:0.9."""
    sizes, sign, weight = text.rpartition(":")
    try:
        given = pairs(sizes.split(","), "shape-histogram") if sign else {}
        return {"sizes": {name: int(size) for name, size in given.items()}, "weight": float(weight)}
    except ValueError:
        raise ValueError(f"--shape-histogram: expected N=1,L=128:0.9, found {text!r}") from None


def dims(name: str, text: str) -> list[int | str]:
    """Dimensions of an input, from text such as 1x3x224x224; symbols are set apart by commas."""
    if "," in text or re.fullmatch(r"(\d+\*)?[A-Za-z_]\w*((<=|:|\+|-).*)?", text):
        return [int(d) if d.strip().isdigit() else d.strip() for d in text.split(",")]
    try:
        return [int(d) for d in text.split("x")] if text else []
    except ValueError:
        raise ValueError(
            f"--input {name}: expected dimensions such as 1x3x224x224, found {text!r}; symbols are spelled "
            "1,3,H:32..640%32,W<=640"
        ) from None


def number(name: str, text: str) -> int | float | bool:
    """Value of a scalar input."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--value {name}: expected a number, true or false, found {text!r}") from None


def _range(name: str, text: str) -> list[int]:
    low, _, high = text.partition(":")
    try:
        return [int(low), int(high)]
    except ValueError:
        raise ValueError(f"--range {name}: expected LOW:HIGH, found {text!r}") from None


def _storages(given: list[str], option: str) -> dict[str, dict[str, str | int | float]]:
    return {name: _storage(name, text, option) for name, text in pairs(given, option).items()}


def _storage(name: str, text: str, option: str) -> dict[str, str | int | float]:
    kind, _, most = text.partition(":")
    try:
        bound = {"density": float(most)} if "." in most else {_ENTRIES[kind]: int(most)}
    except (KeyError, ValueError):
        raise ValueError(
            f"--{option} {name}: expected csr:ELEMENTS, row_sparse:ROWS or a share such as csr:0.01, "
            f"found {text!r}"
        ) from None
    return {"storage": kind, **bound}


def upload(client: Client, arguments: argparse.Namespace) -> tuple[str, str]:
    """The model's id and a name for its artifacts."""
    if arguments.model is not None:
        external: dict[str, Path | str] = {**beside(arguments.model)}
        external |= pairs(arguments.external, "external")
        return client.upload(arguments.model, external, name=arguments.name).id, arguments.model.stem
    from app.samples import SAMPLES, file_of

    if arguments.sample not in SAMPLES:
        raise ValueError(f"--sample: there are {', '.join(SAMPLES)}, found {arguments.sample!r}")
    with file_of(arguments.sample) as path:
        return client.upload(path, name=arguments.name).id, arguments.sample


def beside(model: Path) -> dict[str, Path]:
    """Files of external data that lie where a model says, in its folder or below; parameters of a symbol.

    One that is not there is left to the service, which says what is missing. None is taken from elsewhere,
    for a model may come from a stranger.
    """
    from app.engine.model.mxnet.symbol_file import is_symbol
    from app.jobs.worker import prescan

    folder, found = model.resolve().parent, {}
    locations = _parameters(model) if is_symbol(model) else prescan.scan_file(model).locations
    for location in locations:
        path = (folder / location).resolve()
        if path.is_relative_to(folder) and path.is_file() and path != model.resolve():
            found[location] = path
    return found


def _parameters(symbol: Path) -> list[str]:
    """Name of the file beside NAME-symbol.json: NAME-0000.params, NAME.params, or that of the only epoch."""
    name = symbol.name.removesuffix(".json").removesuffix("-symbol")
    for found in (f"{name}-0000.params", f"{name}.params"):
        if (symbol.parent / found).is_file():
            return [found]
    epochs = re.compile(re.escape(name) + r"-\d{4}\.params")
    found_epochs = [path.name for path in symbol.parent.iterdir() if epochs.fullmatch(path.name)]
    return found_epochs if len(found_epochs) == 1 else []


def _watch(client: Client, job: Job, console: Any) -> Job:
    """Follow a job's events with a bar per phase."""
    from app.cli.console import progress_bar

    with progress_bar(console) as bars:
        tasks: dict[str, Any] = {}
        waiting = bars.add_task(job.state, total=None)
        for event in client.events(job.id):
            if event.kind == "state":
                bars.update(waiting, description=event.data["state"])
                continue
            phase, done, total = event.data["phase"], event.data["done"], event.data["total"]
            if phase not in tasks:
                for task in tasks.values():
                    bars.update(task, completed=bars.tasks[task].total)
                    bars.stop_task(task)
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=max(total, 1))
        for task in tasks.values():
            bars.stop_task(task)
        bars.remove_task(waiting)
    return client.wait(job.id)


def download(client: Client, job: Job, folder: Path, artifacts: Sequence[str] | None = None) -> None:
    """Write artifacts of a job into a folder, all of them by default."""
    folder.mkdir(parents=True, exist_ok=True)
    exports = (job.summary or {}).get("exports", {})
    for name in job.artifacts if artifacts is None else artifacts:
        client.download(job.id, name, folder / _filename(exports.get(name, {}).get("filename", name)))


def _filename(told: object) -> str:
    """The name of a file, which comes from the process that parsed the model: no path of it counts."""
    return Path(str(told)).name


def add_export(parser: argparse.ArgumentParser) -> None:
    """A job and the libraries that it shall leave."""
    parser.add_argument("job", help="id of a job that has ended")
    parser.add_argument(
        "--format",
        type=names,
        required=True,
        metavar="c,wheel,ort,static",
        help="for C, a Python module, an operator of onnxruntime, a device without an operating system",
    )
    parser.add_argument("--name", help="of the library (default: the model's)")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the files (default: this one)")
    service.add_arguments(parser)


@service.asking
def export(client: Client, arguments: argparse.Namespace) -> int:
    """Exit code 0 when the libraries are written, 1 when the job failed."""
    model = client.job(arguments.job).model_name
    name = model.removesuffix(".onnx") if arguments.name is None else arguments.name
    job = client.wait(client.export(arguments.job, arguments.format, name=name).id)
    exports: dict[str, Any] = (job.summary or {}).get("exports") or {}
    made = [name for name in job.artifacts if name in exports]
    if job.state == "succeeded":
        download(client, job, arguments.out, made)
    if arguments.json:
        service.print_json(asdict(job))
    elif job.state == "succeeded":
        for artifact in made:
            print(arguments.out / _filename(exports[artifact]["filename"]))
    else:
        print(f"stowplan: job {job.id} {job.state}: {job.detail} [{job.code}]", file=sys.stderr)
    return service.DONE if job.state == "succeeded" else service.REFUSED


def _show(client: Client, job: Job, folder: Path, console: Any) -> int:
    from rich.markup import escape

    from app.cli.console import show_summary, table
    from app.engine.report.units import attempts

    if job.state != "succeeded" or job.summary is None:
        place = f" at {escape(job.pointer)}" if job.pointer else ""
        reason, tried = attempts(job.detail or "")
        console.print(f"[red]{job.state}[/] {job.code or ''}{place}:", escape(reason), highlight=False)
        if tried:
            console.print(table(("tried", "result"), tried))
        return 1
    if job.cached_from is not None:
        console.print(f"Answered by job {job.cached_from}, which asked the same; --fresh runs it again.")
    download(client, job, folder)
    show_summary(console, job.summary)
    console.print(f"Artifacts in [bold]{escape(str(folder))}[/]: {', '.join(job.artifacts)}")
    return 0
