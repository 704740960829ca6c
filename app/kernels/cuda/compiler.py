"""From a kernel's source to a cubin, through a disk cache, on any machine: no driver, no GPU.

numba makes PTX with NVVM, nvJitLink makes the cubin and tells registers and spills. All come as wheels (the
extra `cuda`), pinned to one version of the toolkit: what a newer one makes an older driver may not load. PTX
is that of the oldest generation, which all later ones take: no kernel uses instructions of a newer one.
A cubin runs on later generations of the same major number, too.

Cubins are keyed by the versions of all that made them. Beside them lies which these were, so that an image
with cubins and without the toolkit loads what is there: launching needs none of the compiler's wheels.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import linecache
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.kernels.cuda.kernel import Kernel, KernelError

# What compiling needs, by the names of its wheels.
TOOLKIT = (
    "numba-cuda",
    "cuda-bindings",
    "nvidia-nvvm",
    "nvidia-cuda-nvrtc",
    "nvidia-nvjitlink",
    "nvidia-cuda-runtime",
)
OLDEST = (8, 0)  # cp.async and bfloat16 in tensor cores
MANIFEST = "toolkit.json"  # in the folder of cubins: versions of what made the newest ones


class MissingToolkitError(KernelError):
    """The toolkit is not installed, and the cubin that it would make is not in the cache."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one kernel for one generation of GPUs, and what it uses."""

    name: str
    sm: str
    code: bytes
    registers: int  # of a thread
    spills: int  # bytes stored and loaded by a thread
    stack: int  # bytes of a thread
    shared_bytes: int  # static ones that the compiler added, beside `Kernel.shared_bytes`


def versions() -> dict[str, str]:
    """Installed versions of all that decides the machine code.

    Raises:
        MissingToolkitError: something is not installed.
    """
    found = {}
    for distribution in TOOLKIT:
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            raise MissingToolkitError(
                f"compiling for CUDA needs '{distribution}', which is not installed; "
                "install the extra: pip install 'stowplan[cuda]'"
            ) from None
    found["numba"] = importlib.metadata.version("numba")
    found["llvmlite"] = importlib.metadata.version("llvmlite")
    return found


def capability(sm: str) -> tuple[int, int]:
    """(9, 0) of "sm_90".

    Raises:
        KernelError: no such generation, or one without what the kernels use.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)", sm)
    if not match:
        raise KernelError(f"unknown GPU generation '{sm}', expected sm_80, sm_90 or the like")
    found = int(match[1]), int(match[2])
    if found < OLDEST:
        raise KernelError(f"'{sm}' has no asynchronous copies and no bfloat16: expected sm_80 or later")
    return found


class Compiler:
    """Compiles kernels, each once per process and once per cache folder.

    Where the toolkit is not installed, it gives what one that was has left in the folder.

    Args:
        cache: folder for cubins; anybody who can write to it can run code on the GPU.
        trusted: take the versions from the folder's manifest, whatever is installed here, and compile
            nothing: for a machine that another one has compiled for.

    Raises:
        MissingToolkitError: a trusted folder has no manifest.
    """

    def __init__(self, cache: Path, *, trusted: bool = False) -> None:
        self._trusted = trusted
        self.folder = cache / "cuda"
        if not trusted:
            self.folder.mkdir(parents=True, exist_ok=True)
        elif not (self.folder / MANIFEST).is_file():
            raise MissingToolkitError(
                f"'{self.folder}' has no {MANIFEST}, which tells the versions that made its cubins: copy the "
                "whole folder from the machine that compiled them"
            )
        self._cubins: dict[tuple[Kernel, str], Cubin] = {}
        self._texts: dict[Kernel, str] = {}
        self._lock = threading.Lock()
        self._toolkit: dict[str, str] | None = None
        definitions = sorted((Path(__file__).parent / "primitives").glob("*.py"))
        self._primitives = hashlib.sha256(b"".join(p.read_bytes() for p in definitions)).hexdigest()

    def toolkit(self) -> dict[str, str]:
        """Versions of what makes the cubins; without it, of what made those in the folder.

        Raises:
            MissingToolkitError: it is not installed, and the folder tells of none.
        """
        manifest = self.folder / MANIFEST
        if self._toolkit is None:
            try:
                self._toolkit = json.loads(manifest.read_text()) if self._trusted else versions()
            except MissingToolkitError:
                if not manifest.exists():
                    raise
                self._toolkit = json.loads(manifest.read_text())
            if not manifest.exists():
                _write(manifest, json.dumps(self._toolkit).encode())
        return self._toolkit

    def compile(self, kernel: Kernel, sm: str) -> Cubin:
        """Machine code of a kernel for a generation ("sm_90").

        Raises:
            MissingToolkitError: not in the cache, and the toolkit is not installed.
            KernelError: unknown generation, one without the kernel's instructions, or source that does not
                compile.
        """
        capability(sm)
        if kernel.only not in ("", sm):
            raise KernelError(f"kernel '{kernel.name}' has instructions of {kernel.only} alone, not of {sm}")
        with self._lock:
            if (kernel, sm) not in self._cubins:
                self._cubins[kernel, sm] = self._stored(kernel, sm) or self._made(kernel, sm)
            return self._cubins[kernel, sm]

    def has(self, kernel: Kernel, sm: str) -> bool:
        """True if `compile` finds a kernel in memory or on disk."""
        return (kernel, sm) in self._cubins or self._path(kernel, sm).with_suffix(".json").exists()

    def _path(self, kernel: Kernel, sm: str) -> Path:
        told = f"{kernel!r} {sm} {self._primitives} {self.toolkit()}"
        key = hashlib.sha256(told.encode()).hexdigest()[:24]
        return self.folder / f"{kernel.name}_{sm}_{key}.cubin"

    def _stored(self, kernel: Kernel, sm: str) -> Cubin | None:
        path = self._path(kernel, sm)
        try:
            about = json.loads(path.with_suffix(".json").read_text())
            return Cubin(code=path.read_bytes(), **about)
        except FileNotFoundError:
            return None

    def _made(self, kernel: Kernel, sm: str) -> Cubin:
        if self._trusted:
            raise MissingToolkitError(
                f"'{self.folder}' is trusted and has no cubin of kernel '{kernel.name}' for {sm} from this "
                f"source; it has one of that name for {self._generations(kernel)}: compile with the same "
                "version of Stowplan"
            )
        try:
            toolkit = versions()
        except MissingToolkitError as missing:
            raise MissingToolkitError(
                f"{missing}; or bring the cubin of kernel '{kernel.name}' for {sm} into '{self.folder}', "
                f"which has it for {self._generations(kernel)}: `stowplan warm --target` on a machine with it"
            ) from None
        if kernel not in self._texts:
            self._texts[kernel] = ptx(kernel)
        code, log = linked(self._texts[kernel], f"{sm}a" if kernel.only else sm)
        cubin = Cubin(kernel.name, sm, code, *_usage(log))
        about = asdict(cubin)
        del about["code"]
        path = self._path(kernel, sm)
        _write(path, code)
        _write(self.folder / MANIFEST, json.dumps(toolkit).encode())
        _write(path.with_suffix(".json"), json.dumps(about).encode())  # last: it tells that all are there
        return cubin

    def _generations(self, kernel: Kernel) -> str:
        """Those that the folder has a kernel of this name for."""
        names = {path.stem for path in self.folder.glob(f"{kernel.name}_sm_*_*.json")}
        found = {name.removeprefix(f"{kernel.name}_").rpartition("_")[0] for name in names}
        return ", ".join(sorted(found)) or "no generation"


def _write(path: Path, content: bytes) -> None:
    """Written aside and renamed, so that no other process reads half a file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def ptx(kernel: Kernel) -> str:
    """PTX for the oldest generation, or the one that the kernel is for; its entry has the kernel's name."""
    versions()
    from numba import cuda  # seconds, and only here

    if cuda.implementation != "NVIDIA":
        raise KernelError(
            f"numba's CUDA target is the '{cuda.implementation}' one, expected that of 'numba-cuda'; "
            "install the extra into this environment: pip install 'stowplan[cuda]'"
        )
    from numba.cuda import types

    from app.kernels.cuda import primitives
    from app.kernels.cuda.pipeline import kernel_passes

    function = _function(kernel, primitives.NAMES)
    signature = types.void(*(primitives.type_of(t) for t in kernel.signature))
    generation = (*capability(kernel.only), "a") if kernel.only else OLDEST
    try:
        with _generation(), kernel_passes():
            text, _ = cuda.compile(
                function,
                signature,
                cc=generation,
                device=False,
                abi="numba",
                launch_bounds=(kernel.threads, kernel.minimum_blocks),
                output="ptx",
            )
    except Exception as error:
        raise KernelError(f"kernel '{kernel.name}' does not compile: {error}") from error
    text = text.decode() if isinstance(text, bytes) else text
    (entry,) = re.findall(r"\.visible \.entry (\w+)\(", text)
    return re.sub(rf"\b{re.escape(entry)}(?=\b|_param)", kernel.name, text)


_DEVICE = threading.RLock()


@contextmanager
def _generation() -> Iterator[None]:
    """Functions that a kernel calls ask numba which GPU there is: the one that is compiled for."""
    from numba.cuda import dispatcher

    with _DEVICE:
        asked = dispatcher.get_current_device
        dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=OLDEST)
        try:
            yield
        finally:
            dispatcher.get_current_device = asked


def _function(kernel: Kernel, names: dict[str, Any]) -> Any:
    file = f"<{kernel.name}>"
    linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(keepends=True), file)
    namespace = {**names, "__name__": kernel.name}
    exec(compile(kernel.source, file, "exec"), namespace)
    return namespace["kernel"]


def linked(text: str, sm: str) -> tuple[bytes, str]:
    """(cubin, ptxas's report) of PTX, by nvJitLink."""
    from cuda.bindings import nvjitlink

    options = [f"-arch={sm}", "-verbose"]
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise KernelError(
            f"nvJitLink {versions()['nvidia-nvjitlink']} knows no '{sm}': {error}; "
            "a generation newer than the toolkit needs a newer one"
        ) from error
    try:
        data = text.encode()
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel.ptx")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, log)
            raise KernelError(
                f"nvJitLink refuses the kernel for '{sm}': {error}: {log.decode(errors='replace')[:2000]}"
            ) from error
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
        return bytes(code), log.decode(errors="replace")
    finally:
        nvjitlink.destroy(handle)


def _usage(log: str) -> tuple[int, int, int, int]:
    """Registers, spilled bytes, stack, static shared bytes, from ptxas's report."""
    registers = re.search(r"Used (\d+) registers", log)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not registers or not frame:
        raise KernelError(f"nvJitLink's report has no registers and spills: {log[:500]!r}")
    shared = re.search(r"Used .*?(\d+) bytes smem", log)
    stack, stores, loads = (int(x) for x in frame.groups())
    return int(registers[1]), stores + loads, stack, int(shared[1]) if shared else 0
