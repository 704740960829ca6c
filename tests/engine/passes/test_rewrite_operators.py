"""One operator becomes several, by target: each kind of replacement that apache/tvm issue 3670 asks for."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.backends.cpu.rewrites import bias_apart
from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.core.rewriter import Replacement, RewriteRule, constant, rewrite
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.oracle import evaluate
from app.engine.types.errors import PassError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import Array, assert_same_outputs, canonical, exported, operators, saved
from tests.harness import assert_close

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(7)
REGISTRY = load_registry()
CPU, NPU = PRESETS[0], next(t for t in PRESETS if t.name == "edge-npu")
ALL = ("numba-cpu",)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


WEIGHTS: Mapping[str, Array] = {
    "w": normal(12, 12, 3, 3),
    "q": RANDOM.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
    "turned": RANDOM.integers(-128, 128, (5, 9)).astype(np.int8),
    "xs": np.array(0.02, np.float32),
    "xz": np.array(120, np.uint8),
    "ws": (RANDOM.random(4) * 0.01 + 0.001).astype(np.float32),
    "ts": (RANDOM.random(5) * 0.01 + 0.001).astype(np.float32),
    "b32": RANDOM.integers(-999, 999, 4).astype(np.int32),
    "bs": np.full(4, 2e-4, np.float32),
    "unit": np.array(1.0, np.float32),
}


def model(signature: str, body: str, folder: Path) -> Path:
    used = {k: v for k, v in WEIGHTS.items() if k in re.findall(r"\w+", body)}
    return saved(f"{HEAD} g {signature} {{ {body} }}", folder, used)


def rewritten(path: Path, *rows: RewriteRule) -> Compilation:
    return canonical(path, rewrites=rows)


def operand_counts(compilation: Compilation) -> list[tuple[str, int]]:
    return [(n.op_type, len(n.inputs)) for n in compilation.graph]


# Rules of a device that has few operators, as a backend's table would state them.


def relu_of_two(node: ir.Node) -> Replacement:
    """Relu(x) = Max(x, 0): one argument becomes two."""
    new = ir.Node("", "Max", [node.inputs[0], constant(np.zeros((), np.float32), "zero")])
    return Replacement(new.outputs, [new])


def clip_of_one(node: ir.Node) -> Replacement | None:
    """Clip(x, 0, max float) = Relu(x): three arguments become one."""
    low, high = (graph.constant(v) for v in node.inputs[1:])
    if low is None or high is None or low != 0 or high != np.finfo(np.float32).max:
        return None
    new = ir.Node("", "Relu", [node.inputs[0]])
    return Replacement(new.outputs, [new])


def pairs(node: ir.Node) -> Replacement | None:
    """Concat of many = a tree of Concats of two: a tuple of arguments becomes nested tuples."""
    axis = ir.AttrInt64("axis", graph.attribute(node, "axis", 0))
    if len(node.inputs) < 3:
        return None
    half = len(node.inputs) // 2
    parts: list[ir.Value] = []
    nodes: list[ir.Node] = []
    for values in (node.inputs[:half], node.inputs[half:]):
        if len(values) == 1:
            parts.append(values[0])  # type: ignore[arg-type]  # not omitted
            continue
        part = ir.Node("", "Concat", list(values), [axis])
        part.outputs[0].name, part.outputs[0].type = (
            f"{node.outputs[0].name}.{len(nodes)}",
            node.outputs[0].type,
        )
        nodes.append(part)
        parts.append(part.outputs[0])
    whole = ir.Node("", "Concat", parts, [axis])
    return Replacement(whole.outputs, [*nodes, whole])


def parts_by_slices(node: ir.Node) -> Replacement:
    """Split = a Slice for each output: a tuple of results comes from as many operators."""
    nodes, start = [], 0
    axis = graph.attribute(node, "axis", 0)
    for output in node.outputs:
        stop = start + graph.static_shape(output)[axis]
        operands = [constant(np.array([n]), f"{output.name}.{n}") for n in (start, stop, axis)]
        nodes.append(ir.Node("", "Slice", [node.inputs[0], *operands]))
        start = stop
    return Replacement([n.outputs[0] for n in nodes], nodes)


def test_the_number_of_arguments_changes(tmp_path: Path) -> None:
    path = model("(float[2,3] x) => (float[2,3] y)", "a = Exp(x) b = Sub(a, unit) y = Relu(b)", tmp_path)
    found = rewritten(path, RewriteRule(relu_of_two, ("Relu",), backends=ALL))
    assert operand_counts(found) == [("Exp", 1), ("Sub", 2), ("Max", 2)]
    assert_same_outputs(path, found)
    body = "low = Constant<value = float {0.0}>() high = Constant<value = float {3.4028234663852886e38}>() y = Clip(x, low, high)"
    path = model("(float[2,3] x) => (float[2,3] y)", body, tmp_path)
    found = rewritten(path, RewriteRule(clip_of_one, ("Clip",), backends=ALL))
    assert operand_counts(found) == [("Relu", 1)]
    assert_same_outputs(path, found)


def test_a_convolution_becomes_a_convolution_and_an_addition(tmp_path: Path) -> None:
    signature = "(float[1,12,5,5] x, float[12] b) => (float[1,12,5,5] y)"
    path = model(signature, "c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c)", tmp_path)
    found = canonical(path, rewrites=REGISTRY.rewrites)
    assert operand_counts(found) == [("Conv", 2), ("Reshape", 2), ("Add", 2), ("Relu", 1)]
    assert_same_outputs(path, found)
    assert any(note == "bias_apart: 1" for note in found.notes)


def test_what_a_rewrite_makes_possible_is_done(tmp_path: Path, compiler: Compiler) -> None:
    """Kernels over blocks pack the bias offline: one that changes between runs is added by what follows."""
    signature = "(float[1,12,32,32] x, float[12] b) => (float[1,12,32,32] y)"
    body = "c = Conv<pads = [1, 1, 1, 1]>(x, w, b) r = Relu(c) y = Conv<pads = [1, 1, 1, 1]>(r, w)"
    path = model(signature, body, tmp_path)
    compilation = session.canonical(load(path), host(), Options(), Bindings(), REGISTRY)
    program = session.planned(compilation, Options())
    chosen = [s.choice.implementation for s in program.steps if s.group.op == "Conv"]
    layouts = program.compilation.plan.layout or {}
    assert any(not layouts[v].is_plain for s in program.steps for v in s.group.outputs)
    assert chosen
    executor = Executor(program, compiler, poison=True)
    fed = {"x": normal(1, 12, 32, 32), "b": normal(12)}
    expected = evaluate(load(path).model, fed)["y"]
    assert_close(np.asarray(executor.run(fed)["y"]), np.asarray(expected), 1e-4)
    executor.close()


QUANTIZED = """d = DequantizeLinear(x, xs, xz) w8 = DequantizeLinear<axis = 0>(q, ws)
    c = DequantizeLinear<axis = 0>(b32, bs) v = Conv<pads = [1, 1, 1, 1]>(d, w8, c) y = Relu(v)"""
DENSE = (
    "d = DequantizeLinear(x, xs, xz) t = DequantizeLinear<axis = 0>(turned, ts) y = Gemm<transB = 1>(d, t)"
)


def results(path: Path, compilation: Compilation, x: Array) -> tuple[Array, Array]:
    (expected,) = evaluate(load(path).model, {"x": x}).values()
    (found,) = evaluate(load(exported(compilation.model, path.parent)).model, {"x": x}).values()
    return np.asarray(found), np.asarray(expected)


def test_a_quantized_convolution_becomes_an_integer_one_and_corrections(tmp_path: Path) -> None:
    path = model("(uint8[2,3,6,7] x) => (float[2,4,6,7] y)", QUANTIZED, tmp_path)
    x = RANDOM.integers(0, 256, (2, 3, 6, 7)).astype(np.uint8)
    found = canonical(path, rewrites=REGISTRY.rewrites)
    assert operand_counts(found) == [("ConvInteger", 3), ("Cast", 1), ("Mul", 2), ("Add", 2), ("Relu", 1)]
    assert_close(*results(path, found, x))


@pytest.mark.parametrize("kind", ["convolution", "product"])
def test_a_device_without_zero_points_gets_a_correction(kind: str, tmp_path: Path) -> None:
    """Another target, another set: the zero point of the activations becomes a constant, border and all."""
    shape = (2, 3, 6, 7) if kind == "convolution" else (3, 9)
    if kind == "convolution":
        path = model("(uint8[2,3,6,7] x) => (float[2,4,6,7] y)", QUANTIZED, tmp_path)
    else:
        path = model("(uint8[3,9] x) => (float[3,5] y)", DENSE, tmp_path)
    x = RANDOM.integers(0, 256, shape).astype(np.uint8)
    found = canonical(path, target=NPU, rewrites=session.with_described(REGISTRY, NPU).rewrites)
    product, shift, *rest = operand_counts(found)
    assert product == ("ConvInteger" if kind == "convolution" else "MatMulInteger", 2)
    assert shift == ("Add", 2)
    assert [op for op, _ in rest][:2] == ["Cast", "Mul"]
    assert_close(*results(path, found, x))
    planned = session.planned(session.canonical(load(path), NPU, Options(), Bindings(), REGISTRY), Options())
    backends = {s.group.op: s.choice.implementation.backend for s in planned.steps}
    assert backends[product[0]] == "accelerator"


def test_rows_are_for_targets_that_have_their_backend(tmp_path: Path) -> None:
    path = model("(uint8[2,3,6,7] x) => (float[2,4,6,7] y)", QUANTIZED, tmp_path)
    gpu = next(t for t in PRESETS if t.name == "cuda-sm90")
    found = operators(canonical(path, target=gpu, rewrites=REGISTRY.rewrites).graph)
    assert "ConvInteger" not in found
    assert found.count("DequantizeLinear") == 3


def test_a_tuple_of_arguments_becomes_nested_tuples(tmp_path: Path) -> None:
    body = "a = Neg(x) b = Exp(x) c = Relu(x) y = Concat<axis = 1>(a, b, c, x, a)"
    path = model("(float[2,3] x) => (float[2,15] y)", body, tmp_path)
    found = rewritten(path)  # by itself: canonical graphs have flat tuples, so the row would be undone
    assert rewrite(found.graph, [RewriteRule(pairs, ("Concat",))]) == {"pairs": 2}
    assert [c for op, c in operand_counts(found) if op == "Concat"] == [2, 2, 2, 2]
    assert_same_outputs(path, found)


def test_nested_tuples_become_one(tmp_path: Path) -> None:
    body = """a = Neg(x) b = Exp(x) c = Concat<axis = 1>(a, b) d = Concat<axis = -1>(c, x)
        e = Concat<axis = 0>(b, a) f = Concat<axis = 0>(e, x)  z = Relu(e)
        y = Concat<axis = 1>(d, a, c)"""
    path = model("(float[2,3] x) => (float[2,18] y, float[6,3] f, float[4,3] z)", body, tmp_path)
    found = rewritten(path)
    assert_same_outputs(path, found)
    joined = sorted(c for op, c in operand_counts(found) if op == "Concat")
    assert joined == [2, 2, 2, 4], "c and e have two readers and stay; d is taken apart"


def test_a_tuple_of_results_comes_from_as_many_operators(tmp_path: Path) -> None:
    body = "a, b, c = Split<axis = 1, num_outputs = 3>(x) d = Mul(a, b) y = Sub(d, c)"
    path = model("(float[2,9] x) => (float[2,3] y)", body, tmp_path)
    found = rewritten(path, RewriteRule(parts_by_slices, ("Split",), backends=ALL))
    assert operand_counts(found) == [("Slice", 4)] * 3 + [("Mul", 2), ("Sub", 2)]
    assert_same_outputs(path, found)


def test_a_rule_that_changes_a_shape_is_refused(tmp_path: Path) -> None:
    def turned(node: ir.Node) -> Replacement:
        new = ir.Node("", "Transpose", [node.inputs[0]], [ir.AttrInt64s("perm", [1, 0])])
        return Replacement(new.outputs, [new])

    path = model("(float[2,3] x) => (float[2,3] y)", "a = Exp(x) b = Relu(a) y = Abs(b)", tmp_path)
    with pytest.raises(PassError, match=r"'b' was .*\(2, 3\).* is .*\(3, 2\).*turned"):
        rewritten(path, RewriteRule(turned, ("Relu",), backends=ALL))


def test_a_bias_that_is_constant_stays(tmp_path: Path) -> None:
    path = saved(
        f"{HEAD} g (float[1,12,5,5] x) => (float[1,12,3,3] y) {{ y = Conv(x, w, b) }}",
        tmp_path, {"w": WEIGHTS["w"], "b": normal(12)},
    )  # fmt: skip
    found = rewritten(path, RewriteRule(bias_apart, ("Conv",), backends=ALL))
    assert operand_counts(found) == [("Conv", 3)]
