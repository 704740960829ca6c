"""What can be missing on a machine with or without a GPU is told with the way out; NVIDIA's modules are fakes here."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.runtime import capabilities
from app.engine.runtime.cuda import driver
from app.engine.runtime.cuda.driver import Gpu, Library, NoDeviceError, libraries, sm_of
from app.engine.types.errors import KernelError, TargetError
from app.engine.types.target import Target, find, host
from app.jobs.fingerprint import target_queue
from app.jobs.worker import worker
from app.kernels.cuda import compiler as compilation
from app.kernels.cuda.compiler import MANIFEST, Compiler, Cubin
from app.kernels.cuda.kernel import Kernel
from app.settings import SettingsError
from tests.engine.runtime.cuda.fake_driver import on_the_fake_driver

KERNEL = Kernel("probe", "def kernel(x, n): pass", ("float32*", "uint32"), 32, shared_bytes=100_000)


class Compiles:
    """A compiler without a compiler."""

    def compile(self, kernel: Kernel, sm: str) -> Cubin:
        return Cubin(kernel.name, sm, b"code", 32, 0, 0, 0)


def library(capability: tuple[int, int] = (9, 0)) -> Library:
    """NVIDIA's modules as far as a device says who it is; `test_first_launch.py` has the real ones."""
    device = SimpleNamespace(
        name="Fake H200",
        compute_capability=capability,
        set_current=lambda: None,
        create_stream=lambda: None,
    )
    binding = SimpleNamespace(cuCtxGetCurrent=lambda: (0, 1), cuCtxSetCurrent=lambda _context: (0,))
    return Library(SimpleNamespace(Device=lambda _n: device), binding)


def test_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(
        NoDeviceError, match=r"pip install 'stowplan\[cuda\]'; or ask for timings 'predicted'"
    ):
        libraries()


@pytest.mark.parametrize(
    ("package", "found", "least", "below"),
    [
        ("cuda-core", "1.2.1", "1.2.2", "1.3"),
        ("cuda-core", "1.3.0", "1.2.2", "1.3"),
        ("cuda-core", "0.5.1.post1", "1.2.2", "1.3"),
        ("cuda-bindings", "12.9.4", "13.5", "14"),
        ("cuda-bindings", "14.0", "13.5", "14"),
    ],
)
def test_packages_of_another_version_are_refused_with_both_versions(
    package: str, found: str, least: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = driver.importlib.metadata.version
    monkeypatch.setattr(driver.importlib.metadata, "version", lambda n: found if n == package else real(n))
    told = f"needs '{package}' {least} or later, below {below}; {found} is installed: pip install"
    with pytest.raises(NoDeviceError, match=re.escape(told)):
        libraries()


def test_the_versions_that_are_checked_are_those_that_are_installed_with_the_extra() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[4] / "pyproject.toml").read_text())
    listed = {r.partition(";")[0].strip() for r in project["project"]["optional-dependencies"]["cuda"]}
    for package, (least, below) in driver.PACKAGES.items():
        assert f"{package}>={least},<{below}" in listed


def test_a_machine_without_a_driver() -> None:
    def refuse(_number: int) -> None:
        raise RuntimeError("libcuda.so.1 was not found")

    found = Library(SimpleNamespace(Device=refuse), None)
    with pytest.raises(
        NoDeviceError, match=r"libcuda.so.1 was not found; install NVIDIA's driver \(580 or newer\)"
    ):
        Gpu(Compiles(), found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("capability", "told"),
    [
        ((9, 0), r"\(sm_90\): compiling for CUDA needs 'nvidia-nvvm', .*pip install 'stowplan\[cuda\]'"),
        ((8, 0), r"\(sm_80\): .*cubin of kernel 'probe' for sm_80 into .* which has it for sm_90"),
        ((7, 5), r"\(sm_75\): 'sm_75' has no asynchronous copies and no bfloat16: expected sm_80 or later"),
    ],
)
def test_machine_code_that_cannot_be_had(
    capability: tuple[int, int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself: without the toolkit, and with a cache that has another generation only."""
    compiler = Compiler(tmp_path)
    if capability == (8, 0):
        (compiler.folder / MANIFEST).write_text("{}")
        (compiler.folder / "probe_sm_90_0.json").write_text("{}")

    def missing(_name: str) -> str:
        raise PackageNotFoundError("nvidia-nvvm")

    monkeypatch.setattr(compilation, "TOOLKIT", ("nvidia-nvvm",))
    monkeypatch.setattr(compilation.importlib.metadata, "version", missing)
    with pytest.raises(KernelError, match=told):
        Gpu(compiler, library(capability)).load(KERNEL)


def test_a_target_names_its_generation() -> None:
    assert sm_of(find("cuda-sm90")) == "sm_90"
    with pytest.raises(
        TargetError, match=r"isa must name the generation of the GPU \(sm_80, sm_90\), found \[\]"
    ):
        sm_of(Target("gpu", device="cuda", backends=("cuda",)))


def test_a_gpu_of_another_generation_is_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    found = library((8, 0))
    monkeypatch.setattr(driver, "libraries", lambda: found)
    driver.absent.cache_clear()
    assert driver.absent("sm_80") is None
    assert driver.absent("sm_90") == (
        "the GPU 'Fake H200' is sm_80, the target is sm_90; "
        'a target with "isa": ["sm_80"] describes it (POST /v1/targets)'
    )
    driver.absent.cache_clear()
    assert "timings" not in (capabilities.absence(host()) or "")


def test_a_worker_serves_a_gpu_only_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = target_queue(find("cuda-sm90"))
    asked: list[str] = []

    def present(answer: bool) -> Any:
        def answers(sm: str) -> bool:
            asked.append(sm)
            return answer

        return lambda: capabilities.present(answers=answers)

    monkeypatch.setattr(worker, "present", present(True))
    assert queue in worker.served(())
    monkeypatch.setattr(worker, "present", present(False))
    assert queue not in worker.served(())
    with pytest.raises(SettingsError, match="this machine can serve"):
        worker.served((queue,))
    assert asked == ["sm_90"] * 3


def test_nothing_is_started_to_ask_where_no_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "DRIVER", "libcuda-of-no-machine.so.1")
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("a process was started"))
    assert not capabilities.ask_apart("sm_90")


@on_the_fake_driver
def test_a_process_of_its_own_asks_the_driver(folder: Path) -> None:
    assert capabilities.ask_apart("sm_90")
    assert not capabilities.ask_apart("sm_80")


FORBIDDEN = ("fastapi", "pydantic", "starlette", "uvicorn", "numba_cuda", "cuda", "numba.cuda")


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (
            "app.engine.planning.session app.engine.entry.optimize app.engine.runtime.cuda.executor app.engine.runtime.cuda.offline",
            FORBIDDEN,
        ),
        (
            "app.kernels.cuda.gemm app.kernels.cuda.conv app.kernels.cuda.attention",
            (*FORBIDDEN, "app.engine"),
        ),
    ],
)
def test_engine_and_kernels_import_without_the_web_layer_and_without_nvidia(
    modules: str, forbidden: tuple[str, ...]
) -> None:
    code = f"""
import sys
for name in {forbidden!r}:
    sys.modules[name] = None
import importlib
for name in {modules.split()!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[4])


def test_planning_for_a_processor_imports_nothing_of_nvidia(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tests.engine.runtime.cuda.programs import planned, saved
from app.engine.types.target import find
import numpy as np
path = saved(Path(sys.argv[1]), "y = MatMul(x, w)", "float[4,4] x", "float[4,4] y", {"w": np.eye(4, dtype=np.float32)})
planned(path, target=find("cpu-avx2"))
bad = [m for m in sys.modules if m.split(".")[0] in ("cuda", "numba_cuda") or m.startswith("app.engine.runtime.cuda.driver")]
assert not bad, bad
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, cwd=Path(__file__).resolve().parents[4]
    )
