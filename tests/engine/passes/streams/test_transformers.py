"""Matrices in strips of rows and attention head by head: bit by bit the plan without, and its addresses."""

import dataclasses
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.core.calls import Call, Constant, KernelCall
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.memory.rows.replay import ReplayError
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.streams.matrix_strips import denied_for_strips, in_matrix_strips
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, MemoryConcessions, Streamed
from app.engine.types.regions.region import Region
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.passes.streams.addresses import replayed
from tests.engine.passes.streams.chains import OPTIONS, stream_of
from tests.engine.passes.streams.test_stream import runs, target_of
from tests.engine.passes.streams.transformers import WIDTH, attention, feed_forward
from tests.harness import assert_close

REGISTRY = load_registry()


class Layer:
    """Plans of a layer, whose products and attention have strips."""

    def __init__(self, path: Path, lanes: int = 16, threads: int = 1) -> None:
        self.path = path
        options = dataclasses.replace(OPTIONS, threads=threads)
        compilation = session.canonical(load(path), target_of(lanes), options, Bindings(), REGISTRY)
        self._plan = session.builder(compilation, options)
        self._denied = denied_for_strips(self._plan(MemoryConcessions(unbounded=True)))
        self.plain = self.planned()
        self.proposed = in_matrix_strips(self.plain)

    def planned(self, *streams: Streamed) -> Program:
        concessions = MemoryConcessions(denied=self._denied, streams=streams, unbounded=True)
        return self._plan(concessions)

    def check(self, streamed: Program, compiler: Compiler) -> None:
        """Outputs are those of the plan without, and about those of the reference evaluator."""
        assert streamed.compilation.notes == self.plain.compilation.notes  # nothing was left out
        tokens = int(self.plain.compilation.graph.inputs[0].shape[1])  # type: ignore[index,arg-type]
        x = np.random.default_rng(0).standard_normal((1, tokens, WIDTH)).astype(np.float32)
        expected, _ = runs(self.plain, x, compiler)
        for found in runs(streamed, x, compiler):
            np.testing.assert_array_equal(found, expected)
        (reference,) = ReferenceEvaluator(onnx.load(self.path)).run(None, {"x": x})
        assert_close(expected, np.asarray(reference), 1e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("tokens", "rows"), [(61, 24), (101, 48), (48, 24)])
def test_products_in_strips_of_rows(
    tokens: int, rows: int, lanes: int, threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    layer = Layer(feed_forward(tmp_path / "layer.onnx", tokens), lanes, threads)
    names = tuple(step.group.name for step in layer.plain.steps)
    streamed = layer.planned(Streamed(names, (rows,) * 2))
    replayed(stream_of(streamed))
    assert streamed.arena_bytes < layer.plain.arena_bytes
    layer.check(streamed, compiler)


def test_a_last_strip_of_one_row_is_rejected(tmp_path: Path) -> None:
    assert not Layer(feed_forward(tmp_path / "layer.onnx", 97)).proposed


@pytest.mark.parametrize("last", ["Relu(sums)", "Mul(sums, sums)", "Max(sums, b1)"])
def test_what_follows_the_last_product(last: str, tmp_path: Path, compiler: Compiler) -> None:
    layer = Layer(feed_forward(tmp_path / "layer.onnx", 61, 600, last))
    names = tuple(step.group.name for step in layer.plain.steps)[:2]
    layer.check(layer.planned(Streamed(names, (24, 24))), compiler)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("tokens", [35, 64])
def test_attention_head_by_head(
    tokens: int, lanes: int, threads: int, masked: bool, tmp_path: Path, compiler: Compiler
) -> None:
    layer = Layer(attention(tmp_path / "layer.onnx", tokens, masked=masked), lanes, threads)
    (streams,) = {s for proposed in layer.proposed for s in proposed if s.heads}
    assert len(streams.groups) == 4
    streamed = layer.planned(streams)
    if not masked:
        replayed(stream_of(streamed))
    layer.check(streamed, compiler)


def test_heads_that_lie_a_column_too_early_are_found(tmp_path: Path) -> None:
    layer = Layer(attention(tmp_path / "layer.onnx", 35))
    step = stream_of(layer.planned(*next(s for s in layer.proposed if s[0].heads)))
    calls = tuple(_shifted(call) for call in step.calls)
    with pytest.raises(ReplayError):
        replayed(dataclasses.replace(step, choice=dataclasses.replace(step.choice, calls=calls)))


def _shifted(call: Call) -> Call:
    """A projection whose result begins an element too early; other calls as they are."""
    if not isinstance(call, KernelCall) or "strip_heads" not in call.kernel:
        return call
    table = np.array(call.arguments[5].array)  # type: ignore[union-attr]
    table[4] += 1
    return dataclasses.replace(
        call, arguments=tuple(Constant(table) if i == 5 else a for i, a in enumerate(call.arguments))
    )


def test_the_smallest_plan_of_a_layer_is_in_strips(tmp_path: Path, compiler: Compiler) -> None:
    path = attention(tmp_path / "layer.onnx", 64)
    options = dataclasses.replace(OPTIONS, prefer="memory", fast_algorithms=True)
    compilation = session.canonical(load(path), target_of(16), options, Bindings(), REGISTRY)
    program = session.planned(compilation, options)
    concessions = program.compilation.concessions
    assert any(stream.heads for stream in concessions.streams)
    without = session.builder(compilation, options)(dataclasses.replace(concessions, streams=()))
    assert program.arena_bytes < 0.8 * without.arena_bytes
    x = np.random.default_rng(0).standard_normal((1, 64, WIDTH)).astype(np.float32)
    found = []
    for one in (program, without):
        with closing(Executor(one, compiler, poison=True)) as executor:
            (y,) = executor.run({"x": x}).values()
            found.append(np.asarray(y))
    np.testing.assert_array_equal(*found)


def test_a_plan_for_a_region_of_shapes_has_none(tmp_path: Path) -> None:
    loaded = load(attention(tmp_path / "layer.onnx", 64))
    compilation = session.canonical(loaded, target_of(16), OPTIONS, Bindings(), REGISTRY)
    program = session.planned(compilation, OPTIONS)
    assert in_matrix_strips(program)
    bindings = dataclasses.replace(compilation.bindings, region=Region({}, {}))
    regional = dataclasses.replace(
        program, compilation=dataclasses.replace(program.compilation, bindings=bindings)
    )
    assert not in_matrix_strips(regional)
    assert not denied_for_strips(regional)
