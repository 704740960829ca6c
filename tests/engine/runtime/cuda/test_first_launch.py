"""The launch path on the real cuda-core and cuda-bindings: only the driver below them is made up."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.runtime.cuda.device import Pointer
from app.engine.types.errors import CapacityError, KernelError
from app.kernels.cuda.kernel import Kernel, Launch, Ref
from tests.engine.runtime.cuda.fake_driver import (
    KERNEL_SECONDS,
    Launches,
    cubin,
    driver,
    gpu,
    on_the_fake_driver,
)

PROBE = Kernel("probe", "", ("float32*", "uint32"), 128)
WIDE = Kernel("wide", "", ("float32*", "uint32"), 128, shared_bytes=100_000)


@contextlib.contextmanager
def rejection(*told: str, kind: type[Exception] = KernelError) -> Iterator[None]:
    """An error whose message has all of these words."""
    with pytest.raises(kind) as caught:
        yield
    assert all(word in str(caught.value) for word in told), str(caught.value)


def bytes_of(device: Any, address: int, nbytes: int) -> np.ndarray:
    found = np.zeros(nbytes, np.uint8)
    device.read(address, found)
    return found


@on_the_fake_driver
def test_memory_is_copied_filled_and_given_back(folder: Path) -> None:
    device = gpu()
    assert (device.name, device.sm, device.driver, device.processors) == ("Fake GPU", "sm_90", "13.0", 132)
    address = device.allocate(4096)
    assert address % 256 == 0
    sent = np.arange(64, dtype=np.uint8)
    device.write(address, sent)
    sent[:] = 99  # it may change as soon as the call returns
    device.fill(address + 64, 64, 7)
    expected = [*range(64), *[7] * 64, *[255] * 16]
    assert bytes_of(device, address, 144).tolist() == expected
    device.release(address)
    device.close()


@on_the_fake_driver
def test_copies_and_fills_stay_within_live_allocations(folder: Path) -> None:
    device = gpu()
    address = device.allocate(256)
    for at, size in ((address, 257), (address + 200, 57), (address - 1, 1), (0, 4)):
        for work in (
            lambda at=at, size=size: device.write(at, np.zeros(size, np.uint8)),
            lambda at=at, size=size: device.read(at, np.zeros(size, np.uint8)),
            lambda at=at, size=size: device.fill(at, size, 0),
        ):
            with rejection("CUDA_ERROR_INVALID_VALUE"):
                work()
    device.release(address)
    with rejection("CUDA_ERROR_INVALID_VALUE"):
        device.write(address, np.zeros(4, np.uint8))  # freed
    with rejection("CUDA_ERROR_INVALID_VALUE"):
        device.release(address)


@on_the_fake_driver
def test_memory_that_is_not_there_is_told_in_bytes(folder: Path) -> None:
    with rejection("2147483648 byte are needed, 1073741824 of 1073741824 byte are free", kind=CapacityError):
        gpu().allocate(1 << 31)


@on_the_fake_driver
def test_every_type_of_a_signature_reaches_the_kernel(folder: Path) -> None:
    """The types of all launches that the generators make, in values that a wrong width or sign would change."""
    from app.engine.runtime.cuda.driver import NUMBERS
    from tests.kernels.cuda.generators import EVERYDAY, REST

    values = {"uint32": 2**32 - 5, "int32": -7, "float32": 0.1}
    rows = (*EVERYDAY.values(), *REST.values())
    used = {kind for row in rows for step in row.made() for kind in step.kernel.signature}
    pointers = {kind for kind in used if kind.endswith("*")}
    assert pointers
    assert used - pointers <= set(values) == set(NUMBERS)
    signature = (*sorted(pointers), *values, *sorted(pointers), *values)
    kernel = Kernel("types", "", signature, 32)
    device, launches = gpu(), Launches(kernel)
    address = device.allocate(4096)
    given = [
        Pointer(address + 16 * i, 16, kind[:-1]) if kind.endswith("*") else values[kind]
        for i, kind in enumerate(signature)
    ]
    work = device.load(kernel).bound((2, 3, 4), given)
    work()
    device.record(work)()
    device.wait()
    expected = tuple(
        g.address if isinstance(g, Pointer) else (float(np.float32(g)) if isinstance(g, float) else g)
        for g in given
    )
    assert launches.seen == [("types", (2, 3, 4), expected)] * 2


@on_the_fake_driver
def test_more_than_48_kb_of_shared_memory_is_opted_in_to(folder: Path) -> None:
    device = gpu()
    given = (Pointer(device.allocate(64), 64, "float32"), 5)
    device.load(WIDE).bound((1, 1, 1), given)()
    probe = device.load(PROBE)
    config = device._library.core.LaunchConfig(grid=1, block=128, shmem_size=100_000)
    with rejection("kernel 'probe' is not launched", "CUDA_ERROR_INVALID_VALUE"):
        device.launch(config, probe, [given[0].address, 5])
    with rejection("CUDA_ERROR_INVALID_VALUE"):  # a block of an H100 has 227 KiB
        object.__setattr__(over := Kernel("over", "", ("uint32",), 32), "shared_bytes", 232_449)
        device.load(over)
    device.wait()


@on_the_fake_driver
def test_a_launch_beyond_what_the_kernel_was_compiled_for_is_refused(folder: Path) -> None:
    class Other:
        """Code of another signature, or for fewer threads, than the kernel says."""

        def __init__(self, kernel: Kernel) -> None:
            self.kernel = kernel

        def compile(self, kernel: Kernel, sm: str) -> Any:
            from app.kernels.cuda.compiler import Cubin

            return Cubin(kernel.name, sm, cubin(self.kernel, sm), 32, 0, 0, 0)

    for made in (
        Kernel("probe", "", ("float32*", "uint32"), 64),
        Kernel("probe", "", ("float32*", "float64"), 128),
        Kernel("probe", "", ("uint32", "float32*"), 128),
    ):
        device = gpu(Other(made))
        given = (Pointer(device.allocate(64), 64, "float32"), 5)
        with rejection("kernel 'probe' is not launched", "CUDA_ERROR_INVALID_VALUE"):
            device.load(PROBE).bound((1, 1, 1), given)()
    device = gpu()
    with rejection("CUDA_ERROR_INVALID_VALUE"):
        device.load(PROBE).bound((1, 65_536, 1), given)()


@on_the_fake_driver
def test_code_of_another_generation_is_not_loaded(folder: Path) -> None:
    class Older:
        def compile(self, kernel: Kernel, sm: str) -> Any:
            from app.kernels.cuda.compiler import Cubin

            return Cubin(kernel.name, sm, cubin(kernel, "sm_80"), 32, 0, 0, 0)

    with rejection("does not load kernel 'probe'", "NO_BINARY_FOR_GPU", "its driver knows CUDA 13.0"):
        gpu(Older()).load(PROBE)


@on_the_fake_driver
def test_what_is_recorded_is_replayed_with_its_arguments(folder: Path) -> None:
    device, launches = gpu(), Launches(PROBE)
    address = device.allocate(64)
    first, second = (
        device.load(PROBE).bound((n, 1, 1), (Pointer(address, 64, "float32"), n)) for n in (3, 4)
    )

    def works() -> None:
        first()
        second()
        device.fill(address, 64, 1)

    replay = device.record(works)
    device.wait()
    assert not launches.seen  # what is captured does not run
    for _ in range(2):
        replay()
    assert bytes_of(device, address, 64).tolist() == [1] * 64
    assert launches.seen == [("probe", (3, 1, 1), (address, 3)), ("probe", (4, 1, 1), (address, 4))] * 2
    device.close()
    with rejection("recorded kernels are not launched"):
        replay()


@on_the_fake_driver
def test_a_recording_that_fails_leaves_the_device_usable(folder: Path) -> None:
    device = gpu()
    address = device.allocate(64)
    work = device.load(PROBE).bound((1, 1, 1), (Pointer(address, 64, "float32"), 1))

    def stops() -> None:
        work()
        raise RuntimeError("stops")

    with rejection("stops", kind=RuntimeError):
        device.record(stops)
    with rejection("CAPTURE"):
        device.record(lambda: device.write(address, np.zeros(4, np.uint8)))
    with rejection("CAPTURE"):
        device.record(device.wait)
    work()
    device.record(work)()
    device.wait()


@on_the_fake_driver
def test_an_illegal_address_is_told_and_ends_the_use_of_the_gpu_in_this_process(folder: Path) -> None:
    device = gpu()
    address = device.allocate(64)
    work = device.load(PROBE).bound((1, 1, 1), (Pointer(64, 64, "float32"), 1))
    work()  # the driver tells later
    with rejection("a kernel failed", "CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.wait()
    for later in (
        device.wait,
        lambda: device.allocate(4),
        work,
        lambda: device.read(address, np.zeros(1, np.uint8)),
    ):
        with rejection("an earlier kernel failed, only a new process can use the GPU", "ILLEGAL_ADDRESS"):
            later()
    device.release(address)  # gone already
    device.close()


@on_the_fake_driver
def test_a_kernel_that_is_given_freed_memory_fails(folder: Path) -> None:
    device = gpu()
    address = device.allocate(64)
    work = device.load(PROBE).bound((1, 1, 1), (Pointer(address, 64, "float32"), 1))
    replay = device.record(work)
    device.release(address)
    replay()
    with rejection("CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.wait()


@on_the_fake_driver
def test_every_entry_works_in_any_thread(folder: Path) -> None:
    device = gpu()
    address = device.allocate(64)
    given = (Pointer(address, 64, "float32"), 1)
    work = device.load(PROBE).bound((1, 1, 1), given)
    replay, timeline = device.record(work), device.timeline([work])
    other = Kernel("other", "", ("float32*", "uint32"), 128, shared_bytes=60_000)
    entries: tuple[Callable[[], object], ...] = (
        lambda: device.allocate(64),
        lambda: device.write(address, np.zeros(4, np.uint8)),
        lambda: device.read(address, np.zeros(4, np.uint8)),
        lambda: device.fill(address, 64, 0),
        lambda: device.load(other),
        work,
        replay,
        timeline,
        device.wait,
        lambda: device.record(work),
        lambda: device.timeline([work]),
        lambda: device.elapsed([work]),
        lambda: device.driver,
        lambda: device.release(device.allocate(64)),
        device.close,
    )
    for number, entry in enumerate(entries):
        failed: list[BaseException] = []

        def run(entry: Callable[[], object] = entry, failed: list[BaseException] = failed) -> None:
            try:
                entry()
            except BaseException as error:  # told by the thread that asserts
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert not failed, (number, failed)


@on_the_fake_driver
def test_times_of_queued_works_hold_no_time_of_the_host(folder: Path) -> None:
    """A launch costs the host fifteen times what this kernel takes."""
    device = gpu()
    work = device.load(PROBE).bound((1, 1, 1), (Pointer(device.allocate(64), 64, "float32"), 1))
    np.testing.assert_allclose(device.elapsed([work] * 50), KERNEL_SECONDS, rtol=1e-3)
    np.testing.assert_allclose(device.elapsed([device.record(work)] * 20), KERNEL_SECONDS, rtol=1e-3)
    np.testing.assert_allclose(device.timeline([work] * 30)(), KERNEL_SECONDS, rtol=1e-3)


class Simulated(Launches):
    """Kernels in the simulator, on the memory of the fake driver."""

    def __init__(self, executor: Any, *kernels: Kernel) -> None:
        super().__init__(*kernels)
        self.regions = executor._regions

    def run(self, kernel: Kernel, grid: tuple[int, ...], given: tuple[int | float, ...]) -> None:
        import ctypes

        from tests.kernels.cuda.simulator import simulate

        arrays, passed = {}, []
        for i, (kind, value) in enumerate(zip(kernel.signature, given, strict=True)):
            if not kind.endswith("*"):
                passed.append(value)
                continue
            region = next(r for r in self.regions if r.address <= value < r.address + r.nbytes)
            memory = (ctypes.c_uint8 * region.nbytes).from_address(region.address)
            arrays[f"a{i}"] = np.frombuffer(memory, np.uint8)
            passed.append(Ref(f"a{i}", int(value) - region.address))
        simulate(Launch(kernel, grid, tuple(passed)), arrays, 0)  # type: ignore[arg-type]


def program(folder: Path) -> Any:
    from tests.engine.runtime.cuda.programs import planned, saved

    random = np.random.default_rng(1)
    weights = {
        "w": random.standard_normal((16, 8), np.float32),
        "b": random.standard_normal(8).astype(np.float32),
    }
    text = "h = MatMul(x, w) a = Add(h, b) c = Relu(a) d = Transpose<perm=[1,0]>(c) y = Softmax(d)"
    return planned(saved(folder, text, "float[6,16] x", "float[8,6] y", weights)), weights


@on_the_fake_driver
def test_a_program_gives_right_results_launched_and_replayed_in_two_threads(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from app.engine.runtime.cuda.executor import DeviceExecutor, kernels_of

    made, weights = program(folder)
    executor = DeviceExecutor(made, gpu(), owns_device=True)
    launches = Simulated(executor, *kernels_of(made))
    results = []
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((6, 16), np.float32)
        with ThreadPoolExecutor(1) as pool:  # a thread of its own each time
            results.append((x, pool.submit(executor.run, {"x": x}).result()["y"]))
    assert not launches.errors, launches.errors
    launched = sum(len(step.calls) for step in made.steps)
    assert len(launches.seen) == 3 * launched
    assert driver().fake_cuda_launches() == 2 * launched  # launched, recorded; then replayed
    for x, found in results:
        h = np.maximum(x.astype(np.float64) @ weights["w"] + weights["b"], 0).T
        np.testing.assert_allclose(found, np.exp(h) / np.exp(h).sum(-1, keepdims=True), atol=1e-5)
    executor.close()


@on_the_fake_driver
def test_times_of_steps_hold_no_time_of_the_host(folder: Path) -> None:
    from app.engine.runtime.cuda.executor import DeviceExecutor

    made, _ = program(folder)
    executor = DeviceExecutor(made, gpu(), owns_device=True)
    executor.feed({"x": np.zeros((6, 16), np.float32)})
    expected = [len(step.calls) * KERNEL_SECONDS for step in made.steps]
    for _ in range(2):
        np.testing.assert_allclose(executor.step_seconds(), expected, rtol=1e-3)
    executor.close()


@on_the_fake_driver
def test_steps_on_the_host_are_timed_beside_those_on_the_device(folder: Path) -> None:
    from app.engine.runtime.cuda.executor import DeviceExecutor
    from tests.engine.runtime.cuda.programs import planned, saved

    text = "a = Mul(x, x) d = Det(a) e = Reshape(d, one) y = Add(e, a)"
    path = saved(folder, text, "float[3,3] x", "float[3,3] y", {"one": np.array([1, 1], np.int64)})
    made = planned(path)
    executor = DeviceExecutor(made, gpu(), owns_device=True)
    executor.feed({"x": np.ones((3, 3), np.float32)})
    found = executor.step_seconds()
    assert len(found) == len(made.steps)
    for step, seconds in zip(made.steps, found, strict=True):
        assert step.is_host == (abs(seconds - len(step.calls) * KERNEL_SECONDS) > 1e-8)
    executor.close()


@on_the_fake_driver
def test_debugging_names_the_kernel_the_step_and_the_arguments(folder: Path) -> None:
    from app.engine.runtime.cuda.executor import DeviceExecutor

    made, _ = program(folder)
    device = gpu()
    executor = DeviceExecutor(made, device, debug=True)
    executor.feed({"x": np.zeros((6, 16), np.float32)})
    executor.infer()
    assert len(executor.step_seconds()) == len(made.steps)
    victim = next(s for s in made.steps if s.group.op == "Softmax")
    launched = victim.calls[0].launch
    device._checked(device._library.driver.cuMemFree(executor._regions[1].address))  # inputs and outputs
    with rejection(
        f"step {victim.index} {victim.group.name!r}: kernel {launched.kernel.name!r}",
        f"{launched.grid} blocks of {launched.kernel.threads} threads",
        "byte of float32 at 0x",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    ):
        for segment in executor._segments:
            for work in segment.steps[victim.index :]:
                work()
    executor.close()


@on_the_fake_driver
def test_compiled_code_takes_the_arguments_that_launches_pass(folder: Path) -> None:
    """Machine code of NVIDIA's own tools: its entry has the parameters of the signature."""
    from app.kernels.cuda.compiler import Compiler
    from tests.kernels.cuda.test_compiler import TRIVIAL

    device = gpu(Compiler(folder))
    launches = Launches(TRIVIAL)
    address = device.allocate(256)
    given = [Pointer(address, 256, k[:-1]) if k.endswith("*") else 3 for k in TRIVIAL.signature]
    work = device.load(TRIVIAL).bound((1, 1, 1), given)
    work()
    device.record(work)()
    device.wait()
    expected = tuple(address if k.endswith("*") else 3 for k in TRIVIAL.signature)
    assert launches.seen == [(TRIVIAL.name, (1, 1, 1), expected)] * 2
