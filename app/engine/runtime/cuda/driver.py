"""A GPU of this machine: memory and copies by the driver, kernels and graphs by `cuda.core`.

Nothing of NVIDIA's is imported before a device is asked for. What can be missing is told with the way out.
Any thread may call: CUDA's context is current in the thread that opened the device alone, so each entry makes
it current in its own.
"""

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from app.engine.runtime.cuda.device import Array, Passed, Pointer
from app.engine.types.errors import CapacityError, KernelError, TargetError
from app.engine.types.target import Target
from app.kernels.cuda.compiler import Compiler
from app.kernels.cuda.kernel import STATIC_SHARED, Kernel
from app.kernels.cuda.kernel import KernelError as CompileError

P = ParamSpec("P")
T = TypeVar("T")

PREDICTED = "ask for timings 'predicted', which need no GPU"
# Versions that the calls below are written for: at least the first, below the second.
PACKAGES = {"cuda-core": ("1.2.2", "1.3"), "cuda-bindings": ("13.5", "14")}
# C type of an argument, by the type in a kernel's signature; addresses are integers to `cuda.core`.
NUMBERS: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "float32": ctypes.c_float,
}

# Errors after which every call of the process fails: CUDA driver API, "Data types used by CUDA driver".
STICKY = (
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ASSERT",
)
FILLED, FILLS = 1 << 20, 256  # bytes of a fill, fills of a graph: about half a millisecond of the device
MOST_LEAD = 64  # graphs of fills before works are timed


class NoDeviceError(TargetError):
    """This machine cannot run programs for GPUs; the message tells what is missing."""

    code = "no-device"


@dataclass(frozen=True, slots=True)
class Library:
    """The two modules that reach a GPU, so that tests can bring others."""

    core: Any  # cuda.core
    driver: Any  # cuda.bindings.driver


def libraries() -> Library:
    """NVIDIA's modules.

    Raises:
        NoDeviceError: they are not installed, or in versions that this code is not written for.
    """
    for package, (least, below) in PACKAGES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # the import tells
        if not _release(least) <= _release(found) < _release(below):
            raise NoDeviceError(
                f"running on a GPU needs '{package}' {least} or later, below {below}; {found} is installed: "
                f"pip install 'stowplan[cuda]'; or {PREDICTED}"
            )
    try:
        return Library(*map(importlib.import_module, ("cuda.core", "cuda.bindings.driver")))
    except ImportError as cause:
        raise NoDeviceError(
            f"running on a GPU needs the package 'cuda-core' ({cause}): pip install 'stowplan[cuda]'; "
            f"or {PREDICTED}"
        ) from cause


def _release(version: str) -> tuple[int, ...]:
    """(1, 2, 2) of "1.2.2.post1"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _entry(method: Callable[Concatenate["Gpu", P], T]) -> Callable[Concatenate["Gpu", P], T]:
    """A method that any thread may call."""

    @functools.wraps(method)
    def entered(gpu: "Gpu", /, *args: P.args, **kwargs: P.kwargs) -> T:
        gpu.enter()
        return method(gpu, *args, **kwargs)

    return entered


class Gpu:
    """One GPU; all of its work goes to one stream.

    Args:
        compiler: where machine code comes from.
        library: of NVIDIA.
        number: which GPU.

    Raises:
        NoDeviceError: there is no driver, or no such GPU.
    """

    def __init__(self, compiler: Compiler, library: Library, number: int = 0) -> None:
        self._compiler, self._library = compiler, library
        self._device = _answering(library, number)
        (self._context,) = self._checked(library.driver.cuCtxGetCurrent())
        self._stream = self._device.create_stream()
        self._target: Any = self._stream  # where launches go: the stream, or a graph that records
        self._loaded: dict[Kernel, _Function] = {}
        self._graphs: list[Any] = []
        self._events: list[Any] = []
        self._scratch = 0  # address of what `_occupy` fills
        self._fills: Callable[[], None] | None = None
        self._lead = 2  # how often `_occupy` fills all before works are timed
        self.lost: str | None = None  # why no work of this process on the GPU can succeed any more

    @property
    def name(self) -> str:
        """As its maker calls it."""
        return str(self._device.name)

    @property
    def sm(self) -> str:
        """Its generation."""
        return generation(self._device)

    @property
    def driver(self) -> str:
        """Version of CUDA that the driver knows: 13.0."""
        (version,) = self._checked(self._library.driver.cuDriverGetVersion())
        return f"{version // 1000}.{version % 1000 // 10}"

    @property
    def processors(self) -> int:
        """Its multiprocessors."""
        return int(self._device.properties.multiprocessor_count)

    @property
    def stream(self) -> int:
        """Handle of the stream, for libraries that launch kernels of their own."""
        return int(self._stream.handle)

    def enter(self) -> None:
        """Make the context current in the calling thread.

        Raises:
            KernelError: an earlier kernel failed, which no work of this process on the GPU survives.
        """
        if self.lost is not None:
            raise KernelError(
                f"GPU {self.name!r}: an earlier kernel failed, only a new process can use the GPU: "
                f"{self.lost}"
            )
        self._checked(self._library.driver.cuCtxSetCurrent(self._context))

    @_entry
    def allocate(self, nbytes: int) -> int:
        """See `Device`; the driver aligns memory to 256 byte and more."""
        driver = self._library.driver
        error, address = driver.cuMemAlloc(nbytes)
        if error == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, total = self._checked(driver.cuMemGetInfo())
            raise CapacityError(
                f"GPU {self.name!r}: {nbytes} byte are needed, {free} of {total} byte are free; end other "
                "programs on it, bind smaller input shapes, or ask for `prefer: memory`",
                needed=nbytes,
                available=int(free),
            )
        self._checked((error, address))
        return int(address)

    def release(self, address: int) -> None:
        """See `Device`. Memory of a lost context is gone already."""
        if self.lost is not None:
            return
        self.wait()
        self._checked(self._library.driver.cuMemFree(address))

    @_entry
    def write(self, address: int, array: Array) -> None:
        """See `Device`. Pageable memory is staged by the driver before the call returns."""
        self._checked(
            self._library.driver.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self._handle)
        )

    @_entry
    def read(self, address: int, array: Array) -> None:
        """See `Device`."""
        self._checked(
            self._library.driver.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self._handle)
        )
        self.wait()

    @_entry
    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """See `Device`."""
        self._checked(self._library.driver.cuMemsetD8Async(address, byte, nbytes, self._handle))

    @_entry
    def load(self, kernel: Kernel) -> "_Function":
        """See `Device`."""
        if kernel not in self._loaded:
            try:
                cubin = self._compiler.compile(kernel, self.sm)
            except CompileError as cause:
                raise KernelError(
                    f"no machine code of kernel {kernel.name!r} for {self.name!r} ({self.sm}): {cause}"
                ) from cause
            self._loaded[kernel] = self._function(kernel, cubin.code)
        return self._loaded[kernel]

    def _function(self, kernel: Kernel, code: bytes) -> "_Function":
        driver = self._library.driver
        try:
            module = self._library.core.ObjectCode.from_cubin(code, name=kernel.name)
            function = module.get_kernel(kernel.name)
        except Exception as cause:  # cuda.core raises types of its own
            raise KernelError(
                f"GPU {self.name!r} ({self.sm}) does not load kernel {kernel.name!r}: {cause}; "
                f"its driver knows CUDA {self.driver}, a newer one may be needed"
            ) from cause
        if kernel.shared_bytes > STATIC_SHARED:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device = driver.CUdevice(self._device.device_id)
            self._checked(
                driver.cuKernelSetAttribute(attribute, kernel.shared_bytes, function.handle, device)
            )
        return _Function(self, kernel, function)

    @_entry
    def launch(self, config: Any, function: "_Function", arguments: Sequence[Any]) -> None:
        """Send a kernel to where launches go."""
        try:
            self._library.core.launch(self._target, config, function.function, *arguments)
        except Exception as cause:  # cuda.core raises types of its own
            raise self._failed(f"kernel {function.kernel.name!r} is not launched", cause) from cause

    def config(self, kernel: Kernel, grid: tuple[int, int, int]) -> Any:
        """How a kernel is launched."""
        return self._library.core.LaunchConfig(
            grid=grid, block=kernel.threads, shmem_size=kernel.shared_bytes
        )

    @_entry
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Device`: a CUDA graph."""
        builder = self._stream.create_graph_builder()
        self._target = builder
        try:
            builder.begin_building("thread_local")
            work()
            found = self._completed(builder)
        except BaseException:
            with contextlib.suppress(Exception):  # ends the capture, and says once more that it failed
                builder.close()
            raise
        finally:
            self._target = self._stream
        builder.close()
        self._graphs.append(found)
        return functools.partial(self._replay, found)

    def _completed(self, builder: Any) -> Any:
        """The graph that a builder has captured, on the device."""
        try:
            builder.end_building()
            found = builder.complete()
            found.upload(self._stream)
        except Exception as cause:  # cuda.core raises types of its own
            raise self._failed("the graph of the launches is not made", cause) from cause
        return found

    @_entry
    def _replay(self, found: Any) -> None:
        try:
            found.launch(self._stream)
        except Exception as cause:  # cuda.core raises types of its own
            raise self._failed("recorded kernels are not launched", cause) from cause

    @_entry
    def wait(self) -> None:
        """See `Device`."""
        try:
            self._stream.sync()
        except Exception as cause:  # cuda.core raises types of its own
            raise self._failed("a kernel failed", cause) from cause

    def timeline(self, works: Sequence[Callable[[], None]]) -> Callable[[], list[float]]:
        """See `Device`: a graph with an event before and after each work."""
        driver = self._library.driver
        self.enter()
        events = [self._checked(driver.cuEventCreate(0))[0] for _ in range(len(works) + 1)]
        self._events += events
        external = driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL  # a node of the graph

        def mark(event: Any) -> None:
            self._checked(driver.cuEventRecordWithFlags(event, self._handle, int(external)))

        def marked() -> None:
            mark(events[0])
            for work, event in zip(works, events[1:], strict=True):
                work()
                mark(event)

        replay = self.record(marked)

        def seconds() -> list[float]:
            self.enter()
            self._occupy()
            replay()
            self.wait()
            pairs = itertools.pairwise(events)
            return [1e-3 * float(self._checked(driver.cuEventElapsedTime(*pair))[0]) for pair in pairs]

        return seconds

    @_entry
    def elapsed(self, works: Sequence[Callable[[], None]]) -> list[float]:
        """See `Device`; events between works that wait behind other work of the device."""
        while True:
            found, ahead = self._queued(works)
            if ahead or self._lead >= MOST_LEAD:
                return found
            self._lead *= 2

    def _queued(self, works: Sequence[Callable[[], None]]) -> tuple[list[float], bool]:
        """Seconds of works, and whether all of them were sent before the device began the first."""
        options = self._library.core.EventOptions(timing_enabled=True)
        self._occupy()
        events = [self._stream.record(options=options)]
        for work in works:
            work()
            events.append(self._stream.record(options=options))
        ahead = not events[0].is_done
        self.wait()
        return [1e-3 * float(after - before) for before, after in itertools.pairwise(events)], ahead

    def _occupy(self) -> None:
        """Send work that takes the device longer than the host needs to send what follows.

        Fills of few bytes, which leave the second cache as it is, in a graph, which one call sends.
        """
        if self._fills is None:
            self._scratch = self.allocate(FILLED)

            def fills() -> None:
                for _ in range(FILLS):
                    self.fill(self._scratch, FILLED, 0)

            self._fills = self.record(fills)
        for _ in range(self._lead):
            self._fills()

    def close(self) -> None:
        """See `Device`. What a lost context held is gone already."""
        if self.lost is None:
            self.wait()
            for found in self._graphs:
                found.close()
            for event in self._events:
                self._checked(self._library.driver.cuEventDestroy(event))
            if self._scratch:
                self.release(self._scratch)
        self._scratch, self._fills = 0, None
        self._graphs.clear()
        self._events.clear()
        self._loaded.clear()

    @property
    def _handle(self) -> Any:
        return self._stream.handle

    def _failed(self, what: str, cause: Exception) -> KernelError:
        """An error of `cuda.core` in words. Sending work tells of kernels that failed before it, too."""
        if any(name in str(cause) for name in STICKY):
            self.lost = str(cause)
        return KernelError(f"GPU {self.name!r}: {what}: {cause}")

    def _checked(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Results of a call of the driver beside its status."""
        error, *found = results
        if int(error) != 0:
            told = getattr(error, "name", str(error))
            if told in STICKY:
                self.lost = told
            raise KernelError(f"GPU {self.name!r}: the driver answers {told}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Function:
    """A kernel on a GPU."""

    gpu: Gpu
    kernel: Kernel
    function: Any

    def bound(self, grid: tuple[int, int, int], arguments: Sequence[Passed]) -> Callable[[], None]:
        """See `Loaded`."""
        passed = [
            ctypes.c_uint64(a.address) if isinstance(a, Pointer) else NUMBERS[kind](a)
            for kind, a in zip(self.kernel.signature, arguments, strict=True)
        ]
        return functools.partial(self.gpu.launch, self.gpu.config(self.kernel, grid), self, passed)


def _answering(library: Library, number: int) -> Any:
    """A device that has said who it is.

    Raises:
        NoDeviceError: none does.
    """
    try:
        device = library.core.Device(number)
        device.set_current()
    except Exception as cause:  # cuda.core raises types of its own where there is no driver or no device
        told = " ".join(str(cause).split())[:300]
        raise NoDeviceError(
            f"no GPU {number} answers on this machine: {told}; install NVIDIA's driver (580 or newer) and "
            f"pass the device to the container, or {PREDICTED}"
        ) from cause
    return device


def generation(device: Any) -> str:
    """`sm_90` of a device."""
    major, minor = device.compute_capability
    return f"sm_{major}{minor}"


def sm_of(target: Target) -> str:
    """The generation that a target is of.

    Raises:
        TargetError: its `isa` names none.
    """
    found = next((name for name in target.isa if re.fullmatch(r"sm_\d{2,3}", name)), None)
    if found is None:
        raise TargetError(
            f"target {target.name!r}: isa must name the generation of the GPU (sm_80, sm_90), found "
            f"{list(target.isa)}",
            pointer="/isa",
        )
    return found


@functools.cache
def absent(sm: str) -> str | None:
    """Reason why no GPU of this generation answers on this machine, or None; asked once for a process."""
    try:
        device = _answering(libraries(), 0)
    except NoDeviceError as error:
        return error.message
    found = generation(device)
    if found == sm:
        return None
    way_out = f'a target with "isa": ["{found}"] describes it (POST /v1/targets)'
    return f"the GPU {device.name!r} is {found}, the target is {sm}; {way_out}"


def open_gpu(cache: Path, target: Target, *, trusted: bool = False) -> Gpu:
    """The GPU of this machine that is a target; machine code comes from, and goes to, a folder.

    `trusted` is for a folder that another machine filled: see `Compiler`.

    Raises:
        NoDeviceError: there is none.
    """
    reason = absent(sm_of(target))
    if reason is not None:
        raise NoDeviceError(f"target {target.name!r}: {reason}")
    return Gpu(Compiler(cache, trusted=trusted), libraries())
