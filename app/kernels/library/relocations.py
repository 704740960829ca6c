"""Machines of ELF files: what their relocations put where, and the code that calls through a table.

Source: System V ABI, AMD64 supplement 1.0, section 4.4; ELF for the Arm 64-bit Architecture (AAELF64),
section 5.7; Arm Architecture Reference Manual for A-profile, section C6.2 (ADRP, ADD, LDR, B, BL, BR).
"""

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias


class Site(NamedTuple):
    """Addresses of a relocation: of its field, of its symbol, and of the symbol's entry in the table.

    The last two contain the addend; where the symbol has no entry the last means nothing.
    """

    at: int
    target: int
    entry: int


# The new content of a field, out of its old one.
Field: TypeAlias = tuple[str, Callable[[int, Site], int]]


class Machine(NamedTuple):
    """A machine as ELF files name it.

    Attributes:
        architecture: as LLVM names it.
        number: in the head of a file.
        page: bytes of the largest pages that its systems use.
        absolute, bound, relative: relocations for the loader: to the address of a symbol, to the same in a
            table, and by how far the file was moved.
        fields: struct's format and the content, by the number of a relocation.
        through_table: those whose code loads the address from the global offset table.
        stub: code at an address that jumps to where an entry of the table says; 16 bytes.
    """

    architecture: str
    number: int
    page: int
    absolute: int
    bound: int
    relative: int
    fields: Mapping[int, Field]
    through_table: frozenset[int]
    stub: Callable[[int, int], bytes]


def _distance(_old: int, site: Site) -> int:
    return site.target - site.at


def _distance_of_entry(_old: int, site: Site) -> int:
    return site.entry - site.at


def _jump(at: int, entry: int) -> bytes:
    return struct.pack("<2si10x", b"\xff\x25", entry - (at + 6))


X86_64 = Machine(
    architecture="x86_64",
    number=62,
    page=1 << 12,
    absolute=1,
    bound=6,
    relative=8,
    fields={
        2: ("<i", _distance),  # PC32
        4: ("<i", _distance),  # PLT32
        24: ("<q", _distance),  # PC64
        **dict.fromkeys((9, 41, 42), ("<i", _distance_of_entry)),  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
    },
    through_table=frozenset((9, 41, 42)),
    stub=_jump,
)


def _within(number: int, bits: int) -> int:
    """A signed number in that many bits.

    Raises:
        struct.error: it does not fit, as where struct packs a number.
    """
    if not -1 << bits - 1 <= number < 1 << bits - 1:
        raise struct.error(f"{number} in {bits} bits")
    return number & (1 << bits) - 1


def _pages(old: int, to: int, at: int) -> int:
    """ADRP: pages of 4 KiB between two addresses."""
    pages = _within((to >> 12) - (at >> 12), 21)
    return old & 0x9F00001F | (pages & 3) << 29 | pages >> 2 << 5


def _low(old: int, address: int, unit: int) -> int:
    """ADD, LDR and STR: an address within its page, in units of what is loaded."""
    return old & ~(0xFFF << 10) | (address & 0xFFF) // unit << 10


def _to_page(old: int, site: Site) -> int:
    return _pages(old, site.target, site.at)


def _to_page_of_entry(old: int, site: Site) -> int:
    return _pages(old, site.entry, site.at)


def _entry_in_page(old: int, site: Site) -> int:
    return _low(old, site.entry, 8)


def _in_page(unit: int) -> Field:
    return "<I", lambda old, site: _low(old, site.target, unit)


def _branch(old: int, site: Site) -> int:
    return old & 0xFC000000 | _within((site.target - site.at) >> 2, 26)


def _far_branch(at: int, entry: int) -> bytes:
    """Code: adrp x16, entry; ldr x17, [x16, entry]; br x17; nop."""
    return struct.pack(
        "<4I", _pages(0x90000010, entry, at), _low(0xF9400211, entry, 8), 0xD61F0220, 0xD503201F
    )


AARCH64 = Machine(
    architecture="aarch64",
    number=183,
    page=1 << 16,
    absolute=257,
    bound=1025,
    relative=1027,
    fields={
        260: ("<q", _distance),  # PREL64
        261: ("<i", _distance),  # PREL32
        275: ("<I", _to_page),  # ADR_PREL_PG_HI21
        277: _in_page(1),  # ADD_ABS_LO12_NC
        278: _in_page(1),  # LDST8_ABS_LO12_NC, and those of more bits
        284: _in_page(2),
        285: _in_page(4),
        286: _in_page(8),
        299: _in_page(16),
        282: ("<I", _branch),  # JUMP26
        283: ("<I", _branch),  # CALL26
        311: ("<I", _to_page_of_entry),  # ADR_GOT_PAGE
        312: ("<I", _entry_in_page),  # LD64_GOT_LO12_NC
    },
    through_table=frozenset((311, 312)),
    stub=_far_branch,
)
MACHINES: Mapping[str, Machine] = {machine.architecture: machine for machine in (X86_64, AARCH64)}
