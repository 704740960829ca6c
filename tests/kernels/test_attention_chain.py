"""Attention that a graph spells as MatMul, Mul, Add, Softmax, MatMul, against its definition in float64."""

import numpy as np
import pytest

from app.engine.core.group import ATTENTION, Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import load
from app.engine.passes.fuse import Fuse
from app.engine.passes.partition import Partition
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, context, implementation, model_of, run_group

REGISTRY = load()
ROWS = ("attention.rows", "attention.blocks")
HEADS = """
    a = Transpose <perm = [0, 2, 1, 3]> (q)
    b = Transpose <perm = [0, 2, 3, 1]> (k)
    d = Transpose <perm = [0, 2, 1, 3]> (v)
"""


def groups(body: str, inputs: dict[str, Array], constants: dict[str, Array] | None = None) -> list[Group]:
    """The groups of a graph with output y, the largest first."""
    fixed = constants or {}
    types = {"int64": "int64", "float32": "float", "float64": "double"}
    declared = ", ".join(
        f"{types[a.dtype.name]}[{','.join(map(str, a.shape))}] {n}" for n, a in (inputs | fixed).items()
    )
    text = f'<ir_version: 10, opset_import: ["": 21]> agraph ({declared}) => (y) {{ {body} }}'
    start = Compilation(model_of(text, fixed), host(), REGISTRY)
    found = Fuse()(Partition()(start)).plan.groups
    return sorted(found, key=lambda g: -len(g.nodes))


def definition(q: Array, k: Array, v: Array, scale: float, mask: Array | float) -> Array:
    """[b, h, s, d] each, in float64."""
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * scale + mask
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v.astype(np.float64)


def split_heads(batch: int, heads: int, rows: int, keys: int, depth: int, width: int) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    shapes = {"q": (rows, heads, depth), "k": (keys, heads, depth), "v": (keys, heads, width)}
    return {n: rng.standard_normal((batch, *s)).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "sizes",
    [(2, 3, 64, 64, 32, 32), (1, 2, 7, 19, 5, 3), (1, 1, 50, 197, 64, 40), (1, 2, 1, 33, 16, 24)],
    ids=str,
)
def test_any_sizes_and_heads_by_strides(
    compiler: Compiler, sizes: tuple[int, ...], row: str, threads: int, lanes: int
) -> None:
    a = split_heads(*sizes)
    a["m"] = np.random.default_rng(1).standard_normal((sizes[0], 1, 1, sizes[3])).astype(np.float32)
    body = (
        HEADS
        + """
        s = MatMul(a, b) t = Mul(s, c) u = Add(t, m) p = Softmax <axis = -1> (u) z = MatMul(p, d)
        y = Transpose <perm = [0, 2, 1, 3]> (z)"""
    )
    (group,) = groups(body, a, {"c": np.array([0.25], np.float32)})
    assert group.op == ATTENTION
    (y,) = run_group(implementation(row, REGISTRY), group, a, compiler, threads=threads, lanes=lanes)
    q, k, v = (a[n].swapaxes(1, 2) for n in "qkv")
    assert_close(y, definition(q, k, v, 0.25, a["m"]).swapaxes(1, 2))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "mask", [(2, 1, 1, 40), (2, 1, 30, 40), (30, 40), (40,), (2, 3, 30, 1), None], ids=str
)
def test_masks_broadcast(compiler: Compiler, mask: tuple[int, ...] | None, row: str) -> None:
    a = split_heads(2, 3, 30, 40, 16, 16)
    bias: Array | float = 0.0
    added = ""
    if mask is not None:
        bias = np.where(np.random.default_rng(1).random(mask) < 0.3, -np.inf, 0.5).astype(np.float32)
        bias[..., 0] = 0
        a["m"], added = bias, "t = Add(m, s)"
    last = "t" if added else "s"
    body = HEADS + f"s = MatMul(a, b) {added} p = Softmax({last}) y = MatMul(p, d)"
    (group,) = groups(body, a)
    (y,) = run_group(implementation(row, REGISTRY), group, a, compiler, threads=2)
    q, k, v = (a[n].swapaxes(1, 2) for n in "qkv")
    assert_close(y, definition(q, k, v, 1, bias))


def test_many_keys_go_through_in_blocks(compiler: Compiler) -> None:
    a = split_heads(1, 2, 100, 1300, 8, 8)
    # Rows whose first keys are all hidden, and rows that see the largest score late.
    m = np.zeros((100, 1300), np.float32)
    m[:40, :700] = -np.inf
    m[40:60, 1000:] = 30
    a["m"] = m
    body = HEADS + "s = MatMul(a, b) u = Add(s, m) p = Softmax(u) y = MatMul(p, d)"
    (group,) = groups(body, a)
    q, k, v = (a[n].swapaxes(1, 2) for n in "qkv")
    for threads in (1, 2):
        (y,) = run_group(implementation("attention.blocks", REGISTRY), group, a, compiler, threads=threads)
        assert_close(y, definition(q, k, v, 1, m))


@pytest.mark.parametrize("row", ROWS)
def test_a_row_that_sees_no_key_is_nan_as_the_softmax_of_the_graph_is(compiler: Compiler, row: str) -> None:
    a = split_heads(1, 2, 6, 9, 8, 8)
    a["m"] = np.zeros((6, 9), np.float32)
    a["m"][3] = -np.inf
    body = HEADS + "s = MatMul(a, b) u = Add(s, m) p = Softmax(u) y = MatMul(p, d)"
    (group,) = groups(body, a)
    (y,) = run_group(implementation(row, REGISTRY), group, a, compiler)
    q, k, v = (a[n].swapaxes(1, 2) for n in "qkv")
    assert_close(y, definition(q, k, v, 1, a["m"]))
    assert np.isnan(y[:, :, 3]).all()


PACKED = {
    "gather": "q = Gather <axis = 0> (t, i0) k = Gather <axis = 0> (t, i1) v = Gather <axis = 0> (t, i2)",
    "split": """q3, k3, v3 = Split <axis = 0, num_outputs = 3> (t)
        q = Squeeze(q3, i_0) k = Squeeze(k3, i_0) v = Squeeze(v3, i_0)""",
    "slice": """q3 = Slice(t, i_0, i_1) q = Squeeze(q3, i_0) k3 = Slice(t, i_1, i_2) k = Squeeze(k3, i_0)
        v3 = Slice(t, i_2, i_3, i_0) v = Squeeze(v3, i_0)""",
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("keys", [40, 700])
def test_a_row_whose_weights_are_nan_is_zero_where_the_graph_clears_them(
    compiler: Compiler, row: str, keys: int
) -> None:
    a = split_heads(1, 2, 9, keys, 16, 16)
    a["q"][0, 4, 1, 3] = np.nan
    mask = np.where(np.random.default_rng(1).random((1, 1, 9, keys)) < 0.3, -np.inf, 0.0)
    mask[0, 0, 2] = -np.inf
    a["m"] = mask.astype(np.float32)
    body = (
        HEADS
        + """
        f = Mul(a, c) g = Mul(b, c) s = MatMul(f, g) u = Add(s, m) p = Softmax <axis = -1> (u)
        n = IsNaN(p) w = Where(n, o, p) z = MatMul(w, d) y = Transpose <perm = [0, 2, 1, 3]> (z)"""
    )
    fixed = {"c": np.array(0.5, np.float32), "o": np.zeros(1, np.float32)}
    (group,) = groups(body, a, fixed)
    assert group.op == ATTENTION
    (y,) = run_group(implementation(row, REGISTRY), group, a, compiler)
    q, k, v = (a[n].swapaxes(1, 2) for n in "qkv")
    expected = np.nan_to_num(definition(q, k, v, 0.25, a["m"])).swapaxes(1, 2)
    assert not y[0, 2].any()
    assert not y[0, 4, 1].any()
    assert_close(y, expected)


def test_weights_that_become_other_numbers_than_zero_are_no_attention() -> None:
    a = split_heads(1, 2, 9, 8, 16, 16)
    body = HEADS + "s = MatMul(a, b) p = Softmax(s) n = IsNaN(p) w = Where(n, o, p) y = MatMul(w, d)"
    assert ATTENTION not in {g.op for g in groups(body, a, {"o": np.ones(1, np.float32)})}


@pytest.mark.parametrize("way", PACKED)
def test_operands_may_be_parts_of_one_projection(compiler: Compiler, way: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 21, 3 * 2 * 8)).astype(np.float32)
    numbers = {f"i{n}": np.array(n) for n in range(3)} | {f"i_{n}": np.array([n]) for n in range(4)}
    body = f"""
        r = Reshape(x, five) t = Transpose <perm = [2, 0, 3, 1, 4]> (r) {PACKED[way]}
        e = Mul(q, c) f = Transpose <perm = [0, 1, 3, 2]> (k) g = Mul(f, c)
        s = MatMul(e, g) p = Softmax(s) z = MatMul(p, v) y = Transpose <perm = [0, 2, 1, 3]> (z)"""
    used = {n: a for n, a in numbers.items() if n in body.replace(",", " ").replace(")", " ").split()}
    fixed = {"five": np.array([1, 21, 3, 2, 8]), "c": np.array(0.5, np.float32), **used}
    (group,) = groups(body, {"x": x}, fixed)
    (y,) = run_group(implementation("attention.blocks", REGISTRY), group, {"x": x}, compiler)
    q, k, v = x.reshape(1, 21, 3, 2, 8).transpose(2, 0, 3, 1, 4)
    assert_close(y, definition(q, k, v, 0.25, 0).swapaxes(1, 2))


EXPANDED = """
    a = Unsqueeze(k, two) b = Expand(a, wide) d = Reshape(b, whole)
    e = Unsqueeze(v, two) f = Expand(e, wide) g = Reshape(f, whole)
    h = Transpose <perm = [0, 1, 3, 2]> (d) s = MatMul(q, h) t = Mul(s, c) u = Add(t, m)
    p = Softmax(u) y = MatMul(p, g)
"""


def shared(heads: int, sharing: int, rows: int, keys: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and constants of EXPANDED: so many heads of keys, each of which `sharing` queries read."""
    rng, depth = np.random.default_rng(heads), 32
    shapes = {"q": (sharing * heads, rows, depth), "k": (heads, keys, depth), "v": (heads, keys, depth)}
    a = {n: rng.standard_normal((2, *s)).astype(np.float32) for n, s in shapes.items()}
    a["m"] = rng.standard_normal((2, 1, rows, keys)).astype(np.float32)
    fixed = {
        "two": np.array([2]),
        "wide": np.array([2, heads, sharing, keys, depth]),
        "whole": np.array([2, heads * sharing, keys, depth]),
        "c": np.array(0.25, np.float32),
    }
    return a, fixed


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    ("heads", "sharing", "rows"), [(2, 3, 1), (2, 3, 7), (1, 4, 1), (3, 1, 5), (2, 11, 1)]
)
def test_keys_and_values_that_heads_share_are_read_where_they_lie(
    compiler: Compiler, row: str, heads: int, sharing: int, rows: int
) -> None:
    a, fixed = shared(heads, sharing, rows, 33)
    (group,) = groups(EXPANDED, a, fixed)
    assert group.op == ATTENTION
    (y,) = run_group(implementation(row, REGISTRY), group, a, compiler, threads=2)
    k, v = (np.repeat(a[n], sharing, axis=1) for n in "kv")
    assert_close(y, definition(a["q"], k, v, 0.25, a["m"]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = MatMul(p, g)", "w = MatMul(p, g) z = ReduceMax(g) y = Add(w, z)"),
        ("d = Reshape(b, whole)", "i = Transpose <perm = [0, 2, 1, 3, 4]> (b) d = Reshape(i, whole)"),
        ("(d) s =", "(n) s ="),
    ],
    ids=["values read elsewhere", "heads that share keys lie apart", "shared heads in another order"],
)
def test_shared_heads_that_cannot_be_read_where_they_lie_are_expanded(old: str, new: str) -> None:
    a, fixed = shared(2, 3, 4, 9)
    halves = "i, j = Split <axis = 1, num_outputs = 2> (d) n = Concat <axis = 1> (j, i) h = "
    body = EXPANDED.replace(old, new).replace("h = ", halves if "(n)" in new else "h = ")
    (group,) = (g for g in groups(body, a, fixed) if g.op == ATTENTION)
    assert "Expand" not in {n.op_type for n in group.nodes}


def test_what_something_else_reads_stays_outside() -> None:
    a = split_heads(1, 2, 6, 9, 8, 8)
    body = HEADS + "s = MatMul(a, b) p = Softmax(s) z = MatMul(p, d) f = MatMul(s, d) y = Add(z, f)"
    model = (
        HEADS
        + "s = MatMul(a, b) p = Softmax(s) z = MatMul(p, d) e = Neg(a) w = MatMul(e, b) f = MatMul(w, d) y = Add(z, f)"
    )
    first, *_ = groups(model, a)
    assert first.op == ATTENTION
    assert [n.op_type for n in first.nodes] == ["MatMul", "Softmax", "MatMul"]
    # Scores that are read elsewhere leave no group at all.
    assert all(g.op != ATTENTION for g in groups(body, a))


@pytest.mark.parametrize("change", ["u = Mul(s, s) p = Softmax(u)", "p = Softmax <axis = 1> (s)"])
def test_other_chains_stay_as_they_are(change: str) -> None:
    a = split_heads(1, 2, 6, 9, 8, 8)
    found = groups(HEADS + f"s = MatMul(a, b) {change} y = MatMul(p, d)", a)
    assert all(g.op != ATTENTION for g in found)


def test_double_precision_is_refused() -> None:
    a = {n: x.astype(np.float64) for n, x in split_heads(1, 2, 6, 9, 8, 8).items()}
    found = groups(HEADS + "s = MatMul(a, b) p = Softmax(s) y = MatMul(p, d)", a)
    assert all(g.op != ATTENTION for g in found)


def test_blocks_give_the_reason_rejection() -> None:
    a = split_heads(1, 2, 6, 9, 8, 8)
    body = (
        HEADS
        + """s = MatMul(a, b) p = Softmax(s) z = MatMul(p, d)
        y = Transpose <perm = [0, 1, 3, 2]> (z)"""
    )
    largest, *_ = groups(body, a)
    assert [n.op_type for n in largest.nodes][-1] == "MatMul"  # the rest would part the elements of rows
    assert implementation("attention.blocks", REGISTRY).rejection(largest, context()) is None
