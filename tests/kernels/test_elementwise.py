"""Generated elementwise kernels against the ONNX reference evaluator and NumPy broadcasting."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from app.engine.backends.numba_cpu.recipes import merge_axes
from app.engine.registry import load
from app.kernels.cpu.compiler import Compiler
from tests.harness import assert_close, group_of, implementation, known, model_of, run_group

REGISTRY = load()
ROW = implementation("elementwise.generated", REGISTRY)
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.7, 80.0, -80.0, np.inf, -np.inf, np.nan, 1e-40], "f4"
)

FLOAT_UNARY = [
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Sqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Tanh",
    "Sigmoid",
    "Erf",
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "ThresholdedRelu",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Softsign",
    "Mish",
    "Gelu",
    "Shrink",
]


def several(ops: list[str], dtype: str) -> str:
    """One graph with an output per operator, so that one kernel tests them all."""
    body = "\n".join(f"y{i} = {op}(x)" for i, op in enumerate(ops))
    outputs = ", ".join(f"{dtype}[14] y{i}" for i in range(len(ops)))
    return f'<ir_version: 10, opset_import: ["": 22]> g ({dtype}[14] x) => ({outputs}) {{ {body} }}'


def check(text: str, inputs: dict[str, np.ndarray], compiler: Compiler, tolerance=1e-5, **options) -> None:
    model = model_of(text)
    found = run_group(ROW, group_of(model, REGISTRY), inputs, compiler, **options)
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, inputs)
    for a, b in zip(found, expected, strict=True):
        b = np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("dtype", "kind"), [("float", "f4"), ("double", "f8")])
@pytest.mark.parametrize("ops", [FLOAT_UNARY[i : i + 13] for i in range(0, 37, 13)], ids=lambda o: o[0])
def test_unary_operators_agree_on_special_values(ops, dtype: str, kind: str, compiler: Compiler) -> None:
    check(several(list(ops), dtype), {"x": SPECIAL.astype(kind)}, compiler, tolerance=2e-5)


@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "i4", "i8", "u1", "u4"])
def test_arithmetic_and_comparison_follow_numpy(kind: str, compiler: Compiler) -> None:
    name = {
        "f4": "float",
        "f8": "double",
        "i1": "int8",
        "i4": "int32",
        "i8": "int64",
        "u1": "uint8",
        "u4": "uint32",
    }[kind]
    ops = (
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Min",
        "Max",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "Equal",
    )
    typed = [(op, "bool" if i > 5 else name) for i, op in enumerate(ops)]
    text = '<ir_version: 10, opset_import: ["": 22]> g ({0}[6] a, {0}[6] b) => ({1}) {{ {2} }}'.format(
        name,
        ", ".join(f"{t}[6] y{i}" for i, (_, t) in enumerate(typed)),
        "\n".join(f"y{i} = {op}(a, b)" for i, (op, _) in enumerate(typed)),
    )
    a = np.array([7, 0, 100, 3, 127, 1]).astype(kind)
    b = np.array([2, 1, 3, 3, 2, 100]).astype(kind)
    if kind[0] in "if":
        a[1], b[2] = -7, -3
    check(text, {"a": a, "b": b}, compiler)


@pytest.mark.parametrize("source", ["f4", "i1", "i8", "u1", "bool"])
def test_casts_follow_numpy(source: str, compiler: Compiler) -> None:
    names = {
        "f4": "float",
        "f8": "double",
        "i1": "int8",
        "i4": "int32",
        "i8": "int64",
        "u1": "uint8",
        "bool": "bool",
    }
    enum = {"f4": 1, "f8": 11, "i1": 3, "i4": 6, "i8": 7, "u1": 2, "bool": 9}
    text = '<ir_version: 10, opset_import: ["": 22]> g ({}[4] x) => ({}) {{ {} }}'.format(
        names[source],
        ", ".join(f"{names[t]}[4] y{i}" for i, t in enumerate(enum)),
        "\n".join(f"y{i} = Cast<to = {enum[t]}>(x)" for i, t in enumerate(enum)),
    )
    check(text, {"x": np.array([0, 1, 100, 5]).astype(source)}, compiler)


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=0, max_size=4)


def broadcast_pair(shape: list[int], cut: int, ones: list[bool]) -> tuple[list[int], list[int]]:
    second = [1 if o else d for d, o in zip(shape, ones)]
    return shape, second[min(cut, len(second)) :]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SHAPES, st.integers(0, 4), st.lists(st.booleans(), min_size=4, max_size=4), st.booleans())
def test_broadcasting_is_that_of_numpy(compiler: Compiler, shape, cut, ones, swap) -> None:
    first, second = broadcast_pair(shape, cut, ones)
    if swap:
        first, second = second, first
    shapes = [str(list(s)).replace(" ", "") for s in (first, second, shape)]
    text = (
        '<ir_version: 10, opset_import: ["": 22]> g (float{} a, float{} b) => (float{} y) {{ y = Sub(a, b) }}'
    )
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(s).astype("f4") for s in (first, second))
    model = model_of(text.format(*shapes))
    for value, dims in zip((*model.graph.inputs, *model.graph.outputs), (first, second, shape)):
        value.shape = ir.Shape(dims)
    (found,) = run_group(ROW, group_of(model, REGISTRY), {"a": a, "b": b}, compiler, threads=2)
    np.testing.assert_array_equal(found, a - b)


@given(SHAPES, st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3))
def test_merged_axes_address_the_same_elements(shape, masks) -> None:
    operands = [[1 if o else d for d, o in zip(shape, ones)] for ones in masks]
    nest = merge_axes(shape, [*operands, shape])
    size = int(np.prod(nest.sizes))
    assert size == int(np.prod(shape))
    for operand, strides in zip(operands, nest.strides):
        elements = np.arange(int(np.prod(operand))).reshape(operand)
        expected = np.broadcast_to(elements, shape).ravel()
        index = np.indices(nest.sizes).reshape(len(nest.sizes), -1)
        np.testing.assert_array_equal(np.array(strides) @ index, expected)


CHAINS = (
    "h = HardSigmoid(x)\n y = Mul(x, h)",
    "s = Sigmoid(x)\n m = Mul(x, s)\n y = Add(m, b)",
    "a = Add(x, b)\n r = Relu(a)\n n = Neg(r)\n e = Exp(n)\n y = Div(e, b)",
    "e = Erf(x)\n o = Add(e, b)\n p = Mul(x, o)\n y = Sqrt(p)",
)


@pytest.mark.parametrize("body", CHAINS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_chain_is_one_kernel_and_may_run_in_place(body: str, threads: int, compiler: Compiler) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 22]> g (float[3,4,37] x, float[4,1] b) => (float[3,4,37] y) { '
        + body
        + " }"
    )
    random = np.random.default_rng(2)
    inputs = {
        "x": np.abs(random.standard_normal((3, 4, 37))).astype("f4"),
        "b": (1 + random.random((4, 1))).astype("f4"),
    }
    expected = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, inputs)[0]
    model = model_of(text)
    group = group_of(model, REGISTRY)
    assert len(ROW.lower(group, known())) == 1
    (apart,) = run_group(ROW, group, inputs, compiler, threads=threads)
    assert_close(apart, expected)
    pairs = [p for p in ROW.inplace(group, None) if p[0].name == "x"]
    (inplace,) = run_group(ROW, group, inputs, compiler, threads=threads, alias=pairs)
    assert_close(inplace, expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float16[2] x) => (float16[2] y) { y = Relu(x) }", "FLOAT16"),
        ("g (int32[2] x) => (int32[2] y) { y = Sqrt(x) }", "is for floats"),
    ],
)
def test_what_has_no_expression_is_refused_with_a_reason(text: str, reason: str) -> None:
    model = model_of('<ir_version: 10, opset_import: ["": 22]> ' + text)
    found = ROW.unless(group_of(model, REGISTRY), None)
    assert found is not None
    assert reason in found
