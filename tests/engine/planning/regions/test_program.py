"""Programs of regions: equal to the reference at every shape in poisoned memory, and valid plans."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.memory.problem import Problem, validate
from app.engine.memory.region_peak import peak_at, region_of
from app.engine.model.load import load
from app.engine.planning.regions.entry import region_of_model
from app.engine.planning.regions.memory import memory_formulas
from app.engine.planning.regions.pieces import RegionPlan
from app.engine.planning.regions.runner import RegionRunner
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import InputError, RegionError
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import Point, bound
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.planning.regions.networks import Network, images, texts
from tests.harness import OWN, Array

OPTIONS = Options(autotune=False, choose="first", backends=OWN)
SHAPES = 5  # of each network, beside its samples


def planned(path: Path, spelled: dict[str, list[int | str]]) -> RegionPlan:
    shapes, region = bound(spelled)
    bindings = Bindings(shapes, region=region)
    return region_of_model(load(path), host(), OPTIONS, bindings, load_registry())


def drawn(found: Network, path: Path, point: Point, rng: np.random.Generator) -> dict[str, Array]:
    _, region = bound(found.spelled)
    assert region is not None
    ((name, shape),) = region.shapes(point).items()
    if name == "ids":
        return {name: rng.integers(0, 11, shape)}
    return {name: rng.standard_normal(shape).astype(np.float32)}


def expected(path: Path, inputs: dict[str, Array]) -> list[Array]:
    """Outputs by the evaluator of the package onnx."""
    return onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, inputs)  # type: ignore[no-any-return]


def points_of(program: RegionPlan, rng: np.random.Generator) -> list[Point]:
    every = list(program.region.points())
    least = {n: s.low for n, s in program.region.symbols.items()}
    return [program.region.largest, least, *(every[i] for i in rng.integers(len(every), size=SHAPES))]


def check(found: Network, folder: Path, seed: int, compiler: Compiler) -> None:
    rng = np.random.default_rng(seed)
    path = found.save(folder / "net.onnx")
    program = planned(path, found.spelled)
    peaks = {}
    for point in points_of(program, rng):
        inputs = drawn(found, path, point, rng)
        plan = program.at(point)
        buffers = plan.compilation.plan.require("buffers")
        validate(Problem(buffers.assignment.problem.buffers), plan.placement.solution)
        peaks[tuple(point.values())] = plan.arena_bytes
        with closing(Executor(plan, compiler, poison=True)) as executor:
            outputs = executor.run(inputs)
        for result, reference in zip(outputs.values(), expected(path, inputs), strict=True):
            assert isinstance(result, np.ndarray)
            assert result.shape == reference.shape, point
            scale = max(1.0, float(np.abs(reference).max()))
            np.testing.assert_allclose(result, reference, atol=2e-4 * scale, rtol=0, err_msg=str(point))
    assert max(peaks.values()) == peaks[tuple(program.region.largest.values())]


@pytest.mark.parametrize("seed", range(5))
def test_images_of_every_size_are_those_of_the_reference(
    seed: int, tmp_path: Path, compiler: Compiler
) -> None:
    check(images(np.random.default_rng(seed), 14), tmp_path, seed, compiler)


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_every_length_are_those_of_the_reference(
    seed: int, tmp_path: Path, compiler: Compiler
) -> None:
    check(texts(np.random.default_rng(seed), 6), tmp_path, seed, compiler)


@pytest.mark.parametrize("seed", range(4))
def test_the_peak_by_formula_is_that_of_the_plan(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    found = images(rng, 14) if seed % 2 else texts(rng, 6)
    program = planned(found.save(tmp_path / "net.onnx"), found.spelled)
    document = json.loads(json.dumps(memory_formulas(program)))
    assert document["proof"]
    for point in points_of(program, rng):
        shapes = program.region.shapes(point)
        peak, placed = peak_at(document, shapes), program.at(point).arena_bytes
        assert (peak.nbytes == placed) if peak.exact else (peak.nbytes >= placed)
        assert placed <= document["worst_bytes"]
        assert region_of(document).point(shapes) == point
    with pytest.raises(InputError, match="outside of the region of shapes"):
        peak_at(document, {name: (99, *dims[1:]) for name, dims in shapes.items()})


def test_shapes_share_one_memory_and_one_copy_of_the_weights(tmp_path: Path, compiler: Compiler) -> None:
    found = images(np.random.default_rng(0), 14)
    path = found.save(tmp_path / "net.onnx")
    program = planned(path, found.spelled)
    rng = np.random.default_rng(1)
    with closing(RegionRunner(program, compiler)) as runner:
        points = points_of(program, rng)
        executors = [runner.filled(p) for p in points]
        held = runner.constant_bytes
        executors += [runner.filled(p) for p in points]
        assert runner.constant_bytes == held
        for point, executor in zip(points * 2, executors):
            inputs = drawn(found, path, point, rng)
            (output,) = executor.run(inputs).values()
            (reference,) = expected(path, inputs)
            scale = max(1.0, float(np.abs(reference).max()))
            np.testing.assert_allclose(output, reference, atol=2e-4 * scale, rtol=0, err_msg=str(point))


def test_a_graph_that_grows_as_it_runs_has_no_region(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[n] x) => (int64[1, k] y) { y = NonZero (x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    with pytest.raises(RegionError, match="'y' has a shape that is known only when the graph runs"):
        planned(tmp_path / "net.onnx", {"x": ["n<=8"]})


def test_a_dimension_that_no_formula_has_is_named(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[1, 4, h, 8] x, float[4, 4, 3, 3] w) => (float[a, b, c, d] y) {
            y = Conv <strides = [61, 1], pads = [1, 1, 1, 1]> (x, w)
        }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    with pytest.raises(RegionError, match="the shape of 'y': number 2 is no formula of h .*a divisor"):
        planned(tmp_path / "net.onnx", {"x": [1, 4, "h:2..512", 8], "w": [4, 4, 3, 3]})


def test_a_constant_that_depends_on_the_shape_otherwise_is_named(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[n] x) => (float[n] y) {
            s = Shape (x)
            f = Cast <to = 1> (s)
            y = Div (x, f)
        }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    with pytest.raises(
        RegionError, match="depends on the shape: it is neither the beginning of that of the largest"
    ):
        planned(tmp_path / "net.onnx", {"x": ["n:2..8"]})


def test_indices_that_a_graph_computes_from_the_shape_are_those_of_every_point(
    tmp_path: Path, compiler: Compiler
) -> None:
    """Exporters gather from a flattened mask at row * length + column, computed from the shape."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[n, l] x) => (float[n, 1, l] y) {
            zero = Constant <value_int = 0> ()
            one = Constant <value_int = 1> ()
            s = Shape (x)
            n = Gather (s, zero)
            l = Gather (s, one)
            rows = Range (zero, n, one)
            columns = Range (zero, l, one)
            starts = Mul (rows, l)
            axes = Constant <value_ints = [1, 2]> ()
            down = Unsqueeze (starts, axes)
            indices = Add (down, columns)
            all = Constant <value_ints = [-1]> ()
            flat = Reshape (x, all)
            y = Gather (flat, indices)
        }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    program = planned(tmp_path / "net.onnx", {"x": ["n<=9", "l:2..40"]})
    rng = np.random.default_rng(0)
    for point in points_of(program, rng):
        x = rng.standard_normal((point["n"], point["l"])).astype(np.float32)
        with closing(Executor(program.at(point), compiler, poison=True)) as executor:
            np.testing.assert_array_equal(executor.run({"x": x})["y"], x[:, None, :])
