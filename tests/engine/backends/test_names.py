"""Steps on strings run in our own rows, with the results of onnxruntime."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.oracle import runtime
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import OWN, Array

HEAD = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 2]>'
WORDS = np.array([["a", "b"], ["", "zebra"], ["b", "a"], ["é", "b"]], object)
GRAPHS = {
    "one hot": 'y = ai.onnx.ml.OneHotEncoder <cats_strings = ["b", "é", "a"], zeros = 1> (x)',
    "a column": """i = Constant <value_ints = [1]> () c = Gather <axis = 1> (x, i)
        y = ai.onnx.ml.OneHotEncoder <cats_strings = ["b", "a"], zeros = 1> (c)""",
    "numbers": """y = ai.onnx.ml.LabelEncoder
        <keys_strings = ["a", "b", "a"], values_int64s = [7, 5, 6], default_int64 = -3> (x)""",
    "reals": """y = ai.onnx.ml.LabelEncoder
        <keys_strings = ["a", "zebra"], values_floats = [0.5, 2.0], default_float = 9.0> (x)""",
    "categories": """y = ai.onnx.ml.CategoryMapper
        <cats_strings = ["a", "b"], cats_int64s = [4, 3], default_int64 = 8> (x)""",
    "moved": """t = Transpose <perm = [1, 0]> (x) c = Concat <axis = 1> (t, t) f = Flatten <axis = 0> (c)
        s = Constant <value_ints = [4, 4]> () r = Reshape(f, s) i = Identity(r)
        a = Constant <value_ints = [0]> () u = Unsqueeze(i, a) q = Squeeze(u, a)
        y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [7, 5]> (q)""",
}


def executor_of(body: str, kind: str, folder: Path, compiler: Compiler) -> Executor:
    path = folder / "names.onnx"
    onnx.save(onnx.parser.parse_model(f"{HEAD} g (string[4, 2] x) => ({kind} y) {{ {body} }}"), path)
    options = Options(autotune=False, timings="predicted", backends=OWN)
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    return Executor(session.planned(compilation, options), compiler)


def kind_of(name: str) -> str:
    return "float" if name in ("one hot", "a column", "reals") else "int64"


@pytest.mark.parametrize("name", GRAPHS)
def test_strings_are_moved_and_looked_up_without_the_reference_evaluator(
    name: str, tmp_path: Path, compiler: Compiler
) -> None:
    executor = executor_of(GRAPHS[name], kind_of(name), tmp_path, compiler)
    assert {s.choice.implementation.backend for s in executor.program.steps if s.calls} == {"numba-cpu"}
    oracle = runtime(tmp_path / "names.onnx", threads=1, optimized=False)
    for words in (WORDS, WORDS[::-1].copy()):  # nothing is kept from one run to the next
        found: Array = executor.run({"x": words})["y"]  # type: ignore[assignment]  # a tensor
        right = np.asarray(oracle({"x": words})["y"])
        assert found.dtype == right.dtype
        np.testing.assert_array_equal(found, right)


def test_a_category_that_no_node_allows_is_told(tmp_path: Path, compiler: Compiler) -> None:
    body = 'y = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "b"], zeros = 0> (x)'
    executor = executor_of(body, "float", tmp_path, compiler)
    with pytest.raises(
        ValueError, match="'zebra' is none of its 2 categories|'' is none of its 2 categories"
    ):
        executor.run({"x": WORDS})
