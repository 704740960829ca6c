"""Functions that are called by their address: object files in the folder of the cache, each compiled once.

The module of an object lies beside it, after LLVM's optimizations: machine code for another processor's
library is made of it, and assembly, which tells registers and stack.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from app.kernels.cpu.codegen.machine_code import emit, optimize
from app.kernels.cpu.codegen.pipeline import module_of


def cache_folder() -> Path:
    """Folder of what is compiled from now on, which is that of numba's cache."""
    return Path(numba.config.CACHE_DIR)


def object_path(folder: Path, symbol: str) -> Path:
    """Place of the object of a symbol in the folder of a cache."""
    return folder / "objects" / f"{symbol}.o"


def compile_callback(signature: Any, function: Callable[..., Any], symbol: str) -> Path:
    """The object of a function that C calls by a symbol; it is made if the folder of the cache has none."""
    path = object_path(cache_folder(), symbol)
    if not path.exists():
        module = module_of(signature, function, symbol)
        optimize(module, symbol)
        write_whole(path.with_suffix(".bc"), module.as_bitcode())
        write_whole(path, emit(module))  # last: whoever sees it finds the module too
    return path


def bitcode(path: Path) -> bytes:
    """The module that an object was made of."""
    return path.with_suffix(".bc").read_bytes()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all; its folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
