"""A program for a device without an operating system: one object, whose memory is arrays in named sections.

A run is one function that calls the kernels in turn; addresses and jumps are in its code.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.export.image import (
    ARENA,
    BUFFERS,
    WEIGHTS,
    Image,
    JumpRow,
    Place,
    Row,
    described,
    description,
    held,
    image,
    onnx_type,
)
from app.engine.export.package import Content, archive_name, read_me, write_archive
from app.engine.export.processors import processor_of
from app.engine.types.errors import ExportError
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.library.elf import (
    BSS,
    CODE,
    DATA,
    READ,
    RELRO,
    LinkError,
    RelocatableObject,
    Section,
    data_object,
)
from app.kernels.library.joining import joined
from app.kernels.library.kernel_objects import static_objects
from app.kernels.library.object_file import Emitter
from app.kernels.library.relocations import MACHINES
from app.kernels.library.stack_depth import deepest

FAILED = 7  # STOWPLAN_KERNEL_FAILED of model.h
ALIGNMENT = 64
SECTION = ".stowplan."
# Sections of the object by the part of a library that those of the kernels would be in.
_PARTS: Mapping[int, str] = {READ: "constants", RELRO: "data", CODE: "code", DATA: "data", BSS: "zeroed"}
_ARRAYS: Mapping[int, str] = {ARENA: "arena", BUFFERS: "io", WEIGHTS: "weights"}
FLASH, RAM = ("code", "constants", "weights", "data"), ("arena", "io", "zeroed", "data")
# C's names of element types, by onnx.TensorProto.DataType; 16-bit floats are their bits.
_C_TYPES: Mapping[int, str] = {
    1: "float",
    2: "uint8_t",
    3: "int8_t",
    4: "uint16_t",
    5: "int16_t",
    6: "int32_t",
    7: "int64_t",
    9: "uint8_t",
    10: "uint16_t",
    11: "double",
    12: "uint32_t",
    13: "uint64_t",
    16: "uint16_t",
}
_HEADER = """/* {title}, compiled by Stowplan for {processor}.
 *
 * One inference at a time, on the calling thread; nothing is allocated. Needs: {needs}.
 * The program fills the inputs, calls {name}_run, and reads the outputs, which stay until the next run.
 * The processor needs, without being asked for them: {features}.
 * Sections, which a linker script may place:
{sections}
 * Stack of {name}_run: at most {stack} byte{beside}.
 */
#ifndef STOWPLAN_{upper}_H
#define STOWPLAN_{upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{arrays}

{values}

/* 0, or {failed} where a kernel failed. */
int {name}_run(void);

#ifdef __cplusplus
}}
#endif

#endif
"""
_EXAMPLE = """#include <stdio.h>

#include "{name}.h"

int main(void) {{
    /* Fill {upper}_INPUT_0, which has {upper}_INPUT_0_LENGTH elements. */
    int status = {name}_run();
    if (status) return status;
    printf("%g\\n", (double){upper}_OUTPUT_0[0]);
    return 0;
}}
"""
_READ_ME = """{name}: a model that Stowplan compiled for {processor}, without threads and operating system

    cc example.c {identifier}.o -o example

inputs
{inputs}
outputs
{outputs}

{identifier}.h describes the interface and the memory, metadata.json the model; manifest.json has the
SHA-256 of every file.
"""


@dataclass(frozen=True, slots=True)
class StaticProgram:
    """A program as one object.

    Attributes:
        name: an identifier of C, by which all of its names begin.
        code: the object.
        header, example: in C.
        metadata: description, with the bytes of each section and of the stack.
    """

    name: str
    code: bytes
    header: str
    example: str
    metadata: Mapping[str, object]


def static_program(program: Program, compiler: Compiler, title: str) -> StaticProgram:
    """The object of a program of one thread for the processor of its target.

    Args:
        program: of compiled kernels alone.
        compiler: where kernels come from, and whose cache has the objects; missing ones are made.
        title: of the model.

    Raises:
        ExportError: the program needs Python or several threads, or the depth of its stack is not known.
        TargetError: no kernels can be compiled for the target.
    """
    threads = program.compilation.options.threads
    if threads != 1:
        raise ExportError(
            f"the program is planned for {threads} threads; without an operating system there is one: "
            "ask for threads 1"
        )
    processor = processor_of(program.compilation.target)
    found = image(program)
    name = identifier(title)
    sizes = {ARENA: program.arena_bytes, BUFFERS: found.buffer_bytes, WEIGHTS: found.weights.size}
    try:
        objects, stacks = static_objects(found.symbols, compiler, processor)
        machine = MACHINES[processor.architecture]
        raises = any("stowplan_raised" in _names(each) for each in objects)
        text = _assembly(found, name, sizes, raises)
        emitter = Emitter(processor)
        stacks[f"{name}_run"] = emitter.stack_of_assembly(text, f"{name}_run")
        weights = b"".join(found.weights.parts)
        if weights:
            section = f"{SECTION}weights"
            objects.append(data_object(f"{name}_weights", weights, machine, section, ALIGNMENT))
        exports = [f"{name}_run", *(f"{name}_{_ARRAYS[space]}" for space, size in sizes.items() if size)]
        code = joined([emitter.of_assembly(text), *objects], exports, _section)
        stack = deepest(stacks, f"{name}_run")
    except LinkError as cause:
        raise ExportError(f"the program cannot be linked: {cause}") from cause
    obj = RelocatableObject(code)
    parts = dict.fromkeys((*FLASH, *RAM), 0)
    parts |= {s.name.removeprefix(SECTION): s.size for s in obj.sections.values()}
    told = description(found, title, processor) | {
        "identifier": name,
        "needs": [obj.symbols[i].name for i in obj.imports],
        "bytes": {
            **parts,
            "flash": sum(parts[part] for part in FLASH),
            "ram": sum(parts[part] for part in RAM),
            "stack at most": stack,
        },
    }
    return StaticProgram(name, code, _header(found, name, sizes, told), _example(name), told)


def identifier(title: str) -> str:
    """A model's name as an identifier of C."""
    name = re.sub(r"\W+", "_", title, flags=re.ASCII).strip("_").lower() or "model"
    return f"model_{name}" if name[0].isdigit() else name


def static_name(made: StaticProgram) -> str:
    """Name of the folder of an archive."""
    return f"{archive_name(made.metadata)}-static"


def static_archive(made: StaticProgram, into: IO[bytes]) -> None:
    """Write a `.tar.gz` with the object and its header."""
    files: dict[str, Content] = {
        f"{made.name}.o": [made.code],
        f"{made.name}.h": [made.header.encode()],
        "example.c": [made.example.encode()],
        "README": [read_me(_READ_ME, made.metadata).encode()],
    }
    write_archive(static_name(made), files, made.metadata, into)


def _names(content: bytes) -> set[str]:
    return {symbol.name for symbol in RelocatableObject(content).symbols}


def _section(section: Section) -> str:
    """The section of the result that one of an object becomes part of; tables for unwinding none."""
    if section.name == ".eh_frame":
        return ""
    if SECTION in section.name:
        return section.name.removeprefix(".bss")
    return SECTION + _PARTS[section.part]


def _assembly(found: Image, name: str, sizes: Mapping[int, int], raises: bool) -> str:
    """LLVM assembly of the arrays and of the function that runs the rows."""
    written = [
        f"@{name}_{_ARRAYS[space]} = global [{sizes[space]} x i8] zeroinitializer, "
        f'section ".bss{SECTION}{_ARRAYS[space]}", align {ALIGNMENT}'
        for space in (ARENA, BUFFERS)
        if sizes[space]
    ]
    if sizes[WEIGHTS]:
        written.append(f"@{name}_weights = external hidden constant i8")
    if raises:
        written.append("@stowplan_raised = external hidden global i32")
    arity = {row.kernel: len(row.arguments) for row in found.rows if isinstance(row, Row)}
    written += [f"declare hidden void @{k}({', '.join(['i64'] * (n + 3))})" for k, n in sorted(arity.items())]
    written.append(f"define i32 @{name}_run() nounwind {{")
    if raises:
        written.append("  store i32 0, ptr @stowplan_raised")
    for number, row in enumerate(found.rows):
        written += [f"  br label %row{number}", f"row{number}:"]
        if isinstance(row, JumpRow):
            written += _jump(name, number, row)
        else:
            numbers = [_address(name, place) for place in row.arguments]
            units = ["i64 0", f"i64 {row.units}", "i64 0"]  # begin, end, thread
            written.append(f"  call void @{row.kernel}({', '.join([*numbers, *units])})")
    written += [f"  br label %row{len(found.rows)}", f"row{len(found.rows)}:"]
    if raises:
        written += [
            "  %raised = load i32, ptr @stowplan_raised",
            "  %failed = icmp ne i32 %raised, 0",
            f"  %status = select i1 %failed, i32 {FAILED}, i32 0",
            "  ret i32 %status",
        ]
    else:
        written.append("  ret i32 0")
    return "\n".join([*written, "}", ""])


def _jump(name: str, number: int, row: JumpRow) -> Sequence[str]:
    """Instructions of a jump, which end where the next row follows."""
    flag = _pointer(name, row.arguments[0])
    return [
        f"  %flag{number} = load i64, ptr {flag}",
        f"  %goes{number} = icmp eq i64 %flag{number}, {row.expected}",
        f"  br i1 %goes{number}, label %row{number + row.displacement}, label %stays{number}",
        f"stays{number}:",
    ]


def _pointer(name: str, place: Place) -> str:
    return f"getelementptr (i8, ptr @{name}_{_ARRAYS[place.space]}, i64 {place.offset})"


def _address(name: str, place: Place) -> str:
    """An argument of a kernel: a number, or an address as one."""
    if place.space not in _ARRAYS:
        return f"i64 {place.offset}"
    return f"i64 ptrtoint (ptr {_pointer(name, place)} to i64)"


def _header(found: Image, name: str, sizes: Mapping[int, int], told: Mapping[str, object]) -> str:
    upper = name.upper()
    values: list[str] = []
    for kind, places in (("INPUT", found.inputs), ("OUTPUT", found.outputs)):
        for number, (value, place) in enumerate(places):
            macro = f"{upper}_{kind}_{number}"
            values += _value(value, place, macro, name, kind == "OUTPUT")
            if value in found.shapes and kind == "OUTPUT":
                values.append(_shape(found.shapes[value], macro, name))
    sections = told["bytes"]
    assert isinstance(sections, dict)
    needs = told["needs"]
    assert isinstance(needs, list)
    others = [each for each in needs if each != "memcpy"]
    kept = {"flash", "ram", "stack at most"}
    arrays = [
        f"extern {'const ' if space == WEIGHTS else ''}unsigned char {name}_{_ARRAYS[space]}[{size}];"
        for space, size in sizes.items()
        if size
    ]
    return _HEADER.format(
        title=_comment(str(told["name"])),
        processor=_comment(str(told["processor"])),
        features=" ".join(f[1:] for f in str(told["features"]).split(",") if f.startswith("+")),
        name=name,
        upper=upper,
        needs=", ".join(needs) or "no function of a C library",
        sections="\n".join(
            f" *   {SECTION}{part:<10} {size:>10} byte"
            for part, size in sections.items()
            if size and part not in kept
        ),
        stack=sections["stack at most"],
        beside=f", and that of {', '.join(others)}" if others else "",
        arrays="\n".join(arrays),
        values="\n".join(values),
        failed=FAILED,
    )


def _value(value: ir.Value, place: Place, macro: str, name: str, is_output: bool) -> Sequence[str]:
    """Lines of the header for an input or output: its address as an array of C's type, and its elements."""
    kind = _C_TYPES[onnx_type(value).value]
    constant = "const " if is_output else ""
    told = described(value)
    about = _comment(f"{told['dtype']}{told['shape']} {told['name']}")
    return [
        f"/* {about} */",
        f"#define {macro} (({constant}{kind} *)({name}_{_ARRAYS[place.space]} + {place.offset}))",
        f"#define {macro}_LENGTH {graph.elements(held(value))}",
    ]


def _shape(place: Place, macro: str, name: str) -> str:
    """Line of the header for the shape of an output that is a prefix."""
    address = f"{name}_{_ARRAYS[place.space]} + {place.offset}"
    return (
        f"#define {macro}_SHAPE ((const int64_t *)({address})) /* of the last run; at most the one above */"
    )


def _comment(text: str) -> str:
    """A text on one line that ends no comment of C and begins none."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


def _example(name: str) -> str:
    return _EXAMPLE.format(name=name, upper=name.upper())
