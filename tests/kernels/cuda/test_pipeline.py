"""The passes that compile kernels for GPUs, against those of numba-cuda."""

import contextlib
import re

import pytest

from app.kernels.cuda.compiler import ptx
from app.kernels.cuda.kernel import Kernel
from tests.kernels.cuda.generators import EVERYDAY
from tests.needed import numba_cuda

numba_cuda()

from app.kernels.cuda import pipeline  # noqa: E402  # imports numba-cuda


def told_apart(kernel: Kernel) -> list[str]:
    """PTX without what numbers the functions that a process compiles; their environments in any order."""
    lines = re.sub(r"(?<=\w)B\d+v\d+(?=B)", "", ptx(kernel)).splitlines()
    return sorted(lines, key=lambda line: line if line.startswith(".common") else "")


# A product with its loops and reassigned sums; functions that the kernel calls, booleans, casts and rows.
@pytest.mark.parametrize("name", ["gemm 3xtf32 64x64 silu", "softmax 128 768 1 bfloat16"])
def test_ptx_is_that_of_all_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = (step.kernel for step in EVERYDAY[name].made())
    found = told_apart(kernel)
    monkeypatch.setattr(pipeline, "kernel_passes", contextlib.nullcontext)
    assert found == told_apart(kernel)
    assert any("st." in line for line in found)
