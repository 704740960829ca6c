"""Published transformers with random weights, as ONNX, for `make bench-stream` beside image networks.

Structures: Devlin et al., 2019 (arXiv:1810.04805, BERT-base, 128 tokens, from its embeddings on);
Dosovitskiy et al., 2021 (arXiv:2010.11929, ViT-B/16, 196 patches and the class token).
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper  # noqa: TID251  # as the files of others are made

WIDTH, HEADS, HIDDEN, LAYERS = 768, 12, 3072, 12


class Encoder:
    """Nodes in order; `x` is the last value, of so many tokens."""

    def __init__(self, tokens: int) -> None:
        self._random = np.random.default_rng(0)
        self.tokens = tokens
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.x = "x"
        depth = WIDTH // HEADS
        self._heads = self._array(np.array([1, tokens, HEADS, depth], np.int64))
        self._merged = self._array(np.array([1, tokens, WIDTH], np.int64))
        self._scale = self._array(np.array(depth**-0.5, np.float32))

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Append a node."""
        self.x = f"v{len(self.nodes)}"
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [self.x], name, **attributes))
        return self.x

    def linear(self, x: str, outputs: int, inputs: int = WIDTH) -> str:
        """Append a product with constant weights, and its bias."""
        weights = self._random.standard_normal((inputs, outputs)) * inputs**-0.5
        bias = self._random.standard_normal(outputs) * 0.1
        return self.op("Add", self.op("MatMul", x, self._array(weights)), self._array(bias))

    def normalized(self, x: str) -> str:
        """Append a normalization of tokens."""
        scale, bias = np.ones(WIDTH), np.zeros(WIDTH)
        return self.op("LayerNormalization", x, self._array(scale), self._array(bias), axis=-1)

    def attention(self, x: str) -> str:
        """Append self-attention."""
        q, k, v = (
            self.op("Transpose", self.op("Reshape", self.linear(x, WIDTH), self._heads), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = self.op("Softmax", self.op("Mul", self.op("MatMul", q, k), self._scale), axis=-1)
        result = self.op("Transpose", self.op("MatMul", scores, v), perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", result, self._merged), WIDTH)

    def feed_forward(self, x: str) -> str:
        """Append the two products of a layer with a Gelu between them."""
        return self.linear(self.op("Gelu", self.linear(x, HIDDEN)), WIDTH, HIDDEN)

    def save(self, path: Path) -> Path:
        """Write the file."""
        x, y = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, self.tokens, WIDTH])
            for name in ("x", self.x)
        )
        graph = helper.make_graph(self.nodes, path.stem, [x], [y], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
        return path

    def _array(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> str:
        name = f"w{len(self.weights)}"
        kind = np.float32 if array.dtype == np.float64 else array.dtype
        self.weights.append(numpy_helper.from_array(array.astype(kind), name))
        return name


def bert_base(path: Path) -> Path:
    """Write BERT-base: sums are normalized."""
    net = Encoder(128)
    for _ in range(LAYERS):
        x = net.x
        x = net.normalized(net.op("Add", net.attention(x), x))
        net.normalized(net.op("Add", net.feed_forward(x), x))
    return net.save(path)


def vit_b16(path: Path) -> Path:
    """Write ViT-B/16: what layers read is normalized."""
    net = Encoder(197)
    for _ in range(LAYERS):
        x = net.x
        x = net.op("Add", net.attention(net.normalized(x)), x)
        net.op("Add", net.feed_forward(net.normalized(x)), x)
    net.normalized(net.x)
    return net.save(path)
