"""Products by tile registers against sums in double precision of the rounded operands."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.engine.registry import Known
from app.engine.target import host
from app.kernels.cpu.compiler import Compiler
from tests import harness
from tests.kernels import test_bfloat as bfloat_cases
from tests.kernels import test_blocked_conv as conv_cases

pytestmark = pytest.mark.skipif(
    "amx_bf16" not in host().isa, reason="this machine has no AMX, or does not permit its use"
)


@pytest.fixture(autouse=True)
def in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(threads: int = 1, lanes: int = 0) -> Known:
        return Known(host(), threads, precision="bf16")

    monkeypatch.setattr(harness, "known", known)


@pytest.mark.parametrize("case", conv_cases.CASES, ids=str)
def test_conv(case: tuple[Any, ...], compiler: Compiler) -> None:
    bfloat_cases.check("conv.blocked_tiles", case, "none", compiler, threads=2)


@pytest.mark.parametrize("name", ["relu", "residual", "silu"])
def test_epilogues_of_conv(name: str, compiler: Compiler) -> None:
    for case in (conv_cases.CASES[5], conv_cases.CASES[2]):
        bfloat_cases.check("conv.blocked_tiles", case, name, compiler, inplace=name == "residual")


@pytest.mark.parametrize("case", bfloat_cases.PRODUCTS, ids=str)
def test_products(case: tuple[Any, ...], compiler: Compiler) -> None:
    bfloat_cases.check_product(case, "tiles", compiler)


STEMS = [
    *(case for case in conv_cases.STEMS if case[0][1] <= 4),
    ((1, 2, 9, 40), (17, 2, 3, 11), (1, 3), (1, 5, 1, 5), (1, 1), 1),
    ((1, 3, 32, 48), (40, 3, 16, 16), (16, 16), (0, 0, 0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("case", STEMS, ids=str)
def test_stem(case: tuple[Any, ...], compiler: Compiler) -> None:
    bfloat_cases.check("conv.blocked_stem_tiles", case, "relu", compiler, threads=2)
