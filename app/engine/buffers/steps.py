"""The steps of a plan as the search for an order sees them."""

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise

import onnx_ir as ir

from app.engine.buffers.alias import ALIGNMENT, AliasClass, AliasClasses
from app.engine.buffers.buffer_assignment import share_views, touched, view_classes
from app.engine.core import graph
from app.engine.core.calls import workspace_bytes
from app.engine.core.group import Group
from app.engine.core.plan import Choice, Compilation
from app.engine.memory.beam_order import Step


def memory_steps(
    compilation: Compilation, needs: Mapping[Group, frozenset[Group]]
) -> tuple[list[Step], list[int], list[int]]:
    """The steps of an ordered plan, bytes by storage, and the least that these may be.

    Indices are those of the order. A storage is a stretch of bytes that the same values of an alias class
    cover: a slice of a concatenation lives from its own write. In-place pairs are those of stretches; whether
    a whole class may move is seen when the plan is made. What is computed into an output of the graph takes
    no bytes, since it lies in the memory that the output has anyway: in bytes by storage the first of several
    operands that may, as the plan prefers it; in the least all of them, so that no plan needs less.
    """
    order, implementation = compilation.plan.require("order"), compilation.plan.require("implementation")
    alignment = compilation.target.memories[0].alignment
    classes = view_classes(compilation)
    share_views(tuple((group, implementation[group]) for group in order), classes)

    outside = _outside(order, implementation, classes, every=False)
    perhaps = _outside(order, implementation, classes, every=True)

    def in_arena(value: ir.Value) -> bool:
        return not graph.is_dynamic(value) and id(classes.of(value)) not in outside

    used = {g: [v for v in touched(g, implementation[g]) if in_arena(v)] for g in order}
    pairs = {
        group: [
            (a, b)
            for a, b in implementation[group].inplace
            if a in values and b in values and classes.of(a) is not classes.of(b)
        ]
        for group, values in used.items()
    }
    stretches = _Stretches(classes, alignment, [pair for row in pairs.values() for pair in row])
    position = {group: i for i, group in enumerate(order)}
    steps = [
        Step(
            tuple(sorted(position[g] for g in needs[group])),
            tuple(dict.fromkeys(s for v in used[group] for s in stretches.of(v))),
            tuple(
                pair
                for a, b in pairs[group]
                for pair in zip(stretches.of(a), stretches.of(b), strict=False)  # one may be larger
            ),
            workspace_bytes(implementation[group].calls, compilation.options.threads, alignment),
            group.name,
        )
        for group in order
    ]
    return steps, stretches.sizes, stretches.sizes_without(perhaps)


def _outside(
    order: Sequence[Group], implementation: Mapping[Group, Choice], classes: AliasClasses, *, every: bool
) -> set[int]:
    """Identities of the classes with memory of their own, and of those that may move to that of an output.

    Of a group's operands the first that may move does, or `every` one.
    """
    values = dict.fromkeys(v for g in order for v in touched(g, implementation[g]) if not graph.is_dynamic(v))
    found = {id(alias) for v in values if (alias := classes.of(v)).owner is not None}
    outputs = {id(alias) for v in values if classes.space(alias := classes.of(v)) == "output"}
    for group in reversed(order):
        for source, result in implementation[group].inplace:
            if source not in values or result not in values:
                continue
            a, b = classes.of(source), classes.of(result)
            by = a.places[source] - b.places[result]
            if id(b) in outputs and a.owner is None and b.start + by <= a.start and a.end <= b.end + by:
                outputs.add(id(a))
                if not every:
                    break
    return found | outputs


class _Stretches:
    """Alias classes cut where values begin and end, and where those do that move into them in place.

    Attributes:
        sizes: bytes by stretch.
    """

    def __init__(self, classes: AliasClasses, alignment: int, pairs: list[tuple[ir.Value, ir.Value]]) -> None:
        self.sizes: list[int] = []
        self._classes = classes
        self._alignment = alignment
        self._cuts: dict[int, set[int]] = {}  # by identity of the class
        self._numbers: dict[int, dict[ir.Value, tuple[int, ...]]] = {}
        # Cuts travel along chains of pairs, forth and back.
        while sum(self._shared(a, b) for row in (pairs, pairs[::-1]) for a, b in row):
            pass

    def of(self, value: ir.Value) -> tuple[int, ...]:
        """The stretches that a value covers, by address."""
        alias = self._classes.of(value)
        if id(alias) not in self._numbers:
            cuts, first = sorted(self._cuts_of(alias)), len(self.sizes)
            self.sizes.extend(b - a for a, b in pairwise(cuts))
            self._numbers[id(alias)] = {
                v: tuple(
                    first + k
                    for k, (a, b) in enumerate(pairwise(cuts))
                    if a < at + self._classes.nbytes(v) and b > at
                )
                for v, at in alias.places.items()
            }
        return self._numbers[id(alias)][value]

    def sizes_without(self, classes: Container[int]) -> list[int]:
        """Bytes by stretch, none of those of some classes, given by identity."""
        found = [*self.sizes]
        for identity, numbers in self._numbers.items():
            if identity in classes:
                for stretch in {s for own in numbers.values() for s in own}:
                    found[stretch] = 0
        return found

    def _cuts_of(self, alias: AliasClass) -> set[int]:
        if id(alias) not in self._cuts:
            last = alias.start + -(-alias.nbytes // self._alignment) * self._alignment
            edges = {e for v, at in alias.places.items() for e in (at, at + self._classes.nbytes(v))}
            inside = {e - (e - alias.start) % ALIGNMENT for e in edges}
            self._cuts[id(alias)] = {alias.start, last, *(e for e in inside if alias.start < e < last)}
        return self._cuts[id(alias)]

    def _shared(self, a: ir.Value, b: ir.Value) -> bool:
        """True if a cut inside one of a pair was new to the other."""
        ones, others = self._cuts_of(self._classes.of(a)), self._cuts_of(self._classes.of(b))
        at, to = self._classes.of(a).places[a], self._classes.of(b).places[b]
        common = min(self._classes.nbytes(a), self._classes.nbytes(b))
        before = len(ones) + len(others)
        others |= {c - at + to for c in ones if at < c < at + common}
        ones |= {c - to + at for c in others if to < c < to + common}
        return len(ones) + len(others) > before
