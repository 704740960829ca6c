"""Where the shared data is, and one compiler for the whole run."""

import os
from pathlib import Path

import pytest

from app.kernels.cpu.compiler import Compiler

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data; tests that need it skip where it is absent, but fail in CI."""
    folder = Path(os.environ.get("STOWPLAN_SHARED", ROOT.parent / "shared"))  # noqa: TID251
    if not (folder / "data").is_dir():
        reason = f"no shared data at {folder}; set STOWPLAN_SHARED"
        if os.environ.get("CI") == "true":  # noqa: TID251
            pytest.fail(reason)
        pytest.skip(reason)
    return folder / "data"


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    """Kernels compiled by any test are cached on disk for all."""
    return Compiler(Path(os.environ.get("STOWPLAN_KERNELS", ROOT / "build" / "kernels")))  # noqa: TID251
