"""Operators that the kernels for GPUs compute as others: gathers by fixed indices, GELU, LRN and more."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, constant, value_like


def _value(like: ir.Value, name: str, shape: tuple[int, ...]) -> ir.Value:
    return ir.Value(name=f"{like.name}.{name}", shape=ir.Shape(list(shape)), type=like.type)


def _node(op: str, inputs: list[ir.Value | None], output: ir.Value, **attributes: Any) -> ir.Node:
    return ir.node(op, inputs, attributes, outputs=[output])


def gather_of_rows(node: ir.Node) -> Replacement | None:
    """GatherND by constant indices = Gather along its indexed axes, taken as one."""
    x, indices = node.inputs
    shape = None if x is None else graph.shape(x)
    array = graph.constant(indices)
    if x is None or shape is None or array is None or graph.attribute(node, "batch_dims", 0):
        return None
    depth = array.shape[-1]
    extents = np.array(shape[:depth], np.int64)
    if not depth or array.size == 0 or np.any(array < -extents) or np.any(array >= extents):
        return None
    steps = np.array([math.prod(shape[i + 1 : depth]) for i in range(depth)], np.int64)
    flat = (np.where(array < 0, array + extents, array) * steps).sum(axis=-1)
    y = node.outputs[0]
    joined = (math.prod(shape[:depth]), *shape[depth:])
    rows = _value(x, f"{y.name}.rows", joined)
    to = constant(np.array(joined, np.int64), f"{y.name}.shape")
    gathered = value_like(y, "")
    return Replacement(
        [gathered],
        [
            _node("Reshape", [x, to], rows),
            _node("Gather", [rows, constant(flat, f"{y.name}.indices")], gathered, axis=0),
        ],
    )


def _factors(value: ir.Value, limit: int) -> list[ir.Value]:
    """The operands of a tree of Mul nodes, at most so many; the tree's inner values have one reader."""
    found: list[ir.Value] = []
    pending = [value]
    while pending and len(found) + len(pending) <= limit:
        current = pending.pop()
        node = current.producer()
        if node is not None and node.op_type == "Mul" and (current is value or len(current.uses()) == 1):
            pending += [v for v in node.inputs if v is not None]
        else:
            found.append(current)
    return found if not pending else []


def _other(node: ir.Node | None, op: str, number: float) -> ir.Value | None:
    """Operand that an operator combines with a constant number, in either order."""
    if node is None or node.op_type != op:
        return None
    a, b = node.inputs
    for value, constant_ in ((a, b), (b, a)):
        found = graph.number(constant_)
        if found is not None and abs(found - number) < NEAR * max(abs(number), 1.0):
            return value
    return None


NEAR = 1e-5  # what models write for roots is off by less


def gelu(node: ir.Node) -> Replacement | None:
    """Gelu(x) = x / 2 * (1 + Erf(x / sqrt(2))), and the same with Tanh is its approximation.

    As one node it stays recognizable when constants are rounded to 16 bits.
    """
    output = node.outputs[0]
    factors = _factors(output, 3)
    if len(factors) != 3 or output.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    for i, gate in enumerate(factors):
        curve = _other(gate.producer(), "Add", 1.0)
        bent = None if curve is None else curve.producer()
        rest = factors[:i] + factors[i + 1 :]
        x = next((v for v, h in (rest, rest[::-1]) if graph.number(h) == 0.5), None)
        if bent is None or x is None or graph.shape(x) != graph.shape(output):
            continue
        inner = bent.inputs[0]
        if bent.op_type == "Erf" and _is_rooted(inner, x):
            approximate = "none"
        elif bent.op_type == "Tanh" and _is_cubic(inner, x):
            approximate = "tanh"
        else:
            continue
        made = value_like(output, "")
        return Replacement([made], [_node("Gelu", [x], made, approximate=approximate)])
    return None


def _is_rooted(value: ir.Value | None, x: ir.Value) -> bool:
    """True if a value is x / sqrt(2)."""
    node = None if value is None else value.producer()
    if _other(node, "Mul", 0.5**0.5) is x:
        return True
    return (
        node is not None
        and node.op_type == "Div"
        and node.inputs[0] is x
        and _other(node, "Div", 2**0.5) is x
    )


def _is_cubic(value: ir.Value | None, x: ir.Value) -> bool:
    """True if a value is sqrt(2 / pi) (x + 0.044715 x^3)."""
    total = _other(None if value is None else value.producer(), "Mul", math.sqrt(2 / math.pi))
    node = None if total is None else total.producer()
    if node is None or node.op_type != "Add" or x not in node.inputs:
        return False
    term = next((v for v in node.inputs if v is not x), None)
    if term is None:
        return False
    cube = _other(term.producer(), "Mul", 0.044715)
    if cube is None:
        return False
    power = cube.producer()
    if power is not None and power.op_type == "Pow":
        return power.inputs[0] is x and graph.number(power.inputs[1]) == 3.0
    return _factors(cube, 3) == [x, x, x]


def triangle(node: ir.Node) -> Replacement | None:
    """Trilu by a constant diagonal = Where over a constant triangle."""
    x, k = node.inputs[0], graph.input_at(node, 1)
    shape = None if x is None else graph.shape(x)
    diagonal = np.array(0) if k is None else graph.constant(k)
    if x is None or shape is None or diagonal is None or x.dtype is None:
        return None
    y, whole = node.outputs[0], np.ones(shape[-2:], bool)
    number = int(diagonal.reshape(-1)[0])
    seen = np.triu(whole, number) if graph.attribute(node, "upper", 1) else np.tril(whole, number)
    made = value_like(y, "")
    zero = constant(np.zeros((), x.dtype.numpy()), f"{y.name}.zero", x.dtype)
    return Replacement([made], [_node("Where", [constant(seen, f"{y.name}.seen"), x, zero], made)])


def added_apart(node: ir.Node) -> Replacement | None:
    """Gemm with a C that is neither constant nor of the result's shape = Gemm and an addition."""
    c, y = graph.input_at(node, 2), node.outputs[0]
    if c is None or c.dtype is None or graph.is_constant(c) or graph.shape(y) is None:
        return None
    beta = float(graph.attribute(node, "beta", 1.0))
    if graph.shape(c) == graph.shape(y) and beta == 1.0:
        return None
    product, scaled = value_like(y, f"{y.name}.product"), value_like(c, f"{y.name}.scaled")
    made = value_like(y, "")
    kept = [a for name, a in node.attributes.items() if name != "beta"]
    factor = constant(np.array(beta, c.dtype.numpy()), f"{y.name}.beta", c.dtype)
    return Replacement(
        [made],
        [
            ir.Node("", "Gemm", node.inputs[:2], kept, outputs=[product]),
            _node("Mul", [c, factor], scaled),
            _node("Add", [product, scaled], made),
        ],
    )


def response_of_neighbors(node: ir.Node) -> Replacement | None:
    """LRN = x / (bias + alpha mean)^beta, the mean of squares of `size` channels being a pool along them."""
    x, y = node.inputs[0], node.outputs[0]
    shape = None if x is None else graph.shape(x)
    if x is None or shape is None or x.dtype is None or len(shape) < 3:
        return None
    size = graph.attribute(node, "size", 1)
    before, after = (size - 1) // 2, size // 2
    n, c, *places = shape
    channels = (n, 1, c, math.prod(places))
    kind = x.dtype

    def number(name: str, default: float) -> ir.Value:
        found = graph.attribute(node, name, default)
        return constant(np.array(found, kind.numpy()), f"{y.name}.{name}", kind)

    def whole(name: str, numbers: Sequence[int]) -> ir.Value:
        return constant(np.array(numbers, np.int64), f"{y.name}.{name}")

    names = ("squares", "mean", "scaled", "shifted", "power")
    squares, mean, scaled, shifted, power = (value_like(x, f"{y.name}.{name}") for name in names)
    lines, pooled = (_value(x, f"{y.name}.{name}", channels) for name in ("lines", "pooled"))
    made = value_like(y, "")
    pads = (before, 0, after, 0)
    return Replacement(
        [made],
        [
            _node("Mul", [x, x], squares),
            _node("Reshape", [squares, whole("lines", channels)], lines),
            _node("AveragePool", [lines], pooled, kernel_shape=(size, 1), pads=pads, count_include_pad=1),
            _node("Reshape", [pooled, whole("shape", shape)], mean),
            _node("Mul", [mean, number("alpha", 1e-4)], scaled),
            _node("Add", [scaled, number("bias", 1.0)], shifted),
            _node("Pow", [shifted, number("beta", 0.75)], power),
            _node("Div", [x, power], made),
        ],
    )


REWRITES = (
    RewriteRule(triangle, ("Trilu",), nested=False, backends=("cuda",)),
    RewriteRule(added_apart, ("Gemm",), nested=False, backends=("cuda",)),
    RewriteRule(response_of_neighbors, ("LRN",), nested=False, backends=("cuda",)),
    RewriteRule(gelu, ("Mul",), nested=False, backends=("cuda",)),
    RewriteRule(gather_of_rows, ("GatherND",), nested=False, backends=("cuda",)),
)
