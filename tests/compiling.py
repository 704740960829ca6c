"""A compiler whose kernels another process compiles, but for the first few, and this one loads.

Of each kernel that it compiles numba keeps 0.8 MB for as long as the process lives, of one that it loads a tenth; a
process of the suite meets thousands. The other one is replaced when it has grown.
"""

import contextlib
import resource
import threading
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from app.kernels.cpu.codegen.pipeline import write_whole
from app.kernels.cpu.runtime.compiler import CompiledKernel, Compiler

FEW = 30  # kernels that this process compiles: starting the other one takes a second
LARGEST = 700 << 20  # bytes of the process that compiles


class CompilerApart(Compiler):
    """The same kernels, errors and cache; to be closed."""

    def __init__(self, cache: Path) -> None:
        super().__init__(cache, processes=1)
        self._lock = threading.Lock()
        self._child: tuple[Any, Connection] | None = None
        self._own = 0

    def compile(
        self,
        kernel: str,
        argument_types: tuple[str, ...],
        static: tuple[object, ...] | None = None,
        *,
        takes_thread: bool = False,
    ) -> CompiledKernel:
        if not self.has(kernel, argument_types, static, takes_thread):
            with self._lock:
                self._own += 1
                if self._own > FEW:
                    self._order((kernel, argument_types, static, takes_thread))
        # What the other process could not compile fails here, with the error that is expected.
        return super().compile(kernel, argument_types, static, takes_thread=takes_thread)

    def _order(self, request: tuple[object, ...]) -> None:
        """Have a kernel compiled into the cache."""
        if self._child is None:
            context = get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(self.cache, theirs), daemon=True)
            process.start()
            theirs.close()
            self._child = process, ours
        self._child[1].send(request)
        if self._child[1].recv() > LARGEST:
            self.close()

    def close(self) -> None:
        """End the other process."""
        if self._child is not None:
            process, ours = self._child
            self._child = None
            ours.close()
            process.join()
            process.close()


def serve(cache: Path, requests: Connection) -> None:
    """Compile what is asked for until the other end is closed; the answer is how large this process is."""
    compiler = Compiler(cache, processes=1)
    with contextlib.suppress(EOFError):
        while True:
            kernel, argument_types, static, takes_thread = requests.recv()
            with contextlib.suppress(Exception):  # the other process tries again, and tells of it
                compiler.compile(kernel, argument_types, static, takes_thread=takes_thread)
            requests.send(resident())


def keep(folder: Path, cache: Path) -> None:
    """Add the kernels of a folder to a cache: those that are compiled here, others need not compile."""
    for path in sorted(folder.rglob("objects/*.*")):  # a module before the object that is made of it
        kept = cache / path.relative_to(folder)
        if not kept.exists():
            write_whole(kept, path.read_bytes())


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
