"""Models to try the service with, built on the spot with seeded random weights.

The `onnx` package ships the architectures of its model zoo with constant weights; constant
weights give constant outputs and prove nothing, so every weight is drawn anew with the variance
that keeps activations in range (He et al., 2015, arXiv:1502.01852). MobileNetV2 (Sandler et al.,
2018, arXiv:1801.04381, table 2) is written out here.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

_NAMED = ("Conv", "Gemm", "BatchNormalization")
_SUFFIX = re.compile(r"(_[a-z]+)?_0$")  # of weights: fire2/squeeze1x1_w_0, conv1/bn_scale_0
_ZOO = ("squeezenet", "resnet50", "shufflenet", "densenet121", "inception_v1", "inception_v2")


def build(name: str) -> bytes:
    """The ONNX file of a sample.

    Raises:
        KeyError: no sample of that name.
    """
    return SAMPLES[name]()


def _zoo(name: str) -> Callable[[], bytes]:
    def make() -> bytes:
        folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        model = _with_random_weights(onnx.load(folder / f"light_{name}.onnx"))
        return bytes(model.SerializeToString(deterministic=True))

    return make


def _with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with each ConstantOfShape replaced by a seeded initializer.

    Nodes are called by their weights, as its own names are numbers. A softmax over random logits
    saturates, so its input becomes an output as well.
    """
    graph = model.graph
    # Types are inferred before the weights are there: the inference would copy them.
    types = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    random = np.random.default_rng(0)
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    reader = {name: (node, k) for node in graph.node for k, name in reversed(list(enumerate(node.input)))}
    kept, weights = [], []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        user, position = reader[node.output[0]]
        array = _draw(random, user, position, node.output[0], shape)
        weights.append(numpy_helper.from_array(array, node.output[0]))
    for node in kept:
        weight = node.input[1] if node.op_type in _NAMED else ""
        node.name = _SUFFIX.sub("", weight)
    del graph.node[:]
    graph.node.extend(kept)
    live = {name for node in kept for name in node.input}
    initializers = [i for i in graph.initializer if i.name in live] + weights
    inputs = [i for i in graph.input if i.name not in shapes]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(initializers)
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    if kept[-1].op_type == "Softmax":
        graph.output.append(types[kept[-1].input[0]])
    return model


def _draw(
    random: np.random.Generator, user: onnx.NodeProto, position: int, name: str, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    if user.op_type in ("Conv", "Gemm") and position == 1:
        transposed = any(a.name == "transB" and a.i for a in user.attribute)
        fan_in = shape[0] if user.op_type == "Gemm" and not transposed else int(np.prod(shape[1:]))
        return _normal(random, shape, np.sqrt(2.0 / fan_in))
    is_scale = user.op_type == "Unsqueeze" and "scale" in name
    if is_scale or (user.op_type == "BatchNormalization" and position in (1, 4)):
        return random.uniform(0.8, 1.2, shape).astype(np.float32)
    return _normal(random, shape, 0.02)


def _normal(random: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray[Any, Any]:
    """Normally distributed float32 numbers."""
    found = np.empty(shape, np.float32)
    random.standard_normal(dtype=np.float32, out=found)
    found *= np.float32(scale)
    return found


class _Network:
    """Builds a convolutional graph layer by layer."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[ir.Node] = []
        self.weights: list[ir.Value] = []

    def weight(self, *shape: int, scale: float) -> ir.Value:
        return self.constant(_normal(self.random, shape, scale))

    def constant(self, values: float | np.ndarray[Any, Any]) -> ir.Value:
        name = f"w{len(self.weights)}"
        tensor = ir.tensor(np.asarray(values, np.float32), name=name)
        self.weights.append(ir.Value(name=name, const_value=tensor))
        return self.weights[-1]

    def add(self, op: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        self.nodes.append(ir.node(op, list(inputs), attributes))  # type: ignore[arg-type]  # plain numbers and lists
        output = self.nodes[-1].outputs[0]
        output.name = f"v{len(self.nodes)}"
        return output

    def conv(self, x: ir.Value, c: int, k: int, *, r: int = 1, stride: int = 1, groups: int = 1) -> ir.Value:
        fan_in = c // groups * r * r
        w = self.weight(k, c // groups, r, r, scale=np.sqrt(2.0 / fan_in))
        b = self.weight(k, scale=0.02)
        pad, extra = r // 2, {"group": groups}
        return self.add("Conv", x, w, b, kernel_shape=[r, r], strides=[stride] * 2, pads=[pad] * 4, **extra)


# Expansion, output channels, repeats, stride of the first: arXiv:1801.04381, table 2.
_MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _scaled(channels: int, scale: float) -> int:
    """The nearest multiple of 8 of scaled channels, and at least 0.9 of them."""
    found = max(8, int(channels * scale + 4) // 8 * 8)
    return found + 8 if found < 0.9 * channels * scale else found


def mobilenetv2(scale: float = 1.0, size: int = 224) -> bytes:
    """MobileNetV2 with random weights; a scale of at most 1 makes all channels fewer but the last 1,280.

    Args:
        scale: of channels, the width multiplier.
        size: of the image.
    """
    net = _Network()
    low, high = net.constant(0.0), net.constant(6.0)
    image = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 3, size, size]))
    channels = _scaled(32, scale)
    x = net.add("Clip", net.conv(image, 3, channels, r=3, stride=2), low, high)
    for expansion, wide, repeats, first_stride in _MOBILENET_V2:
        width = _scaled(wide, scale)
        for index in range(repeats):
            stride = first_stride if index == 0 else 1
            inner = channels * expansion
            y = x if expansion == 1 else net.add("Clip", net.conv(x, channels, inner), low, high)
            y = net.add("Clip", net.conv(y, inner, inner, r=3, stride=stride, groups=inner), low, high)
            y = net.conv(y, inner, width)
            x = net.add("Add", x, y) if stride == 1 and channels == width else y
            channels = width
    x = net.add("Clip", net.conv(x, channels, 1280), low, high)
    x = net.add("Flatten", net.add("GlobalAveragePool", x), axis=1)
    logits = net.add("Gemm", x, net.weight(1000, 1280, scale=0.03), net.weight(1000, scale=0.02), transB=1)
    logits.type, logits.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, 1000])
    graph = ir.Graph(
        [image],
        [logits],
        nodes=net.nodes,
        initializers=net.weights,
        opset_imports={"": 21},
        name="mobilenetv2",
    )
    return bytes(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString(deterministic=True))


SAMPLES: Mapping[str, Callable[[], bytes]] = {
    **{name: _zoo(name) for name in _ZOO},
    "mobilenetv2": mobilenetv2,
}


@contextmanager
def file_of(model: str) -> Iterator[Path]:
    """A model as a file: a sample is built, anything else is the path of one."""
    if model not in SAMPLES:
        yield Path(model)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.onnx"
        path.write_bytes(SAMPLES[model]())
        yield path
