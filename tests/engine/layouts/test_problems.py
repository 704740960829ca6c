"""Where layouts went wrong in other systems, each as its smallest graph: planned, run in poisoned memory.

The numbers are issues of apache/tvm. Every graph has a convolution, whose image is blocked, before the
operator that was mistaken; 12 channels leave padded lanes in the last block.
"""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.core import pipeline, program
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.layouts.choice import Policy
from app.engine.model.load import load
from app.engine.passes.infer_layouts import InferLayouts
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close

Array = np.ndarray[Any, Any]
REGISTRY = load_registry()
HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(5)
C, H, W = 12, 6, 6  # as high as wide, so that a mistaken axis is wrong by its values alone
IMAGE = f"float[1,{C},{H},{W}]"
PADS = "pads = [1, 1, 1, 1]"
FIRST, LAST = "perm = [0, 3, 1, 2]", "perm = [0, 2, 3, 1]"  # channels


def normal(*shape: int) -> Array:
    return (RANDOM.standard_normal(shape) / 4).astype(np.float32)


WEIGHTS = {
    "w": normal(C, C, 3, 3),
    "small": normal(C, C, 1, 1),
    "hwio": normal(3, 3, C, C),
    "deep": normal(C, 1, 3, 3),
    "turned": normal(C, C, 3, 3),
    "one": normal(1),
    "channels": normal(C),
    "row": normal(W),
    "column": normal(H, 1),
    "chw": normal(C, H, W),
    "half": np.array(0.5, np.float32),
    "i0": np.array([0]),
    "i1": np.array([1]),
    "i4": np.array([4]),
    "i8": np.array([8]),
    "i12": np.array([12]),
    "ends": np.array([11]),
    "two": np.array([2]),
    "parts": np.array([8, 4]),
    "twice": np.array([1, 1, 2, 1]),
    "hw": np.array([2, 3]),
    "flat": np.array([1, -1]),
    "grid": np.array([1, 3, 4, H, W]),
    "back": np.array([1, C, H, W]),
    "pads": np.array([0, 0, 0, 0, 0, 4, 0, 0]),
}


def planned(path: Path, policy: Policy, lanes: int = 0, shapes: Any = None) -> Program:
    """The program of a file with a policy of layouts."""
    target = host()
    target = dataclasses.replace(target, vector_lanes=lanes or target.vector_lanes)
    options = Options()
    compilation = session.canonical(load(path), target, options, Bindings(shapes=shapes or {}), REGISTRY)
    if policy == "joint":
        return session.planned(compilation, options)
    passes = (
        InferLayouts(policy) if isinstance(p, InferLayouts) else p for p in session.backend_passes(options)
    )
    return program.build(pipeline.run(compilation, passes))


def is_blocked(found: Program, op: str) -> bool:
    """Whether a group of this operator reads or writes a blocked image."""
    columns = found.compilation.plan.layout
    assert columns is not None
    groups = [s.group for s in found.steps if any(n.op_type == op for n in s.group.nodes)]
    assert groups
    return any(not columns[v].is_plain for g in groups for v in (*g.inputs, *g.outputs) if v.name)


def assert_computes(
    body: str, outputs: str, folder: Path, compiler: Compiler, *, blocked: Iterable[str] = ("Conv",),
    policies: Iterable[Policy] = ("joint", "blocked"), inputs: str = f"{IMAGE} x", lanes: int = 0, **given: Array,
) -> None:  # fmt: skip
    """The graph computes what the reference evaluator does, whatever is blocked; these operators are."""
    proto = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}")
    used = {k: WEIGHTS[k] for k in re.findall(r"\w+", body) if k in WEIGHTS}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, k) for k, a in used.items())
    onnx.save(proto, folder / "model.onnx")
    fed = {"x": normal(1, C, H, W), **given}
    expected = ReferenceEvaluator(proto).run(None, fed)
    for policy in policies:
        found = planned(folder / "model.onnx", policy, lanes, {k: a.shape for k, a in fed.items()})
        if policy == "blocked":
            for op in blocked:
                assert is_blocked(found, op), op
        executor = Executor(found, compiler, poison=True)
        for _ in range(2):  # what the first run left in padded lanes does not matter to the second
            results = executor.run(fed)
            for value, array in zip(proto.graph.output, expected, strict=True):
                assert_close(np.asarray(results[value.name]), array, 1e-4)
        executor.close()


ELEMENTWISE = {
    "4508_one_element_in_brackets": "y = Add(t, one)",
    "6626_scalar": "y = Mul(t, half)",
    "14961_scalar_first": "y = Sub(half, t)",
    "2176_vector_along_the_width": "y = Add(t, row)",
    "column": "y = Mul(column, t)",
    "whole_image_of_rank_3": "y = Add(t, chw)",
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_broadcast_operand(name: str, tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) t = Relu(c) {ELEMENTWISE[name]}"
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler)


@pytest.mark.parametrize(
    "body", ["y = Softmax<axis = -1>(h)", "y = Softmax<axis = 1>(h)", "y = PRelu(h, channels)"]
)
def test_6278_axis_with_channels_last(body: str, tmp_path: Path, compiler: Compiler) -> None:
    text = f"c = Conv<{PADS}>(x, w) h = Transpose<{LAST}>(c) {body}"
    assert_computes(text, f"float[1,{H},{W},{C}] y", tmp_path, compiler)


TURNS = {
    "height_and_width": ("t = Transpose<perm = [0, 1, 3, 2]>(c)", (C, W, H)),
    "channels_and_height": ("s = Tile(c, twice) t = Transpose<perm = [0, 2, 1, 3]>(s)", (C, C, W)),
}


@pytest.mark.parametrize("name", TURNS)
def test_10109_convolution_transpose_convolution(name: str, tmp_path: Path, compiler: Compiler) -> None:
    turn, (c, h, w) = TURNS[name]
    body = f"c = Conv<{PADS}>(x, w) {turn} y = Conv<{PADS}>(t, w)"
    assert_computes(body, f"float[1,{c},{h},{w}] y", tmp_path, compiler)


@pytest.mark.parametrize("axis", [1, 2])
def test_9813_argmin_after_convolution(axis: int, tmp_path: Path, compiler: Compiler) -> None:
    shape = f"1,{H},{W}" if axis == 1 else f"1,{C},{W}"
    body = f"c = Conv<{PADS}>(x, w) y = ArgMin<axis = {axis}, keepdims = 0>(c)"
    assert_computes(body, f"int64[{shape}] y", tmp_path, compiler)


def test_10528_convolution_and_squeeze(tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) g = GlobalAveragePool(c) s = Squeeze(g, hw) y = Relu(s)"
    assert_computes(body, f"float[1,{C}] y", tmp_path, compiler)


SLICES = {
    "whole_blocks": ("i0, i8, i1", "i1", 8),
    "from_inside_a_block": ("i4, i12, i1", "i1", 8),
    "strided": ("i1, ends, i1", "two", 5),
}


@pytest.mark.parametrize("name", SLICES)
def test_8759_strided_slice_of_channels(name: str, tmp_path: Path, compiler: Compiler) -> None:
    ranges, step, count = SLICES[name]
    body = f"c = Conv<{PADS}>(x, w) s = Slice(c, {ranges}, {step}) y = Relu(s)"
    assert_computes(body, f"float[1,{count},{H},{W}] y", tmp_path, compiler)


def test_9245_slices_join_with_another_start(tmp_path: Path, compiler: Compiler) -> None:
    body = f"""c = Conv<{PADS}>(x, w) a = Slice(c, i4, i12, i1) b = Slice(c, i0, i4, i1)
        t = Concat<axis = 1>(a, b) y = Conv<{PADS}>(t, w)"""
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler)


def test_concat_and_split_within_a_block(tmp_path: Path, compiler: Compiler) -> None:
    body = f"""c = Conv<{PADS}>(x, w) a, b = Split<axis = 1>(c, parts) t = Concat<axis = 1>(b, c, a)
        y = Relu(t)"""
    assert_computes(body, f"float[1,{2 * C},{H},{W}] y", tmp_path, compiler)


def test_2832_depthwise(tmp_path: Path, compiler: Compiler) -> None:
    body = f"""c = Conv<{PADS}>(x, w) d = Conv<{PADS}, group = {C}>(c, deep) r = Relu(d)
        y = Conv<{PADS}>(r, w)"""
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler)


def test_8848_max_pool_with_channels_last(tmp_path: Path, compiler: Compiler) -> None:
    body = f"""c = Conv<{PADS}>(x, w) h = Transpose<{LAST}>(c) r = Relu(h) i = Transpose<{FIRST}>(r)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(i) y = Transpose<{LAST}>(p)"""
    shape = f"float[1,{H // 2},{W // 2},{C}]"
    assert_computes(body, f"{shape} y", tmp_path, compiler, blocked=("Conv", "MaxPool"))


def test_4038_weights_with_as_many_inputs_as_outputs(tmp_path: Path, compiler: Compiler) -> None:
    """HWIO and HWOI have the same shape; only one is right."""
    body = f"k = Transpose<perm = [3, 2, 0, 1]>(hwio) c = Conv<{PADS}>(x, k) y = Relu(c)"
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler)


def test_16537_other_lanes_than_this_machine_has(tmp_path: Path, compiler: Compiler) -> None:
    body = "c = Conv(x, small) y = Relu(c)"
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler, lanes=16, policies=("blocked",))


def test_17541_shapes_that_only_the_run_tells(tmp_path: Path, compiler: Compiler) -> None:
    """A value without a shape has no layout; what follows it is row-major again."""
    body = f"""c = Conv<{PADS}>(x, w) r = Relu(c) z = NonZero(r) s = Shape(z) n = Cast<to = 1>(s)
        m = ReduceMax<keepdims = 0>(n) t = Mul(r, m) d = Div(t, m) y = Conv<{PADS}>(d, w)"""
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler)


def test_19694_transposed_convolution(tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) t = ConvTranspose<{PADS}>(c, turned) y = Relu(t)"
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler)


@pytest.mark.parametrize("shape", ["flat", "grid"])
def test_a_reshape_is_a_barrier(shape: str, tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) r = Reshape(c, {shape}) t = Tanh(r) b = Reshape(t, back) y = Conv<{PADS}>(b, w)"
    assert_computes(body, f"{IMAGE} y", tmp_path, compiler)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax"])
def test_a_reduction_over_channels_counts_no_padded_lane(op: str, tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) y = {op}<keepdims = 1>(c, i1)"
    assert_computes(body, f"float[1,1,{H},{W}] y", tmp_path, compiler)


def test_channels_that_are_padded_in_the_graph(tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) p = Pad(c, pads) y = Relu(p)"
    assert_computes(body, f"float[1,{C + 4},{H},{W}] y", tmp_path, compiler)


def test_a_blocked_value_that_is_also_an_output_and_read_twice(tmp_path: Path, compiler: Compiler) -> None:
    body = f"c = Conv<{PADS}>(x, w) r = Relu(c) y = Conv<{PADS}>(r, w) z = Add(r, row)"
    assert_computes(body, f"{IMAGE} y, {IMAGE} r, {IMAGE} z", tmp_path, compiler)


def test_a_branch_reads_and_returns_what_is_blocked_outside(tmp_path: Path, compiler: Compiler) -> None:
    """A body's border is row-major: one conversion on each side, none at every operator inside."""
    body = f"""c = Conv<{PADS}>(x, w) r = Relu(c)
        t = If (p) <then_branch = a () => ({IMAGE} d) {{ d = Conv<{PADS}>(r, w) }},
                    else_branch = b () => ({IMAGE} e) {{ e = Neg(r) }}>
        y = Conv<{PADS}>(t, w)"""
    for p in (True, False):
        assert_computes(
            body, f"{IMAGE} y", tmp_path, compiler, inputs=f"{IMAGE} x, bool p", p=np.array(p)
        )  # fmt: skip
