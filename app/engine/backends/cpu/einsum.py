"""Einsum as diagonals, sums and products of matrices.

Each operand loses repeated labels (its diagonal) and labels that nothing else has (a sum); then operands are
joined from the left, one pair at a time, by a product over labels that no later operand and no result has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule
from app.engine.rewrites.contrib import Nodes

Labels: TypeAlias = tuple[str, ...]
KINDS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)


@dataclass(frozen=True, slots=True)
class Term:
    """An operand, and the label and extent of each of its axes."""

    value: ir.Value
    labels: Labels
    sizes: tuple[int, ...]


def _split(text: str, rank: int) -> Labels:
    """Labels of axes; those of an ellipsis count from the right: `...0` is its last."""
    before, dots, after = text.partition("...")
    count = rank - len(before) - len(after) if dots else 0
    return (*before, *(f"...{i}" for i in reversed(range(count))), *after)


def parsed(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of the operands and of the result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [_split(text, rank) for text, rank in zip(left.split(","), ranks, strict=True)]
    found = [label for term in terms for label in term]
    width = max((int(label[3:]) + 1 for label in found if label.startswith("...")), default=0)
    if not arrow:
        right = "..." + "".join(sorted(c for c in set(found) if len(c) == 1 and found.count(c) == 1))
    return terms, _split(right, len(right.replace("...", "")) + (width if "..." in right else 0))


class _Contraction:
    """Nodes in the place of an Einsum."""

    def __init__(self, node: ir.Node) -> None:
        self.n = Nodes(node)

    def _ordered(self, term: Term, labels: Labels) -> ir.Value:
        """The term with its axes in another order."""
        if labels == term.labels:
            return term.value
        made: ir.Value = self.n("Transpose", term.value, perm=[term.labels.index(c) for c in labels])
        return made

    def _shaped(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        made: ir.Value = self.n("Reshape", value, self.n.constant(list(shape)))
        return made

    def diagonal(self, term: Term) -> Term:
        """The term without repeated labels."""
        twice = next((c for c in term.labels if term.labels.count(c) > 1), None)
        if twice is None:
            return term
        p = term.labels.index(twice)
        q = term.labels.index(twice, p + 1)
        rest = [i for i in range(len(term.labels)) if i not in (p, q)]
        moved = self.n("Transpose", term.value, perm=[*rest, p, q])
        size, sizes = term.sizes[p], [term.sizes[i] for i in rest]
        flat = self._shaped(moved, [*sizes, size * size])
        bounds = (self.n.constant([number]) for number in (0, size * size, -1, size + 1))
        labels = (*(term.labels[i] for i in rest), twice)
        return self.diagonal(Term(self.n("Slice", flat, *bounds), labels, (*sizes, size)))

    def summed(self, term: Term, needed: set[str]) -> Term:
        """The sum over labels that nothing else has."""
        axes = [i for i, c in enumerate(term.labels) if c not in needed]
        if not axes:
            return term
        kept = [i for i in range(len(term.labels)) if i not in axes]
        value = self.n("ReduceSum", term.value, self.n.constant(axes), keepdims=0)
        return Term(value, tuple(term.labels[i] for i in kept), tuple(term.sizes[i] for i in kept))

    def repeated_once(self, term: Term, sizes: dict[str, int]) -> Term:
        """The term without axes of extent 1 that others have longer."""
        axes = [i for i, c in enumerate(term.labels) if term.sizes[i] != sizes[c]]
        return self.summed(term, set(term.labels) - {term.labels[i] for i in axes})

    def product(self, a: Term, b: Term, needed: set[str]) -> Term:
        """Both terms joined, summed over the labels that nothing else needs."""
        extents = dict(zip((*a.labels, *b.labels), (*a.sizes, *b.sizes)))
        both = [c for c in a.labels if c in b.labels]
        batch, inner = (tuple(c for c in both if (c in needed) == kept) for kept in (True, False))
        rows, columns = (tuple(c for c in t.labels if c not in both) for t in (a, b))

        def extent(labels: Labels) -> int:
            return math.prod(extents[c] for c in labels)

        left = self._shaped(
            self._ordered(a, batch + rows + inner), [extent(batch), extent(rows), extent(inner)]
        )
        right = self._shaped(
            self._ordered(b, batch + inner + columns), [extent(batch), extent(inner), extent(columns)]
        )
        value = self.n("MatMul" if inner else "Mul", left, right)
        labels = batch + rows + columns
        sizes = tuple(extents[c] for c in labels)
        return Term(self._shaped(value, sizes), labels, sizes)

    def result(self, term: Term, labels: Labels) -> ir.Value:
        """The term in the order of the result, as a value of its own."""
        made: ir.Value = self.n("Identity", self._ordered(term, labels))
        return made


def einsum(node: ir.Node) -> Replacement | None:
    """Diagonals, sums, and products of pairs; extents of labels are equal, or 1 in an ellipsis."""
    shapes = [None if v is None else graph.shape(v) for v in node.inputs]
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes) or any(0 in s for s in known) or node.outputs[0].dtype not in KINDS:
        return None
    names, result = parsed(str(graph.attribute(node, "equation", "")), [len(s) for s in known])
    sizes: dict[str, int] = {}
    for labels, shape in zip(names, known, strict=True):
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    made = _Contraction(node)
    terms = []
    for i, (value, labels, shape) in enumerate(zip(graph.operands(node), names, known, strict=True)):
        elsewhere = set(result).union(*(set(other) for j, other in enumerate(names) if j != i))
        term = made.repeated_once(made.diagonal(Term(value, labels, shape)), sizes)
        terms.append(made.summed(term, elsewhere))
    first, *others = terms
    for i, other in enumerate(others):
        needed = set(result).union(*(set(t.labels) for t in others[i + 1 :]))
        first = made.product(first, other, needed)
        first = made.summed(first, needed)
    if set(first.labels) != set(result):
        return None
    return Replacement([made.result(first, result)], made.n.made)


REWRITES = (RewriteRule(einsum, ("Einsum",), backends=("numba-cpu",)),)
