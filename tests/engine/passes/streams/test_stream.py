"""Groups on strips of rows: bit by bit the plan without, in poisoned memory, on vectors of 8 and 16 lanes."""

import dataclasses
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.core import graph
from app.engine.core.calls import KernelCall
from app.engine.core.program import Program, Step
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Streamed
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.passes.streams.addresses import replayed
from tests.engine.passes.streams.chains import Network, Plans, random_decoder, random_network, stream_of
from tests.engine.passes.streams.forgetting import run_forgetting
from tests.harness import Array, assert_close

NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
RESIZED = [NEAREST, 'mode = "nearest"', 'mode = "linear"', 'mode = "cubic"', 'mode = "linear", antialias = 1']


def target_of(lanes: int) -> Target:
    """This machine with vectors of so many lanes; LLVM splits those that are too wide."""
    return dataclasses.replace(host(), vector_lanes=lanes, flops=192e9)


def runs(program: Program, x: Array, compiler: Compiler) -> list[Array]:
    """Outputs of two runs: in the second the rings hold rows of the first."""
    with closing(Executor(program, compiler, poison=True)) as executor:
        found = [executor.run({"x": x}) for _ in range(2)]
    return [np.asarray(y) for outputs in found for y in outputs.values()]


def check(
    net: Network,
    rows: int,
    folder: Path,
    lanes: int,
    compiler: Compiler,
    *,
    fast: bool = False,
    threads: int = 1,
) -> Program:
    """All that has strips in one stream, against the plan without and the reference evaluator."""
    path = net.save(folder)
    plans = Plans(path, target_of(lanes), fast, threads=threads)
    x = np.random.default_rng(net.seed).standard_normal((1, *net.first)).astype(np.float32)
    streamed = plans.planned(Streamed(plans.names, (rows,) * len(plans.names)))
    assert streamed.compilation.notes == plans.plain.compilation.notes  # nothing was left out
    assert len(streamed.steps) < len(plans.plain.steps)
    (expected, _) = runs(plans.plain, x, compiler)
    for found in (*runs(streamed, x, compiler), run_forgetting(streamed, x, compiler)):
        np.testing.assert_array_equal(found, expected)
    (reference,) = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})
    assert_close(expected, np.asarray(reference), 1e-4)
    return streamed


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("seed", range(8))
def test_random_networks_in_strips(seed: int, lanes: int, tmp_path: Path, compiler: Compiler) -> None:
    check(random_network(seed), Random(seed).choice((1, 2, 3, 4)), tmp_path, lanes, compiler)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("seed", range(6))
def test_transposed_convolutions_in_strips(
    seed: int, lanes: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    rows = Random(seed).choice((1, 2, 3, 4))
    program = check(random_decoder(seed), rows, tmp_path, lanes, compiler, threads=threads)
    replayed(stream_of(program))
    chosen = {part.choice.implementation.name for part in stream_of(program).group.parts}
    assert any(name.startswith("conv_transpose") for name in chosen)


def test_a_sum_with_a_transposed_convolution_in_strips(tmp_path: Path, compiler: Compiler) -> None:
    net = Network((16, 7, 9), seed=5)
    net.conv(32, 3)
    net.transposed(32, 2, 2)
    plain = net.last
    net.conv(64, 3, 2)
    net.transposed(32, 2, 2)
    net.apply(f"Add({plain}, {{}})")
    net.apply("HardSwish({})")
    program = check(net, 2, tmp_path, 16, compiler)
    replayed(stream_of(program))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("attributes", RESIZED)
@pytest.mark.parametrize(
    ("size", "rows"), [((14, 18), 1), ((14, 18), 3), ((10, 12), 2), ((7, 20), 1), ((3, 4), 1)]
)
def test_images_are_resized_in_strips(
    size: tuple[int, int],
    rows: int,
    attributes: str,
    lanes: int,
    threads: int,
    tmp_path: Path,
    compiler: Compiler,
) -> None:
    net = Network((16, 7, 9), seed=rows)
    net.conv(24, 3)
    net.resized(*size, attributes)
    net.conv(16, 3)
    program = check(net, rows, tmp_path, lanes, compiler, threads=threads)
    replayed(stream_of(program))
    names = [part.choice.implementation.name for part in stream_of(program).group.parts]
    assert any(name.startswith("resize.blocked") for name in names)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_sum_with_a_resized_image_in_strips(
    rows: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    net = Network((16, 7, 9), seed=6)
    net.conv(24, 3)
    net.transposed(24, 2, 2)
    plain = net.last
    net.conv(24, 3, 2)
    net.resized(14, 18, NEAREST)
    net.apply(f"Add({plain}, {{}})")
    net.conv(16, 3)
    program = check(net, rows, tmp_path, 16, compiler, threads=threads)
    replayed(stream_of(program))
    (part,) = (p for p in stream_of(program).group.parts if p.group.op == "Resize")
    assert len(part.group.nodes) == 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("rows", [1, 3])
def test_chains_of_elementwise_nodes_in_strips(
    rows: int, lanes: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    net = Network((24, 11, 10), seed=rows)
    first = net.conv(24, 3)
    net.conv(0, 3, group=-1)
    second = net.pool("MaxPool", 3, 1)
    net.apply(f"Mul({{}}, {net.constant(24, 1, 1)})")  # after a pooling, which fuses nothing
    net.apply(f"Add({{}}, {first})")
    net.apply("HardSwish({})")
    net.conv(24, 1)
    net.pool("AveragePool", 3, 1)
    net.apply(f"Mul({{}}, {second})")
    net.conv(16, 3)
    program = check(net, rows, tmp_path, lanes, compiler, threads=threads)
    replayed(stream_of(program))
    names = [part.choice.implementation.name for part in stream_of(program).group.parts]
    assert names.count("elementwise.blocked") == 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("rows", [1, 3])
def test_whole_images_are_reduced_row_by_row(
    rows: int, op: str, lanes: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    net = Network((16, 13, 21), seed=rows)
    net.conv(40, 1)
    net.apply("Relu({})")
    net.conv(0, 3, group=-1)
    net.apply("HardSwish({})")
    net.whole(op)
    program = check(net, rows, tmp_path, lanes, compiler, threads=threads)
    replayed(stream_of(program))
    names = [part.choice.implementation.name for part in stream_of(program).group.parts]
    assert any(name.startswith("global") for name in names)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("seed", range(8, 12))
def test_threads_share_the_calls_of_strips(
    seed: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    rows = Random(seed).choice((1, 2, 3, 4))
    program = check(random_network(seed), rows, tmp_path, 8, compiler, threads=threads)
    (stream,) = (s for s in program.steps if isinstance(s.group, StreamGroup))
    units = [c.units for c in stream.calls if isinstance(c, KernelCall) and ":emit" in c.kernel]
    assert set(units) <= {threads}


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_a_bottleneck_with_a_residual_sum(rows: int, tmp_path: Path, compiler: Compiler) -> None:
    net = Network((16, 13, 11))
    x = net.conv(16, 3)
    net.conv(32)
    net.conv(0, 3, group=-1)
    net.conv(16)
    net.apply(f"Add({x}, {{}})")
    net.conv(24, 3, 2)
    check(net, rows, tmp_path, 16, compiler)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
def test_rows_of_the_blocks_of_a_chunk_are_copied(
    lanes: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    net = Network((100, 11, 9), seed=8)
    net.conv(100, 3)  # whole blocks in several chunks, and a tail
    net.apply("HardSwish({})")
    net.conv(48, 5, 2)
    program = check(net, 2, tmp_path, lanes, compiler, threads=threads)
    replayed(stream_of(program))
    first = stream_of(program).group.memory.schedule.segment.operators[0]
    assert first.scratch < threads * 4 * 4 * 11 * 104 / 2  # of rows with their padding


def check_written_over(net: Network, plans: Plans, program: Program, compiler: Compiler) -> Step:
    """The stream of a program, whose first input and its result share bytes; outputs are those without it."""
    (stream,) = (s for s in program.steps if isinstance(s.group, StreamGroup))
    (source, result) = stream.choice.inplace[0]
    values = program.placement.values
    assert values[source].offset == values[result].offset
    x = np.random.default_rng(0).standard_normal((1, *net.first)).astype(np.float32)
    (expected, _) = runs(plans.plain, x, compiler)
    for found in (*runs(program, x, compiler), run_forgetting(program, x, compiler)):
        np.testing.assert_array_equal(found, expected)
    return stream


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_residual_sum_is_written_over_the_input_of_its_stream(
    rows: int, fast: bool, tmp_path: Path, compiler: Compiler
) -> None:
    net = Network((16, 21, 18), seed=3)
    net.conv(32, 1)
    plain = net.last
    net.conv(32, 3)
    net.apply("Relu({})")
    net.conv(32, 3)
    net.apply(f"Add({plain}, {{}})")
    net.apply("Relu({})")
    net.conv(16, 1)
    path = net.save(tmp_path)
    plans = Plans(path, target_of(8), fast)
    groups = [s.group for s in plans.plain.steps if s.group.op == "Conv"]
    names = tuple(g.name for g in groups if graph.static_shape(graph.operand(g.anchor, 1))[2] == 3)
    program = plans.planned(Streamed(names, (rows,) * 2))
    check_written_over(net, plans, program, compiler)


def test_a_residual_that_an_earlier_group_reads_is_written_over(tmp_path: Path, compiler: Compiler) -> None:
    net = Network((16, 21, 18), seed=4)
    residual = net.conv(32, 3)
    net.conv(0, 3, group=-1)  # reads the residual too, and runs before the stream, which reads what it makes
    before = net.last
    net.conv(64, 1)
    net.conv(32, 1)
    net.apply(f"Add({residual}, {{}})")
    net.conv(16, 3)
    plans = Plans(net.save(tmp_path), target_of(8), fast=False)
    groups = [s.group for s in plans.plain.steps if s.group.op == "Conv"]
    program = plans.planned(Streamed((groups[2].name, groups[3].name), (3, 3)))
    stream = check_written_over(net, plans, program, compiler)
    assert before in [v.name for v in stream.group.inputs]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("rows", [1, 8])
def test_winograd_in_whole_rows_of_tiles(
    rows: int, lanes: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    net = Network((32, 26, 23))
    x = net.conv(32, 3)
    net.conv(32, 3)
    net.apply("HardSwish({})")
    net.conv(32, 3)
    net.apply(f"Add({x}, {{}})")
    net.apply("Relu({})")
    net.conv(48, 3)
    net.conv(16, 3, 2)
    streamed = check(net, rows, tmp_path, lanes, compiler, fast=True, threads=threads)
    (stream,) = (s.group for s in streamed.steps if isinstance(s.group, StreamGroup))
    names = [part.choice.implementation.name for part in stream.parts]
    assert sum("winograd" in name for name in names) >= 3


@pytest.mark.parametrize("lanes", [8, 16])
def test_winograd_with_weights_in_fixed_point(lanes: int, tmp_path: Path, compiler: Compiler) -> None:
    net = Network((128, 13, 10))
    for _ in range(3):
        net.conv(128, 3)
        net.apply("Relu({})")
    streamed = check(net, 4, tmp_path, lanes, compiler, fast=True)
    (stream,) = (s.group for s in streamed.steps if isinstance(s.group, StreamGroup))
    names = [part.choice.implementation.name for part in stream.parts]
    assert any("fixed_point" in name for name in names), names
