"""A sample of `make fuzz-options`, and the validator of plans against plans that are wrong."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS
from tests.conftest import KERNELS
from tests.fuzzing.checker import InvalidPlanError, check_program
from tests.fuzzing.models import random_model
from tests.fuzzing.options import tried

pytestmark = pytest.mark.long

SAMPLE = 200
PARTS = 4  # tests that share the sample, for the runner to spread
# Seeds beyond the sample that once failed, and what they protect.
FAILED = {
    11054: "the roundings of a bf16 loop count",
    20783: "a budget that the smallest plan fits is met",
}


@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs_with_random_options_on_random_targets(part: int) -> None:
    findings = tried(range(part, SAMPLE, PARTS), KERNELS)
    assert not findings.failures, "\n".join(f"seed {seed}: {text}" for seed, text in findings.failures)
    assert findings.done["plans"] >= SAMPLE // PARTS // 2
    assert findings.done["runs"]


@pytest.mark.parametrize("seed", FAILED, ids=FAILED.get)
def test_what_once_failed_stays_mended(seed: int) -> None:
    assert not tried([seed], KERNELS).failures


def programs() -> Iterator[Program]:
    """Default plans of random models for a described machine."""
    for seed in range(15):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(random_model(seed).proto.SerializeToString())
            compilation = session.canonical(load(path), PRESETS[0], Options(), Bindings(), load_registry())
            yield session.planned(compilation, Options())


def test_the_validator_finds_values_that_are_moved_over_others() -> None:
    """Each value of the arena is moved by 64 byte alone: what it then covers, or no longer covers, is found."""
    found = moved = 0
    for program in programs():
        check_program(program)
        values = program.placement.values
        random = np.random.default_rng(0)
        inside = [v for v, at in values.items() if at.space == "arena" and at.nbytes >= 128]
        for value in random.permutation(np.arange(len(inside)))[:3]:
            at = values[inside[value]]
            shifted = dataclasses.replace(at, offset=at.offset - 64 if at.offset >= 64 else at.offset + 64)
            placement = dataclasses.replace(program.placement, values={**values, inside[value]: shifted})
            moved += 1
            try:
                check_program(dataclasses.replace(program, placement=placement))
            except InvalidPlanError:
                found += 1
    assert moved > 20
    assert found > moved / 2  # a value may be moved into free bytes


def test_the_validator_finds_an_order_that_reads_before_it_writes() -> None:
    program = next(p for p in programs() if len(p.steps) > 3 and p.placement.solution.peak)
    steps = tuple(dataclasses.replace(s, index=i) for i, s in enumerate(reversed(program.steps)))
    with pytest.raises(InvalidPlanError, match="overwritten|lost"):
        check_program(dataclasses.replace(program, steps=steps))
