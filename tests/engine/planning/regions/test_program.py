"""Programs of regions: equal to the reference at every shape in poisoned memory, and valid plans."""

import gc
import json
import weakref
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

from app.engine.core.group import Group
from app.engine.core.plan import Choice
from app.engine.memory.region_peak import peak_at, region_of
from app.engine.planning.regions import runner as region_runner
from app.engine.planning.regions.alternatives import Alternatives, Candidate
from app.engine.planning.regions.memory import memory_formulas
from app.engine.planning.regions.runner import RegionRunner
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import InputError, RegionError
from app.engine.types.regions.region import Point
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.planning.regions.networks import Network, images, texts
from tests.fuzzing.regions import SHAPES, check, drawn, expected, network, planned, points_of


@pytest.mark.parametrize("seed", range(12))
def test_outputs_of_every_shape_are_those_of_the_reference(
    seed: int, tmp_path: Path, compiler: Compiler
) -> None:
    """A sample of `python -m tests.fuzzing.regions`."""
    check(network(seed), tmp_path, seed, compiler)


# Seeds beyond the sample that once failed, and what they protect.
FAILED = {
    27: "a shape whose workspace makes it take more than the largest shape",
    57: "a part that comes twice in a whole, where the plan of a point shares one of them",
}


@pytest.mark.parametrize("seed", FAILED, ids=FAILED.get)
def test_what_once_failed_stays_mended(seed: int, tmp_path: Path, compiler: Compiler) -> None:
    check(network(seed), tmp_path, seed, compiler)


def test_rules_that_extents_decide_are_left_out(tmp_path: Path, compiler: Compiler) -> None:
    """A dilated window is larger than the image at some shapes of the region, and not at others."""
    rng = np.random.default_rng(3)
    found = Network("float[1,4,h,w] x", {"x": [1, 4, "h:16..48%16", "w:16..48%16"]}, outputs=["v0"])
    weights = found.weight(64, 4, 3, 3, rng=rng)
    found.add(f"Conv<dilations = [24, 24], pads = [24, 24, 24, 24]>(x, {weights})")
    check(found, tmp_path, 3, compiler)


@pytest.mark.parametrize("seed", range(4))
def test_the_peak_by_formula_is_that_of_the_plan(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    found = images(rng, 14) if seed % 2 else texts(rng, 6)
    program = planned(found.save(tmp_path / "net.onnx"), found.spelled)
    document = json.loads(json.dumps(memory_formulas(program)))
    assert document["proof"]
    for point in points_of(program, SHAPES, rng):
        shapes = program.region.shapes(point)
        peak, placed = peak_at(document, shapes), program.at(point).arena_bytes
        assert (peak.nbytes == placed) if peak.exact else (peak.nbytes >= placed)
        assert placed <= document["worst_bytes"]
        assert region_of(document).point(shapes) == point
    with pytest.raises(InputError, match="outside of the region of shapes"):
        peak_at(document, {name: (99, *dims[1:]) for name, dims in shapes.items()})


def equal_layers(rng: np.random.Generator) -> Network:
    found = Network("float[n, l, 96] x", {"x": ["n<=4", "l<=320", 96]})
    x = "x"
    for _ in range(3):
        x = found.add(f"Tanh ({found.add(f'MatMul ({x}, {found.weight(96, 96, rng=rng)})')})")
    found.outputs = [x]
    return found


def test_workspaces_without_a_formula_have_a_table_of_all_shapes_of_a_large_region(tmp_path: Path) -> None:
    """Equal layers share it, and one of them is lowered."""
    rng = np.random.default_rng(0)
    found = equal_layers(rng)
    program = planned(found.save(tmp_path / "net.onnx"), found.spelled)
    document = json.loads(json.dumps(memory_formulas(program)))
    (piece,) = document["pieces"]
    tables = [row["table"] for row in piece["buffers"] if row["table"]]
    shared = [table for table in tables if isinstance(table, str)]
    assert shared
    assert len(tables) > len(shared)
    assert piece["exact"]
    for point in (*points_of(program, 12, rng), {"n": 2, "l": 50}, {"n": 1, "l": 110}):
        peak = peak_at(document, program.region.shapes(point))
        assert peak == (program.at(point).arena_bytes, True), point


def test_equal_layers_have_the_rows_that_each_would_have_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are put in order once a shape."""
    rng = np.random.default_rng(0)
    found = equal_layers(rng)
    (piece,) = planned(found.save(tmp_path / "net.onnx"), found.spelled).pieces
    points = [piece.region.at(index) for index in (0, 1, 700, piece.region.count - 1)]

    def rows(point: Point) -> list[tuple[str, str]]:
        chosen = piece.at(point).compilation.plan.require("implementation").values()
        return [(choice.implementation.name, choice.tuning) for choice in chosen]

    ordered: list[str] = []
    order = Alternatives.ordered

    def counted(self: Alternatives, point: Point, group: Group, choice: Choice) -> Iterable[Candidate]:
        ordered.append(group.name)
        return order(self, point, group, choice)

    monkeypatch.setattr(Alternatives, "ordered", counted)
    together = [rows(point) for point in points]
    kinds = len(ordered) / len(points)
    assert kinds < len(together[0])
    monkeypatch.setitem(vars(piece), "_anchor_kinds", dict.fromkeys(piece._anchor_kinds))
    assert [rows(point) for point in points] == together
    assert len(ordered) == len(points) * (kinds + len(together[0]))


def test_programs_of_shapes_keep_no_executor(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands of them."""
    found = images(np.random.default_rng(1), 8)
    program = planned(found.save(tmp_path / "net.onnx"), found.spelled)
    made: list[weakref.ref[Executor]] = []

    class Watched(Executor):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(weakref.ref(self))

    monkeypatch.setattr(region_runner, "Executor", Watched)
    with closing(RegionRunner(program, compiler)) as runner:
        kept = [runner.filled(point) for point in points_of(program, 4, np.random.default_rng(0))]
        gc.collect()
        assert len(kept) == 4 < len(made)
        assert not [alive for alive in made if alive() is not None]


def test_shapes_share_one_memory_and_one_copy_of_the_weights(tmp_path: Path, compiler: Compiler) -> None:
    found = images(np.random.default_rng(0), 14)
    path = found.save(tmp_path / "net.onnx")
    program = planned(path, found.spelled)
    rng = np.random.default_rng(1)
    with closing(RegionRunner(program, compiler)) as runner:
        points = points_of(program, SHAPES, rng)
        executors = [runner.filled(p) for p in points]
        held = runner.constant_bytes
        executors += [runner.filled(p) for p in points]
        assert runner.constant_bytes == held
        for point, executor in zip(points * 2, executors):
            inputs = drawn(found.spelled, point, rng)
            (output,) = executor.run(inputs).values()
            (reference,) = expected(path, inputs)
            scale = max(1.0, float(np.abs(reference).max()))
            np.testing.assert_allclose(output, reference, atol=2e-4 * scale, rtol=0, err_msg=str(point))


def test_a_graph_that_grows_as_it_runs_has_no_region(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[n] x) => (float[k] y) { y = Unique (x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    with pytest.raises(RegionError, match="'y' of Unique 'Unique y' has a shape that is known only when"):
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
    for point in points_of(program, SHAPES, rng):
        x = rng.standard_normal((point["n"], point["l"])).astype(np.float32)
        with closing(Executor(program.at(point), compiler, poison=True)) as executor:
            np.testing.assert_array_equal(executor.run({"x": x})["y"], x[:, None, :])


def test_transposes_lie_at_the_same_places_at_every_shape(tmp_path: Path, compiler: Compiler) -> None:
    """Ahead of the sum a transpose copies 8 x 64 elements, behind it 8 x 2 for each of the symbol."""
    found = Network("float[l,1,1] x", {"x": ["l<=100", 1, 1]}, outputs=["v5"])
    rng = np.random.default_rng(3)
    column, row = found.weight(1, 8, 1, rng=rng), found.weight(1, 1, 64, rng=rng)
    every, begin, end, axis = (found.constant(np.array(n)) for n in ([0, 1, 2], [0], [2], [1]))
    found.add(f"ReduceSum(x, {every})")
    found.add(f"Mul(v0, {row})")
    found.add(f"MatMul({column}, v1)")
    found.add("Transpose<perm = [0, 2, 1]>(v2)")
    found.add("Add(v3, x)")
    found.add(f"Slice(v4, {begin}, {end}, {axis})")
    check(found, tmp_path, 3, compiler)
