"""Coefficients of `app.engine.cost.calibration` for a kind of processor, fitted to timings of models.

`python -m benchmarks.calibrate avx512 [MODEL ...]` tunes models where the table of timings beside the kernels
does not know them, fits, prints the error on models held out, and writes the coefficients of that kind. Code
of `avx2` runs on a machine with AVX-512 too: it is a kind of its own, with a table of its own.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from app.engine.core import pipeline
from app.engine.core.pipeline import silent
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.cost import calibration
from app.engine.cost.calibration import Calibration, Sample, features, fit
from app.engine.cost.roofline import key
from app.engine.model.load import load
from app.engine.planning import autotune, session, utilization
from app.engine.planning.backend_assignment.bench import kernels_first
from app.engine.planning.timing_cache import stored
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS, Target, host, peak
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.row import recorded_inputs

WORTH = 2e-6  # s, below which a measurement tells more of the clock than of the kernel


def main(line: Sequence[str] | None = None) -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(prog="benchmarks.calibrate", description=__doc__)
    parser.add_argument("kind", choices=sorted(calibration.KINDS.values()))
    parser.add_argument("names", nargs="*", default=models.DEFAULT, help="names, or paths of ONNX files")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument(
        "--tables", type=Path, nargs="*", default=[], help="further tables of the same kernels"
    )
    parser.add_argument("--no-tune", action="store_true", help="fit to the tables as they are")
    arguments = parser.parse_args(line)
    target = machine(arguments.kind)
    compiler = Compiler(Settings.from_environment().data.absolute() / f"kernels-{arguments.kind}")
    found: list[Sample] = []
    for name in arguments.names:
        path = models.find(name, models.FOLDERS, Path()).path
        for threads in arguments.threads if path else ():
            started = time.perf_counter()
            options = Options(threads=threads, choose="first")
            try:
                groups = prepared(path, target, options, None if arguments.no_tune else compiler)
            except EngineError as error:
                print(f"{name}: {error.message}")
                continue
            table = {k: s for p in arguments.tables for k, s in json.loads(p.read_text()).items()}
            more = list(samples(path.stem, groups, {**table, **stored(compiler.folder)}))
            print(
                f"{path.stem} x{threads}: {len(more)} samples, {time.perf_counter() - started:.1f} s",
                flush=True,
            )
            found += more
    fitted = replace(fit(found), peak=utilization.kept(compiler, target))
    print("\n".join(told(found, fitted)))
    written = json.loads(calibration.FILE.read_text()) if calibration.FILE.exists() else {}
    written[arguments.kind] = fitted.to_json()
    calibration.FILE.write_text(json.dumps(written, sort_keys=True, indent=0) + "\n")


def machine(kind: str) -> Target:
    """This machine as a processor of that kind."""
    lanes = next(n for n, name in calibration.KINDS.items() if name == kind)
    here = host()
    if lanes == here.vector_lanes:
        return here
    preset = next(t for t in PRESETS if t.device == "cpu" and t.vector_lanes == lanes)
    return replace(here, isa=preset.isa, vector_lanes=lanes, precisions=preset.precisions, flops=peak(lanes))


def prepared(path: Path, target: Target, options: Options, compiler: Compiler | None) -> Compilation:
    """The groups of a model as they are tuned, after tuning them where there is a compiler."""
    case = recorded_inputs(path)
    bindings = models.bindings_of(case) if case else Bindings()
    compilation = session.canonical(load(path), target, options, bindings, load_registry())
    if compiler is not None:
        session.tuned(compilation, options, compiler)
    started = replace(kernels_first(compilation), model=compilation.model.clone(), options=options)
    return pipeline.run(started, session.grouping(options), silent)


def samples(model: str, compilation: Compilation, table: dict[str, float]) -> Iterator[Sample]:
    """Samples of the table for the candidates of a model, each kind of group once."""
    context = PlanningContext.of(compilation)
    seen = set()
    for group, row in autotune.candidates(compilation, context):
        name = key(row, group, context)
        predicted, measured = row.predicted(group, context), table.get(name, 0.0)
        if name not in seen and predicted > 0 and measured > WORTH:
            seen.add(name)
            found, ratio = features(group, context, predicted), math.log(measured / predicted)
            yield Sample(model, row.name, found, ratio, context.threads)


def told(found: Sequence[Sample], fitted: Calibration) -> Iterator[str]:
    """Errors of the logarithm by row: as predicted, predicted times a constant, and held out."""
    yield f"{'row':36s} samples  predicted  constant  held out"
    for name in ("", *sorted(fitted.rows)):
        ratios = [s.log_ratio for s in found if name in ("", s.row)]
        mean = sum(ratios) / len(ratios)
        plain, around = (math.sqrt(sum((r - m) ** 2 for r in ratios) / len(ratios)) for m in (0.0, mean))
        yield f"{name or 'all':36s}{len(ratios):8d}{plain:11.3f}{around:10.3f}{fitted.of(name).error:10.3f}"


if __name__ == "__main__":
    main()
