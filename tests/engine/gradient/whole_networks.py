"""ResNet-18 and MobileNetV2 layer by layer, as they are trained; channels are a fraction of the papers'.

Sources: He et al., 2015, arXiv:1512.03385, table 1; Sandler et al., 2018, arXiv:1801.04381, table 2.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.engine.gradient.networks import Network, ints

Array = np.ndarray[Any, Any]


@dataclass
class Text:
    """A body under construction: lines, weights and constants."""

    lines: list[str] = field(default_factory=list)
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def convolved(
        self, x: str, channels: int, units: int, kernel: int, stride: int = 1, group: int = 1
    ) -> str:
        """Convolution and batch normalization by the statistics of the batch."""
        n, pad = len(self.lines), kernel // 2
        self.weights |= {
            f"w{n}": (units, channels // group, kernel, kernel),
            f"scale{n}": (units,),
            f"b{n}": (units,),
        }
        self.constants |= {f"mean{n}": np.zeros(units), f"variance{n}": np.ones(units)}
        self.lines.append(
            f"c{n} = Conv<strides=[{stride},{stride}], pads=[{pad},{pad},{pad},{pad}], group={group}>({x}, w{n}) "
            f"y{n}, m{n}, v{n} = BatchNormalization<training_mode=1>(c{n}, scale{n}, b{n}, mean{n}, variance{n})"
        )
        return f"y{n}"

    def op(self, op: str, *operands: str) -> str:
        """An operator on values."""
        name = f"z{len(self.lines)}"
        self.lines.append(f"{name} = {op}({', '.join(operands)})")
        return name

    def network(self, x: str, channels: int, size: int) -> Network:
        """The classifier at the end, and its loss."""
        self.weights |= {"wf": (10, channels), "bf": (10,)}
        self.lines.append(
            f"g = GlobalAveragePool({x}) f = Flatten(g) logits = Gemm<transB=1>(f, wf, bf) "
            "loss = SoftmaxCrossEntropyLoss(logits, classes)"
        )
        return Network(
            " ".join(self.lines),
            {"x": (4, 3, size, size)},
            self.weights,
            {**self.constants, "classes": ints(3, 1, 7, 0)},
        )


def resnet18(base: int = 8, size: int = 64) -> Network:
    """Four stages of two basic blocks."""
    t = Text()
    x = t.op("Relu", t.convolved("x", 3, base, 7, 2))
    x, channels = t.op("MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>", x), base
    for stage in range(4):
        units = base << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = t.op("Relu", t.convolved(x, channels, units, 3, stride))
            y = t.convolved(y, units, units, 3)
            x = x if channels == units else t.convolved(x, channels, units, 1, stride)
            x, channels = t.op("Relu", t.op("Add", x, y)), units
    return t.network(x, channels, size)


def mobilenet_v2(divisor: int = 4, size: int = 64) -> Network:
    """Seventeen inverted residuals."""
    t = Text()
    t.constants |= {"low": np.array(0.0), "high": np.array(6.0)}

    def relu6(x: str) -> str:
        return t.op("Clip", x, "low", "high")

    channels = 32 // divisor
    x = relu6(t.convolved("x", 3, channels, 3, 2))
    for expansion, units, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for i in range(count):
            wide, step = channels * expansion, stride if i == 0 else 1
            y = relu6(t.convolved(x, channels, wide, 1)) if expansion > 1 else x
            y = relu6(t.convolved(y, wide, wide, 3, step, wide))
            y = t.convolved(y, wide, units // divisor, 1)
            x = t.op("Add", x, y) if step == 1 and channels == units // divisor else y
            channels = units // divisor
    return t.network(relu6(t.convolved(x, channels, 1280 // divisor, 1)), 1280 // divisor, size)


WHOLE = {"resnet18": resnet18(), "mobilenet_v2": mobilenet_v2()}
