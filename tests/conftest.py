"""Where the shared data is, and one compiler for the whole run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.kernels.cpu.compiler import Compiler

if TYPE_CHECKING:
    from tests.jobs.service import Served

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
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    """A running service with an engine for tests, started at its first use."""
    from tests.jobs.service import serve

    with serve(tmp_path_factory.mktemp("service")) as served:
        yield served


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    """Kernels compiled by any test are cached on disk for all."""
    return Compiler(Path(os.environ.get("STOWPLAN_KERNELS", ROOT / "build" / "kernels")), processes=1)  # noqa: TID251
