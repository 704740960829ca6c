"""Every pair that a CUDA row allows to share memory is run so, and gives what it gives apart."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from app.engine import graph
from app.engine.plan import ATTENTION, ELEMENTWISE, Group
from app.engine.registry import Implementation, Known, load, no_pairs
from tests.engine.cuda.bench import known, run_row
from tests.engine.cuda.models import NETWORKS
from tests.engine.cuda.programs import planned
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

    @property
    def kind(self) -> str:
        """Element type of what is not told."""
        return KINDS.get(self.precision, "float")


KINDS = {"bf16": "bfloat16", "fp16": "float16"}
PRODUCT = "h = MatMul(x, w) b = Add(h, c) a = Relu(b) y = Add(a, r)"
CONV = (
    "h = Conv<kernel_shape=[{k},{k}], pads=[{p},{p},{p},{p}], group={g}>(x, w, c) a = Add(h, r) y = Relu(a)"
)
MATRICES = ("{t}[{m},{k}] x, {t}[{m},24] r", "{t}[{m},24] y")


def product(rows: tuple[str, ...], m: int, k: int, precision: str = "f32") -> Case:
    inputs, output = (text.format(t=KINDS.get(precision, "float"), m=m, k=k) for text in MATRICES)
    weights = {"w": f(k, 24) / 4, "c": f(24)}
    return Case(rows, PRODUCT, inputs, output, weights, precision=precision)


def conv(
    rows: tuple[str, ...], ci: int, co: int, size: int, k: int, g: int = 1, precision: str = "f32"
) -> Case:
    kind = KINDS.get(precision, "float")
    return Case(
        rows,
        CONV.format(k=k, p=k // 2, g=g),
        f"{kind}[1,{ci},{size},{size}] x, {kind}[1,{co},{size},{size}] r",
        f"{kind}[1,{co},{size},{size}] y",
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
    "shared product": product(("cuda.matmul_f32", "cuda.matmul_3xtf32"), 9, 130),
    **{p: product((f"cuda.matmul_{p}",), 9, 20, p) for p in ("tf32", "bf16", "fp16")},
    "few rows": product(("cuda.matmul_of_few_rows",), 3, 20),
    "gemm": Case(
        ("cuda.gemm_f32", "cuda.gemm_3xtf32", "cuda.gemm_of_few_rows"), "a = Gemm<alpha=0.5>(x, w, r) y = Relu(a)",
        "float[5,8] x, float[5,12] r", "float[5,12] y", {"w": f(8, 12)},
    ),
    **{
        f"gemm {p}": Case(
            (f"cuda.gemm_{p}",), "y = Gemm(x, w, r)", f"{k}[9,8] x, {k}[9,12] r", f"{k}[9,12] y",
            {"w": f(8, 12)}, precision=p,
        )
        for p, k in (("tf32", "float"), *KINDS.items())
    },
    "conv": conv(("cuda.conv_f32", "cuda.conv_3xtf32"), 8, 8, 3, 3),
    "widened": conv(
        tuple(f"cuda.conv_{p}_{way}" for p in ("f32", "3xtf32") for way in ("widened", "of_plain")), 3, 8, 3, 3
    ),
    **{f"conv {p}": conv((f"cuda.conv_{p}",), 8, 8, 3, 3, precision=p) for p in ("tf32", *KINDS)},
    **{
        f"widened {p}": conv((f"cuda.conv_{p}_widened", f"cuda.conv_{p}_of_plain"), 3, 8, 3, 3, precision=p)
        for p in ("tf32", *KINDS)
    },
    "depthwise": conv(("cuda.conv_depthwise",), 8, 8, 5, 3, g=8),
    "few pixels": conv(("cuda.conv_of_few_pixels",), 8, 12, 1, 1),
    "attention": Case(
        ("cuda.attention",),
        "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) c = Mul(s, h) p = Softmax<axis=-1>(c) y = MatMul(p, v)",
        "bfloat16[1,2,20,16] q, bfloat16[1,2,7,16] k, bfloat16[1,2,7,16] v", "bfloat16[1,2,20,16] y",
        {"h": np.float32(0.3)}, ATTENTION, "Softmax", "bf16",
    ),
    "attention of few queries": Case(
        ("cuda.attention_decode",),
        "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) c = Mul(s, h) p = Softmax<axis=-1>(c) y = MatMul(p, v)",
        "float[1,2,1,16] q, float[1,2,40,16] k, float[1,2,40,16] v", "float[1,2,1,16] y",
        {"h": np.float32(0.3)}, ATTENTION, "Softmax",
    ),
    "attention, the operator": Case(
        ("cuda.attention", "cuda.attention_decode"), "y = Attention(q, k, v)",
        "bfloat16[1,2,1,16] q, bfloat16[1,2,7,16] k, bfloat16[1,2,7,16] v", "bfloat16[1,2,1,16] y",
        precision="bf16",
    ),
}  # fmt: skip
DTYPES = {"float": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}


def grouped(case: Case) -> Group:
    head = '<ir_version: 10, opset_import: ["": 23]> g'
    names = ", ".join(f"{case.kind}{list(np.shape(a))} {n}" for n, a in case.weights.items())
    given = ", ".join(filter(None, (case.inputs, names)))
    dtype = ir.DataType[DTYPES[case.kind]].numpy()
    weights = {n: np.asarray(a, dtype) for n, a in case.weights.items()}
    model = model_of(f"{head} ({given}) => ({case.output}) {{ {case.text} }}", weights)
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
        v.name or "": f(*graph.static_shape(v)).reshape(graph.static_shape(v)).astype(graph.dtype(v))
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
    assert allowing == run


def pairs_of(row: Implementation, group: Group, facts: Known) -> set[tuple[str, str]]:
    """The row, and which operand of it may be overwritten."""
    place = {v: f"input {i}" for i, v in enumerate(group.anchor.inputs) if group.op == group.anchor.op_type}
    return {(row.name, place.get(source, "operand")) for source, _ in row.inplace(group, facts)}


def test_networks_allow_no_pair_that_is_not_run(tmp_path: Path) -> None:
    """Operands that rows allow somewhere in whole networks are among those that were overwritten above."""
    run = set()
    for name, row in PAIRS:
        run |= pairs_of(ROWS[row], grouped(CASES[name]), known(CASES[name].precision))
    allowed = set()
    for name, network in NETWORKS.items():
        program = planned(network().save(tmp_path / f"{name}.onnx"))
        facts = Known.of(program.compilation)
        for group in (step.group for step in program.steps):
            applying = [r for r in ROWS.values() if r.op == group.op and r.unless(group, facts) is None]
            allowed |= {pair for row in applying for pair in pairs_of(row, group, facts)}
    assert allowed - run == set()
    assert len(allowed) > 10


def test_rows_of_a_name_are_told_apart() -> None:
    rows: list[Implementation] = list(ROWS.values())
    assert len({r.name for r in rows}) == len(rows)
    assert all(r.name.startswith("cuda.") for r in rows)
