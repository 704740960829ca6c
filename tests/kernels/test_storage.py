"""Sparse values of a run: casts and arithmetic on them, in buffers that begin as poison."""

from typing import Any

import numpy as np
import pytest

from app.engine.types.sparse_array import packed
from app.engine.types.storage import SparseFormat
from app.kernels.cpu.runtime.compiler import Compiler, call

Array = np.ndarray[Any, Any]
KERNELS = "app.kernels.cpu.storage"
rng = np.random.default_rng(3)


def form(kind: str, shape: tuple[int, int], itemsize: int = 4) -> SparseFormat:
    rows, columns = shape
    return SparseFormat(kind, rows, columns, rows if kind == "row_sparse" else rows * columns, itemsize)  # type: ignore[arg-type]


def poisoned(nbytes: int) -> Array:
    return np.full(nbytes, 0xFF, np.uint8)


def with_rows(m: int, n: int, full: float) -> Array:
    x = rng.standard_normal((m, n)).astype(np.float32)
    x[rng.random(m) >= full] = 0
    return x


def some(m: int, n: int) -> Array:
    return ((rng.random((m, n)) < 0.3) * rng.standard_normal((m, n))).astype(np.float32)


def run(compiler: Compiler, name: str, types: str, arguments: list[object], units: int) -> None:
    """`types`: h, p, v for the parts of a sparse value, f float32, i int64 arrays, n numbers."""
    names = {"h": "int64*", "p": "int32*", "v": "float32*", "f": "float32*", "i": "int64*", "n": "int64"}
    kernel = compiler.compile(f"{KERNELS}:{name}", tuple(names[t] for t in types))
    numbers = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in arguments]  # type: ignore[call-overload]
    call(kernel, *numbers, 0, units)


def dense(compiler: Compiler, buffer: Array, f: SparseFormat) -> Array:
    y = np.full((f.rows, f.columns), np.nan, np.float32)
    sizes = [f.columns] if f.kind == "csr" else [f.rows, f.columns]
    name = "dense_of_csr" if f.kind == "csr" else "dense_of_rows"
    units = f.rows if f.kind == "csr" else 1
    run(
        compiler, name, "hpvf" + "n" * (len(sizes) + 2), [buffer] * 3 + [y, *sizes, f.places, f.values], units
    )
    return y


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (4, 13)])
@pytest.mark.parametrize(("kind", "name"), [("csr", "csr_of_dense"), ("row_sparse", "rows_of_dense")])
def test_a_cast_and_back_is_the_identity(
    compiler: Compiler, kind: str, name: str, shape: tuple[int, int]
) -> None:
    f, x = form(kind, shape), some(*shape)
    x[0, 0] = np.nan
    buffer = poisoned(f.nbytes)
    excess = np.zeros(1, np.int64)
    run(compiler, name, "fhpvhnnnnn", [x, *[buffer] * 3, excess, *shape, f.capacity, f.places, f.values], 1)
    assert excess[0] == 0
    np.testing.assert_array_equal(dense(compiler, buffer, f), x)
    np.testing.assert_array_equal(dense(compiler, packed(x, f), f), x)


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize(("kind", "name"), [("csr", "csr_of_dense"), ("row_sparse", "rows_of_dense")])
def test_a_cast_writes_no_more_than_its_bound_and_shows_that_there_is_more(
    compiler: Compiler, kind: str, name: str, most: int
) -> None:
    f, x = SparseFormat(kind, 5, 6, most, 4), rng.uniform(1, 2, (5, 6)).astype(np.float32)  # type: ignore[arg-type]
    guard = 64
    buffer = poisoned(f.nbytes + guard)
    excess = np.zeros(1, np.int64)
    run(compiler, name, "fhpvhnnnnn", [x, *[buffer] * 3, excess, 5, 6, most, f.places, f.values], 1)
    assert excess[0] == (30 if kind == "csr" else 5)
    assert np.all(buffer[f.nbytes :] == 0xFF), "beyond the buffer"
    found = dense(compiler, buffer, f)
    assert np.count_nonzero(np.isnan(found)) == most * (6 if kind == "row_sparse" else 1)
    assert not np.any(found[~np.isnan(found)])


@pytest.mark.parametrize("op", [0, 1, 2])
@pytest.mark.parametrize("full", [(0.4, 0.6), (0.0, 0.5), (1.0, 0.2)])
def test_rows_are_merged(compiler: Compiler, op: int, full: tuple[float, float]) -> None:
    f = form("row_sparse", (11, 3))
    a, b = (with_rows(11, 3, share) for share in full)
    result = poisoned(f.nbytes)
    offsets = [f.places, f.values] * 3
    run(compiler, "merged_rows", "hpv" * 3 + "n" * 8,
        [*[packed(a, f)] * 3, *[packed(b, f)] * 3, *[result] * 3, op, 3, *offsets], 1)  # fmt: skip
    np.testing.assert_array_equal(dense(compiler, result, f), (a + b, a - b, a * b)[op])


def test_rows_are_retained_and_gathered(compiler: Compiler) -> None:
    f, x = form("row_sparse", (10, 4)), with_rows(10, 4, 0.5)
    kept = np.array([0, 3, 4, 9], np.int64)
    result = poisoned(f.nbytes)
    run(compiler, "retained", "hpvi" + "hpv" + "n" * 6,
        [*[packed(x, f)] * 3, kept, *[result] * 3, 4, 4, f.places, f.values, f.places, f.values], 1)  # fmt: skip
    expected = np.zeros_like(x)
    expected[kept] = x[kept]
    np.testing.assert_array_equal(dense(compiler, result, f), expected)
    ids = np.array([3, -1, 0, 3, 8, 12], np.int64)
    y = np.zeros((6, 4), np.float32)
    run(compiler, "gathered_rows", "hpvif" + "n" * 4,
        [*[packed(x, f)] * 3, ids, y, 10, 4, f.places, f.values], 6)  # fmt: skip
    np.testing.assert_array_equal(y[:5], x[ids[:5]])
    assert not np.any(y[5] == x[0]) or np.all(y[5] == -1)


def test_a_csr_value_is_multiplied(compiler: Compiler) -> None:
    f, a = form("csr", (9, 6)), some(9, 6)
    b, y = rng.standard_normal((6, 5)).astype(np.float32), np.full((9, 5), np.nan, np.float32)
    bias = rng.standard_normal(5).astype(np.float32)
    arguments = [*[packed(a, f)] * 3, b, bias, y, 5, f.places, f.values]
    run(compiler, "csr_product", "hpvfff" + "n" * 3, arguments, 9)
    np.testing.assert_allclose(y, a @ b + bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100])
def test_scattered_rows_are_sorted_and_added_in_order(compiler: Compiler, count: int) -> None:
    rows = 13
    f = SparseFormat("row_sparse", rows, 3, min(count, rows), 4)
    ids = rng.integers(-rows, rows, count)
    updates = rng.standard_normal((count, 3)).astype(np.float32)
    result = poisoned(f.nbytes)
    work = np.zeros(count, np.int64)
    run(compiler, "scattered_rows", "ifi" + "hpv" + "n" * 5,
        [ids, updates, work, *[result] * 3, count, rows, 3, f.places, f.values], 1)  # fmt: skip
    expected = np.zeros((rows, 3), np.float32)
    np.add.at(expected, ids, updates)
    np.testing.assert_array_equal(dense(compiler, result, f), expected)
