"""Every pair that a CUDA row allows to share memory is run so, and gives what it gives apart."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core import graph
from app.engine.core.group import ATTENTION, ELEMENTWISE, Group
from app.engine.core.registry import Implementation, PlanningContext, load, no_pairs
from tests.engine.runtime.cuda.bench import context, run_row
from tests.engine.runtime.cuda.models import NETWORKS
from tests.engine.runtime.cuda.programs import planned
from tests.harness import group_of, model_of

pytestmark = pytest.mark.simulated

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
PRECISIONS = ("f32", "3xtf32", "tf32", *KINDS)
# What a residual follows, or is followed by.
ENDINGS = {"before": "a = Add(h, r) y = Relu(a)", "after": "a = Relu(h) y = Add(a, r)"}
M = 20  # rows of results, of which a tile covers more


def columns(precision: str, shared: int) -> int:
    """Of a result: they take two tiles, or two blocks that add up a shared reduction."""
    return 52 if shared else 132 if precision == "f32" else 68


def product(row: str, place: str, m: int, n: int, k: int, precision: str = "f32") -> Case:
    """A product [m, k] x [k, n] with a residual."""
    kind, gemm = KINDS.get(precision, "float"), "gemm" in row
    head = "h = Gemm<alpha=0.5>(x, w, c)" if gemm else "p = MatMul(x, w) h = Add(p, c)"
    weights = {"w": f(k, n) / 4, "c": f(n)}
    inputs = f"{kind}[{m},{k}] x, {kind}[{m},{n}] r"
    return Case(
        (row,), f"{head} {ENDINGS[place]}", inputs, f"{kind}[{m},{n}] y", weights, precision=precision
    )


def conv(
    row: str, place: str, ci: int, co: int, size: tuple[int, int], k: int, g: int = 1, precision: str = "f32"
) -> Case:
    """A convolution with windows of k x k and a residual."""
    kind, (h, w), p = KINDS.get(precision, "float"), size, k // 2
    head = f"h = Conv<kernel_shape=[{k},{k}], pads=[{p},{p},{p},{p}], group={g}>(x, w, c)"
    return Case(
        (row,),
        f"{head} {ENDINGS[place]}",
        f"{kind}[1,{ci},{h},{w}] x, {kind}[1,{co},{h},{w}] r",
        f"{kind}[1,{co},{h},{w}] y",
        {"w": f(co, ci // g, k, k) / k, "c": f(co)},
        precision=precision,
    )


PIXELS = (5, 4)  # M
# After the activation, reductions are so long that blocks share them.
LONG = {"before": 0, "after": 1}
CONTRACTIONS = {
    f"{row} {place}": make(f"cuda.{row}", place, *sizes, precision=p)
    for place, shared in LONG.items()
    for p in PRECISIONS
    for row, make, sizes in (
        (f"matmul_{p}", product, (M, columns(p, shared), (20, 130)[shared])),
        (f"gemm_{p}", product, (M, columns(p, shared), (20, 130)[shared])),
        (f"conv_{p}", conv, ((8, 16)[shared], columns(p, shared), PIXELS, 3)),
    )
}
COPIED = {
    f"{row} {place}": conv(f"cuda.{row}", place, (3, 15)[shared], columns(p, shared), PIXELS, 3, precision=p)
    for place, shared in LONG.items()
    for p in PRECISIONS
    for row in (f"conv_{p}_widened", f"conv_{p}_of_plain")
}
SHARED = tuple(name for name in (CONTRACTIONS | COPIED) if name.endswith("after"))
OTHERS = {
    f"{row} {place}": make(f"cuda.{row}", place, *sizes)
    for place in ENDINGS
    for row, make, sizes in (
        ("matmul_of_few_rows", product, (3, 9, 20)),
        ("gemm_of_few_rows", product, (3, 9, 20)),
        ("conv_depthwise", conv, (40, 40, (7, 9), 3, 40)),
        ("conv_of_few_pixels", conv, (8, 12, (2, 3), 1)),
    )
}
GEMMS = {
    f"gemm of a matrix, {rows[0]}": Case(
        tuple(f"cuda.gemm_{row}" for row in rows), "a = Gemm<alpha=0.5>(x, w, r) y = Relu(a)",
        f"{KINDS.get(p, 'float')}[{m},20] x, {KINDS.get(p, 'float')}[{m},{n}] r",
        f"{KINDS.get(p, 'float')}[{m},{n}] y", {"w": f(20, n)}, precision=p,
    )
    for p, m, n, rows in (
        ("f32", 3, 9, ("of_few_rows",)), ("f32", M, 132, ("f32", "3xtf32")), ("tf32", M, 68, ("tf32",)),
        *((p, M, 68, (p,)) for p in KINDS),
    )
}  # fmt: skip
CHAIN = (
    "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) c = Mul(s, h) p = Softmax<axis=-1>(c) y = MatMul(p, v)"
)
ROWWISE = {
    "chain": Case(
        ("cuda.elementwise",), "a = Mul(x, z) b = Add(a, s) y = Relu(b)", "float[3,7,67] x, float[3,7,67] z",
        "float[3,7,67] y", {"s": f(67)}, ELEMENTWISE,
    ),
    "two results": Case(
        ("cuda.elementwise",), "y = Sub(x, z) w = Mul(y, x)", "float[3,7,67] x, float[3,7,67] z",
        "float[3,7,67] y, float[3,7,67] w", {}, ELEMENTWISE,
    ),
    "results of 16 bits": Case(
        ("cuda.elementwise",), "y = Sub(x, z) w = Mul(y, x)", "bfloat16[9,520] x, bfloat16[9,520] z",
        "bfloat16[9,520] y, bfloat16[9,520] w", {}, ELEMENTWISE, precision="bf16",
    ),
    "images": Case(
        ("cuda.elementwise_last",), "a = Mul(x, z) b = Add(a, s) y = Relu(b) w = Sub(y, x)",
        "float[2,5,11,13] x, float[2,5,11,13] z", "float[2,5,11,13] y, float[2,5,11,13] w", {"s": f(5, 1, 1)},
        ELEMENTWISE,
    ),
    **{
        f"{op} of {what}": Case(
            (f"cuda.{op.lower()}",), f"y = {op}<axis={axis}>(x)", f"{kind}[{shape}] x", f"{kind}[{shape}] y",
            precision=precision,
        )
        for op in ("Softmax", "LogSoftmax")
        for what, axis, kind, shape, precision in (
            ("rows", -1, "float", "9,37", "f32"), ("columns", 0, "float", "7,259", "f32"),
            ("rows of 16 bits", -1, "bfloat16", "9,296", "bf16"),
        )
    },
    "layer_norm": Case(
        ("cuda.layer_norm",), "a = LayerNormalization(x, s, b) y = Relu(a)", "float[9,37] x", "float[9,37] y",
        {"s": f(37), "b": f(37)},
    ),
    "rms_norm": Case(("cuda.rms_norm",), "y = RMSNormalization(x, s)", "float[9,37] x", "float[9,37] y",
                     {"s": f(37)}),
    **{
        f"attention {p}": Case(
            ("cuda.attention",), CHAIN, f"{kind}[1,1,70,8] q, {kind}[1,1,7,8] k, {kind}[1,1,7,8] v",
            f"{kind}[1,1,70,8] y", {"h": np.float32(0.3)}, ATTENTION, "Softmax", p,
        )
        for p, kind in (("f32", "float"), *KINDS.items())
    },
    "attention of few queries": Case(
        ("cuda.attention_decode",), CHAIN, "float[1,2,1,16] q, float[1,2,40,16] k, float[1,2,40,16] v",
        "float[1,2,1,16] y", {"h": np.float32(0.3)}, ATTENTION, "Softmax",
    ),
    "attention, the operator": Case(
        ("cuda.attention", "cuda.attention_decode"), "y = Attention(q, k, v)",
        "bfloat16[1,2,1,16] q, bfloat16[1,2,7,16] k, bfloat16[1,2,7,16] v", "bfloat16[1,2,1,16] y",
        precision="bf16",
    ),
}  # fmt: skip
CASES = {**CONTRACTIONS, **COPIED, **OTHERS, **GEMMS, **ROWWISE}
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


RUNS = [(name, row) for name, case in CASES.items() for row in case.rows]


def several(pairs: Sequence[tuple[ir.Value, ir.Value]]) -> list[tuple[tuple[ir.Value, ir.Value], ...]]:
    """Each pair alone, and each two that have no value in common."""
    two = [(p, q) for p, q in combinations(pairs, 2) if p[0] is not q[0] and p[1] is not q[1]]
    return [*((pair,) for pair in pairs), *two]


@pytest.mark.parametrize(("name", "row"), RUNS)
def test_pairs_that_share_memory_give_the_same(name: str, row: str) -> None:
    """In whatever order blocks run: none touches what another wrote."""
    case, implementation = CASES[name], ROWS[row]
    group, facts = grouped(case), context(case.precision)
    inputs = {
        v.name or "": f(*graph.static_shape(v)).reshape(graph.static_shape(v)).astype(graph.dtype(v))
        for v in group.inputs
        if not graph.is_constant(v)
    }
    calls = implementation.lower(group, facts)
    assert all(c.units > 1 for c in calls if set(group.outputs) & set(c.arguments)), "one block"
    apart = run_row(implementation, group, inputs, facts)
    assert all(np.isfinite(a).all() for a in apart)
    for pairs in several(implementation.inplace(group, facts)):
        together = run_row(implementation, group, inputs, facts, pairs)
        told = ", ".join(f"{y.name} over {x.name}" for x, y in pairs)
        for found, expected in zip(together, apart, strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=told)


@pytest.mark.parametrize("name", SHARED)
def test_reductions_that_blocks_share_are_among_them(name: str) -> None:
    case = CASES[name]
    *_, shared, last = ROWS[case.rows[0]].lower(grouped(case), context(case.precision))
    assert "sum_splits" in last.kernel
    assert shared.launch.grid[1] > 1


def kind_of(source: ir.Value, group: Group) -> str:
    """What a value is to a group: an operand of its anchor, or what is added before or after a function."""
    if group.op == group.anchor.op_type and source in group.anchor.inputs:
        return f"operand {group.anchor.inputs.index(source)}"
    if group.op in (ELEMENTWISE, ATTENTION):
        return "operand"
    return "after" if source in group.nodes[-1].inputs else "before"


def pairs_of(row: Implementation, group: Group, facts: PlanningContext) -> set[tuple[str, str]]:
    """The row, and what may be overwritten."""
    return {(row.name, kind_of(source, group)) for source, _ in row.inplace(group, facts)}


def run_pairs() -> set[tuple[str, str]]:
    return {
        pair
        for name, row in RUNS
        for pair in pairs_of(ROWS[row], grouped(CASES[name]), context(CASES[name].precision))
    }


# What rows may overwrite, by their names.
ALLOWED = (
    ("elementwise", ("operand",)),
    ("(log)?softmax|layer_norm|rms_norm", ("operand 0",)),
    ("attention.*", ("operand", "operand 0")),
    ("(matmul|conv)_.*", ("before", "after")),
    ("gemm_.*", ("before", "after", "operand 2")),
)


def test_every_pair_that_rows_allow_is_run() -> None:
    allowing = [name for name, row in ROWS.items() if row.inplace is not no_pairs]
    pairs = {(row, kind) for row in allowing for names, kinds in ALLOWED for kind in kinds
             if re.fullmatch(rf"cuda\.({names})", row.removesuffix("_last"))}  # fmt: skip
    assert {row for row, _ in pairs} == set(allowing), "a row that the table lacks"
    assert run_pairs() == pairs


def test_models_allow_no_pair_that_is_not_run(tmp_path: Path) -> None:
    """Operands that rows allow somewhere in whole networks are among those that were overwritten above."""
    allowed = set()
    for name, network in NETWORKS.items():
        program = planned(network().save(tmp_path / f"{name}.onnx"))
        facts = PlanningContext.of(program.compilation)
        for step in program.steps:
            allowed |= pairs_of(step.choice.implementation, step.group, facts)
    assert allowed - run_pairs() == set()
    assert len(allowed) > 5


def test_rows_of_a_name_are_told_apart() -> None:
    rows: list[Implementation] = list(ROWS.values())
    assert len({r.name for r in rows}) == len(rows)
    assert all(r.name.startswith("cuda.") for r in rows)
