"""If: both branches planned ahead, in poisoned memory, against the reference evaluator of ONNX."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.core.program import Program
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler
from tests.session import Session

TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (bool choose, float[2, 3] x, float[3, 4] v) => (float[2, 4] y, float[2, 3] z) <float[3] scale = {1, 2, 4}> {
        shifted = Add(x, scale)
        y, inner = If (choose) <
            then_branch = one () => (float[2, 4] a, float[2, 3] b) {
                scaled = Mul(shifted, scale)
                a = MatMul(scaled, v)
                b = Relu(scaled)
            },
            else_branch = two () => (float[2, 4] c, float[2, 3] d) {
                flat = MatMul(x, v)
                c = Tanh(flat)
                d = Identity(x)
            }
        >
        z = Neg(inner)
    }
"""
# The second branch fits no operand of these shapes; it must only matter when it is taken.
UNFIT = TEXT.replace("c = Tanh(flat)", "c = Add(flat, shifted)")


def of_text(text: str, folder: Path) -> tuple[Path, onnx.ModelProto]:
    proto = onnx.parser.parse_model(text)
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx", proto


def implementations(program: Program) -> dict[str, str]:
    return {s.group.op: s.choice.implementation.name for s in program.steps}


@pytest.mark.parametrize("threads", [1, 2])
def test_the_branch_that_is_named_runs(tmp_path: Path, compiler: Compiler, threads: int) -> None:
    path, proto = of_text(TEXT, tmp_path)
    session = Session(path, compiler, options=Options(threads=threads), poison=True)
    assert implementations(session.program)["If"] == "if.branches"
    rng = np.random.default_rng(0)
    for choose in (True, False, True):
        inputs = {
            "choose": np.array(choose),
            "x": rng.standard_normal((2, 3)).astype(np.float32),
            "v": rng.standard_normal((3, 4)).astype(np.float32),
        }
        expected = ReferenceEvaluator(proto).run(None, inputs)
        found = session.run(inputs)
        for a, b in zip((found["y"], found["z"]), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    session.close()


def test_a_branch_that_fits_no_shape_leaves_the_other_alone(tmp_path: Path, compiler: Compiler) -> None:
    path, proto = of_text(UNFIT, tmp_path)
    session = Session(path, compiler, poison=True)
    assert implementations(session.program)["If"] == "if.branches"
    inputs = {"choose": np.array(True), "x": np.ones((2, 3), np.float32), "v": np.ones((3, 4), np.float32)}
    expected = ReferenceEvaluator(proto).run(None, inputs)
    found = session.run(inputs)
    np.testing.assert_allclose(found["y"], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found["z"], expected[1], rtol=1e-5)
    session.close()
