"""Every scalar expression, on every class of types, against NumPy in float64 or the type itself."""

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  # registers bfloat16 by name
import numpy as np
import pytest

from app.kernels.cpu.elementwise import emit
from app.kernels.cpu.runtime.compiler import Compiler, call
from app.kernels.expressions import EXPRESSIONS, converted, result_dtypes, stored, template

Array = np.ndarray[Any, Any]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3e38, -3e38]
ORDINARY = [1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.2, 6, -3.7, 0.49, 20, -20, 90, -90, 120, -120, 0.001, 7]
FLOAT_VALUES = np.array([*SPECIAL, *ORDINARY])

erf, erfc = np.vectorize(math.erf), np.vectorize(math.erfc)


@dataclass(frozen=True)
class Case:
    """An operator with its parameters and the same in NumPy.

    `exact` where no rounding may differ; `absolute` error allowed, in units of the last place of 1.
    """

    op: str
    reference: Any
    parameters: tuple[float | int | str, ...] = ()
    exact: bool = False
    absolute: float = 0.0


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


REAL_UNARY = (
    Case("Identity", lambda x: x, exact=True),
    Case("Abs", np.abs, exact=True),
    Case("Neg", np.negative, exact=True),
    Case("Sign", np.sign, exact=True),
    Case("Floor", np.floor, exact=True),
    Case("Ceil", np.ceil, exact=True),
    Case("Round", np.rint, exact=True),
    Case("Sqrt", np.sqrt),
    Case("Reciprocal", np.reciprocal),
    Case("Exp", np.exp),
    Case("Log", np.log),
    Case("Sin", np.sin),
    Case("Cos", np.cos),
    Case("Tan", np.tan),
    Case("Asin", np.arcsin),
    Case("Acos", np.arccos),
    Case("Atan", np.arctan),
    Case("Sinh", np.sinh),
    Case("Cosh", np.cosh),
    Case("Asinh", np.arcsinh),
    Case("Acosh", np.arccosh),
    Case("Atanh", np.arctanh),
    Case("Tanh", np.tanh),
    Case("Sigmoid", sigmoid),
    Case("Erf", erf),
    Case("Softplus", lambda x: np.logaddexp(0.0, x)),
    Case("Softsign", lambda x: x / (1 + np.abs(x))),
    Case("Mish", lambda x: x * np.tanh(np.logaddexp(0.0, x))),
    Case("Relu", lambda x: np.maximum(x, 0.0), exact=True),
    Case("IsNaN", np.isnan),
    Case("LeakyRelu", lambda x: np.where(x < 0, 0.1 * x, x), (0.1,)),
    Case("Elu", lambda x: np.where(x > 0, x, 1.3 * np.expm1(x)), (1.3,)),
    Case("Selu", lambda x: 1.05 * np.where(x > 0, x, 1.67 * np.expm1(x)), (1.67, 1.05)),
    Case("Celu", lambda x: np.where(x > 0, x, 2.5 * np.expm1(x / 2.5)), (2.5,)),
    Case("ThresholdedRelu", lambda x: np.where(x > 1.4, x, 0), (1.4,)),
    Case("HardSigmoid", lambda x: np.clip(0.2 * x + 0.5, 0, 1), (0.2, 0.5)),
    Case("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    Case("Swish", lambda x: x * sigmoid(1.2 * x), (1.2,)),
    Case("Silu", lambda x: np.where(x < -745, 0, x * sigmoid(x)), absolute=64),
    Case("Gelu", lambda x: 0.5 * x * erfc(-x / math.sqrt(2)), absolute=1),
    Case("GeluTanh", lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), absolute=1),
    Case("Shrink", lambda x: np.where(x < -1.2, x + 0.7, np.where(x > 1.2, x - 0.7, 0)), (0.7, 1.2)),
    Case("IsInf", np.isposinf, (math.inf, math.nan)),
    Case("DividedBy", lambda x: x / 3, (3,)),
    Case("Saturate", lambda x: np.where(x > -5, np.minimum(x, 9), -5).astype("i1"), (-5.0, 9.0, "int8")),
)
REAL_BINARY = (
    Case("Add", np.add),
    Case("Sub", np.subtract),
    Case("Mul", np.multiply),
    Case("Div", np.divide),
    Case("Mod", np.mod),
    Case("Fmod", np.fmod, exact=True),
    Case("Pow", np.power),
    Case("Min", np.minimum, exact=True),
    Case("Max", np.maximum, exact=True),
    Case("AtLeast", lambda x, y: np.where(x < y, y, x), exact=True),
    Case("AtMost", lambda x, y: np.where(x > y, y, x), exact=True),
    Case("PRelu", lambda x, y: np.where(x < 0, x * y, x)),
    Case("Equal", np.equal),
    Case("Less", np.less),
    Case("Greater", np.greater),
    Case("LessOrEqual", np.less_equal),
    Case("GreaterOrEqual", np.greater_equal),
)
WHOLE_UNARY = (
    Case("Abs", np.abs),
    Case("Neg", np.negative),
    Case("Sign", np.sign),
    Case("Relu", lambda x: np.maximum(x, x.dtype.type(0))),
    Case("BitwiseNot", np.invert),
    Case("Identity", lambda x: x),
)


def truncated_quotient(x: Array, y: Array) -> Array:
    def divided(a: int, b: int) -> int:
        return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    limit = 2 ** np.iinfo(x.dtype).bits
    whole = [divided(int(a), int(b)) % limit for a, b in zip(x, y)]
    return np.array(whole, f"u{x.itemsize}").view(x.dtype)


WHOLE_BINARY = (
    Case("Add", np.add),
    Case("Sub", np.subtract),
    Case("Mul", np.multiply),
    Case("Div", truncated_quotient),
    Case("Mod", np.mod),
    Case("Fmod", np.fmod),
    Case("Min", np.minimum),
    Case("Max", np.maximum),
    Case("Equal", np.equal),
    Case("Less", np.less),
    Case("GreaterOrEqual", np.greater_equal),
    Case("BitwiseAnd", np.bitwise_and),
    Case("BitwiseOr", np.bitwise_or),
    Case("BitwiseXor", np.bitwise_xor),
    Case("PRelu", lambda x, y: np.where(x < 0, x * y, x)),
)
TRUTH_BINARY = (
    Case("And", np.logical_and),
    Case("Or", np.logical_or),
    Case("Xor", np.logical_xor),
    Case("Equal", np.equal),
)


def evaluate(compiler: Compiler, cases: tuple[Case, ...], operands: list[Array]) -> list[Array]:
    """All cases on the same operands, by one kernel with an output for each."""
    dtypes = tuple(x.dtype.name for x in operands)
    numbers = tuple(range(len(operands)))
    recipe = tuple((case.op, numbers, case.parameters) for case in cases)
    kinds = result_dtypes(recipe, dtypes)[len(operands) :]
    results = tuple((len(operands) + k, kind) for k, kind in enumerate(kinds))
    types = (*(f"{stored(d)}*" for d in dtypes), *(f"{stored(d)}*" for d in kinds), "int64")
    static = (recipe, dtypes, ((True,),) * len(operands), results)
    kernel = compiler.compile("app.kernels.cpu.elementwise:emit", types, static)
    outputs = [np.empty(operands[0].shape, kind) for kind in kinds]
    addresses = [x.ctypes.data for x in (*operands, *outputs)]
    call(kernel, *addresses, operands[0].size, 0, operands[0].size)
    return outputs


def compare(cases: tuple[Case, ...], operands: list[Array], found: list[Array]) -> None:
    """Float results against float64, within a few units in the last place of the operands' type."""
    real = operands[0].dtype.kind == "f"
    wide = [x.astype(np.float64) for x in operands] if real else operands
    for case, result in zip(cases, found, strict=True):
        with np.errstate(all="ignore"):
            expected = np.asarray(case.reference(*wide))
            cast = expected.astype(result.dtype)
        if case.exact or result.dtype.kind != "f":
            np.testing.assert_array_equal(result, cast, err_msg=case.op)
            continue
        limits = np.finfo(result.dtype)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(cast), err_msg=case.op)
        smallest = 8 * limits.smallest_normal + case.absolute * limits.eps
        np.testing.assert_allclose(result, cast, rtol=8 * limits.eps, atol=smallest, err_msg=case.op)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("part", range(4))
def test_functions_of_a_float_agree_with_numpy(part: int, dtype: str, compiler: Compiler) -> None:
    cases = REAL_UNARY[part::4]
    operands = [FLOAT_VALUES.astype(dtype)]
    compare(cases, operands, evaluate(compiler, cases, operands))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operations_on_two_floats_agree_with_numpy(dtype: str, compiler: Compiler) -> None:
    x = np.repeat(FLOAT_VALUES, FLOAT_VALUES.size).astype(dtype)
    y = np.tile(FLOAT_VALUES, FLOAT_VALUES.size).astype(dtype)
    compare(REAL_BINARY, [x, y], evaluate(compiler, REAL_BINARY, [x, y]))


WHOLE = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]


def whole_values(dtype: str) -> Array:
    limits = np.iinfo(dtype)
    small = [v for v in (0, 1, -1, 2, -2, 3, 7, -7, 100, 64) if v >= limits.min]
    return np.array([*small, limits.min, limits.max, limits.max - 1], dtype)


@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_wrap_and_divide_as_in_numpy(dtype: str, compiler: Compiler) -> None:
    values = whole_values(dtype)
    cases = WHOLE_UNARY
    compare(cases, [values], evaluate(compiler, cases, [values]))
    x, y = np.repeat(values, values.size), np.tile(values, values.size)
    compare(WHOLE_BINARY, [x, y], evaluate(compiler, WHOLE_BINARY, [x, y]))


def test_quotients_of_64_bits_are_exact(compiler: Compiler) -> None:
    random = np.random.default_rng(0)

    def some(n: int) -> Array:
        return random.integers(-(2**63), 2**63 - 1, n, endpoint=True) >> random.integers(0, 63, n)

    limits = np.iinfo(np.int64)
    edges = np.array([3072, 2**53 + 1, 2**62, limits.max, limits.max - 1024, limits.min, limits.min + 1])
    divisors = some(1000) >> 20
    multiples = (some(1000) >> 20) * divisors
    x = np.concatenate([some(3000), multiples - 1, multiples, multiples + 1, np.repeat(edges, edges.size)])
    y = np.concatenate([some(3000), divisors, divisors, divisors, np.tile(edges, edges.size)])
    cases = tuple(case for case in WHOLE_BINARY if case.op in ("Div", "Mod", "Fmod"))
    compare(cases, [x, y], evaluate(compiler, cases, [x, y]))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64"])
def test_shifts_by_the_width_or_more_leave_what_moves_in(dtype: str, compiler: Compiler) -> None:
    values = whole_values(dtype)
    bits = np.iinfo(dtype).bits
    counts = np.array([0, 1, bits - 1, bits, bits + 3, 100], dtype)
    x, n = np.repeat(values, counts.size), np.tile(counts, values.size)
    cases = (Case("ShiftLeft", None), Case("ShiftRight", None))
    left, right = evaluate(compiler, cases, [x, n])
    expected_left = [(int(a) << int(b)) % 2**bits for a, b in zip(x, n)]
    expected_right = [int(a) >> int(b) for a, b in zip(x, n)]
    np.testing.assert_array_equal(left.view(f"u{bits // 8}"), np.array(expected_left, np.uint64))
    np.testing.assert_array_equal(right, np.array(expected_right, dtype))


def test_integer_powers_wrap_and_negative_ones_truncate(compiler: Compiler) -> None:
    pairs = [(a, b) for a in (0, 1, -1, 2, -3, 10) for b in (0, 1, 2, 3, 13, -1, -2)]
    x, n = (np.array(v, np.int32) for v in zip(*pairs))
    (found,) = evaluate(compiler, (Case("Pow", None),), [x, n])
    whole = [a**b if b >= 0 else (a**-b if abs(a) == 1 else 0) for a, b in pairs]
    expected = [(v + 2**31) % 2**32 - 2**31 for v in whole]
    np.testing.assert_array_equal(found, np.array(expected, np.int32))


def test_truth_values_combine_as_bytes_of_zero_and_one(compiler: Compiler) -> None:
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    compare(TRUTH_BINARY, [x, y], evaluate(compiler, TRUTH_BINARY, [x, y]))
    (negated,) = evaluate(compiler, (Case("Not", None),), [x])
    np.testing.assert_array_equal(negated, ~x)
    assert set(negated.view(np.uint8)) <= {0, 1}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_once_to_the_nearest_even(dtype: str, compiler: Compiler) -> None:
    x = np.array(
        [0, -0.0, 1, 1.001, 65504, 70000, 3e38, 1e-7, 6e-8, -2.7, np.inf, -np.inf, np.nan, 1.00390625]
    )
    with np.errstate(over="ignore"):
        x = x.astype(np.float32).astype(dtype)
    cases = (Case("Identity", lambda x: x), Case("Mul", lambda x: x * x), Case("Sigmoid", sigmoid))
    recipe = (("Identity", (0,), ()), ("Mul", (0, 0), ()), ("Sigmoid", (0,), ()))
    static = (recipe, (dtype,), ((True,),), tuple((k, dtype) for k in (1, 2, 3)))
    kernel = compiler.compile("app.kernels.cpu.elementwise:emit", ("uint16*",) * 4 + ("int64",), static)
    found = [np.empty_like(x) for _ in cases]
    call(kernel, *(a.ctypes.data for a in (x, *found)), x.size, 0, x.size)
    for case, result in zip(cases, found):
        with np.errstate(all="ignore"):
            expected = case.reference(x.astype(np.float32)).astype(dtype)
        np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))


CASTS = (
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    "bool",
)


@pytest.mark.parametrize(
    "source", ["float32", "float64", "int8", "uint8", "int32", "int64", "uint64", "bool"]
)
def test_casts_follow_numpy(source: str, compiler: Compiler) -> None:
    values = [0, 1, 100, 127, -1, -100, -128, 3.7, -3.7, 0.4, 300, -300, 70000, -70000]
    with np.errstate(all="ignore"):
        x = np.array(values).astype("int64").astype(source) if source[0] in "iu" else np.array(values, source)
    cases = tuple(Case("Cast", None, (target,)) for target in CASTS)
    for target, result in zip(CASTS, evaluate(compiler, cases, [x])):
        # NumPy leaves float to a narrower integer to the processor, which goes by int64 or int32.
        through = x.astype("int64") if x.dtype.kind == "f" and target[0] in "iu" else x
        np.testing.assert_array_equal(result, through.astype(target), err_msg=f"{source} to {target}")


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_numbers_from_2_to_the_63_become_uint64(source: str, compiler: Compiler) -> None:
    x = np.array([2.0**63, 1.5 * 2.0**63, 2.0**64 - 2.0**41, 2.0**62, 7.9, -7.9], source)
    (result,) = evaluate(compiler, (Case("Cast", None, ("uint64",)),), [x])
    np.testing.assert_array_equal(result, np.array([int(v) % 2**64 for v in x], np.uint64))


def test_the_text_of_every_expression_names_only_what_the_module_imports() -> None:
    for op in EXPRESSIONS:
        for dtype, kind in (("float32", "real"), ("int16", "whole"), ("bool", "truth")):
            form = template(op, dtype)
            assert (form is None) == (getattr(EXPRESSIONS[op], kind) is None) or op == "Cast"
    recipe = (("Relu", (0,), ()), ("Cast", (1,), ("int8",)), ("Less", (0, 1), ()))
    assert result_dtypes(recipe, ("float32",)) == ("float32", "float32", "int8", "bool")
    assert converted("v", "float32", "float32") == "v"
    compile(emit(recipe, ("float32",), ((True,),), ((2, "int8"), (3, "bool"))), "generated", "exec")
