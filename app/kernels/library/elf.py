"""Relocatable objects in ELF, 64 bit and little-endian: read and written.

Source: System V gABI, chapter 4.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from app.kernels.library.relocations import MACHINES, Machine

PAGE = 4096
SYMBOL = struct.Struct("<IBBHQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
RELA = struct.Struct("<QQq")
SEGMENT = struct.Struct("<IIQQQQQQ")
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bit, little-endian
RELOCATABLE, SHARED = 1, 3

PROGBITS, SYMTAB, STRTAB, RELA_TABLE, HASH, DYNAMIC, NOTE, NOBITS, DYNSYM = 1, 2, 3, 4, 5, 6, 7, 8, 11
VERSION_NEED, VERSIONS = 0x6FFFFFFE, 0x6FFFFFFF
WRITE, ALLOC, EXECUTE, INFO_LINK = 1, 2, 4, 0x40
GLOBAL, OBJECT, FUNCTION, SECTION_SYMBOL, HIDDEN = 1, 1, 2, 3, 2  # binding, types and visibility of symbols

# Parts of a shared library in the order of their addresses.
READ, CODE, RELRO, DATA, BSS, WEIGHTS = range(6)


class LinkError(Exception):
    """An object cannot become a library; the message says why."""


class Symbol(NamedTuple):
    """An entry of a symbol table; `section` 0 is undefined."""

    name: str
    info: int
    section: int
    value: int
    size: int
    visibility: int = 0


class Relocation(NamedTuple):
    """A place in a section that gets the address of a symbol."""

    offset: int
    symbol: int
    kind: int
    addend: int


@dataclass(frozen=True)
class Section:
    """A section of the object: its bytes and what is relocated in them."""

    name: str
    kind: int
    flags: int
    size: int
    alignment: int
    content: bytes
    relocations: tuple[Relocation, ...]

    @property
    def part(self) -> int:
        """READ, CODE, RELRO, DATA or BSS."""
        if self.flags & EXECUTE:
            return CODE
        if not self.flags & WRITE:
            return READ
        if self.kind == NOBITS:
            return BSS
        return RELRO if self.name.startswith((".data.rel.ro", ".init_array")) else DATA


class RelocatableObject:
    """A relocatable object file."""

    def __init__(self, raw: bytes) -> None:
        head = HEADER.unpack_from(raw)
        machine = next((m for m in MACHINES.values() if m.number == head[2]), None)
        if head[0][:6] != MAGIC[:6] or head[1] != RELOCATABLE or machine is None:
            raise LinkError(f"expected a relocatable object for {' or '.join(MACHINES)}")
        self.machine = machine
        self._raw = raw
        heads = [SECTION.unpack_from(raw, head[6] + i * head[11]) for i in range(head[12])]
        names = heads[head[13]]
        table = next(h for h in heads if h[1] == SYMTAB)
        strings = heads[table[6]]
        self.symbols = tuple(
            Symbol(self._text(strings, name), info, index, value, size, other)
            for name, info, other, index, value, size in SYMBOL.iter_unpack(self._bytes(table))
        )
        relocations = {
            h[7]: tuple(
                Relocation(offset, info >> 32, info & 0xFFFFFFFF, addend)
                for offset, info, addend in RELA.iter_unpack(self._bytes(h))
            )
            for h in heads
            if h[1] == RELA_TABLE
        }
        self.sections = {
            i: Section(
                self._text(names, h[0]),
                h[1],
                h[2],
                h[5],
                max(h[8], 1),
                self._bytes(h),
                relocations.get(i, ()),
            )
            for i, h in enumerate(heads)
            if h[2] & ALLOC and h[5]
        }

    def _bytes(self, head: tuple[int, ...]) -> bytes:
        return b"" if head[1] == NOBITS else self._raw[head[4] : head[4] + head[5]]

    def _text(self, table: tuple[int, ...], offset: int) -> str:
        start = table[4] + offset
        return self._raw[start : self._raw.index(b"\0", start)].decode()

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Symbols that are relocated against, in order."""
        return tuple(sorted({r.symbol for s in self.sections.values() for r in s.relocations}))

    @cached_property
    def imports(self) -> tuple[int, ...]:
        """Those that the object does not define, in the order of their names."""
        return tuple(sorted((i for i in self.used if not self.symbols[i].section), key=self._name))

    def _name(self, index: int) -> str:
        return self.symbols[index].name

    @cached_property
    def through_table(self) -> tuple[int, ...]:
        """Symbols whose addresses the code loads from the global offset table."""
        kinds = self.machine.through_table
        loaded = {r.symbol for s in self.sections.values() for r in s.relocations if r.kind in kinds}
        return tuple(sorted(loaded | set(self.imports)))


class StringTable:
    """A string table."""

    def __init__(self) -> None:
        self.content = bytearray(b"\0")
        self._at: dict[str, int] = {"": 0}

    def put(self, text: str) -> int:
        """Offset of a string, added where it is new."""
        if text not in self._at:
            self._at[text] = len(self.content)
            self.content += text.encode() + b"\0"
        return self._at[text]


def data_object(
    symbol: str,
    content: bytes,
    machine: Machine,
    name: str = ".rodata.weights",
    alignment: int = PAGE,
) -> bytes:
    """A relocatable object that defines one symbol: read-only bytes in a section of that name."""
    section = Section(name, PROGBITS, ALLOC, len(content), alignment, content, ())
    # Hidden: another library of the same program may have the symbol too.
    return written([section], [Symbol(symbol, GLOBAL << 4 | OBJECT, 1, 0, len(content), HIDDEN)], machine)


def written(sections: Sequence[Section], symbols: Sequence[Symbol], machine: Machine) -> bytes:
    """A relocatable object.

    Args:
        sections: a symbol's `section` counts them from 1, a relocation's `symbol` the symbols from 1.
        symbols: local ones first.
        machine: that runs it.
    """
    names, strings = StringTable(), StringTable()
    table = bytearray(SYMBOL.size)
    for s in symbols:
        table += SYMBOL.pack(strings.put(s.name), s.info, s.visibility, s.section, s.value, s.size)
    relocated = [(n, s) for n, s in enumerate(sections, 1) if s.relocations]
    at = 1 + len(sections) + len(relocated)  # of the symbol table
    rows = [(s.name, s.kind, s.flags, s.content, s.size, 0, 0, s.alignment, 0) for s in sections]
    for n, section in relocated:
        content = b"".join(
            RELA.pack(r.offset, r.symbol << 32 | r.kind, r.addend) for r in section.relocations
        )
        rows.append(
            (f".rela{section.name}", RELA_TABLE, INFO_LINK, content, len(content), at, n, 8, RELA.size)
        )
    first_global = 1 + sum(not s.info >> 4 for s in symbols)
    rows += [
        (".symtab", SYMTAB, 0, bytes(table), len(table), at + 1, first_global, 8, SYMBOL.size),
        (".strtab", STRTAB, 0, bytes(strings.content), len(strings.content), 0, 0, 1, 0),
        (".note.GNU-stack", PROGBITS, 0, b"", 0, 0, 0, 1, 0),
    ]
    for name in (*(row[0] for row in rows), ".shstrtab"):
        names.put(name)
    rows.append((".shstrtab", STRTAB, 0, bytes(names.content), len(names.content), 0, 0, 1, 0))
    out, heads = bytearray(HEADER.size), bytearray(SECTION.size)
    for name, kind, flags, body, size, link, info, alignment, entry in rows:
        out += bytes(-len(out) % alignment)
        heads += SECTION.pack(names.put(name), kind, flags, 0, len(out), size, link, info, alignment, entry)
        out += body
    out += bytes(-len(out) % 8)
    head = (MAGIC, RELOCATABLE, machine.number, 1, 0, 0, len(out), 0, HEADER.size, 0, 0, SECTION.size)
    HEADER.pack_into(out, 0, *head, len(rows) + 1, len(rows))
    return bytes(out + heads)
