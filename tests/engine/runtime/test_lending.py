"""Inputs that a program reads where the caller has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.memory import placed
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import Array, runtime, saved
from tests.engine.runtime.test_cache_in_place import decoder

CONV = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,3,16,16] x, float[1,8,14,14] z, int64[2] i) => (float[1,8,14,14] y, float[1,2,14,14] p) {
    c = Conv (x, w)
    y = Add (c, z)
    p = Gather <axis = 1> (z, i)
}"""
ALIAS = """<ir_version: 10, opset_import: ["": 21]>
g (float[4,4] x) => (float[4,4] y, float[4,4] x) {
    y = Relu (x)
}"""


def executor(path: Path, compiler: Compiler) -> Executor:
    options = Options(autotune=False, backends=("numba-cpu",))
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    return Executor(session.planned(compilation, options), compiler)


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    return saved(CONV, tmp_path, {"w": np.random.default_rng(1).standard_normal((8, 3, 3, 3), np.float32)})


def inputs(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    x, z = (
        random.standard_normal((1, 3, 16, 16), np.float32),
        random.standard_normal((1, 8, 14, 14), np.float32),
    )
    return {"x": placed(x), "z": placed(z), "i": placed(random.integers(0, 8, 2))}


def outputs(program: Executor, given: dict[str, Array], how: str) -> dict[str, Array]:
    getattr(program, how)(given)
    program.step()
    return {name: np.array(array) for name, array in program.peek().items()}


def test_runs_on_lent_inputs_are_those_on_copies(conv: Path, compiler: Compiler) -> None:
    program = executor(conv, compiler)
    for seed, how in enumerate(("feed", "lend", "lend", "feed", "lend")):
        given = inputs(seed)
        found, expected = outputs(program, given, how), runtime(conv, given)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-5)
    program.close()


def test_what_is_lent_is_read_where_it_is_and_never_after_the_next_inputs(
    conv: Path, compiler: Compiler
) -> None:
    program, given = executor(conv, compiler), inputs(0)
    own = program.place_of(program.program.compilation.graph.inputs[0])
    assert own is not None
    before = outputs(program, given, "lend")
    assert not own.any(), "nothing was copied"
    given["x"][...] = 0.0
    program.step()
    assert (np.asarray(program.peek()["y"]) == given["z"]).all(), "the program reads what the caller changes"
    program.feed(inputs(0))
    given["x"][...] = np.nan
    program.step()
    np.testing.assert_array_equal(np.asarray(program.peek()["y"]), before["y"])
    given = inputs(0)
    program.lend(given)
    program.refeed({"x": inputs(0)["x"]})
    given["x"][...] = np.nan
    program.step()
    np.testing.assert_array_equal(np.asarray(program.peek()["y"]), before["y"])
    program.close()


@pytest.mark.parametrize("form", ["misaligned", "strided"])
def test_arrays_that_lie_otherwise_are_copied(conv: Path, compiler: Compiler, form: str) -> None:
    program, given = executor(conv, compiler), inputs(0)
    expected = outputs(program, given, "feed")
    x: Any = given["x"]
    if form == "misaligned":
        given["x"] = placed(np.zeros(x.size + 1, np.float32))[1:].reshape(x.shape)
    else:
        given["x"] = placed(np.zeros((*x.shape, 2), np.float32))[..., 0]
    given["x"][...] = x
    program.lend(given)
    given["x"][...] = np.nan
    program.step()
    np.testing.assert_array_equal(np.asarray(program.peek()["y"]), expected["y"])
    program.close()


def test_indices_are_copied_as_they_were_checked(conv: Path, compiler: Compiler) -> None:
    program, given = executor(conv, compiler), inputs(0)
    expected = outputs(program, given, "lend")
    program.lend(given)
    given["i"][...] = 10**9
    program.step()
    np.testing.assert_array_equal(np.asarray(program.peek()["p"]), expected["p"])
    program.close()


def test_inputs_that_are_outputs_or_are_written_are_copied(tmp_path: Path, compiler: Compiler) -> None:
    program, x = executor(saved(ALIAS, tmp_path, {}), compiler), placed(np.ones((4, 4), np.float32))
    program.lend({"x": x})
    x[...] = 2.0
    program.step()
    assert all((np.asarray(array) == 1.0).all() for array in program.peek().values())
    program.close()
    path, fed = decoder(tmp_path)
    program = executor(path, compiler)
    fed = {name: placed(array) for name, array in fed.items()}
    before = {name: array.copy() for name, array in fed.items()}
    expected = runtime(path, before)
    found = outputs(program, fed, "lend")
    np.testing.assert_allclose(found["y"], expected["y"], rtol=0, atol=2e-6)
    for name, array in before.items():
        np.testing.assert_array_equal(fed[name], array), "the caller's memory is not written"
    program.close()


def test_a_run_reads_large_inputs_that_begin_within_a_cache_line_where_they_are(
    tmp_path: Path, compiler: Compiler
) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
g (float[256,257] x) => (float[256,64] y) { r = Relu (x) y = MatMul (r, w) }"""
    weights = np.random.default_rng(1).standard_normal((257, 64), np.float32)
    path = saved(text, tmp_path, {"w": weights})
    program, x = executor(path, compiler), placed(np.zeros(256 * 257 + 1, np.float32))[1:].reshape(256, 257)
    x[...] = np.random.default_rng(2).standard_normal(x.shape, np.float32)
    own = program.place_of(program.program.compilation.graph.inputs[0])
    assert own is not None
    found = program.run({"x": x})["y"]
    assert not own.any(), "nothing was copied"
    program.feed({"x": x})
    program.step()
    np.testing.assert_array_equal(np.asarray(program.peek()["y"]), found)
    np.testing.assert_allclose(found, np.maximum(x, 0) @ weights, rtol=0, atol=1e-4)
    program.close()
