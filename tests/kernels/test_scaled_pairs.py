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


@pytest.mark.parametrize("case", conv_cases.STEMS, ids=str)
def test_stem(case: tuple[Any, ...], compiler: Compiler) -> None:
    check("conv.blocked_stem_int16", case, "relu", compiler)


@pytest.mark.parametrize("name", ["residual", "silu"])
def test_epilogues(name: str, compiler: Compiler) -> None:
    case = conv_cases.CASES[5]
    check("conv.blocked_int16", case, name, compiler, threads=2, inplace=name == "residual")


def test_numbers_that_are_not_finite_stay_so(compiler: Compiler) -> None:
    case = conv_cases.CASES[0]
    values, y, _ = operands(case)
    for number in (np.nan, np.inf):
        values["x"][:] = 1.0
        values["x"][0, 0, case[0][2] // 2, case[0][3] // 2] = number
        found = run(
            compiler, "conv.blocked_int16", conv_cases.EPILOGUES["none"][0].format(attributes(case)),
            values, y.shape, changing=("x",),
        )  # fmt: skip
        window = found[0, :, y.shape[2] // 2, y.shape[3] // 2]
        assert not np.any(np.isfinite(window))


def test_a_strip_of_zeros_is_zeros(compiler: Compiler) -> None:
    case = conv_cases.CASES[0]
    values, y, _ = operands(case)
    values["x"][:] = 0
    found = run(
        compiler, "conv.blocked_int16", conv_cases.EPILOGUES["none"][0].format(attributes(case)),
        values, y.shape, changing=("x",),
    )  # fmt: skip
    np.testing.assert_array_equal(found, np.broadcast_to(values["b"].reshape(-1, 1, 1), y.shape))


@pytest.mark.parametrize("shape", [(3, 1), (5, 640), (4, 9, 3, 3), (2, 30000)])
def test_no_sum_of_integers_leaves_32_bits(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for array in (
        rng.standard_normal(shape),
        np.full(shape, 1e-20),
        np.eye(*shape[:2]) if len(shape) == 2 else rng.random(shape),
    ):
        array = array.astype(np.float32)
        integers, scales = tiles.scaled_integers(array)
        sums = np.abs(integers.astype(np.int64)).reshape(len(array), -1).sum(1) * tiles.SCALED_MOST
        assert sums.max() < 2**31
        real = integers * scales.reshape(-1, *(1,) * (array.ndim - 1)).astype(np.float64)
        assert np.all(np.abs(real - array) <= scales.reshape(-1, *(1,) * (array.ndim - 1)) * 0.501)
        # No coarser than the sum asks for: half of the scale would leave them.
        used = sums.max() > 0.9 * 2**31 or np.abs(integers).max() > 0.9 * 2**15
        assert used
