"""Where the shared data is, and one compiler for the whole run."""

import ctypes
import gc
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.engine.types import target
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.garbage import uncollected
from app.settings import Settings
from tests.compiling import CompilerApart, keep, resident
from tests.harness import OWN
from tests.needed import absent, numba_cuda

if TYPE_CHECKING:
    from app.jobs.store.database import Database
    from app.kernels.cuda.compiler import Compiler as CudaCompiler
    from tests.jobs.postgres import Postgres
    from tests.jobs.s3 import S3
    from tests.jobs.service import Served

GROWTH = 128 << 20  # bytes, after which garbage is looked for
ROOT = Path(__file__).resolve().parent.parent
KERNELS = Path(os.environ.get("STOWPLAN_KERNELS", ROOT / "build" / "kernels"))  # noqa: TID251


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shots", action="store_true", help="keep pictures of the pages in build/screenshots")
    parser.addoption(
        "--gpu", action="store_true", help="launch CUDA kernels on a GPU instead of simulating them"
    )
    parser.addoption("--compile", action="store_true", help="compile for --gpu what is simulated")


def pytest_configure(config: pytest.Config) -> None:
    """CUDA kernels go to a GPU, or to its compiler, where that is asked for."""
    if not (config.getoption("--gpu") or config.getoption("--compile")):
        return
    from tests.kernels.cuda.gpu import Compiling, Launching
    from tests.kernels.cuda.simulator import launch_elsewhere

    own = Launching(KERNELS) if config.getoption("--gpu") else Compiling(KERNELS)
    launch_elsewhere(own)
    config.pluginmanager.register(own, "gpu")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Each process collects all tests: many objects, of which hardly any is garbage."""
    with uncollected():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that at the end no process is left alone with one; then others, then those marked last."""
    turns = {"long": 0, "last": 2}
    items.sort(key=lambda item: next((turns[m.name] for m in item.iter_markers() if m.name in turns), 1))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data; tests that need it skip where it is absent, but fail in CI."""
    folder = Path(os.environ.get("STOWPLAN_SHARED", ROOT.parent / "shared"))  # noqa: TID251
    if not (folder / "data").is_dir():
        absent(f"no shared data at {folder}; set STOWPLAN_SHARED")
    return folder / "data"


@pytest.fixture(scope="session", autouse=True)
def own_kernels() -> Iterator[tuple[str, ...]]:
    """This machine without libraries, so that tests of our kernels test these; its usual backends."""
    usual = target.BACKENDS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "BACKENDS", OWN)
        yield usual


@pytest.fixture(autouse=True)
def with_libraries(
    own_kernels: tuple[str, ...], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual backends of this machine, for tests with the mark `libraries`."""
    if request.node.get_closest_marker("libraries") is not None:
        monkeypatch.setattr(target, "BACKENDS", own_kernels)


@pytest.fixture(scope="session")
def looked() -> Iterator[dict[str, int]]:
    """Bytes that this process held when garbage was looked for last. That is seldom: young objects are many here."""
    usual = gc.get_threshold()
    gc.set_threshold(10_000, 10, 10)
    yield {"bytes": 0}
    gc.set_threshold(*usual)


@pytest.fixture(scope="module", autouse=True)
def memory_returned(looked: dict[str, int]) -> None:
    """Memory of the tests before goes back to the system: one process runs many files.

    What is left stays (modules, tests, compiled code), and no collection looks at it again.
    """
    return_memory(looked)
    gc.freeze()


@pytest.fixture(autouse=True)
def garbage_bounded(looked: dict[str, int]) -> Iterator[None]:
    """Garbage is looked for after a test that the process has grown by."""
    yield
    if resident() > looked["bytes"] + GROWTH:
        return_memory(looked)


def return_memory(looked: dict[str, int]) -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    looked["bytes"] = resident()


DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres() -> Iterator["Postgres"]:
    """A PostgreSQL server, started at its first use."""
    from tests.jobs.postgres import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator["S3"]:
    """An S3-compatible server, started at its first use."""
    from tests.jobs.s3 import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    """A running service with an engine for tests, started at its first use."""
    from tests.jobs.service import serve

    with serve(tmp_path_factory.mktemp("service")) as served:
        yield served


@pytest.fixture(scope="session")
def service(sqlite_service: "Served") -> "Served":
    """The service, where the database does not matter."""
    return sqlite_service


@pytest.fixture(scope="session")
def real_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    """A running service with the engine that users get, and the kernels that tests compiled: both ways by copies.

    Its jobs run as another user, who cannot read what tests write beside them.
    """
    from tests.jobs.service import serve

    folder = tmp_path_factory.mktemp("real")
    keep(KERNELS, folder / "kernels")
    with serve(folder, engine="app.engine", workers=1) as served:
        yield served
    keep(folder / "kernels", KERNELS)


@pytest.fixture(scope="session", params=DATABASES)
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    """The same service on each database."""
    from tests.jobs.service import serve

    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_service")
        return
    url = request.getfixturevalue("postgres").database()
    with serve(tmp_path_factory.mktemp("service"), database_url=url) as served:
        yield served


@pytest.fixture(scope="session", params=DATABASES)
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A database of each kind whose tables are there, to copy: making them takes a second."""
    from app.jobs.store.database import migrate

    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres").database()
    settings = Settings(data=tmp_path_factory.mktemp("migrated"), database_url=url)
    migrate(settings)
    return settings


@pytest.fixture
def settings(migrated: Settings, request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings of a service whose tables are there, on each database."""
    shutil.copytree(migrated.data, tmp_path, dirs_exist_ok=True)
    url = migrated.database_url
    if url:
        url = request.getfixturevalue("postgres").database(url.rpartition("/")[2])
    return Settings(data=tmp_path, database_url=url)


@pytest.fixture
def database(settings: Settings) -> Iterator["Database"]:
    """Its tables."""
    from app.jobs.store.database import Database

    database = Database(settings.jobs_database_url)
    yield database
    database.close()


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    """Kernels compiled by any test are cached on disk for all."""
    with closing(CompilerApart(KERNELS)) as compiler:
        yield compiler


@pytest.fixture(scope="session")
def offline() -> "CudaCompiler":
    """The same for kernels of GPUs, none of which is needed."""
    numba_cuda()
    from app.kernels.cuda.compiler import Compiler as CudaCompiler

    return CudaCompiler(KERNELS)
