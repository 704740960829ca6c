"""Convolutions over images with channels last against a direct sum in double precision."""

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.test_conv import REGISTRY, lanes  # noqa: F401
from tests.kernels.test_nchwc_conv import CASES, EPILOGUES, STEMS, check

DEPTHWISE = [
    ((1, 16, 14, 14), (16, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 16),
    ((2, 37, 9, 21), (37, 1, 5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 37),
    ((1, 40, 11, 7), (40, 1, 3, 3), (1, 2), (2, 0, 1, 3), (2, 1), 40),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", [*CASES, STEMS[0]], ids=str)
def test_conv(case: tuple, threads: int, compiler: Compiler) -> None:
    check("conv.last", case, "none", compiler, threads)


@pytest.mark.parametrize("case", [CASES[1], CASES[5], CASES[7]], ids=str)
def test_conv_with_other_lanes(case: tuple, lanes: int, compiler: Compiler) -> None:  # noqa: F811
    check("conv.last", case, "residual", compiler, 2)


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("case", [CASES[1], CASES[7]], ids=str)
def test_what_follows(case: tuple, name: str, compiler: Compiler) -> None:
    check("conv.last", case, name, compiler, 1)


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_residual_in_place(case: tuple, compiler: Compiler) -> None:
    check("conv.last", case, "residual", compiler, 2, inplace=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise(case: tuple, threads: int, lanes: int, compiler: Compiler) -> None:  # noqa: F811
    check("conv.depthwise_last", case, "relu", compiler, threads)


@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_depthwise_one(name: str, compiler: Compiler) -> None:
    check("conv.depthwise_last", DEPTHWISE[1], name, compiler, 2)


def test_fewer_channels_than_a_vector_holds_are_refused() -> None:
    row = harness.implementation("conv.depthwise_last", REGISTRY)
    weights = np.zeros((3, 1, 3, 3), np.float32)
    text = '<ir_version: 10, opset_import: ["": 21]> agraph (float[1,3,9,9] x, float[3,1,3,3] w) => (float[1,3,7,7] y) { y = Conv<group = 3>(x, w) }'
    group = harness.group_of(harness.model_of(text, {"w": weights}), REGISTRY)
    assert "do not fill a vector" in str(row.rejection(group, harness.context(lanes=8)))
