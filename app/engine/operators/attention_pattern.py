"""Attention as graphs spell it: MatMul, scale, mask, Softmax, MatMul, and the movement of heads around them.

What splits a projection into heads, turns the keys and merges the heads again moves elements without
changing them, so a kernel can read and write them where they lie, by strides.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Argument
from app.engine.core.group import Group, of_group

Array = np.ndarray[Any, Any]
RANK = 4  # batch, heads, rows, columns


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A matrix for every head: [batch, heads, rows, columns] in a value, by strides; all in elements."""

    value: Argument
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """y[b, h, s, :] = softmax(scale * q k' + mask) v.

    Attributes:
        q, k, v, y: k as [batch, heads, keys, depth]; keys and values may have fewer heads than queries.
        mask: [batch, heads, rows, keys], bool or what is added; may tell about fewer keys, the others
            are hidden.
        causal: whether query s sees keys up to s + past only.
        zero: whether a row that sees no key is zero; else NaN.
        clears_nan: whether a row whose weights are NaN is zero, whatever made them so; with `zero`.
    """

    q: Operand
    k: Operand
    v: Operand
    y: Operand
    mask: Operand | None
    scale: float
    causal: bool = False
    past: int = 0
    zero: bool = False
    clears_nan: bool = False


def spread(shape: tuple[int, ...]) -> Array:
    """An array whose strides count elements of a row-major tensor; never to be read."""
    strides = np.cumprod((1, *shape[:0:-1]), dtype=np.int64)[::-1] if shape else ()
    return np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), shape, tuple(int(s) for s in strides))


def operand(value: ir.Value, array: Array, origin: Array) -> Operand | str:
    """The operand that a view `array` of a spread value is."""
    if array.ndim > RANK:
        return f"{value.name!r} has {array.ndim - 2} axes of heads, at most {RANK - 2} are supported"
    wide = array[(None,) * (RANK - array.ndim)]
    start = array.__array_interface__["data"][0] - origin.__array_interface__["data"][0]
    return Operand(value, start, wide.shape, wide.strides)


def _reshape(node: ir.Node, _output: ir.Value, x: Array) -> Array | None:
    try:
        return x.reshape(graph.static_shape(node.outputs[0]), copy=False)
    except ValueError:
        return None


def _transpose(node: ir.Node, _output: ir.Value, x: Array) -> Array:
    return x.transpose(graph.attribute(node, "perm", tuple(range(x.ndim))[::-1]))


def _slice(node: ir.Node, _output: ir.Value, x: Array) -> Array | None:
    given = [graph.constant(graph.input_at(node, i)) for i in range(1, 5)]
    starts, ends, axes, steps = given
    if (
        starts is None
        or ends is None
        or any(a is None and graph.input_at(node, i) for i, a in enumerate(given, 1))
    ):
        return None
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    if np.any(steps <= 0):
        return None
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps):
        index[axis] = slice(int(start), int(end), int(step))
    return x[tuple(index)]


def _gather(node: ir.Node, _output: ir.Value, x: Array) -> Array | None:
    index = graph.constant(node.inputs[1])
    if index is None or index.ndim:
        return None
    axis = graph.attribute(node, "axis", 0) % x.ndim
    return x[(slice(None),) * axis + (int(index),)]


def _split(node: ir.Node, output: ir.Value, x: Array) -> Array:
    axis = graph.attribute(node, "axis", 0) % x.ndim
    before = node.outputs[: node.outputs.index(output)]
    start = sum(graph.static_shape(v)[axis] for v in before)
    size = graph.static_shape(output)[axis]
    return x[(slice(None),) * axis + (slice(start, start + size),)]


def _expand(node: ir.Node, _output: ir.Value, x: Array) -> Array:
    return np.broadcast_to(x, graph.static_shape(node.outputs[0]))


def _times(_node: ir.Node, _output: ir.Value, x: Array) -> Array:
    return x


HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# What each operator makes of a view of its first input; None where elements would have to move. A Cast widens
# 16-bit floats, which kernels do as they load keys and values.
MOVES: Mapping[str, Callable[[ir.Node, ir.Value, Array], Array | None]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"), _reshape),
    "Transpose": _transpose,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _split,
    "Expand": _expand,
    "Mul": _times,
    "Cast": _times,
}


def _moved_input(node: ir.Node) -> ir.Value | None:
    """Copy that a node makes, maybe scaled by one number; None for others."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in MOVES:
        return None
    if any(graph.shape(v) is None for v in (*node.inputs[:1], *node.outputs) if v is not None and v.name):
        return None
    if node.op_type == "Mul":
        return _scaled(node)[0]
    if node.op_type == "Cast" and not is_widening(node):
        return None
    return node.inputs[0]


def is_widening(node: ir.Node) -> bool:
    """True of a Cast from 16-bit floats to float32."""
    source = node.inputs[0]
    return source is not None and source.dtype in HALVES and node.outputs[0].dtype == ir.DataType.FLOAT


def _scaled(node: ir.Node) -> tuple[ir.Value | None, float]:
    """(x, c) of a product with a constant c that leaves the shape as it is."""
    for x, other in (node.inputs, node.inputs[::-1]):
        factor = graph.number(other)
        if factor is not None and x is not None and graph.shape(x) == graph.shape(node.outputs[0]):
            return x, factor
    return None, 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """The nodes of an attention: first product to second."""

    first: ir.Node
    between: tuple[ir.Node, ...]  # scale and mask
    softmax: ir.Node
    clearing: tuple[ir.Node, ...]  # of NaN
    second: ir.Node
    mask: ir.Value | None
    scale: float

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return self.first, *self.between, self.softmax, *self.clearing, self.second


def _cleared(weights: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes of Where(IsNaN(weights), 0, weights), as PyTorch spells weights that see no key; or none."""
    users = {use.node.op_type: use.node for use in weights.uses()}
    where, is_nan = users.get("Where"), users.get("IsNaN")
    if where is None or is_nan is None or where.inputs[0] is not is_nan.outputs[0]:
        return ()
    if where.inputs[2] is not weights or graph.number(where.inputs[1]) != 0.0:
        return ()
    return (is_nan, where) if graph.shape(where.outputs[0]) == graph.shape(weights) else ()


def _chain(softmax: ir.Node) -> _Chain | None:
    """The chain that a Softmax is in, if it is one."""
    value, scores = softmax.inputs[0], softmax.outputs[0]
    clearing = _cleared(scores)
    weights = clearing[-1].outputs[0] if clearing else scores
    second = next((use.node for use in weights.uses()), None)
    shape = graph.shape(scores)
    if shape is None or second is None or second.op_type != "MatMul" or second.inputs[0] is not weights:
        return None
    if graph.attribute(softmax, "axis", -1) % max(len(shape), 1) != len(shape) - 1:
        return None
    between: list[ir.Node] = []
    mask, scale = None, 1.0
    while value is not None and (node := value.producer()) is not None:
        if graph.shape(value) != shape:
            return None
        if node.op_type == "MatMul":
            return _Chain(node, tuple(reversed(between)), softmax, clearing, second, mask, scale)
        between.append(node)
        if node.op_type == "Mul":
            value, factor = _scaled(node)
            scale *= factor
        elif node.op_type == "Add" and mask is None and scale == 1.0:
            a, b = node.inputs
            value, mask = (
                (b, a) if _leads_to_product(b, shape) and not _leads_to_product(a, shape) else (a, b)
            )
        else:
            return None
    return None


def _leads_to_product(value: ir.Value | None, shape: tuple[int, ...]) -> bool:
    if value is None or graph.shape(value) != shape:
        return False
    node = value.producer()
    if node is not None and node.op_type == "Mul":
        inner = _scaled(node)[0]
        node = None if inner is None else inner.producer()
    return node is not None and node.op_type == "MatMul"


def proposals(softmax: ir.Node) -> Iterator[tuple[ir.Node, ...]]:
    """Sets of nodes that may be one attention around a Softmax, the largest first, each with its root first.

    Nodes that move operands are among them as far as the chain goes; whoever asks leaves out those
    that something else reads.
    """
    chain = _chain(softmax)
    if chain is None:
        return
    around: dict[ir.Node, None] = {}
    pending = [*chain.first.inputs, chain.second.inputs[1]]
    while pending:
        value = pending.pop()
        node = None if value is None else value.producer()
        if node is not None and node not in around and (source := _moved_input(node)) is not None:
            around[node] = None
            pending.append(source)
    after = [use.node for use in chain.second.outputs[0].uses()]
    if len(after) == 1 and after[0].op_type == "Transpose":
        yield (after[0], *chain.nodes, *around)
    yield (chain.second, *chain.nodes[:-1], *around)
    yield (chain.second, *chain.nodes[:-1])


@of_group
def read(group: Group) -> Core | str:
    """The attention that the nodes of a group are, or why they are none."""
    softmax = next((n for n in group.nodes if n.op_type == "Softmax"), None)
    chain = None if softmax is None else _chain(softmax)
    if chain is None or len(group.outputs) != 1:
        return "is no chain of MatMul, scale, mask, Softmax and MatMul with one output"
    for operand_ in (*group.inputs, *group.outputs):
        if graph.is_dynamic(operand_):
            return f"value {operand_.name!r} has no static shape"
    scores = graph.static_shape(chain.softmax.outputs[0])
    result = graph.static_shape(chain.second.outputs[0])
    if len(scores) < 2 or result[:-1] != scores[:-1]:
        return f"products of shapes {scores} and {result} are not of the same heads"
    inside = frozenset(group.nodes)
    if not inside.issuperset(chain.nodes):
        return "a part of the chain is outside the group"
    factors = (*chain.first.inputs, chain.second.inputs[1])
    traced = [_traced(v, inside, scores[:-2], i == 1) for i, v in enumerate(factors) if v is not None]
    told = [t for t in traced if isinstance(t, str)]
    if told:
        return told[0]
    (q, q_scale), (k, k_scale), (v, v_scale) = (t for t in traced if not isinstance(t, str))
    if q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1] or q.shape[1] != (scores[-3:-2] or (1,))[0]:
        return f"{q.shape[1]} heads of queries, {k.shape[1]} of keys and {v.shape[1]} of values"
    if v_scale != 1.0:
        return "values are scaled"
    (output,) = group.outputs
    origin = spread(graph.static_shape(output))
    root = graph.writer(output)
    view = origin
    if root is not chain.second:
        perm = graph.attribute(root, "perm", tuple(range(origin.ndim))[::-1])
        view = origin.transpose(np.argsort(perm))
    y = operand(output, view, origin)
    if isinstance(y, str):
        return y
    mask = None
    if chain.mask is not None:
        origin = spread(graph.static_shape(chain.mask))
        added = operand(chain.mask, np.broadcast_to(origin, scores), origin)
        if isinstance(added, str):
            return added
        mask = added
    clears = bool(chain.clearing)
    return Core(q, k, v, y, mask, chain.scale * q_scale * k_scale, zero=clears, clears_nan=clears)


def _traced(
    value: ir.Value, inside: frozenset[ir.Node], heads: tuple[int, ...], turned: bool
) -> tuple[Operand, float] | str:
    """Where a factor of a product lies outside the group, and what it is multiplied by."""
    path: list[tuple[ir.Node, ir.Value]] = []
    factor = 1.0
    while (node := value.producer()) is not None and node in inside:
        source = _moved_input(node)
        if source is None:
            return f"{node.op_type} {node.name!r} computes a factor"
        if node.op_type == "Mul":
            factor *= _scaled(node)[1]
        path.append((node, value))
        value = source
    shape = graph.static_shape(value)
    origin = view = spread(shape)
    sharing = 1  # heads of the product that are one head of the view
    for node, output in reversed(path):
        shared = _shared_heads(node, view) if sharing == 1 else None
        if shared is not None:
            view, sharing = shared
            continue
        if sharing > 1 and not _keeps_heads(node):
            return f"{node.op_type} {node.name!r} moves heads that are shared"
        made = MOVES[node.op_type](node, output, view)
        if made is None:
            return f"{node.op_type} {node.name!r} moves elements"
        view = made
    if view.ndim < 2:
        return f"factor {value.name!r} is a vector"
    view = view.swapaxes(-1, -2) if turned else view
    if sharing > 1:
        heads = (*heads[:-1], heads[-1] // sharing)
    found = operand(value, np.broadcast_to(view, (*heads, *view.shape[-2:])), origin)
    return found if isinstance(found, str) else (found, factor)


def _shared_heads(node: ir.Node, x: Array) -> tuple[Array, int] | None:
    """(view of each head once, heads that share it) of a Reshape that makes heads of expanded ones.

    [batch, heads, sharing, rows, columns], equal along `sharing`, becomes [batch, heads * sharing, rows,
    columns], as graphs spell keys and values that several heads of queries read.
    """
    if node.op_type != "Reshape" or x.ndim != RANK + 1 or x.strides[2] or x.shape[2] == 1:
        return None
    batch, heads, sharing, *rest = x.shape
    if graph.static_shape(node.outputs[0]) != (batch, heads * sharing, *rest):
        return None
    return x[:, :, 0], sharing


def _keeps_heads(node: ir.Node) -> bool:
    """True if a node leaves the first two of four axes as they are."""
    if node.op_type == "Transpose":
        return tuple(graph.attribute(node, "perm", ()))[:2] == (0, 1)
    return node.op_type in ("Mul", "Cast", "Identity")
