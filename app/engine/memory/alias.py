"""Alias classes: values that are the same bytes, and when two classes may become one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.plan import ELEMENTWISE, Group, Space


@dataclass(slots=True)
class AliasClass:
    """Values that are the same bytes, or use them one after another.

    Attributes:
        owner: the graph input, graph output or initializer whose memory this is; None in the arena.
        nbytes: of the largest value.
        first: step that writes first; -1 where the bytes are there before the first step.
        last: step that reads or writes last.
    """

    values: list[ir.Value]
    owner: ir.Value | None
    nbytes: int
    first: int
    last: int


class AliasClasses:
    """A partition of values into alias classes, which only ever merge.

    Args:
        owners: values with memory of their own, and where it is.
        nbytes: of a static value.
        lives: (first, last) step of a value; absent where lifespans do not matter.
    """

    def __init__(
        self,
        owners: Mapping[ir.Value, Space],
        nbytes: Callable[[ir.Value], int],
        lives: Mapping[ir.Value, tuple[int, int]],
    ) -> None:
        self.owners = owners
        self._nbytes = nbytes
        self._lives = lives
        self._of: dict[ir.Value, AliasClass] = {}

    def of(self, value: ir.Value) -> AliasClass:
        """The class of a static value."""
        if value not in self._of:
            first, last = self._lives.get(value, (0, 0))
            owner = value if value in self.owners else None
            self._of[value] = AliasClass([value], owner, self._nbytes(value), first, last)
        return self._of[value]

    def space(self, alias: AliasClass) -> Space:
        """The memory that a class lives in."""
        return "arena" if alias.owner is None else self.owners[alias.owner]

    def merge(self, a: ir.Value, b: ir.Value) -> None:
        """Make one class of two; the caller has asked for the refusal."""
        kept, gone = self.of(a), self.of(b)
        if kept is gone:
            return
        if len(gone.values) > len(kept.values):
            kept, gone = gone, kept
        kept.values += gone.values
        kept.owner = kept.owner or gone.owner
        kept.nbytes = max(kept.nbytes, gone.nbytes)
        kept.first = min(kept.first, gone.first)
        kept.last = max(kept.last, gone.last)
        for value in gone.values:
            self._of[value] = kept

    def view_refusal(self, source: ir.Value, view: ir.Value) -> str | None:
        """Why `view` cannot be the bytes of `source`; both are static."""
        a, b = self.of(source), self.of(view)
        if a is b:
            return None
        if self._nbytes(source) != self._nbytes(view):
            return f"{self._nbytes(source)} byte are not {self._nbytes(view)} byte"
        if a.owner is not None and b.owner is not None:
            kinds = [f"{self.owners[v]} {v.name!r}" for v in (a.owner, b.owner)]
            return f"the bytes would be those of {kinds[0]} and of {kinds[1]}, which have memory of their own"
        return None

    def inplace_refusal(
        self, step: int, group: Group, touched: Iterable[ir.Value], source: ir.Value, output: ir.Value
    ) -> str | None:
        """Why `output` of the group cannot overwrite `source`; both are static.

        `touched` is everything that the step reads or writes.
        """
        a, b = self.of(source), self.of(output)
        if a is b:
            return "they share memory already"
        if a.owner is not None:
            return f"{source.name!r} lives in the memory of {self.owners[a.owner]} {a.owner.name!r}"
        if a.last > step:
            return f"{source.name!r} is read at step {a.last}"
        if b.first < step:
            return f"{output.name!r} is written at step {b.first}"
        # An intermediate may move into the memory of an output that overwrites it, if it fits there.
        room, needed = (a.nbytes, b.nbytes) if b.owner is None else (b.nbytes, a.nbytes)
        if room < needed:
            return f"{room} byte cannot hold {needed} byte"
        for value in touched:
            if value is not source and self._of.get(value) is a:
                return f"the step also uses {value.name!r}, which is the same bytes"
        if group.op != ELEMENTWISE and reads(group, source) > 1:
            # A pair speaks of one read. An elementwise group has passed an element when it writes
            # it; any other may still need the rest, as a convolution with itself as residual does.
            return f"{source.name!r} is read more than once in the step"
        return None


def reads(group: Group, value: ir.Value) -> int:
    """How often the nodes of a group name a value as input."""
    return sum(v is value for node in group.nodes for v in node.inputs)


def in_order(values: Sequence[ir.Value], lives: Mapping[ir.Value, tuple[int, int]]) -> tuple[ir.Value, ...]:
    """Values by first step, ties by name."""
    return tuple(sorted(values, key=lambda v: (lives[v][0], v.name or "")))
