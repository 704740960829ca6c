"""A served model: programs for shapes, ports, bound values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.entry.served_model import Port, ServedModel
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.errors import EngineError, GraphError, InputError
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import bound
from app.engine.types.target import host
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.runtime.compiler import Compiler

PLAIN = Options(autotune=False)
TEXT = """<ir_version: 10, opset_import: ["" : 21]>
model (float[N, 3] x, float scale) => (float[N, 3] y) {
    scaled = Mul(x, scale)
    y = Relu(scaled)
}"""


def served(
    folder: Path,
    compiler: Compiler,
    text: str = TEXT,
    bindings: Bindings | None = None,
    weights: dict[str, np.ndarray] | None = None,
    options: Options = PLAIN,
) -> ServedModel:
    path = folder / "model.onnx"
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items())
    onnx.save(model, path)
    return ServedModel(path, options, bindings or Bindings(), kernels=compiler.cache)


def test_a_model_runs_on_every_shape_that_its_graph_allows(tmp_path: Path, compiler: Compiler) -> None:
    model = served(tmp_path, compiler, bindings=Bindings(shapes={"x": (2, 3)}, values={"scale": 2.0}))
    assert model.inputs == (Port("x", np.dtype(np.float32), (None, 3)),)
    assert model.outputs == (Port("y", np.dtype(np.float32), (None, 3)),)
    assert model.first == {"x": (2, 3)}
    assert model.fixed == {"scale": 2.0}
    for rows in (2, 5):
        x = np.arange(-3, rows * 3 - 3, dtype=np.float32).reshape(rows, 3)
        program = model.program({"x": (rows, 3)})
        program.feed({"x": x})
        program.step()
        y = program.peek()["y"]
        np.testing.assert_array_equal(y, np.maximum(x * 2, 0))
        program.feed({"x": x + 1})
        program.step()
        np.testing.assert_array_equal(y, np.maximum((x + 1) * 2, 0), "what is peeked at is in place")
        program.close()
    with pytest.raises(EngineError):
        model.program({"x": (2, 4)})


SQUARES = """<ir_version: 10, opset_import: ["" : 21]>
model (float[N, N] x) => (float[N, N] y) {
    square = MatMul(x, x)
    fourth = MatMul(square, square)
    y = MatMul(fourth, square)
}"""


def test_programs_of_an_instance_share_an_arena_and_keep_their_outputs(
    tmp_path: Path, compiler: Compiler
) -> None:
    model = served(tmp_path, compiler, SQUARES)
    sizes = (48, 16, 64, 40)
    programs = {n: model.programs({"x": (n, n)}, ((), ())) for n in sizes}
    arenas = {(n, i): p.surroundings().arena for n, pair in programs.items() for i, p in enumerate(pair)}
    assert all(a.size for a in arenas.values())
    for instance in (0, 1):
        assert np.shares_memory(arenas[48, instance], arenas[16, instance])
        assert np.shares_memory(arenas[64, instance], arenas[40, instance]), "the larger one is taken"
    for a in sizes:
        for b in sizes:
            assert not np.shares_memory(arenas[a, 0], arenas[b, 1])
    rng = np.random.default_rng(0)
    found = []
    for n in (*sizes, *sizes):
        for program in programs[n]:
            x = (rng.standard_normal((n, n)) / n).astype(np.float32)
            program.feed({"x": x})
            program.step()
            found.append((program, x))
    # The last run of each still has its outputs, after runs of all others.
    for program, x in found[len(found) // 2 :]:
        wide = x.astype(np.float64)
        square = wide @ wide
        np.testing.assert_allclose(program.peek()["y"], square @ square @ square, atol=1e-6)


def test_a_region_has_one_plan_and_one_memory(tmp_path: Path, compiler: Compiler) -> None:
    shapes, region = bound({"x": ["N:1..6%2", 3]})
    model = served(tmp_path, compiler, bindings=Bindings(shapes=shapes, values={"scale": 2.0}, region=region))
    assert model.first == {"x": (6, 3)}
    programs = {rows: model.program({"x": (rows, 3)}) for rows in (6, 2)}
    programs |= {dict(shapes)["x"][0]: program for shapes, (program,) in model.ahead()}
    assert list(programs) == [6, 2, 4], "those that were asked for are not made again"
    for rows, program in programs.items():
        assert program.shares_memory
        x = np.arange(-3, rows * 3 - 3, dtype=np.float32).reshape(rows, 3)
        program.feed({"x": x})
        program.step()
        np.testing.assert_array_equal(program.peek()["y"], np.maximum(x * 2, 0))
        with pytest.raises(InputError, match=f"expected float32.{rows}, 3., found float32.9, 3."):
            program.feed({"x": np.zeros((9, 3), np.float32)})
    other = model.program({"x": (3, 3)})
    assert not other.shares_memory, "3 is no multiple of 2"


def test_instances_of_a_region_share_its_plan_and_weights(tmp_path: Path, compiler: Compiler) -> None:
    """Each has an arena, inputs and outputs of its own; a batch is a point of the region too."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    model (float[N, 64] x) => (float[N, 64] y) {
        h = MatMul (x, w)
        y = MatMul (h, w)
    }"""
    wide = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    shapes, region = bound({"x": ["N:1..6", 64]})
    bindings = Bindings(shapes=shapes, region=region)
    model = served(tmp_path, compiler, text, bindings, weights={"w": wide})
    assert model.rows_of_outputs({"x": (2, 64)}, 3) == {"y"}
    pairs = {rows: model.programs({"x": (rows, 64)}, ((), ())) for rows in (2, 6)}
    for shapes_ahead, made in model.ahead():
        pairs[shapes_ahead["x"][0]] = made
    assert sorted(pairs) == [1, 2, 3, 4, 5, 6]
    around = [pairs[6][i]._memory[0] for i in range(2)]  # type: ignore[union-attr]
    memory = [{v.name: a for v, a in each.roots.items()} for each in around]
    assert not np.shares_memory(memory[0].pop("x"), memory[1].pop("x"))
    assert not np.shares_memory(memory[0].pop("y"), memory[1].pop("y"))
    assert memory[0].keys() == memory[1].keys()
    packed = [each.packed for each in around]
    shared = [a for key, a in packed[0].items() if a is packed[1].get(key)]
    shared += [a for name, a in memory[0].items() if np.shares_memory(a, memory[1][name])]
    assert sum(a.nbytes for a in shared) >= wide.nbytes
    for rows, programs in pairs.items():
        xs = [np.random.default_rng(i).standard_normal((rows, 64)).astype(np.float32) for i in range(2)]
        for program, x in zip(programs, xs, strict=True):
            assert program.shares_memory
            program.feed({"x": x})
        for program in programs:
            program.step()
        for program, x in zip(programs, xs):
            np.testing.assert_allclose(program.peek()["y"], x @ wide @ wide, atol=1e-5)


def test_outputs_whose_size_a_run_finds_out_are_served_by_a_region(
    tmp_path: Path, compiler: Compiler
) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    model (float[N, 3] x, bool[N] c) => (float[k, 3] y) { y = Compress <axis = 0> (x, c) }"""
    shapes, region = bound({"x": ["N:2..6", 3], "c": ["N"]})
    model = served(tmp_path, compiler, text, Bindings(shapes=shapes, region=region))
    for rows in (6, 2):
        program = model.program({"x": (rows, 3), "c": (rows,)})
        assert program.shares_memory
        for chosen in (np.arange(rows) % 2 == 0, np.ones(rows, np.bool_), np.zeros(rows, np.bool_)):
            x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
            program.feed({"x": x, "c": chosen})
            program.step()
            assert program.peek().keys() == {"y"}
            np.testing.assert_array_equal(program.peek()["y"], x[chosen])


def test_a_model_without_one_plan_for_the_region_has_a_plan_for_each_shape(
    tmp_path: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    model (float[N] x) => (float[N] y) {
        shape = Shape (x)
        count = Cast <to = 1> (shape)
        y = Div (x, count)
    }"""
    shapes, region = bound({"x": ["N:2..6"]})
    model = served(tmp_path, compiler, text, Bindings(shapes=shapes, region=region))
    for rows in (6, 2):
        program = model.program({"x": (rows,)})
        assert not program.shares_memory
        program.feed({"x": np.ones(rows, np.float32)})
        program.step()
        np.testing.assert_allclose(program.peek()["y"], np.full(rows, 1 / rows), rtol=1e-6)
    assert list(model.ahead()) == []
    assert "have a program of their own: the constant at position 1 of 'Div y' depends on" in caplog.text


def test_shapes_that_the_job_did_not_know_are_not_planned_ahead(tmp_path: Path, compiler: Compiler) -> None:
    assert served(tmp_path, compiler).first is None


def test_what_is_no_tensor_of_numbers_is_refused(tmp_path: Path, compiler: Compiler) -> None:
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    with pytest.raises(GraphError, match="input 'x': expected a tensor of numbers, found tensor.string."):
        served(tmp_path, compiler, f"{header} model (string[2] x) => (string[2] y) {{ y = Identity(x) }}")
    sequence = f"{header} model (float[2] x) => (seq(float[2]) y) {{ y = SequenceConstruct(x) }}"
    with pytest.raises(GraphError, match="output 'y': expected a tensor of numbers"):
        served(tmp_path, compiler, sequence)


def test_products_of_16_bit_integers_are_those_of_the_job_at_every_shape(
    tmp_path: Path, compiler: Compiler
) -> None:
    """A result is within what two roundings to 13 and 15 bits leave of each product, and not that of float32."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    model (float[1,64,H,28] x) => (float[1,128,H,28] y) {
        y = Conv(x, w)
    }"""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((128, 64, 1, 1)).astype(np.float32)
    bindings = Bindings(shapes={"x": (1, 64, 28, 28)})
    options = replace(PLAIN, fast_algorithms=False)
    plain = served(tmp_path, compiler, text, bindings, {"w": w}, options)
    model = session.canonical(load(tmp_path / "model.onnx"), host(), options, bindings, load_registry()).model
    chosen = replace(options, int16={n.name or "": "chosen" for n in model.graph})
    own = served(tmp_path, compiler, text, bindings, {"w": w}, chosen)
    for rows in (28, 17):
        x = rng.standard_normal((1, 64, rows, 28)).astype(np.float32)
        exact = np.einsum("oc,bchw->bohw", w[:, :, 0, 0].astype(np.float64), x.astype(np.float64))
        found = []
        for each in (plain, own):
            program = each.program({"x": x.shape})
            found.append(program.run({"x": x})["y"])
            program.close()
        errors = [np.abs(y - exact).max() for y in found]
        scales = tiles.scaled_integers(w)[1].max(), np.abs(x).max() / tiles.SCALED_MOST
        bound = np.abs(x).sum(1).max() * scales[0] / 2 + np.abs(w).sum(1).max() * scales[1] / 2
        assert errors[0] < 1e-4
        assert 1e-4 < errors[1] < bound
