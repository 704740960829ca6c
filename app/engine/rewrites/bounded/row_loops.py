"""Heavy rows of prefixes, computed by a loop that has as many turns as the count of a run asks for.

A prefix along the first axis is computed of wholes (see `app.engine.rewrites.bounded`), also the slices that
mean nothing. Where operators that compute slices one by one are heavy, a loop computes some slices a turn, in
as many turns as the count needs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import register
from app.engine.cost.roofline import arithmetic
from app.engine.operators.independent_rows import SAME, MixedRowsError, axis_of_rows
from app.engine.rewrites.bounded import growing
from app.engine.rewrites.bounded.computing import SLICEWISE
from app.engine.rewrites.bounded.extents import elements
from app.engine.rewrites.bounded.prefix import BOUND, PREFIX, WIDEST, Nodes, Prefix

HEAVY = 2.0**25  # flop of a whole; less is computed at once
OF_A_TURN = 2.0**24  # flop of a turn at least
ROWS = 32  # of a product at least: with fewer it takes longer to read the weights than to compute
SAMPLED = {"RoiAlign": 64.0}  # flop of an element, which the count of results does not tell
Counts: TypeAlias = Mapping[ir.Value, ir.Value]


@dataclass(slots=True)
class _Rows:
    """Nodes that compute the first slices of their results one by one.

    Attributes:
        count: of the slices that are read, int64[1].
        bound: slices of the wholes.
        nodes: in execution order.
        sliced: operands from elsewhere that have the slices along their first axis.
    """

    count: ir.Value
    bound: int
    nodes: list[ir.Node]
    sliced: list[ir.Value]

    @property
    def results(self) -> list[ir.Value]:
        """Values that others read."""
        members = set(self.nodes)
        return [
            v
            for node in self.nodes
            for v in node.outputs
            if v.is_graph_output() or any(use.node not in members for use in v.uses())
        ]


def loop_over_rows(root: ir.Graph) -> int:
    """Replace heavy rows of a graph by loops; how many loops there are then."""
    made = 0
    while (rows := _next(root)) is not None:
        _replace(root, rows)
        made += 1
    return made


def _next(root: ir.Graph) -> _Rows | None:
    """The first heavy rows of a graph that have fewer slices a turn than at once."""
    if not any(BOUND in v.meta for n in root for v in n.outputs):
        return None
    graph.order_by_wiring(root)
    read, order = _read(root), list(root)
    for at, node in enumerate(order):
        count = _count(node, read)
        if node.op_type not in SLICEWISE or count is None or _flops(node) <= HEAVY:
            continue
        if _slices(node) is not None:
            found = _grown(order[at:], count, read)
            if 2 * _of_a_turn(found) <= found.bound:
                return found
    return None


def _flops(node: ir.Node) -> float:
    return arithmetic(node) * SAMPLED.get(node.op_type, 1.0)


def _of_a_turn(rows: _Rows) -> int:
    """Slices of a turn, a power of two."""
    slice_ = sum(map(_flops, rows.nodes)) / rows.bound
    least = max(OF_A_TURN / slice_, *(ROWS / n for n in map(_rows_of_a_slice, rows.nodes)))
    return 1 << max(math.ceil(math.log2(least)), 0)


def _rows_of_a_slice(node: ir.Node) -> float:
    """Rows of products of one slice."""
    shape = graph.static_shape(node.outputs[0])
    return math.prod(shape[1:-1]) if node.op_type in ("MatMul", "Gemm") else math.inf


def _grown(order: Sequence[ir.Node], count: ir.Value, read: Counts) -> _Rows:
    """The rows that the first of these nodes begins: what follows by slices and reads nothing behind it."""
    first, *rest = order
    bound = graph.static_shape(first.outputs[0])[0]
    rows = _Rows(count, bound, [first], list(_slices(first) or ()))
    made, behind = set(first.outputs), set[ir.Value]()
    for node in rest:
        operands = set(graph.reads(node))
        if not operands & (made | behind):
            continue
        sliced = _slices(node) if _count(node, read) is count and not operands & behind else None
        if sliced is None or graph.static_shape(node.outputs[0])[0] != bound:
            behind |= set(node.outputs)
            continue
        rows.nodes.append(node)
        rows.sliced += [v for v in sliced if v not in made and v not in rows.sliced]
        made |= set(node.outputs)
    return rows


def _read(root: ir.Graph) -> dict[ir.Value, ir.Value]:
    """The counts of values of which no more than the first slices are read, by value."""
    found: dict[ir.Value, ir.Value] = {}
    for node in reversed(list(root)):
        for value in node.outputs:
            uses = [_read_by(use.node, use.idx, found) for use in value.uses()]
            if uses and not value.is_graph_output() and all(c is not None and c is uses[0] for c in uses):
                found[value] = uses[0]  # type: ignore[assignment]  # none of them is None
    return found


def _read_by(node: ir.Node, index: int, found: Counts) -> ir.Value | None:
    """The count of the first slices of an operand that a node reads; None where it may read others."""
    rule = _READERS.get(node.op_type)
    known = None if rule is None else rule(node, index, found)
    if known is not None:
        return known
    count = _count(node, found)
    return count if count is not None and node.inputs[index] in (_slices(node) or ()) else None


def _count(node: ir.Node, found: Counts) -> ir.Value | None:
    """The count of the first slices that are read of what a node makes."""
    counts = [found.get(v) for v in node.outputs if v.uses() or v.is_graph_output()]
    return counts[0] if counts and all(c is counts[0] for c in counts) else None


def _prefix(node: ir.Node, index: int, _found: Counts) -> ir.Value | None:
    return node.inputs[1] if index == 0 and not graph.attribute(node, "axis", 0) else None


def _mask(value: ir.Value | None) -> ir.Value | None:
    """The count of a mask that holds at the first slices; None for other values."""
    less = None if value is None else value.producer()
    if less is None or less.op_type != "Less" or BOUND not in graph.operand(less, 1).meta:
        return None
    places = graph.constant(graph.operand(less, 0))
    if places is None or not np.array_equal(places.reshape(-1), np.arange(len(places))):
        return None
    return graph.operand(less, 1)


def _where(node: ir.Node, index: int, _found: Counts) -> ir.Value | None:
    """Other elements are taken for what is behind the first."""
    return _mask(node.inputs[0]) if index == 1 and _alike(node, 0, 1) else None


def _and(node: ir.Node, index: int, _found: Counts) -> ir.Value | None:
    return _mask(node.inputs[1 - index]) if _alike(node, 0, 1) else None


def _alike(node: ir.Node, *operands: int) -> bool:
    """True if operands have as many axes, and as many slices."""
    shapes = [graph.shape(graph.operand(node, i)) or () for i in operands]
    return len({(len(s), s[:1]) for s in shapes}) == 1


def _gather(node: ir.Node, index: int, _found: Counts) -> ir.Value | None:
    """Indices that are known to be below a count, see `movement.gather`; those that mean nothing are 0."""
    if index or graph.attribute(node, "axis", 0):
        return None
    where = graph.operand(node, 1).producer()
    if where is not None and where.op_type == "Where" and _mask(where.inputs[0]) is not None:
        where = graph.operand(where, 1).producer()
    inside = None if where is None or where.op_type != "Where" else graph.operand(where, 0).producer()
    less = None if inside is None or inside.op_type != "And" else graph.operand(inside, 0).producer()
    if where is None or less is None or less.op_type != "Less" or less.inputs[0] is not where.inputs[1]:
        return None
    found = elements(less.inputs[1])
    return found[0] if found is not None and len(found) == 1 and isinstance(found[0], ir.Value) else None


def _scatter(node: ir.Node, index: int, found: Counts) -> ir.Value | None:
    """Slices of the data as of the result; updates that mean nothing go behind what is read of that."""
    if index == 0:
        return found.get(node.outputs[0])
    places = graph.operand(node, 1).producer()
    other = None if places is None or places.op_type != "Where" else graph.constant(places.inputs[2])
    last = graph.static_shape(node.outputs[0])[0] - 1
    if index == 1 or places is None or other is None or other.tolist() != last:
        return None
    return _where(places, 1, found) if _is_unread(node.outputs[0], last, found) else None


def _is_unread(value: ir.Value, last: int, found: Counts) -> bool:
    """True if nothing reads the slice behind the first `last` ones of a value."""
    count = found.get(value)
    if count is not None:
        return int(count.meta[BOUND]) <= last
    return not value.is_graph_output() and all(
        use.node.op_type == "Slice" and use.idx == 0 and _end(use.node) <= last for use in value.uses()
    )


def _end(node: ir.Node) -> float:
    """The end of a Slice of the first slices along the first axis; infinity of others."""
    starts, ends, axes, steps = (graph.constant(graph.input_at(node, i)) for i in range(1, 5))
    first = starts is not None and axes is not None and starts.tolist() == axes.tolist() == [0]
    if not first or ends is None or (steps is not None and steps.tolist() != [1]):
        return math.inf
    return int(ends.item()) if ends.item() >= 0 else math.inf


def _slice(node: ir.Node, index: int, found: Counts) -> ir.Value | None:
    """The first slices of the first axis."""
    return found.get(node.outputs[0]) if index == 0 and _end(node) < math.inf else None


def _reshape(node: ir.Node, index: int, found: Counts) -> ir.Value | None:
    """Slices that each become several."""
    count = found.get(node.outputs[0])
    several = None if count is None else count.producer()
    before, after = graph.shape(graph.operand(node, 0)), graph.shape(node.outputs[0])
    if index or several is None or several.op_type != "Mul" or not before or not after:
        return None
    factor = graph.constant(graph.operand(several, 1))
    return several.inputs[0] if factor is not None and before[0] * factor.item() == after[0] else None


_READERS: dict[str, Callable[[ir.Node, int, Counts], ir.Value | None]] = {
    PREFIX: _prefix,
    "Where": _where,
    "And": _and,
    "Gather": _gather,
    "ScatterND": _scatter,
    "Slice": _slice,
    "Reshape": _reshape,
}


def _slices(node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Operands whose slices along the first axis a node computes one by one; None where it does not."""
    result = graph.shape(node.outputs[0]) if node.outputs else None
    if node.op_type == "Resize" and graph.input_at(node, 3) is not None:
        return None  # the number of slices may be among its sizes
    if not result or graph.bodies(node) or None in map(graph.shape, node.outputs):
        return None
    if any(v is not None and graph.is_dynamic(v) for v in node.inputs):
        return None
    fits = [v for v in node.inputs if v is not None and (graph.shape(v) or (0,))[0] == result[0]]
    for sliced in ([v for v in fits if not graph.is_constant(v)], fits):
        try:
            if axis_of_rows(node, [0 if v in sliced else SAME for v in node.inputs]) == 0:
                return tuple(sliced)
        except MixedRowsError:
            continue
    return None


def _replace(root: ir.Graph, rows: _Rows) -> None:
    """Put a loop in the place of rows."""
    last = rows.nodes[-1]
    n = Nodes(last, ".rows")
    size = _of_a_turn(rows)
    turns = -(-rows.bound // size)
    results = rows.results
    more = n.number("Add", rows.count, n.constant([size - 1]))
    trips = n.counted(n.number("Div", more, n.constant([size])), turns)
    limit = n.counted(n("Squeeze", [trips, n.constant([0])], ir.DataType.INT64, ()), turns)
    body = _body(rows, size, results)
    loop = ir.Node("", "Loop", [limit, n.constant(True, np.bool_)], [ir.AttrGraph("body", body)],
                   num_outputs=len(results), name=f"{last.name}.turns")  # fmt: skip
    for value, result in zip(loop.outputs, results, strict=True):
        value.name, value.type = f"{result.name}.turns", result.type
        value.shape = ir.Shape([None, size, *graph.static_shape(result)[1:]])
    stacks = growing.loop(n, loop, WIDEST)
    for value, stack in zip(results, stacks or (), strict=True):
        assert isinstance(stack, Prefix), stack
        shape = graph.static_shape(value)
        flat = n.reshaped(stack.whole, (turns * size, *shape[1:]))
        whole = n.shortened(Prefix(flat, 0, rows.count), rows.bound).whole
        value.replace_all_uses_with(whole, replace_graph_outputs=True)
    for i in range(len(loop.inputs)):
        loop.replace_input_with(i, None)
    _add(root, last, n.made)
    for node in reversed(rows.nodes):
        root.remove(node, safe=True)
    graph.order_by_wiring(root)


def _add(root: ir.Graph, before: ir.Node, nodes: Sequence[ir.Node]) -> None:
    """Insert nodes, and register the constants that they read."""
    for node in nodes:
        for value in graph.reads(node):
            register(root, value)
        node.name = node.name or f"{before.name}.{node.op_type}"
    root.insert_before(before, nodes)


def _body(rows: _Rows, size: int, results: Sequence[ir.Value]) -> ir.Graph:
    """Graph of one turn: `size` slices, the first of them `size` times the number of the turn."""
    n = Nodes(rows.nodes[-1], ".turn_of_rows")
    number, going = n.state("turn", ir.DataType.INT64, ()), n.state("going", ir.DataType.BOOL, ())
    begin = n("Mul", [number, n.constant(size)], ir.DataType.INT64, ())
    places = n("Add", [begin, n.constant(np.arange(size))], ir.DataType.INT64, (size,))
    places = n("Min", [places, n.constant(rows.bound - 1)], ir.DataType.INT64, (size,))
    taken = {
        v: n("Gather", [v, places], v.dtype, (size, *graph.static_shape(v)[1:]), axis=0) for v in rows.sliced
    }
    for node in rows.nodes:
        inputs = [v if v is None else taken.get(v, v) for v in _of_turn(node, n, size)]
        shapes = [(size, *graph.static_shape(v)[1:]) for v in node.outputs]
        taken |= dict(zip(node.outputs, n.like(node, inputs, shapes), strict=True))
    on = n("Identity", [going], ir.DataType.BOOL, ())
    for index, node in enumerate(n.made):
        node.name = f"{rows.nodes[-1].name}.turn.{index}"
    return ir.Graph(
        [number, going], [on, *(taken[v] for v in results)], nodes=n.made, name="turn", opset_imports={"": 21}
    )


def _of_turn(node: ir.Node, n: Nodes, size: int) -> Iterator[ir.Value | None]:
    """Operands of a node, its target with the number of slices of a turn."""
    for index, value in enumerate(node.inputs):
        target = index == 1 and node.op_type in ("Reshape", "Expand")
        yield n.constant((size, *graph.static_shape(node.outputs[0])[1:])) if target else value
