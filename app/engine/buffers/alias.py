"""Alias classes: values that share bytes, and when two classes may become one."""

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import View
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.placement import Space
from app.engine.core.streams.stream_group import STREAM

ALIGNMENT = 64  # byte: kernels may assume that a value begins on a cache line


class Extent(NamedTuple):
    """Bytes [start, end) that the steps which make a value write."""

    start: int
    end: int
    value: ir.Value


@dataclass(slots=True)
class AliasClass:
    """Values in one stretch of memory: parts of each other, or users of the same bytes one after another.

    Attributes:
        places: byte where each value begins, in a frame of the class.
        owner: the graph input, graph output or initializer whose memory this is; None in the arena.
        start, end: bytes that the values cover, half-open.
        first: step that writes first; -1 where the bytes are there before the first step.
        last: step that reads or writes last.
        written: disjoint, ordered; a value that is made of others, or is read from another, is not in it.
    """

    places: dict[ir.Value, int]
    owner: ir.Value | None
    start: int
    end: int
    first: int
    last: int
    written: list[Extent]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole class."""
        return self.end - self.start

    def moved(self, by: int) -> "AliasClass":
        """The same class in a frame that begins `by` bytes earlier."""
        return AliasClass(
            {v: at + by for v, at in self.places.items()},
            self.owner,
            self.start + by,
            self.end + by,
            self.first,
            self.last,
            [Extent(e.start + by, e.end + by, e.value) for e in self.written],
        )


class AliasClasses:
    """A partition of values into alias classes, which only ever merge.

    Args:
        owners: values with memory of their own, and where it is.
        nbytes: of a static value.
        lives: (first, last) step of a value; absent where lifespans do not matter.
        alignment: of a view in its source, in bytes.
        carried: outputs of a body by the inputs that are them in the next turn, whose memory they may take.
    """

    def __init__(
        self,
        owners: Mapping[ir.Value, Space],
        nbytes: Callable[[ir.Value], int],
        lives: Mapping[ir.Value, tuple[int, int]],
        alignment: int = ALIGNMENT,
        carried: Mapping[ir.Value, ir.Value] | None = None,
    ) -> None:
        self.alignment = alignment
        self.owners = owners
        self.nbytes = nbytes
        self._lives = lives
        self._carried = carried or {}
        self._of: dict[ir.Value, AliasClass] = {}

    def of(self, value: ir.Value) -> AliasClass:
        """The class of a static value."""
        if value not in self._of:
            first, last = self._lives.get(value, (0, 0))
            owner = value if value in self.owners else None
            end = self.nbytes(value)
            written = [Extent(0, end, value)] if end else []
            self._of[value] = AliasClass({value: 0}, owner, 0, end, first, last, written)
        return self._of[value]

    def space(self, alias: AliasClass) -> Space:
        """The memory that a class lives in."""
        return "arena" if alias.owner is None else self.owners[alias.owner]

    def share(self, views: Sequence[View], outputs: Collection[ir.Value]) -> dict[View, str]:
        """Let the views of one step share bytes, in order; the reasons of those that may not.

        `outputs` are the values that the step makes, which nothing has used yet; it writes what no
        view covers. Where a view is refused, the classes are of no further use.
        """
        refused: dict[View, str] = {}
        static = []
        for view in views:
            dynamic = next((v for v in view[:2] if graph.is_dynamic(v)), None)
            if dynamic is None:
                static.append(view)
            else:
                refused[view] = f"{dynamic.name!r} is dynamic and has no address"
        for output in outputs:
            if any(output is view.view for view in static):
                self.of(output).written = []
            elif any(output is view.source for view in static):
                slots = [(v.offset, v.offset + self.nbytes(v.view)) for v in static if v.source is output]
                self.of(output).written = _rest(output, self.nbytes(output), slots)
        for view in static:
            reason = self._rejection(view)
            if reason is None:
                self.merge(*view)
            else:
                refused[view] = reason
        return refused

    def granted(
        self, views: Sequence[View], outputs: Collection[ir.Value]
    ) -> tuple[tuple[View, ...], dict[View, str]]:
        """The views of one step that may share bytes, given what is shared so far, and why others may not."""
        refused: dict[View, str] = {}
        while True:
            chosen = tuple(view for view in views if view not in refused)
            # What is refused is written by the step, which may refuse another.
            found = self._trial(chosen).share(chosen, outputs)
            if not found:
                return chosen, refused
            refused.update(found)

    def merge(self, source: ir.Value, view: ir.Value, offset: int = 0) -> None:
        """Make one class of two, `view` at a byte of `source`; the caller has asked for the rejection."""
        kept, gone = self.of(source), self.of(view)
        if kept is gone:
            return
        owner = kept.owner or gone.owner
        by = kept.places[source] + offset - gone.places[view]
        if len(gone.places) > len(kept.places):
            kept, gone, by = gone, kept, -by
        gone = gone.moved(by)
        kept.places |= gone.places
        kept.owner = owner
        kept.start, kept.end = min(kept.start, gone.start), max(kept.end, gone.end)
        kept.first, kept.last = min(kept.first, gone.first), max(kept.last, gone.last)
        for extent in gone.written:  # fewer than are kept
            insort(kept.written, extent, key=_place)
        for value in gone.places:
            self._of[value] = kept

    def inplace_rejection(
        self,
        step: int,
        group: Group,
        touched: Iterable[ir.Value],
        source: ir.Value,
        output: ir.Value,
        *,
        whole: bool = True,
        updates: bool = False,
    ) -> str | None:
        """Reason why `output` of the group cannot overwrite `source`; both are static.

        With `updates` the source may be an input of the graph.

        `touched` is everything that the step reads or writes. One class must lie inside the other; of
        the bytes that they would share, whatever has the source's must die in the step, and whatever
        has the output's must begin. With `whole` that is asked of all bytes of both classes.
        """
        a, b = self.of(source), self.of(output)
        if a is b:
            return "they share memory already"
        if (reason := self._owner_rejection(a, b, source, updates=updates)) is not None:
            return reason
        by = a.places[source] - b.places[output]  # from the frame of b to that of a
        holds = a.start <= b.start + by and b.end + by <= a.end and b.owner is None
        if self.nbytes(output) == 0:
            return f"{output.name!r} has no bytes"
        sizes = graph.element_type(source).itemsize, graph.element_type(output).itemsize
        if sizes[0] != sizes[1]:  # threads write where others have yet to read
            return f"elements of {sizes[1]} byte lie elsewhere than those of {sizes[0]} byte"
        if self.nbytes(source) < self.nbytes(output):
            return f"{self.nbytes(source)} byte cannot hold {self.nbytes(output)} byte"
        if not holds and (a.start < b.start + by or a.end > b.end + by):
            return f"at {source.name!r} there are not {min(a.nbytes, b.nbytes)} byte"
        if whole:  # what the classes know of themselves; a long chain is one class
            last, first = a.last, b.first
            dying: Collection[ir.Value] = a.places
            begun: Collection[ir.Value] = b.places
        else:
            start, end = (b.start + by, b.end + by) if holds else (a.start, a.end)
            dying, begun = self._inside(a, start, end), self._inside(b, start - by, end - by)
            last = max(self._lives[v][1] for v in dying)
            first = min(self._lives[v][0] for v in begun)
        if last > step:
            return f"{source.name!r} is read at step {last}"
        if first < step:
            return f"{output.name!r} is written at step {first}"
        for value in touched:
            if value is not source and value in dying:
                return f"the step also uses {value.name!r}, which is the same bytes"
            if value is not output and value in begun:
                return f"the step also uses {value.name!r}, which {output.name!r} shares memory with"
        if group.op not in (ELEMENTWISE, STREAM) and reads(group, source) > 1:
            # A pair speaks of one read. An elementwise group has passed an element when it writes
            # it, and a stream a row; any other may still need the rest, as a convolution with itself as
            # residual does.
            return f"{source.name!r} is read more than once in the step"
        return None

    def _owner_rejection(
        self, a: AliasClass, b: AliasClass, source: ir.Value, *, updates: bool
    ) -> str | None:
        """Reason why what owns the memory of a source keeps it from an output of class b."""
        if a.owner is None or (updates and self.owners[a.owner] == "input"):
            return None
        if b.owner is None or self._carried.get(a.owner) is not b.owner:
            return f"{source.name!r} lives in the memory of {self.owners[a.owner]} {a.owner.name!r}"
        read = any(self.owners.get(v) == "output" for v in a.places)
        return f"{source.name!r} is read when all steps are done" if read else None

    def _inside(self, alias: AliasClass, start: int, end: int) -> set[ir.Value]:
        """Values of a class that cover bytes [start, end) of its frame."""
        return {v for v, at in alias.places.items() if at < end and at + self.nbytes(v) > start}

    def _rejection(self, view: View) -> str | None:
        """Reason why a view of static values cannot be a part of its source."""
        source, part, offset = view
        room, needed = self.nbytes(source), self.nbytes(part)
        if offset < 0 or offset + needed > room:
            return f"bytes {offset}..{offset + needed} of {source.name!r} are not there; it has {room} byte"
        if offset % self.alignment:
            return f"byte {offset} of {source.name!r} does not begin a cache line of {self.alignment} byte"
        a, b = self.of(source), self.of(part)
        by = a.places[source] + offset - b.places[part]
        if a is b:
            return None if not by else f"{part.name!r} shares its memory already, {by:+} byte from there"
        if a.owner is not None and b.owner is not None:
            kinds = [f"{self.owners[v]} {v.name!r}" for v in (a.owner, b.owner)]
            return f"the bytes would be those of {kinds[0]} and of {kinds[1]}, which have memory of their own"
        start, end = min(a.start, b.start + by), max(a.end, b.end + by)
        for alias, shift in ((a, 0), (b, by)):
            if alias.owner is None:
                continue
            at = alias.places[alias.owner] + shift
            own = self.nbytes(alias.owner)
            if start < at or end > at + own:
                return (
                    f"{end - start} byte do not fit into the {own} byte "
                    f"of {self.owners[alias.owner]} {alias.owner.name!r}"
                )
        clash = _clash(a.written, b.written, by)
        if clash is not None:
            return f"{clash[0].name!r} and {clash[1].name!r} would be written to the same bytes"
        return None

    def _trial(self, views: Sequence[View]) -> "AliasClasses":
        """A copy to try these views on."""
        copy = AliasClasses(self.owners, self.nbytes, self._lives, self.alignment, self._carried)
        for alias in {id(c): c for v in views for x in v[:2] if (c := self._of.get(x))}.values():
            same = alias.moved(0)
            copy._of.update(dict.fromkeys(same.places, same))
        return copy


def _rest(value: ir.Value, nbytes: int, slots: Iterable[tuple[int, int]]) -> list[Extent]:
    """Bytes of `value` covered by no slot."""
    rest, at = [], 0
    for start, end in sorted(slots):
        if start > at:
            rest.append(Extent(at, start, value))
        at = max(at, end)
    return [*rest, Extent(at, nbytes, value)] if at < nbytes else rest


def _clash(a: Sequence[Extent], b: Sequence[Extent], by: int) -> tuple[ir.Value, ir.Value] | None:
    """Two values that would write one byte; `b` is moved by so many bytes."""
    for start, end, value in b:
        at = bisect_right(a, start + by, key=_end)
        if at < len(a) and a[at].start < end + by:
            return a[at].value, value
    return None


def _place(extent: Extent) -> tuple[int, int]:
    return extent.start, extent.end


def _end(extent: Extent) -> int:
    return extent.end


def reads(group: Group, value: ir.Value) -> int:
    """How often the nodes of a group name a value as input."""
    return sum(v is value for node in group.nodes for v in node.inputs)


def in_order(values: Iterable[ir.Value], lives: Mapping[ir.Value, tuple[int, int]]) -> tuple[ir.Value, ...]:
    """Values by first step, ties by name."""
    return tuple(sorted(values, key=lambda v: (lives[v][0], v.name or "")))
