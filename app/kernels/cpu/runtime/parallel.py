"""Compilation on all cores: helper processes fill the cache that the asking process loads from.

numba compiles under the GIL, so threads would not help. Helpers take the missing kernels from the end of
the list while the asking process begins at its start; who meets what another one compiles waits for it
(`Compiler`), so nothing is compiled twice. A helper ends with the process that asked, as its input does.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.kernels.cpu.runtime.compiler import Compiler, Request
from app.kernels.cpu.runtime.processor import compiled_for

EACH = 2  # kernels that a helper must have to do, for what its start costs

# Begins a process that compiles for a processor; a call of a function with `rest` follows.
PRELUDE = (
    "import json, sys; path, processor, *rest = json.loads(sys.stdin.readline()); sys.path[:] = path; "
    "from app.kernels.cpu.runtime.processor import compile_for; compile_for(*processor[:2]); "
    "from app.kernels.cpu.runtime.parallel import end_with_input; end_with_input(); "
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
        helpers.append(started(_HELPER, compiled_for(), str(compiler.cache), order))
    try:
        yield
        for helper in helpers:
            helper.wait()
    finally:
        for helper in helpers:
            helper.kill()
            helper.communicate()


def started(code: str, *sent: Any, **options: Any) -> subprocess.Popen[str]:
    """A process that runs code after `PRELUDE` on what is sent, with these options of `Popen`.

    It ends with this one at the latest: it watches its input, which stays open until then.
    """
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True, **options)
    assert process.stdin is not None
    print(json.dumps([sys.path, *sent]), file=process.stdin, flush=True)
    return process


def serve(cache: str, requests: list[Any]) -> None:
    """Compile the driver and the requests that nobody has begun; what a helper process does."""
    from app.kernels.cpu.runtime.driver import compile_dispatch_loop

    compiler = Compiler(Path(cache), processes=1)
    compile_dispatch_loop()
    for kernel, types, static, takes_thread in map(tuples, requests):
        if not compiler.has(kernel, types, static, takes_thread):
            compiler.compile(kernel, types, static, takes_thread=takes_thread)


def end_with_input() -> None:
    """End this process as soon as its input ends, as it does with the process that has the other side."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):  # no lock that the interpreter's end waits for
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tuples(value: Any) -> Any:
    """A request as it was before JSON, which has lists only."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
