"""`make bench-symbolic`: programs of a region of shapes, beside a program planned for each shape alone.

At seeded shapes of the region: the least steady time of the region's program over that of its own plan, the
two in turn in one process; the first run of a program over its steady time, medians of several programs
made anew and of all runs, and `later` the next run of it, after those of the other shapes again; the peak by
the formulas of memory.json and that of the placement; the largest difference of the outputs from those of
onnxruntime, over the maximum of the output at all shapes (a detector's map is 0 where an image has no text).

    python -m benchmarks.symbolic ppocrv4_rec unet_free
    python -m benchmarks.symbolic bert.onnx --input ids=N<=8,L<=512 --input mask=N,L
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from app.cli.submit import input_shapes
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.memory.region_peak import peak_at
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.planning.regions.entry import region_of_model
from app.engine.planning.regions.memory import memory_formulas
from app.engine.planning.regions.pieces import RegionPlan
from app.engine.planning.regions.runner import RegionRunner
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import Point, bound
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models, symbolic_networks
from benchmarks.paired import in_turn

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
REGIONS: dict[str, symbolic_networks.Spelled] = {
    "ppocrv4_rec": {"x": [1, 3, 48, "W:48..640%8"]},
    "ppocrv4_det": {"x": [1, 3, "H:64..960%32", "W:64..960%32"]},
    **{name: spelled for name, (_, spelled) in symbolic_networks.NETWORKS.items()},
}
FRESH = 5  # programs of a shape that run for the first time
HEADINGS = (
    "sizes",
    "ms",
    "own ms",
    "made ms",
    "ratio",
    "first / steady",
    "later",
    "peak",
    "placed",
    "difference",
)
WORDS = 100  # integer inputs are ids below it


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.symbolic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(REGIONS), help="models with a region, or a path")
    parser.add_argument("--input", action="append", default=[], help="shapes with symbols, of a path")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--shapes", type=int, default=12, help="of each region")
    parser.add_argument("--seconds", type=float, default=0.5, help="of the samples of one program")
    parser.add_argument("--tune", action="store_true", help="measure implementations before planning")
    parser.add_argument("--untimed", action="store_true", help="only compare outputs and peaks")
    parser.add_argument(
        "--pause", action="store_true", help="when all is planned, wait for a line of input: a quiet machine"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names:
            spelled = input_shapes(arguments.input) or REGIONS.get(Path(name).stem)
            if spelled is None:
                sys.exit(f"{name}: no region; give --input NAME=N<=8,L<=512")
            if name in symbolic_networks.NETWORKS:
                path = symbolic_networks.build(name, Path(scratch))
            else:
                found = models.find(name, arguments.models, Path(scratch))
                if found.path is None:
                    sys.exit(f"{found.name}: {found.reason}")
                path = found.path
            result = measured(path, spelled, arguments)
            results.append(result)
            Console(width=150).print(table_of(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


class Subject:
    """A model that is planned for a region, and for shapes alone."""

    def __init__(self, path: Path, spelled: symbolic_networks.Spelled, tune: bool) -> None:
        kernels = Settings.from_environment().data.absolute() / "kernels"
        kernels.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.options = Options(autotune=tune, choose="first")
        self.compiler = Compiler(kernels)
        self.shapes, self.region = bound(spelled)

    def tuned(self, compilation: Compilation) -> Compilation:
        """The compilation with measured times, if rows are measured."""
        return session.measured(compilation, self.options, self.compiler)

    def plan(self) -> RegionPlan:
        """The plan of the region."""
        bindings = Bindings(self.shapes, region=self.region)
        return region_of_model(load(self.path), host(), self.options, bindings, load_registry(), self.tuned)

    def alone(self, point: Point) -> Program:
        """The program that is planned for a shape only."""
        assert self.region is not None
        bindings = Bindings({**self.shapes, **self.region.shapes(point)})
        loaded = expanded(load(self.path), bindings)
        compilation = session.canonical(loaded, host(), self.options, bindings, load_registry())
        planned = session.planned(self.tuned(compilation), self.options)
        with closing(Executor(planned, self.compiler)):  # its kernels are compiled
            return planned


def measured(path: Path, spelled: symbolic_networks.Spelled, arguments: argparse.Namespace) -> Json:
    """Figures of a model at seeded shapes of its region."""
    subject = Subject(path, spelled, arguments.tune)
    started = time.perf_counter()
    plan = subject.plan()
    planned = time.perf_counter() - started
    document = memory_formulas(plan)
    rng = np.random.default_rng(0)
    count = min(arguments.shapes, plan.region.count)
    chosen = [
        plan.region.at(i) for i in sorted(map(int, rng.choice(plan.region.count, count, replace=False)))
    ]
    reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with closing(RegionRunner(plan, subject.compiler)) as runner:
        kernels = runner.kernels
        given = [drawn_inputs(reference, plan.region.shapes(point), rng) for point in chosen]
        rows = [at_shape(runner, document, *each, reference) for each in zip(chosen, given)]
        for row in rows:
            row["difference"] = max(
                each / max(other["maxima"][name] for other in rows)
                for name, each in row["differences"].items()
            )
        if not arguments.untimed:
            alone = [subject.alone(point) for point in chosen]
            if arguments.pause:
                input("planned; the times are next: ")
            firsts = first_runs(runner, list(zip(chosen, given)))
            for row, point, inputs, own, (first, later) in zip(rows, chosen, given, alone, firsts):
                row |= times(runner, point, inputs, Executor(own, subject.compiler), arguments.seconds)
                row |= {"first": first / row["usual_seconds"], "later": later / row["usual_seconds"]}
    return {
        "model": path.stem,
        "region": [str(s) for s in plan.region.symbols.values()],
        "planned_seconds": planned,
        "pieces": [
            {"sizes": [str(s) for s in p.region.symbols.values()], "anchor": dict(p.anchor)}
            for p in plan.pieces
        ],
        "curve": document["curve"],
        "kernels": kernels,
        "worst_bytes": document["worst_bytes"],
        "proof": document["proof"],
        "rows": rows,
    }


def at_shape(
    runner: RegionRunner,
    document: Json,
    point: Point,
    inputs: dict[str, Array],
    reference: onnxruntime.InferenceSession,
) -> Json:
    """Outputs and memory at one shape."""
    outputs = runner.filled(point).run(inputs)
    expected = dict(zip((v.name for v in reference.get_outputs()), reference.run(None, inputs)))
    peak = peak_at(document, runner.plan.region.shapes(point))
    return {
        "sizes": dict(point),
        "placed_bytes": runner.plan.at(point).arena_bytes,
        "peak_bytes": peak.nbytes,
        "exact": peak.exact,
        "differences": {n: float(np.abs(np.asarray(outputs[n]) - a).max()) for n, a in expected.items()},
        "maxima": {name: float(np.abs(array).max()) for name, array in expected.items()},
    }


def first_runs(
    runner: RegionRunner, calls: Sequence[tuple[Point, dict[str, Array]]]
) -> list[tuple[float, float]]:
    """Seconds of the first and the second run of a program at each point, the median of FRESH programs.

    The others run in between, so the second one has what a change of the shape costs, and is no first sight.

    Programs of all points are made before, as a deployment does while it waits for requests; a run of the
    last one, which is not counted, brings back what making them has put out of the caches.
    """
    rounds = []
    for _ in range(FRESH):
        taken = []
        made = [(runner.filled(point), inputs) for point, inputs in calls]
        runner.filled(calls[-1][0]).run(calls[-1][1])
        for filled, inputs in made * 2:
            filled.feed(inputs)
            started = time.perf_counter()
            filled.step()
            taken.append(time.perf_counter() - started)
        rounds.append(taken)
    middle = [float(np.median(taken)) for taken in zip(*rounds)]
    return list(zip(middle[: len(calls)], middle[len(calls) :]))


def times(
    runner: RegionRunner, point: Point, inputs: dict[str, Array], alone: Executor, seconds: float
) -> Json:
    """Times at one shape, beside those of the program that is planned for it alone."""
    made = []
    for _ in range(FRESH):
        started = time.perf_counter()
        filled = runner.filled(point)
        made.append(time.perf_counter() - started)
    with closing(alone):
        filled.feed(inputs)
        alone.feed(inputs)
        samples = in_turn((filled.step, alone.infer), seconds)
    region_seconds, own_seconds = map(float, samples.min(axis=0))
    return {
        "seconds": region_seconds,
        "usual_seconds": float(np.median(samples[:, 0])),
        "own_seconds": own_seconds,
        "ratio": region_seconds / own_seconds,
        "made_seconds": min(made),
    }


def drawn_inputs(
    reference: onnxruntime.InferenceSession, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator
) -> dict[str, Array]:
    """Values of the inputs: pictures, other floats, masks of ones, and ids of which none is 0."""
    return {v.name: drawn(v.name, v.type, shapes[v.name], rng) for v in reference.get_inputs()}


def drawn(name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Values of one input."""
    if "int" in kind:
        return np.ones(shape, np.int64) if "mask" in name else rng.integers(1, WORDS, shape)
    if len(shape) == 4 and shape[1] in (1, 3):
        return picture(shape, rng)
    return rng.standard_normal(shape).astype(np.float32)


def picture(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Lines of dark strokes, as of letters, on a bright gradient with little noise; float32 of -1 to 1.

    On noise alone a network that looks for text has activations that amplify the last bit of everything.
    """
    count, channels, height, width = shape
    across, down = np.linspace(0, 1, width), np.linspace(0, 1, height)
    found = 0.9 - 0.3 * rng.random((count, channels, 1, 1)) * (across + down[:, None])
    letter = max(8, min(24, height // 2))  # pixels of a line of text
    for top in range(2, max(height - letter, 3), 2 * letter):
        left = int(rng.integers(2, letter))
        while left < width - 2:
            stroke, rise = int(rng.integers(1, 4)), int(rng.integers(letter // 2, letter + 1))
            ink = rng.uniform(-1, -0.4)
            if rng.random() < 0.5:
                found[:, :, top : top + rise, left : left + stroke] = ink
            else:
                found[:, :, top + rise // 2 : top + rise // 2 + stroke, left : left + letter // 2] = ink
            left += stroke + int(rng.integers(2, letter))
    return (found + 0.01 * rng.standard_normal(shape)).clip(-1, 1).astype(np.float32)


def table_of(result: Json) -> Table:
    """The rows of one model."""
    rows = result["rows"]
    pieces = "; ".join(f"{', '.join(p['sizes'])} as at {p['anchor']}" for p in result["pieces"])
    told = f"planned in {result['planned_seconds']:.0f} s; {result['kernels']} kernels; {pieces}; "
    told += f"worst {result['worst_bytes']} byte, proof: {result['proof'] or 'none'}; "
    told += f"largest difference {max(row['difference'] for row in rows):.1e}"
    if ratios := [row["ratio"] for row in rows if "ratio" in row]:
        told += f"; ratio: geometric mean {np.exp(np.log(ratios).mean()):.3f}, largest {max(ratios):.3f}"
    table = Table(title=f"{result['model']}, {', '.join(result['region'])}", caption=told)
    for heading in HEADINGS:
        table.add_column(heading)
    for row in rows:
        times = [f"{row[name] * 1e3:.3f}" for name in ("seconds", "own_seconds", "made_seconds") if ratios]
        rates = [f"{row[name]:.3f}" for name in ("ratio", "first", "later") if ratios]
        table.add_row(
            ", ".join(f"{n}={v}" for n, v in row["sizes"].items()),
            *(times + rates or [""] * 6),
            f"{row['peak_bytes']}{'' if row['exact'] else ' at most'}",
            str(row["placed_bytes"]),
            f"{row['difference']:.1e}",
        )
    return table


if __name__ == "__main__":
    main()
