"""Random graphs times random options and targets: no crash, valid plans, right outputs, honest figures.

`python -m tests.fuzzing.options --graphs 5000` tries that many and prints what it found; the test suite takes 200.
A seed names a graph, its options and its target: `--first SEED --graphs 1` repeats one.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report import decisions, drawing, pages, report
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import CapacityError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS, Memory, Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.compiling import CompilerApart
from tests.engine.canonical import runtime
from tests.fuzzing.checker import check_program
from tests.fuzzing.models import RandomModel, random_model, rounded

KERNELS = Path(__file__).resolve().parents[2] / "build" / "kernels"
TOLERANCE = {"f32": 1e-4, "bf16": 5e-2}  # of the largest output, or of 1 where all are small
DRAWS = 4  # of the roundings of a bf16 model
HALF_STEP = 2.0**-8  # highest relative error of rounding to bfloat16
ROUNDINGS = 4  # times the error of one rounding a value: kernels round operands in their own order
# What a target with a small first memory is made of; the second is 20 times slower.
BANKS = (Memory("sram", 4096, 16, 8e9), Memory("psram", 2**26, 16, 4e8))
OPTIONS: dict[str, tuple[object, ...]] = {
    "prefer": ("latency", "memory"),
    "fuse": (True, True, False),
    "inplace": (True, True, False),
    "fast_algorithms": (True, False),
    "precision": ("f32", "f32", "bf16"),
    "threads": (1, 2),
    "semantics": ("stowplan", "stowplan", "mxnet-1.9"),
}


@dataclass
class Findings:
    """Graphs tried, what was done with them, and failures as (seed, text)."""

    done: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Count another run's findings in."""
        self.done += other.done
        self.failures += other.failures


def targets() -> tuple[Target, ...]:
    """This machine, every preset, and machines with small first memories."""
    npu = next(t for t in PRESETS if t.name == "edge-npu")
    avx2 = next(t for t in PRESETS if t.name == "cpu-avx2")
    return (
        host(),
        host(),
        *PRESETS,
        dataclasses.replace(npu, name="banked-npu", memories=BANKS),
        dataclasses.replace(avx2, name="banked-cpu", memories=BANKS),
    )


class _Case:
    """One graph with one set of options for one target."""

    def __init__(self, seed: int, folder: Path, compiler: Compiler) -> None:
        random = np.random.default_rng((seed, 1))
        self.model: RandomModel = random_model(seed)
        self.path = folder / "model.onnx"
        self.path.write_bytes(self.model.proto.SerializeToString())
        self.compiler = compiler
        possible = targets()
        self.target = possible[int(random.integers(len(possible)))]
        chosen: dict[str, Any] = {k: v[int(random.integers(len(v)))] for k, v in OPTIONS.items()}
        chosen["pareto"] = bool(random.random() < 0.2)
        self.budget_share = float(random.uniform(0.3, 1.1)) if random.random() < 0.4 else None
        if self.target.device != "cpu" or "bf16" not in self.target.precisions:
            chosen["precision"] = "f32"
        if len(self.target.memories) > 1:
            self.budget_share = None
        self.options = Options(autotune=False, **chosen)
        self.done: Counter[str] = Counter()

    def __str__(self) -> str:
        given = {
            f.name: getattr(self.options, f.name)
            for f in dataclasses.fields(self.options)
            if getattr(self.options, f.name) != getattr(Options(), f.name)
        }
        return f"target {self.target.name}, options {given}, budget share {self.budget_share}"

    def compilation(self, target: Target) -> Compilation:
        return session.canonical(load(self.path), target, self.options, Bindings(), load_registry())

    def check(self) -> None:
        """Plan, validate, compare with other plans, run where this machine is the target."""
        compilation = self.compilation(self.target)
        default = self.planned(compilation, dataclasses.replace(self.options, prefer="latency"))
        if default is None:
            return
        program, least = default, None
        if self.options.prefer == "memory" or self.budget_share is not None:
            small = dataclasses.replace(self.options, prefer="memory")
            least = self.planned(compilation, small)
            assert least is not None, "the smallest plan does not fit where the default does"
            assert _peak(least) <= _peak(default), (
                f"prefer: memory takes {_peak(least)} byte, the default {_peak(default)}"
            )
            program = least
        if self.budget_share is not None and least is not None:
            budget = max(int(_peak(default) * self.budget_share), 1)
            bounded = dataclasses.replace(self.options, prefer="latency", memory_budget=budget)
            found = self.planned(compilation, bounded)
            if found is None:
                assert _peak(least) > budget, (
                    f"a budget of {budget} byte is refused, {_peak(least)} are enough"
                )
            else:
                assert _peak(found) <= budget, f"{_peak(found)} byte in a budget of {budget}"
                program = found
        if self.options.pareto:
            self.check_front(compilation, default, least)
        if len(self.target.memories) > 1:
            self.check_spilling(program)
        self.check_reports(program)
        if self.target.name == "host":
            self.check_outputs(program)

    def planned(self, compilation: Compilation, options: Options) -> Program | None:
        """A checked plan; None where memory is too small for any."""
        try:
            program = session.planned(compilation, options)
        except CapacityError:
            self.done["refused for memory"] += 1
            return None
        check_program(program)
        self.done["plans"] += 1
        return program

    def check_front(self, compilation: Compilation, default: Program, least: Program | None) -> None:
        points = session.pareto_front(compilation, self.options)
        peaks = [p.peak_bytes for p in points]
        seconds = [p.seconds for p in points]
        assert points, "no plan of the front"
        assert peaks == sorted(set(peaks)), f"peaks of the front do not rise: {peaks}"
        assert seconds == sorted(set(seconds), reverse=True), f"seconds of the front do not fall: {seconds}"
        if least is not None:
            assert peaks[0] <= _peak(least), f"the front begins at {peaks[0]} byte, a plan has {_peak(least)}"
        assert seconds[-1] <= default.seconds * (1 + 1e-9)
        self.done["fronts"] += 1

    def check_spilling(self, program: Program) -> None:
        """A plan with values in slower memories is told to take longer than its steps alone."""
        steps = sum(step.choice.seconds for step in program.steps)
        told = program.seconds
        assert told > steps if program.placement.banks else told == steps, f"{told} s told, steps {steps} s"
        self.done["spilled"] += bool(program.placement.banks)

    def check_reports(self, program: Program) -> None:
        compilation = program.compilation
        memory = report.memory_json(compilation)
        pages.memory_html(memory, "fuzzed")
        report.plan_json(compilation)
        decisions.decisions_json(compilation)
        drawing.graph_json(compilation)
        if memory["unplanned"]:
            self.done["with unplanned values"] += 1

    def check_outputs(self, program: Program) -> None:
        expected = runtime(self.path, self.model.inputs)
        allowed = {
            name: TOLERANCE[self.options.precision] * _scale(array) for name, array in expected.items()
        }
        if self.options.precision == "bf16":
            for name, error in self.rounding(expected).items():
                allowed[name] = max(allowed[name], ROUNDINGS * error)
        with closing(Executor(program, self.compiler, poison=True)) as executor:
            for _ in range(2):  # nothing of a run may change the next
                found = executor.run(self.model.inputs)
                for name, array in expected.items():
                    _compare(name, np.asarray(found[name]), array, allowed[name])
        self.done["runs"] += 1

    def rounding(self, expected: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        """Largest error of every output where onnxruntime rounds all float32 values to bfloat16, those of bodies too.

        A normalization of nearly equal elements enlarges roundings without bound, whoever computes it; so does
        what saturates but for a few elements. The inputs of the later draws are off by up to one rounding, so
        that each draw rounds other values up.
        """
        path = self.path.with_name("rounded.onnx")
        path.write_bytes(rounded(self.model.proto).SerializeToString())
        random = np.random.default_rng(0)
        worst = dict.fromkeys(expected, 0.0)
        for draw in range(DRAWS):
            inputs = {n: _nudged(a, random) if draw else a for n, a in self.model.inputs.items()}
            found = runtime(path, inputs)
            for name, array in expected.items():
                worst[name] = max(worst[name], float(np.max(np.abs(found[name] - array), initial=0.0)))
        return worst


def _nudged(array: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    if array.dtype != np.float32:
        return array
    return array * random.uniform(1 - HALF_STEP, 1 + HALF_STEP, array.shape).astype(np.float32)


def _peak(program: Program) -> int:
    return program.placement.solution.peak


def _compare(name: str, found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], allowed: float) -> None:
    assert found.shape == expected.shape, f"{name}: shape {found.shape}, expected {expected.shape}"
    assert found.dtype == expected.dtype, f"{name}: {found.dtype}, expected {expected.dtype}"
    worst = float(np.max(np.abs(found - expected), initial=0.0))
    assert worst <= allowed, f"{name}: off by {worst}, allowed {allowed}, largest {_scale(expected)}"


def _scale(array: np.ndarray[Any, Any]) -> float:
    return max(float(np.max(np.abs(array), initial=0.0)), 1.0)


def tried(seeds: Sequence[int], kernels: Path = KERNELS) -> Findings:
    """The findings of these seeds, in this process."""
    with closing(CompilerApart(kernels)) as compiler:
        return _tried(seeds, compiler)


def _tried(seeds: Sequence[int], compiler: Compiler) -> Findings:
    findings = Findings()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            told = ""
            try:
                case = _Case(seed, Path(folder), compiler)
                told = str(case)
                case.check()
            except Exception:  # whatever goes wrong is a finding
                findings.failures.append((seed, f"{told}\n{traceback.format_exc(limit=-6)}"))
            else:
                findings.done += case.done
        findings.done["graphs"] += 1
    return findings


def main() -> int:
    """Try many graphs on all cores; the exit status says whether anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--graphs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kernels", type=Path, default=KERNELS)
    given = parser.parse_args()
    started, total = time.monotonic(), Findings()
    parts = [
        range(first, min(first + 20, given.first + given.graphs))
        for first in range(given.first, given.first + given.graphs, 20)
    ]
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for findings in pool.map(tried, parts, [given.kernels] * len(parts)):
            total.add(findings)
            for seed, text in findings.failures:
                print(f"seed {seed}: {text}", flush=True)
            print(
                f"\r{total.done['graphs']} of {given.graphs} graphs, {len(total.failures)} failures, "
                f"{time.monotonic() - started:.0f} s",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print(file=sys.stderr)
    print(", ".join(f"{count} {what}" for what, count in sorted(total.done.items())))
    print(f"{len(total.failures)} failures")
    return bool(total.failures)


if __name__ == "__main__":
    sys.exit(main())
