"""Control flow of ONNX in MXNet's spelling: Scan is `_foreach`, Loop `_while_loop`, If `_cond`.

A nested symbol has variables of its own; attributes tell the operand that each stands for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.mxnet.symbol_file import Entry, Symbol
from app.engine.model.shape_inference.tensor_rules import LONGEST, trip_count
from app.engine.report.mxnet.operators.elementwise import Row
from app.engine.report.mxnet.spelling import FLOAT, Spelling, Unspelled, Writing, is_same

_LONGEST = LONGEST - 1  # turns of a loop that only a condition ends


def _body(c: Spelling, name: str) -> ir.Graph:
    found: ir.Graph = c.node.attributes[name].as_graph()
    return found


def _results(c: Spelling, inner: Writing, values: Sequence[ir.Value]) -> list[Entry]:
    """What a nested symbol gives: each of a node of its own, which no variable is."""
    found: list[Entry] = []
    for value in values:
        entry = Spelling(c.node, inner).entry_of(value)
        if entry in found or not inner.nodes[entry[0]].inputs:
            entry = inner.add("_copy", f"{c.title}.result", (entry,), {})
        found.append(entry)
    return found


@dataclass(frozen=True, slots=True)
class _Nested:
    """A nested symbol, and the value of the outer one by variable, in the order of the variables."""

    symbol: Symbol
    variables: tuple[int, ...]
    outside: tuple[Entry, ...]

    def places(self, operands: Sequence[Entry]) -> str:
        """The place of each variable's value in a list, as an attribute."""
        return str([operands.index(entry) for entry in self.outside])


def _nested(inner: Writing, heads: Sequence[Entry]) -> _Nested:
    """Nodes that heads depend on, in the order in which MXNet numbers it."""
    kept = inner.reachable(heads)
    number = {index: i for i, index in enumerate(kept)}
    nodes = (
        replace(inner.nodes[index], inputs=tuple((number[i], k) for i, k in inner.nodes[index].inputs))
        for index in kept
    )
    symbol = Symbol(tuple(nodes), tuple((number[i], k) for i, k in heads))
    variables = tuple(index for index in kept if index in inner.captured)
    return _Nested(symbol, variables, tuple(inner.captured[index] for index in variables))


def _operands(nested: Sequence[_Nested]) -> list[Entry]:
    """The values of the outer symbol that nested ones read, each once."""
    return list(dict.fromkeys(entry for n in nested for entry in n.outside))


def _used(c: Spelling, inner: Writing, heads: list[Entry], variables: Sequence[Entry]) -> None:
    """Let heads depend on variables, since MXNet knows no others: to each a zero of its variable is added."""
    for place, variable in enumerate(variables):
        if variable[0] not in inner.reachable(heads):
            zero = inner.add("zeros_like", f"{c.title}.unread", (variable,), {})
            heads[place] = inner.add("elemwise_add", f"{c.title}.result", (heads[place], zero), {})


def _stacked(c: Spelling, place: int, entry: Entry) -> Entry:
    """A stacked result in its shape: of scalars MXNet stacks lists of one."""
    shape = c.dims(c.result(place))
    return c.add("Reshape", entry, shape=(-1,)) if len(shape) == 1 else entry


def _is_same_type(a: ir.Value, b: ir.Value) -> bool:
    return a.dtype == b.dtype and is_same(a, b)


def _if(c: Spelling) -> list[Entry]:
    decided = c.writing.nested()
    variable = decided.bound("condition", c.reshaped(c.input(0), (1,)))
    heads = [[decided.add("_copy", f"{c.title}.decided", (variable,), {})]]
    writings = [decided]
    branches = [_body(c, name) for name in ("then_branch", "else_branch")]
    for one, other in zip(*(body.outputs for body in branches)):
        if None in (one.dtype, other.dtype):
            raise Unspelled("a branch does not fit the shapes; MXNet infers both, bind what decides")
        known = one.shape is not None and other.shape is not None
        if one.dtype != other.dtype or (known and one.shape != other.shape):
            raise Unspelled(f"the branches give {one.name!r} and {other.name!r} in different types")
    for body in branches:
        inner = c.writing.nested()
        inner.spell_all(body)
        heads.append(_results(c, inner, body.outputs))
        writings.append(inner)
    nested = [_nested(w, h) for w, h in zip(writings, heads)]
    operands = _operands(nested)
    names = ("cond_input_locs", "then_input_locs", "else_input_locs")
    listed = {name: n.places(operands) for name, n in zip(names, nested)}
    return _added(c, "_cond", operands, tuple(n.symbol for n in nested), listed)


def _added(
    c: Spelling,
    op: str,
    operands: Sequence[Entry],
    symbols: tuple[Symbol, ...],
    attributes: Mapping[str, object],
) -> list[Entry]:
    """The outputs of a node with nested symbols."""
    count = len(symbols[-1].heads) if op != "_while_loop" else len(symbols[1].heads)
    told = {"num_args": len(operands) + len(symbols), "num_outputs": count, **attributes}
    index, _ = c.writing.add(op, f"{c.title}.{op.strip('_')}", tuple(operands), told, symbols)
    return [(index, i) for i in range(count)]


def _scan(c: Spelling) -> list[Entry]:
    """Along the first axis of the data; other axes and directions are nodes around it."""
    body, count = _body(c, "body"), int(c.attribute("num_scan_inputs", 0))
    states = len(c.node.inputs) - count
    outputs = len(c.node.outputs) - states
    inner = c.writing.nested()
    data = [_led(c, states + i, i) for i in range(count)]
    values = (*body.inputs[states:], *body.inputs[:states])
    given = (*data, *(c.input(i) for i in range(states)))
    for value, outside in zip(values, given):
        inner.entries[value] = inner.bound(value.name or "step", outside)
    inner.spell_all(body)
    results = _results(c, inner, (*body.outputs[states:], *body.outputs[:states]))
    bound = [inner.entries[value] for value in values]
    heads = results[outputs:]
    _used(c, inner, heads, bound[count:])
    nested = _nested(inner, (*results[:outputs], *heads))
    place = {variable: i for i, variable in enumerate(nested.variables)}
    if any(entry[0] not in place for entry in bound):
        raise Unspelled("its body does not read all of its data; MXNet's does")
    listed = [place[entry[0]] for entry in bound]
    remain = [i for i in range(len(place)) if i not in listed]
    operands = [*given, *(nested.outside[i] for i in remain)]
    attributes = {
        "num_out_data": outputs,
        "in_data_locs": str(listed[:count]),
        "in_state_locs": str(listed[count:]),
        "remain_locs": str(remain),
    }
    found = _added(c, "_foreach", operands, (nested.symbol,), attributes)
    return [*found[outputs:], *(_turned(c, states + i, i, e) for i, e in enumerate(found[:outputs]))]


def _led(c: Spelling, place: int, index: int) -> Entry:
    """Data whose steps are along its first axis, in order; a step is no scalar but a list of one."""
    axis, entry = _at(c, "scan_input_axes", index) % c.rank(place), c.input(place)
    if axis:
        order = (axis, *(i for i in range(c.rank(place)) if i != axis))
        entry = c.add("transpose", entry, axes=order)
    if _at(c, "scan_input_directions", index):
        entry = c.add("flip", entry, axis=(0,))
    return c.reshaped(entry, (-1, 1)) if c.rank(place) == 1 else entry


def _turned(c: Spelling, place: int, index: int, entry: Entry) -> Entry:
    """A stacked result along its axis and in its direction."""
    entry, rank = _stacked(c, place, entry), len(c.dims(c.result(place)))
    axis = _at(c, "scan_output_axes", index) % rank
    if _at(c, "scan_output_directions", index):
        entry = c.add("flip", entry, axis=(0,))
    if not axis:
        return entry
    order = [*range(1, rank)]
    order.insert(axis, 0)
    return c.add("transpose", entry, axes=tuple(order))


def _at(c: Spelling, name: str, index: int) -> int:
    listed = c.attribute(name, ())
    return int(listed[index]) if listed else 0


def _loop(c: Spelling) -> list[Entry]:
    """Variables of the loop are its turn, its condition and what is carried."""
    body, carried = _body(c, "body"), c.node.inputs[2:]
    stacked = len(c.node.outputs) - len(carried)
    turns = trip_count(c.node)
    for value, received in zip(carried, body.inputs[2:]):
        if value is None or not _is_same_type(value, received):
            raise Unspelled("a carried value changes its shape; MXNet has one for all turns")
    if stacked and not turns:
        raise Unspelled("results are stacked whose number only a run tells; MXNet has a fixed one")
    limit = graph.constant(c.value(0)) if c.has(0) else None
    bound = _LONGEST if limit is None else min(int(limit), _LONGEST)
    number = c.array(np.zeros(1, FLOAT), "turn")
    going = c.input(1) if c.has(1) else c.array(np.ones(1, FLOAT), "going")
    going = c.reshaped(going, (1,))
    first = [number, going, *(c.entry_of(v) for v in carried if v is not None)]
    loop, condition = c.writing.nested(), c.writing.nested()
    variables = []
    for name, outside in zip(("i", "go", *(f"state{i}" for i in range(len(carried)))), first):
        variables.append(loop.bound(f"{c.title}.{name}", outside))
    for value, entry in zip(body.inputs, variables):
        loop.entries[value] = entry
    loop.entries[body.inputs[0]] = loop.add("Cast", f"{c.title}.number", (variables[0],), {"dtype": "int64"})
    loop.spell_all(body)
    next_turn = loop.add("_plus_scalar", f"{c.title}.next", (variables[0],), {"scalar": 1.0})
    results = _results(c, loop, body.outputs)
    states = [next_turn, *results[: 1 + len(carried)]]
    _used(c, loop, states, variables)
    nested = (
        _condition(c, condition, first, is_limited=limit is None and c.has(0)),
        _nested(loop, (*results[1 + len(carried) :], *states)),
    )
    operands = _operands(nested)
    attributes = {
        "max_iterations": max(bound, 1),
        "num_out_data": stacked,
        "cond_input_locs": nested[0].places(operands),
        "func_input_locs": nested[1].places(operands),
        "func_var_locs": str([nested[1].variables.index(v[0]) for v in variables]),
    }
    found = _added(c, "_while_loop", operands, tuple(n.symbol for n in nested), attributes)
    final = found[stacked + 2 :]
    return [*final, *(_stacked(c, len(carried) + i, e) for i, e in enumerate(found[:stacked]))]


def _condition(c: Spelling, inner: Writing, first: Sequence[Entry], *, is_limited: bool) -> _Nested:
    """Goes on while the condition holds, and for a limit that is computed while the turn is below it."""
    going = inner.bound(f"{c.title}.goes", first[1])
    head = inner.add("_copy", f"{c.title}.going", (going,), {})
    if is_limited:
        turn = inner.bound(f"{c.title}.turns", first[0])
        limit = inner.bound(f"{c.title}.limit", c.reshaped(c.add("Cast", c.input(0), dtype=str(FLOAT)), (1,)))
        below = inner.add("_lesser", f"{c.title}.below", (turn, limit), {})
        head = inner.add("elemwise_mul", f"{c.title}.on", (head, below), {})
    return _nested(inner, (head,))


ROWS: Mapping[str, Row] = {"If": _if, "Scan": _scan, "Loop": _loop}
