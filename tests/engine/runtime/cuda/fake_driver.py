"""The real cuda-core and cuda-bindings on a made-up driver: `fake_libcuda.c`, which tells what it checks.

The packages load `libcuda.so.1` once for a process, so what uses the fake one runs in a process of its own.
"""

import ctypes
import functools
import importlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.kernels.cuda.kernel import Kernel
from tests.needed import absent, needed

ROOT = Path(__file__).resolve().parents[4]
BYTES = {"int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8}
FORMATS = {"int32": "<i", "uint32": "<I", "float32": "<f"}
KERNEL_SECONDS = 2e-6  # of every kernel on the made-up device


def built(folder: Path) -> Path:
    """The folder of the fake `libcuda.so.1`, which is compiled there."""
    for module in ("cuda.core", "cuda.bindings.driver"):
        needed(module, "pip install 'stowplan[cuda]'")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        absent("no C compiler (cc, gcc), which the fake libcuda is compiled with")
    header = next((h for p in needed("nvidia", "").__path__ for h in Path(p).glob("*/include/cuda.h")), None)
    if header is None:
        absent("no cuda.h, which the package nvidia-cuda-runtime brings: pip install 'stowplan[cuda]'")
    source = Path(__file__).with_name("fake_libcuda.c")
    made = folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", f"-I{header.parent}", "-o", made, source, "-lpthread"]
    subprocess.run(command, check=True)
    return folder


def environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Of a process that finds the fake driver, and whose arguments' sizes are checked."""
    found = {"LD_LIBRARY_PATH": str(folder), "PYTHONMALLOC": "debug", "FAKE_CUDA_SIZES": "1"}
    return {**os.environ, **found, **extra}  # noqa: TID251


def process(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Python run on the fake driver."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(folder, extra),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )


def on_the_fake_driver(body: Callable[[Path], None]) -> Callable[..., None]:
    """A test whose body runs in a process of its own, given a folder."""

    def test(fake: Path, tmp_path: Path) -> None:
        done = process(
            fake, "-m", "tests.engine.runtime.cuda.fake_driver", body.__module__, body.__name__, str(tmp_path)
        )
        assert done.returncode == 0, done.stdout

    functools.update_wrapper(test, body, updated=())
    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would take its parameters
    test.body = body  # type: ignore[attr-defined]
    return test


# --- for bodies -------------------------------------------------------------------------------------------


def cubin(kernel: Kernel, sm: str = "sm_90") -> bytes:
    """What a driver reads of a cubin: an ELF file with the parameters and the threads of one kernel."""
    records, offset = struct.pack("<BBHIII", 4, 0x05, 12, kernel.threads, 1, 1), 0
    for ordinal, kind in enumerate(kernel.signature):
        size = 8 if kind.endswith("*") else BYTES[kind]
        offset = -(-offset // size) * size
        records += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18)
        offset += size
    names = f"\0.shstrtab\0.nv.info.{kernel.name}\0".encode()
    head, row = 64, "<IIQQQQIIQQ"
    start = head + len(names) + len(records)
    sections = (
        struct.pack(row, *[0] * 10),
        struct.pack(row, 1, 3, 0, 0, head, len(names), 0, 0, 1, 0),
        struct.pack(row, 11, 0x70000000, 0, 0, head + len(names), len(records), 0, 0, 4, 0),
    )
    flags = int(sm.removeprefix("sm_")) << 8
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    elf = struct.pack("<16sHHIQQQIHHHHHH", identity, 2, 190, 1, 0, 0, start, flags, 64, 56, 0, 64, 3, 1)
    return elf + names + records + b"".join(sections)


class Synthetic:
    """A compiler of `cubin`s, which hold no instructions."""

    def compile(self, kernel: Kernel, sm: str) -> Any:
        from app.kernels.cuda.compiler import Cubin

        return Cubin(kernel.name, sm, cubin(kernel, sm), 32, 0, 0, 0)


def gpu(compiler: Any = None) -> Any:
    """The product's own device, on the fake driver."""
    from app.engine.runtime.cuda.driver import Gpu, libraries

    return Gpu(compiler or Synthetic(), libraries())


def driver() -> Any:
    """The fake driver's own functions."""
    found = ctypes.CDLL("libcuda.so.1")
    found.fake_cuda_launches.restype = ctypes.c_long
    found.fake_cuda_host_time.restype = ctypes.c_double
    return found


HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint64))


class Launches:
    """Kernels that the fake driver executes, in order: (name, grid, arguments as the cubin types them)."""

    def __init__(self, *kernels: Kernel) -> None:
        self.kernels = {k.name: k for k in kernels}
        assert len(self.kernels) == len(kernels), "two kernels of one name"
        self.seen: list[tuple[str, tuple[int, ...], tuple[int | float, ...]]] = []
        self.errors: list[BaseException] = []
        self._hook = HOOK(self._launched)  # must live as long as it is called
        driver().fake_cuda_on_launch(self._hook)

    def _launched(self, name: bytes, grid: Any, values: Any) -> None:
        kernel = self.kernels[name.decode()]
        given = tuple(
            struct.unpack_from(FORMATS.get(kind, "<Q"), int(values[i]).to_bytes(8, "little"))[0]
            for i, kind in enumerate(kernel.signature)
        )
        self.seen.append((kernel.name, tuple(grid[:3]), given))
        try:
            self.run(kernel, tuple(grid[:3]), given)
        except BaseException as error:  # nothing passes through C
            self.errors.append(error)

    def run(self, kernel: Kernel, grid: tuple[int, ...], given: tuple[int | float, ...]) -> None:
        """For those that compute."""


if __name__ == "__main__":
    module, name, given_folder = sys.argv[1:]
    getattr(importlib.import_module(module), name).body(Path(given_folder))
