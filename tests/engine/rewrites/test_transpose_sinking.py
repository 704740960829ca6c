"""Transposes move and cancel: what remains of a graph, and that it computes what it did."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.model.load import load
from app.engine.model.shape_inference import inference
from app.engine.rewrites import transpose_sinking
from app.engine.rewrites.axis_permutation import FAMILIES
from tests.engine.canonical import Array, assert_same_outputs, canonical, operators, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(11)
FIRST, LAST = "perm = [0, 3, 1, 2]", "perm = [0, 2, 3, 1]"  # channels


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


class ChannelsLast:
    """Writes a graph as a framework that keeps channels last does: every convolution between transposes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.weights: dict[str, Array] = {}

    def weight(self, array: Array) -> str:
        self.weights[f"w{len(self.weights)}"] = array
        return f"w{len(self.weights) - 1}"

    def node(self, text: str) -> str:
        self.lines.append(f"v{len(self.lines)} = {text}")
        return f"v{len(self.lines) - 1}"

    def image(self, text: str, x: str) -> str:
        """An operator that only exists for images with channels first."""
        turned = self.node(f"Transpose<{FIRST}>({x})")
        return self.node(f"Transpose<{LAST}>({self.node(text.format(x=turned))})")

    def conv(self, x: str, channels: int, filters: int, size: int = 3, attributes: str = "") -> str:
        w, half = self.weight(normal(filters, channels, size, size)), size // 2
        pads = f"pads = [{half}, {half}, {half}, {half}]{attributes}"
        y = self.image(f"Conv<{pads}>({{x}}, {w})", x)
        return self.node(f"Add({y}, {self.weight(normal(filters))})")

    def normalized(self, x: str, channels: int) -> str:
        statistics = [self.weight(a) for a in (normal(channels), normal(channels), normal(channels))]
        variance = self.weight(positive(channels))
        return self.image(f"BatchNormalization({{x}}, {', '.join(statistics)}, {variance})", x)


def channels_last_network() -> tuple[str, dict[str, Array]]:
    """Convolutions, normalization, a residual, squeeze and excitation, concat, pooling, a dense layer."""
    g = ChannelsLast()
    x = g.node(f"Relu({g.normalized(g.conv('x', 3, 8), 8)})")
    branch = g.normalized(g.conv(g.node(f"Relu({g.conv(x, 8, 8)})"), 8, 8), 8)
    x = g.node(f"Relu({g.node(f'Add({branch}, {x})')})")
    axes = g.weight(np.array([1, 2]))
    squeezed = g.node(f"ReduceMean<keepdims = 1>({x}, {axes})")
    gate = g.node(f"Sigmoid({g.conv(g.node(f'Relu({g.conv(squeezed, 8, 2, 1)})'), 2, 8, 1)})")
    x = g.node(f"Mul({x}, {gate})")
    x = g.node(f"Concat<axis = 3>({x}, {g.conv(x, 8, 4)})")
    pads = g.weight(np.array([0, 0, 0, 0, 0, 1, 1, 0]))
    x = g.image("MaxPool<kernel_shape = [2, 2], strides = [2, 2]>({x})", g.node(f"Pad({x}, {pads})"))
    x = g.node(f"Softmax<axis = -1>({g.conv(x, 12, 6)})")
    pooled = g.node(f"ReduceMean<keepdims = 0>({x}, {axes})")
    g.lines.append(f"y = Gemm({pooled}, {g.weight(normal(6, 5))})")
    text = f"{HEAD} g (float[2,9,9,3] x) => (float[2,5] y) {{ {' '.join(g.lines)} }}"
    return text, g.weights


def interior(graph: ir.Graph) -> list[ir.Node]:
    """Transposes that neither read an input of the graph nor write an output."""
    return [
        n
        for n in graph.all_nodes()
        if n.op_type == "Transpose"
        and not n.inputs[0].is_graph_input()
        and not n.outputs[0].is_graph_output()
    ]


def test_a_channels_last_network_has_no_transpose_inside(tmp_path: Path) -> None:
    text, weights = channels_last_network()
    path = saved(text, tmp_path, weights)
    compilation = canonical(path)
    assert_same_outputs(path, compilation, 1e-4)
    assert operators(compilation.graph).count("Transpose") == 1
    assert not interior(compilation.graph)
    assert "BatchNormalization" not in operators(compilation.graph)


X = (2, 3, 4, 6)  # with channels first; the operators below see float[2,4,6,3]

BETWEEN = {
    # operators on h: float[2,4,6,3], and the shape of y with channels first
    "y = Relu(h)": X,
    "y = Add(h, c)": X,
    "y = Sub(c1, h)": X,
    "y = Mul(h, w)": X,
    "a = Relu(b) y = Add(h, a)": X,
    "y = PRelu(h, c)": X,
    "y = Clip(h, zero, one)": X,
    "a = Greater(h, zero) y = Where(a, h, c)": X,
    "y = Softmax(h)": X,
    "y = LogSoftmax<axis = 1>(h)": X,
    "y = Concat<axis = -1>(h, h)": (2, 6, 4, 6),
    "y = Concat<axis = 1>(h, full)": (2, 3, 8, 6),
    "a, b2 = Split<axis = 2, num_outputs = 2>(h) y = Sub(a, b2)": (2, 3, 4, 3),
    "y = Slice(h, i0, i2)": (2, 3, 2, 6),
    "y = Slice(h, i1, i3, last, step)": (2, 1, 4, 6),
    "y = Pad(h, pads)": (2, 5, 4, 9),
    "y = Pad(h, pads2, , i12)": (2, 3, 5, 7),
    "y = ReduceMax<keepdims = 1>(h, i12)": (2, 3, 1, 1),
    "y = ReduceSum<keepdims = 1>(h)": (1, 1, 1, 1),
    "y = ArgMax<axis = 3>(h)": (2, 1, 4, 6),
    "y = Gather<axis = 3>(h, i02)": (2, 2, 4, 6),
    "y = Tile(h, repeats)": (2, 6, 4, 6),
    "y = Expand(h, wide)": X,
    "y = CumSum(h, axis)": X,
    "y = QuantizeLinear<axis = 3>(h, scales, zeros)": X,
    'y = Resize<mode = "linear">(h, , scale)': (2, 3, 8, 12),
    'y = Resize<mode = "nearest", axes = [1, 2]>(h, , , sizes)': (2, 3, 7, 3),
    "a = ReduceMean<keepdims = 0>(h, i12) b2 = Unsqueeze(a, i12) y = Mul(h, b2)": X,
    "a = ReduceMean<keepdims = 1>(h, i12) b2 = Squeeze(a, i12) c2 = Reshape(b2, s) y = Mul(h, c2)": X,
}
WEIGHTS = {
    "c": positive(3),
    "c1": normal(6, 1),
    "w": normal(1, 4, 6, 3),
    "zero": np.zeros((), np.float32),
    "one": np.ones((), np.float32),
    "full": normal(2, 4, 6, 3),
    "i0": np.array([0, 1]),
    "i1": np.array([0], np.int32),
    "i2": np.array([2, 3]),
    "i3": np.array([3], np.int32),
    "last": np.array([-1], np.int32),
    "step": np.array([4], np.int32),
    "i12": np.array([1, 2]),
    "i02": np.array([0, 2]),
    "pads": np.array([0, 0, 2, 1, 0, 0, 1, 1]),
    "pads2": np.array([1, 0, 0, 1]),
    "repeats": np.array([1, 1, 1, 2]),
    "wide": np.array([6, 3]),
    "axis": np.array(-1),
    "scales": positive(3),
    "zeros": np.zeros(3, np.int8),
    "scale": np.array([1, 2, 2, 1], np.float32),
    "sizes": np.array([7, 3]),
    "s": np.array([2, 1, 1, 3]),
}


@pytest.mark.parametrize("body", BETWEEN)
def test_transposes_around_operators_cancel(body: str, tmp_path: Path) -> None:
    """Behind a convolution, which has channels first, and before an output that has them first too."""
    shape, kind = BETWEEN[body], {"ArgMax": "int64", "QuantizeLinear": "int8"}
    result = next((k for op, k in kind.items() if op in body), "float")
    used = {k: WEIGHTS[k] for k in re.findall(r"\w+", body) if k in WEIGHTS}
    inner = f"t = Conv(x, k) h = Transpose<{LAST}>(t) {body.replace('y =', 'z =')} y = Transpose<{FIRST}>(z)"
    signature = f"(float[2,3,4,6] x, float[3] b) => ({result}[{','.join(map(str, shape))}] y)"
    path = saved(f"{HEAD} g {signature} {{ {inner} }}", tmp_path, {"k": normal(3, 3, 1, 1), **used})
    compilation = canonical(path)
    assert_same_outputs(path, compilation)
    assert "Transpose" not in operators(compilation.graph)
    assert transpose_sinking.nbytes(compilation.model) == 0


def test_every_family_names_operators_once() -> None:
    named = [op for family in FAMILIES for op in family.ops]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        # The transpose of the sum would copy as much as that of the product.
        (f"t = MatMul(x, m) u = Relu(t) y = Transpose<{FIRST}>(u)", ["MatMul", "Relu", "Transpose"]),
        # Two operands would be transposed in place of their sum.
        (f"t = MatMul(x, m) u = MatMul(t, m) v = Add(t, u) y = Transpose<{FIRST}>(v)",
         ["MatMul", "MatMul", "Add", "Transpose"]),
    ],
)  # fmt: skip
def test_a_transpose_stays_where_moving_it_gains_nothing(body: str, left: list[str], tmp_path: Path) -> None:
    signature = "(float[1,4,6,3] x) => (float[1,3,4,6] y)"
    path = saved(f"{HEAD} g {signature} {{ {body} }}", tmp_path, {"m": normal(3, 3)})
    compilation = canonical(path)
    assert operators(compilation.graph) == left
    assert_same_outputs(path, compilation)


def test_a_transpose_moves_to_the_smaller_side(tmp_path: Path) -> None:
    body = f"u = ReduceMax<keepdims = 1>(t, i) y = Transpose<{FIRST}>(u)"
    signature = "(float[2,4,6,3] x) => (float[2,3,4,1] y)"
    text = f"{HEAD} g {signature} {{ h = Transpose<{FIRST}>(x) r = Relu(h) t = Transpose<{LAST}>(r) {body} }}"
    path = saved(text, tmp_path, {"i": np.array([2])})
    compilation = canonical(path)
    assert_same_outputs(path, compilation)
    (left,) = (n for n in compilation.graph if n.op_type == "Transpose")
    assert left.outputs[0].is_graph_output()


def test_a_transpose_that_another_operator_needs_is_made_once(tmp_path: Path) -> None:
    body = f"""t = Conv(x, k) h = Transpose<{LAST}>(t) r = Relu(h) a = MatMul(r, m) b = MatMul(r, n)
        u = Transpose<{FIRST}>(r) y = Conv(u, k)"""
    signature = "(float[2,3,4,6] x) => (float[2,3,4,6] y, float[2,4,6,3] a, float[2,4,6,3] b)"
    weights = {"k": normal(3, 3, 1, 1), "m": normal(3, 3), "n": normal(3, 3)}
    path = saved(f"{HEAD} g {signature} {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    assert_same_outputs(path, compilation)
    assert operators(compilation.graph).count("Transpose") == 1


def test_transposes_in_bodies_cancel(tmp_path: Path) -> None:
    body = f"""y = If (p) <
            then_branch = a () => (float[1,3,4,6] d) {{
                h = Transpose<{LAST}>(x) r = Relu(h) s = Add(r, c) d = Transpose<{FIRST}>(s) }},
            else_branch = b () => (float[1,3,4,6] e) {{ e = Neg(x) }}>
        z = Loop (count, p, y) <body = l (int64 i, bool q, float[1,3,4,6] v) => (bool o, float[1,3,4,6] w) {{
            o = Not(q) f = Transpose<{LAST}>(v) g2 = Mul(f, c) g3 = Tanh(g2) w = Transpose<{FIRST}>(g3) }}>"""
    signature = "(float[1,3,4,6] x, bool p) => (float[1,3,4,6] z)"
    weights = {"c": normal(3), "count": np.array(2)}
    path = saved(f"{HEAD} g {signature} {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    assert all(n.op_type != "Transpose" for n in compilation.graph.all_nodes())
    for p in (True, False):
        assert_same_outputs(path, compilation, p=np.array(p))


# Templates of nodes over values of shape [2,2,2,2]: {o} is the output, {a} and {b} are operands.
TEMPLATES = (
    "{o} = Transpose<perm = [0, 2, 3, 1]>({a})",
    "{o} = Transpose<perm = [0, 3, 1, 2]>({a})",
    "{o} = Transpose<perm = [0, 2, 1, 3]>({a})",
    "{o} = Transpose<perm = [3, 2, 1, 0]>({a})",
    "{o} = Relu({a})",
    "{o} = Add({a}, {b})",
    "{o} = Mul({a}, row)",
    "{o} = Softmax<axis = 1>({a})",
    "{o}p, {o}q = Split<axis = 2, num_outputs = 2>({a}) {o} = Concat<axis = 2>({o}q, {o}p)",
    "{o}m = ReduceMean<keepdims = 0>({a}, axes) {o} = Add({b}, {o}m)",
    "{o} = MatMul({a}, {b})",
)
CHOICES = st.lists(st.integers(min_value=0, max_value=10_000), min_size=3, max_size=36)


def graph_text(choices: Sequence[int]) -> str:
    """A node template for three choices each; what nobody reads is an output."""
    values, lines, read = ["x"], [], set()
    for index in range(len(choices) // 3):
        kind, first, second = choices[3 * index : 3 * index + 3]
        a, b = values[first % len(values)], values[second % len(values)]
        template = TEMPLATES[kind % len(TEMPLATES)]
        lines.append(template.format(o=f"v{index}", a=a, b=b))
        read |= {a} | ({b} if "{b}" in template else set())
        values.append(f"v{index}")
    outputs = ", ".join(f"float[2,2,2,2] {v}" for v in values[1:] if v not in read)
    return f"{HEAD} g (float[2,2,2,2] x) => ({outputs}) {{ {' '.join(lines)} }}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=CHOICES)
def test_any_graph_computes_what_it_did_with_no_more_transposes(choices: list[int], tmp_path: Path) -> None:
    path = saved(graph_text(choices), tmp_path, {"row": positive(2), "axes": np.array([1, 2])})
    compilation = canonical(path)
    assert_same_outputs(path, compilation)
    given_model = load(path).model
    inference.infer(given_model)
    assert transpose_sinking.nbytes(compilation.model) <= transpose_sinking.nbytes(given_model)
