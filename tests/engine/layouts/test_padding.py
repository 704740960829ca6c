"""The contract of padded lanes over whole programs: what rows leave there, and zeros where a reader counts them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.core.program import Program
from app.engine.layouts.choice import Policy
from app.engine.report.decisions import decisions_json
from app.engine.report.report import plan_json
from app.engine.runtime.cpu.executor import Executor
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.layouts.test_problems import planned
from tests.harness import assert_close

Array = np.ndarray[Any, Any]
C, H = 12, 10
RANDOM = np.random.default_rng(4)
WEIGHTS = {
    "w": RANDOM.standard_normal((C, C, 3, 3)).astype(np.float32) / 8,
    "deep": RANDOM.standard_normal((C, 1, 3, 3)).astype(np.float32) / 4,
    "many": RANDOM.standard_normal((16, C, 3, 3)).astype(np.float32) / 8,
    "bias": RANDOM.standard_normal(C).astype(np.float32),
    "half": np.array(0.5, np.float32),
    "slope": RANDOM.random((C, 1, 1)).astype(np.float32),
    "low": np.array(0.25, np.float32),
    "channels": np.array([1]),
    "pixels": np.array([2, 3]),
    "border": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "parts": np.array([8, 4]),
    "scales": np.array([1, 1, 2, 2], np.float32),
}
PADS = "pads = [1, 1, 1, 1]"
SUM = "s = ReduceSum<keepdims = 1>({}, channels)"

# A body on x and on c, a convolution of x, up to a value v, whose channels are then summed; and what v's
# padded lanes hold before.
BODIES = {
    "convolution": ("v = Relu(c)", "undefined"),  # a zero weight times an infinite element is no zero
    "converted": ("v = Relu(x)", "zero"),
    "kept_by_arithmetic": ("t = Mul(x, half) u = Mul(t, slope) v = PRelu(u, slope)", "zero"),
    "shifted": ("v = Add(x, half)", "f(0)"),
    "exponential": ("v = Exp(x)", "f(0)"),
    "limited": ("v = Clip(x, low)", "f(0)"),
    "gated": ("g = GlobalAveragePool(x) h = Sigmoid(g) v = Mul(x, h)", "zero"),
    "infinite": ("v = Log(x)", "undefined"),
    "pooled": (f"r = Relu(x) v = MaxPool<kernel_shape = [3, 3], {PADS}>(r)", "zero"),
    "averaged": (f"r = Exp(x) v = AveragePool<kernel_shape = [3, 3], {PADS}>(r)", "undefined"),
    "depthwise": (f"r = Relu(x) v = Conv<group = {C}, {PADS}>(r, deep, bias)", "zero"),
    "padded_with_zeros": ("r = Relu(x) v = Pad(r, border)", "zero"),
    "padded_with_halves": ("r = Relu(x) v = Pad(r, border, half)", "undefined"),
    "resized": ('r = Relu(x) v = Resize<mode = "nearest">(r, , scales)', "zero"),
    "joined": (f"m = Conv<{PADS}>(x, many) r = Relu(x) v = Concat<axis = 1>(m, r)", "zero"),
    "parted": ("a, b = Split<axis = 1>(x, parts) v = Relu(b)", "undefined"),
}  # fmt: skip


class Checked(Executor):
    """Checks after every step that lanes which are said to be zero are."""

    checked = 0

    def _ran(self, index: int) -> None:
        lanes = self.program.compilation.plan.padding
        assert lanes is not None
        for value in self.program.steps[index].group.outputs:
            if lanes[value] in ("zero", "f(0)"):
                held, padded = self.padded_lanes(value)
                assert padded.any()
                assert np.isfinite(held[padded]).all(), value.name
                assert lanes[value] == "f(0)" or not held[padded].any(), value.name
                self.checked += 1


def built(body: str, outputs: str, folder: Path) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[2,{C},{H},{H}] x) => ({outputs}) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, k) for k, a in WEIGHTS.items() if k in used
    )
    onnx.save(proto, folder / "model.onnx")
    return proto


def assert_computes(proto: onnx.ModelProto, found: Program, compiler: Compiler) -> int:
    """Twice in poisoned memory; how many values were checked to have the lanes that they are said to have."""
    x = np.abs(RANDOM.standard_normal((2, C, H, H)).astype(np.float32)) + 0.1
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    executor = Checked(found, compiler, poison=True)
    for _ in range(2):
        results = executor.run({"x": x})
        for value, array in zip(proto.graph.output, expected, strict=True):
            assert_close(np.asarray(results[value.name]), array, 1e-4)
    executor.close()
    return executor.checked


def fills(found: Program) -> list[str]:
    return [s.group.name for s in found.steps if s.choice.implementation.name == "layout.zero_lanes"]


@pytest.mark.parametrize(
    ("name", "policy"), [*((n, "blocked") for n in BODIES), ("convolution", "joint"), ("gated", "joint")]
)
def test_zeros_are_filled_in_where_the_writer_leaves_others(
    name: str, policy: Policy, tmp_path: Path, compiler: Compiler
) -> None:
    body, held = BODIES[name]
    head = f"c = Conv<{PADS}>(x, w) " if "(c)" in body else ""
    proto = built(f"{head} {body} {SUM.format('v')} y = Neg(s) z = Neg(v)", "float y, float z", tmp_path)
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(onnx.shape_inference.infer_shapes(proto, data_prop=True), tmp_path / "model.onnx")
    found = planned(tmp_path / "model.onnx", policy, lanes=8)
    assert_computes(proto, found, compiler)
    lanes = found.compilation.plan.padding
    assert lanes is not None
    if policy == "blocked":
        reader = next(s for s in found.steps if s.group.op == "ReduceSum")
        assert reader.choice.implementation.name == "sum_of_channels.blocked"
        (read,) = (v for v in reader.group.inputs if lanes[v] != "none")
        assert lanes[read] == "zero"
        if held is not None:
            assert len(fills(found)) == (held != "zero")
            written = next(
                v for v in lanes if v.name in ("v", "v:NCHW8c", "v:NCHW16c") and lanes[v] != "none"
            )
            assert lanes[written] == held
    else:
        assert all(lanes[v] == "zero" for s in found.steps for v in s.group.inputs
                   if s.choice.implementation.padding.reads == "zero" and lanes[v] != "none")  # fmt: skip


def test_one_fill_serves_all_readers_and_is_told(tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) v = Exp(c) s = ReduceSum(v, channels) m = ReduceMean(v, channels) y = Add(s, m) z = Conv<{PADS}>(v, w)"
    shape = f"float[2,1,{H},{H}] y, float[2,{C},{H},{H}] z"
    proto = built(body, shape, tmp_path)
    found = planned(tmp_path / "model.onnx", "blocked")
    assert assert_computes(proto, found, compiler)
    (filled,) = fills(found)
    column = found.compilation.plan.padding
    assert column is not None
    values = plan_json(found.compilation)["values"]
    assert values[filled]["padding"] == "zero"
    assert values["x"]["padding"] == "none"
    assert values[filled.removesuffix(":zero")]["padding"] == "undefined"
    rows = {d["subject"]: d for d in decisions_json(found.compilation)["decisions"]}
    assert rows[filled]["padding"] == {
        "reads": "any", "leaves": "zero",
        "values": {filled: "zero", filled.removesuffix(":zero"): "undefined"},
    }  # fmt: skip
    sums = next(d for d in rows.values() if d["chosen"] == "sum_of_channels.blocked")
    assert sums["padding"]["reads"] == "zero"
    assert sum("padded lanes of" in note for note in plan_json(found.compilation)["notes"]) == 2


def test_whole_blocks_need_no_zeros(tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, many) v = Exp(c) s = ReduceSum(v, channels) m = ReduceMax(v, channels) y = Add(s, m)"
    proto = built(body, f"float[2,1,{H},{H}] y", tmp_path)
    found = planned(tmp_path / "model.onnx", "blocked")
    assert_computes(proto, found, compiler)
    assert not fills(found)
    assert {s.choice.implementation.name for s in found.steps if s.group.op.startswith("Reduce")} == {
        "sum_of_channels.blocked",
        "max_of_channels.blocked",
    }


def test_lanes_of_a_part_are_not_filled_where_they_are_elements_of_the_whole(
    tmp_path: Path, compiler: Compiler
) -> None:
    """Channels 0 to 4 of 12 lie in a block with others: a sum over them reads a copy with zeros."""
    WEIGHTS["first"] = np.array([4, 8])
    body = f"c = Conv<{PADS}>(x, w) v = Relu(c) a, b = Split<axis = 1>(v, first) s = ReduceSum(a, channels) u = Add(v, s) y = Conv<{PADS}>(u, w) z = Neg(b)"
    proto = built(body, f"float[2,{C},{H},{H}] y, float[2,8,{H},{H}] z", tmp_path)
    for policy in ("joint", "blocked"):
        assert_computes(proto, planned(tmp_path / "model.onnx", policy), compiler)
