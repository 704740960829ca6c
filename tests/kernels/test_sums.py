"""Folds of runs of every length, against NumPy in extended precision; what lies around a run is NaN."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.runtime.compiler import Compiler, call
from app.kernels.cpu.sums import dot, largest, total, total_magnitudes, total_squares
from tests.harness import Array

LENGTHS = (*range(140), 1003, 4095, 4096, 4097, 9001)
BEFORE = 3  # elements before a run, so that no vector is aligned


def folds(x: Any, y: Any, found: Any, n: Any, begin: Any, end: Any) -> None:
    """All folds of x[BEFORE : BEFORE + n], and of its product with y from there on."""
    stop = BEFORE + n
    found[0] = total(x, BEFORE, stop)
    found[1] = total_magnitudes(x, BEFORE, stop)
    found[2] = total_squares(x, BEFORE, stop, x[BEFORE + n])
    found[3] = largest(x, BEFORE, stop)
    found[4] = dot(at(x, BEFORE), at(y, BEFORE), n)


def around(values: Array, center: float = math.nan) -> Array:
    """The values between NaN; the first element behind them is `center`."""
    nothing = np.full(40, np.nan)
    return np.concatenate([nothing[:BEFORE], values, [center], nothing]).astype(values.dtype)


# Result over x, y and a center; magnitude that its rounding errors are proportional to.
Reference = Callable[[Array, Array, float], Any]
REFERENCES: tuple[tuple[str, Reference, Reference], ...] = (
    ("sum", lambda x, _y, _c: x.sum(), lambda x, _y, _c: abs(x).sum()),
    ("magnitudes", lambda x, _y, _c: abs(x).sum(), lambda x, _y, _c: abs(x).sum()),
    ("squares", lambda x, _y, c: ((x - c) ** 2).sum(), lambda x, _y, c: ((x - c) ** 2).sum()),
    ("largest", lambda x, _y, _c: x.max(initial=-math.inf), lambda _x, _y, _c: 0.0),
    ("dot", lambda x, y, _c: (x * y).sum(), lambda x, y, _c: abs(x * y).sum()),
)


@pytest.mark.parametrize("other", ["float32", "float64", "float16"])
def test_runs_of_every_length(compiler: Compiler, other: str) -> None:
    dtype = "float64" if other == "float64" else "float32"
    kernel = compiler.compile(f"{__name__}:folds", (f"{dtype}*", f"{other}*", "float64*", "int64"))
    random, unit = np.random.default_rng(0), float(np.finfo(dtype).eps)
    for n in LENGTHS:
        x = around(random.standard_normal(n).astype(dtype), 0.25)
        y = around(random.standard_normal(n).astype(other))
        found = np.full(len(REFERENCES), np.nan)
        call(kernel, x.ctypes.data, y.ctypes.data, found.ctypes.data, n, 0, 1)
        a, b = (each[BEFORE : BEFORE + n].astype(np.longdouble) for each in (x, y))
        for got, (name, reference, magnitude) in zip(found, REFERENCES):
            expected = float(reference(a, b, 0.25))
            # A sum on 32 accumulators, of runs of 4096.
            bound = unit * (4 + min(n, 4096) / 32) * float(magnitude(a, b, 0.25))
            assert got == expected or abs(got - expected) <= bound, (name, n)


def test_a_nan_anywhere_is_the_largest_and_the_sum(compiler: Compiler) -> None:
    kernel = compiler.compile(f"{__name__}:folds", ("float32*", "float32*", "float64*", "int64"))
    for n in (1, 7, 33, 63, 64, 130):
        for place in range(n):
            x = around(np.ones(n, np.float32), 0.0)
            x[BEFORE + place] = np.nan
            found = np.zeros(len(REFERENCES))
            call(kernel, x.ctypes.data, x.ctypes.data, found.ctypes.data, n, 0, 1)
            assert np.isnan(found).all(), (n, place)
