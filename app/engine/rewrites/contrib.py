"""Operators of onnxruntime (com.microsoft) in those of ONNX, opset 23: fused products, norms, activations.

Source: docs/ContribOperators.md of onnxruntime.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, constant
from app.engine.model.runtime_operators import MICROSOFT

OPSET = 23  # whose operators are made
Build = Callable[["Nodes", ir.Node], list[ir.Value | None] | None]


class Nodes:
    """New nodes in the place of one, in order; their values are named after its first output."""

    def __init__(self, node: ir.Node) -> None:
        self.made: list[ir.Node] = []
        self._name = node.outputs[0].name or node.name or "contrib"

    def __call__(self, op: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """The output of a new node of the default domain, or a list of so many."""
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        node = ir.node(op, given, attributes, num_outputs=outputs)
        self.made.append(node)
        for i, value in enumerate(node.outputs):
            value.name = f"{self._name}.{len(self.made)}.{i}"
        return node.outputs[0] if outputs == 1 else list(node.outputs)

    def constant(self, array: Any, dtype: Any = np.int64) -> ir.Value:
        """A constant."""
        return constant(np.asarray(array, dtype), f"{self._name}.constant")


def is_used(node: ir.Node, *positions: int) -> bool:
    """True if something needs one of these outputs."""
    found = [node.outputs[i] for i in positions if i < len(node.outputs)]
    return any(v.uses() or v.is_graph_output() for v in found)


def first_of(node: ir.Node, *outputs: ir.Value | None) -> list[ir.Value | None]:
    """Replacements of as many outputs as a node has."""
    whole = [*outputs, *[None] * len(node.outputs)]
    return whole[: len(node.outputs)]


def others(node: ir.Node, *names: str) -> dict[str, Any]:
    """Attributes of a node but these, by name."""
    return {k: v.value for k, v in node.attributes.items() if k not in names}


def _summed(n: Nodes, node: ir.Node, bias: int) -> Any:
    """The sum of input, skip and bias."""
    total = n("Add", *node.inputs[:2])
    addend = graph.input_at(node, bias)
    return total if addend is None else n("Add", total, addend)


def skip_layer_normalization(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Add and LayerNormalization."""
    if is_used(node, 1, 2):
        return None
    total = _summed(n, node, 4)
    epsilon = graph.attribute(node, "epsilon", 1e-12)
    gamma, beta = graph.input_at(node, 2), graph.input_at(node, 3)
    y = n("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return first_of(node, y, None, None, total)


def skip_simplified(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Add and RMSNormalization."""
    if is_used(node, 1, 2):
        return None
    total = _summed(n, node, 3)
    epsilon = graph.attribute(node, "epsilon", 1e-12)
    y = n("RMSNormalization", total, graph.input_at(node, 2), axis=-1, epsilon=epsilon)
    return first_of(node, y, None, None, total)


def simplified(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """RMSNormalization, as onnxruntime spells it in the default domain."""
    if is_used(node, 1):
        return None
    axis, epsilon = graph.attribute(node, "axis", -1), graph.attribute(node, "epsilon", 1e-5)
    return first_of(node, n("RMSNormalization", *node.inputs[:2], axis=axis, epsilon=epsilon))


def embed_layer_normalization(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Embeddings of words, positions and segments, summed and normalized."""
    ids, segments, words, places, kinds, gamma, beta, mask, positions = (
        graph.input_at(node, i) for i in range(9)
    )
    shape = None if ids is None else graph.shape(ids)
    if shape is None or (is_used(node, 1) and mask is None):
        return None
    total = n("Gather", words, ids)
    if positions is None:
        limits = (n.constant([i]) for i in (0, shape[1], 0))
        total = n("Add", total, n("Slice", places, *limits))
    else:
        total = n("Add", total, n("Gather", places, positions))
    if segments is not None:
        total = n("Add", total, n("Gather", kinds, segments))
    y = n("LayerNormalization", total, gamma, beta, axis=-1, epsilon=graph.attribute(node, "epsilon", 1e-12))
    lengths = n("ReduceSum", mask, n.constant([1]), keepdims=0) if is_used(node, 1) else None
    return first_of(node, y, lengths, total)


def gelu(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """Gelu, of the sum with a bias where there is one."""
    x, bias = graph.input_at(node, 0), graph.input_at(node, 1)
    form = "tanh" if node.op_type == "FastGelu" else "none"
    return [n("Gelu", x if bias is None else n("Add", x, bias), approximate=form)]


def quick_gelu(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """The product of x and Sigmoid(alpha * x)."""
    (x,) = node.inputs
    if x is None or x.dtype is None:
        return None
    alpha = n.constant(graph.attribute(node, "alpha", 1.702), x.dtype.numpy())
    return [n("Mul", x, n("Sigmoid", n("Mul", x, alpha)))]


def fused_matmul(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """MatMul of operands that are turned, times alpha."""
    if graph.attribute(node, "transBatchA", 0) or graph.attribute(node, "transBatchB", 0):
        return None
    if any(v is None or graph.shape(v) is None for v in node.inputs):
        return None
    a, b = (_turned(n, graph.operand(node, i), graph.attribute(node, f"trans{'AB'[i]}", 0)) for i in (0, 1))
    y, alpha = n("MatMul", a, b), graph.attribute(node, "alpha", 1.0)
    kind = graph.operand(node, 0).dtype
    return [y if alpha == 1.0 or kind is None else n("Mul", y, n.constant(alpha, kind.numpy()))]


def _turned(n: Nodes, value: ir.Value, turn: int) -> ir.Value:
    """The value with its last two axes exchanged, if so."""
    rank = len(graph.static_shape(value))
    if not turn or rank < 2:
        return value
    found: ir.Value = n("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])
    return found


# Activations by name: their attributes in the order of parameters.
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


def _activated(n: Nodes, x: ir.Value, kind: str, parameters: list[float]) -> ir.Value:
    """An activation of x."""
    found: ir.Value
    if kind == "Clip":
        assert x.dtype is None or x.dtype == ir.DataType.FLOAT
        found = n("Clip", x, *(n.constant(p, np.float32) for p in parameters))
    else:
        named: dict[str, Any] = dict(zip(ACTIVATIONS[kind], parameters))
        found = n(kind, x, **named)
    return found


def fused_conv(n: Nodes, node: ir.Node, weights: ir.Value | None = None) -> list[ir.Value | None] | None:
    """Conv, by its second operand or by other weights, a sum with another image, an activation."""
    kind = graph.attribute(node, "activation", "")
    if kind and kind not in ACTIVATIONS:
        return None
    operands = graph.operand(node, 0), weights or node.inputs[1], graph.input_at(node, 2)
    y = n("Conv", *operands, **others(node, "activation", "activation_params"))
    added = graph.input_at(node, 3)
    if added is not None:
        y = n("Add", y, added)
    return [_activated(n, y, kind, list(graph.attribute(node, "activation_params", ()))) if kind else y]


def fused_gemm(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Gemm and an activation."""
    kind = graph.attribute(node, "activation", "")
    if (kind and kind not in ACTIVATIONS) or kind == "Clip":
        return None
    names = ("activation", "activation_alpha", "activation_beta", "activation_gamma")
    y = n("Gemm", *node.inputs, **others(node, *names))
    given = [node.attributes[a].value for a in names[1:] if a in node.attributes]
    return [_activated(n, y, kind, given[: len(ACTIVATIONS[kind])]) if kind else y]


def rotary_embedding(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Pairs of elements turned by angles of their position."""
    x, ids, cos, sin = (graph.input_at(node, i) for i in range(4))
    if not node.domain:
        ids, cos, sin = sin, ids, cos
    if x is None or graph.shape(x) is None or graph.attribute(node, "is_packed_batching", 0):
        return None
    if cos is None or graph.shape(cos) is None or graph.attribute(node, "scale", 1.0) != 1.0:
        return None
    if ids is not None and graph.shape(ids) is None:
        return None
    shape, half = graph.static_shape(x), graph.static_shape(cos)[-1]
    heads = graph.attribute(node, "num_heads", 0) or (shape[2] // (2 * half) if len(shape) == 3 else 0)
    wide, width, batch, length = x, shape[-1], shape[0], shape[-2]
    if len(shape) == 3:  # [batch, positions, heads, width]
        width //= heads
        wide = n("Reshape", x, n.constant([batch, length, heads, width]))
    at = [length, 1] if len(shape) == 3 else [1, length]
    angles = [_at_positions(n, table, ids, (batch, *at, half), length) for table in (cos, sin)]
    turned = rotated(n, wide, angles, 2 * half, width, bool(graph.attribute(node, "interleaved", 0)))
    return [n("Reshape", turned, n.constant(shape)) if len(shape) == 3 else turned]


def _at_positions(
    n: Nodes, table: ir.Value | None, ids: ir.Value | None, shape: tuple[int, ...], length: int
) -> Any:
    """Rows of a table [positions, half] in a shape whose axes are batch, `length` and 1, half."""
    found, batch = table, shape[0]
    if ids is not None:
        if graph.static_shape(ids) == (1,) and (batch, length) != (1, 1):  # the first position
            ids = n("Add", ids, n.constant(np.arange(length)[None]))
            batch = 1
        found = n("Gather", table, ids)
    return n("Reshape", found, n.constant([batch, *shape[1:]]))


def rotated(n: Nodes, x: Any, angles: list[Any], turned: int, width: int, interleaved: bool) -> Any:
    """x, the first `turned` of the `width` elements of its last axis turned."""
    rest: list[Any] = []
    if turned < width:
        x, tail = n("Split", x, n.constant([turned, width - turned]), axis=-1, outputs=2)
        rest = [tail]
    half = turned // 2
    if interleaved:
        pairs = n("Reshape", x, n.constant([0, 0, 0, half, 2]))
        parts = n("Split", pairs, n.constant([1, 1]), axis=-1, outputs=2)
        a, b = (n("Squeeze", p, n.constant([-1])) for p in parts)
    else:
        a, b = n("Split", x, n.constant([half, half]), axis=-1, outputs=2)
    cos, sin = angles
    real = n("Sub", n("Mul", a, cos), n("Mul", b, sin))
    imaginary = n("Add", n("Mul", a, sin), n("Mul", b, cos))
    if interleaved:
        both = [n("Unsqueeze", v, n.constant([-1])) for v in (real, imaginary)]
        whole = n("Reshape", n("Concat", *both, axis=-1), n.constant([0, 0, 0, turned]))
        return n("Concat", whole, *rest, axis=-1) if rest else whole
    return n("Concat", real, imaginary, *rest, axis=-1)


def bias_split_gelu(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """The first half of a sum with a bias, times Gelu of the second."""
    first, second = n("Split", n("Add", *node.inputs[:2]), axis=-1, num_outputs=2, outputs=2)
    return [n("Mul", first, n("Gelu", second))]


CHANNELS_SECOND, CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # axes of images that lie in the other order


def group_norm(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """GroupNormalization of images whose channels are last or first, and Swish."""
    x, gamma, beta = (graph.operand(node, i) for i in range(3))
    y = _groups_normalized(n, node, x, (gamma, beta))
    return None if y is None else [y]


def skip_group_norm(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """The same of the sum of an image, another one and a bias."""
    x, gamma, beta, skip = (graph.operand(node, i) for i in range(4))
    bias, shape = graph.input_at(node, 4), graph.shape(skip)
    if shape is None or (not graph.attribute(node, "channels_last", 1) and (bias or len(shape) == 2)):
        return None
    if len(shape) == 2:
        skip = n("Reshape", skip, n.constant([shape[0], 1, 1, shape[1]]))
    total = n("Add", x, skip)
    total = total if bias is None else n("Add", total, bias)
    total.dtype, total.shape = x.dtype, x.shape
    y = _groups_normalized(n, node, total, (gamma, beta))
    return None if y is None else first_of(node, y, total)


def _groups_normalized(n: Nodes, node: ir.Node, x: ir.Value, scales: tuple[ir.Value, ...]) -> ir.Value | None:
    shape, activation = graph.shape(x), graph.attribute(node, "activation", 0)
    if x.dtype is None or shape is None or len(shape) != 4 or activation not in (0, 1):
        return None
    last = graph.attribute(node, "channels_last", 1)
    y: ir.Value = n("Transpose", x, perm=CHANNELS_SECOND) if last else x
    wide = [v if v.dtype == x.dtype else n("Cast", v, to=int(x.dtype)) for v in scales]
    epsilon = graph.attribute(node, "epsilon", 1e-5)
    y = n("GroupNormalization", y, *wide, epsilon=epsilon, num_groups=graph.attribute(node, "groups", 1))
    y = n("Mul", y, n("Sigmoid", y)) if activation else y
    return n("Transpose", y, perm=CHANNELS_LAST) if last else y


def nhwc_conv(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Conv of an image whose channels are last; those of its weights are too, as its fusion writes them."""
    x, w = graph.operand(node, 0), graph.operand(node, 1)
    shapes = graph.shape(x), graph.shape(w)
    if any(s is None or len(s) != 4 for s in shapes):
        return None
    image = n("Transpose", x, perm=CHANNELS_SECOND)
    y = n("Conv", image, n("Transpose", w, perm=CHANNELS_SECOND), graph.input_at(node, 2), **others(node))
    return [n("Transpose", y, perm=CHANNELS_LAST)]


def nhwc_max_pool(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """MaxPool of an image whose channels are last."""
    image = n("Transpose", *node.inputs, perm=CHANNELS_SECOND)
    return [n("Transpose", n("MaxPool", image, **others(node)), perm=CHANNELS_LAST)]


def bias_add(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """The sum of three."""
    x, bias, skip = node.inputs
    return [n("Add", n("Add", x, bias), skip)]


def of_onnx(*outputs: int, **added: Any) -> Build:
    """The operator of ONNX with that name, with more attributes; `outputs` are positions of its results."""
    places = outputs or (0,)

    def build(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
        count = max(places) + 1
        found = n(node.op_type, *node.inputs, outputs=count, **others(node), **added)
        return first_of(node, *([found] if count == 1 else [found[i] for i in places]))

    return build


def grid_sample(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """GridSample of ONNX, whose modes have other names."""
    mode = graph.attribute(node, "mode", "bilinear").removeprefix("bi")
    return [n("GridSample", *node.inputs, **others(node, "mode"), mode=mode)]


def expand_dims(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Unsqueeze of one axis."""
    axis = graph.constant(graph.input_at(node, 1))
    return None if axis is None else [n("Unsqueeze", node.inputs[0], n.constant([int(axis.item())]))]


def _single(n: Nodes, value: ir.Value | None) -> Any:
    """The one element of a value as a number without axes."""
    return n("Reshape", value, n.constant(np.zeros(0)))


def range_of(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Range, in steps of one if none are given; limits may have an axis."""
    kind = graph.operand(node, 0).dtype
    if kind is None:
        return None
    step = graph.input_at(node, 2)
    limits = [_single(n, v) for v in node.inputs[:2]]
    return [n("Range", *limits, n.constant(1, kind.numpy()) if step is None else _single(n, step))]


def pad(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """Pad by a list that may be a row."""
    x, pads = node.inputs[:2]
    value = graph.input_at(node, 2)
    filled = None if value is None else _single(n, value)
    return [n("Pad", x, n("Reshape", pads, n.constant([-1])), filled, **others(node))]


def wide_product(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """MatMul of 16-bit integers in int32."""
    return [n("MatMul", *(n("Cast", v, to=int(ir.DataType.INT32)) for v in node.inputs))]


def conv_transpose(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """ConvTranspose, its pads a constant operand."""
    pads = graph.constant(graph.input_at(node, 2))
    if pads is None:
        return None
    x, w, bias = node.inputs[0], node.inputs[1], graph.input_at(node, 3)
    return [n("ConvTranspose", x, w, bias, **others(node, "pads"), pads=[int(p) for p in pads])]


def rule(name: str, build: Build) -> Callable[[ir.Node], Replacement | None]:
    """A rewrite rule from a function that makes nodes, or none where it does not apply."""

    def apply(node: ir.Node) -> Replacement | None:
        if (graph.owner(node).opset_imports.get("") or 0) < OPSET:
            return None
        n = Nodes(node)
        outputs = build(n, node)
        return None if outputs is None else Replacement(outputs, n.made)

    apply.__name__ = name
    return apply


BUILDS: tuple[tuple[str, Build, str], ...] = (
    ("SkipLayerNormalization", skip_layer_normalization, MICROSOFT),
    ("SkipSimplifiedLayerNormalization", skip_simplified, MICROSOFT),
    ("SimplifiedLayerNormalization", simplified, ""),
    ("EmbedLayerNormalization", embed_layer_normalization, MICROSOFT),
    ("Gelu", gelu, MICROSOFT),
    ("BiasGelu", gelu, MICROSOFT),
    ("FastGelu", gelu, MICROSOFT),
    ("QuickGelu", quick_gelu, MICROSOFT),
    ("FusedMatMul", fused_matmul, MICROSOFT),
    ("TransposeMatMul", fused_matmul, MICROSOFT),
    ("FusedConv", fused_conv, MICROSOFT),
    ("FusedGemm", fused_gemm, MICROSOFT),
    ("RotaryEmbedding", rotary_embedding, MICROSOFT),
    ("RotaryEmbedding", rotary_embedding, ""),
    ("BiasSplitGelu", bias_split_gelu, MICROSOFT),
    ("GroupNorm", group_norm, MICROSOFT),
    ("SkipGroupNorm", skip_group_norm, MICROSOFT),
    ("NhwcConv", nhwc_conv, MICROSOFT),
    ("NhwcMaxPool", nhwc_max_pool, MICROSOFT),
    ("BiasAdd", bias_add, MICROSOFT),
    ("Trilu", of_onnx(), MICROSOFT),
    ("GatherND", of_onnx(), MICROSOFT),
    ("Unique", of_onnx(0, 2, 3, sorted=0), MICROSOFT),
    ("GridSample", grid_sample, MICROSOFT),
    ("ExpandDims", expand_dims, MICROSOFT),
    ("Range", range_of, MICROSOFT),
    ("Pad", pad, MICROSOFT),
    ("MatMulInteger16", wide_product, MICROSOFT),
    ("ConvTransposeWithDynamicPads", conv_transpose, MICROSOFT),
)


def rows(builds: tuple[tuple[str, Build, str], ...]) -> tuple[RewriteRule, ...]:
    """Rules of operators."""
    return tuple(
        RewriteRule(rule(f"{op}_as_core_operators", build), (op,), domain=domain)
        for op, build, domain in builds
    )


ROWS = rows(BUILDS)
