"""The fake driver, compiled once for all tests of a process."""

from pathlib import Path

import pytest

from tests.engine.runtime.cuda.fake_driver import built
from tests.kernels.cuda.gpu import gpu

__all__ = ["gpu"]


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `libcuda.so.1` that checks what it is asked, see `fake_driver.py`."""
    return built(tmp_path_factory.mktemp("driver"))
