"""MXNet's control flow as ONNX nodes: `_foreach` is a Scan, `_while_loop` a Loop, `_cond` an If.

Subgraphs have variables of their own; attributes tell which operand each stands for.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Builder, Call, dimension
from app.engine.model.mxnet.operators.elementwise import Translation, Values


def _subgraphs(c: Call, count: int) -> None:
    if len(c.node.subgraphs) != count:
        raise c.error(f"{len(c.node.subgraphs)} subgraphs; expected {count}")


def _chosen(c: Call, values: Sequence[ir.Value], name: str) -> list[ir.Value]:
    """The values at the places that an attribute lists."""
    places = c.attributes.integers(name, ())
    if any(not 0 <= p < len(values) for p in places):
        raise c.attributes.error(name, f"places in a list of {len(values)}")
    return [values[p] for p in places]


def _variable(c: Call, like: ir.Value, name: str, *, is_slice: bool = False) -> ir.Value:
    """An input of a body, like a value or like one step of it."""
    if is_slice and c.rank(like) < 1:
        raise c.error(f"{like.name!r} has no axis to go along")
    shape = None if like.shape is None else ir.Shape(list(like.shape)[1 if is_slice else 0 :])
    return ir.Value(name=c.builder.unique(f"{c.node.name}.{name}"), shape=shape, type=like.type)


def _counts(c: Call) -> tuple[int, int]:
    """The number of stacked outputs, and of all."""
    data, total = c.attributes.integer("num_out_data"), c.attributes.integer("num_outputs")
    if not 0 <= data <= total <= 4096 or total == 0:
        raise c.error(f"{data} of {total} outputs are stacked; expected 1 to 4096 outputs")
    return data, total


def _typed(value: ir.Value, like: ir.Value, steps: object = None) -> None:
    """Give an output the type of a body's, stacked if there are steps."""
    value.type = like.type
    dims = None if like.shape is None else list(like.shape)
    value.shape = None if dims is None else ir.Shape(dims if steps is None else [steps, *dims])  # type: ignore[list-item]  # a dimension of another shape


def _foreach(c: Call) -> Values:
    _subgraphs(c, 1)
    body = c.node.subgraphs[0]
    stacked, total = _counts(c)
    places = [c.attributes.integers(f"{name}_locs", ()) for name in ("in_data", "in_state", "remain")]
    variables = len(body.variables)
    if sorted(p for kind in places for p in kind) != list(range(variables)) or variables != len(c.inputs):
        raise c.error(f"places {places} of {variables} variables and {len(c.inputs)} operands do not fit")
    data, states = c.inputs[: len(places[0])], c.inputs[len(places[0]) : len(places[0]) + len(places[1])]
    if not data:
        raise c.error("a loop along no operand; expected one")
    steps = None if data[0].shape is None else data[0].shape[0]
    turn = _scalar(c, "i", ir.DataType.INT64)
    inner = c.builder.nested(c.node.name, (_length(c, steps), turn))
    slices = [_variable(c, x, "step", is_slice=True) for x in data]
    carried = [_variable(c, x, "state") for x in states]
    bound = dict(
        zip((p for kind in places for p in kind), (*slices, *carried, *c.inputs[len(data) + len(states) :]))
    )
    results = c.convert(body, inner, [bound[i] for i in range(variables)])
    if len(results) != total or total - stacked != len(states):
        raise c.error(
            f"{len(results)} results of the body; expected {stacked} stacked and {len(states)} states"
        )
    if turn.uses():
        slices, data = [*slices, turn], (*data, _counted(c, data[0]))
    outputs = (*results[stacked:], *results[:stacked])
    graph = inner.graph((*carried, *slices), outputs, f"{c.node.name}.body")
    found = c.many("Scan", *states, *data, count=total, body=graph, num_scan_inputs=len(data))
    for i, (value, like) in enumerate(zip(found, graph.outputs)):
        _typed(value, like, steps if i >= len(states) else None)
    return (*found[len(states) :], *found[: len(states)])


def _scalar(c: Call, name: str, dtype: ir.DataType) -> ir.Value:
    """An input of a body that is one number."""
    return ir.Value(
        name=c.builder.unique(f"{c.node.name}.{name}"), shape=ir.Shape([]), type=ir.TensorType(dtype)
    )


def _length(c: Call, steps: int | ir.SymbolicDim | None) -> int | ir.SymbolicDim:
    return ir.SymbolicDim(dimension(f"{c.node.name}.turns")) if steps is None else steps


def _counted(c: Call, along: ir.Value) -> ir.Value:
    """The numbers of the turns along an operand."""
    zero, one = (c.const(n, np.dtype("i8")) for n in (0, 1))
    count = c.one("Squeeze", c.one("Shape", along, start=0, end=1), c.ints(0))
    return c.one("Range", zero, count, one)


def _bool(c: Call, builder: Builder, value: ir.Value) -> ir.Value:
    """A condition as a scalar bool."""
    (cast,) = builder.add("Cast", [value], {"to": ir.DataType.BOOL.value}, 1, c.node.name)
    shape = builder.constant(np.zeros(0, np.int64), f"{c.node.name}.constant")
    return builder.add("Reshape", [cast, shape], {}, 1, c.node.name)[0]


def _while_loop(c: Call) -> Values:
    """Stacked outputs are as long as the iterations may be; rows of iterations that were not made are 0."""
    _subgraphs(c, 2)
    condition, body = c.node.subgraphs
    stacked, total = _counts(c)
    limit = c.attributes.integer("max_iterations")
    of_condition, of_body = (c.attributes.integers(f"{n}_input_locs", ()) for n in ("cond", "func"))
    _chosen(c, c.inputs, "cond_input_locs")
    _chosen(c, c.inputs, "func_input_locs")
    initial = _chosen(c, _chosen(c, c.inputs, "func_input_locs"), "func_var_locs")
    carried_at = c.attributes.integers("func_var_locs", ())  # among the variables of the body
    places = [of_body[p] for p in carried_at]

    def condition_of(builder: Builder, values: Sequence[ir.Value]) -> ir.Value:
        found = c.convert(condition, builder, [values[p] for p in of_condition])
        return _bool(c, builder, found[0])

    count, going = _scalar(c, "i", ir.DataType.INT64), _scalar(c, "go", ir.DataType.BOOL)
    inner = c.builder.nested(c.node.name, (limit, count))
    carried = [_variable(c, x, "variable") for x in initial]
    operands = [c.inputs[p] for p in of_body]  # one may be there twice, carried and as it is
    for place, value in zip(carried_at, carried):
        operands[place] = value
    results = c.convert(body, inner, operands)
    if len(results) != total or total - stacked != len(carried):
        raise c.error(
            f"{len(results)} results of the body; expected {stacked} stacked and {len(carried)} variables"
        )
    values = list(c.inputs)
    for place, value in zip(places, results[stacked:]):
        values[place] = value
    outputs = (condition_of(inner, values), *results[stacked:], *results[:stacked])
    graph = inner.graph((count, going, *carried), outputs, f"{c.node.name}.body")
    most = c.const(limit, np.dtype("i8"))
    found = c.many("Loop", most, condition_of(c.builder, c.inputs), *initial, count=total, body=graph)
    for i, (value, like) in enumerate(zip(found, graph.outputs[1:])):
        _typed(
            value, like, None if i < len(carried) else ir.SymbolicDim(dimension(f"{c.node.name}.iterations"))
        )
    return (*(_padded(c, v, limit) for v in found[len(carried) :]), *found[: len(carried)])


def _padded(c: Call, x: ir.Value, limit: int) -> ir.Value:
    """A stacked output, as long as the iterations may be."""
    rank = c.rank(x)
    missing = c.one("Sub", c.ints(limit), c.one("Shape", x, start=0, end=1))
    zeros = c.ints(*[0] * rank)
    rest = [c.ints(*[0] * (rank - 1))] if rank > 1 else []
    return c.one("Pad", x, c.one("Concat", zeros, missing, *rest, axis=0), c.const(0, x))


def _cond(c: Call) -> Values:
    _subgraphs(c, 3)
    names = ("cond_input_locs", "then_input_locs", "else_input_locs")
    condition, *branches = ((g, _chosen(c, c.inputs, n)) for g, n in zip(c.node.subgraphs, names))
    decided = _bool(c, c.builder, c.convert(condition[0], c.builder, condition[1])[0])
    total = c.attributes.integer("num_outputs")
    graphs = []
    for (symbol, operands), name in zip(branches, ("then", "else")):
        inner = c.builder.nested(f"{c.node.name}.{name}")
        results = c.convert(symbol, inner, operands)
        if len(results) != total:
            raise c.error(f"{len(results)} results of the branch {name!r}; expected {total}")
        graphs.append(inner.graph((), results, f"{c.node.name}.{name}"))
    found = c.many("If", decided, count=total, then_branch=graphs[0], else_branch=graphs[1])
    for value, a, b in zip(found, graphs[0].outputs, graphs[1].outputs):
        _typed(value, a)
        value.shape = a.shape if a.shape == b.shape else None
    return found


ROWS: Mapping[str, Translation] = {"_foreach": _foreach, "_while_loop": _while_loop, "_cond": _cond}
