"""The conformance runner's own rules."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.backend import Representation, backend
from tests.conformance import Result, families, one_line, table

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def prepared(text: str, compiler: Compiler) -> Representation:
    representation = backend(compiler).prepare(onnx.parser.parse_model(f"{HEADER} {text}"))
    assert isinstance(representation, Representation)
    return representation


def test_a_view_and_a_kernel_count_as_our_own(compiler: Compiler) -> None:
    model = prepared(
        """g (float[2, 3] x) => (float[3, 2] y) {
            s = Constant <value_ints = [3, 2]> ()  r = Reshape (x, s)  y = Softmax (r)
        }""",
        compiler,
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = model.run([x])
    e = np.exp(x.reshape(3, 2))
    np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-6)
    assert model.own_kernels()
    model.close()


def test_a_step_of_the_reference_backend_does_not_count_as_our_own(compiler: Compiler) -> None:
    model = prepared(
        """g (string[2] x, string[2] z) => (string[2] y) { y = StringConcat (x, z) }""",
        compiler,
    )
    x = np.array(["a", "b"], object)
    (y,) = model.run([x, x])
    np.testing.assert_array_equal(y, ["aa", "bb"])
    assert not model.own_kernels()
    assert "reference" in model.implementations()
    model.close()


def test_a_model_folded_to_constants_does_not_count_as_our_own(compiler: Compiler) -> None:
    model = prepared(
        """g () => (float[2] y) {
            a = Constant <value_floats = [1.0, 2.0]> ()  y = Add (a, a)
        }""",
        compiler,
    )
    (y,) = model.run([])
    np.testing.assert_array_equal(y, [2, 4])
    assert not model.own_kernels()
    model.close()


def test_numpy_scalars_are_fed_as_tensors_of_rank_0(compiler: Compiler) -> None:
    model = prepared("g (float x, float[2] v) => (float[2] y) { y = Mul (v, x) }", compiler)
    (y,) = model.run([np.float32(3), np.array([1, 2], np.float32)])
    np.testing.assert_array_equal(y, [3, 6])
    model.close()


def test_an_expanded_test_belongs_to_the_family_of_what_it_expands() -> None:
    def case(name: str, *ops: str) -> SimpleNamespace:
        nodes = [onnx.NodeProto(op_type=op) for op in ops]
        return SimpleNamespace(name=name, model=onnx.ModelProto(graph=onnx.GraphProto(node=nodes)))

    cases = [
        case("test_conv_a", "Conv"),
        case("test_rotary_b", "RotaryEmbedding"),
        case("test_rotary_b_expanded", "Transpose", "Mul"),
        case("test_rotary_b_expanded_ver23", "Transpose"),
        case("test_odd", "Frobnicate"),
    ]
    assert list(families(cases).values()) == ["conv", "attention", "attention", "attention", "other"]


def test_the_summary_counts_passes_and_own_kernels_apart() -> None:
    rows = [
        Result("test_a", "conv", True, True, "", 0.1),
        Result("test_b", "conv", True, False, "", 0.1),
        Result("test_c", "pool", False, False, "wrong", 0.1, others=("reference",)),
        Result("test_d", "pool", True, False, "", 0.1, others=("onnxruntime", "reference", "reference")),
    ]
    lines, passed, own = table(rows, frozenset({"test_a", "test_c", "test_d"}))
    assert (passed, own) == (3, 1)
    assert lines[-1] == "inference set, not on own kernels: 1 failed, 1 onnxruntime + reference"
    assert [line.split() for line in lines[1:-1]] == [
        ["conv", "2", "2", "1"],
        ["pool", "2", "1", "0"],
        ["all", "4", "3", "1"],
        ["inference", "set", "3", "2", "1"],
    ]


def test_without_the_list_of_the_inference_set_the_reason_is_told() -> None:
    lines, passed, own = table([Result("test_a", "conv", True, True, "", 0.1)], "no list")
    assert (passed, own) == (1, 0)
    assert lines[-1] == "inference set: not counted, no list"


@pytest.mark.parametrize("text", ["", "\n  two\n lines  ", "x" * 500])
def test_a_reason_is_one_short_line(text: str) -> None:
    reason = one_line(ValueError(text))
    assert reason.startswith("ValueError: ")
    assert "\n" not in reason
    assert len(reason) <= 200
