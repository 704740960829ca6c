"""Weights of less than a byte, and with scales of blocks: products over them run on a kernel."""

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from app.engine.entry import optimize
from app.engine.model.load import load
from app.engine.report.onnx import export
from app.engine.runtime.oracle import evaluate
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import runtime

ROWS, COLUMNS, BLOCK = 32, 16, 8
# Element type: NumPy's, lowest, one past the highest, least opset.
KINDS: dict[str, tuple[Any, int, int, int]] = {
    "int4": (ml_dtypes.int4, -8, 8, 21),
    "uint4": (ml_dtypes.uint4, 0, 16, 21),
    "int2": (ml_dtypes.int2, -2, 2, 25),
    "uint2": (ml_dtypes.uint2, 0, 4, 25),
    "float4": (ml_dtypes.float4_e2m1fn, -6, 7, 23),
    "float8": (ml_dtypes.float8_e4m3fn, -50, 50, 21),
    "int8": (np.int8, -128, 128, 21),
}


def constant(name: str, array: Any) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(
        name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape)
    )


def written(path: Path, inputs: list[ir.Value], nodes: list[ir.Node], opset: int) -> Path:
    """A file of nodes in a row, the last one's output being the model's."""
    constants = {v for n in nodes for v in n.inputs if v is not None and v.const_value is not None}
    weights = sorted(constants, key=lambda v: v.name or "")
    for i, node in enumerate(nodes):
        node.outputs[0].name = "y" if node is nodes[-1] else f"v{i}"
    body = ir.Graph(
        inputs, nodes[-1].outputs, nodes=nodes, initializers=weights, opset_imports={"": opset}, name="g"
    )
    export(ir.Model(body, ir_version=11), path)
    return path


def dequantized(kind: str, axis: int, block: int, zero: bool) -> ir.Node:
    random = np.random.default_rng(0)
    dtype, low, high, _ = KINDS[kind]
    shape = [ROWS, COLUMNS]
    weights = random.integers(low, high, shape).astype(dtype)
    if block:
        shape[axis] //= block
    else:
        shape = [shape[axis]]
    operands = [
        constant("w", weights),
        constant("scale", (random.random(shape) / 10 + 0.01).astype(np.float32)),
    ]
    if zero:
        operands.append(constant("zero", random.integers(low, high, shape).astype(dtype)))
    return ir.node("DequantizeLinear", operands, {"axis": axis, "block_size": block})


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_over_narrow_or_blocked_weights_runs_on_a_kernel_alone(
    kind: str, tmp_path: Path, compiler: Compiler
) -> None:
    for axis, block, zero in itertools.product((0, 1), (0, BLOCK), (False, True)):
        if (kind.startswith("float") and zero) or (kind == "int8" and not block):
            continue
        x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4, ROWS]))
        weights = dequantized(kind, axis, block, zero)
        product = ir.node("MatMul", [x, weights.outputs[0]])
        path = written(tmp_path / "m.onnx", [x], [weights, product], KINDS[kind][3])
        options = Options(autotune=False, timings="predicted")
        summary = optimize.optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)
        assert summary["fallbacks"] == [], (axis, block, zero)
        kept = kind in ("int4", "uint4") and (axis == 1 if not block else False)
        assert [row["op"] for row in summary["operators"]] == ["MatMulNBits" if kept else "MatMul"]
        assert all(row["ok"] for row in summary["verification"]["outputs"])


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("block", [0, BLOCK])
def test_quantizing_to_half_a_byte_gives_what_onnxruntime_gives(
    kind: str, block: int, tmp_path: Path, compiler: Compiler
) -> None:
    random = np.random.default_rng(1)
    dtype, low, high, opset = KINDS[kind]
    shape = [4, COLUMNS // block] if block else [COLUMNS]
    scale = constant("scale", (random.random(shape) + 0.1).astype(np.float32))
    zero = constant("zero", random.integers(low, high, shape).astype(dtype))
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4, COLUMNS]))
    forms = {"axis": 1, "block_size": block}
    quantized = ir.node("QuantizeLinear", [x, scale, zero], forms)
    back = ir.node("DequantizeLinear", [quantized.outputs[0], scale, zero], forms)
    path = written(tmp_path / "m.onnx", [x], [quantized, back], opset)
    fed = {"x": (random.standard_normal((4, COLUMNS)) * 3).astype(np.float32)}
    expected = runtime(path, fed)["y"]
    np.testing.assert_array_equal(evaluate(load(path).model, fed)["y"], expected)
    np.save(tmp_path / "x.npy", fed["x"])
    options = Options(autotune=False, timings="predicted")
    given = Bindings(tensors={"x": str(tmp_path / "x.npy")})
    optimize.optimize(path, host(), options, given, tmp_path, kernels=compiler.cache)
    with np.load(tmp_path / "outputs.npz") as found:
        np.testing.assert_array_equal(found["y"], expected)
