"""Networks of branches, concatenations, sums and splits, for tests of plans."""

import re
from dataclasses import dataclass

import numpy as np

from tests.harness import Array

KINDS = ("conv3", "conv1", "depthwise", "Relu", "Sigmoid", "concat", "add", "split", "pool", "gate", "halve")


@dataclass(frozen=True)
class Net:
    text: str
    weights: dict[str, Array]


def fire(last: str) -> Net:
    """Two convolutions of one value, each with its Relu, joined as `e`, and a last operator."""
    rng = np.random.default_rng(0)
    return Net(
        f"""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[1, 16, 24, 24] x, float[16, 16, 3, 3] w, float[16, 16, 3, 3] v)
            => (float[1, 32, 24, 24] y) {{
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Relu (a)
            c = Conv <pads = [1, 1, 1, 1]> (x, v)
            d = Relu (c)
            e = Concat <axis = 1> (b, d)
            y = {last}
        }}""",
        {k: rng.standard_normal((16, 16, 3, 3)).astype(np.float32) for k in "wv"},
    )


def random_net(rng: np.random.Generator, nodes: int) -> Net:
    """Images of 8 channels, in which every value that nothing reads is an output."""
    values = [("x", 8, 12)]  # name, channels, side
    lines: list[str] = []
    weights: dict[str, Array] = {}

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = rng.standard_normal(shape).astype(np.float32) / 4
        return name

    while len(lines) < nodes:
        recent = values[-5:] if rng.random() < 0.8 else values
        name, c, side = recent[rng.integers(len(recent))]
        same = [v for v in values if v[2] == side]
        kind = KINDS[rng.integers(len(KINDS))]
        out, k = f"v{len(lines)}", int(rng.choice([4, 8, 14, 16]))
        made = [(out, c, side)]
        if kind == "conv3":
            line, made = f"Conv <pads = [1, 1, 1, 1]> ({name}, {weight(k, c, 3, 3)})", [(out, k, side)]
        elif kind == "conv1":
            line, made = f"Conv ({name}, {weight(k, c, 1, 1)})", [(out, k, side)]
        elif kind == "depthwise":
            line = f"Conv <pads = [1, 1, 1, 1], group = {c}> ({name}, {weight(c, 1, 3, 3)})"
        elif kind == "concat":
            parts = [same[rng.integers(len(same))] for _ in range(rng.integers(2, 4))]
            line = f"Concat <axis = 1> ({', '.join(p[0] for p in parts)})"
            made = [(out, sum(p[1] for p in parts), side)]
        elif kind == "add":
            equal = [v for v in same if v[1] == c]
            line = f"Add ({name}, {equal[rng.integers(len(equal))][0]})"
        elif kind == "split" and c % 2 == 0:
            lines.append(f"{out}, {out}b = Split <axis = 1, num_outputs = 2> ({name})")
            values += [(out, c // 2, side), (f"{out}b", c // 2, side)]
            continue
        elif kind == "pool":
            line = f"MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({name})"
        elif kind == "gate":
            lines.append(f"g{len(lines)} = GlobalAveragePool ({name})")
            line = f"Mul ({name}, g{len(lines) - 1})"
        elif kind == "halve" and side > 4:
            line = f"MaxPool <kernel_shape = [2, 2], strides = [2, 2]> ({name})"
            made = [(out, c, side // 2)]
        else:
            line = f"{kind if kind in ('Relu', 'Sigmoid') else 'Tanh'} ({name})"
        if made[0][1] <= 96:
            lines.append(f"{out} = {line}")
            values += made
    read = {name for line in lines for name in re.findall(r"\b[vx]\w*", line.split("=", 1)[1])}
    outputs = [v for v in values[1:] if v[0] not in read]
    given = "".join(f", float[{', '.join(map(str, a.shape))}] {k}" for k, a in weights.items())
    told = ", ".join(f"float[1, {c}, {side}, {side}] {name}" for name, c, side in outputs)
    body = "\n".join(lines)
    return Net(
        f'<ir_version: 10, opset_import: ["": 21]>\nagraph (float[1, 8, 12, 12] x{given}) => ({told}) {{\n{body}\n}}',
        weights,
    )
