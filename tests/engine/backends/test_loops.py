"""Loop: the body planned ahead, in poisoned memory, against onnxruntime.

ONNX's reference evaluator joins scan outputs where the specification stacks them.
"""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.backends.test_branches import implementations, of_text
from tests.session import Session

# a and b change places, c stays, s is stacked; the condition ends some runs before the count does.
TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (int64 n, float[2, 3] x, float[2, 3] z, float[3, 3] w, float most)
        => (float[2, 3] last, float[2, 3] other, float[3, 3] kept, float[?, 2, 3] all) {
        first = Constant <value = bool {1}> ()
        moved = Tanh (x)
        last, other, kept, all = Loop (n, first, moved, z, w) <
            body = turn (int64 i, bool go, float[2, 3] a, float[2, 3] b, float[3, 3] c)
                => (bool more, float[2, 3] next, float[2, 3] swapped, float[3, 3] same, float[2, 3] s) {
                p = MatMul (b, c)
                next = Add (p, z)
                swapped = Identity (a)
                s = Relu (next)
                size = ReduceMax <keepdims = 0> (next)
                more = Less (size, most)
                same = Identity (c)
            }
        >
    }
"""


def inputs_of(n: int, most: float = 1e9) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {
        "n": np.array(n),
        "x": rng.standard_normal((2, 3)).astype(np.float32),
        "z": rng.standard_normal((2, 3)).astype(np.float32),
        "w": rng.standard_normal((3, 3)).astype(np.float32),
        "most": np.array(most, np.float32),
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_every_count_of_turns(tmp_path: Path, compiler: Compiler, threads: int) -> None:
    path, _ = of_text(TEXT, tmp_path)
    session = Session(path, compiler, options=Options(threads=threads), poison=True)
    assert implementations(session.program)["Loop"] == "loop.body"
    # What is handed on unchanged is no carried value any more.
    (loop,) = (s.group.anchor for s in session.program.steps if s.group.op == "Loop")
    assert len(loop.inputs) == 4
    peer = onnxruntime.InferenceSession(str(path))
    for inputs in (inputs_of(1), inputs_of(6), inputs_of(40, most=2.0), inputs_of(2)):
        expected = peer.run(None, inputs)
        found = session.run(inputs)
        for name, array in zip(("last", "other", "kept", "all"), expected, strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    session.close()


def test_no_turn_gives_the_first_values_and_empty_stacks(tmp_path: Path, compiler: Compiler) -> None:
    path, _ = of_text(TEXT, tmp_path)
    session = Session(path, compiler, poison=True)
    inputs = inputs_of(0)
    found = session.run(inputs)
    np.testing.assert_allclose(found["last"], np.tanh(inputs["x"]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["kept"], inputs["w"])
    assert found["all"].shape == (0, 2, 3)
    session.close()


def test_the_body_works_in_the_arena(tmp_path: Path, compiler: Compiler) -> None:
    path, _ = of_text(TEXT, tmp_path)
    session = Session(path, compiler)
    (body,) = (b for b in session.program.placement.buffers if b.kind == "body")
    assert body.nbytes > 0
    assert body.first == body.last
    session.close()


GROWS = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (int64 n, float[1, 2] x) => (float[?, 2] y) {
        first = Constant <value = bool {1}> ()
        y = Loop (n, first, x) <
            body = turn (int64 i, bool go, float[?, 2] a) => (bool more, float[?, 2] b) {
                more = Identity (go)
                b = Concat <axis = 0> (a, x)
            }
        >
    }
"""


def test_a_value_that_grows_is_left_to_the_reference_and_the_reason_is_told(
    tmp_path: Path, compiler: Compiler
) -> None:
    path, proto = of_text(GROWS, tmp_path)
    session = Session(path, compiler)
    assert implementations(session.program)["Loop"] != "loop.body"
    inputs = {"n": np.array(3), "x": np.ones((1, 2), np.float32)}
    np.testing.assert_array_equal(session.run(inputs)["y"], ReferenceEvaluator(proto).run(None, inputs)[0])
    (decision,) = (d for d in session.program.compilation.decisions if d.op == "Loop")
    assert "loop.body: " in decision.reason
    session.close()


# The states of each turn are stacked as they are, in another shape, and are carried on turned about.
STACKED = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (float[2, 3] x, float[2, 3] z) => (float[2, 3] a, float[2, 3] b, float[4, 2, 3] s, float[4, 6] t) {
        n = Constant <value_int = 4> ()
        first = Constant <value = bool {1}> ()
        a, b, s, t = Loop (n, first, x, z) <
            body = turn (int64 i, bool go, float[2, 3] p, float[2, 3] q)
                => (bool more, float[2, 3] next, float[2, 3] after, float[2, 3] p, float[6] flat) {
                more = Identity (go)
                sides = Constant <value_ints = [6]> ()
                flat = Reshape (q, sides)
                after = Sin (q)
                next = Cos (p)
            }
        >
    }
"""


def test_states_that_are_stacked_are_not_written_over_before(tmp_path: Path, compiler: Compiler) -> None:
    path, _ = of_text(STACKED, tmp_path)
    session = Session(path, compiler, poison=True)
    assert implementations(session.program)["Loop"] == "loop.body"
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((2, 3)).astype(np.float32) for name in "xz"}
    found = session.run(inputs)
    for name, array in zip("abst", onnxruntime.InferenceSession(str(path)).run(None, inputs), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    session.close()
