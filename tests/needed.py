"""What tests do without something they need: they are skipped, but fail in CI, where all of it must be."""

import importlib
import os
from typing import Any, NoReturn

import pytest


def absent(reason: str) -> NoReturn:
    """Skip the test, or the module that is imported; fail where the environment says CI=true."""
    if os.environ.get("CI") == "true":  # noqa: TID251
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def needed(module: str, way_out: str) -> Any:
    """An optional package, imported; `way_out` tells how it is installed."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        absent(f"{cause}: {way_out}")


def numba_cuda() -> None:
    """What compiles kernels for GPUs; no GPU is needed."""
    needed("numba_cuda", "pip install 'stowplan[cuda]'")
