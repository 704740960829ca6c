"""Networks whose input shapes are free: a text encoder, a U-Net and a detector, with seeded weights."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

Spelled = dict[str, list[int | str]]


class Builder:
    """A graph that grows node by node; weights are drawn in the order in which they are asked for."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._lines: list[str] = []
        self._weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: int | str | Sequence[int]) -> str:
        """Name of the output of a new node."""
        name = f"v{len(self._lines)}"
        told = ", ".join(f"{key} = {json.dumps(value)}" for key, value in attributes.items())
        self._lines.append(f"{name} = {op} {f'<{told}>' if told else ''} ({', '.join(inputs)})")
        return name

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """Name of a new initializer."""
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Random floats that keep the scale of what they are multiplied with."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self.constant(self._rng.standard_normal(shape) / np.sqrt(fan_in), np.float32)

    def conv(self, x: str, channels: int, out: int, kernel: int = 3, stride: int = 1) -> str:
        """Convolution with bias, padded to the same size over the stride."""
        return self.add(
            *("Conv", x, self.weight(out, channels, kernel, kernel), self.weight(out)),
            kernel_shape=[kernel] * 2,
            pads=[kernel // 2] * 4,
            strides=[stride] * 2,
        )

    def model(self, inputs: str, output: str) -> onnx.ModelProto:
        """The model; `inputs` as ONNX text has them."""
        body = "\n".join(self._lines)
        model = onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["": 17]> network ({inputs}) => (float {output}) {{\n{body}\n}}'
        )
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.graph.initializer.extend(self._weights)
        return model


def encoder(layers: int, width: int, heads: int, words: int = 8000, longest: int = 512) -> onnx.ModelProto:
    """A text encoder as BERT: ids and mask [N, L], post-norm layers."""
    b = Builder()
    zero, one, two = b.constant([0]), b.constant([1]), b.constant([2])
    shape = b.add("Shape", "ids")
    rows, length = b.add("Slice", shape, zero, one), b.add("Slice", shape, one, two)
    positions = b.add("Slice", b.weight(1, longest, width), zero, length, one)
    x = b.add("Add", b.add("Gather", b.weight(words, width), "ids"), positions)
    kept = b.add("Unsqueeze", b.add("Cast", "mask", to=1), b.constant([1, 2]))
    bias = b.add("Mul", b.add("Sub", kept, b.constant(1.0, np.float32)), b.constant(1e4, np.float32))
    split = b.add("Concat", rows, length, b.constant([heads, width // heads]), axis=0)
    flat = b.add("Concat", rows, length, b.constant([width]), axis=0)

    def dense(x: str, inner: int, outer: int) -> str:
        return b.add("Add", b.add("MatMul", x, b.weight(inner, outer)), b.weight(outer))

    def norm(x: str) -> str:
        ones, zeros = np.ones(width), np.zeros(width)
        scale, shift = b.constant(ones, np.float32), b.constant(zeros, np.float32)
        return b.add("LayerNormalization", x, scale, shift, axis=-1)

    for _ in range(layers):
        q, k, v = (
            b.add("Transpose", b.add("Reshape", dense(x, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scale = b.constant((width // heads) ** -0.5, np.float32)
        scores = b.add("Add", b.add("Mul", b.add("MatMul", q, k), scale), bias)
        mixed = b.add("Transpose", b.add("MatMul", b.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = norm(b.add("Add", x, dense(b.add("Reshape", mixed, flat), width, width)))
        wide = dense(x, width, 4 * width)
        half, root = b.constant(0.5, np.float32), b.constant(2**-0.5, np.float32)
        erf = b.add("Add", b.add("Erf", b.add("Mul", wide, root)), b.constant(1.0, np.float32))
        x = norm(b.add("Add", x, dense(b.add("Mul", b.add("Mul", wide, erf), half), 4 * width, width)))
    return b.model("int64[N, L] ids, int64[N, L] mask", x)


def unet(levels: Sequence[int] = (16, 32, 64, 128)) -> onnx.ModelProto:
    """A U-Net over [1, 3, H, W], sides multiples of 8; skip connections and transposed convolutions."""
    b = Builder()

    def double(x: str, channels: int, out: int) -> str:
        return b.add("Relu", b.conv(b.add("Relu", b.conv(x, channels, out)), out, out))

    skips: list[str] = []
    x, channels = "x", 3
    for out in levels:
        if skips:
            x = b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        x, channels = double(x, channels, out), out
        skips.append(x)
    for out, skip in zip(levels[-2::-1], skips[-2::-1]):
        up = b.add("ConvTranspose", x, b.weight(channels, out, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
        x, channels = double(b.add("Concat", skip, up, axis=1), 2 * out, out), out
    return b.model("float[1, 3, H, W] x", b.conv(x, channels, 2, kernel=1))


def detector(width: int = 16) -> onnx.ModelProto:
    """A detector as YOLO over [1, 3, H, W], sides multiples of 32: three scales in one output [1, 20, n]."""
    b = Builder()

    def silu(x: str) -> str:
        return b.add("Mul", x, b.add("Sigmoid", x))

    def block(x: str, channels: int) -> str:
        half = channels // 2
        one, other = silu(b.conv(x, channels, half, 1)), silu(b.conv(x, channels, half, 1))
        inner = b.add("Add", one, silu(b.conv(silu(b.conv(one, half, half)), half, half)))
        return silu(b.conv(b.add("Concat", inner, other, axis=1), channels, channels, 1))

    def up(x: str) -> str:
        scales = b.constant([1, 1, 2, 2], np.float32)
        return b.add("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                     coordinate_transformation_mode="asymmetric")  # fmt: skip

    x = silu(b.conv("x", 3, width, stride=2))
    scales = []
    channels = width
    for _ in range(4):
        x = block(silu(b.conv(x, channels, 2 * channels, stride=2)), 2 * channels)
        channels *= 2
        scales.append((x, channels))
    pools = [x]
    for _ in range(3):
        pools.append(b.add("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    x = silu(b.conv(b.add("Concat", *pools, axis=1), 4 * channels, channels, 1))
    heads = [(x, channels)]
    for skip, c in scales[-2:0:-1]:
        x = silu(b.conv(b.add("Concat", up(x), skip, axis=1), channels + c, c, 1))
        channels = c
        heads.append((x, c))
    flat = b.constant([1, 20, -1])
    outputs = [b.add("Reshape", b.add("Sigmoid", b.conv(x, c, 20, 1)), flat) for x, c in heads]
    return b.model("float[1, 3, H, W] x", b.add("Concat", *outputs, axis=2))


TEXTS: Spelled = {"ids": ["N<=8", "L<=512"], "mask": ["N", "L"]}
# Name -> what builds it, and its region.
NETWORKS: Mapping[str, tuple[Callable[[], onnx.ModelProto], Spelled]] = {
    "encoder_minilm": (lambda: encoder(6, 384, 12), TEXTS),
    "encoder_bert": (lambda: encoder(12, 768, 12), TEXTS),
    "unet_free": (unet, {"x": [1, 3, "H:32..256%16", "W:32..256%16"]}),
    "detector_free": (detector, {"x": [1, 3, "H:64..640%32", "W:64..640%32"]}),
}


def build(name: str, folder: Path) -> Path:
    """Write a network into a folder."""
    path = folder / f"{name}.onnx"
    onnx.save(NETWORKS[name][0](), path)
    return path
