"""Object files of kernels, each made once for a processor and kept beside the machine code of the kernels.

Those for another processor are made by a process that compiles for it and runs nothing of what it compiles.
"""

import hashlib
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from app.kernels.cpu.codegen import linking
from app.kernels.cpu.codegen.callback import write_whole
from app.kernels.cpu.runtime import driver
from app.kernels.cpu.runtime.compiler import Compiler, source_hash
from app.kernels.cpu.runtime.parallel import PRELUDE, Request, helped, started, tuples
from app.kernels.cpu.runtime.processor import ARCHITECTURE, STAND_IN, Processor, compiled_for
from app.kernels.library.elf import LinkError, RelocatableObject
from app.kernels.library.object_file import RUNTIMES, Emitter

DRIVER = ("stowplan_lead", "stowplan_help", "stowplan_wake")
_CHILD = f"{PRELUDE}from app.kernels.library.kernel_objects import serve; serve(*rest)"


def symbol_of(request: Request) -> str:
    """The symbol that the tables of a program call a kernel by."""
    return f"stowplan_kernel_{hashlib.sha256(repr(request).encode()).hexdigest()[:24]}"


def kernel_objects(requests: Iterable[Request], compiler: Compiler, processor: Processor) -> list[bytes]:
    """Objects of kernels, of the functions that several of them share, of the driver and of the runtime.

    Args:
        requests: the kernels.
        compiler: where kernels for this processor come from, and whose cache has those for others.
        processor: what the objects are for.

    Raises:
        LinkError: no kernels can be compiled for that processor.
    """
    kept = _Kept(compiler.cache, processor)
    wanted = {symbol_of(r): r for r in requests}
    missing = [r for symbol, r in wanted.items() if not kept.has(symbol)]
    if missing or not all(map(kept.has, DRIVER)):
        if processor == compiled_for():
            kept.make(missing, compiler)
        else:
            _ordered(missing, compiler, processor)
    return [*kept.with_shared([*wanted, *DRIVER]), kept.runtime()]


class _Kept:
    """The folder of the objects for one processor.

    An object in it calls others that are in it too, or the C library, or the runtime.
    """

    def __init__(self, cache: Path, processor: Processor) -> None:
        self._folder = cache / source_hash(processor) / "objects"
        self._emitter = Emitter(processor)

    def has(self, symbol: str) -> bool:
        return self._path(symbol).exists()

    def make(self, requests: Iterable[Request], compiler: Compiler) -> None:
        """Make what is missing of kernels and of the driver."""
        todo = list(requests)
        with helped(compiler, todo):
            for request in todo:
                kernel, types, static, takes_thread = request
                compiled = compiler.compile(kernel, types, static, takes_thread=takes_thread)
                self._keep(symbol_of(request), compiled.keep)
        for symbol, callback in driver.entries().items():
            self._keep(symbol, callback)

    def with_shared(self, symbols: list[str]) -> list[bytes]:
        """The objects of symbols, and of what they call, in an order that depends on the symbols alone."""
        found: dict[str, bytes] = {}
        todo = symbols[::-1]
        while todo:
            symbol = todo.pop()
            if symbol in found or not self.has(symbol):
                continue
            found[symbol] = self._path(symbol).read_bytes()
            todo += reversed(_called(found[symbol]))
        return list(found.values())

    def runtime(self) -> bytes:
        text = RUNTIMES[self._emitter.processor.architecture].read_text(encoding="utf-8")
        name = f"runtime {hashlib.sha256(text.encode()).hexdigest()}"
        return self._once(name, lambda: self._emitter.of_assembly(text))

    def _keep(self, symbol: str, callback: Any) -> None:
        content = self._emitter.of_callback(callback, symbol)
        # Its callees come first: an object that is there is complete.
        for name in _called(content):
            shared = linking.linked(name)
            if shared is not None and not self.has(name):
                self._keep(name, shared)
        write_whole(self._path(symbol), content)

    def _once(self, name: str, make: Callable[[], bytes]) -> bytes:
        if not self.has(name):
            write_whole(self._path(name), make())
        return self._path(name).read_bytes()

    def _path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.o"


def _called(content: bytes) -> list[str]:
    """Names that an object refers to and does not define."""
    obj = RelocatableObject(content)
    return [obj.symbols[i].name for i in obj.imports]


def _ordered(requests: list[Request], compiler: Compiler, processor: Processor) -> None:
    """Have another process make objects."""
    compiled = processor if processor.architecture == ARCHITECTURE else STAND_IN
    rest = str(compiler.cache), compiler.processes, requests, processor
    process = started(_CHILD, compiled, *rest, stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = process.stderr.read()
    process.communicate()
    if process.returncode:
        reason = told.strip().rpartition("\n")[2]
        raise LinkError(f"no kernels were compiled for {processor.name!r}: {reason}")


def serve(cache: str, processes: int, requests: list[Any], processor: list[str]) -> None:
    """Make the objects of kernels for a processor; what the other process does."""
    compiler = Compiler(Path(cache), processes)
    _Kept(compiler.cache, Processor(*processor)).make([tuples(r) for r in requests], compiler)
