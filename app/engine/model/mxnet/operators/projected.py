"""MXNet's LSTM whose state is projected to fewer numbers, as Scans: ONNX has no such layer.

Parameters are one list: of each layer and direction the weights of the input, of the state and of the
projection, then likewise the two biases. Gates are in the order of MXNet: input, forget, cell, output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.model.mxnet.builder import Builder, Call

_GATES = 4
_MOST = 256  # layers


@dataclass(frozen=True, slots=True)
class _Sizes:
    layers: int
    directions: int
    hidden: int
    projected: int
    first: int

    def width(self, layer: int) -> int:
        """Size of the input of a layer."""
        return self.first if layer == 0 else self.directions * self.projected

    @property
    def total(self) -> int:
        """The number of all parameters."""
        rows = _GATES * self.hidden
        return sum(
            self.directions * (rows * (self.width(n) + self.projected + 2) + self.projected * self.hidden)
            for n in range(self.layers)
        )


def layers(c: Call) -> tuple[ir.Value, ...]:
    """The output of the last layer, then the last states of all, projected ones and cells, if asked for."""
    sizes = _sizes(c)
    count, directions, hidden = sizes.layers, sizes.directions, sizes.hidden
    x, kept, at = c.inputs[0], [], 0
    biases = sizes.total - 2 * _GATES * hidden * count * directions
    for layer in range(count):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            shapes = ((_GATES * hidden, sizes.width(layer)), (_GATES * hidden, sizes.projected))
            weights = []
            for shape in (*shapes, (sizes.projected, hidden)):
                weights.append(_part(c, at, shape))
                at += shape[0] * shape[1]
            both = _part(c, biases + 2 * _GATES * hidden * place, (2, _GATES * hidden))
            bias = c.one("ReduceSum", both, c.ints(0), keepdims=0)
            states = [_state(c, slot, place) for slot in (2, 3)]
            *last, y = _direction(c, x, (*weights, bias), states, sizes, is_reversed=direction == 1)
            outputs.append(y)
            kept.append([c.one("Unsqueeze", state, c.ints(0)) for state in last])
        x = outputs[0] if len(outputs) == 1 else c.one("Concat", *outputs, axis=2)
    if not c.attributes.flag("state_outputs"):
        return (x,)
    stacked = (list(states) for states in zip(*kept))
    return (x, *(s[0] if len(s) == 1 else c.one("Concat", *s, axis=0) for s in stacked))


def _sizes(c: Call) -> _Sizes:
    """Sizes of the layers; where that of the input is not known, it follows from the number of parameters."""
    count, hidden = c.attributes.integer("num_layers"), c.attributes.integer("state_size")
    projected, directions = c.attributes.integer("projection_size"), 1 + c.attributes.flag("bidirectional")
    if not 1 <= count <= _MOST or min(hidden, projected) < 1:
        raise c.error(
            f"{count} layers of {hidden}, projected to {projected}; expected 1 to {_MOST} of 1 at least"
        )
    width, total = c.extent(c.inputs[0], 2), c.extent(c.inputs[1], 0)
    if width is None and total is not None:
        rest = _Sizes(count, directions, hidden, projected, 0).total
        width = (total - rest) // (directions * _GATES * hidden)
    if width is None or width < 1:
        raise c.error("neither the size of the input nor the number of parameters is known")
    sizes = _Sizes(count, directions, hidden, projected, width)
    if total is not None and total != sizes.total:
        raise c.error(f"{total} parameters; inputs of {width} need {sizes.total}")
    return sizes


def _part(c: Call, at: int, shape: tuple[int, int]) -> ir.Value:
    """A matrix of the list of parameters."""
    flat = c.one("Slice", c.inputs[1], c.ints(at), c.ints(at + shape[0] * shape[1]), c.ints(0))
    return c.one("Reshape", flat, c.ints(*shape))


def _state(c: Call, slot: int, place: int) -> ir.Value:
    """The first state of a direction; one that has no batch is that of every sequence."""
    row = c.one("Slice", c.inputs[slot], c.ints(place), c.ints(place + 1), c.ints(0))
    state = c.one("Squeeze", row, c.ints(0))
    if c.extent(state, 0) != 1 or c.extent(c.inputs[0], 1) == 1:
        return state
    batch = c.one("Shape", c.inputs[0], start=1, end=2)
    return c.one("Expand", state, c.one("Concat", batch, c.ints(1), axis=0))


def _direction(
    c: Call,
    x: ir.Value,
    weights: tuple[ir.Value, ...],
    states: Sequence[ir.Value],
    sizes: _Sizes,
    *,
    is_reversed: bool,
) -> tuple[ir.Value, ...]:
    """Last states, and the projected state of every step; products with the inputs are before the Scan."""
    of_input, of_state, projection, bias = weights
    given = c.one("Add", c.one("MatMul", x, c.one("Transpose", of_input, perm=[1, 0])), bias)
    turned = c.one("Transpose", of_state, perm=[1, 0]), c.one("Transpose", projection, perm=[1, 0])
    inner = c.builder.nested(c.node.name)
    steps, batch = list(x.shape)[:2] if x.shape is not None else (None, None)
    rows = [ir.Shape([batch, n]) for n in (sizes.projected, sizes.hidden, _GATES * sizes.hidden)]
    variables = [
        ir.Value(name=c.builder.unique(f"{c.node.name}.{name}"), shape=shape, type=x.type)
        for name, shape in zip(("state", "cell", "step"), rows)
    ]
    results = _cell(inner, c.node.name, variables, turned)
    graph = inner.graph(variables, results, f"{c.node.name}.body")
    way = [int(is_reversed)]
    found = c.many(
        "Scan", *states, given, count=3, body=graph, num_scan_inputs=1,
        scan_input_directions=way, scan_output_directions=way,
    )  # fmt: skip
    for value, shape in zip((*found, *graph.outputs), (*rows[:2], None, *rows[:2], rows[0])):
        value.type, value.shape = x.type, shape
    found[2].shape = ir.Shape([steps, *rows[0]])
    return found


def _cell(
    inner: Builder, name: str, variables: Sequence[ir.Value], weights: tuple[ir.Value, ir.Value]
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The next projected state and cell, and the state again, which is stacked."""

    def one(op: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        return inner.add(op, inputs, dict(attributes), 1, name)[0]

    state, cell, given = variables
    sums = one("Add", given, one("MatMul", state, weights[0]))
    read, forget, new, out = inner.add("Split", [sums], {"axis": 1, "num_outputs": 4}, 4, name)
    kept = one("Mul", one("Sigmoid", forget), cell)
    cell = one("Add", kept, one("Mul", one("Sigmoid", read), one("Tanh", new)))
    state = one("MatMul", one("Mul", one("Sigmoid", out), one("Tanh", cell)), weights[1])
    return state, cell, one("Identity", state)
