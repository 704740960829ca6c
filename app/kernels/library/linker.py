"""Shared libraries for Linux from one relocatable object, without a linker.

The file has four loaded parts: read-only, code, written, and the weights, which start on a page of their own.
Functions of the C library are bound when the library is loaded, each to a version that glibc 2.17 has.

Source: System V ABI, AMD64 supplement 1.0, sections 4.4 and 5; LSB 5.0 core, chapter 10 (symbol versions,
exception frames).
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.kernels.library.c_library import imported
from app.kernels.library.elf import (
    ALLOC,
    BSS,
    CODE,
    DATA,
    DYNAMIC,
    DYNSYM,
    EXECUTE,
    HASH,
    HEADER,
    MAGIC,
    NOBITS,
    NOTE,
    PROGBITS,
    READ,
    RELA,
    RELA_TABLE,
    RELRO,
    SECTION,
    SEGMENT,
    SHARED,
    STRTAB,
    SYMBOL,
    VERSION_NEED,
    VERSIONS,
    WEIGHTS,
    WRITE,
    LinkError,
    RelocatableObject,
    Relocation,
    Section,
    StringTable,
)
from app.kernels.library.relocations import Site

MARGIN = 4096  # bytes behind the weights that may be read


@dataclass
class _Piece:
    """A section of the library."""

    name: str
    kind: int
    flags: int
    content: bytearray
    alignment: int = 8
    size: int = 0  # where it has no content
    entry: int = 0
    link: str = ""
    info: int = 0
    address: int = 0

    @property
    def length(self) -> int:
        return self.size or len(self.content)


@dataclass
class _Layout:
    """The pieces of a library in the order of their addresses, by part, each of which begins on a page."""

    page: int
    parts: dict[int, list[_Piece]] = field(default_factory=lambda: {p: [] for p in (*range(5), WEIGHTS)})

    def add(self, part: int, piece: _Piece) -> _Piece:
        self.parts[part].append(piece)
        return piece

    def place(self, start: int) -> int:
        """Give every piece its address, which is its offset in the file too; returns the end."""
        at = start
        for part in (READ, CODE, RELRO, DATA, BSS, WEIGHTS):
            if part != READ:
                at = _up(at, self.page)
            for piece in self.parts[part]:
                at = piece.address = _up(at, piece.alignment)
                at += piece.length
        return at

    def span(self, *parts: int) -> tuple[int, int]:
        """First and last address (half-open) of parts."""
        pieces = [p for part in parts for p in self.parts[part]]
        return (pieces[0].address, pieces[-1].address + pieces[-1].length) if pieces else (0, 0)

    @property
    def pieces(self) -> list[_Piece]:
        return [p for part in (READ, CODE, RELRO, DATA, BSS, WEIGHTS) for p in self.parts[part]]


@dataclass(frozen=True, slots=True)
class Weights:
    """Constants of a library.

    Attributes:
        symbol: that the object refers to.
        parts: the bytes that it names, in pieces.
        digest: of the bytes.
    """

    symbol: str
    parts: Sequence[bytes | memoryview]
    digest: bytes


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """A shared library.

    Attributes:
        parts: the file, in pieces.
        weights_at: offset of the weights in the file.
        weights_bytes: of the weights, with the margin behind them.
    """

    parts: Sequence[bytes | memoryview]
    weights_at: int
    weights_bytes: int

    @property
    def content(self) -> bytes:
        """The file in one piece."""
        return b"".join(self.parts)


def shared_library(obj: bytes, exports: Sequence[str], soname: str, weights: Weights) -> SharedLibrary:
    """A shared library.

    Args:
        obj: relocatable object, position-independent, small code model.
        exports: names of the functions that users of the library see.
        soname: name that the library is linked by.
        weights: what it holds beside the object.

    Raises:
        LinkError: the object calls what is unknown to `imported`, or has an unknown relocation.
    """
    return _Linker(RelocatableObject(obj), exports, soname, weights).linked()


class _Linker:
    def __init__(
        self,
        obj: RelocatableObject,
        exports: Sequence[str],
        soname: str,
        weights: Weights,
    ) -> None:
        self.obj = obj
        self.given = weights
        self.imports = [i for i in obj.imports if obj.symbols[i].name != self.given.symbol]
        found = {i: imported(obj.symbols[i].name, obj.machine.architecture) for i in self.imports}
        self.bound = {i: pair for i, pair in found.items() if pair is not None}
        unknown = sorted(obj.symbols[i].name for i, pair in found.items() if pair is None)
        if unknown:
            raise LinkError(
                f"the kernels call functions that no C library is known to have: {', '.join(unknown)}"
            )
        self.exports = [
            i for i, s in enumerate(obj.symbols) if s.name in exports and s.section and s.info >> 4
        ]
        self.layout = _Layout(obj.machine.page)
        self.strings = StringTable()
        self._dynamic_symbols = [*self.imports, *self.exports]
        self._make_pieces(soname)

    def _make_pieces(self, soname: str) -> None:
        self._make_tables(soname)
        self.frames: _Piece | None = None
        self.placed: dict[int, _Piece] = {}
        for index, section in sorted(self.obj.sections.items()):
            self.placed[index] = self.layout.add(section.part, _copy(section))
            if section.name == ".eh_frame":
                self.frames = self.placed[index]
        if self.frames is not None:
            self.frames.content += bytes(4)  # the end of the list
            size = 12 + 8 * len(_frames(self.frames.content))
            self.frame_table = self._add(READ, ".eh_frame_hdr", PROGBITS, size, alignment=4)
        self.stubs = self._add(CODE, ".plt", PROGBITS, 16 * len(self.imports), EXECUTE, alignment=16)
        self.got = self._add(RELRO, ".got", PROGBITS, 8 * len(self._table), WRITE)
        size = 16 * (16 + len(self.needed))
        self.dynamic = self._add(RELRO, ".dynamic", DYNAMIC, size, WRITE, entry=16, link=".dynstr")
        self.weights = self._add(WEIGHTS, ".stowplan.weights", PROGBITS, 0, alignment=self.layout.page)
        # Loads whose masked lanes lie behind the last array read the margin.
        self.weights.size = sum(map(len, self.given.parts)) + MARGIN

    def _make_tables(self, soname: str) -> None:
        """Tables that the loader reads first: names, versions, relocations."""
        names = [self.obj.symbols[i].name for i in self._dynamic_symbols]
        for name in names:
            self.strings.put(name)
        needed = sorted({library for library, _ in self.bound.values()})
        self.soname, self.needed = self.strings.put(soname), [self.strings.put(n) for n in needed]
        versions, need = self._versions(needed)
        count = len(names) + 1
        add = self._add
        self.note = add(READ, ".note.gnu.build-id", NOTE, 36, alignment=4)
        self.hash = add(READ, ".hash", HASH, 4 * (3 + count), entry=4, link=".dynsym")
        self.dynsym = add(READ, ".dynsym", DYNSYM, 24 * count, entry=24, link=".dynstr", info=1)
        self.dynstr = add(READ, ".dynstr", STRTAB, 0, alignment=1)
        self.dynstr.content = self.strings.content
        self.versions = add(READ, ".gnu.version", VERSIONS, 0, alignment=2, entry=2, link=".dynsym")
        self.versions.content += versions
        self.need = add(READ, ".gnu.version_r", VERSION_NEED, 0, link=".dynstr", info=len(needed))
        self.need.content += need
        kind = self.obj.machine.absolute
        absolute = sum(r.kind == kind for s in self.obj.sections.values() for r in s.relocations)
        size = 24 * (absolute + len(self._table))
        self.rela = add(READ, ".rela.dyn", RELA_TABLE, size, entry=24, link=".dynsym")

    def _add(
        self,
        part: int,
        name: str,
        kind: int,
        size: int,
        flags: int = 0,
        *,
        alignment: int = 8,
        entry: int = 0,
        link: str = "",
        info: int = 0,
    ) -> _Piece:
        content = bytearray(size)
        piece = _Piece(name, kind, ALLOC | flags, content, alignment, 0, entry, link, info)
        return self.layout.add(part, piece)

    @property
    def _table(self) -> list[int]:
        """Symbols in the global offset table."""
        return list(self.obj.through_table)

    def _versions(self, needed: Sequence[str]) -> tuple[bytearray, bytearray]:
        """Contents of .gnu.version and .gnu.version_r."""
        wanted = [self.bound[i] for i in self.imports]
        pairs = sorted(set(wanted))
        numbers = {pair: n for n, pair in enumerate(pairs, 2)}  # 0 is local, 1 the library's own
        table = struct.pack(
            f"<{len(wanted) + 1 + len(self.exports)}H",
            0,
            *(numbers[p] for p in wanted),
            *(1 for _ in self.exports),
        )
        need = bytearray()
        for i, library in enumerate(needed):
            own = [p for p in pairs if p[0] == library]
            last = i + 1 == len(needed)
            size = 16 + 16 * len(own)
            need += struct.pack("<HHIII", 1, len(own), self.strings.put(library), 16, 0 if last else size)
            for j, pair in enumerate(own):
                following = 0 if j + 1 == len(own) else 16
                need += struct.pack(
                    "<IHHII", _sysv_hash(pair[1]), 0, numbers[pair], self.strings.put(pair[1]), following
                )
        return bytearray(table), need

    def linked(self) -> SharedLibrary:
        """The library."""
        heads = 9
        self.layout.place(HEADER.size + heads * SEGMENT.size)
        self._bind()
        self._write_symbols()
        if self.frames is not None:
            self._write_frame_table(self.frames)
        self._write_dynamic()
        segments = self._segments()
        return self._file(segments + [(0, 0, 0, 0, 0, 0)] * (heads - len(segments)))

    def _address(self, symbol: int) -> int:
        found = self.obj.symbols[symbol]
        if found.name == self.given.symbol:
            return self.weights.address
        return self.placed[found.section].address + found.value

    def _bind(self) -> None:
        """Apply the relocations; what only the loader knows goes into .rela.dyn."""
        machine = self.obj.machine
        slot = {s: self.got.address + 8 * n for n, s in enumerate(self._table)}
        stub = {s: self.stubs.address + 16 * n for n, s in enumerate(self.imports)}
        number = {s: n for n, s in enumerate(self._dynamic_symbols, 1)}
        later: list[tuple[int, int, int]] = []
        for n, symbol in enumerate(self.imports):
            self.stubs.content[16 * n : 16 * n + 16] = machine.stub(stub[symbol], slot[symbol])
        for symbol in self._table:
            later.append(
                (slot[symbol], number[symbol] << 32 | machine.bound, 0)
                if symbol in stub
                else (slot[symbol], machine.relative, self._address(symbol))
            )
        for index, piece in self.placed.items():
            for r in self.obj.sections[index].relocations:
                at = piece.address + r.offset
                if r.kind == machine.absolute:
                    later.append(
                        (at, number[r.symbol] << 32 | machine.absolute, r.addend)
                        if r.symbol in stub
                        else (at, machine.relative, self._address(r.symbol) + r.addend)
                    )
                    continue
                target = stub[r.symbol] if r.symbol in stub else self._address(r.symbol)
                self._put(piece, r, Site(at, target + r.addend, slot.get(r.symbol, 0) + r.addend))
        # Relative ones first: the loader counts on it (DT_RELACOUNT).
        later.sort(key=lambda r: (r[1] != machine.relative, r))
        self.relative = sum(r[1] == machine.relative for r in later)
        for n, entry in enumerate(later):
            RELA.pack_into(self.rela.content, 24 * n, *entry)

    def _put(self, piece: _Piece, relocation: Relocation, site: Site) -> None:
        field = self.obj.machine.fields.get(relocation.kind)
        if field is None:
            name = self.obj.symbols[relocation.symbol].name
            raise LinkError(f"relocation of type {relocation.kind} against {name!r} in {piece.name}")
        form, content = field
        (old,) = struct.unpack_from(form, piece.content, relocation.offset)
        try:
            struct.pack_into(form, piece.content, relocation.offset, content(old, site))
        except struct.error as cause:
            raise LinkError(f"{piece.name} lies too far from what it refers to") from cause

    def _write_symbols(self) -> None:
        names = [p.name for p in self.layout.pieces]
        for n, index in enumerate(self._dynamic_symbols, 1):
            symbol = self.obj.symbols[index]
            at, section = 0, 0
            if symbol.section:
                at = self._address(index)
                section = 1 + names.index(self.placed[symbol.section].name)
            SYMBOL.pack_into(
                self.dynsym.content, 24 * n, self.strings.put(symbol.name), 0x12, 0, section, at, symbol.size
            )
        # One bucket: a chain through all symbols.
        count = len(self._dynamic_symbols) + 1
        chain = [0, *(i + 1 for i in range(1, count - 1)), 0][:count]
        struct.pack_into(f"<{3 + count}I", self.hash.content, 0, 1, count, min(1, count - 1), *chain)

    def _write_frame_table(self, frames: _Piece) -> None:
        """The table by which unwinders search .eh_frame: pairs of function and frame, in order."""
        base = self.frame_table.address
        pairs = []
        for entry, begins in _frames(frames.content):
            (distance,) = struct.unpack_from("<i", frames.content, begins)
            pairs.append((frames.address + begins + distance - base, frames.address + entry - base))
        numbers = [number for pair in sorted(pairs) for number in pair]
        # Version 1; pointer pcrel sdata4, count udata4, table datarel sdata4.
        self.frame_table.content[:] = struct.pack(
            f"<4BiI{len(numbers)}i", 1, 0x1B, 0x03, 0x3B, frames.address - (base + 4), len(pairs), *numbers
        )

    def _write_dynamic(self) -> None:
        tags = [
            *((1, n) for n in self.needed),
            (14, self.soname),
            (4, self.hash.address),
            (5, self.dynstr.address),
            (6, self.dynsym.address),
            (10, len(self.dynstr.content)),
            (11, SYMBOL.size),
            (7, self.rela.address),
            (8, len(self.rela.content)),
            (9, RELA.size),
            (0x6FFFFFF9, self.relative),
            (0x6FFFFFF0, self.versions.address),
            (0x6FFFFFFE, self.need.address),
            (0x6FFFFFFF, len(self.needed)),
            (30, 8),  # BIND_NOW
            (0x6FFFFFFB, 9),  # NOW, NODELETE: helper threads may be in the code when it is closed
            (0, 0),
        ]
        for n, tag in enumerate(tags):
            struct.pack_into("<QQ", self.dynamic.content, 16 * n, *tag)

    def _segments(self) -> list[tuple[int, ...]]:
        """Type, flags, address, bytes in the file, bytes in memory, alignment."""
        span, page = self.layout.span, self.layout.page
        read, code, weights = span(READ), span(CODE), span(WEIGHTS)
        relro, written, memory = span(RELRO), span(RELRO, DATA), span(RELRO, DATA, BSS)
        found: list[tuple[int, ...]] = [
            (1, 4, 0, read[1], read[1], page),
            (1, 5, code[0], code[1] - code[0], code[1] - code[0], page),
            (1, 6, written[0], written[1] - written[0], memory[1] - memory[0], page),
            (1, 4, weights[0], weights[1] - weights[0], weights[1] - weights[0], page),
            (2, 6, self.dynamic.address, len(self.dynamic.content), len(self.dynamic.content), 8),
            (4, 4, self.note.address, len(self.note.content), len(self.note.content), 4),
            (0x6474E551, 6, 0, 0, 0, 16),  # the stack is not executable
            (0x6474E552, 4, relro[0], relro[1] - relro[0], _up(relro[1], page) - relro[0], 1),
        ]
        if self.frames is not None:
            size = len(self.frame_table.content)
            found.append((0x6474E550, 4, self.frame_table.address, size, size, 4))
        return found

    def _file(self, segments: Sequence[tuple[int, ...]]) -> SharedLibrary:
        pieces = self.layout.pieces
        names = StringTable()
        weights = self.weights
        out = bytearray(weights.address)
        for piece in pieces:
            out[piece.address : piece.address + len(piece.content)] = piece.content
        # The id is a digest of everything else.
        note = struct.pack("<III4s", 4, 20, 3, b"GNU\0")
        digest = hashlib.sha1(out + self.given.digest, usedforsecurity=False).digest()
        out[self.note.address : self.note.address + 36] = note + digest
        order = {p.name: n for n, p in enumerate(pieces, 1)}
        table = bytearray(SECTION.size)
        for p in pieces:
            head = (names.put(p.name), p.kind, p.flags, p.address, p.address, p.length)
            table += SECTION.pack(*head, order.get(p.link, 0), p.info, p.alignment, p.entry)
        name = names.put(".shstrtab")
        strings_at = weights.address + weights.size
        table += SECTION.pack(name, STRTAB, 0, 0, strings_at, len(names.content), 0, 0, 1, 0)
        names.content += bytes(-(strings_at + len(names.content)) % 8)
        table_at = strings_at + len(names.content)
        number = self.obj.machine.number
        start = (MAGIC, SHARED, number, 1, 0, HEADER.size, table_at, 0, HEADER.size, SEGMENT.size)
        sections = len(pieces) + 2
        HEADER.pack_into(out, 0, *start, len(segments), SECTION.size, sections, sections - 1)
        for n, (kind, flags, at, in_file, in_memory, alignment) in enumerate(segments):
            SEGMENT.pack_into(
                out, HEADER.size + n * SEGMENT.size, kind, flags, at, at, at, in_file, in_memory, alignment
            )
        parts = (bytes(out), *self.given.parts, bytes(MARGIN), bytes(names.content + table))
        return SharedLibrary(parts, weights.address, weights.size)


def _copy(section: Section) -> _Piece:
    """A section of the object as one of the library."""
    size = section.size if section.kind == NOBITS else 0
    kind = section.kind if section.kind in (NOBITS, NOTE) else PROGBITS
    flags = section.flags & (WRITE | ALLOC | EXECUTE)
    return _Piece(section.name, kind, flags, bytearray(section.content), section.alignment, size)


def _frames(content: bytes | bytearray) -> list[tuple[int, int]]:
    """Offsets of the frame descriptions in .eh_frame, and of the address of the function in each."""
    found, at = [], 0
    while at + 4 <= len(content):
        (length,) = struct.unpack_from("<I", content, at)
        if not length:
            break
        (common,) = struct.unpack_from("<I", content, at + 4)
        if common:  # zero marks what several share
            found.append((at, at + 8))
        at += 4 + length
    return found


def _sysv_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
