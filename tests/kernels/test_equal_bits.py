"""A kernel that sums gives the same bits fresh and from the disk cache, and compiled for another processor."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.export.processors import processor_of
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.processor import Processor
from tests.compiling import keep
from tests.conftest import KERNELS, ROOT
from tests.kernels.digests import digests

pytestmark = pytest.mark.long


def differing(a: dict[str, str], b: dict[str, str]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if a[name] != b[name]]


def elsewhere(cache: Path, types: str, processor: Processor | None = None) -> dict[str, str]:
    """What another process computes, with kernels for this processor or another one."""
    numba = (
        {}
        if processor is None
        else {"NUMBA_CPU_NAME": processor.name, "NUMBA_CPU_FEATURES": processor.features}
    )
    child = subprocess.run(
        [sys.executable, "-m", "tests.kernels.digests", str(cache), types],
        cwd=ROOT,
        env={**os.environ, **numba},  # noqa: TID251  # numba reads the processor from the environment alone
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    found: dict[str, str] = json.loads(child.stdout)
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of kernels that holds none at first; what it holds in the end other tests need not compile."""
    folder = tmp_path_factory.mktemp("kernels")
    yield folder
    keep(folder, KERNELS)


@pytest.fixture(scope="module")
def fresh(cache: Path) -> dict[str, str]:
    """Digests of kernels in the process that compiles them."""
    return digests(cache, "float32")


def test_fresh_and_cached_kernels_give_equal_bits(cache: Path, fresh: dict[str, str]) -> None:
    assert differing(fresh, elsewhere(cache, "float32")) == []


@pytest.mark.skipif(not {"avx2", "fma"} <= set(host().isa), reason="no AVX2 on this machine")
def test_kernels_for_another_processor_give_equal_bits(fresh: dict[str, str]) -> None:
    other, types = processor_of(find("cpu-avx2")), "float32,float64"
    assert differing(fresh | elsewhere(KERNELS, "float64"), elsewhere(KERNELS, types, other)) == []
