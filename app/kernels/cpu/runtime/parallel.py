"""Compilation on all cores: helper processes fill the cache that the asking process loads from.

numba compiles under the GIL, so threads would not help. Helpers take the missing kernels from the end of
the list while the asking process begins at its start; who meets what another one compiles waits for it
(`Compiler`), so nothing is compiled twice.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.processor import compiled_for

# What `Compiler.compile` is asked for: kernel, types of its arguments, static arguments, takes_thread.
Request: TypeAlias = tuple[str, tuple[str, ...], tuple[object, ...] | None, bool]

EACH = 2  # kernels that a helper must have to do, for what its start costs

# Begins a process that compiles for a processor; a call of a function with `rest` follows.
PRELUDE = (
    "import json, sys; path, processor, *rest = json.load(sys.stdin); sys.path[:] = path; "
    "from app.kernels.cpu.runtime.processor import compile_for; compile_for(*processor[:2]); "
)
_HELPER = f"{PRELUDE}from app.kernels.cpu.runtime.parallel import serve; serve(*rest)"


@contextmanager
def helped(compiler: Compiler, requests: Iterable[Request]) -> Iterator[None]:
    """While this lasts, helpers compile what is missing; it ends when they have ended."""
    missing = [r for r in requests if not compiler.has(*r)]
    count = max(min(compiler.processes - 1, len(missing) // EACH - 1), 0)
    helpers = []
    for number in range(1, count + 1):
        # Each begins at another place, and all go through all of the list.
        first = len(missing) - len(missing) * (number - 1) // (count + 1)
        order = missing[:first][::-1] + missing[first:][::-1]
        helper = subprocess.Popen([sys.executable, "-c", _HELPER], stdin=subprocess.PIPE, text=True)
        assert helper.stdin is not None
        with helper.stdin as pipe:
            json.dump([sys.path, compiled_for(), str(compiler.cache), order], pipe)
        helpers.append(helper)
    try:
        yield
        for helper in helpers:
            helper.wait()
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()


def serve(cache: str, requests: list[Any]) -> None:
    """Compile the driver and the requests that nobody has begun; what a helper process does."""
    from app.kernels.cpu.runtime.driver import compile_dispatch_loop

    compiler = Compiler(Path(cache), processes=1)
    compile_dispatch_loop()
    for kernel, types, static, takes_thread in map(tuples, requests):
        if not compiler.has(kernel, types, static, takes_thread):
            compiler.compile(kernel, types, static, takes_thread=takes_thread)


def tuples(value: Any) -> Any:
    """A request as it was before JSON, which has lists only."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
