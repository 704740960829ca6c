"""Graphs of frameworks that keep channels last: none keeps a transpose in its interior, all compute the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.engine.canonical import assert_same_outputs, canonical, operators, saved
from tests.engine.rewrites.test_transpose_sinking import (
    FIRST,
    HEAD,
    LAST,
    ChannelsLast,
    interior,
    normal,
    positive,
)


class Writer(ChannelsLast):
    """Blocks of well-known networks, every image operator between two transposes."""

    def constant(self, *numbers: float) -> str:
        return self.weight(np.array(numbers[0] if len(numbers) == 1 else numbers, np.float32))

    def ints(self, *numbers: int) -> str:
        return self.weight(np.array(numbers))

    def act(self, x: str, op: str = "Relu") -> str:
        return self.node(f"{op}({x})")

    def unit(self, x: str, channels: int, filters: int, size: int = 3, stride: int = 1) -> str:
        """Convolution, normalization, activation."""
        y = self.conv(x, channels, filters, size, f", strides = [{stride}, {stride}]")
        return self.act(self.normalized(y, filters))

    def depthwise(self, x: str, channels: int, size: int = 3, stride: int = 1) -> str:
        """TensorFlow pads at the end where it strides: SAME_UPPER."""
        w = self.weight(normal(channels, 1, size, size))
        strides = f"strides = [{stride}, {stride}]"
        return self.image(f'Conv<group = {channels}, auto_pad = "SAME_UPPER", {strides}>({{x}}, {w})', x)

    def hard_swish(self, x: str) -> str:
        shifted = self.node(f"Add({x}, {self.constant(3.0)})")
        limited = self.node(f"Clip({shifted}, {self.constant(0.0)}, {self.constant(6.0)})")
        return self.node(f"Mul({self.node(f'Mul({x}, {limited})')}, {self.constant(1 / 6)})")

    def gated(self, x: str, channels: int) -> str:
        """Squeeze and excitation, the squeezed image flattened and widened again as Keras writes it."""
        squeezed = self.node(f"ReduceMean<keepdims = 0>({x}, {self.ints(1, 2)})")
        image = self.node(f"Reshape({squeezed}, {self.ints(-1, 1, 1, channels)})")
        hidden = self.act(self.conv(image, channels, 4, 1))
        return self.node(f"Mul({x}, {self.act(self.conv(hidden, 4, channels, 1), 'Sigmoid')})")

    def pool(self, x: str, op: str, size: int, stride: int, pad: int) -> str:
        window = f"kernel_shape = [{size}, {size}], strides = [{stride}, {stride}]"
        return self.image(f"{op}<{window}, pads = [{pad}, {pad}, {pad}, {pad}]>({{x}})", x)

    def padded(self, x: str, before: int, after: int) -> str:
        return self.node(f"Pad({x}, {self.ints(0, before, before, 0, 0, after, after, 0)})")

    def resized(self, x: str, mode: str) -> str:
        scales = self.constant(1.0, 1.0, 2.0, 2.0)
        how = 'coordinate_transformation_mode = "half_pixel"'
        if mode == "nearest":
            how = 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
        return self.image(f'Resize<mode = "{mode}", {how}>({{x}}, , {scales})', x)


def residual(g: Writer) -> tuple[str, int]:
    x = g.unit(g.padded("x", 3, 2), 3, 8, 7, 2)
    x = g.pool(x, "MaxPool", 3, 2, 1)
    for channels, filters, stride in ((8, 8, 1), (8, 16, 2), (16, 16, 1)):
        branch = g.normalized(g.conv(g.unit(x, channels, filters, 3, stride), filters, filters), filters)
        if stride > 1 or channels != filters:
            x = g.normalized(g.conv(x, channels, filters, 1, f", strides = [{stride}, {stride}]"), filters)
        x = g.act(g.node(f"Add({branch}, {x})"))
    return x, 16


def inverted_residual(g: Writer) -> tuple[str, int]:
    x = g.hard_swish(g.normalized(g.conv("x", 3, 8, 3, ", strides = [2, 2]"), 8))
    for stride in (2, 1):
        wide = g.hard_swish(g.normalized(g.conv(x, 8, 24, 1), 24))
        wide = g.hard_swish(g.normalized(g.depthwise(wide, 24, 3, stride), 24))
        narrow = g.normalized(g.conv(g.gated(wide, 24), 24, 8, 1), 8)
        x = narrow if stride > 1 else g.node(f"Add({x}, {narrow})")
    return x, 8


def inception(g: Writer) -> tuple[str, int]:
    x = g.unit("x", 3, 8)
    for _ in range(2):
        pooled = g.conv(g.pool(x, "AveragePool", 3, 1, 1), 8, 2, 1)
        parts = [
            g.unit(x, 8, 2, 1),
            g.unit(g.unit(x, 8, 4, 1), 4, 2),
            g.unit(g.unit(x, 8, 2, 1), 2, 2, 5),
            pooled,
        ]
        x = g.act(g.node(f"Concat<axis = -1>({', '.join(parts)})"))
    return x, 8


def encoder_and_decoder(g: Writer) -> tuple[str, int]:
    fine = g.unit("x", 3, 8)
    middle = g.unit(g.pool(fine, "MaxPool", 2, 2, 0), 8, 12)
    coarse = g.unit(g.pool(middle, "MaxPool", 2, 2, 0), 12, 16)
    up = g.node(f"Concat<axis = 3>({g.resized(coarse, 'nearest')}, {middle})")
    up = g.resized(g.unit(up, 28, 12), "linear")
    x = g.node(f"Concat<axis = 3>({g.node(f'Sub({up}, {g.constant(0.5)})')}, {fine})")
    return g.unit(g.padded(x, 1, 1), 20, 6), 6


def shuffled(g: Writer) -> tuple[str, int]:
    """Halves of the channels, one through a branch: Split, Slice, Concat along the last axis."""
    x = g.unit("x", 3, 16)
    g.lines.append(f"left, right = Split<axis = -1>({x}, {g.ints(8, 8)})")
    right = g.unit(g.normalized(g.depthwise(g.unit("right", 8, 8, 1), 8), 8), 8, 8, 1)
    x = g.node(f"Concat<axis = -1>({right}, left)")
    part = g.node(f"Slice({x}, {g.ints(4)}, {g.ints(12)}, {g.ints(3)})")
    slope = g.weight(positive(1, 1, 8))
    return g.node(f"PRelu({g.node(f'LeakyRelu<alpha = 0.1>({part})')}, {slope})"), 8


def attended(g: Writer) -> tuple[str, int]:
    """Attention over pixels from the mean and the maximum of the channels, then over channels."""
    x = g.unit("x", 3, 8)
    axis = g.ints(-1)
    parts = [g.node(f"{op}<keepdims = 1>({x}, {axis})") for op in ("ReduceMean", "ReduceMax")]
    mask = g.act(g.conv(g.node(f"Concat<axis = 3>({', '.join(parts)})"), 2, 1, 7), "Sigmoid")
    x = g.node(f"Mul({x}, {mask})")
    return g.node(f"Softmax<axis = -1>({g.conv(x, 8, 8, 1)})"), 8


BODIES: dict[str, Callable[[Writer], tuple[str, int]]] = {
    f.__name__: f for f in (residual, inverted_residual, inception, encoder_and_decoder, shuffled, attended)
}


def pooled(g: Writer, x: str, channels: int) -> str:
    """A classifier behind the mean of the pixels."""
    mean = g.node(f"ReduceMean<keepdims = 0>({x}, {g.ints(1, 2)})")
    g.lines.append(f"y = MatMul({mean}, {g.weight(normal(channels, 5))})")
    return "float[2,5] y"


def global_pooled(g: Writer, x: str, channels: int) -> str:
    """The mean by an image operator, squeezed."""
    image = g.image("GlobalAveragePool({x})", x)
    flat = g.node(f"Squeeze({image}, {g.ints(1, 2)})")
    g.lines.append(f"y = Gemm({flat}, {g.weight(normal(channels, 5))})")
    return "float[2,5] y"


def image(g: Writer, x: str, channels: int) -> str:
    """The image itself, channels last."""
    g.lines.append(f"y = Tanh({x})")
    return "float[2,H,W,C] y"


HEADS = {f.__name__: f for f in (pooled, global_pooled, image)}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", BODIES)
def test_no_transpose_stays_inside(name: str, head: str, tmp_path: Path) -> None:
    g = Writer()
    x, channels = BODIES[name](g)
    outputs = HEADS[head](g, x, channels)
    path = saved(
        f"{HEAD} g (float[2,20,20,3] x) => ({outputs}) {{ {' '.join(g.lines)} }}", tmp_path, g.weights
    )
    written = sum(FIRST in line or LAST in line for line in g.lines)
    compilation = canonical(path)
    left = [n.name for n in interior(compilation.graph)]
    assert not left, f"{left} of {written}"
    assert operators(compilation.graph).count("Transpose") <= 2
    assert_same_outputs(path, compilation, 1e-4)
