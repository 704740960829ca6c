"""Backward operators of MXNet as core operators, so that training graphs in symbol form can be planned.

Operands are gradients of outputs first, then what the forward operator read, or its result, in the order
of MXNet 1.9.1's gradient functions (src/operator, FGradient). Their storage types are rows of
`app.engine.operators.tables.mxnet`.
"""

import math
import re
from collections.abc import Callable

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Made, Replacement, RewriteRule
from app.engine.types.storage import MXNET

Make = Callable[[Made, tuple[ir.Value, ...]], tuple[ir.Value, ...]]

# Gradients of elementwise operators: of (dy, ...) for every operand of the forward operator.
_ELEMENTWISE: dict[str, Make] = {
    "_backward_copy": lambda m, v: (m("Identity", v[0]),),
    "_backward_add": lambda m, v: (m("Identity", v[0]), m("Identity", v[0])),
    "_backward_sub": lambda m, v: (m("Identity", v[0]), m("Neg", v[0])),
    "_backward_mul": lambda m, v: (m("Mul", v[0], v[2]), m("Mul", v[0], v[1])),
    "_backward_div": lambda m, v: (
        m("Div", v[0], v[2]),
        m("Neg", m("Div", m("Mul", v[0], v[1]), m("Mul", v[2], v[2]))),
    ),
    # Of the result y:
    "_backward_relu": lambda m, v: (
        m("Where", m("Greater", v[1], m.number(0, v[1])), v[0], m.number(0, v[1])),
    ),
    "_backward_sigmoid": lambda m, v: (m("Mul", v[0], m("Mul", v[1], m("Sub", m.number(1, v[1]), v[1]))),),
    "_backward_tanh": lambda m, v: (m("Mul", v[0], m("Sub", m.number(1, v[1]), m("Mul", v[1], v[1]))),),
    "_backward_sqrt": lambda m, v: (m("Div", m("Mul", v[0], m.number(0.5, v[1])), v[1]),),
    # Of the operand x:
    "_backward_square": lambda m, v: (m("Mul", v[0], m("Mul", v[1], m.number(2, v[1]))),),
    "_backward_abs": lambda m, v: (m("Mul", v[0], m("Sign", v[1])),),
    "_backward_log": lambda m, v: (m("Div", v[0], v[1]),),
    "_backward_sin": lambda m, v: (m("Mul", v[0], m("Cos", v[1])),),
    "_backward_cos": lambda m, v: (m("Neg", m("Mul", v[0], m("Sin", v[1]))),),
}
_ACTIVATIONS = {"relu": "_backward_relu", "sigmoid": "_backward_sigmoid", "tanh": "_backward_tanh"}


def elementwise_gradient(node: ir.Node) -> Replacement | None:
    """The gradient of an elementwise operator as arithmetic."""
    op = node.op_type
    if op == "_backward_Activation":
        op = _ACTIVATIONS.get(_text(node, "act_type", ""), op)
    if op not in _ELEMENTWISE:
        return None
    made = Made(node)
    return Replacement(_ELEMENTWISE[op](made, _operands(node)), made.nodes)


def convolution_gradient(node: ir.Node) -> Replacement | None:
    """Gradients from (dy, x, w[, bias]): dx is a transposed convolution, dw a convolution of x by dy.

    In dw samples and channels change places, and strides and dilations. Groups are not done.
    """
    dy, x, w = _operands(node)[:3]
    shape, window = graph.shape(x), graph.shape(w)
    if shape is None or window is None or int(_text(node, "num_group", "1")) != 1:
        return None
    rank = len(window) - 2
    stride, dilate = (_numbers(node, name, (1,) * rank) for name in ("stride", "dilate"))
    pad = _numbers(node, "pad", (0,) * rank)
    reach = [d * (k - 1) + 1 for d, k in zip(dilate, window[2:])]
    results = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(shape[2:], pad, reach, stride)]
    missing = tuple(
        n - ((o - 1) * s + r - 2 * p) for n, o, s, r, p in zip(shape[2:], results, stride, reach, pad)
    )
    made = Made(node)
    swap = (1, 0, *range(2, rank + 2))
    outputs: list[ir.Value | None] = [
        made("ConvTranspose", dy, w, strides=stride, dilations=dilate, pads=pad + pad, output_padding=missing)
    ]
    turned = made(
        "Conv", made("Transpose", x, perm=swap), made("Transpose", dy, perm=swap),
        strides=dilate, dilations=stride, pads=pad + pad,
    )  # fmt: skip
    # Pixels that no window reached whole give places beyond the window.
    cut = made(
        "Slice", turned, made.axes(*(0,) * rank), made.axes(*window[2:]), made.axes(*range(2, rank + 2))
    )
    outputs.append(made("Transpose", cut, perm=swap))
    if len(node.outputs) > 2:
        axes = made.axes(0, *range(2, rank + 2))
        outputs.append(made("ReduceSum", dy, axes, keepdims=0))
    return Replacement(outputs, made.nodes)


def fully_connected_gradient(node: ir.Node) -> Replacement | None:
    """Gradients from (dy, x, w[, bias]), x as a matrix: dx = dy w, dw = dy^T x."""
    dy, x, w = _operands(node)[:3]
    shape = graph.shape(x)
    if shape is None:
        return None
    made = Made(node)
    flat = x if len(shape) == 2 else made("Reshape", x, made.axes(shape[0], math.prod(shape[1:])))
    dx = made("MatMul", dy, w)
    if len(shape) != 2:
        dx = made("Reshape", dx, made.axes(*shape))
    outputs: list[ir.Value | None] = [dx, made("Gemm", dy, flat, transA=1)]
    if len(node.outputs) > 2:
        outputs.append(made("ReduceSum", dy, made.axes(0), keepdims=0))
    return Replacement(outputs, made.nodes)


def product_gradient(node: ir.Node) -> Replacement | None:
    """Gradients of dot without transposes, from (dy, a, b): da = dy b^T, db = a^T dy."""
    dy, a, b = _operands(node)[:3]
    if any(_text(node, name, "False") in ("True", "1") for name in ("transpose_a", "transpose_b")):
        return None
    made = Made(node)
    return Replacement((made("Gemm", dy, b, transB=1), made("Gemm", a, dy, transA=1)), made.nodes)


def _operands(node: ir.Node) -> tuple[ir.Value, ...]:
    return tuple(v for v in node.inputs if v is not None)


def _text(node: ir.Node, name: str, default: str) -> str:
    return str(graph.attribute(node, name, default))


def _numbers(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """An attribute such as `(3, 3)`; empty means the default."""
    found = tuple(int(n) for n in re.findall(r"-?\d+", _text(node, name, "")))
    return found or default


ROWS = (
    RewriteRule(elementwise_gradient, (*_ELEMENTWISE, "_backward_Activation"), MXNET),
    RewriteRule(convolution_gradient, ("_backward_Convolution",), MXNET),
    RewriteRule(fully_connected_gradient, ("_backward_FullyConnected",), MXNET),
    RewriteRule(product_gradient, ("_backward_dot",), MXNET),
)
