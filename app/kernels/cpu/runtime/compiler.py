"""From the name of a kernel to a machine address, through a disk cache.

The cache is a folder of object files, named after a hash of all kernel sources: a change in a function
changes the kernels that call it. LLVM loads an object that is there, and nothing else of the kernel is read.
"""

import ctypes
import fcntl
import functools
import hashlib
import importlib
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import llvmlite
import numba
from numba import types

from app.kernels.cpu.codegen import linking, memory
from app.kernels.cpu.codegen.machine_code import address_of
from app.kernels.cpu.codegen.pipeline import compile_callback, object_path, write_whole
from app.kernels.cpu.runtime import driver
from app.kernels.cpu.runtime.processor import Processor, compiled_for
from app.kernels.garbage import uncollected

logger = logging.getLogger("stowplan.kernels")
_SCALARS = {
    "int8": types.int8,
    "int16": types.int16,
    "int32": types.int32,
    "int64": types.int64,
    "uint8": types.uint8,
    "uint16": types.uint16,
    "uint32": types.uint32,
    "uint64": types.uint64,
    "float32": types.float32,
    "float64": types.float64,
    "bool": types.uint8,  # a byte that holds 0 or 1
}


HOPELESS = 60  # spills, twice: the vectors are wider than the machine's, which no other unrolling helps


# Arguments of `Compiler.compile`: kernel, types of its arguments, static arguments, takes_thread.
Request: TypeAlias = tuple[str, tuple[str, ...], tuple[object, ...] | None, bool]

PREFIX = "stowplan_kernel_"  # of the symbols of kernels


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel whose object is a file; it is loaded when its address is asked for."""

    name: str
    arity: int  # of the arguments before begin and end
    takes_thread: bool
    path: Path

    @property
    def address(self) -> int:
        """Address of the machine code, which stays in the process."""
        return address_of(self.path)

    @property
    def function(self) -> Callable[..., None]:
        """The kernel as a function of addresses and numbers, then begin and end; it releases the GIL."""
        numbers = self.arity + 2 + self.takes_thread
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * numbers)(self.address)


def with_numbers(function: Callable[..., None], numbers: Sequence[int]) -> Callable[[], None]:
    """A `CompiledKernel.function` with its arguments, which ctypes converts once and not in every call."""
    return functools.partial(function, *map(ctypes.c_int64, numbers))


def symbol_of(request: Request) -> str:
    """The symbol that a kernel is called by; one outside this package depends on its file too."""
    kernel, *_ = request
    module = kernel.partition(":")[0]
    content = b""
    if not module.startswith("app.kernels."):
        origin = importlib.import_module(module).__file__
        content = Path(origin).read_bytes() if origin else b""
    return f"{PREFIX}{hashlib.sha256(repr(request).encode() + content).hexdigest()[:24]}"


def source_hash(processor: Processor | None = None) -> str:
    """A hash of every kernel source, of numba and LLVM, and of a processor, by default of `compiled_for`.

    Machine code, timings and the choice of unrollings are the processor's own.
    """
    machine = " ".join(processor or compiled_for())
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {machine}".encode())
    folder = Path(__file__).parents[1]
    for path in sorted((folder.parent / "expressions.py", *folder.rglob("*.py"))):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Compiler:
    """Compiles kernels, each once per process and once per machine.

    Of several processes that want the same, one compiles and the others wait and load.

    Args:
        cache: folder for machine code and generated modules; anybody who can write to it can
            run code here, so it must be the service's own.
        processes: how many may compile for this one at a time; by default one a core.

    Attributes:
        folder: the part of it that belongs to the kernels of this version.
    """

    def __init__(self, cache: Path, processes: int | None = None) -> None:
        self.cache = cache
        self.processes = len(os.sched_getaffinity(0)) if processes is None else processes
        self.folder = cache / source_hash()
        self._generated = self.folder / "generated"
        self._generated.mkdir(parents=True, exist_ok=True)
        numba.config.CACHE_DIR = str(self.folder)
        self._kernels: dict[Request, CompiledKernel] = {}
        self._modules: dict[str, ModuleType] = {}  # generated ones, whose shared functions are in the folder

    def compile(
        self,
        kernel: str,
        argument_types: tuple[str, ...],
        static: tuple[object, ...] | None = None,
        *,
        takes_thread: bool = False,
    ) -> CompiledKernel:
        """Machine code for a kernel.

        Args:
            kernel: `module:function`; with `static`, a generator that returns the source text of
                a module defining `kernel`.
            argument_types: `float32*` and the like for addresses, `int64` for numbers.
            static: arguments of the generator. One that returns several texts gives libraries
                first, which are modules that several kernels share (`from LIBRARY0 import ...`); a
                tuple of texts are alternatives, of which the one that spills least is taken.
            takes_thread: whether the last parameter is the number of the calling thread.
        """
        request = (kernel, argument_types, static, takes_thread)
        if request not in self._kernels:
            symbol = symbol_of(request)
            path = object_path(self.folder, symbol)
            if not path.exists():
                self._make(request, symbol)
            self._kernels[request] = CompiledKernel(kernel, len(argument_types), takes_thread, path)
        return self._kernels[request]

    def compile_driver(self) -> None:
        """Make the objects of the driver."""
        numba.config.CACHE_DIR = str(self.folder)
        for symbol, (signature, function) in driver.ENTRIES.items():
            compile_callback(signature, function, symbol)

    def _make(self, request: Request, symbol: str) -> None:
        kernel, argument_types, static, takes_thread = request
        started = time.perf_counter()
        numba.config.CACHE_DIR = str(self.folder)
        with uncollected():  # a search takes a sixth of numba's time and finds little
            function = self._function(kernel, static)
            signature = types.void(*(_type(t) for t in argument_types), *[types.int64] * (2 + takes_thread))
            with self._alone(symbol):
                compile_callback(signature, function, symbol)
        logger.debug("%s: %.3f s, static %s", kernel, time.perf_counter() - started, static)

    def has(
        self,
        kernel: str,
        argument_types: tuple[str, ...],
        static: tuple[object, ...] | None,
        takes_thread: bool,
    ) -> bool:
        """True if `compile` finds a kernel in memory or in the cache."""
        request = (kernel, argument_types, static, takes_thread)
        return request in self._kernels or object_path(self.folder, symbol_of(request)).exists()

    def count(self) -> int:
        """Kernels in the cache."""
        return sum(1 for _ in object_path(self.folder, "").parent.glob(f"{PREFIX}*.o"))

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """A section that one process at a time is in; the system ends it with the process."""
        with (self._generated / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _function(self, kernel: str, static: tuple[object, ...] | None) -> Callable[..., None]:
        function = resolve(kernel)
        if static is None:
            return function
        source = function(*static)
        *libraries, source = (source,) if isinstance(source, str) else source
        for i, text in enumerate(libraries):
            source = source.replace(f"LIBRARY{i}", self._library(text).__name__)
        return self._generate(source).kernel  # type: ignore[no-any-return]  # a generated module

    def _library(self, alternatives: str | tuple[str, ...]) -> ModuleType:
        """The first of several texts whose MAIN tile keeps everything in registers, else the best of them.

        What was found on this machine stands in a file, so that others are compiled once only.
        """
        if isinstance(alternatives, str):
            return self._generate(alternatives)
        digest = hashlib.sha256("\0".join(alternatives).encode()).hexdigest()[:24]
        choice = self._generated / f"choice_{digest}"
        with self._alone(choice.name):
            if choice.exists():
                return self._generate(alternatives[int(choice.read_text())])
            counts: list[int] = []
            for text in alternatives:
                module = self._generate(text)
                counts.append(linking.spilled(module.__name__, module.MAIN))
                if counts[-1] == 0 or (len(counts) > 1 and min(counts) > HOPELESS):
                    break
            best = counts.index(min(counts))
            choice.write_text(str(best))
            return self._generate(alternatives[best])

    def _generate(self, source: str) -> ModuleType:
        name = f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:24]}"
        if name in self._modules:
            return self._modules[name]
        path = self._generated / f"{name}.py"
        if not path.exists():
            write_whole(path, source.encode())
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        with self._alone(name):
            spec.loader.exec_module(module)
        self._modules[name] = module
        return module


def resolve(kernel: str) -> Callable[..., Any]:
    """The function behind `module:function`."""
    module, _, function = kernel.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def _type(name: str) -> types.Type:
    if name.endswith("*"):
        scalar = _SCALARS.get(name[:-1])
        return memory.pointer(name[:-1]) if scalar is None else types.CPointer(scalar)
    return _SCALARS[name]


@functools.cache
def _prototype(arity: int) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arity)


def call(kernel: CompiledKernel, *arguments: int) -> None:
    """Call machine code from Python, for tests: addresses, numbers, begin, end[, thread]."""
    _prototype(len(arguments))(kernel.address)(*arguments)
