"""Convolutions of int16 pairs against sums in double precision, within the bounds of both roundings."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.runtime.compiler import Compiler
from tests.kernels import test_nchwc_conv as conv_cases
from tests.kernels.test_conv import attributes, convolve, run

Array = np.ndarray[Any, Any]


def operands(case: tuple[Any, ...]) -> tuple[dict[str, Array], Array, Array]:
    """x, weights and bias; the output by definition; and how far roundings may move it."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in case[:2])
    b = rng.standard_normal(w.shape[0]).astype(np.float32)
    y = convolve(x.astype(np.float64), w.astype(np.float64), *case[2:]) + b.reshape(-1, 1, 1)
    _, scales = tiles.scaled_integers(w)
    half = np.abs(x).max() / tiles.SCALED_MOST / 2
    ones = np.ones_like(w, np.float64)
    moved = convolve(np.abs(x).astype(np.float64), ones * scales.reshape(-1, 1, 1, 1) / 2, *case[2:])
    moved += convolve(np.full(x.shape, half), np.abs(w) + ones * scales.reshape(-1, 1, 1, 1) / 2, *case[2:])
    return {"x": x, "w": w, "b": b}, y, moved


def check(
    row: str,
    case: tuple[Any, ...],
    name: str,
    compiler: Compiler,
    *,
    threads: int = 1,
    inplace: bool = False,
) -> None:
    values, y, moved = operands(case)
    nodes, extra = conv_cases.EPILOGUES[name]
    rng = np.random.default_rng(1)
    values.update({n: rng.standard_normal(y.shape).astype(np.float32) for n in extra})
    expected = conv_cases.expected_of(name, y, values)
    found = run(
        compiler, row, nodes.format(attributes(case)), values, y.shape,
        changing=("x", *extra), threads=threads, inplace=inplace,
    )  # fmt: skip
    assert np.all(np.abs(found - expected) <= moved * 1.5 + 1e-5 * np.abs(y).max())


@pytest.mark.parametrize("case", conv_cases.CASES, ids=str)
def test_conv(case: tuple[Any, ...], compiler: Compiler) -> None:
    check("conv.blocked_int16", case, "none", compiler, threads=2)
