"""Streams of 8-bit integers, rows placed one by one: bit by bit the plan without, in poisoned memory."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall
from app.engine.core.program import Program
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.memory.rows.replay import ReplayError
from app.engine.planning.streams.proposals import proposals
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Streamed
from app.kernels.cpu.runtime.compiler import Compiler
from benchmarks.quantized_networks import QuantizedNetwork, mobilenet_v2
from tests.engine.passes.streams.chains import Plans, stream_of
from tests.engine.passes.streams.test_addresses import replayed
from tests.engine.passes.streams.test_stream import target_of
from tests.harness import Array


def network(seed: int) -> QuantizedNetwork:
    """Convolutions of windows, strides and groups, with and without residual sums."""
    random = Random(seed)
    net = QuantizedNetwork(random.choice((17, 24, 53)), seed)
    net.conv(random.choice((8, 11)), 3, random.choice((1, 2)), limited=True)
    for _ in range(3):
        x, own = net.x, net.channels
        net.conv(random.choice((12, 21, 40)), random.choice((1, 1, 3)), limited=random.random() < 0.7)
        stride = random.choice((1, 1, 2))
        net.conv(net.channels, random.choice((3, 5)), stride, limited=True, depthwise=True)
        net.conv(own)
        if stride == 1:
            net.add(x)
    return net


def outputs(program: Program, x: Array, compiler: Compiler) -> list[Array]:
    """Outputs of two runs: in the second the places hold rows of the first."""
    with closing(Executor(program, compiler, poison=True)) as executor:
        found = [executor.run({"x": x}) for _ in range(2)]
    return [np.asarray(y) for one in found for y in one.values()]


def streamed(plans: Plans, rows: int) -> Program:
    program = plans.planned(Streamed(plans.names, (rows,) * len(plans.names)))
    assert program.compilation.notes == plans.plain.compilation.notes
    return program


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("seed", range(6))
def test_random_networks_in_strips(seed: int, lanes: int, tmp_path: Path, compiler: Compiler) -> None:
    path = network(seed).save(tmp_path / "net.onnx")
    plans = Plans(path, target_of(lanes), row_major=True)
    size = onnx.load(path).graph.input[0].type.tensor_type.shape.dim[2].dim_value
    x = np.random.default_rng(seed).integers(0, 256, (1, 3, size, size), np.uint8)
    program = streamed(plans, Random(seed).choice((1, 2, 5)))
    assert len(stream_of(program).group.nodes) > 9
    (expected, _) = outputs(plans.plain, x, compiler)
    for found in outputs(program, x, compiler):
        np.testing.assert_array_equal(found, expected)


def broken(call: Call, first: int) -> Call:
    """The call with two rows of a value in one place; `first` is the entry of its row 0."""
    if not isinstance(call, KernelCall) or "strip_integer" not in call.kernel:
        return call
    number = 5 if call.kernel.endswith("emit_conv") else 4
    argument = call.arguments[number]
    assert isinstance(argument, Constant)
    table = np.array(argument.array)
    table[first + 1] = table[first]
    return replace(call, arguments=(*call.arguments[:number], Constant(table), *call.arguments[number + 1 :]))


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 6, 9])  # their streams have depthwise convolutions
def test_what_kernels_are_given_is_replayed_and_a_wrong_entry_found(seed: int, tmp_path: Path) -> None:
    plans = Plans(network(seed).save(tmp_path / "net.onnx"), target_of(8), row_major=True)
    step = stream_of(streamed(plans, Random(seed).choice((1, 2))))
    assert isinstance(step.group, StreamGroup)
    replayed(step)
    windows = [c for c in step.calls if isinstance(c, KernelCall) and c.kernel.endswith("emit_depthwise")]
    places = Random(seed).choice(windows).arguments[6]
    assert isinstance(places, Constant)
    choice = replace(step.choice, calls=tuple(broken(call, int(places.array[2])) for call in step.calls))
    with pytest.raises(ReplayError):
        replayed(replace(step, choice=choice))


def test_residuals_are_read_as_bytes(tmp_path: Path) -> None:
    """DequantizeLinear is in the group of the sum: no float32 image lies between convolutions."""
    plans = Plans(mobilenet_v2(32, 0.35).save(tmp_path / "net.onnx"), target_of(16), row_major=True)
    found = {step.group.op for step in plans.plain.steps} - {"ChangeLayout"}
    assert found == {"ConvInteger", "GlobalAveragePool"}
    groups = [step.group for step in plans.plain.steps if step.group.op == "ConvInteger"]
    images = [[v for v in group.inputs if not graph.is_constant(v)] for group in groups]
    assert sum(len(read) == 2 for read in images) == 10
    assert all(graph.element_type(v).itemsize == 1 for read in images for v in read)


def test_mobilenet_takes_less_than_a_fifth_of_its_arena(tmp_path: Path, compiler: Compiler) -> None:
    """The placement of rows is taken where it takes less than rings."""
    plans = Plans(
        mobilenet_v2(64, 0.35, rounded_to_8=False).save(tmp_path / "net.onnx"), target_of(16), row_major=True
    )
    program = plans.planned(*proposals(plans.plain)[-1])
    groups = [s.group for s in program.steps if isinstance(s.group, StreamGroup)]
    assert any(group.memory.table is not None for group in groups)
    assert program.arena_bytes < plans.plain.arena_bytes / 5
    assert program.seconds > 2 * plans.plain.seconds  # of their pace, see `integer_strips.PACE`
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 64, 64), np.uint8)
    (expected, _) = outputs(plans.plain, x, compiler)
    for found in outputs(program, x, compiler):
        np.testing.assert_array_equal(found, expected)
