"""Random graphs with symbolic dimensions at several shapes: right outputs in poisoned memory, valid plans.

`python -m tests.fuzzing.regions --graphs 500` tries that many and prints what it found; the test suite takes 12.
A seed names a graph and its shapes: `--first SEED --graphs 1` repeats one.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.reference

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.memory.problem import Problem, validate
from app.engine.model.load import load
from app.engine.planning.regions.entry import region_of_model
from app.engine.planning.regions.memory import memory_formulas
from app.engine.planning.regions.pieces import RegionPlan
from app.engine.planning.regions.runner import RegionRunner
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import RegionError
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import Point, bound
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.compiling import CompilerApart
from tests.engine.planning.regions.networks import WORDS, Network, images, texts
from tests.fuzzing.checker import check_program
from tests.harness import OWN, Array

KERNELS = Path(__file__).resolve().parents[2] / "build" / "kernels"
OPTIONS = Options(autotune=False, choose="first", backends=OWN)
SHAPES = 5  # of each graph: the largest, the least, others at random
TOLERANCE = 2e-4  # of the largest element of an output, or of 1 where all are smaller


@dataclass
class Findings:
    """Graphs and shapes tried, refusals of the planner with their reasons, and failures as (seed, text)."""

    done: Counter[str] = field(default_factory=Counter)
    refusals: dict[int, str] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)


def network(seed: int) -> Network:
    """A graph over images or over texts."""
    rng = np.random.default_rng(seed)
    return images(rng, int(rng.integers(4, 25))) if seed % 2 else texts(rng, int(rng.integers(1, 9)))


def planned(path: Path, spelled: dict[str, list[int | str]]) -> RegionPlan:
    """The program of a region, as its symbols are spelled in a request."""
    shapes, region = bound(spelled)
    return region_of_model(load(path), host(), OPTIONS, Bindings(shapes, region=region), load_registry())


def drawn(spelled: dict[str, list[int | str]], point: Point, rng: np.random.Generator) -> dict[str, Array]:
    """Inputs at a point."""
    _, region = bound(spelled)
    assert region is not None
    ((name, shape),) = region.shapes(point).items()
    if name == "ids":
        return {name: rng.integers(0, WORDS, shape)}
    return {name: rng.standard_normal(shape).astype(np.float32)}


def expected(path: Path, inputs: Mapping[str, Array]) -> list[Array]:
    """Outputs by the evaluator of the package onnx."""
    found: list[Array] = onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, dict(inputs))
    return found


def points_of(program: RegionPlan, count: int, rng: np.random.Generator) -> list[Point]:
    """The largest and the least point of a region, and others at random."""
    every = list(program.region.points())
    least = {n: s.low for n, s in program.region.symbols.items()}
    return [program.region.largest, least, *(every[i] for i in rng.integers(len(every), size=count - 2))]


def check(found: Network, folder: Path, seed: int, compiler: Compiler, count: int = SHAPES) -> Counter[str]:
    """Check a graph at so many shapes: alone in poisoned memory, and then one after another in shared memory.

    Raises:
        AssertionError: an output, a plan or a peak is wrong.
        RegionError: no plan serves the region.
    """
    rng = np.random.default_rng(seed)
    path = found.save(folder / "net.onnx")
    program = planned(path, found.spelled)
    points = points_of(program, count, rng)
    inputs = [drawn(found.spelled, point, rng) for point in points]
    wanted = [expected(path, given) for given in inputs]
    worst = memory_formulas(program)["worst_bytes"]
    for point, given, outputs in zip(points, inputs, wanted, strict=True):
        plan = program.at(point)
        check_plan(plan)
        assert plan.arena_bytes <= worst, f"{plan.arena_bytes} byte at {point}, {worst} at most"
        with closing(Executor(plan, compiler, poison=True)) as executor:
            for _ in range(2):  # nothing of a run may change the next
                compare(executor.run(given), outputs, point)
    with closing(RegionRunner(program, compiler)) as runner:
        filled = [runner.filled(point) for point in points]
        for point, given, outputs, one in zip(points, inputs, wanted, filled, strict=True):
            compare(one.run(given), outputs, point)
    return Counter(shapes=len(points))


def check_plan(plan: Program) -> None:
    """Validate the placement of a plan, by the planner's validator and by one that shares nothing with it."""
    buffers = plan.compilation.plan.require("buffers")
    validate(Problem(buffers.assignment.problem.buffers), plan.placement.solution)
    check_program(plan)


def compare(found: Mapping[str, object], wanted: Sequence[Array], point: Point) -> None:
    """Compare outputs, each within the tolerance."""
    for (name, result), reference in zip(found.items(), wanted, strict=True):
        assert isinstance(result, np.ndarray)
        assert result.shape == reference.shape, f"{name} at {point}: {result.shape}, not {reference.shape}"
        scale = max(1.0, float(np.abs(reference).max(initial=0.0)))
        np.testing.assert_allclose(
            result, reference, atol=TOLERANCE * scale, rtol=0, err_msg=f"{name} at {point}"
        )


def tried(seeds: Sequence[int], compiler: Compiler) -> Findings:
    """The findings of these seeds."""
    findings = Findings()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                findings.done += check(network(seed), Path(folder), seed, compiler)
            except RegionError as error:
                findings.refusals[seed] = error.message
            except Exception:  # whatever goes wrong is a finding
                findings.failures.append((seed, traceback.format_exc(limit=-6)))
        findings.done["graphs"] += 1
    return findings


def main() -> int:
    """Try many graphs; the exit status says whether anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no graph after so many")
    parser.add_argument("--kernels", type=Path, default=KERNELS)
    given = parser.parse_args()
    started, total = time.monotonic(), Findings()
    with closing(CompilerApart(given.kernels)) as compiler:
        for seed in range(given.first, given.first + given.graphs):
            if time.monotonic() > started + given.seconds:
                break
            found = tried([seed], compiler)
            total.done += found.done
            total.failures += found.failures
            total.refusals |= found.refusals
            for _, text in found.failures:
                print(f"seed {seed}: {text}", flush=True)
            for text in found.refusals.values():
                print(f"seed {seed}: no plan for the region: {text}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(total.done.items())))
    print(f"{len(total.refusals)} without a plan for the region, {len(total.failures)} failures")
    return bool(total.failures)


if __name__ == "__main__":
    sys.exit(main())
