"""Layers of transformers with random weights, as ONNX, for streams of matrices and heads."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

HEADS, DEPTH = 3, 32
WIDTH = HEADS * DEPTH


def _saved(path: Path, lines: list[str], shapes: dict[str, tuple[int, ...]], tokens: int) -> Path:
    """The model of lines of ONNX text whose constants have these shapes; y is its result."""
    text = f"""
    <ir_version: 10, opset_import: ["": 20]>
    layer (float[1,{tokens},{WIDTH}] x) => (float[1,{tokens},{WIDTH}] y) {{ {chr(10).join(lines)} }}
    """
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        array = (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, path)
    return path


def feed_forward(path: Path, tokens: int, hidden: int = 200, last: str = "Add(sums, x)") -> Path:
    """Two products with a Gelu between them; `last` makes the result of the sums of the second."""
    lines = [
        "first = MatMul(x, w0)",
        "biased = Add(first, b0)",
        "gated = Gelu(biased)",
        "second = MatMul(gated, w1)",
        "sums = Add(second, b1)",
        f"y = {last}",
    ]
    shapes = {"w0": (WIDTH, hidden), "b0": (hidden,), "w1": (hidden, WIDTH), "b1": (WIDTH,)}
    return _saved(path, lines, shapes, tokens)


def attention(path: Path, tokens: int, *, masked: bool = False) -> Path:
    """Self-attention with a residual sum; a mask adds its first tokens' products to the scores of all heads."""
    lines = [f"heads = Constant<value = int64[4] {{1, {tokens}, {HEADS}, {DEPTH}}}>()"]
    lines += [f"merged = Constant<value = int64[3] {{1, {tokens}, {WIDTH}}}>()"]
    lines += ["scale = Constant<value = float {0.2}>()"]
    for i, perm in enumerate(("0, 2, 1, 3", "0, 2, 3, 1", "0, 2, 1, 3")):
        lines += [f"p{i} = MatMul(x, w{i})", f"a{i} = Add(p{i}, b{i})", f"r{i} = Reshape(a{i}, heads)"]
        lines += [f"t{i} = Transpose<perm = [{perm}]>(r{i})"]
    lines += ["products = MatMul(t0, t1)", "scores = Mul(products, scale)"]
    if masked:
        lines += ["turned = Transpose<perm = [0, 2, 1]>(x)", "mask3 = MatMul(x, turned)"]
        lines += ["axis = Constant<value = int64[1] {1}>()", "mask = Unsqueeze(mask3, axis)"]
        lines += ["masked = Add(scores, mask)"]
    lines += [
        f"weights = Softmax<axis = -1>({'masked' if masked else 'scores'})",
        "sums = MatMul(weights, t2)",
    ]
    lines += ["tokens = Transpose<perm = [0, 2, 1, 3]>(sums)", "joined = Reshape(tokens, merged)"]
    lines += ["out = MatMul(joined, w3)", "y = Add(out, x)"]
    shapes: dict[str, tuple[int, ...]] = {f"w{i}": (WIDTH, WIDTH) for i in range(4)}
    return _saved(path, lines, {**shapes, **{f"b{i}": (WIDTH,) for i in range(3)}}, tokens)
