"""Published image networks with random weights, as ONNX: what `make bench-stream` measures.

Structures: Sandler et al., 2018 (arXiv:1801.04381, table 2); He et al., 2016 (arXiv:1512.03385, table 1);
Howard et al., 2019 (arXiv:1905.02244, table 1); Tan and Le, 2019 (arXiv:1905.11946, table 1); Qin et al.,
2024 (arXiv:2404.10518, table 11). Batch normalizations are folded into the weights.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper  # noqa: TID251  # as the files of others are made

from benchmarks.stream_transformers import bert_base, vit_b16

SIZE = 224


class Network:
    """Nodes in order; `x` is the last value, of so many channels."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self.x, self.channels = "x", 3

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node."""
        self.x = f"v{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(kind, inputs, [self.x], f"{kind}_{len(self._nodes)}", **attributes)
        )
        return self.x

    def constant(self, *shape: int) -> str:
        """A constant of random numbers that keep the size of activations."""
        name, fan = f"w{len(self._weights)}", int(np.prod(shape[1:])) or 1
        array = self._random.standard_normal(shape) * np.sqrt(2.0 / fan if len(shape) > 1 else 0.01)
        self._weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def conv(
        self, channels: int, kernel: int = 1, stride: int = 1, act: str = "", depthwise: bool = False
    ) -> str:
        """Append a convolution and what follows it."""
        own = self.channels
        weights = self.constant(channels, 1 if depthwise else own, kernel, kernel)
        self.op(
            "Conv", self.x, weights, self.constant(channels), kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[kernel // 2] * 4, group=own if depthwise else 1,
        )  # fmt: skip
        self.channels = channels
        return self.act(act)

    def act(self, kind: str) -> str:
        """Append an activation; none for the empty string."""
        if kind == "Relu6":
            low, high = (numpy_helper.from_array(np.array(v, np.float32), f"limit{v}") for v in (0, 6))
            self._weights += [w for w in (low, high) if w.name not in {t.name for t in self._weights}]
            return self.op("Clip", self.x, "limit0", "limit6")
        if kind == "SiLU":
            x = self.x
            return self.op("Mul", x, self.op("Sigmoid", x))
        return self.op(kind, self.x) if kind else self.x

    def squeeze(self, inner: int, act: str, gate: str) -> str:
        """Append squeeze-and-excite."""
        x, channels = self.x, self.channels
        self.op("GlobalAveragePool", x)
        self.conv(inner, act=act)
        self.conv(channels)
        return self.op("Mul", x, self.op(gate, self.x))

    def save(self, path: Path, classes: int = 1000) -> Path:
        """Append the classifier and write the file."""
        flat = self.op("Flatten", self.op("GlobalAveragePool", self.x))
        y = self.op("Gemm", flat, self.constant(classes, self.channels), self.constant(classes), transB=1)
        shapes = ("x", [1, 3, SIZE, SIZE]), (y, [1, classes])
        x, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes)
        graph = helper.make_graph(self._nodes, path.stem, [x], [out], self._weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def _inverted(
    net: Network, hidden: int, channels: int, kernel: int, stride: int, act: str,
    squeeze: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """An inverted residual: expand, depthwise, project."""
    x, own = net.x, net.channels
    if hidden != own:
        net.conv(hidden, act=act)
    net.conv(hidden, kernel, stride, act, depthwise=True)
    squeeze()
    net.conv(channels)
    if stride == 1 and own == channels:
        net.op("Add", x, net.x)


def _mobilenet_v2(net: Network) -> None:
    net.conv(32, 3, 2, "Relu6")
    for t, c, n, s in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for i in range(n):
            _inverted(net, net.channels * t, c, 3, 1 if i else s, "Relu6")
    net.conv(1280, act="Relu6")


def _mobilenet_v3_large(net: Network) -> None:
    net.conv(16, 3, 2, "HardSwish")
    for k, hidden, c, squeezed, act, s in (
        (3, 16, 16, False, "Relu", 1), (3, 64, 24, False, "Relu", 2), (3, 72, 24, False, "Relu", 1),
        (5, 72, 40, True, "Relu", 2), (5, 120, 40, True, "Relu", 1), (5, 120, 40, True, "Relu", 1),
        (3, 240, 80, False, "HardSwish", 2), (3, 200, 80, False, "HardSwish", 1),
        (3, 184, 80, False, "HardSwish", 1), (3, 184, 80, False, "HardSwish", 1),
        (3, 480, 112, True, "HardSwish", 1), (3, 672, 112, True, "HardSwish", 1),
        (5, 672, 160, True, "HardSwish", 2), (5, 960, 160, True, "HardSwish", 1),
        (5, 960, 160, True, "HardSwish", 1),
    ):  # fmt: skip
        inner = max(8, (hidden // 4 + 4) // 8 * 8)
        squeeze = (
            (lambda inner=inner: net.squeeze(inner, "Relu", "HardSigmoid")) if squeezed else (lambda: None)
        )
        _inverted(net, hidden, c, k, s, act, squeeze)
    net.conv(960, act="HardSwish")


def _efficientnet_b0(net: Network) -> None:
    net.conv(32, 3, 2, "SiLU")
    for t, c, n, k, s in (
        (1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2), (6, 112, 3, 5, 1),
        (6, 192, 4, 5, 2), (6, 320, 1, 3, 1),
    ):  # fmt: skip
        for i in range(n):
            inner = max(net.channels // 4, 1)
            squeeze = lambda inner=inner: net.squeeze(inner, "SiLU", "Sigmoid")  # noqa: E731
            _inverted(net, net.channels * t, c, k, 1 if i else s, "SiLU", squeeze)
    net.conv(1280, act="SiLU")


def _mobilenet_v4_small(net: Network) -> None:
    for k, s, c in ((3, 2, 32), (3, 2, 32), (1, 1, 32), (3, 2, 96), (1, 1, 64)):
        net.conv(c, k, s, "Relu")
    for first, middle, s, t, c in (
        (5, 5, 2, 3, 96), (0, 3, 1, 2, 96), (0, 3, 1, 2, 96), (0, 3, 1, 2, 96), (0, 3, 1, 2, 96),
        (3, 0, 1, 4, 96), (3, 3, 2, 6, 128), (5, 5, 1, 4, 128), (0, 5, 1, 4, 128), (0, 5, 1, 3, 128),
        (0, 3, 1, 4, 128), (0, 3, 1, 4, 128),
    ):  # fmt: skip
        x, own = net.x, net.channels
        if first:
            net.conv(own, first, 1 if middle else s, depthwise=True)
        net.conv(own * t, act="Relu")
        if middle:
            net.conv(own * t, middle, s, "Relu", depthwise=True)
        net.conv(c)
        if s == 1 and own == c:
            net.op("Add", x, net.x)
    net.conv(960, act="Relu")


def _resnet(net: Network, blocks: tuple[int, ...], bottleneck: bool) -> None:
    net.conv(64, 7, 2, "Relu")
    net.op("MaxPool", net.x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, count in enumerate(blocks):
        for i in range(count):
            inner, stride = 64 << stage, 2 if stage and not i else 1
            x, own, outer = net.x, net.channels, (256 if bottleneck else 64) << stage
            if bottleneck:
                net.conv(inner, act="Relu")
                net.conv(inner, 3, stride, "Relu")
                y = net.conv(outer)
            else:
                net.conv(inner, 3, stride, "Relu")
                y = net.conv(outer, 3)
            if own != outer or stride > 1:
                net.x, net.channels = x, own
                x = net.conv(outer, 1, stride)
            net.op("Add", y, x)
            net.act("Relu")


NETWORKS: dict[str, Callable[[Network], None]] = {
    "mobilenetv2": _mobilenet_v2,
    "resnet18": lambda net: _resnet(net, (2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda net: _resnet(net, (3, 4, 6, 3), bottleneck=True),
    "mobilenetv3_large": _mobilenet_v3_large,
    "mobilenetv4_conv_small": _mobilenet_v4_small,
    "efficientnet_b0": _efficientnet_b0,
}
TRANSFORMERS = {"bert_base": bert_base, "vit_b16": vit_b16}

# Bytes that issue 27 asks for, at about the time of the fastest plan and at 5 to 15 % more.
GOALS: dict[str, tuple[int, ...]] = {
    "mobilenetv2": (750_000, 420_000),
    "resnet18": (850_000, 600_000),
    "resnet50": (2_500_000, 1_600_000),
    "mobilenetv3_large": (850_000, 720_000),
    "mobilenetv4_conv_small": (350_000, 260_000),
    "efficientnet_b0": (2_500_000, 1_400_000),
    "bert_base": (1_000_000,),
    "vit_b16": (1_500_000,),
}


def build(name: str, folder: Path) -> Path:
    """Write the network of this name."""
    if name in TRANSFORMERS:
        return TRANSFORMERS[name](folder / f"{name}.onnx")
    net = Network()
    NETWORKS[name](net)
    return net.save(folder / f"{name}.onnx")
