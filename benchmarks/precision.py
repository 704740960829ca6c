"""`make bench-precision`: models under an error budget, beside quantizers of onnxruntime.

Each model is quantized by a job's own search and by onnxruntime's static and dynamic quantizers, calibrated
on the same samples; all that comes of it, and float32, is timed in turns in one process and compared with
float32 on other samples, which neither saw. Samples are recorded inputs, scaled and with noise, where there
are any, else normal. A quantizer that fails, or is not installed, is listed with the reason.
"""

import argparse
import json
import math
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import quantization
from rich.console import Console
from rich.table import Table

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.precision.budgeted import budgeted
from app.engine.planning.precision.metrics import worst
from app.engine.planning.precision.seconds import accepted
from app.engine.report.onnx import export
from app.engine.runtime.benchmark import measure_in_turn, pinned
from app.engine.runtime.oracle import Run, runtime
from app.engine.types.options import Bindings, ErrorMetric, Options
from app.engine.types.target import find, host, with_backends
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.peers import openvino_peer

Array = np.ndarray[Any, Any]
Sample = dict[str, Array]
Json = dict[str, Any]

MODELS = (
    "squeezenet",
    "resnet50",
    "mobilenetv2",
    "efficientnet_b0",
    "ppocrv4_det",
    "ppocrv4_rec",
    "ultraface_rfb320",
    "silero_vad_v6",
    "minilm_l6",
    "bert_base",
    "gpt2_decode",
)
GIVEN, OTHERS = 32, 16  # samples of a search, and those that errors are told of
OWN = ("numba-cpu", "reference")
FLOAT32, BUDGET = "stowplan f32", "stowplan budget"


def main() -> None:
    """Measure the models; print a table, and write rows where `--json` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--budget", type=float, default=0.01)
    parser.add_argument("--metric", choices=("max", "cosine", "top1"), default="max")
    parser.add_argument(
        "--target", default="host", help="whose instructions own kernels use, such as cpu-avx2"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each runtime")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console, rows = Console(width=150), []
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as scratch:
            found = models.find(name, models.FOLDERS, Path(scratch))
            if found.path is None:
                console.print(f"{name}: {found.reason}")
                continue
            rows.append(measured(name, found.path, arguments, Path(scratch)))
            console.print(table(rows[-1]))
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))


def measured(name: str, path: Path, arguments: argparse.Namespace, scratch: Path) -> Json:
    """The row of a model: by what computes it, seconds and errors; and what the search told."""
    given, others, bindings = samples(path)
    np.savez(scratch / "samples.npz", **{k: np.stack([s[k] for s in given]) for k in given[0]})  # type: ignore[arg-type]  # by name
    options = Options(
        error_budget=arguments.budget,
        error_metric=arguments.metric,
        threads=arguments.threads,
        backends=OWN,
        choose="first",
    )
    machine = host() if arguments.target == "host" else instructions(arguments.target)
    target, compiler = (
        with_backends(machine, OWN),
        Compiler(Settings.from_environment().data.absolute() / "kernels"),
    )
    bindings = replace(bindings, samples=str(scratch / "samples.npz"))
    found = budgeted(path, {}, target, options, bindings, scratch, compiler, lambda *_: None)
    plain = scratch / "float32.onnx"
    export(canonical(path, target, options, bindings), plain)
    bound = {k: np.asarray(v) for k, v in bindings.values.items()}
    runs: dict[str, Run | str] = {}
    with ExitStack() as stack:
        for label, file, own in ((FLOAT32, plain, options), (BUDGET, found.path or plain, found.options)):
            compilation = session.canonical(load(file), target, own, bindings, load_registry())
            program = session.planned(session.measured(compilation, own, compiler), own)
            executor = stack.enter_context(closing(session.bound(program, compiler)))
            runs[label] = partial(run_free, executor)
        runs |= peers(plain, found.path, given, scratch, arguments.threads)
        with pinned(arguments.threads):
            row = {
                "model": name,
                "budget": arguments.budget,
                "told": found.report["chosen"],
                "reason": found.report["reason"],
                "found": dict(figures(runs, others, arguments, bound)),
            }
    return row


def run_free(executor: session.Running, inputs: Mapping[str, object]) -> dict[str, object]:
    """A run of a program on the inputs that it has: those that are bound are none."""
    return executor.run(accepted(executor.program, inputs))


def instructions(name: str) -> Any:
    """This machine with the instructions of a preset, whose kernels it must be able to run."""
    preset = find(name)
    return replace(host(), isa=preset.isa, vector_lanes=preset.vector_lanes)


def canonical(path: Path, target: Any, options: Options, bindings: Bindings) -> Any:
    """The canonical graph of a file."""
    kept: list[Any] = []
    session.canonical(
        load(path), target, options, bindings, load_registry(), before_rewrites=lambda m: kept.append(m)
    )
    return kept[0]


def samples(path: Path) -> tuple[list[Sample], list[Sample], Bindings]:
    """Samples for the search, others, and bindings of the model."""
    random = np.random.default_rng(0)
    recorded = path.with_name(f"{path.stem}.io.npz")
    if recorded.exists():
        inputs = models.recorded(path.parent, path.stem)[0][0]
        bindings = models.bindings_of(inputs)
    else:
        model = load(path).model
        inputs, bindings = {}, Bindings()
        for value in model.graph.inputs:
            shape = tuple(d if isinstance(d, int) else 1 for d in value.shape or ())
            inputs[value.name or ""] = random.standard_normal(shape).astype(np.float32)
        bindings = Bindings(shapes={k: v.shape for k, v in inputs.items()})
    free = {k: v for k, v in inputs.items() if k not in bindings.values}
    drawn = [
        {k: varied(v, random, recorded.exists()) for k, v in free.items()} for _ in range(GIVEN + OTHERS)
    ]
    return drawn[:GIVEN], drawn[GIVEN:], bindings


def varied(x: Array, random: np.random.Generator, recorded: bool) -> Array:
    """Another sample: a recorded one scaled and with noise, or a normal one; integers in another order."""
    if x.dtype.kind != "f":
        return random.permutation(x.reshape(-1)).reshape(x.shape) if x.dtype.kind in "iu" else x
    if not recorded:
        return random.standard_normal(x.shape).astype(x.dtype)
    noise = 0.05 * np.abs(x).mean() * random.standard_normal(x.shape)
    return (x * random.uniform(0.7, 1.3) + noise).astype(x.dtype)


def peers(
    plain: Path, own: Path | None, given: Sequence[Sample], scratch: Path, threads: int
) -> dict[str, Run | str]:
    """Other runtimes on float32, on what quantizers of onnxruntime make of it, and on our quantized file."""
    makers: dict[str, Callable[[], Run]] = {
        "onnxruntime f32": lambda: runtime(plain, threads=threads, optimized=True),
        "onnxruntime static": lambda: runtime(static(plain, given, scratch), threads=threads, optimized=True),
        "onnxruntime dynamic": lambda: runtime(dynamic(plain, scratch), threads=threads, optimized=True),
        "openvino f32": lambda: openvino_peer(plain, threads, precision="f32").run,
    }
    if own is not None:
        makers["onnxruntime on our file"] = lambda: runtime(own, threads=threads, optimized=True)
        makers["openvino on our file"] = lambda: openvino_peer(own, threads, precision="f32").run
    found: dict[str, Run | str] = {"openvino nncf": "nncf is not among the project's packages"}
    for label, make in makers.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[label] = make()
        except Exception as cause:  # whatever a runtime or quantizer raises is its row
            found[label] = f"{type(cause).__name__}: {str(cause).splitlines()[0][:200] if str(cause) else ''}"
    return found


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped
    """Samples, one after the other."""

    def __init__(self, given: Sequence[Sample]) -> None:
        self._left: Iterator[Sample] = iter(given)

    def get_next(self) -> Sample | None:
        """The next sample; None at the end."""
        return next(self._left, None)


def static(plain: Path, given: Sequence[Sample], scratch: Path) -> Path:
    """What onnxruntime's static quantizer makes: per channel, uint8 by int8, all samples."""
    path = scratch / "static.onnx"
    quantization.quantize_static(
        str(plain),
        str(path),
        Reader(given),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    return path


def dynamic(plain: Path, scratch: Path) -> Path:
    """What onnxruntime's dynamic quantizer makes, per channel."""
    path = scratch / "dynamic.onnx"
    kinds = ["MatMul", "Gemm", "Attention", "LSTM"]  # its ConvInteger is slower than float32
    quantization.quantize_dynamic(str(plain), str(path), per_channel=True, op_types_to_quantize=kinds)
    return path


def figures(
    runs: Mapping[str, Run | str],
    others: Sequence[Sample],
    arguments: argparse.Namespace,
    bound: Mapping[str, Array],
) -> Iterator[tuple[str, Json]]:
    """Error on other samples and median seconds of each, taking turns."""
    able = {label: run for label, run in runs.items() if not isinstance(run, str)}
    fed = [{**bound, **sample} for sample in others]
    exact = [copies(able["onnxruntime f32"](sample)) for sample in fed]
    metric: ErrorMetric = arguments.metric
    taken = measure_in_turn(
        [lambda run=run: run(fed[0]) for run in able.values()],  # type: ignore[misc]  # a default of the lambda
        arguments.seconds,
    )
    for (label, run), times in zip(able.items(), taken, strict=True):
        error = worst(metric, exact, [copies(run(sample)) for sample in fed])
        yield (
            label,
            {"seconds": statistics.median(times.seconds), "error": error if math.isfinite(error) else None},
        )
    for label, reason in runs.items():
        if isinstance(reason, str):
            yield label, {"reason": reason}


def copies(outputs: Mapping[str, object]) -> dict[str, object]:
    """Outputs apart from the memory that the next run writes."""
    return {name: np.array(array) for name, array in outputs.items()}


def table(row: Json) -> Table:
    """A row for people."""
    told = row["told"]
    title = f"{row['model']}: " + (
        f"{told['nodes']}, error told {told['error']:.2e}" if told else f"float32: {row['reason']}"
    )
    found = Table(title=title)
    for heading in ("what", "ms", "times as fast as stowplan f32", "error on other samples"):
        found.add_column(heading)
    base = row["found"][FLOAT32]["seconds"]
    for label, figure in row["found"].items():
        if "reason" in figure:
            found.add_row(label, "", "", figure["reason"])
        else:
            error = "none" if figure["error"] is None else f"{figure['error']:.2e}"
            found.add_row(label, f"{figure['seconds'] * 1e3:.3f}", f"{base / figure['seconds']:.2f}", error)
    return found


if __name__ == "__main__":
    main()
