"""Kernels whose operands are 16-bit floats in memory: what those of float32 compute, rounded once."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core.group import Group
from app.engine.core.registry import load
from app.engine.passes.narrow_storage import CONVERTING
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.single_node import text_group

REGISTRY = load()
KINDS = {
    "float16": (np.dtype(np.float16), ir.DataType.FLOAT16),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), ir.DataType.BFLOAT16),
}
Array = np.ndarray
ROWS, IMAGE = (5, 37), (2, 4, 7, 9)
CHANNELS = {"s": (4,), "b": (4,)}
# Node, shape of x, shapes of further operands; of constants the numbers.
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, object]]] = {
    "Softmax": ("Softmax(x)", ROWS, {}),
    "Softmax of columns": ("Softmax<axis=1>(x)", (2, 9, 37), {}),
    "Softmax of a long row": ("Softmax(x)", (2, 9001), {}),
    "LogSoftmax": ("LogSoftmax(x)", ROWS, {}),
    "LogSoftmax of columns": ("LogSoftmax<axis=0>(x)", ROWS, {}),
    "LayerNormalization": ("LayerNormalization(x, s, b)", ROWS, {"s": (37,), "b": (37,)}),
    "LayerNormalization without bias": ("LayerNormalization(x, s)", ROWS, {"s": (37,)}),
    "RMSNormalization": ("RMSNormalization(x, s)", ROWS, {"s": (37,)}),
    "GroupNormalization": ("GroupNormalization<num_groups=2>(x, s, b)", IMAGE, CHANNELS),
    "InstanceNormalization": ("InstanceNormalization(x, s, b)", IMAGE, CHANNELS),
    "BatchNormalization": ("BatchNormalization(x, s, b, s, v)", IMAGE, {**CHANNELS, "v": (4,)}),
    "BatchNormalization of rows": ("BatchNormalization(x, s, b, s, v)", (5, 4), {**CHANNELS, "v": (4,)}),
    "LRN": ("LRN<size=3>(x)", IMAGE, {}),
    "LpNormalization": ("LpNormalization(x)", ROWS, {}),
    "LpNormalization of columns": ("LpNormalization<axis=0, p=1>(x)", ROWS, {}),
    "MeanVarianceNormalization": ("MeanVarianceNormalization(x)", IMAGE, {}),
    **{
        op: (f"{op}<keepdims=0>(x, a)", (3, 5, 37), {"a": [2]})
        for op in sorted(CONVERTING)
        if op.startswith("Reduce")
    },
    "ReduceMean of columns": ("ReduceMean<keepdims=1>(x, a)", (3, 50, 37), {"a": [1]}),
    "ReduceMax of columns": ("ReduceMax<keepdims=1>(x, a)", (3, 50, 37), {"a": [1]}),
    "ReduceLogSumExp of columns": ("ReduceLogSumExp<keepdims=1>(x, a)", (3, 50, 37), {"a": [1]}),
    "GlobalAveragePool": ("GlobalAveragePool(x)", IMAGE, {}),
    "GlobalMaxPool": ("GlobalMaxPool(x)", IMAGE, {}),
    "GlobalLpPool": ("GlobalLpPool(x)", IMAGE, {}),
    "MaxPool": ("MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)", (2, 3, 17, 13), {}),
    "MaxPool of one axis": ("MaxPool<kernel_shape=[3]>(x)", (2, 3, 37), {}),
    "AveragePool": ("AveragePool<kernel_shape=[2,2]>(x)", (2, 3, 17, 13), {}),
    "LpPool": ("LpPool<kernel_shape=[2,3]>(x)", (2, 3, 17, 13), {}),
    "Resize": ('Resize<mode="linear">(x, "", "", z)', (1, 2, 7, 9), {"z": [1, 2, 15, 18]}),
    **{op: (f"{op}<axis=1>(x)", ROWS, {}) for op in ("ArgMax", "ArgMin", "Hardmax")},
    **{op: (f"{op}(x, a)", ROWS, {"a": 1}) for op in ("CumSum", "CumProd")},
    "CumSum of columns": ("CumSum(x, a)", ROWS, {"a": 0}),
    "TopK": ("TopK(x, k)", ROWS, {"k": [5]}),
    **{
        f"RotaryEmbedding, interleaved {i}": (
            f"RotaryEmbedding<interleaved={i}>(x, s, b)",
            (2, 3, 5, 44),
            {"s": (2, 5, 21), "b": (2, 5, 21)},
        )
        for i in (0, 1)
    },
    "Resize of the last axis": ('Resize<mode="cubic">(x, "", "", z)', (1, 2, 7, 9), {"z": [1, 2, 7, 25]}),
}


def prepared(title: str) -> tuple[Group, Group, dict[str, Array]]:
    """The group of a node twice, and operands whose numbers have few enough bits for either type."""
    body, shape, more = CASES[title]
    rng = np.random.default_rng(0)

    def drawn(size: tuple[int, ...]) -> Array:
        made = np.abs(rng.standard_normal(size)).astype(ml_dtypes.bfloat16).astype(np.float16)
        return made.astype(np.float32)

    signs = 1.0 if "LogSum" in title else np.sign(rng.standard_normal(shape)).astype(np.float32)
    values = {"x": drawn(shape) * np.float32(signs)}
    values |= {n: drawn(s) for n, s in more.items() if isinstance(s, tuple)}
    fixed = {n: np.array(s, np.int64) for n, s in more.items() if not isinstance(s, tuple)}
    names = ("y", "i") if "TopK" in body else ("y",)
    # Shape inference has no rule for some operators that leave the shape as it is.
    outputs = {"y": values["x"]} if "Normalization" in body or "CumProd" in body else names
    groups = [
        text_group(body, values, fixed, outputs, opset=26 if "CumProd" in body else 23) for _ in range(2)
    ]
    return groups[0], groups[1], values


def retyped(group: Group, names: tuple[str, ...], kind: str) -> None:
    """Let values of a group have 16 bits."""
    for value in (*group.inputs, *group.outputs):
        if value.name in names and value.dtype == ir.DataType.FLOAT:
            value.type = ir.TensorType(KINDS[kind][1])


def rows_of(group: Group) -> list[str]:
    """The rows for processors that take a group as it is, none of which may read other elements."""
    rows = REGISTRY.candidates(group.op, ("numba-cpu",))
    return [r.name for r in rows if r.op != "*" and r.rejection(group, harness.context()) is None]


@pytest.mark.parametrize(
    "narrow", [("x", "s", "b", "v", "y"), ("x",), ("y",)], ids=["all", "input", "result"]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("title", CASES)
def test_a_kernel_rounds_once(title: str, kind: str, narrow: tuple[str, ...], compiler: Compiler) -> None:
    wide, group, values = prepared(title)
    retyped(group, narrow, kind)
    dtype, _ = KINDS[kind]
    given = {n: v.astype(dtype) if n in narrow else v for n, v in values.items()}
    names = rows_of(group)
    assert bool(names) == ((title, narrow) != ("TopK", ("y",))), "rounded elements are in another order"
    for name in names:
        expected = harness.run_group(harness.implementation(name), wide, values, compiler)
        for threads in (1, 2):
            row = harness.implementation(name)
            found = harness.run_group(row, group, given, compiler, threads=threads)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other.astype(one.dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_elements_that_only_move_keep_their_type(kind: str) -> None:
    CASES["nearest"] = ('Resize(x, "", "", z)', (1, 2, 7, 9), {"z": [1, 2, 14, 18]})
    try:
        _, group, _ = prepared("nearest")
    finally:
        del CASES["nearest"]
    retyped(group, ("x", "y"), kind)
    assert rows_of(group) == ["resize.nearest"]
    group.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    rows = REGISTRY.candidates("Resize", ("numba-cpu",))
    assert all(r.rejection(group, harness.context()) for r in rows if r.op != "*")


@pytest.mark.parametrize("kind", KINDS)
def test_every_converting_operator_has_a_case(kind: str) -> None:
    covered = {CASES[title][0].partition("(")[0].partition("<")[0] for title in CASES}
    assert covered | {"Upsample"} == CONVERTING, kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_other_bytes_never_takes_the_place_of_its_input(kind: str) -> None:
    _, group, _ = prepared("Softmax")
    retyped(group, ("x",), kind)
    assert harness.implementation("softmax.softmax").inplace(group, harness.context()) == ()


def test_a_sum_that_would_wait_in_a_rounded_result_is_refused() -> None:
    _, group, _ = prepared("Resize")
    row = harness.implementation("resize.taps")
    retyped(group, ("y",), "float16")
    assert row.rejection(group, harness.context()) is None
    CASES["cubic"] = ('Resize<mode="cubic">(x, "", "", z)', (1, 2, 7, 9), {"z": [1, 2, 15, 9]})
    try:
        _, cubic, _ = prepared("cubic")
    finally:
        del CASES["cubic"]
    retyped(cubic, ("y",), "float16")
    assert row.rejection(cubic, harness.context()) == "sums wait in the result, which is float16"
