"""The engine keeps the contract that the service calls it by."""

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import app.engine
from app.jobs.worker.child_request import ARTIFACTS
from app.jobs.worker.engine_protocol import Engine
from tests.jobs import fake_engine
from tests.jobs.service import ROOT


@pytest.mark.parametrize("engine", [app.engine, fake_engine], ids=["engine", "fake"])
@pytest.mark.parametrize(
    "name", ["prepare", "inspect", "validate", "optimize", "run_operator", "capacity", "ServedModel"]
)
def test_an_engine_takes_what_the_contract_gives(engine: ModuleType, name: str) -> None:
    wanted = list(inspect.signature(getattr(Engine, name)).parameters.values())[1:]
    found = inspect.signature(getattr(engine, name)).parameters
    for parameter in wanted:
        assert parameter.name in found
        assert found[parameter.name].kind == parameter.kind


def test_the_artifacts_that_are_kept_are_those_that_the_engine_writes() -> None:
    assert set(ARTIFACTS) == set(app.engine.ARTIFACTS)


def test_loading_the_engine_ahead_starts_no_thread_and_asks_no_gpu() -> None:
    """Whatever a process has begun is broken in those it forks."""
    script = """
import os, sys
import app.engine.entry.optimize
before = len(os.listdir("/proc/self/task"))
import app.engine.entry.preload
assert len(os.listdir("/proc/self/task")) == before
driver = sys.modules.get("numba.cuda.cudadrv.driver")
assert driver is None or not driver.driver.is_initialized
assert "app.kernels.cpu.gemm" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)


def test_a_forkserver_whose_worker_ended_before_it_looked_ends() -> None:
    script = """
import subprocess, sys
from app.settings import environment_of_jobs
forkserver = [sys.executable, "-c", "import app.jobs.worker.forkserver_preload; print('lives')"]
with environment_of_jobs():
    assert b"lives" in subprocess.run(forkserver, stdout=subprocess.PIPE).stdout
    late = [sys.executable, "-c", f"import subprocess; print(subprocess.run({forkserver}).returncode)"]
    assert subprocess.run(late, stdout=subprocess.PIPE).stdout == b"1\\n"
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)


def test_processes_of_jobs_are_forked_off_one_that_has_loaded_the_engine() -> None:
    """A module that the forkserver does not find is passed over, and each job would load the engine again."""
    script = """
from pathlib import Path
import psutil
from app.jobs.worker.prefork_pool import PreforkPool
pool = PreforkPool("app.engine", 0)
child = pool.take(lambda: False)
child.receive(120.0)
forkserver = psutil.Process(child.pid).ppid()
assert "llvmlite" in Path(f"/proc/{forkserver}/maps").read_text()
child.end()
pool.close()
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=300)
