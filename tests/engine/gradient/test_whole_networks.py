"""ResNet-18 and MobileNetV2: gradients against differences in float64, then planned, in poisoned memory."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.entry.training import write
from app.engine.gradient import marks
from app.engine.gradient.differentiate import training_graph
from app.engine.memory.problem import Problem, validate
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.gradient.derivatives import by_reference, model
from tests.engine.gradient.whole_networks import WHOLE
from tests.session import Session

pytestmark = pytest.mark.long

Array = np.ndarray[Any, Any]
# Steps so small that hardly an activation passes a corner of Clip or Relu on the way.
STEP, TOLERANCE, ROUNDING = 1e-8, 1e-5, 5e-3
OPTIONS = Options(autotune=False, choose="first")


@dataclass(frozen=True)
class Exact:
    """A network with its weights as inputs, in float64, and what its training graph gives in the reference evaluator."""

    name: str
    forward: onnx.ModelProto
    at: dict[str, Array]
    gradients: dict[str, str]
    outputs: dict[str, Array]


@pytest.fixture(scope="module", params=WHOLE)
def exact(request: pytest.FixtureRequest) -> Exact:
    """Computed once for all tests of a network."""
    name = request.param
    inputs, constants = WHOLE[name].arrays("float64")
    at = inputs | {n: constants.pop(n) for n in WHOLE[name].weights}
    built = model(WHOLE[name].body, at, constants)
    forward = ir.to_proto(built)
    made = training_graph(built, "loss", tuple(at))
    return Exact(name, forward, at, dict(made.gradients), by_reference(ir.to_proto(made.model), at))


def test_gradients_along_directions_of_all_weights_are_those_of_differences(exact: Exact) -> None:
    forward, at, found = exact.forward, exact.at, exact.outputs
    rng = np.random.default_rng(2)
    for _ in range(3):
        # By size of each variable, so that all count.
        along = {n: rng.standard_normal(a.shape) / np.sqrt(a.size) for n, a in at.items()}
        sides = [
            float(by_reference(forward, {n: a + sign * STEP * along[n] for n, a in at.items()})["loss"])
            for sign in (1, -1)
        ]
        expected = (sides[0] - sides[1]) / (2 * STEP)
        products = {n: float(np.sum(found[exact.gradients[n]] * along[n])) for n in at}
        scale = float(np.sqrt(sum(p * p for p in products.values())))
        assert scale > 1e-3
        assert abs(sum(products.values()) - expected) <= TOLERANCE * scale


@dataclass(frozen=True)
class Planned:
    """The training graph of a network, planned for this machine, and the names of its gradients by variable."""

    path: Path
    session: Session
    gradients: dict[str, str]


@pytest.fixture(scope="module")
def planned(exact: Exact, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Iterator[Planned]:
    """Planned once for all tests of a network."""
    name, folder = exact.name, tmp_path_factory.mktemp("training")
    inputs, constants = WHOLE[name].arrays("float32")
    path, made = folder / "model.onnx", folder / "training.onnx"
    path.write_bytes(ir.to_proto(model(WHOLE[name].body, inputs, constants)).SerializeToString())
    summary = write(path, "loss", [*inputs, *WHOLE[name].weights], Bindings(), made)
    with closing(Session(made, compiler, options=OPTIONS, poison=True)) as run:
        yield Planned(made, run, summary["gradients"])


def test_the_planned_training_graph_is_right_in_poisoned_memory(exact: Exact, planned: Planned) -> None:
    inputs, _ = WHOLE[exact.name].arrays("float32")
    expected, found = exact.outputs, planned.session.run(inputs)
    assert len(planned.gradients) == len(exact.at)
    # Of a gradient that is zero, as that of a bias before a normalization, only rounding is left.
    least = 1e-3 * max(float(np.max(np.abs(expected[g]))) for g in exact.gradients.values())
    for variable, output in planned.gradients.items():
        reference = expected[exact.gradients[variable]]
        largest = max(float(np.max(np.abs(reference))), least)
        np.testing.assert_allclose(
            np.asarray(found[output]), reference, rtol=0, atol=ROUNDING * largest, err_msg=variable
        )


@pytest.mark.parametrize("exact", ["resnet18"], indirect=True)
def test_gradients_take_the_place_of_what_they_are_made_of(exact: Exact, planned: Planned) -> None:
    """dx lies in the bytes of dy, and sums of gradients in those of a summand; a validator finds no overlap."""
    program = planned.session.program
    gradients = marks.gradients(load(planned.path).model)
    main = program.compilation.graph
    forward = marks.forward_nodes(main, gradients)
    makers = {v.name: v.producer() for v in program.placement.values}
    shared = 0
    for buffer in program.placement.buffers:
        slices = sorted(buffer.slices, key=lambda s: s.first)
        for before, after in pairwise(slices):
            maker = makers[after.value]
            if (
                maker is None
                or maker in forward
                or before.last != after.first
                or before.offset != after.offset
            ):
                continue
            step = program.steps[after.first]
            read = {v.name for v in step.group.inputs}
            pairs = {(a.name, b.name) for a, b in step.choice.inplace}
            if before.value in read and (before.value, after.value) in pairs:
                shared += 1
                # The implementation allows it, and nobody reads the operand later.
                later = [
                    s
                    for s in program.steps[step.index + 1 :]
                    if before.value in {v.name for v in s.group.inputs}
                ]
                assert not later
    sums = [
        step for step in program.steps
        if any(n.op_type == "Add" and n not in forward for n in step.group.nodes) and step.choice.inplace
    ]  # fmt: skip
    assert shared >= 10, "activations have gradients in place"
    assert sums, "gradients are added in place"
    solution = program.placement.solution
    buffers = program.compilation.plan.require("buffers").assignment.problem.buffers
    validate(Problem(buffers, solution.peak), solution)
    assert_apart(program)
    loaded = session.canonical(load(planned.path), host(), OPTIONS, Bindings(), load_registry())
    apart = session.planned(loaded, Options(autotune=False, choose="first", inplace=False))
    assert program.arena_bytes <= apart.arena_bytes


def assert_apart(program: Any) -> None:
    """No byte of the arena is of two buffers at one step: by a table of bytes, which the planner has not."""
    unit = 64
    holders = np.full((len(program.steps), -(-program.arena_bytes // unit)), -1, np.int32)
    for number, buffer in enumerate(program.placement.buffers):
        for span in buffer.spans:
            start = (buffer.offset + span.offset) // unit
            stop = -(-(buffer.offset + span.offset + span.nbytes) // unit)
            area = holders[max(span.first, 0) : span.last + 1, start:stop]
            assert np.all((area == -1) | (area == number)), buffer.name
            area[:] = number
