"""A program as a C library: `model.so`, `model.o`, `model.h` and what it says of itself."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from app.engine.core.program import Program
from app.engine.export.image import WEIGHTS_SYMBOL, Image, assembly, described, image
from app.engine.types.errors import ExportError
from app.kernels.cpu.runtime.compiler import Compiler, source_hash
from app.kernels.cpu.runtime.parallel import helped
from app.kernels.library.elf import LinkError, data_object
from app.kernels.library.linker import shared_library
from app.kernels.library.object_file import API, HERE, features, object_file, processor

SONAME = "model.so"


@dataclass(frozen=True, slots=True)
class Library:
    """A library in three forms, and its description.

    Attributes:
        shared: the shared library.
        code, weights: two objects to link a program with.
        header: of the C interface.
    """

    shared: bytes
    code: bytes
    weights: bytes
    header: str
    metadata: Mapping[str, object]


def library(program: Program, compiler: Compiler, name: str) -> Library:
    """The library of a program for the processor that kernels are compiled for.

    Args:
        program: of compiled kernels alone.
        compiler: where kernels come from; missing ones are compiled.
        name: of the model, for the description.

    Raises:
        ExportError: the program needs Python, or a kernel calls what no C library has.
    """
    found = image(program)
    kernels = {}
    with helped(compiler, found.symbols):
        for request, symbol in found.symbols.items():
            kernel, types, static, takes_thread = request
            kernels[symbol] = compiler.compile(kernel, types, static, takes_thread=takes_thread).keep
    told = _metadata(found, name)
    told["domain"] = f"stowplan.{_digest(found, told)}"
    obj = object_file(kernels, assembly(found, features(), told))
    try:
        shared = shared_library(obj, API, SONAME, (WEIGHTS_SYMBOL, found.weights.parts))
    except LinkError as cause:
        raise ExportError(f"the library cannot be linked: {cause}") from cause
    weights = data_object(WEIGHTS_SYMBOL, found.weights.parts)
    return Library(shared, obj, weights, (HERE / "model.h").read_text(encoding="utf-8"), told)


def _digest(found: Image, told: Mapping[str, object]) -> str:
    """Digest of a program and its weights, by which the graph of one operator finds its library."""
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    digest.update(repr(found.rows).encode())
    for part in found.weights.parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _metadata(found: Image, name: str) -> dict[str, object]:
    program = found.program
    compilation = program.compilation
    return {
        "name": name,
        "inputs": [described(v) for v, _ in found.inputs],
        "outputs": [described(v) for v, _ in found.outputs],
        "threads": compilation.options.threads,
        "target": compilation.target.name,
        "processor": processor(),
        "features": features(),
        "kernels": source_hash(),
        "bytes": {
            "arena": program.arena_bytes,
            "inputs and outputs": found.buffer_bytes,
            "weights": found.weights.size,
        },
    }
