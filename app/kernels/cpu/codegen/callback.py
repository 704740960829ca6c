"""Functions that are called by their address, and their optimized bitcode beside numba's cache.

numba's cache holds machine code that is bound to one process. Bitcode can be compiled again: for a library
that others load, which needs position-independent code (`app.kernels.library`).
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from app.kernels.cpu.codegen.pipeline import KernelCompiler


def compile_callback(signature: Any, function: Callable[..., Any]) -> Any:
    """A function as numba's C callback, from numba's cache where it lies there; see `bitcode`."""
    compiled = numba.cfunc(
        signature, pipeline_class=KernelCompiler, cache=True, error_model="numpy", boundscheck=False
    )(function)
    name = hashlib.sha256(compiled.native_name.encode()).hexdigest()[:32]
    # The folder of the cache changes where a process has several compilers.
    compiled.bitcode = Path(numba.config.CACHE_DIR) / "bitcode" / f"{name}.bc"
    if not compiled.cache_hits:
        write_whole(compiled.bitcode, compiled._library.serialize_using_bitcode()[-1])
    else:
        # LLVM's module of the code, which numba reads with it for functions that are linked to this one:
        # there are none, and it takes more memory than the code, 11 MiB for the kernels of a MobileNet.
        compiled._library._shared_module = None
    return compiled


def bitcode(compiled: Any) -> bytes:
    """The module of a callback after LLVM's optimizations; it defines `compiled.native_name`."""
    return bytes(compiled.bitcode.read_bytes())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all; its folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
