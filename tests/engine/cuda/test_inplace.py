"""Every pair that a CUDA row allows to share memory is run so, and gives what it gives apart."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from app.engine import graph
from app.engine.plan import ATTENTION, ELEMENTWISE, Group
from app.engine.registry import Implementation, load, no_pairs
from tests.engine.cuda.bench import known, run_row
from tests.harness import group_of, model_of

REGISTRY = load()
ROWS = {r.name: r for rows in REGISTRY.implementations.values() for r in rows if r.backend == "cuda"}
RNG = np.random.default_rng(2)


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Case:
    """A group as ONNX text, and the rows that are run on it."""

    rows: tuple[str, ...]
    text: str
    inputs: str
    output: str
    weights: dict[str, Any] = field(default_factory=dict)
    op: str = ""
    anchor: str = ""
    precision: str = "f32"


PRODUCT = "h = MatMul(x, w) b = Add(h, c) a = Relu(b) y = Add(a, r)"
CONV = (
    "h = Conv<kernel_shape=[{k},{k}], pads=[{p},{p},{p},{p}], group={g}>(x, w, c) a = Add(h, r) y = Relu(a)"
)
MATRICES = ("{t}[{m},{k}] x, {t}[{m},24] r", "{t}[{m},24] y")


def product(rows: tuple[str, ...], m: int, k: int, kind: str = "float", precision: str = "f32") -> Case:
    inputs, output = (text.format(t=kind, m=m, k=k) for text in MATRICES)
    weights = {"w": f(k, 24) / 4, "c": f(24)}
    return Case(rows, PRODUCT, inputs, output, weights, precision=precision)


def conv(
    rows: tuple[str, ...], ci: int, co: int, size: int, k: int, g: int = 1, precision: str = "f32"
) -> Case:
    return Case(
        rows,
        CONV.format(k=k, p=k // 2, g=g),
        f"float[1,{ci},{size},{size}] x, float[1,{co},{size},{size}] r",
        f"float[1,{co},{size},{size}] y",
        {"w": f(co, ci // g, k, k) / k, "c": f(co)},
        precision=precision,
    )


CASES = {
    "chain": Case(
        ("cuda.elementwise",), "a = Mul(x, z) b = Add(a, s) y = Relu(b)", "float[3,5] x, float[3,5] z",
        "float[3,5] y", {"s": f(5)}, ELEMENTWISE,
    ),
    "images": Case(
        ("cuda.elementwise_last",), "a = Mul(x, z) y = Add(a, s)", "float[1,4,3,2] x, float[1,4,3,2] z",
        "float[1,4,3,2] y", {"s": f(4, 1, 1)}, ELEMENTWISE,
    ),
    "softmax": Case(("cuda.softmax",), "y = Softmax<axis=-1>(x)", "float[3,40] x", "float[3,40] y"),
    "softmax of columns": Case(("cuda.softmax",), "y = Softmax<axis=0>(x)", "float[7,3] x", "float[7,3] y"),
    "log_softmax": Case(("cuda.logsoftmax",), "y = LogSoftmax<axis=-1>(x)", "float[3,9] x", "float[3,9] y"),
    "layer_norm": Case(
        ("cuda.layer_norm",), "a = LayerNormalization(x, s, b) y = Relu(a)", "float[3,20] x", "float[3,20] y",
        {"s": f(20), "b": f(20)},
    ),
    "rms_norm": Case(("cuda.rms_norm",), "y = RMSNormalization(x, s)", "float[3,20] x", "float[3,20] y",
                     {"s": f(20)}),
    "product": product(("cuda.matmul_f32", "cuda.matmul_3xtf32"), 9, 20),
    "shared product": product(("cuda.matmul_f32", "cuda.matmul_3xtf32"), 9, 200),
    "tf32": product(("cuda.matmul_tf32",), 9, 20, precision="tf32"),
    "few rows": product(("cuda.matmul_of_few_rows",), 3, 20),
    "gemm": Case(
        ("cuda.gemm_f32", "cuda.gemm_3xtf32", "cuda.gemm_of_few_rows"), "a = Gemm<alpha=0.5>(x, w, r) y = Relu(a)",
        "float[5,8] x, float[5,12] r", "float[5,12] y", {"w": f(8, 12)},
    ),
    "gemm tf32": Case(
        ("cuda.gemm_tf32",), "y = Gemm(x, w, r)", "float[9,8] x, float[9,12] r", "float[9,12] y",
        {"w": f(8, 12)}, precision="tf32",
    ),
    "conv": conv(("cuda.conv_f32", "cuda.conv_3xtf32"), 8, 8, 5, 3),
    "conv tf32": conv(("cuda.conv_tf32",), 8, 8, 3, 3, precision="tf32"),
    "widened": conv(("cuda.conv_f32_widened", "cuda.conv_3xtf32_of_plain"), 3, 8, 4, 3),
    "depthwise": conv(("cuda.conv_depthwise",), 8, 8, 5, 3, g=8),
    "few pixels": conv(("cuda.conv_of_few_pixels",), 8, 12, 1, 1),
    "attention": Case(
        ("cuda.attention",),
        "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) c = Mul(s, h) p = Softmax<axis=-1>(c) y = MatMul(p, v)",
        "float[1,2,20,16] q, float[1,2,7,16] k, float[1,2,7,16] v", "float[1,2,20,16] y",
        {"h": np.float32(0.3)}, ATTENTION, "Softmax",
    ),
    "attention of few queries": Case(
        ("cuda.attention_decode",),
        "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) c = Mul(s, h) p = Softmax<axis=-1>(c) y = MatMul(p, v)",
        "float[1,2,1,16] q, float[1,2,40,16] k, float[1,2,40,16] v", "float[1,2,1,16] y",
        {"h": np.float32(0.3)}, ATTENTION, "Softmax",
    ),
}  # fmt: skip
# The same kernels and the same rule as another row that is run.
SAME = {
    "cuda.matmul_bf16": "cuda.matmul_tf32",
    "cuda.matmul_fp16": "cuda.matmul_tf32",
    "cuda.gemm_bf16": "cuda.gemm_tf32",
    "cuda.gemm_fp16": "cuda.gemm_tf32",
    **{
        f"cuda.conv_{p}{w}": "cuda.conv_tf32" for p in ("bf16", "fp16") for w in ("", "_widened", "_of_plain")
    },
    "cuda.conv_tf32_widened": "cuda.conv_tf32",
    "cuda.conv_tf32_of_plain": "cuda.conv_tf32",
    "cuda.conv_f32_of_plain": "cuda.conv_f32",
    "cuda.conv_3xtf32_widened": "cuda.conv_3xtf32",
}


def grouped(case: Case) -> Group:
    head = '<ir_version: 10, opset_import: ["": 23]> g'
    names = ", ".join(f"float{list(np.shape(a))} {n}" for n, a in case.weights.items())
    given = ", ".join(filter(None, (case.inputs, names)))
    model = model_of(f"{head} ({given}) => ({case.output}) {{ {case.text} }}", case.weights)
    found = group_of(model, REGISTRY)
    if not case.op:
        return found
    anchor = next((n for n in found.nodes if n.op_type == case.anchor), found.anchor)
    return Group(found.nodes, anchor, found.inputs, found.outputs, case.op)


PAIRS = [(name, row) for name, case in CASES.items() for row in case.rows]


@pytest.mark.parametrize(("name", "row"), PAIRS)
def test_a_pair_that_shares_memory_gives_the_same(name: str, row: str) -> None:
    case, implementation = CASES[name], ROWS[row]
    group, facts = grouped(case), known(case.precision)
    inputs = {
        v.name or "": f(*graph.static_shape(v)).reshape(graph.static_shape(v))
        for v in group.inputs
        if not graph.is_constant(v)
    }
    pairs = implementation.inplace(group, facts)
    assert pairs
    apart = run_row(implementation, group, inputs, facts)
    assert all(np.isfinite(a).all() for a in apart)
    for pair in pairs:
        (together,) = run_row(implementation, group, inputs, facts, [pair])
        np.testing.assert_array_equal(together, apart[0], err_msg=f"{pair[0].name} in {pair[1].name}")


def test_every_row_that_allows_pairs_is_run() -> None:
    allowing = {name for name, row in ROWS.items() if row.inplace is not no_pairs}
    run = {row for _, row in PAIRS}
    assert set(SAME.values()) <= run
    assert allowing - run - SAME.keys() == set()


def test_rows_of_a_name_are_told_apart() -> None:
    rows: list[Implementation] = list(ROWS.values())
    assert len({r.name for r in rows}) == len(rows)
    assert all(r.name.startswith("cuda.") for r in rows)
