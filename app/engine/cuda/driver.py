"""A GPU of this machine: memory and copies by the driver, kernels and graphs by `cuda.core`.

Nothing of NVIDIA's is imported before a device is asked for. What can be missing is told with the way out.
"""

import ctypes
import functools
import importlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.engine.cuda.device import Array, Passed, Pointer
from app.engine.errors import CapacityError, KernelError, TargetError
from app.engine.target import Target
from app.kernels.cuda.compiler import Compiler
from app.kernels.cuda.kernel import STATIC_SHARED, Kernel
from app.kernels.cuda.kernel import KernelError as CompileError

PREDICTED = "ask for timings 'predicted', which need no GPU"
# What a number is passed as, by the type in a kernel's signature.
NUMBERS: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


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
        NoDeviceError: they are not installed.
    """
    try:
        return Library(*map(importlib.import_module, ("cuda.core", "cuda.bindings.driver")))
    except ImportError as cause:
        raise NoDeviceError(
            f"running on a GPU needs the package 'cuda-core' ({cause}): pip install 'stowplan[cuda]'; "
            f"or {PREDICTED}"
        ) from cause


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
        self._stream = self._device.create_stream()
        self._target: Any = self._stream  # where launches go: the stream, or a graph that records
        self._loaded: dict[Kernel, _Function] = {}
        self._graphs: list[Any] = []

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
        """See `Device`."""
        self.wait()
        self._checked(self._library.driver.cuMemFree(address))

    def write(self, address: int, array: Array) -> None:
        """See `Device`. Pageable memory is staged by the driver before the call returns."""
        self._checked(
            self._library.driver.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self._handle)
        )

    def read(self, address: int, array: Array) -> None:
        """See `Device`."""
        self._checked(
            self._library.driver.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self._handle)
        )
        self.wait()

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """See `Device`."""
        self._checked(self._library.driver.cuMemsetD8Async(address, byte, nbytes, self._handle))

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

    def launch(self, config: Any, function: Any, arguments: Sequence[Any]) -> None:
        """Send a kernel to where launches go."""
        self._library.core.launch(self._target, config, function, *arguments)

    def config(self, kernel: Kernel, grid: tuple[int, int, int]) -> Any:
        """How a kernel is launched."""
        return self._library.core.LaunchConfig(
            grid=grid, block=kernel.threads, shmem_size=kernel.shared_bytes
        )

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Device`: a CUDA graph."""
        builder = self._stream.create_graph_builder()
        self._target = builder
        try:
            builder.begin_building("thread_local")
            work()
            builder.end_building()
        finally:
            self._target = self._stream
        found = builder.complete()
        found.upload(self._stream)
        self._graphs.append(found)
        return functools.partial(found.launch, self._stream)

    def wait(self) -> None:
        """See `Device`."""
        try:
            self._stream.sync()
        except Exception as cause:  # cuda.core raises types of its own
            raise KernelError(f"GPU {self.name!r}: a kernel failed: {cause}") from cause

    def elapsed(self, works: Sequence[Callable[[], None]]) -> list[float]:
        """See `Device`; events between the works."""
        options = self._library.core.EventOptions(timing_enabled=True)
        events = [self._stream.record(options=options)]
        for work in works:
            work()
            events.append(self._stream.record(options=options))
        self.wait()
        return [1e-3 * float(after - before) for before, after in itertools.pairwise(events)]

    def close(self) -> None:
        """See `Device`."""
        self.wait()
        for found in self._graphs:
            found.close()
        self._graphs.clear()
        self._loaded.clear()

    @property
    def _handle(self) -> Any:
        return self._stream.handle

    def _checked(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a call of the driver returned beside its status."""
        error, *found = results
        if int(error) != 0:
            raise KernelError(f"GPU {self.name!r}: the driver answers {getattr(error, 'name', error)}")
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
            ctypes.c_void_p(a.address) if isinstance(a, Pointer) else NUMBERS[kind](a)
            for kind, a in zip(self.kernel.signature, arguments, strict=True)
        ]
        return functools.partial(self.gpu.launch, self.gpu.config(self.kernel, grid), self.function, passed)


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
    """Why no GPU of this generation answers on this machine, or None; asked once for a process."""
    try:
        device = _answering(libraries(), 0)
    except NoDeviceError as error:
        return error.message
    found = generation(device)
    if found == sm:
        return None
    way_out = f'a target with "isa": ["{found}"] describes it (POST /v1/targets)'
    return f"the GPU {device.name!r} is {found}, the target is {sm}; {way_out}"


def open_gpu(cache: Path, target: Target) -> Gpu:
    """The GPU of this machine that is a target; machine code comes from, and goes to, a folder.

    Raises:
        NoDeviceError: there is none.
    """
    reason = absent(sm_of(target))
    if reason is not None:
        raise NoDeviceError(f"target {target.name!r}: {reason}")
    return Gpu(Compiler(cache), libraries())
