"""Products of bfloat16 against sums in double precision of the rounded operands: an exact model of them.

This machine may lack the instructions: kernels are forced to compute the same by shifts.
"""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.engine.registry import Known
from app.engine.target import host
from app.kernels.cpu.compiler import Compiler
from tests import harness
from tests.kernels import test_blocked_conv as conv_cases
from tests.kernels.test_conv import attributes, close, convolve, run

Array = np.ndarray[Any, Any]


@pytest.fixture(params=[8, 16], autouse=True)
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A job in bf16 for registers of 8 or 16 float32."""
    monkeypatch.setattr(
        harness,
        "known",
        lambda threads=1, lanes=0: harness.bf16(
            Known(replace(host(), vector_lanes=lanes or request.param), threads)
        ),
    )
    return int(request.param)


def rounded(x: Array) -> Array:
    """The nearest bfloat16, in float64."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def operands(case: tuple[Any, ...]) -> tuple[dict[str, Array], Array]:
    """x, weights and bias, and the output by definition for rounded operands."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in case[:2])
    b = rng.standard_normal(w.shape[0]).astype(np.float32)
    return {"x": x, "w": w, "b": b}, convolve(rounded(x), rounded(w), *case[2:]) + b.reshape(-1, 1, 1)


def check(
    row: str,
    case: tuple[Any, ...],
    name: str,
    compiler: Compiler,
    *,
    threads: int = 1,
    inplace: bool = False,
) -> None:
    values, y = operands(case)
    nodes, extra = conv_cases.EPILOGUES[name]
    rng = np.random.default_rng(1)
    values.update({n: rng.standard_normal(y.shape).astype(np.float32) for n in extra})
    expected = conv_cases.expected_of(name, y, values)
    found = run(
        compiler, row, nodes.format(attributes(case)), values, y.shape,
        changing=("x", *extra), threads=threads, inplace=inplace,
    )  # fmt: skip
    close(found, expected, int(np.prod(case[1][1:])))


@pytest.mark.parametrize("case", conv_cases.CASES, ids=str)
def test_conv(case: tuple[Any, ...], compiler: Compiler) -> None:
    check("conv.blocked_bf16", case, "none", compiler, threads=2)


@pytest.mark.parametrize("case", conv_cases.STEMS, ids=str)
def test_stem(case: tuple[Any, ...], compiler: Compiler) -> None:
    check("conv.blocked_stem_bf16", case, "relu", compiler)


@pytest.mark.parametrize("name", ["residual", "silu"])
def test_epilogues(name: str, compiler: Compiler) -> None:
    case = conv_cases.CASES[5]
    check("conv.blocked_bf16", case, name, compiler, threads=2, inplace=name == "residual")
