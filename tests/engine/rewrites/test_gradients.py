"""Backward operators in MXNet's symbol form, against derivatives by differences."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core.registry import load
from app.engine.model.load import Loaded
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler

Array = np.ndarray[Any, Any]
REGISTRY = load()
rng = np.random.default_rng(0)


def gradients(
    compiler: Compiler, op: str, inputs: list[Array], attributes: dict[str, str], outputs: int
) -> tuple[list[Array], set[str]]:
    """Outputs of one backward node, and the operators that it became."""
    values = [
        ir.Value(name=f"x{i}", shape=ir.Shape(a.shape), type=ir.TensorType(ir.DataType.FLOAT))
        for i, a in enumerate(inputs)
    ]
    made = [ir.Value(name=f"d{i}", type=ir.TensorType(ir.DataType.FLOAT)) for i in range(outputs)]
    given = [ir.AttrString(k, v) for k, v in attributes.items()]
    node = ir.Node("mxnet", op, values, given, outputs=made, name="gradient")
    model = ir.Model(
        ir.Graph(values, made, nodes=[node], opset_imports={"": 21, "mxnet": 1}, name="g"), ir_version=10
    )
    options = Options(autotune=False)
    compilation = session.canonical(Loaded(model, (), 1), host(), options, Bindings(), REGISTRY)
    program = session.planned(compilation, options)
    executor = Executor(program, compiler)
    found = executor.run({f"x{i}": a for i, a in enumerate(inputs)})
    executor.close()
    return [np.asarray(found[f"d{i}"]) for i in range(outputs)], {n.op_type for n in compilation.graph}


def differences(f: Any, dy: Array, operands: list[Array], index: int) -> Array:
    """The gradient of sum(f * dy) by central differences."""
    x = operands[index]
    result = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        sides = []
        for step in (1e-3, -1e-3):
            moved = [o.astype(np.float64) for o in operands]
            moved[index][at] += step
            sides.append(np.sum(f(*moved) * dy))
        result[at] = (sides[0] - sides[1]) / 2e-3
    return result


def floats(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


FUNCTIONS = {
    "_backward_relu": lambda x: np.maximum(x, 0),
    "_backward_sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "_backward_tanh": np.tanh,
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_gradients_of_functions_by_their_result(compiler: Compiler, op: str) -> None:
    x, dy = floats(4, 3), floats(4, 3)
    y = FUNCTIONS[op](x).astype(np.float32)
    (found,), _ = gradients(compiler, op, [dy, y], {}, 1)
    np.testing.assert_allclose(found, differences(FUNCTIONS[op], dy, [x], 0), atol=1e-3)


@pytest.mark.parametrize(("op", "f"), [
    ("_backward_mul", lambda a, b: a * b), ("_backward_div", lambda a, b: a / b),
])  # fmt: skip
def test_gradients_of_two_operands(compiler: Compiler, op: str, f: Any) -> None:
    a, b, dy = floats(3, 4), np.abs(floats(3, 4)) + 1, floats(3, 4)
    found, _ = gradients(compiler, op, [dy, a, b], {}, 2)
    for i in range(2):
        np.testing.assert_allclose(found[i], differences(f, dy, [a, b], i), atol=2e-3)


def convolved(x: Array, w: Array, stride: int, pad: int, dilate: int) -> Array:
    n, _, h, width = x.shape
    k, _, r, s = w.shape
    wide = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    rows = (h + 2 * pad - dilate * (r - 1) - 1) // stride + 1
    columns = (width + 2 * pad - dilate * (s - 1) - 1) // stride + 1
    y = np.zeros((n, k, rows, columns))
    for i in range(r):
        for j in range(s):
            part = wide[:, :, i * dilate :, j * dilate :]
            part = part[:, :, : (rows - 1) * stride + 1 : stride, : (columns - 1) * stride + 1 : stride]
            y += np.einsum("nchw,kc->nkhw", part, w[:, :, i, j])
    return y


@pytest.mark.parametrize(("stride", "pad", "dilate"), [(1, 1, 1), (2, 1, 1), (2, 0, 2)])
def test_gradients_of_a_convolution(compiler: Compiler, stride: int, pad: int, dilate: int) -> None:
    x, w = floats(2, 2, 6, 7), floats(3, 2, 3, 2)

    def f(x: Array, w: Array) -> Array:
        return convolved(x, w, stride, pad, dilate)

    dy = floats(*f(x, w).shape)
    attributes = {
        "kernel": "(3, 2)", "stride": f"({stride}, {stride})", "pad": f"({pad}, {pad})",
        "dilate": f"({dilate}, {dilate})", "num_filter": "3",
    }  # fmt: skip
    found, operators = gradients(compiler, "_backward_Convolution", [dy, x, w], attributes, 3)
    np.testing.assert_allclose(found[0], differences(f, dy, [x, w], 0), atol=5e-3)
    np.testing.assert_allclose(found[1], differences(f, dy, [x, w], 1), atol=5e-3)
    np.testing.assert_allclose(found[2], dy.sum(axis=(0, 2, 3)), atol=1e-4)
    assert "ConvTranspose" in operators


def test_gradients_of_products(compiler: Compiler) -> None:
    x, w, dy = floats(3, 2, 4), floats(5, 8), floats(3, 5)
    found, _ = gradients(compiler, "_backward_FullyConnected", [dy, x, w], {"num_hidden": "5"}, 3)
    flat = x.reshape(3, 8)
    for result, exact in zip(found, ((dy @ w).reshape(x.shape), dy.T @ flat, dy.sum(0))):
        np.testing.assert_allclose(result, exact, atol=1e-4)
    a, b, dc = floats(3, 4), floats(4, 5), floats(3, 5)
    found, _ = gradients(compiler, "_backward_dot", [dc, a, b], {}, 2)
    np.testing.assert_allclose(found[0], dc @ b.T, atol=1e-4)
    np.testing.assert_allclose(found[1], a.T @ dc, atol=1e-4)


def test_a_gradient_that_is_not_known_is_named(tmp_path: Path, compiler: Compiler) -> None:
    from app.engine.types.errors import EngineError

    with pytest.raises(EngineError, match="_backward_Convolution"):
        gradients(
            compiler, "_backward_Convolution", [floats(1, 4, 4, 4), floats(1, 4, 4, 4), floats(4, 1, 1, 1)],
            {"num_group": "4", "kernel": "(1, 1)"}, 2,
        )  # fmt: skip
