"""`Gradient` nodes of ai.onnx.preview.training in files, expanded: against finite differences in float64."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.entry import optimize
from app.engine.model.load import load
from app.engine.planning.expansion import expanded
from app.engine.report.onnx import export
from app.engine.runtime import oracle
from app.engine.types.errors import CyclicGraphError, EngineError, GraphError, NotDifferentiableError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>\n'
FORWARD = "h = MatMul(x, w)\n t = Tanh(h)\n y = ReduceSum<keepdims = 0>(t)\n"
GRADIENT = "ai.onnx.preview.training.Gradient"
INPUTS = "double[3,4] x, double[4,2] w"


def saved(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    return path


def outputs_of(path: Path, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    loaded = expanded(load(path))
    assert all(n.domain != "ai.onnx.preview.training" for n in loaded.model.graph)
    plain = path.with_name("plain.onnx")
    export(loaded.model, plain)
    run = oracle.runtime(plain, threads=1, optimized=False)
    return [np.asarray(v) for v in run(given).values()]


def values(*shapes: Sequence[int]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape) for shape in shapes]


def differences(function, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    found = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        found[index] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return found


def value(x: np.ndarray, w: np.ndarray) -> float:
    return float(np.tanh(x @ w).sum())


def test_gradients_of_inputs_equal_finite_differences(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        f'g ({INPUTS}) => (double y, double[3,4] dx, double[4,2] dw) {{\n{FORWARD}'
        f'dx, dw = {GRADIENT}<xs = ["x", "w"], y = "y">(x, w)\n}}',
    )  # fmt: skip
    x, w = values((3, 4), (4, 2))
    y, dx, dw = outputs_of(path, {"x": x, "w": w})
    np.testing.assert_allclose(y, value(x, w))
    np.testing.assert_allclose(dx, differences(lambda v: value(v, w), x), atol=1e-8)
    np.testing.assert_allclose(dw, differences(lambda v: value(x, v), w), atol=1e-8)


def test_the_gradient_may_be_taken_elsewhere_and_of_an_inner_value(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        f'g ({INPUTS}, double[3,2] at) => (double y, double[3,2] dh, double[4,2] dw) {{\n{FORWARD}'
        f'dh = {GRADIENT}<xs = ["h"], y = "y">(at)\n'
        f'x2 = Add(x, x)\n , dw = {GRADIENT}<xs = ["x", "w"], y = "y">(x2, w)\n}}'.replace(
            " , dw", " unused, dw"
        ),
    )  # fmt: skip
    x, w, at = values((3, 4), (4, 2), (3, 2))
    _, dh, dw = outputs_of(path, {"x": x, "w": w, "at": at})
    np.testing.assert_allclose(dh, 1 - np.tanh(at) ** 2)
    np.testing.assert_allclose(dw, differences(lambda v: value(2 * x, v), w), atol=1e-8)


def test_second_order(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        f'g ({INPUTS}) => (double[4,2] dw, double[3,4] dxdw) {{\n{FORWARD}'
        f'dw = {GRADIENT}<xs = ["w"], zs = ["x"], y = "y">(w, x)\n'
        f'dxdw = {GRADIENT}<xs = ["x"], zs = ["w"], y = "dw">(x, w)\n}}',
    )  # fmt: skip
    x, w = values((3, 4), (4, 2))
    _, found = outputs_of(path, {"x": x, "w": w})
    expected = differences(lambda v: float((v.T @ (1 - np.tanh(v @ w) ** 2)).sum()), x)
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_what_the_value_does_not_depend_on_has_zeros(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        f'g ({INPUTS}, double[2] z) => (double[2] dz) {{\n{FORWARD}'
        f'dz = {GRADIENT}<xs = ["z"], zs = ["x", "w"], y = "y">(z, x, w)\n}}',
    )  # fmt: skip
    x, w, z = values((3, 4), (4, 2), (2,))
    np.testing.assert_array_equal(outputs_of(path, {"x": x, "w": w, "z": z})[0], np.zeros(2))


@pytest.mark.parametrize(
    ("node", "error", "text"),
    [
        ('dx = G<xs = ["q"], y = "y">(x)', GraphError, "names 'q'"),
        ('dx = G<xs = ["x"], y = "y">(w)', GraphError, "is not as 'x'"),
        ('dx = G<xs = ["x", "w"], y = "y">(x)', GraphError, "1 operands for 2 names"),
        ('dx = G<xs = ["x"], y = "z">(x)\n z = Exp(dx)', CyclicGraphError, "computed from it"),
        ('d = Det(q)\n q = MatMul(w, p)\n p = Transpose(w)\n dx = G<xs = ["w"], y = "d">(w)',
         NotDifferentiableError, "Det"),
    ],
)  # fmt: skip
def test_what_cannot_be_expanded_is_refused(
    node: str, error: type[EngineError], text: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, f"g ({INPUTS}) => (y, dx) {{\n{FORWARD}{node.replace('G<', GRADIENT + '<')}\n}}")
    with pytest.raises(error, match=text):
        expanded(load(path))


def test_a_job_runs_and_verifies_such_a_file(compiler: Compiler, tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        "g (float[n,4] x, float[4,2] w) => (float y, float[n,4] dx, float[4,2] dw) {\n"
        f'{FORWARD}dx, dw = {GRADIENT}<xs = ["x", "w"], y = "y">(x, w)\n}}',
    )
    summary = optimize.optimize(
        path, host(), Options(autotune=False, benchmark_seconds=0.05), Bindings({"x": (3, 4)}), tmp_path,
        kernels=compiler.cache,
    )  # fmt: skip
    assert summary["verification"]["status"] == "verified"
    assert summary["training"]["gradients"] == 2


def test_more_gradients_than_allowed_are_refused(tmp_path: Path) -> None:
    nodes = "".join(f'd{i} = {GRADIENT}<xs = ["x"], y = "y">(x)\n' for i in range(65))
    path = saved(tmp_path, f"g ({INPUTS}) => (y, d0) {{\n{FORWARD}{nodes}}}")
    with pytest.raises(EngineError, match="65 nodes Gradient, allowed are 64"):
        expanded(load(path))
