"""Five networks as they are exported, scaled down until a simulator runs them in seconds.

Each has every operator and every kind of wiring of the network it is named after, in the order of its
graph; channels, layers and images are as few as that allows. Transformers are the same function at any size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]


@dataclass
class Network:
    """ONNX text in the making, with its seeded weights."""

    inputs: str
    outputs: str
    lines: list[str] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    count: int = 0

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A weight that keeps the size of activations."""
        deep = int(np.prod(shape[1:])) or 1
        array = self.random.standard_normal(shape) * (deep**-0.5 if scale is None else scale)
        return self.constant(array.astype(np.float32))

    def constant(self, array: Any) -> str:
        self.count += 1
        name = f"c{self.count}"
        self.weights[name] = np.asarray(array)
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, whose name it returns."""
        self.count += 1
        told = ", ".join(f"{k}={_told(v)}" for k, v in attributes.items())
        self.lines.append(f"v{self.count} = {op}{f' <{told}>' if told else ''} ({', '.join(inputs)})")
        return f"v{self.count}"

    def name(self, value: str, output: str) -> None:
        self.lines.append(f"{output} = Identity ({value})")

    def conv(
        self, x: str, ci: int, co: int, k: int, stride: int = 1, groups: int = 1, bias: bool = True
    ) -> str:
        more = (self.weight(co, scale=0.3),) if bias else ()
        w = self.weight(co, ci // groups, k, k)
        pads = [k // 2] * 4
        return self.add(
            "Conv", x, w, *more, kernel_shape=[k, k], strides=[stride] * 2, pads=pads, group=groups
        )

    def norm(self, x: str, n: int) -> str:
        scale = self.constant(self.random.uniform(0.5, 1.5, n).astype(np.float32))
        return self.add("LayerNormalization", x, scale, self.weight(n, scale=0.2), axis=-1, epsilon=1e-5)

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float) -> str:
        return self.constant(np.float32(number))

    def save(self, path: Path) -> Path:
        head = f'<ir_version: 10, opset_import: ["": 21]> g ({self.inputs}) => ({self.outputs})'
        proto = onnx.parser.parse_model(f"{head} {{ {' '.join(self.lines)} }}")
        for name, array in self.weights.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        onnx.save(proto, path)
        return path


def _told(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def resnet50() -> Network:
    """A stem of seven by seven, a pool, bottlenecks with and without a projection, a classifier."""
    g = Network("float[1,3,10,10] x", "float[1,10] y")
    v = g.add("Relu", g.conv("x", 3, 8, 7, 2))
    v = g.add("MaxPool", v, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stride, ci in ((1, 8), (2, 16), (1, 16)):
        a = g.add("Relu", g.conv(v, ci, 8, 1))
        a = g.add("Relu", g.conv(a, 8, 8, 3, stride))
        a = g.conv(a, 8, 16, 1)
        skip = v if stride == 1 and ci == 16 else g.conv(v, ci, 16, 1, stride)
        v = g.add("Relu", g.add("Add", a, skip))
    v = g.add("ReduceMean", v, g.ints(2, 3), keepdims=1)
    v = g.add("Reshape", v, g.ints(1, 16))
    g.name(g.add("Gemm", v, g.weight(10, 16), g.weight(10, scale=0.2), transB=1), "y")
    return g


def mobilenetv2() -> Network:
    """Inverted residuals: expand, depthwise, project; ReLU6 as Clip."""
    g = Network("float[1,3,8,8] x", "float[1,7] y")

    def clipped(x: str) -> str:
        return g.add("Clip", x, g.scalar(0.0), g.scalar(6.0))

    v = clipped(g.conv("x", 3, 8, 3, 2))
    v = g.conv(clipped(g.conv(v, 8, 8, 3, groups=8)), 8, 8, 1)
    for stride in (1, 2):
        a = clipped(g.conv(v, 8, 16, 1))
        a = clipped(g.conv(a, 16, 16, 3, stride, groups=16))
        a = g.conv(a, 16, 8, 1)
        v = g.add("Add", v, a) if stride == 1 else a
    v = g.add("ReduceMean", clipped(g.conv(v, 8, 20, 1)), g.ints(2, 3), keepdims=1)
    v = g.add("Reshape", v, g.ints(1, 20))
    g.name(g.add("Gemm", v, g.weight(7, 20), g.weight(7, scale=0.2), transB=1), "y")
    return g


@dataclass(frozen=True)
class Size:
    """Of a transformer.

    Attributes:
        layers: how many.
        hidden: elements of a token.
        heads: that share them.
        tokens: of BERT's input, or those that GPT-2's cache holds.
        vocabulary: rows of the table of tokens.
        positions: rows of the table of places.
    """

    layers: int
    hidden: int
    heads: int
    tokens: int
    vocabulary: int
    positions: int

    @property
    def depth(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


BERT_TOY, BERT_MINI = Size(1, 16, 2, 6, 30, 6), Size(4, 256, 4, 64, 30522, 512)
GPT2_TOY, GPT2_MINI = Size(2, 16, 2, 5, 30, 12), Size(3, 192, 6, 32, 8192, 1024)


def _heads(g: Network, x: str, size: Size, perm: list[int]) -> str:
    shape = g.ints(1, size.tokens, size.heads, size.depth)
    return g.add("Transpose", g.add("Reshape", x, shape), perm=perm)


def bert_mini(size: Size = BERT_TOY) -> Network:
    """Embeddings by ids, a mask gathered from the attention mask, post-norm layers with the error function."""
    s, h = size.tokens, size.hidden
    g = Network(f"int64[1,{s}] input_ids, int64[1,{s}] attention_mask", f"float[1,{s},{h}] y")
    tokens = g.add("Gather", g.weight(size.vocabulary, h), "input_ids", axis=0)
    kinds = g.add("GatherElements", g.ints(*([0] * 2 * s)), g.ints(*range(s)), axis=0)
    places = g.add("Slice", g.weight(size.positions, h), g.ints(0), g.ints(s), g.ints(0))
    typed = g.add("Gather", g.weight(2, h), kinds, axis=0)
    v = g.norm(g.add("Add", g.add("Add", tokens, typed), places), h)
    seen = g.add("Cast", "attention_mask", to=9)
    pairs = np.stack([np.zeros(s, np.int64), np.arange(s)], axis=-1).reshape(1, 1, 1, s, 2)
    rows = g.add("GatherND", seen, g.constant(pairs))
    allowed = g.add("And", rows, g.constant(np.ones((1, 1, s, s), bool)))
    mask = g.add("Where", allowed, g.scalar(0.0), g.scalar(-3.4028234663852886e38))
    for _ in range(size.layers):
        q, k, w = (g.add("Add", g.add("MatMul", v, g.weight(h, h)), g.weight(h, scale=0.2)) for _ in range(3))
        root = g.scalar(size.depth**-0.25)
        q = g.add("Mul", _heads(g, q, size, [0, 2, 1, 3]), root)
        k = g.add("Mul", _heads(g, k, size, [0, 2, 3, 1]), root)
        scores = g.add("Softmax", g.add("Add", g.add("MatMul", q, k), mask), axis=-1)
        mixed = g.add("MatMul", scores, _heads(g, w, size, [0, 2, 1, 3]))
        mixed = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints(1, s, h))
        out = g.add("Add", g.add("MatMul", mixed, g.weight(h, h)), g.weight(h, scale=0.2))
        v = g.norm(g.add("Add", out, v), h)
        up = g.add("Add", g.add("MatMul", v, g.weight(h, 4 * h)), g.weight(4 * h, scale=0.2))
        half = g.add("Mul", up, g.scalar(0.5))
        erf = g.add("Erf", g.add("Div", up, g.scalar(2**0.5)))
        up = g.add("Mul", half, g.add("Add", erf, g.scalar(1.0)))
        down = g.add("Add", g.add("MatMul", up, g.weight(4 * h, h)), g.weight(h, scale=0.2))
        v = g.norm(g.add("Add", down, v), h)
    g.name(v, "y")
    return g


def gpt2_mini_decode(size: Size = GPT2_TOY) -> Network:
    """One token against a cache of keys and values, which grows by one; pre-norm, GELU by tanh."""
    h, d, heads, past = size.hidden, size.depth, size.heads, size.tokens
    cache = f"{size.layers},2,1,{heads}"
    g = Network(
        f"int64[1,1] input_ids, int64[1,1] position_ids, float[{cache},{past},{d}] past",
        f"float[1,1,{size.vocabulary}] logits, float[{cache},{past + 1},{d}] present",
    )
    words, places = g.weight(size.vocabulary, h), g.weight(size.positions, h)
    v = g.add("Add", g.add("Gather", words, "input_ids"), g.add("Gather", places, "position_ids"))
    layers = []
    for layer in range(size.layers):
        own = g.add("Gather", "past", g.constant(np.int64(layer)), axis=0)
        x = g.norm(v, h)
        x = g.add("Add", g.add("MatMul", x, g.weight(h, 3 * h)), g.weight(3 * h, scale=0.2))
        parts = [f"p{layer}_{i}" for i in range(3)]
        g.lines.append(f"{', '.join(parts)} = Split <axis=2> ({x}, {g.ints(h, h, h)})")
        q, *new = (g.add("Reshape", p, g.ints(1, heads, 1, d)) for p in parts)
        held = [g.add("Gather", own, g.constant(np.int64(i)), axis=0) for i in range(2)]
        k, w = (g.add("Concat", old, one, axis=2) for old, one in zip(held, new))
        scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.add("Softmax", g.add("Mul", scores, g.scalar(d**-0.5)), axis=-1)
        x = g.add("Reshape", g.add("MatMul", scores, w), g.ints(1, 1, h))
        x = g.add("Add", g.add("MatMul", x, g.weight(h, h)), g.weight(h, scale=0.2))
        v = g.add("Add", x, v)
        x = g.add("Add", g.add("MatMul", g.norm(v, h), g.weight(h, 4 * h)), g.weight(4 * h, scale=0.2))
        cube = g.add("Mul", g.add("Pow", x, g.scalar(3.0)), g.scalar(0.044715))
        inner = g.add("Mul", g.add("Add", x, cube), g.scalar(0.7978845608028654))
        gate = g.add("Add", g.add("Tanh", inner), g.scalar(1.0))
        x = g.add("Mul", g.add("Mul", x, g.scalar(0.5)), gate)
        v = g.add("Add", g.add("Add", g.add("MatMul", x, g.weight(4 * h, h)), g.weight(h, scale=0.2)), v)
        pair = [g.add("Unsqueeze", part, g.ints(0)) for part in (k, w)]
        layers.append(g.add("Unsqueeze", g.add("Concat", *pair, axis=0), g.ints(0)))
    g.name(g.add("MatMul", g.norm(v, h), g.add("Transpose", words, perm=[1, 0])), "logits")
    g.name(g.add("Concat", *layers, axis=0), "present")
    return g


def ppocrv4_det() -> Network:
    """Learnable affine layers, squeeze and excite, a pyramid of resized maps, transposed convolutions."""
    g = Network("float[1,3,8,8] x", "float[1,1,8,8] y")

    def affine(x: str) -> str:
        return g.add("Add", g.add("Mul", x, g.constant(np.float32([1.2]))), g.constant(np.float32([0.1])))

    def hard_swish(x: str) -> str:
        clipped = g.add("Clip", g.add("Add", x, g.scalar(3.0)), g.scalar(0.0), g.scalar(6.0))
        return g.add("Div", g.add("Mul", x, clipped), g.scalar(6.0))

    def excited(x: str, c: int) -> str:
        s = g.add("Relu", g.conv(g.add("GlobalAveragePool", x), c, c // 4, 1))
        s = g.add("HardSigmoid", g.conv(s, c // 4, c, 1), alpha=1 / 6, beta=0.5)
        return g.add("Add", x, g.add("Mul", x, s))

    v = g.conv("x", 3, 8, 3, 2)
    v = affine(hard_swish(affine(g.conv(v, 8, 8, 3, groups=8))))
    maps = [v]
    for c in (8, 12):
        v = affine(hard_swish(affine(g.conv(v, maps and c if c == 8 else 8, c, 3, 2))))
        v = excited(v, c)
        maps.append(v)
    maps = [g.conv(m, c, 8, 1, bias=False) for m, c in zip(maps, (8, 8, 12))]
    scales = g.constant(np.float32([1, 1, 2, 2]))
    for i in (1, 0):
        up = g.add("Resize", maps[i + 1], "", scales, mode="nearest",
                   coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
        maps[i] = g.add("Add", maps[i], up)
    resized = [maps[0]]
    for i, factor in ((1, 2.0), (2, 4.0)):
        by = g.constant(np.float32([1, 1, factor, factor]))
        m = excited(g.conv(maps[i], 8, 8, 3, bias=False), 8)
        resized.append(g.add("Resize", m, "", by, mode="nearest",
                             coordinate_transformation_mode="asymmetric", nearest_mode="floor"))  # fmt: skip
    v = g.add("Concat", *resized, axis=1)
    v = g.add("Relu", g.conv(v, 24, 4, 3))
    v = g.add(
        "ConvTranspose", v, g.weight(4, 4, 2, 2), g.weight(4, scale=0.2), strides=[2, 2], kernel_shape=[2, 2]
    )
    v = g.conv(g.add("Relu", v), 4, 1, 1)
    g.name(g.add("Sigmoid", v), "y")
    return g


def inputs() -> Mapping[str, Mapping[str, Array]]:
    """Inputs of each network, scaled down."""
    random = np.random.default_rng(5)

    def image(*shape: int) -> dict[str, Array]:
        return {"x": random.standard_normal(shape).astype(np.float32)}

    bert, gpt2 = BERT_TOY, GPT2_TOY
    mask = np.ones((1, bert.tokens), np.int64)
    mask[0, -2:] = 0
    shape = gpt2.layers, 2, 1, gpt2.heads, gpt2.tokens, gpt2.depth
    past = random.standard_normal(shape).astype(np.float32)
    return {
        "resnet50": image(1, 3, 10, 10),
        "mobilenetv2": image(1, 3, 8, 8),
        "bert_mini": {
            "input_ids": random.integers(0, bert.vocabulary, (1, bert.tokens)),
            "attention_mask": mask,
        },
        "gpt2_mini_decode": {
            "input_ids": np.array([[7]]),
            "position_ids": np.array([[gpt2.tokens]]),
            "past": past,
        },
        "ppocrv4_det": image(1, 3, 8, 8),
    }


NETWORKS = {f.__name__: f for f in (resnet50, mobilenetv2, bert_mini, gpt2_mini_decode, ppocrv4_det)}
