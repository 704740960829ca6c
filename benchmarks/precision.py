"""`make bench-precision`: models under an error budget, beside quantizers of onnxruntime.

Each model is quantized by onnxruntime's static and dynamic quantizers and by a job's own search, calibrated
on the same samples. The search is under the budget, and under the errors of these quantizers where they are
larger, so that programs of equal or smaller error are compared. All that comes of it, and float32, is timed
in turns in one process and compared with float32 on other samples, which neither saw. Samples are recorded
inputs, scaled and with noise, where there are any, else normal. A quantizer that fails, or is not installed,
is listed with the reason.

What is quantized is kept in a folder: `--only search` makes it, which may run beside other work,
`--only time` measures what is there, when the machine is quiet.
"""

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
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
from app.engine.planning.precision.budgeted import QUANTIZED, under_budgets
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
    "swin_tiny",
    "gpt2_decode",
    "qwen2_decode",
)
GIVEN, OTHERS = 32, 16  # samples of a search, and those that errors are told of
OWN = ("numba-cpu", "reference")
FLOAT32 = "stowplan f32"
QUANTIZERS = ("static", "dynamic")  # of onnxruntime
LARGEST = 0.99  # budget: errors of quantizers reach a multiple of the output's maximum
FOLDER = models.ROOT / "build" / "precision"


def main() -> None:
    """Quantize and measure the models; print a table of each, and write rows where `--json` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--budget", type=float, default=0.01)
    parser.add_argument("--metric", choices=("max", "cosine", "top1"), default="max")
    parser.add_argument(
        "--target", default="host", help="whose instructions own kernels use, such as cpu-avx2"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each runtime")
    parser.add_argument("--only", choices=("search", "time"), help="one of the two parts")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of quantized models, a folder for each")
    parser.add_argument("--json", type=Path, help="file that a row is appended to for each model")
    arguments = parser.parse_args()
    console = Console(width=150)
    for name in arguments.models:
        kept = arguments.folder / Path(name).stem
        kept.mkdir(parents=True, exist_ok=True)
        found = models.find(name, models.FOLDERS, kept)
        if found.path is None:
            console.print(f"{name}: {found.reason}")
            continue
        case = Case(found.path, kept, arguments)
        if arguments.only != "time":
            search(case)
        if arguments.only != "search":
            row = {"model": name, **measured(case)}
            console.print(table(row))
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the folder of what is made of it, and what was asked for."""

    path: Path
    folder: Path
    arguments: argparse.Namespace

    @property
    def plain(self) -> Path:
        """The model in float32, canonical."""
        return self.folder / "float32.onnx"

    @property
    def document(self) -> Path:
        """File of what the quantizers and searches told."""
        return self.folder / "search.json"

    @property
    def options(self) -> Options:
        """Options of a job."""
        arguments = self.arguments
        return Options(
            error_budget=arguments.budget,
            error_metric=arguments.metric,
            threads=arguments.threads,
            backends=OWN,
            choose="first",
        )

    @property
    def target(self) -> Any:
        """The machine that programs are planned for."""
        name = self.arguments.target
        return with_backends(host() if name == "host" else instructions(name), OWN)


def kernels() -> Compiler:
    """Compiler with the cache of a worker."""
    return Compiler(Settings.from_environment().data.absolute() / "kernels")


def search(case: Case) -> None:
    """Quantize a model in all ways; errors of quantizers are those on the samples of the search."""
    given, _, bindings = samples(case.path)
    sampled = case.folder / "samples.npz"
    np.savez(sampled, **{k: np.stack([s[k] for s in given]) for k in given[0]})  # type: ignore[arg-type]  # by name
    export(canonical(case.path, case.target, case.options, bindings), case.plain)
    fed = [{**{k: np.asarray(v) for k, v in bindings.values.items()}, **sample} for sample in given[1::2]]
    errors = {k: quantizer_error(case, k, given, fed) for k in QUANTIZERS}
    larger = {min(e, LARGEST) for e in errors.values() if isinstance(e, float)}
    budgets = [case.arguments.budget, *sorted(e for e in larger if e > case.arguments.budget)]
    folders = {folder_of(case, budget): budget for budget in budgets}
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / QUANTIZED).unlink(missing_ok=True)
    bindings = replace(bindings, samples=str(sampled))
    choices = under_budgets(
        case.path, {}, case.target, case.options, bindings, folders, kernels(), lambda *_: None
    )
    found = [
        {
            "budget": budget,
            "precision": choice.options.precision,
            "exact": dict(choice.options.exact),
            "int16": dict(choice.options.int16),
            "told": choice.report["chosen"],
            "reason": choice.report["reason"],
        }
        for budget, choice in zip(budgets, choices, strict=True)
    ]
    case.document.write_text(json.dumps({"quantizers": errors, "choices": found}, indent=1))


def folder_of(case: Case, budget: float) -> Path:
    """Folder of the model under a budget."""
    return case.folder / f"budget-{budget:.4g}"


def quantizer_error(case: Case, kind: str, given: Sequence[Sample], fed: Sequence[Sample]) -> float | str:
    """Quantize by onnxruntime; the error in onnxruntime, or the reason why there is none."""
    path = case.folder / f"{kind}.onnx"
    path.unlink(missing_ok=True)
    threads = case.arguments.threads
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "static":
                static(case.plain, path, given)
            else:
                dynamic(case.plain, path)
        exact, own = (runtime(p, threads=threads, optimized=True) for p in (case.plain, path))
        made = ([copies(run(sample)) for sample in fed] for run in (exact, own))
        return worst(case.arguments.metric, *made)
    except Exception as cause:  # whatever a runtime or quantizer raises is its row
        return told(cause)


def told(cause: Exception) -> str:
    """An exception in one line."""
    return f"{type(cause).__name__}: {(str(cause).splitlines() or [''])[0][:200]}"


def measured(case: Case) -> Json:
    """The row of a model: by what computes it, seconds and errors; and what the searches told."""
    _, others, bindings = samples(case.path)
    bound = {k: np.asarray(v) for k, v in bindings.values.items()}
    document = json.loads(case.document.read_text())
    compiler = kernels()
    runs: dict[str, Run | str] = {}
    with ExitStack() as stack:
        own = {FLOAT32: (case.plain, case.options)} | {
            f"stowplan {choice['budget']:.2%}": (
                folder_of(case, choice["budget"]) / QUANTIZED,
                replace(case.options, **{k: choice[k] for k in ("precision", "exact", "int16")}),
            )
            for choice in document["choices"]
            if choice["told"]
        }
        for label, (file, options) in own.items():
            compilation = session.canonical(load(file), case.target, options, bindings, load_registry())
            program = session.planned(session.measured(compilation, options, compiler), options)
            executor = stack.enter_context(closing(session.bound(program, compiler)))
            runs[label] = partial(run_free, executor)
        runs |= peers(case, {label: file for label, (file, _) in own.items() if label != FLOAT32})
        with pinned(case.arguments.threads):
            found = dict(figures(runs, others, case.arguments, bound))
    return {"budget": case.arguments.budget, "choices": document["choices"], "found": found}


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


def peers(case: Case, own: Mapping[str, Path]) -> dict[str, Run | str]:
    """Other runtimes on float32, on what quantizers of onnxruntime make of it, and on our quantized files."""
    threads = case.arguments.threads
    files = {"f32": case.plain, **{k: case.folder / f"{k}.onnx" for k in QUANTIZERS}}
    files |= {f"on {label}": file for label, file in own.items()}
    found: dict[str, Run | str] = {"openvino nncf": "nncf is not among the project's packages"}
    for label, file in files.items():
        makers: dict[str, Callable[[], Run]] = {
            f"onnxruntime {label}": partial(runtime, file, threads=threads, optimized=True),
            f"openvino {label}": lambda file=file: openvino_peer(file, threads, precision="f32").run,  # type: ignore[misc]  # a default of the lambda
        }
        for name, make in makers.items():
            try:
                found[name] = make()
            except Exception as cause:  # whatever a runtime raises is its row
                found[name] = told(cause)
    return found


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped
    """Samples, one after the other."""

    def __init__(self, given: Sequence[Sample]) -> None:
        self._left: Iterator[Sample] = iter(given)

    def get_next(self) -> Sample | None:
        """The next sample; None at the end."""
        return next(self._left, None)


def static(plain: Path, path: Path, given: Sequence[Sample]) -> None:
    """Write what onnxruntime's static quantizer makes: per channel, uint8 by int8, all samples."""
    quantization.quantize_static(
        str(plain),
        str(path),
        Reader(given),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )


def dynamic(plain: Path, path: Path) -> None:
    """Write what onnxruntime's dynamic quantizer makes, per channel."""
    kinds = ["MatMul", "Gemm", "Attention", "LSTM"]  # its ConvInteger is slower than float32
    quantization.quantize_dynamic(str(plain), str(path), per_channel=True, op_types_to_quantize=kinds)


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
    found = Table(title=row["model"], caption="\n".join(map(sentence, row["choices"])))
    for heading in ("what", "ms", f"times as fast as {FLOAT32}", "error on other samples", "best of ours"):
        found.add_column(heading)
    base = row["found"][FLOAT32]["seconds"]
    for label, figure in row["found"].items():
        if "reason" in figure:
            found.add_row(label, "", "", figure["reason"])
        else:
            error = "none" if figure["error"] is None else f"{figure['error']:.2e}"
            spent = figure["seconds"]
            cells = f"{spent * 1e3:.3f}", f"{base / spent:.2f}", error, f"{beside(label, row['found']):.2f}"
            found.add_row(label, *cells)
    return found


def sentence(choice: Json) -> str:
    """Line of a budget: nodes by precision and the error that its search told, or why all stayed float32."""
    known = choice["told"]
    found = f"{known['nodes']}, error told {known['error']:.2e}" if known else f"float32: {choice['reason']}"
    return f"{choice['budget']:.2%}: {found}"


def beside(label: str, found: Mapping[str, Json]) -> float:
    """Times as fast as this that the fastest of our programs is whose error is no larger."""
    limit = found[label]["error"]
    limit = math.inf if limit is None else limit
    own = [
        figure["seconds"]
        for name, figure in found.items()
        if name.startswith("stowplan") and (name == FLOAT32 or (figure["error"] or 0.0) <= limit)
    ]
    return float(found[label]["seconds"] / min(own))


if __name__ == "__main__":
    main()
