"""A program as a C library: `model.so`, `model.o`, `model.h` and what it says of itself."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from app.engine.core.program import Program
from app.engine.export.image import WEIGHTS_SYMBOL, Image, assembly, description, image
from app.engine.export.processors import processor_of
from app.engine.types.errors import ExportError
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.library.elf import LinkError
from app.kernels.library.joining import joined
from app.kernels.library.kernel_objects import kernel_objects
from app.kernels.library.linker import SharedLibrary, Weights, shared_library
from app.kernels.library.object_file import API, HERE, Emitter

SONAME = "model.so"
ASSEMBLY = """\
/* The weights of model.o, out of the shared library beside this file. */
    .section .rodata.weights, "a", @progbits
    .globl {symbol}
    .hidden {symbol}
    .type {symbol}, @object
    .balign 4096
{symbol}:
    .incbin "{file}", {at}, {size}
    .size {symbol}, {size}
    .section .note.GNU-stack, "", @progbits
"""


@dataclass(frozen=True, slots=True)
class Library:
    """A library in three forms, and its description.

    Attributes:
        shared: the shared library.
        code: object to link a program with.
        weights: assembly of the constants that the object needs, which takes them out of the shared library.
        header: of the C interface.
    """

    shared: SharedLibrary
    code: bytes
    weights: str
    header: str
    metadata: Mapping[str, object]


def library(program: Program, compiler: Compiler, name: str) -> Library:
    """The library of a program for the processor of its target.

    Args:
        program: of compiled kernels alone.
        compiler: where kernels come from, and whose cache has the objects; missing ones are made.
        name: of the model, for the description.

    Raises:
        ExportError: the program needs Python, or a kernel calls what no C library has.
        TargetError: no kernels can be compiled for the target.
    """
    processor = processor_of(program.compilation.target)
    found = image(program)
    told = description(found, name, processor)
    told["domain"] = f"stowplan.{_digest(found, told)}"
    try:
        objects = kernel_objects(found.symbols, compiler, processor)
        tables = Emitter(processor).of_assembly(assembly(found, processor.features, told))
        code = joined([tables, *objects], API)
        weights = Weights(WEIGHTS_SYMBOL, found.weights.parts, found.weights.digest)
        shared = shared_library(code, API, SONAME, weights)
    except LinkError as cause:
        raise ExportError(f"the library cannot be linked: {cause}") from cause
    assembled = ASSEMBLY.format(
        symbol=WEIGHTS_SYMBOL, file=SONAME, at=shared.weights_at, size=shared.weights_bytes
    )
    return Library(shared, code, assembled, (HERE / "model.h").read_text(encoding="utf-8"), told)


def _digest(found: Image, told: Mapping[str, object]) -> str:
    """Digest of a program and its weights, by which the graph of one operator finds its library."""
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    digest.update(repr(found.rows).encode())
    digest.update(found.weights.digest)
    return digest.hexdigest()[:16]
