"""Random networks of convolutions and pooling, and their plans with and without streams."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
import onnx

from app.engine.core.program import Program, Step
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.options import Bindings, MemoryConcessions, Options, Streamed
from app.engine.types.target import Target
from tests.harness import Array

REGISTRY = load_registry()
OPTIONS = Options(autotune=False, fast_algorithms=False, backends=("numba-cpu", "reference"))


@dataclass
class Network:
    """A network of images, as lines of ONNX text with constants; `shape` is [C, H, W] of the last value."""

    shape: tuple[int, int, int]
    seed: int = 0
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    last: str = "x"

    def __post_init__(self) -> None:
        self.first = self.shape
        self._random = np.random.default_rng(self.seed)

    def constant(self, *shape: int) -> str:
        """A constant of random numbers."""
        name = f"w{len(self.constants)}"
        scale = 1.5 / math.sqrt(math.prod(shape[1:]))
        self.constants[name] = (self._random.standard_normal(shape) * scale).astype(np.float32)
        return name

    def _add(self, text: str, shape: tuple[int, int, int]) -> str:
        self.last, self.shape = f"v{len(self.lines)}", shape
        self.lines.append(f"{self.last} = {text}")
        return self.last

    def _out(self, kernel: int, stride: int, dilation: int, before: int, after: int) -> tuple[int, int]:
        reach = (kernel - 1) * dilation + 1
        h, w = ((d + before + after - reach) // stride + 1 for d in self.shape[1:])
        return h, w

    def conv(
        self,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        dilation: int = 1,
        before: int = -1,
        group: int = 1,
    ) -> str:
        """A convolution; `group` of -1 is a depthwise one. Padding after is half of the window's reach."""
        own = self.shape[0]
        groups, channels = (own, own) if group < 0 else (group, channels)
        after = (kernel - 1) * dilation // 2
        before = after if before < 0 else before
        h, w = self._out(kernel, stride, dilation, before, after)
        weights = self.constant(channels, own // groups, kernel, kernel)
        bias = self.constant(channels)
        attributes = (
            f"pads = [{before}, {before}, {after}, {after}], strides = [{stride}, {stride}], "
            f"dilations = [{dilation}, {dilation}], group = {groups}"
        )
        return self._add(f"Conv<{attributes}>({self.last}, {weights}, {bias})", (channels, h, w))

    def transposed(self, channels: int, rows: int, columns: int) -> str:
        """A transposed convolution whose taps do not overlap."""
        own, h, w = self.shape
        weights = self.constant(own, channels, rows, columns)
        bias = self.constant(channels)
        text = f"ConvTranspose<strides = [{rows}, {columns}]>({self.last}, {weights}, {bias})"
        return self._add(text, (channels, h * rows, w * columns))

    def pool(self, op: str = "MaxPool", kernel: int = 3, stride: int = 2, before: int = 1) -> str:
        """A pooling of windows."""
        h, w = self._out(kernel, stride, 1, before, 1)
        attributes = f"kernel_shape = [{kernel}, {kernel}], strides = [{stride}, {stride}]"
        pads = f"pads = [{before}, {before}, 1, 1]"
        return self._add(f"{op}<{attributes}, {pads}>({self.last})", (self.shape[0], h, w))

    def resized(self, h: int, w: int, attributes: str) -> str:
        """The last image in so many rows and columns."""
        channels = self.shape[0]
        name = f"w{len(self.constants)}"
        self.constants[name] = np.array([1, channels, h, w])
        return self._add(f"Resize<{attributes}>({self.last}, , , {name})", (channels, h, w))

    def whole(self, op: str = "GlobalAveragePool") -> str:
        """A pooling of the whole image."""
        return self._add(f"{op}({self.last})", (self.shape[0], 1, 1))

    def excited(self) -> str:
        """The last image, scaled by squeeze-and-excite."""
        x, shape = self.last, self.shape
        self.whole()
        self.conv(8)
        self.apply("Relu({})")
        self.conv(shape[0])
        self.apply("Sigmoid({})")
        return self._add(f"Mul({x}, {self.last})", shape)

    def apply(self, text: str) -> str:
        """An elementwise node of the last value, for which `{}` stands."""
        return self._add(text.format(self.last), self.shape)

    def save(self, folder: Path) -> Path:
        """The model as a file; its output is the last value."""
        x, y = (",".join(map(str, (1, *shape))) for shape in (self.first, self.shape))
        text = (
            f'<ir_version: 10, opset_import: ["": 21]> net (float[{x}] x) => (float[{y}] {self.last}) '
            f"{{ {' '.join(self.lines)} }}"
        )
        proto = onnx.parser.parse_model(text)
        for name, array in self.constants.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        path = folder / f"net{self.seed}.onnx"
        path.write_bytes(proto.SerializeToString())
        return path


def inverted_residuals(blocks: int) -> Network:
    """Blocks as in MobileNetV2 between a convolution and one of stride 2, on an image of 3 x 40 x 40."""
    net = Network((3, 40, 40))
    net.conv(16, 3)
    for _ in range(blocks):
        x = net.last
        net.conv(48)
        net.apply("Relu({})")
        net.conv(0, 3, group=-1)
        net.conv(16)
        net.apply(f"Add({x}, {{}})")
    net.conv(32, 3, 2)
    return net


def random_network(seed: int) -> Network:
    """Bottlenecks with and without residual sums, plain convolutions and pooling, of any windows."""
    random = Random(seed)
    net = Network((random.choice((3, 16)), random.randint(9, 21), random.randint(9, 21)), seed)
    if random.random() < 0.7:
        net.conv(16, 3, random.choice((1, 2)))
        net.apply("Relu({})")
    for _ in range(random.randint(2, 4)):
        kind = random.choice(("bottleneck", "bottleneck", "conv", "pool"))
        if min(net.shape[1:]) < 4:
            break
        if kind == "pool":
            net.pool(random.choice(("MaxPool", "AveragePool")), 3, random.choice((1, 2)))
        elif kind == "conv":
            kernel, dilation = random.choice(((1, 1), (3, 1), (3, 2), (5, 1)))
            net.conv(random.choice((12, 16, 24)), kernel, random.choice((1, 2)), dilation)
            net.apply(random.choice(("Relu({0})", "HardSwish({0})")))
        else:
            _bottleneck(net, random)
    return net


def random_decoder(seed: int) -> Network:
    """Transposed convolutions to many channels and to few, between others, with sums of two branches."""
    random = Random(seed)
    net = Network((16, random.randint(5, 9), random.randint(5, 18)), seed)
    net.conv(24, 3)
    net.apply(random.choice(("Relu({0})", "HardSwish({0})")))
    for _ in range(random.randint(1, 2)):
        net.transposed(random.choice((8, 20, 24)), random.choice((1, 2, 2, 3)), random.choice((1, 2, 2, 3)))
        net.apply(random.choice(("Relu({0})", "HardSwish({0})", "Clip({0})")))
        if random.random() < 0.7:
            net.conv(random.choice((16, 24)), random.choice((1, 3)))
    net.transposed(random.choice((1, 1, 2)), 2, 2)
    net.apply("Sigmoid({})")
    return net


def _bottleneck(net: Network, random: Random) -> None:
    x, shape, stride = net.last, net.shape, random.choice((1, 1, 2))
    net.conv(32)
    net.apply("Relu({})")
    net.conv(0, random.choice((3, 5)), stride, group=-1, before=random.choice((-1, 0)) if stride == 2 else -1)
    net.apply(random.choice(("Relu({0})", "HardSwish({0})")))
    net.conv(shape[0] if shape[0] % 8 == 0 else 16)
    if net.shape == shape:
        net.apply(f"Add({x}, {{}})")
        if random.random() < 0.5:
            net.apply("Relu({})")


@dataclass
class Plans:
    """Plans of a model on a target."""

    path: Path
    target: Target
    fast: bool = False  # whether Winograd's algorithms may be chosen
    row_major: bool = False  # whether all layouts are
    threads: int = 1

    def planned(self, *streams: Streamed) -> Program:
        """The plan with these streams."""
        options = replace(OPTIONS, fast_algorithms=self.fast, threads=self.threads)
        compilation = session.canonical(load(self.path), self.target, options, Bindings(), REGISTRY)
        build = session.builder(compilation, options)
        return build(MemoryConcessions(streams=streams, unbounded=True, row_major_only=self.row_major))

    @cached_property
    def plain(self) -> Program:
        """The plan without streams."""
        return self.planned()

    @property
    def names(self) -> tuple[str, ...]:
        """The most groups, one after the other, whose chosen implementations have strips."""
        runs: list[tuple[str, ...]] = [()]
        for step in self.plain.steps:
            has = step.choice.implementation.name in REGISTRY.strips
            runs.append((*runs[-1], step.group.name) if has else ())
        return max(runs, key=len)


def stream_of(program: Program) -> Step:
    """The first step that is a stream."""
    return next(s for s in program.steps if s.group.op == "Stream")
