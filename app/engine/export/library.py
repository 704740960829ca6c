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
from app.kernels.library.elf import LinkError, data_object
from app.kernels.library.joining import joined
from app.kernels.library.kernel_objects import kernel_objects
from app.kernels.library.linker import MARGIN, shared_library
from app.kernels.library.object_file import API, HERE, Emitter
from app.kernels.library.relocations import MACHINES

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
        shared = shared_library(code, API, SONAME, (WEIGHTS_SYMBOL, found.weights.parts))
    except LinkError as cause:
        raise ExportError(f"the library cannot be linked: {cause}") from cause
    content = b"".join([*found.weights.parts, bytes(MARGIN)])
    weights = data_object(WEIGHTS_SYMBOL, content, MACHINES[processor.architecture])
    return Library(shared, code, weights, (HERE / "model.h").read_text(encoding="utf-8"), told)


def _digest(found: Image, told: Mapping[str, object]) -> str:
    """Digest of a program and its weights, by which the graph of one operator finds its library."""
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    digest.update(repr(found.rows).encode())
    for part in found.weights.parts:
        digest.update(part)
    return digest.hexdigest()[:16]
