"""The libraries that a job leaves, as its options ask for."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from app.engine.core.program import Program
from app.engine.export.custom_operator import operator_archive
from app.engine.export.examples import examples
from app.engine.export.library import Library, library
from app.engine.export.package import archive, archive_name
from app.engine.export.wheel import wheel, wheel_name
from app.engine.report import text
from app.engine.types.options import Export
from app.kernels.cpu.runtime.compiler import Compiler


def _archive(made: Library, _program: Program) -> tuple[str, bytes]:
    return f"{archive_name(made)}.tar.gz", archive(made)


def _wheel(made: Library, program: Program) -> tuple[str, bytes]:
    return wheel_name(made), wheel(made, text.text(program.compilation))


def _operator(made: Library, _program: Program) -> tuple[str, bytes]:
    return f"{archive_name(made)}-ort.tar.gz", operator_archive(made)


# The artifact of each kind, and what makes it: the name to keep it under, and its bytes.
KINDS: dict[Export, tuple[str, Callable[[Library, Program], tuple[str, bytes]]]] = {
    "c": ("library.tar.gz", _archive),
    "wheel": ("module.whl", _wheel),
    "ort": ("operator.tar.gz", _operator),
}


def write_libraries(program: Program, compiler: Compiler, folder: Path, name: str) -> dict[str, object]:
    """Write the libraries that the program's options ask for; their file names, SHA-256 and examples.

    Raises:
        ExportError: the program needs more than compiled kernels.
    """
    kinds = program.compilation.options.export
    if not kinds:
        return {}
    made = library(program, compiler, program.compilation.options.export_name or name)
    found: dict[str, object] = {}
    for kind in dict.fromkeys(kinds):
        artifact, make = KINDS[kind]
        filename, content = make(made, program)
        (folder / artifact).write_bytes(content)
        found[artifact] = {
            "filename": filename,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "examples": examples(kind, made, filename),
        }
    return found
