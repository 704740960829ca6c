"""Elementary functions of float32 against double precision, over all magnitudes and special values."""

import math

import llvmlite.binding as binding
import numpy as np
import pytest

from app.kernels.cpu import angles
from app.kernels.cpu.codegen import libm, vectormath
from app.kernels.cpu.codegen.pipeline import bitcode
from app.kernels.cpu.runtime.compiler import CompiledKernel, Compiler, call

RANDOM = np.random.default_rng(5)
# Every bit pattern is as likely as another, so all magnitudes, infinities and NaN occur.
PATTERNS = RANDOM.integers(0, 2**32, 100_000, np.uint64).astype(np.uint32).view(np.float32)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 1, -1, 0.5, -0.5]
EDGES = [88.7, 88.75, 89.4, 89.5, -87.3, -87.4, -87.7, -88, -103.9, -104.1, 3.92, 3.96, 1e9, 16777217.0]
GRIDS = np.concatenate([SPECIAL, EDGES, np.linspace(-110, 100, 50_001), np.linspace(-1.01, 1.01, 50_001)])
X = np.concatenate([PATTERNS, GRIDS.astype(np.float32)])
SMALLEST_NORMAL = 2.0**-126
NEGLIGIBLE = 2.0**-119  # below, a result may lose digits or become zero
EPSILON = 2.0**-24


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0.0, x)


erf = np.vectorize(math.erf)
# Function, the same in double precision, relative error in units of half the last place.
CASES = (
    ("exp", np.exp, 3),
    ("expm1_", np.expm1, 4),
    ("log", np.log, 3),
    ("log1p_", np.log1p, 4),
    ("sigmoid", sigmoid, 4),
    ("tanh", np.tanh, 5),
    ("softplus", softplus, 4),
    ("mish", lambda x: x * np.tanh(softplus(x)), 6),
    ("erf", erf, 7),
    ("sin", np.sin, 4),
    ("cos", np.cos, 4),
    ("tan", np.tan, 6),
    ("asin", np.arcsin, 6),
    ("acos", np.arccos, 6),
    ("atan", np.arctan, 5),
    ("sinh", np.sinh, 5),
    ("cosh", np.cosh, 5),
    ("asinh", np.arcsinh, 5),
    ("acosh", np.arccosh, 5),
    ("atanh", np.arctanh, 6),
)


def loop(name: str, arity: int) -> str:
    """The module of a kernel that calls a function for each element."""
    module = vectormath if hasattr(vectormath, name) else angles
    operands = ["x", "z"][:arity]
    elements = ", ".join(f"{operand}[i]" for operand in operands)
    return f"""\
from {module.__name__} import {name}


def kernel({", ".join(operands)}, y, begin, end):
    for i in range(begin, end):
        y[i] = {name}({elements})
"""


def compiled(compiler: Compiler, name: str, arity: int = 1) -> CompiledKernel:
    return compiler.compile(f"{__name__}:loop", ("float32*",) * (arity + 1), (name, arity))


def computed(kernel: CompiledKernel, *operands: np.ndarray) -> np.ndarray:
    found = np.empty_like(operands[0])
    call(kernel, *(a.ctypes.data for a in (*operands, found)), 0, found.size)
    return found


@pytest.mark.parametrize(("name", "reference", "places"), CASES, ids=[c[0].strip("_") for c in CASES])
def test_a_function_is_accurate_everywhere_and_its_loop_is_vector_code(
    name, reference, places, compiler: Compiler
) -> None:
    kernel = compiled(compiler, f"{name}32")
    found = computed(kernel, X)
    with np.errstate(all="ignore"):
        expected = reference(X.astype(np.float64))
        single = expected.astype(np.float32)
        error = np.abs(found - expected) / np.maximum(np.abs(expected), NEGLIGIBLE)
    finite = np.isfinite(single)
    np.testing.assert_array_equal(found[~finite], single[~finite])
    normal = finite & (np.abs(expected) >= NEGLIGIBLE)
    worst = np.argmax(np.where(normal, error, 0))
    assert error[worst] <= places * EPSILON, (X[worst], found[worst], expected[worst])
    assert np.max(np.where(finite, error, 0)) <= 1
    # Two look-ups of a quotient: LLVM finds vectors of them not worth it.
    assert name == "tan" or "x float>" in str(binding.parse_bitcode(bitcode(kernel.path)))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_is_accurate_relative_to_its_argument(name, compiler: Compiler) -> None:
    x = np.linspace(-12, 12, 20_001).astype(np.float32)
    found = computed(compiled(compiler, f"{name}32"), x)
    wide = x.astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    expected = 0.5 * wide * (1 + (erf(wide / math.sqrt(2)) if name == "gelu" else np.tanh(inner)))
    assert np.max(np.abs(found - expected) / np.maximum(np.abs(wide), 1)) <= 4 * EPSILON


def test_power_has_the_signs_and_special_cases_of_ieee_754(compiler: Compiler) -> None:
    values = np.array([*SPECIAL, 2, 3, -2, -3, 1.5, -1.5, 0.1, 127, -126, 1e10, -1e10, 16777215], np.float32)
    random = np.exp(RANDOM.uniform(-20, 20, 20_000)), RANDOM.uniform(-5, 5, 20_000)
    x = np.concatenate([np.repeat(values, values.size), random[0]]).astype(np.float32)
    y = np.concatenate([np.tile(values, values.size), random[1]]).astype(np.float32)
    found = computed(compiled(compiler, "power32", 2), x, y)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64))
        single = expected.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(single))
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(single)], np.signbit(single)[~np.isnan(single)])
    np.testing.assert_array_equal(np.isinf(found), np.isinf(single))
    finite = np.isfinite(single)
    np.testing.assert_allclose(
        found[finite], expected[finite], rtol=4 * EPSILON, atol=SMALLEST_NORMAL * EPSILON
    )


def test_both_precisions_offer_the_same_functions() -> None:
    single = {
        name[:-2]
        for name in (*vars(vectormath), *vars(angles))
        if name.endswith("32") and not name.startswith("_")
    }
    double = {name[:-2] for name in vars(libm) if name.endswith("64") and not name.startswith("_")}
    assert double == single - {"exp_falling", "half_exp", "log1p_", "f"}
