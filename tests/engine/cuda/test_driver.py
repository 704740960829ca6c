"""What can be missing on a machine with or without a GPU is told with the way out; NVIDIA's modules are fakes here."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.engine import machines
from app.engine.cuda import driver
from app.engine.cuda.device import Pointer
from app.engine.cuda.driver import Gpu, Library, NoDeviceError, libraries, sm_of
from app.engine.errors import CapacityError, KernelError, TargetError
from app.engine.target import Target, find, host
from app.jobs import worker
from app.jobs.fingerprint import target_queue
from app.kernels.cuda import compiler as compilation
from app.kernels.cuda.compiler import MANIFEST, Compiler, Cubin
from app.kernels.cuda.kernel import Kernel
from app.settings import SettingsError

KERNEL = Kernel("probe", "def kernel(x, n): pass", ("float32*", "uint32"), 32, shared_bytes=100_000)


class Compiles:
    """A compiler without a compiler."""

    def compile(self, kernel: Kernel, sm: str) -> Cubin:
        return Cubin(kernel.name, sm, b"code", 32, 0, 0, 0)


class Stream:
    def __init__(self, log: list[Any]) -> None:
        self.log, self.handle = log, 7

    def sync(self) -> None:
        self.log.append("sync")

    def create_graph_builder(self) -> Any:
        log = self.log

        class Builder:
            def begin_building(self, mode: str) -> None:
                log.append("begin")

            def end_building(self) -> None:
                log.append("end")

            def complete(self) -> Any:
                return SimpleNamespace(
                    upload=lambda _s: log.append("upload"),
                    launch=lambda _s: log.append("replay"),
                    close=lambda: log.append("close"),
                )

        return Builder()


def library(
    *, capability: tuple[int, int] = (9, 0), free: int = 1 << 20, refuses: str = ""
) -> tuple[Library, list[Any]]:
    """NVIDIA's modules as far as they are used, and what they were asked for."""
    log: list[Any] = []
    results = SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=2)

    def from_cubin(_code: bytes, name: str) -> Any:
        if refuses:
            raise RuntimeError(refuses)
        return SimpleNamespace(get_kernel=lambda n: SimpleNamespace(handle=n))

    def launch(target: Any, config: Any, function: Any, *arguments: Any) -> None:
        log.append(("launch", type(target).__name__, function.handle, [a.value for a in arguments]))

    device = SimpleNamespace(
        name="Fake H200",
        compute_capability=capability,
        device_id=0,
        properties=SimpleNamespace(multiprocessor_count=132),
        set_current=lambda: None,
        create_stream=lambda: Stream(log),
    )
    core = SimpleNamespace(
        Device=lambda _n: device,
        ObjectCode=SimpleNamespace(from_cubin=from_cubin),
        LaunchConfig=lambda **k: SimpleNamespace(**k),
        launch=launch,
    )

    def allocate(nbytes: int) -> tuple[int, int]:
        return (2, 0) if nbytes > free else (0, 4096)

    binding = SimpleNamespace(
        CUresult=results,
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"),
        CUdevice=lambda n: n,
        cuMemAlloc=allocate,
        cuMemGetInfo=lambda: (0, free, 1 << 30),
        cuMemFree=lambda a: (0,),
        cuMemcpyHtoDAsync=lambda *a: (0,),
        cuMemcpyDtoHAsync=lambda *a: (0,),
        cuMemsetD8Async=lambda *a: (719,),
        cuDriverGetVersion=lambda: (0, 12080),
        cuKernelSetAttribute=lambda *a: (log.append(a), (0,))[1],
    )
    return Library(core, binding), log


def gpu(compiler: Any = None, **options: Any) -> tuple[Gpu, list[Any]]:
    found, log = library(**options)
    return Gpu(compiler or Compiles(), found), log


def test_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(
        NoDeviceError, match=r"pip install 'stowplan\[cuda\]'; or ask for timings 'predicted'"
    ):
        libraries()


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
    device, _ = gpu(compiler, capability=capability)
    with pytest.raises(KernelError, match=told):
        device.load(KERNEL)


def test_code_that_the_driver_does_not_load() -> None:
    device, _ = gpu(refuses="CUDA_ERROR_NO_BINARY_FOR_GPU")
    with pytest.raises(
        KernelError, match="NO_BINARY_FOR_GPU; its driver knows CUDA 12.8, a newer one may be needed"
    ):
        device.load(KERNEL)


def test_a_device_without_memory() -> None:
    device, _ = gpu(free=1000)
    with pytest.raises(
        CapacityError,
        match="2000 byte are needed, 1000 of 1073741824 byte are free; end other programs on it, bind smaller",
    ) as caught:
        device.allocate(2000)
    assert (caught.value.needed, caught.value.available) == (2000, 1000)


def test_what_the_driver_refuses_is_told() -> None:
    device, _ = gpu()
    with pytest.raises(KernelError, match="the driver answers 719"):
        device.fill(4096, 4, 0)


def test_launches_go_to_the_stream_or_to_the_graph_that_records() -> None:
    device, log = gpu()
    work = device.load(KERNEL).bound((3, 1, 1), (Pointer(4096, 64, "float32"), 5))
    assert log.pop()[:2] == ("shared", 100_000)  # more than 48 KiB of shared memory is asked for
    work()
    replay = device.record(work)
    replay()
    launch = ("launch", "Stream", "probe", [4096, 5])
    assert log == [launch, "begin", ("launch", "Builder", "probe", [4096, 5]), "end", "upload", "replay"]
    work()
    assert log[-1] == launch
    assert device.load(KERNEL) is device.load(KERNEL)
    device.close()
    assert log[-2:] == ["sync", "close"]


def test_a_target_names_its_generation() -> None:
    assert sm_of(find("cuda-sm90")) == "sm_90"
    with pytest.raises(
        TargetError, match=r"isa must name the generation of the GPU \(sm_80, sm_90\), found \[\]"
    ):
        sm_of(Target("gpu", device="cuda", backends=("cuda",)))


def test_a_gpu_of_another_generation_is_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = library(capability=(8, 0))
    monkeypatch.setattr(driver, "libraries", lambda: found)
    driver.absent.cache_clear()
    assert driver.absent("sm_80") is None
    assert driver.absent("sm_90") == (
        "the GPU 'Fake H200' is sm_80, the target is sm_90; "
        'a target with "isa": ["sm_80"] describes it (POST /v1/targets)'
    )
    driver.absent.cache_clear()
    assert "timings" not in (machines.absence(host()) or "")


def test_a_worker_serves_a_gpu_only_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = target_queue(find("cuda-sm90"))
    asked: list[str] = []

    def present(answer: bool) -> Any:
        def answers(sm: str) -> bool:
            asked.append(sm)
            return answer

        return lambda: machines.present(answers=answers)

    monkeypatch.setattr(worker, "present", present(True))
    assert queue in worker.served(())
    monkeypatch.setattr(worker, "present", present(False))
    assert queue not in worker.served(())
    with pytest.raises(SettingsError, match="this machine can serve"):
        worker.served((queue,))
    assert asked == ["sm_90"] * 3


FORBIDDEN = ("fastapi", "pydantic", "starlette", "uvicorn", "numba_cuda", "cuda", "numba.cuda")


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("app.engine.session app.engine.job app.engine.cuda.execute app.engine.cuda.offline", FORBIDDEN),
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
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[3])


def test_planning_for_a_processor_imports_nothing_of_nvidia(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tests.engine.cuda.programs import planned, saved
from app.engine.target import find
import numpy as np
path = saved(Path(sys.argv[1]), "y = MatMul(x, w)", "float[4,4] x", "float[4,4] y", {"w": np.eye(4, dtype=np.float32)})
planned(path, target=find("cpu-avx2"))
bad = [m for m in sys.modules if m.split(".")[0] in ("cuda", "numba_cuda") or m.startswith("app.engine.cuda.driver")]
assert not bad, bad
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, cwd=Path(__file__).resolve().parents[3]
    )


def test_numbers_reach_a_kernel_in_the_type_of_its_signature() -> None:
    device, log = gpu()
    kernel = Kernel("numbers", "def kernel(a, b): pass", ("float32", "int32"), 32)
    device.load(kernel).bound((1, 1, 1), (0.1, -3))()
    assert log[-1][3] == [np.float32(0.1), -3]
