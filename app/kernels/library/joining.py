"""Several relocatable objects as one, as `ld -r` makes it.

Sections of the same name follow each other. What one object defines and another refers to becomes local, but
for the names that users of the whole see.

Source: System V gABI, chapter 4.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from app.kernels.library.elf import (
    ALLOC,
    EXECUTE,
    GLOBAL,
    NOBITS,
    SECTION_SYMBOL,
    WRITE,
    LinkError,
    RelocatableObject,
    Relocation,
    Section,
    Symbol,
    written,
)


def joined(
    objects: Sequence[bytes], exports: Collection[str], into: Callable[[Section], str] = lambda s: s.name
) -> bytes:
    """One relocatable object of several.

    Args:
        objects: all for one processor.
        exports: names that remain global; others are local, or undefined where no object has them.
        into: the name of the section of the result that a section becomes part of; empty drops it.

    Raises:
        LinkError: two objects define the same name.
    """
    return _Joining([RelocatableObject(raw) for raw in objects], exports, into).joined()


@dataclass
class _Part:
    """A section of the result."""

    number: int
    name: str
    first: Section
    content: bytearray = field(default_factory=bytearray)
    size: int = 0
    alignment: int = 1
    relocations: list[Relocation] = field(default_factory=list)

    def add(self, section: Section) -> int:
        """The offset of a section that becomes part of it."""
        offset = -(-self.size // section.alignment) * section.alignment
        if section.name == ".eh_frame" and offset != self.size:
            raise LinkError("the exception frames of an object leave a gap, which would end their list")
        if section.kind != NOBITS:
            self.content += bytes(offset - self.size) + section.content
        self.size, self.alignment = offset + section.size, max(self.alignment, section.alignment)
        return offset

    def section(self) -> Section:
        first = self.first
        flags = first.flags & (WRITE | ALLOC | EXECUTE)
        content, relocations = bytes(self.content), tuple(self.relocations)
        return Section(self.name, first.kind, flags, self.size, self.alignment, content, relocations)


class _Joining:
    def __init__(
        self,
        objects: Sequence[RelocatableObject],
        exports: Collection[str],
        into: Callable[[Section], str],
    ) -> None:
        self._objects, self._exports, self._into = objects, exports, into
        self._parts: dict[str, _Part] = {}
        # Part and offset of every section, by the number of the object and of the section in it.
        self._placed: dict[tuple[int, int], tuple[_Part, int]] = {}
        self._symbols: list[Symbol] = []

    def joined(self) -> bytes:
        for n, each in enumerate(self._objects):
            for index, section in each.sections.items():
                name = self._into(section)
                if name:
                    part = self._parts.setdefault(name, _Part(len(self._parts) + 1, name, section))
                    self._placed[n, index] = part, part.add(section)
        local, named = self._numbered()
        for n, each in enumerate(self._objects):
            for index, section in each.sections.items():
                if (n, index) not in self._placed:
                    continue
                part, offset = self._placed[n, index]
                for r in section.relocations:
                    symbol, addend = self._resolved(n, each.symbols[r.symbol], r, local, named)
                    part.relocations.append(Relocation(r.offset + offset, symbol, r.kind, addend))
        sections = [part.section() for part in self._parts.values()]
        return written(sections, self._symbols, self._objects[0].machine)

    def _numbered(self) -> tuple[dict[tuple[int, int], int], dict[str, int]]:
        """Numbers of the symbols: local ones by object and index, others by name."""
        local: dict[tuple[int, int], int] = {}
        for part in self._parts.values():  # the symbols of the sections, by their numbers
            self._symbols.append(Symbol("", SECTION_SYMBOL, part.number, 0, 0))
        defined: dict[str, Symbol] = {}
        for n, each in enumerate(self._objects):
            for index, symbol in enumerate(each.symbols):
                if not symbol.name or (n, symbol.section) not in self._placed:
                    continue
                if symbol.info >> 4 != GLOBAL:
                    self._symbols.append(self._moved(n, symbol))
                    local[n, index] = len(self._symbols)
                elif symbol.name in defined:
                    raise LinkError(f"two objects define {symbol.name!r}")
                else:
                    defined[symbol.name] = self._moved(n, symbol)
        hidden = {n: s._replace(info=s.info & 15, visibility=0) for n, s in defined.items()}
        rows = [(n, hidden[n]) for n in defined if n not in self._exports]
        rows += [(n, s) for n, s in defined.items() if n in self._exports]
        rows += [(s.name, s) for s in self._undefined(defined)]
        first = len(self._symbols) + 1
        self._symbols += [symbol for _, symbol in rows]
        return local, {name: number for number, (name, _) in enumerate(rows, first)}

    def _undefined(self, defined: Collection[str]) -> Iterable[Symbol]:
        """Symbols that no object defines, in the order of their names."""
        found = {s.name: s for each in self._objects for s in map(each.symbols.__getitem__, each.imports)}
        return [found[name] for name in sorted(found) if name not in defined]

    def _moved(self, number: int, symbol: Symbol) -> Symbol:
        part, offset = self._placed[number, symbol.section]
        return symbol._replace(section=part.number, value=symbol.value + offset)

    def _resolved(
        self,
        number: int,
        symbol: Symbol,
        relocation: Relocation,
        local: dict[tuple[int, int], int],
        named: dict[str, int],
    ) -> tuple[int, int]:
        """The symbol of a relocation and its addend, in the result."""
        if symbol.info & 15 == SECTION_SYMBOL:
            part, offset = self._placed[number, symbol.section]
            return part.number, relocation.addend + offset
        found = local.get((number, relocation.symbol))
        return (named[symbol.name] if found is None else found), relocation.addend
