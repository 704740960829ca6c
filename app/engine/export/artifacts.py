"""The libraries that a job leaves, as its options ask for."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from app.engine.core.program import Program
from app.engine.export.custom_operator import operator_archive
from app.engine.export.examples import examples
from app.engine.export.library import Library, library
from app.engine.export.package import archive, archive_name
from app.engine.export.static_program import static_archive, static_name, static_program
from app.engine.export.wheel import wheel, wheel_name
from app.engine.report import text
from app.engine.types.options import Export
from app.kernels.cpu.runtime.compiler import Compiler


@dataclass(frozen=True)
class _Exported:
    """A program that leaves; `name` is the model's."""

    program: Program
    compiler: Compiler
    name: str

    @cached_property
    def library(self) -> Library:
        """The library that several kinds are made of."""
        return library(self.program, self.compiler, self.name)


# File name, and the description that examples are written from.
_Made = tuple[str, Mapping[str, object]]


def _archive(exported: _Exported, into: IO[bytes]) -> _Made:
    made = exported.library
    archive(made, into)
    return f"{archive_name(made.metadata)}.tar.gz", made.metadata


def _wheel(exported: _Exported, into: IO[bytes]) -> _Made:
    made = exported.library
    wheel(made, text.text(exported.program.compilation), into)
    return wheel_name(made), made.metadata


def _operator(exported: _Exported, into: IO[bytes]) -> _Made:
    made = exported.library
    operator_archive(made, into)
    return f"{archive_name(made.metadata)}-ort.tar.gz", made.metadata


def _static(exported: _Exported, into: IO[bytes]) -> _Made:
    made = static_program(exported.program, exported.compiler, exported.name)
    static_archive(made, into)
    return f"{static_name(made)}.tar.gz", made.metadata


# The artifact of each kind, and what makes it.
KINDS: dict[Export, tuple[str, Callable[[_Exported, IO[bytes]], _Made]]] = {
    "c": ("library.tar.gz", _archive),
    "wheel": ("module.whl", _wheel),
    "ort": ("operator.tar.gz", _operator),
    "static": ("static.tar.gz", _static),
}


def write_libraries(program: Program, compiler: Compiler, folder: Path, name: str) -> dict[str, object]:
    """Write the libraries that the program's options ask for; their file names, SHA-256 and examples.

    Raises:
        ExportError: the program needs more than compiled kernels.
    """
    exported = _Exported(program, compiler, program.compilation.options.export_name or name)
    found: dict[str, object] = {}
    for kind in dict.fromkeys(program.compilation.options.export):
        artifact, make = KINDS[kind]
        with (folder / artifact).open("w+b") as file:
            filename, told = make(exported, file)
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[artifact] = {
            "filename": filename,
            "bytes": size,
            "sha256": digest,
            "examples": examples(kind, told, filename),
        }
    return found
