"""Products with a constant sparse operand against NumPy in double precision."""

from typing import Any

import numpy as np
import pytest

from app.engine.backends.cpu import sparse as rows
from app.engine.core.registry import load
from app.kernels.cpu import block_sparse, sparse
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

REGISTRY = load()
Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)


def pruned(shape: tuple[int, ...], how: str) -> Array:
    w = rng.standard_normal(shape).astype(np.float32)
    k, n = shape
    if how == "some":
        w *= rng.random(shape) < 0.1
        w[k // 2] = 0
    if how == "none":
        w[:] = 0
    if how == "blocks":
        kept = rng.random((-(-k // 16), -(-n // 16))) < 0.4
        w *= np.kron(kept, np.ones((16, 16)))[:k, :n]
    if how == "rows":
        w[rng.random(k) < 0.6] = 0
    if how == "2:4":
        groups = w.reshape(k // 4, 4, n)
        least = np.argsort(np.abs(groups), axis=1)[:, :2]
        np.put_along_axis(groups, least, 0, axis=1)
    return w


def run(
    compiler: Compiler, row: str, nodes: str, values: dict[str, Array], shape: tuple[int, ...],
    fixed: tuple[str, ...], *, threads: int = 1, lanes: int = 0,
) -> Array:  # fmt: skip
    declared = ", ".join(f"float[{','.join(map(str, v.shape))}] {n}" for n, v in values.items())
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({declared}) => (float[{",".join(map(str, shape))}] y) {{ {nodes} }}'
    model = harness.model_of(text, {n: values[n] for n in fixed})
    group = harness.group_of(model, REGISTRY)
    given = {n: v for n, v in values.items() if n not in fixed}
    chosen = harness.implementation(row, REGISTRY)
    (found,) = harness.run_group(chosen, group, given, compiler, threads=threads, lanes=lanes)
    return found


@pytest.mark.parametrize(
    ("row", "how"),
    [
        ("csr_weights", "some"),
        ("csr_weights", "none"),
        ("row_sparse", "rows"),
        ("block16", "blocks"),
        ("half", "2:4"),
    ],
)
@pytest.mark.parametrize(("m", "k", "n", "threads", "lanes"), [
    (1, 48, 37, 1, 8), (4, 64, 48, 2, 8), (5, 96, 21, 1, 16), (70, 32, 33, 2, 8), (2, 44, 35, 2, 16), (3, 32, 16, 1, 16),
])  # fmt: skip
def test_sparse_weights(
    compiler: Compiler, row: str, how: str, m: int, k: int, n: int, threads: int, lanes: int
) -> None:
    w = pruned((k, n), how)
    x, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    values = {"x": x, "w": np.ascontiguousarray(w.T), "b": b}
    nodes = "z = Gemm <transB=1, alpha=0.5> (x, w, b) y = Relu(z)"
    exact = np.maximum(0.5 * (x.astype(np.float64) @ w) + b, 0)
    assert block_sparse.stored_rows(w) == len(block_sparse.panels(w).places)
    if (how == "blocks" and block_sparse.stored_rows(w) == k * -(-n // 16)) or (
        how == "rows" and w.any(axis=1).all()
    ):
        pytest.skip("nothing was pruned")
    found = run(compiler, f"gemm.{row}", nodes, values, (m, n), ("w", "b"), threads=threads, lanes=lanes)
    harness.assert_close(found, exact.astype(np.float32))


@pytest.mark.parametrize(("batch", "m", "k", "n", "threads", "lanes"), [
    ((), 40, 33, 64, 2, 8), ((3,), 17, 24, 7, 1, 8), ((2, 2), 9, 16, 100, 2, 16), ((), 12, 8, 1, 1, 8),
])  # fmt: skip
def test_a_sparse_matrix_times_others(
    compiler: Compiler, batch: tuple[int, ...], m: int, k: int, n: int, threads: int, lanes: int
) -> None:
    a, x = pruned((m, k), "some"), rng.standard_normal((*batch, k, n)).astype(np.float32)
    c = rng.standard_normal(n).astype(np.float32)
    found = run(
        compiler, "matmul.csr", "z = MatMul(a, x) y = Add(z, c)", {"a": a, "x": x, "c": c}, (*batch, m, n), ("a", "c"),
        threads=threads, lanes=lanes,
    )  # fmt: skip
    harness.assert_close(found, (a.astype(np.float64) @ x + c).astype(np.float32))


@pytest.mark.parametrize("row", ["csr_weights", "half"])
def test_what_follows_a_product(compiler: Compiler, row: str) -> None:
    """A residual and a function run over the result, in its memory."""
    w, x = pruned((32, 20), "2:4"), rng.standard_normal((2, 3, 32)).astype(np.float32)
    r = rng.standard_normal((2, 3, 20)).astype(np.float32)
    nodes = "z = MatMul(x, w) s = Add(z, r) t = Tanh(s) y = Mul(t, r)"
    found = run(compiler, f"matmul.{row}", nodes, {"x": x, "w": w, "r": r}, (2, 3, 20), ("w",))
    exact = np.tanh(x.astype(np.float64) @ w + r) * r
    harness.assert_close(found, exact.astype(np.float32))


@pytest.mark.parametrize(
    ("row", "how", "reason"),
    [
        ("csr_weights", "full", "has no zeros"),
        ("block16", "2:4", "no 16 neighbours"),
        ("half", "rows", "more than two of four"),
        ("row_sparse", "2:4", "no row"),
    ],
)
def test_a_row_tells_why_it_does_not_apply(row: str, how: str, reason: str) -> None:
    w = np.ones((32, 16), np.float32) if how == "full" else pruned((32, 16), how)
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2,32] x, float[32,16] w) => (float[2,16] y) { y = MatMul(x, w) }'
    group = harness.group_of(harness.model_of(text, {"w": w}), REGISTRY)
    found = harness.implementation(f"matmul.{row}", REGISTRY).rejection(group, harness.context())
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(("together", "threads"), [(1, 1), (4, 1), (8, 2), (3, 2)])
def test_slices_hold_the_matrix(together: int, threads: int) -> None:
    matrix = pruned((29, 17), "some")
    cut = sparse.slices(matrix, together, threads)
    again = np.zeros_like(matrix)
    for s in range(len(cut.starts) - 1):
        for step in range(int(cut.starts[s]), int(cut.starts[s + 1])):
            for r in range(together):
                row = cut.rows[s * together + r]
                value = cut.values[step * together + r]
                if value:
                    again[row, cut.places[step * together + r]] = value
    np.testing.assert_array_equal(again, matrix)
    assert set(cut.rows) == set(range(29))


def test_lines_that_an_index_of_32_bits_does_not_reach_are_refused() -> None:
    assert rows._line_rejection(2**15, 2**16 - 1) is None
    assert rows._line_rejection(2**15, 2**16) == (
        "32768 lines of 65536 elements are more than an index of 32 bits tells apart"
    )
