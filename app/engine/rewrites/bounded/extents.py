"""Elements of integer vectors that shapes are told by: numbers that are known, and counts of prefixes."""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement
from app.engine.rewrites.bounded.prefix import BOUND, DEEPEST, Nodes

Element: TypeAlias = int | ir.Value  # the value is a count, int64[1]
Elements: TypeAlias = tuple[Element, ...]
LONGEST = 64  # elements of a vector that is followed


def elements(value: ir.Value | None, depth: int = DEEPEST) -> Elements | None:
    """Elements of an integer value in row-major order; None where one is neither known nor a count."""
    if value is None or depth == 0:
        return None
    if BOUND in value.meta:
        return (value,)
    fixed = graph.constant(value)
    if fixed is not None:
        known = fixed.dtype.kind in "iub" and fixed.size <= LONGEST
        return tuple(int(n) for n in fixed.reshape(-1)) if known else None
    node = value.producer()
    rule = None if node is None or node.domain else _RULES.get(node.op_type)
    if node is None or rule is None:
        return None
    given = [None if v is None else elements(v, depth - 1) for v in node.inputs]
    if any(v is not None and found is None for v, found in zip(node.inputs, given)):
        return None
    return rule(node, [found for found in given if found is not None])


def tell_extents(node: ir.Node) -> Replacement | None:
    """A vector of numbers and counts is their concatenation, or the count alone."""
    value = node.outputs[0]
    if value.dtype != ir.DataType.INT64 or len(graph.shape(value) or ()) != 1 or BOUND in value.meta:
        return None
    found = elements(value)
    if found is None or all(isinstance(e, int) for e in found):
        return None
    if node.op_type == "Concat" and all(v is not None and _is_told(v) for v in node.inputs):
        return None
    n = Nodes(node)
    pieces: list[ir.Value] = []
    for _, group in itertools.groupby(found, lambda e: isinstance(e, int)):
        part = tuple(group)
        counts = [e for e in part if isinstance(e, ir.Value)]
        pieces += counts or [n.constant(part)]
    joined = pieces[0] if len(pieces) == 1 else n("Concat", pieces, value.dtype, (len(found),), axis=0)
    return Replacement([joined], n.made)


def _is_told(value: ir.Value) -> bool:
    return BOUND in value.meta or graph.is_constant(value)


def is_count(value: ir.Value | None, count: ir.Value) -> bool:
    """True if a value has one element, which is this count."""
    found = (value,) if value is count else elements(value)
    return found is not None and len(found) == 1 and found[0] is count


def _joined(_node: ir.Node, given: Sequence[Elements]) -> Elements | None:
    return sum(given, ())


def _first(_node: ir.Node, given: Sequence[Elements]) -> Elements | None:
    return given[0]


def _cast(node: ir.Node, given: Sequence[Elements]) -> Elements | None:
    return given[0] if node.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.INT32) else None


def _gathered(node: ir.Node, given: Sequence[Elements]) -> Elements | None:
    source, places = given
    if len(graph.shape(graph.operand(node, 0)) or ()) != 1:
        return None
    if not all(isinstance(p, int) and -len(source) <= p < len(source) for p in places):
        return None
    return tuple(source[p] for p in places if isinstance(p, int))


def _cut(node: ir.Node, given: Sequence[Elements]) -> Elements | None:
    source, *limits = given
    if len(graph.shape(graph.operand(node, 0)) or ()) != 1 or any(len(n) != 1 for n in limits):
        return None
    numbers = [n[0] for n in limits if isinstance(n[0], int)]
    if len(numbers) < len(limits) or None in node.inputs:
        return None
    start, end, _axis, step = (*numbers, 0, 1)[:4] if len(numbers) == 2 else (*numbers, 1)[:4]
    return source[slice(start, end, step)] if step > 0 else None


def _broadcast(
    combine: Callable[..., Element | None],
) -> Callable[[ir.Node, Sequence[Elements]], Elements | None]:
    """The rule of an elementwise operator on vectors of one length, or of one element."""

    def rule(_node: ir.Node, given: Sequence[Elements]) -> Elements | None:
        length = max(map(len, given))
        if any(len(e) not in (1, length) for e in given):
            return None
        made = [combine(*(e[i if len(e) > 1 else 0] for e in given)) for i in range(length)]
        return None if None in made else tuple(e for e in made if e is not None)

    return rule


def _equal(a: Element, b: Element) -> Element | None:
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    if a is b:
        return 1
    other = a if isinstance(a, int) else b
    return 0 if isinstance(other, int) and other < 0 else None  # a count is not negative


def _chosen(condition: Element, a: Element, b: Element) -> Element | None:
    return (a if condition else b) if isinstance(condition, int) else None


def _arithmetic(
    compute: Callable[[int, int], int], neutral: int
) -> Callable[[Element, Element], Element | None]:
    def combine(a: Element, b: Element) -> Element | None:
        if isinstance(a, int) and isinstance(b, int):
            return compute(a, b)
        if isinstance(a, int):
            return b if a == neutral else None
        return a if isinstance(b, int) and b == neutral else None

    return combine


_RULES: dict[str, Callable[[ir.Node, Sequence[Elements]], Elements | None]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Identity"), _first),
    "Cast": _cast,
    "Concat": _joined,
    "Gather": _gathered,
    "Slice": _cut,
    "Equal": _broadcast(_equal),
    "Where": _broadcast(_chosen),
    "Add": _broadcast(_arithmetic(operator.add, 0)),
    "Mul": _broadcast(_arithmetic(operator.mul, 1)),
}
OPERATORS = tuple(_RULES)
