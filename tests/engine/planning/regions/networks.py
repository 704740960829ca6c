"""Random networks with symbolic dimensions: images, and texts whose shapes the graph computes."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from tests.harness import Array

IMAGE_KINDS = (
    *("conv3", "conv3", "stride", "conv1", "depthwise", "Relu", "Sigmoid", "concat", "add"),
    *("split", "pool", "average", "gate", "up", "softmax", "every second", "tokens", "normalize", "transpose"),
)  # fmt: skip
TEXT_KINDS = ("attention", "mlp", "norm", "shift", "add", "Tanh", "scale", "mean", "mask", "most", "reverse")
FAR = 2**31 - 1  # the end of any axis
WIDTH, HEADS, WORDS, LONGEST = 16, 2, 11, 40  # of the texts


@dataclass
class Network:
    """A model in parts.

    Attributes:
        inputs: as ONNX text has them.
        spelled: their shapes with symbols, as a request has them.
    """

    inputs: str
    spelled: dict[str, list[int | str]]
    lines: list[str] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def weight(self, *shape: int, rng: np.random.Generator) -> str:
        """A new initializer of floats."""
        return self.constant((rng.standard_normal(shape) / 4).astype(np.float32))

    def constant(self, array: Array) -> str:
        """A new initializer."""
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def add(self, line: str) -> str:
        """A new value that a node makes; `line` is its operator, attributes and inputs."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {line}")
        return name

    def save(self, path: Path) -> Path:
        """Write the model."""
        outputs = ", ".join(f"float[...] {name}" for name in self.outputs)
        body = "\n".join(self.lines)
        text = f'<ir_version: 10, opset_import: ["": 21]> net ({self.inputs}) => ({outputs}) {{\n{body}\n}}'
        model = onnx.parser.parse_model(text.replace("float[...]", "float"))
        for name, array in self.weights.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        onnx.save(model, path)
        return path


def images(rng: np.random.Generator, nodes: int) -> Network:
    """A network over images [n, 3, h, w] whose sizes are multiples of 16."""
    found = Network("float[n, 3, h, w] x", {"x": ["n:1..3", 3, "h:16..96%16", "w:16..80%16"]})
    values = [("x", 3, 1)]  # name, channels, by what the sides are divided
    while len(found.lines) < nodes:
        name, c, side = values[-int(rng.integers(1, 1 + min(4, len(values))))]
        kind = str(rng.choice(IMAGE_KINDS))
        k = int(rng.choice([4, 8, 16, 24]))
        like = [v for v in values if v[2] == side]
        other, d, _ = like[rng.integers(len(like))]
        if kind == "conv3":
            made = (
                found.add(f"Conv <pads = [1, 1, 1, 1]> ({name}, {found.weight(k, c, 3, 3, rng=rng)})"),
                k,
                side,
            )
        elif kind == "stride" and side < 8:
            weight = found.weight(k, c, 3, 3, rng=rng)
            made = found.add(f"Conv <pads = [1, 1, 1, 1], strides = [2, 2]> ({name}, {weight})"), k, side * 2
        elif kind == "conv1":
            made = found.add(f"Conv ({name}, {found.weight(k, c, 1, 1, rng=rng)})"), k, side
        elif kind == "depthwise":
            weight = found.weight(c, 1, 3, 3, rng=rng)
            made = found.add(f"Conv <pads = [1, 1, 1, 1], group = {c}> ({name}, {weight})"), c, side
        elif kind in ("Relu", "Sigmoid"):
            made = found.add(f"{kind} ({name})"), c, side
        elif kind == "concat":
            made = found.add(f"Concat <axis = 1> ({name}, {other})"), c + d, side
        elif kind == "add" and c == d:
            made = found.add(f"Add ({name}, {other})"), c, side
        elif kind == "split" and c % 2 == 0:
            half = found.constant(np.array([c // 2] * 2))
            made = f"v{len(found.lines)}", c // 2, side
            found.lines.append(f"{made[0]}, {made[0]}b = Split <axis = 1> ({name}, {half})")
        elif kind in ("pool", "average") and side < 8:
            op = "MaxPool" if kind == "pool" else "AveragePool"
            made = found.add(f"{op} <kernel_shape = [2, 2], strides = [2, 2]> ({name})"), c, side * 2
        elif kind == "gate":
            pooled = found.add(f"GlobalAveragePool ({name})")
            squeezed = found.add(f"Conv ({pooled}, {found.weight(c, c, 1, 1, rng=rng)})")
            made = found.add(f"Mul ({name}, {found.add(f'Sigmoid ({squeezed})')})"), c, side
        elif kind == "up" and side > 1:
            scales = found.constant(np.array([1, 1, 2, 2], np.float32))
            made = found.add(f'Resize <mode = "nearest"> ({name}, , {scales})'), c, side // 2
        elif kind == "softmax":
            made = found.add(f"Softmax <axis = 1> ({name})"), c, side
        elif kind == "every second" and side < 8:
            slices = (np.array([0, 0]), np.array([FAR, FAR]), np.array([2, 3]), np.array([2, 2]))
            made = found.add(f"Slice ({name}, {', '.join(map(found.constant, slices))})"), c, side * 2
        elif kind == "tokens":
            made = _tokens(found, name, c, k, rng), k, side
        elif kind == "normalize":
            scale, bias = found.weight(c, rng=rng), found.weight(c, rng=rng)
            made = found.add(f"InstanceNormalization ({name}, {scale}, {bias})"), c, side
        elif kind == "transpose":
            back = found.add(f"Transpose <perm = [0, 2, 3, 1]> ({name})")
            scaled = found.add(f"Mul ({back}, {found.weight(c, rng=rng)})")
            made = found.add(f"Transpose <perm = [0, 3, 1, 2]> ({scaled})"), c, side
        else:
            continue
        values.append(made)
    found.outputs = [values[-1][0]]
    if rng.random() < 0.5:  # a classifier beside it
        pooled = found.add(f"Flatten ({found.add(f'GlobalAveragePool ({values[-1][0]})')})")
        found.outputs.append(found.add(f"MatMul ({pooled}, {found.weight(values[-1][1], 5, rng=rng)})"))
    return found


def _tokens(found: Network, name: str, c: int, k: int, rng: np.random.Generator) -> str:
    """Pixels as a sequence [n, h * w, c], multiplied, and back to an image of the same sides."""
    shape = found.add(f"Shape ({name})")
    flat = found.add(f"Reshape ({name}, {found.constant(np.array([0, c, -1]))})")
    rows = found.add(f"Transpose <perm = [0, 2, 1]> ({flat})")
    mixed = found.add(f"MatMul ({rows}, {found.weight(c, k, rng=rng)})")
    back = found.add(f"Transpose <perm = [0, 2, 1]> ({mixed})")
    first, rest = (found.add(f"Gather ({shape}, {found.constant(np.array(axes))})") for axes in ([0], [2, 3]))
    target = found.add(f"Concat <axis = 0> ({first}, {found.constant(np.array([k]))}, {rest})")
    return found.add(f"Reshape ({back}, {target})")


def texts(rng: np.random.Generator, blocks: int) -> Network:
    """A network over texts [n, l], with a table of positions, and shapes that nodes compute."""
    found = Network("int64[n, l] ids", {"ids": ["n<=3", f"l:1..{LONGEST}"]})
    zero, one = found.constant(np.array([0])), found.constant(np.array([1]))
    shape = found.add("Shape (ids)")
    rows, length = found.add(f"Gather ({shape}, {zero})"), found.add(f"Gather ({shape}, {one})")
    table = found.weight(WORDS, WIDTH, rng=rng)
    positions = found.weight(1, LONGEST, WIDTH, rng=rng)
    cut = found.add(f"Slice ({positions}, {zero}, {length}, {one})")
    x = found.add(f"Add ({found.add(f'Gather ({table}, ids)')}, {cut})")
    split = found.constant(np.array([HEADS, WIDTH // HEADS]))
    for _ in range(blocks):
        kind = str(rng.choice(TEXT_KINDS))
        if kind == "attention":
            heads = found.add(f"Concat <axis = 0> ({rows}, {length}, {split})")
            q, k, v = (
                found.add(
                    f"Transpose <perm = [{perm}]> ("
                    + found.add(
                        f"Reshape ({found.add(f'MatMul ({x}, {found.weight(WIDTH, WIDTH, rng=rng)})')}, {heads})"
                    )
                    + ")"
                )
                for perm in ("0, 2, 1, 3", "0, 2, 3, 1", "0, 2, 1, 3")
            )
            scores = found.add(f"Softmax <axis = -1> ({found.add(f'MatMul ({q}, {k})')})")
            mixed = found.add(f"Transpose <perm = [0, 2, 1, 3]> ({found.add(f'MatMul ({scores}, {v})')})")
            flat = found.add(f"Concat <axis = 0> ({rows}, {length}, {found.constant(np.array([WIDTH]))})")
            x = found.add(f"Add ({x}, {found.add(f'Reshape ({mixed}, {flat})')})")
        elif kind == "mlp":
            wide = found.add(f"Relu ({found.add(f'MatMul ({x}, {found.weight(WIDTH, 40, rng=rng)})')})")
            x = found.add(f"MatMul ({wide}, {found.weight(40, WIDTH, rng=rng)})")
        elif kind == "norm":
            scale, bias = found.weight(WIDTH, rng=rng), found.weight(WIDTH, rng=rng)
            x = found.add(f"LayerNormalization <axis = -1> ({x}, {scale}, {bias})")
        elif kind in ("shift", "scale"):
            op = "Add" if kind == "shift" else "Mul"
            x = found.add(f"{op} ({x}, {found.weight(WIDTH, rng=rng)})")
        elif kind == "add":
            x = found.add(f"Add ({x}, {found.add(f'Sigmoid ({x})')})")
        elif kind == "mask":
            known = found.add(f"Equal (ids, {found.constant(np.array(int(rng.integers(WORDS))))})")
            wide = found.add(f"Unsqueeze ({known}, {found.constant(np.array([2]))})")
            x = found.add(f"Where ({wide}, {found.constant(np.array(0.5, np.float32))}, {x})")
        elif kind == "most":
            x = found.add(f"Add ({x}, {found.add(f'ReduceMax <keepdims = 1> ({x}, {one})')})")
        elif kind == "reverse":
            slices = (np.array([-1]), np.array([-FAR]), np.array([1]), np.array([-1]))
            x = found.add(f"Slice ({x}, {', '.join(map(found.constant, slices))})")
        elif kind == "mean":
            x = found.add(f"Sub ({x}, {found.add(f'ReduceMean <keepdims = 1> ({x}, {one})')})")
        else:
            x = found.add(f"{kind} ({x})")
    found.outputs = [x]
    return found
