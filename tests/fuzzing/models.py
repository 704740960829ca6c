"""Random ONNX models: convolutional and dense graphs with branches, views, reductions and control flow.

Shapes come from small palettes, so that compiled kernels repeat between models.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

CHANNELS = (4, 6, 8, 16)
WIDTHS = (8, 16, 24)
UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max")
LARGEST = 4096  # elements of a value; larger ones are not extended further


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A valid model and one set of inputs for it."""

    proto: onnx.ModelProto
    inputs: dict[str, Array]


@dataclass
class _Builder:
    """Nodes in ONNX text, with the shape of every float value."""

    random: np.random.Generator
    values: dict[str, Shape] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    count: int = 0

    def pick(self, *items: Any) -> Any:
        return items[int(self.random.integers(len(items)))]

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def weight(self, *shape: int) -> str:
        """A constant whose products keep the magnitude of what they are applied to."""
        name = self.name("w")
        scale = 1.0 / math.sqrt(max(math.prod(shape[1:]), 1))
        self.weights[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return name

    def indices(self, *items: int) -> str:
        name = self.name("i")
        self.weights[name] = np.array(items, np.int64)
        return name

    def scalar(self, item: int) -> str:
        name = self.name("i")
        self.weights[name] = np.array(item, np.int64)
        return name

    def emit(self, expression: str, *shapes: Shape) -> tuple[str, ...]:
        names = tuple(self.name() for _ in shapes)
        self.lines.append(f"{', '.join(names)} = {expression}")
        self.values.update(zip(names, shapes))
        return names

    def any(self, test: Callable[[Shape], bool] = lambda _shape: True) -> str | None:
        """A value of a fitting shape; recent ones are likelier, so that graphs get deep."""
        fitting = [n for n, s in self.values.items() if test(s)]
        if not fitting:
            return None
        recent = fitting[-4:] if self.random.random() < 0.6 else fitting
        return str(self.pick(*recent))


def _image(shape: Shape) -> bool:
    return len(shape) == 4 and math.prod(shape) <= LARGEST


def _matrix(shape: Shape) -> bool:
    return len(shape) == 2 and math.prod(shape) <= LARGEST


def _conv(b: _Builder, x: str | None = None) -> str | None:
    x = x or b.any(_image)
    if x is None:
        return None
    n, c, h, w = b.values[x]
    size, stride = b.pick((1, 1), (3, 1), (3, 1), (3, 2), (1, 2))
    depthwise = size == 3 and b.random.random() < 0.25
    k, groups = (c, c) if depthwise else (b.pick(*CHANNELS), 1)
    pad = size // 2
    filters = b.weight(k, c // groups, size, size)
    bias = f", {b.weight(k)}" if b.random.random() < 0.5 else ""
    out = tuple((d + 2 * pad - size) // stride + 1 for d in (h, w))
    attributes = f"pads = [{pad}, {pad}, {pad}, {pad}], strides = [{stride}, {stride}], group = {groups}"
    return b.emit(f"Conv <{attributes}> ({x}, {filters}{bias})", (n, k, *out))[0]


def _unary(b: _Builder, x: str | None = None) -> None:
    x = x or b.any()
    if x is not None:
        b.emit(f"{b.pick(*UNARY)} ({x})", b.values[x])


def _binary(b: _Builder) -> None:
    x = b.any()
    if x is None:
        return
    shape = b.values[x]
    y = b.any(lambda s: s == shape)
    if b.random.random() < 0.25:
        y = b.weight(*((shape[1], 1, 1) if len(shape) == 4 else shape[-1:]))
    b.emit(f"{b.pick(*BINARY)} ({x}, {y})", shape)


def _concat(b: _Builder) -> None:
    x = b.any(lambda s: math.prod(s) <= LARGEST)
    if x is None:
        return
    shape = b.values[x]
    axis = min(1, len(shape) - 1) if b.random.random() < 0.8 else int(b.random.integers(len(shape)))
    parts = [x]
    for _ in range(int(b.random.integers(1, 4))):
        other = b.any(
            lambda s: len(s) == len(shape) and all(i == axis or s[i] == shape[i] for i in range(len(s)))
        )
        assert other is not None
        parts.append(other)
    extent = sum(b.values[p][axis] for p in parts)
    if b.random.random() < 0.2:
        parts.append(b.weight(*shape))
        extent += shape[axis]
    b.emit(f"Concat <axis = {axis}> ({', '.join(parts)})", (*shape[:axis], extent, *shape[axis + 1 :]))


def _fire(b: _Builder) -> None:
    """Two or three branches of convolutions with activations over one value, concatenated and read again."""
    x = b.any(_image)
    if x is None:
        return
    n, c, h, w = b.values[x]
    ends = []
    for _ in range(int(b.random.integers(2, 4))):
        k, size = b.pick(*CHANNELS), b.pick(1, 3)
        pad = size // 2
        (y,) = b.emit(
            f"Conv <pads = [{pad}, {pad}, {pad}, {pad}]> ({x}, {b.weight(k, c, size, size)})", (n, k, h, w)
        )
        ends.append(b.emit(f"Relu ({y})", (n, k, h, w))[0])
    channels = sum(b.values[e][1] for e in ends)
    if b.random.random() < 0.2:
        k = b.pick(*CHANNELS)
        ends.append(b.weight(n, k, h, w))
        channels += k
    (joined,) = b.emit(f"Concat <axis = 1> ({', '.join(ends)})", (n, channels, h, w))
    b.pick(_conv, _unary)(b, joined)


def _residual(b: _Builder) -> None:
    x = b.any(_image)
    if x is None:
        return
    n, c, h, w = b.values[x]
    (y,) = b.emit(f"Conv <pads = [1, 1, 1, 1]> ({x}, {b.weight(c, c, 3, 3)})", (n, c, h, w))
    if b.random.random() < 0.5:
        (y,) = b.emit(f"Relu ({y})", (n, c, h, w))
    (z,) = b.emit(f"Add ({y}, {x})", (n, c, h, w))
    if b.random.random() < 0.5:
        b.emit(f"Relu ({z})", (n, c, h, w))


def _split(b: _Builder) -> None:
    x = b.any(lambda s: len(s) >= 2 and s[1] >= 2 and s[1] % 2 == 0)
    if x is None:
        return
    shape = b.values[x]
    half = (shape[0], shape[1] // 2, *shape[2:])
    b.emit(f"Split <axis = 1, num_outputs = 2> ({x})", half, half)


def _slice(b: _Builder) -> None:
    x = b.any(lambda s: max(s, default=0) >= 3)
    if x is None:
        return
    shape = b.values[x]
    axis = int(b.pick(*(i for i, d in enumerate(shape) if d >= 3)))
    first, last, step = (
        int(b.random.integers(0, 2)),
        shape[axis] - int(b.random.integers(0, 2)),
        b.pick(1, 1, 2),
    )
    extent = -(-(last - first) // step)
    arguments = ", ".join(b.indices(i) for i in (first, last, axis, step))
    b.emit(f"Slice ({x}, {arguments})", (*shape[:axis], extent, *shape[axis + 1 :]))


def _reduce(b: _Builder) -> None:
    x = b.any(lambda s: len(s) >= 2)
    if x is None:
        return
    shape = b.values[x]
    axes = (2, 3) if len(shape) == 4 and b.random.random() < 0.7 else (len(shape) - 1,)
    keep = b.random.random() < 0.5 or len(shape) == 2
    out = tuple(1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes)
    op = b.pick("ReduceMean", "ReduceSum", "ReduceMax")
    (y,) = b.emit(f"{op} <keepdims = {int(keep)}> ({x}, {b.indices(*axes)})", out)
    if keep and b.random.random() < 0.5:
        b.emit(f"Mul ({x}, {y})", shape)


def _matmul(b: _Builder) -> None:
    x = b.any(_matrix)
    if x is None:
        return
    rows, depth = b.values[x]
    width = b.pick(*WIDTHS)
    w = b.weight(depth, width)
    if b.random.random() < 0.5:
        b.emit(f"Gemm ({x}, {w}, {b.weight(width)})", (rows, width))
    else:
        b.emit(f"MatMul ({x}, {w})", (rows, width))


def _reshape(b: _Builder) -> None:
    x = b.any(lambda s: math.prod(s) <= LARGEST)
    if x is None:
        return
    shape = b.values[x]
    total = math.prod(shape)
    options: list[Shape] = [(shape[0], total // shape[0])] if shape[0] else []
    options += [(total // w, w) for w in WIDTHS if total % w == 0]
    options += [(1, c, 4, total // c // 4) for c in CHANNELS if total % (4 * c) == 0]
    out = b.pick(*options)
    b.emit(f"Reshape ({x}, {b.indices(*out)})", out)


def _transpose(b: _Builder) -> None:
    x = b.any(lambda s: len(s) >= 2)
    if x is None:
        return
    shape = b.values[x]
    perm = [int(p) for p in b.random.permutation(len(shape))]
    b.emit(f"Transpose <perm = {perm}> ({x})", tuple(shape[p] for p in perm))


def _pool(b: _Builder) -> None:
    x = b.any(_image)
    if x is None:
        return
    op = b.pick("MaxPool", "AveragePool")
    n, c, h, w = b.values[x]
    stride = b.pick(1, 2)
    out = tuple((d - 1) // stride + 1 for d in (h, w))
    b.emit(
        f"{op} <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [{stride}, {stride}]> ({x})",
        (n, c, *out),
    )


def _rows(b: _Builder) -> None:
    x = b.any(lambda s: len(s) >= 2)
    if x is None:
        return
    shape = b.values[x]
    if b.random.random() < 0.5:
        b.emit(f"Softmax <axis = -1> ({x})", shape)
    else:
        b.emit(f"LayerNormalization <axis = -1> ({x}, {b.weight(shape[-1])})", shape)


def _body(b: _Builder, x: str, shape: Shape, steps: int) -> tuple[list[str], str]:
    """Nodes of a body that keep the shape of `x`; some read values of the enclosing graph."""
    lines = []
    for _ in range(steps):
        y = b.name("b")
        kind = b.random.random()
        if kind < 0.4:
            expression = f"{b.pick('Relu', 'Sigmoid', 'Tanh', 'Neg')} ({x})"
        elif kind < 0.6 and len(shape) == 2:
            expression = f"MatMul ({x}, {b.weight(shape[1], shape[1])})"
        else:
            outer = b.any(lambda s: s == shape)
            expression = f"{b.pick('Add', 'Mul')} ({x}, {outer or b.weight(*shape)})"
        lines.append(f"{y} = {expression}")
        x = y
    return lines, x


def _typed(name: str, shape: Shape) -> str:
    return f"float[{', '.join(map(str, shape))}] {name}"


def _if(b: _Builder) -> None:
    x = b.any(lambda s: math.prod(s) <= LARGEST)
    if x is None:
        return
    shape = b.values[x]
    branches = []
    for label in ("then_branch", "else_branch"):
        lines, end = _body(b, x, shape, int(b.random.integers(1, 4)))
        branches.append(f"{label} = {b.name('g')} () => ({_typed(end, shape)}) {{ {' '.join(lines)} }}")
    b.emit(f"If ({b.pick('yes', 'no')}) <{', '.join(branches)}>", shape)


def _loop(b: _Builder) -> None:
    x = b.any(lambda s: 0 < math.prod(s) <= LARGEST)
    if x is None:
        return
    shape = b.values[x]
    trips = int(b.random.integers(1, 4))
    carried = b.name("c")
    lines, end = _body(b, carried, shape, int(b.random.integers(1, 4)))
    given, again, iteration = b.name("k"), b.name("k"), b.name("k")
    lines.append(f"{again} = Identity ({given})")
    outputs, shapes = [f"bool {again}", _typed(end, shape)], [shape]
    if b.random.random() < 0.4:
        scanned = b.name("s")
        lines.append(f"{scanned} = Neg ({end})")
        outputs.append(_typed(scanned, shape))
        shapes.append((trips, *shape))
    body = (
        f"{b.name('g')} (int64 {iteration}, bool {given}, {_typed(carried, shape)}) => ({', '.join(outputs)}) "
        f"{{ {' '.join(lines)} }}"
    )
    b.emit(f"Loop ({b.scalar(trips)}, yes, {x}) <body = {body}>", *shapes)


def _scan(b: _Builder) -> None:
    x = b.any(lambda s: len(s) == 2 and 2 <= s[0] <= 16 and s[1] <= 64)
    if x is None:
        return
    rows, width = b.values[x]
    state, row, passed = b.name("c"), b.name("r"), b.name("p")
    lines, end = _body(b, state, (width,), int(b.random.integers(1, 3)))
    joined, out = b.name("b"), b.name("b")
    lines += [f"{joined} = Add ({end}, {row})", f"{passed} = Tanh ({joined})", f"{out} = Neg ({passed})"]
    body = (
        f"{b.name('g')} ({_typed(state, (width,))}, {_typed(row, (width,))}) "
        f"=> ({_typed(passed, (width,))}, {_typed(out, (width,))}) {{ {' '.join(lines)} }}"
    )
    direction = int(b.random.integers(0, 2))
    b.emit(
        f"Scan ({b.weight(width)}, {x}) <num_scan_inputs = 1, scan_input_directions = [{direction}], "
        f"body = {body}>",
        (width,),
        (rows, width),
    )


# Weights of the draw: convolutions and joins are what memory planning lives from.
KINDS: tuple[tuple[Callable[[_Builder], object], int], ...] = (
    (_conv, 5),
    (_unary, 4),
    (_binary, 4),
    (_concat, 3),
    (_fire, 3),
    (_residual, 2),
    (_split, 2),
    (_slice, 2),
    (_reduce, 2),
    (_matmul, 3),
    (_reshape, 2),
    (_transpose, 1),
    (_pool, 2),
    (_rows, 1),
    (_if, 1),
    (_loop, 1),
    (_scan, 1),
)


def random_model(seed: int) -> RandomModel:
    """A model of 3 to 40 nodes in its main graph; the same seed gives the same model."""
    b = _Builder(np.random.default_rng(seed))
    batch = b.pick(1, 1, 1, 2)
    b.values["x"] = (batch, b.pick(*CHANNELS), 8, b.pick(6, 8))
    b.values["m"] = (b.pick(1, 4), b.pick(*WIDTHS))
    given = dict(b.values)
    wanted = int(b.random.integers(3, 41))
    makers = [make for make, weight in KINDS for _ in range(weight)]
    while len(b.lines) < wanted:
        b.pick(*makers)(b)
    del b.lines[40:]
    made = [n.strip() for line in b.lines for n in line.partition(" = ")[0].split(",")]
    read = {n for node in _parsed(b, given, made[-1:]).graph.node for n in _reads(node)}
    outputs = [n for n in made if n not in read][-6:]
    if b.random.random() < 0.3:
        outputs = list(dict.fromkeys([*outputs, b.pick(*made)]))
    proto = _parsed(b, given, outputs)
    used = {n for node in proto.graph.node for n in _reads(node)}
    for name, array in b.weights.items():
        if name in used:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(proto, full_check=True)
    inputs: dict[str, Array] = {n: b.random.standard_normal(s).astype(np.float32) for n, s in given.items()}
    return RandomModel(proto, {**inputs, "yes": np.array(True), "no": np.array(False)})


def _parsed(b: _Builder, inputs: Mapping[str, Shape], outputs: Sequence[str]) -> onnx.ModelProto:
    header = ", ".join([*(_typed(n, s) for n, s in inputs.items()), "bool yes", "bool no"])
    ends = ", ".join(_typed(n, b.values[n]) for n in outputs)
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> fuzzed ({header}) => ({ends}) {{ {" ".join(b.lines)} }}'
    )


def _reads(node: onnx.NodeProto) -> list[str]:
    inner = [n for a in node.attribute if a.HasField("g") for child in a.g.node for n in _reads(child)]
    return [*node.input, *inner]


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float32 input and every float32 result of a node rounded to bfloat16, in bodies too."""
    copy = onnx.shape_inference.infer_shapes(model)
    _round_values(copy.graph, {}, {})
    return copy


def _round_values(graph: onnx.GraphProto, types: Mapping[str, int], renamed: Mapping[str, str]) -> None:
    """Rounds the values of a graph in place.

    Args:
        graph: The main graph or a body.
        types: Element types of the values that a body captures, by name.
        renamed: Names of their rounded values.
    """
    own = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    types, renamed = {**types, **own}, dict(renamed)
    outputs = {o.name for o in graph.output}
    nodes = [*(n for v in graph.input for n in _roundings(v.name, v.name, types))]
    renamed |= {v.name: f"{v.name}/rounded" for v in graph.input if types[v.name] == onnx.TensorProto.FLOAT}
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _round_values(attribute.g, types, renamed)
        nodes.append(node)
        for i, name in enumerate(node.output):
            if types.get(name) == onnx.TensorProto.FLOAT and name not in outputs:
                nodes += _roundings(name, name, types)
                renamed[name] = f"{name}/rounded"
            elif types.get(name) == onnx.TensorProto.FLOAT:
                node.output[i] = f"{name}/exact"
                nodes += _roundings(node.output[i], name, {node.output[i]: types[name]}, name)
    del graph.node[:]
    graph.node.extend(nodes)


def _roundings(source: str, stem: str, types: Mapping[str, int], target: str = "") -> list[onnx.NodeProto]:
    if types.get(source) != onnx.TensorProto.FLOAT:
        return []
    half = f"{stem}/bfloat16"
    return [
        _cast(source, half, onnx.TensorProto.BFLOAT16),
        _cast(half, target or f"{stem}/rounded", onnx.TensorProto.FLOAT),
    ]


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="Cast", input=[source], output=[target])
    node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=kind)
    return node
