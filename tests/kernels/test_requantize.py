"""Sums become what is stored as NumPy computes it, step by step in the types of the recipe."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.epilogue import ALONG, FIXED, ROWS
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]
Operands = tuple[tuple[str, str], ...]
LIMITS = {"uint8": (0.0, 255.0, "uint8"), "int8": (-128.0, 127.0, "int8")}
LENGTHS = (1, 3, 4, 8, 15, 16, 17, 44, 64, 103, 250)


def quantizing(kind: str) -> tuple[Recipe, Operands]:
    """Scale and addend by column, a zero point."""
    recipe: Recipe = (
        ("Cast", (0,), ("float32",)),
        ("Mul", (4, 1), ()),
        ("Add", (5, 2), ()),
        ("Round", (6,), ()),
        ("Cast", (3,), ("float32",)),
        ("Add", (7, 8), ()),
        ("Saturate", (9,), LIMITS[kind]),
    )
    return recipe, ((ALONG, "float32"), (ALONG, "float32"), (FIXED, kind))


def biased(kind: str) -> tuple[Recipe, Operands]:
    """An integer by column that is added to the sums, then a scale; no zero point."""
    recipe: Recipe = (
        ("Add", (0, 1), ()),
        ("Cast", (3,), ("float32",)),
        ("Mul", (4, 2), ()),
        ("Round", (5,), ()),
        ("Saturate", (6,), LIMITS[kind]),
    )
    return recipe, ((ALONG, "int32"), (FIXED, "float32"))


def residual(kind: str) -> tuple[Recipe, Operands]:
    """The same in real numbers again, plus a residual of 8 bits, over another scale."""
    first, operands = quantizing(kind)
    moved = tuple((op, tuple(i + 2 * (i >= 4) for i in read), more) for op, read, more in first)
    recipe: Recipe = (
        *moved,
        ("Cast", (12,), ("float32",)),
        ("Cast", (4,), ("float32",)),
        ("Add", (13, 14), ()),
        ("Div", (15, 5), ()),
        ("Round", (16,), ()),
        ("Saturate", (17,), LIMITS[kind]),
    )
    return recipe, (*operands, (ROWS, kind), (FIXED, "float32"))


def real(kind: str) -> tuple[Recipe, Operands]:
    """Levels without a zero point, as real numbers."""
    recipe: Recipe = (
        ("Cast", (0,), ("float32",)),
        ("Div", (2, 1), ()),
        ("Round", (3,), ()),
        ("Saturate", (4,), LIMITS[kind]),
        ("Cast", (5,), ("float32",)),
        ("Mul", (6, 1), ()),
    )
    return recipe, ((FIXED, "float32"),)


def expected(recipe: Recipe, inputs: list[Array], result: str) -> Array:
    values = list(inputs)
    with np.errstate(all="ignore"):
        for op, read, more in recipe:
            x = [values[i] for i in read]
            if op == "Cast":
                values.append(x[0].astype(np.float32))
            elif op == "Round":
                values.append(np.rint(x[0]))
            elif op == "Saturate":
                low, high, kind = more
                limited = np.where(x[0] > low, x[0], np.float32(low))
                values.append(np.minimum(limited, np.float32(high)).astype(kind))
            else:
                values.append({"Add": np.add, "Mul": np.multiply, "Div": np.divide}[op](*x))
    assert values[-1].dtype == result
    return values[-1]


def emit(lanes: int, result: str, recipe: Recipe, operands: Operands) -> Sources:
    names = "".join(f", x{i}" for i in range(len(operands)))
    text = f"""\
from LIBRARY0 import run, run_rows

def kernel(v, row, m, n, y, y_row{names}, begin, end):
    if m == 1:
        run(v, y, n{names})
    else:
        run_rows(v, row, m, n, y, y_row{names})
"""
    return converted_run_library("int32", result, recipe, operands, lanes), text


def sums(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Small ones, halves of a scale of 1/2 among them, and the extremes of int32."""
    found = rng.integers(-600, 600, shape).astype(np.int32)
    found.ravel()[::7] = rng.integers(-(2**31), 2**31, found.ravel()[::7].shape)
    found.ravel()[:2] = -(2**31), 2**31 - 1
    return found


@pytest.mark.parametrize(
    ("way", "m"),
    [(quantizing, 1), (quantizing, 5), (biased, 1), (biased, 5), (residual, 5), (real, 1), (real, 5)],
)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_rows_of_every_length(way: Any, m: int, kind: str, lanes: int, compiler: Compiler) -> None:
    recipe, operands = way(kind)
    result = "float32" if way is real else kind
    types = ("int32*", "int64", "int64", "int64", f"{result}*", "int64", *(f"{k}*" for _, k in operands))
    kernel = compiler.compile("tests.kernels.test_requantize:emit", types, (lanes, result, recipe, operands))
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        row, y_row = n + 3, n + 2
        v = sums(rng, (m, row))
        y = rng.integers(0, 100, (m, y_row)).astype(result)
        inputs, given = [v[:, :n]], []
        for advance, dtype in operands:
            if advance == ROWS:
                array, read = y, y[:, :n].copy()
            elif dtype == "int32":
                array = read = rng.integers(-(2**20), 2**20, n).astype(np.int32)
            elif dtype == "float32":
                array = rng.choice(np.array([0.5, 1.5, 1e-3, 3e5, -0.25], np.float32), n)
                read = array if advance == ALONG else array[:1]
            else:
                array = read = rng.integers(1, 100, 1).astype(dtype)
            given.append(array)
            inputs.append(read)
        wanted, kept = expected(recipe, inputs, result), y[:, n:].copy()
        places = (array.ctypes.data for array in given)
        kernel.function(v.ctypes.data, row, m, n, y.ctypes.data, y_row, *places, 0, 1)
        np.testing.assert_array_equal(y[:, :n].view(f"u{y.itemsize}"), wanted.view(f"u{y.itemsize}"))
        np.testing.assert_array_equal(y[:, n:], kept)
