"""Transcendental functions of float32 against double precision, special values included."""

import math

import numba
import numpy as np
import pytest

from app.kernels.cpu import vectormath

X = np.concatenate(
    [
        np.linspace(-110, 100, 20001),
        np.linspace(-1, 1, 10001),
        np.logspace(-38, 38, 2000),
        [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40],
    ]
).astype(np.float32)

# Function, the same in double precision, relative error allowed above the absolute one.
CASES = (
    ("exp32", np.exp, 2e-7, 2e-45),
    ("log32", np.log, 2e-7, 1e-7),
    ("expm1_32", np.expm1, 3e-7, 0.0),
    ("log1p_32", np.log1p, 3e-7, 0.0),
    ("tanh32", np.tanh, 3e-7, 0.0),
    ("sigmoid32", lambda x: 1 / (1 + np.exp(-x)), 3e-7, 1e-38),
    ("softplus32", lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 3e-7, 1e-38),
    ("erf32", np.vectorize(math.erf), 5e-7, 2e-7),
)


@pytest.mark.parametrize(("name", "reference", "relative", "absolute"), CASES, ids=[c[0] for c in CASES])
def test_a_function_is_accurate_and_its_loop_is_vector_code(name, reference, relative, absolute) -> None:
    function = getattr(vectormath, name)

    @numba.njit(error_model="numpy")
    def loop(x, y):
        for i in range(x.size):
            y[i] = function(x[i])

    found = np.empty_like(X)
    loop(X, found)
    with np.errstate(all="ignore"):
        expected = reference(X.astype(np.float64))
        single = expected.astype(np.float32)
    finite = np.isfinite(single)
    np.testing.assert_array_equal(found[~finite], single[~finite])
    np.testing.assert_allclose(found[finite], expected[finite], rtol=relative, atol=absolute)
    text = next(iter(loop.inspect_llvm().values()))
    assert "x float>" in text
