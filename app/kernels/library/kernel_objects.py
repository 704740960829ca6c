"""Object files of kernels for a library: those of the cache, or others that are kept in one for a processor.

Those for another processor are made by a process that compiles for it and runs nothing of what it compiles.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.kernels.cpu.codegen.machine_code import imports
from app.kernels.cpu.codegen.pipeline import bitcode, object_path, write_whole
from app.kernels.cpu.runtime import driver
from app.kernels.cpu.runtime.compiler import Compiler, Request, source_hash, symbol_of
from app.kernels.cpu.runtime.parallel import PRELUDE, helped, started, tuples
from app.kernels.cpu.runtime.processor import ARCHITECTURE, STAND_IN, Processor, compiled_for
from app.kernels.library.elf import FUNCTION, GLOBAL, LinkError, RelocatableObject
from app.kernels.library.object_file import ERROR_PATH, MEMORY_FUNCTIONS, RUNTIMES, Emitter
from app.kernels.library.stack_depth import StackUse

_CHILD = f"{PRELUDE}from app.kernels.library.kernel_objects import serve; serve(*rest)"


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
    found = kept.filled({symbol_of(r): r for r in requests}, tuple(driver.ENTRIES), compiler)
    runtime = RUNTIMES[processor.architecture]
    return [*found.values(), kept.assembled(runtime), kept.assembled(ERROR_PATH)]


def static_objects(
    requests: Iterable[Request], compiler: Compiler, processor: Processor
) -> tuple[list[bytes], dict[str, StackUse]]:
    """Objects as of `kernel_objects` without driver and runtime, and the stack of each function by symbol.

    They call `memcpy` and functions of the mathematical library, and nothing else that they do not define.

    Raises:
        LinkError: no kernels can be compiled for that processor, or the stack of one has no fixed depth.
    """
    kept = _Kept(compiler.cache, processor, with_stack=True)
    found = kept.filled({symbol_of(r): r for r in requests}, (), compiler)
    objects = list(found.values())
    stacks = {symbol: kept.stack(symbol) for symbol in found}
    called = {name for each in objects for name in imports(each)}
    for path in (ERROR_PATH, MEMORY_FUNCTIONS):
        further = kept.assembled(path)
        functions = _functions(further)
        if called & functions:
            objects.append(further)
            stacks |= {name: kept.stack_of_assembly(path, name) for name in functions}
    return objects, stacks


class _Kept:
    """The folder of the objects for one processor.

    An object in it calls others that are in it too, or the C library, or the runtime.
    """

    def __init__(self, cache: Path, processor: Processor, *, with_stack: bool = False) -> None:
        self.processor = processor
        self.with_stack = with_stack
        self._folder = cache / source_hash(processor)
        self._emitter = Emitter(processor)

    def has(self, symbol: str) -> bool:
        path = self._path(symbol)
        return path.exists() and (not self.with_stack or path.with_suffix(".stack").exists())

    def filled(
        self, wanted: Mapping[str, Request], further: Sequence[str], compiler: Compiler
    ) -> dict[str, bytes]:
        """Objects by symbol of kernels, of further symbols and of what they call; missing ones are made."""
        missing = [r for symbol, r in wanted.items() if not self.has(symbol)]
        if missing or not all(map(self.has, further)):
            if self.processor == compiled_for():
                self.make(missing, compiler)
            else:
                _ordered(missing, compiler, self)
        return self.with_shared([*wanted, *further])

    def stack_of_assembly(self, path: Path, symbol: str) -> StackUse:
        """Stack of a function of a file of LLVM assembly."""
        return self._emitter.stack_of_assembly(path.read_text(encoding="utf-8"), symbol)

    def stack(self, symbol: str) -> StackUse:
        """Stack of a kernel or shared function."""
        return StackUse(*json.loads(self._path(symbol).with_suffix(".stack").read_bytes()))

    def make(self, requests: Iterable[Request], compiler: Compiler) -> None:
        """Make what is missing of kernels, and of the driver, which static programs do not have."""
        todo = list(requests)
        with helped(compiler, todo):
            symbols = [compiler.compile(r[0], r[1], r[2], takes_thread=r[3]).path.stem for r in todo]
        if not self.with_stack:
            compiler.compile_driver()
            symbols += driver.ENTRIES
        for symbol in symbols:
            self._keep(compiler.folder, symbol)

    def with_shared(self, symbols: list[str]) -> dict[str, bytes]:
        """The objects of symbols, and of what they call, in an order that depends on the symbols alone."""
        found: dict[str, bytes] = {}
        todo = symbols[::-1]
        while todo:
            symbol = todo.pop()
            if symbol in found or not self.has(symbol):
                continue
            found[symbol] = self._path(symbol).read_bytes()
            todo += reversed(imports(found[symbol]))
        return found

    def assembled(self, path: Path) -> bytes:
        """The object of a file of LLVM assembly."""
        text = path.read_text(encoding="utf-8")
        made = self._path(hashlib.sha256(text.encode()).hexdigest())
        if not made.exists():
            write_whole(made, self._emitter.of_assembly(text))
        return made.read_bytes()

    def _keep(self, folder: Path, symbol: str) -> None:
        """Make what is missing of the object of a symbol that is in a folder, and of those that it calls."""
        if self.has(symbol):
            return
        source, path = object_path(folder, symbol), self._path(symbol)
        content = source.read_bytes()
        for name in imports(content):  # first: an object that is there is complete
            if object_path(folder, name).exists():
                self._keep(folder, name)
        if self.with_stack:
            stack = self._emitter.stack_of_bitcode(bitcode(source), symbol)
            write_whole(path.with_suffix(".stack"), json.dumps(stack).encode())
        if path != source:
            write_whole(path, self._emitter.of_bitcode(bitcode(source)))

    def _path(self, name: str) -> Path:
        return object_path(self._folder, name)


def _functions(content: bytes) -> set[str]:
    """Names of the functions that an object defines for others."""
    return {
        s.name for s in RelocatableObject(content).symbols if s.section and s.info == GLOBAL << 4 | FUNCTION
    }


def _ordered(requests: list[Request], compiler: Compiler, kept: _Kept) -> None:
    """Have another process make objects."""
    processor = kept.processor
    compiled = processor if processor.architecture == ARCHITECTURE else STAND_IN
    rest = str(compiler.cache), compiler.processes, requests, processor, kept.with_stack
    process = started(_CHILD, compiled, *rest, stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = process.stderr.read()
    process.communicate()
    if process.returncode:
        reason = told.strip().rpartition("\n")[2]
        raise LinkError(f"no kernels were compiled for {processor.name!r}: {reason}")


def serve(cache: str, processes: int, requests: list[Any], processor: list[str], with_stack: bool) -> None:
    """Make the objects of kernels for a processor; what the other process does."""
    compiler = Compiler(Path(cache), processes)
    kept = _Kept(compiler.cache, Processor(*processor), with_stack=with_stack)
    kept.make([tuples(r) for r in requests], compiler)
