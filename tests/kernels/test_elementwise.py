"""Generated elementwise kernels: broadcasting, chains, memory shared with operands, vector code."""

import math
from pathlib import Path

import llvmlite.binding as binding
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from app.engine.core.calls import KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import load
from app.engine.operators.elementwise import recipe_of
from app.kernels.cpu.codegen.pipeline import bitcode
from app.kernels.cpu.elementwise import collapsed
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, context, group_of, implementation, model_of, run_group

REGISTRY = load()
ROW = implementation("elementwise.generated", REGISTRY)
HEAD = '<ir_version: 10, opset_import: ["": 22]> g '
RANDOM = np.random.default_rng(2)


def group_from(text: str, constants: dict[str, Array] | None = None) -> Group:
    return group_of(model_of(HEAD + text, constants), REGISTRY)


def reference(text: str, inputs: dict[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return [
            np.asarray(a) for a in ReferenceEvaluator(onnx.parser.parse_model(HEAD + text)).run(None, inputs)
        ]


def only_call(group: Group) -> KernelCall:
    (call,) = ROW.lower(group, context())
    assert isinstance(call, KernelCall)
    return call


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=0, max_size=5)
MASKS = st.lists(st.booleans(), min_size=5, max_size=5)


def shrunk(shape: list[int], ones: list[bool], cut: int) -> list[int]:
    """A shape that broadcasts to another: some axes 1, some of the first left out."""
    return [1 if one else extent for extent, one in zip(shape, ones)][min(cut, len(shape)) :]


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(SHAPES, st.tuples(MASKS, MASKS, MASKS), st.tuples(*[st.integers(0, 5)] * 3), st.integers(1, 3))
def test_broadcasting_is_that_of_numpy(compiler: Compiler, shape, masks, cuts, threads) -> None:
    shapes = [shrunk(shape, ones, cut) for ones, cut in zip(masks, cuts)]
    arrays = {
        name: RANDOM.standard_normal(s).astype("f4").reshape(s) for name, s in zip("abc", shapes, strict=True)
    }
    model = model_of(HEAD + "(float a, float b, float c) => (float y) { s = Sub(a, b)\n y = Mul(s, c) }")
    expected = (arrays["a"] - arrays["b"]) * arrays["c"]
    first = np.broadcast_shapes(shapes[0], shapes[1])
    made = [node.outputs[0] for node in model.graph]
    for value, dims in zip((*model.graph.inputs, *made), (*shapes, first, expected.shape)):
        value.shape = ir.Shape(dims)
    (found,) = run_group(ROW, group_of(model, REGISTRY), arrays, compiler, threads=threads)
    np.testing.assert_array_equal(found, expected)


@given(SHAPES, st.lists(MASKS, min_size=1, max_size=3))
def test_collapsed_axes_address_the_same_elements(shape, masks) -> None:
    operands = [shrunk(shape, ones, 0) for ones in masks]
    extents, patterns = collapsed(shape, operands)
    assert int(np.prod(extents)) == int(np.prod(shape))
    for operand, pattern in zip(operands, patterns):
        elements = np.arange(int(np.prod(operand))).reshape(operand)
        expected = np.broadcast_to(elements, shape).ravel()
        seen = [extent if varies else 1 for extent, varies in zip(extents, pattern)]
        np.testing.assert_array_equal(np.broadcast_to(elements.reshape(seen), extents).ravel(), expected)


def test_common_broadcasts_collapse_to_two_axes_at_most() -> None:
    image = (2, 8, 7, 5)
    assert collapsed(image, [image, image]) == ((560,), ((True,), (True,)))
    assert collapsed(image, [image, ()]) == ((560,), ((True,), (False,)))
    assert collapsed((1, 8, 7, 5), [(1, 8, 7, 5), (8, 1, 1)]) == ((8, 35), ((True, True), (True, False)))
    assert collapsed((3, 4, 6), [(3, 4, 6), (6,)]) == ((12, 6), ((True, True), (False, True)))


CHAINS = {
    "hard swish": "t = Add(x, three)\n c = Clip(t, zero, six)\n m = Mul(x, c)\n y = Div(m, six)",
    "silu and scale": "s = Sigmoid(x)\n m = Mul(x, s)\n y = Add(m, b)",
    "per channel first": "e = Exp(b)\n l = Log(e)\n m = Mul(x, l)\n y = Sub(m, b)",
    "mixed types": "l = Less(x, b)\n n = Not(l)\n w = Where(n, x, b)\n i = Cast<to = 6>(w)\n"
    "y = Cast<to = 1>(i)",
    "variadic": "s = Sum(x, b, x, three)\n m = Mean(x, s, b)\n a = Max(m, x, zero)\n y = Min(a, six, x)",
}
SCALARS = {"zero": np.float32(0), "three": np.float32(3), "six": np.float32(6)}


@pytest.mark.parametrize("body", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_chain_is_one_kernel_and_may_run_in_place(body: str, threads: int, compiler: Compiler) -> None:
    text = (
        "(float[3,4,37] x, float[4,1] b, float zero, float three, float six) => (float[3,4,37] y) {"
        f" {body} }}"
    )
    inputs = {
        "x": (4 * RANDOM.standard_normal((3, 4, 37))).astype("f4"),
        "b": (1 + RANDOM.random((4, 1))).astype("f4"),
        **{name: np.asarray(v) for name, v in SCALARS.items()},
    }
    (expected,) = reference(text, inputs)
    group = group_from(text)
    (apart,) = run_group(ROW, group, inputs, compiler, threads=threads)
    assert_close(apart, expected)
    pairs = ROW.inplace(group, context())
    assert [(a.name, b.name) for a, b in pairs] == [("x", "y")]
    (inplace,) = run_group(ROW, group, inputs, compiler, threads=threads, alias=pairs)
    np.testing.assert_array_equal(inplace, apart)


def random_chain(seed: int) -> tuple[str, dict[str, Array]]:
    """Up to eight nodes on tensors of one shape and operands that broadcast to it; two outputs."""
    random = np.random.default_rng(seed)
    inputs = {
        "x": random.standard_normal((2, 3, 33)).astype("f4"),
        "z": random.standard_normal((2, 3, 33)).astype("f4"),
        "c": random.standard_normal((3, 1)).astype("f4"),
        "s": random.standard_normal(()).astype("f4"),
    }
    values, nodes = [*inputs], []
    for i in range(int(random.integers(3, 9))):
        full = "x" if i == 0 else values[int(random.integers(len(inputs), len(values)))]
        if random.random() < 0.5:
            op = random.choice(["Tanh", "Sigmoid", "Relu", "Abs", "Erf", "Neg", "HardSigmoid", "Softplus"])
            nodes.append(f"v{i} = {op}({full})")
        else:
            op = random.choice(["Add", "Sub", "Mul", "Min", "Max"])
            pair = [full, random.choice(values)]
            random.shuffle(pair)
            nodes.append(f"v{i} = {op}({', '.join(pair)})")
        values.append(f"v{i}")
    outputs = [f"v{len(nodes) - 1}", f"v{len(nodes) // 2 - 1}"]
    made = ", ".join(f"float[2,3,33] {name}" for name in outputs)
    given_ = "float[2,3,33] x, float[2,3,33] z, float[3,1] c, float s"
    return f"({given_}) => ({made}) {{ " + "\n".join(nodes) + " }", inputs


@pytest.mark.parametrize("seed", range(10))
def test_random_chains_agree_with_the_reference_evaluator_node_by_node(seed: int, compiler: Compiler) -> None:
    text, inputs = random_chain(seed)
    expected = reference(text, inputs)
    group = group_from(text)
    apart = run_group(ROW, group, inputs, compiler)
    pairs = {output: source for source, output in ROW.inplace(group, context())}
    shared = [(source, output) for output, source in pairs.items()]
    used = {source for source, _ in shared}
    alias = shared if len(used) == len(shared) else shared[:1]
    inplace = run_group(ROW, group, inputs, compiler, threads=2, alias=alias)
    for a, b, e in zip(apart, inplace, expected, strict=True):
        assert_close(a, e, 2e-6)
        np.testing.assert_array_equal(a, b)


def test_two_outputs_may_overwrite_two_operands_at_once(compiler: Compiler) -> None:
    text = (
        "(float[1000] a, float[1000] b) => (float[1000] s, float[1000] d) { s = Add(a, b)\n d = Sub(a, b) }"
    )
    inputs = {n: RANDOM.standard_normal(1000).astype("f4") for n in "ab"}
    group = group_from(text)
    by_name = {(a.name, b.name): (a, b) for a, b in ROW.inplace(group, context())}
    assert set(by_name) == {("a", "s"), ("a", "d"), ("b", "s"), ("b", "d")}
    for crossed in ((("a", "s"), ("b", "d")), (("a", "d"), ("b", "s"))):
        total, difference = run_group(ROW, group, inputs, compiler, alias=[by_name[p] for p in crossed])
        np.testing.assert_array_equal(total, inputs["a"] + inputs["b"])
        np.testing.assert_array_equal(difference, inputs["a"] - inputs["b"])


def test_what_is_read_at_another_index_or_has_another_size_is_not_overwritten() -> None:
    cases = {
        "(float[4,5] x, float[5] b) => (float[4,5] y) { y = Add(x, b) }": {("x", "y")},
        "(float[4] x) => (bool[4] y) { y = IsNaN(x) }": set(),
        "(float[4] x) => (int32[4] y) { y = Cast<to = 6>(x) }": {("x", "y")},
    }
    for text, expected in cases.items():
        pairs = ROW.inplace(group_from(text), context())
        assert {(a.name, b.name) for a, b in pairs} == expected
    fixed = group_from("(float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }", {"w": np.ones(4, "f4")})
    assert {a.name for a, _ in ROW.inplace(fixed, context())} == {"x"}


LONG = {
    "Relu": "y = Relu(x)",
    "Add": "y = Add(x, z)",
    "hard swish": CHAINS["hard swish"],
    "silu": "s = Sigmoid(x)\n y = Mul(x, s)",
    "gelu": "d = Div(x, six)\n e = Erf(d)\n o = Add(e, three)\n m = Mul(x, o)\n y = Mul(m, zero)",
    "five operands": "a = Add(x, z)\n b = Add(a, u)\n c = Add(b, v)\n d = Add(c, w)\n y = Relu(d)",
}


@pytest.mark.parametrize("body", LONG.values(), ids=LONG)
def test_a_chain_is_vector_code_without_checks_of_addresses(body: str, tmp_path: Path) -> None:
    names = ["x", *(n for n in "zuvw" if f", {n})" in body)]
    scalars = ", ".join(f"float {n}" for n in SCALARS)
    tensors = ", ".join(f"float[64] {n}" for n in names)
    call = only_call(group_from(f"({tensors}, {scalars}) => (float[64] y) {{ {body} }}"))
    kernel = Compiler(tmp_path).compile(call.kernel, call.types, call.static)
    text = str(binding.parse_bitcode(bitcode(kernel.path)))
    assert "vector.body" in text
    assert "vector.memcheck" not in text
    assert "fcmp" not in text or " x float>" in text


def test_threads_share_the_elements_of_few_long_rows(compiler: Compiler) -> None:
    group = group_from("(float[1,3,64,65] x, float[3,1,1] c) => (float[1,3,64,65] y) { y = Mul(x, c) }")
    inputs = {
        "x": RANDOM.standard_normal((1, 3, 64, 65)).astype("f4"),
        "c": RANDOM.standard_normal((3, 1, 1)).astype("f4"),
    }
    assert only_call(group).units == 3 * 64 * 65
    for threads in (2, 5):
        (found,) = run_group(ROW, group, inputs, compiler, threads=threads)
        np.testing.assert_array_equal(found, inputs["x"] * inputs["c"])


QUANTIZED = {
    "per tensor": ("float s, uint8 z", {"s": np.float32(0.05), "z": np.uint8(7)}, ""),
    "per channel": (
        "float[3] s, uint8[3] z",
        {"s": np.array([0.1, 0.02, 1.5], "f4"), "z": np.array([0, 9, 255], "u1")},
        "<axis = 1>",
    ),
    "of the last axis": (
        "float[5] s, uint8[5] z",
        {"s": np.linspace(0.01, 1, 5, dtype="f4"), "z": np.arange(5, dtype="u1")},
        "<axis = -1>",
    ),
}


@pytest.mark.parametrize(("given_", "fixed", "axis"), QUANTIZED.values(), ids=QUANTIZED)
def test_quantization_there_and_back(given_: str, fixed, axis: str, compiler: Compiler) -> None:
    text = (
        f"(float[2,3,5] x, {given_}) => (uint8[2,3,5] q, float[2,3,5] y) "
        f"{{ q = QuantizeLinear{axis}(x, s, z)\n y = DequantizeLinear{axis}(q, s, z) }}"
    )
    x = np.linspace(-20, 20, 30, dtype="f4").reshape(2, 3, 5)
    inputs = {"x": x, **{n: np.asarray(v) for n, v in fixed.items()}}
    found = run_group(ROW, group_from(text), inputs, compiler)
    for a, b in zip(found, reference(text, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 1.0, 0.5, -1.0, 1.5])
def test_a_constant_power_is_that_of_numpy(exponent: float, compiler: Compiler) -> None:
    group = group_from(
        "(float[7] x, float p) => (float[7] y) { y = Pow(x, p) }", {"p": np.array(exponent, "f4")}
    )
    x = np.array([0, -0.0, 1.7, -2.5, np.inf, -np.inf, np.nan], "f4")
    (found,) = run_group(ROW, group, {"x": x}, compiler)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, np.power(x, np.float32(exponent)), rtol=1e-6)


REFUSED = {
    "(float8e4m3fn[2] x) => (float8e4m3fn[2] y) { y = Relu(x) }": "float8_e4m3fn",
    "(int32[2] x) => (int32[2] y) { y = Sqrt(x) }": "Sqrt is not generated for int32",
    "(float[N] x) => (float[N] y) { y = Relu(x) }": "no static shape",
    "(string[2] x) => (string[2] y) { y = Identity(x) }": "no static shape and element type",
    "(float[4] x, float[2] s) => (uint8[4] y) { y = QuantizeLinear<axis=0, block_size=2>(x, s) }": "block",
    "(float[2] x, float r, bool t) => (float[2] y) { y = Dropout(x, r, t) }": "training mode",
    "(float[2] x) => (float[2] y) { y = CumSum(x) }": "CumSum is not generated",
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=REFUSED.values())
def test_what_has_no_expression_is_refused_with_a_reason(text: str, reason: str) -> None:
    found = ROW.rejection(group_from(text), context())
    assert found is not None
    assert reason in found


def test_a_group_with_outputs_of_two_shapes_is_refused() -> None:
    text = "(float[2,3] x, float[3] b) => (float[2,3] y, float[3] z) { z = Relu(b)\n y = Add(x, z) }"
    assert "differ in shape" in (ROW.rejection(group_from(text), context()) or "")


GELU = {
    "erf(x / sqrt(2))": "d = Div(x, root) e = Erf(d) o = Add(e, one) m = Mul(x, o) y = Mul(m, half)",
    "erf(x * sqrt(1/2))": "d = Mul(r, x) e = Erf(d) o = Add(one, e) m = Mul(half, o) y = Mul(m, x)",
    "half of x first": "h = Mul(x, half) d = Div(x, root) e = Erf(d) o = Add(e, one) y = Mul(h, o)",
}


@pytest.mark.parametrize("body", GELU.values(), ids=GELU)
def test_nodes_that_spell_gelu_are_one_instruction(body: str, compiler: Compiler) -> None:
    numbers = {"root": 2**0.5, "r": 0.5**0.5, "one": 1.0, "half": 0.5}
    fixed = {n: np.array(v, np.float32) for n, v in numbers.items() if f" {n})" in body or f"({n}," in body}
    declared = "".join(f", float {n}" for n in fixed)
    group = group_from(f"(float[3,67] x{declared}) => (float[3,67] y) {{ {body} }}", fixed)
    formula = recipe_of(group.nodes, group.outputs)
    assert not isinstance(formula, str)
    assert formula.recipe[-1][0] == "Gelu"
    x = np.linspace(-9, 9, 201, dtype=np.float32).reshape(3, 67)
    (found,) = run_group(ROW, group, {"x": x}, compiler)
    wide = x.astype(np.float64)
    expected = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
    assert_close(found, expected, 1e-6)
    other = group_from(
        f"(float[4] x{declared}) => (float[4] y) {{ {body} }}", fixed | {"half": np.array(0.4, "f4")}
    )
    changed = recipe_of(other.nodes, other.outputs)
    assert not isinstance(changed, str)
    assert changed.recipe[-1][0] == "Mul"
