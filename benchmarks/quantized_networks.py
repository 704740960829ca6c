"""MobileNetV2 in 8-bit integers with random weights, as ONNX with QuantizeLinear and DequantizeLinear.

Structure: Sandler et al., 2018 (arXiv:1801.04381, table 2). The image is uint8; the network ends with the
average over the image, as the chains of `benchmarks.row_networks` do. Scales are those of ReLU6, and of
numbers from -5 to 5 elsewhere.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper  # noqa: TID251  # as the files of others are made

from benchmarks.row_networks import MOBILENET_V2, channels_of

IMAGE, LIMITED, LINEAR = (1 / 64, 128), (6 / 255, 0), (10 / 255, 128)  # scale, zero point


class QuantizedNetwork:
    """Nodes in order; `x` is the last value, of so many channels, dequantized."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._size, self.channels, self.scale = size, 3, IMAGE[0]
        self.x = self._op("DequantizeLinear", "x", *self._step(IMAGE))

    def _op(self, kind: str, *inputs: str, **attributes: object) -> str:
        y = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [y], f"{kind}_{len(self._nodes)}", **attributes))
        return y

    def _constant(self, array: npt.ArrayLike) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _step(self, of: tuple[float, int]) -> tuple[str, str]:
        return self._constant(np.float32(of[0])), self._constant(np.uint8(of[1]))

    def _quantized(self, x: str, of: tuple[float, int]) -> None:
        scale, zero = self._step(of)
        self.x, self.scale = self._op("QuantizeLinear", x, scale, zero), of[0]
        self.x = self._op("DequantizeLinear", self.x, scale, zero)

    def conv(
        self, channels: int, kernel: int = 1, stride: int = 1, limited: bool = False, depthwise: bool = False
    ) -> None:
        """Append a convolution with weights of a scale for each channel, and ReLU6 if `limited`."""
        groups = self.channels if depthwise else 1
        shape = channels, self.channels // groups, kernel, kernel
        weights = self._random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        scales = (np.abs(weights).max((1, 2, 3)) / 127).astype(np.float32)
        steps = np.round(weights / scales[:, None, None, None]).astype(np.int8)
        added = (scales * self.scale).astype(np.float32)
        bias = np.round(self._random.standard_normal(channels) / added / 10).astype(np.int32)
        operands = [
            self._op(
                "DequantizeLinear",
                self._constant(array),
                self._constant(scale),
                self._constant(np.zeros(channels, array.dtype)),
                axis=0,
            )
            for array, scale in ((steps, scales), (bias, added))
        ]
        y = self._op(
            "Conv", self.x, *operands, kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[kernel // 2] * 4, group=groups,
        )  # fmt: skip
        self.channels = channels
        if limited:
            y = self._op("Clip", y, self._constant(np.float32(0)), self._constant(np.float32(6)))
        self._quantized(y, LIMITED if limited else LINEAR)

    def add(self, x: str) -> None:
        """Append a residual sum."""
        self._quantized(self._op("Add", self.x, x), LINEAR)

    def save(self, path: Path) -> Path:
        """Append the average over the image and write the file."""
        y = self._op("GlobalAveragePool", self.x)
        x = helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 3, self._size, self._size])
        out = helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, self.channels, 1, 1])
        graph = helper.make_graph(self._nodes, path.stem, [x], [out], self._constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def mobilenet_v2(
    size: int = 224, multiplier: float = 1.0, residuals: bool = True, rounded_to_8: bool = True
) -> QuantizedNetwork:
    """The network of `row_networks.mobilenet_v2`."""
    net = QuantizedNetwork(size)
    net.conv(channels_of(32, multiplier, rounded_to_8), 3, 2, limited=True)
    for expansion, full, blocks, stride in MOBILENET_V2:
        outer = channels_of(full, multiplier, rounded_to_8)
        for block in range(blocks):
            x, own = net.x, net.channels
            if expansion > 1:
                net.conv(own * expansion, limited=True)
            net.conv(net.channels, 3, 1 if block else stride, limited=True, depthwise=True)
            net.conv(outer)
            if residuals and own == outer and (block or stride == 1):
                net.add(x)
    return net
