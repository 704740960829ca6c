"""Bounds of sparse results: never exceeded by what random operands give, and reached where they must be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.storage.bounds import Stored, after_mxnet
from app.engine.types.options import Bindings, Options
from app.engine.types.storage import DeclaredStorage, StorageKind, StorageType
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.storage.test_choice import OPTIONS, csr, planned, ran

Array = np.ndarray[Any, Any]
MXNET = Options(choose="first", backends=OPTIONS.backends, semantics="mxnet-1.9")


def entries(kind: StorageKind, array: Array) -> int:
    """Elements of csr, rows of row_sparse, that are not zero."""
    flat = array.reshape(array.shape[0], -1)
    return int(np.count_nonzero(flat.any(axis=1)) if kind == "row_sparse" else np.count_nonzero(flat))


def stored(kind: StorageKind, array: Array, spare: int = 0) -> Stored:
    """The operand with its entries, and some to spare, as its bound."""
    bound = None if kind == "default" else entries(kind, array) + spare
    return Stored(StorageType(kind, "float32", bound=bound), array.shape)


def drawn(kind: StorageKind, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Numbers of which some, or some rows, are zero."""
    x = rng.integers(1, 5, shape).astype(np.float64)
    share = rng.uniform(0, 0.6)
    if kind == "csr":
        x *= rng.random(shape) < share
    elif kind == "row_sparse":
        x *= rng.random((shape[0], 1)) < share
    return x


def _embedding(dy: Array, ids: Array, weight: Array) -> Array:
    made = np.zeros_like(weight)
    np.add.at(made, ids.astype(int).reshape(-1), dy)
    return made


Case = tuple[str, str, str, Callable[..., Array], Callable[[int, int, int], tuple[tuple[int, int], ...]]]
ALIKE = lambda m, n, _k: ((m, n), (m, n))  # noqa: E731
# (operator, kinds of operands, kind of the result, by NumPy, shapes of operands)
CASES: tuple[Case, ...] = (
    ("elemwise_add", "cc", "c", np.add, ALIKE),
    ("elemwise_sub", "rr", "r", np.subtract, ALIKE),
    ("elemwise_mul", "cc", "c", np.multiply, ALIKE),
    ("elemwise_mul", "dr", "r", np.multiply, ALIKE),
    ("broadcast_div", "cd", "c", np.divide, ALIKE),
    ("_maximum", "cc", "c", np.maximum, ALIKE),
    ("_minimum", "rr", "r", np.minimum, ALIKE),
    ("sqrt", "c", "c", np.sqrt, lambda m, n, _k: ((m, n),)),
    ("_mul_scalar", "r", "r", lambda x: 3 * x, lambda m, n, _k: ((m, n),)),
    ("concat", "cc", "c", lambda a, b: np.concatenate([a, b]), lambda m, n, k: ((m, n), (k, n))),
    ("slice", "c", "c", lambda x: x[1:, :2], lambda m, n, _k: ((m + 1, n),)),
    ("dot", "cd", "r", lambda a, b: a.T @ b, lambda m, n, k: ((m, n), (m, k))),
    ("dot", "cr", "r", lambda a, b: a.T @ b, lambda m, n, k: ((m, n), (m, k))),
    ("dot", "dc", "c", np.matmul, lambda m, n, k: ((m, k), (k, n))),
    ("dot", "dc", "c", lambda a, b: a @ b.T, lambda m, n, k: ((m, k), (n, k))),
    ("take", "cd", "c", lambda x, i: x[i.astype(int).reshape(-1) % len(x)], lambda m, n, k: ((m, n), (k, 1))),
    ("_backward_dot", "dcd", "r", lambda dy, a, _b: a.T @ dy, lambda m, n, k: ((m, k), (m, n), (n, k))),
    ("_backward_dot", "rcd", "r", lambda dy, a, _b: a.T @ dy, lambda m, n, k: ((m, k), (m, n), (n, k))),
    (
        "_backward_Embedding", "ddd", "r",
        lambda dy, ids, w: _embedding(dy, ids % len(w), w), lambda m, n, k: ((k, n), (k, 1), (m, n)),
    ),
)  # fmt: skip
KINDS: dict[str, StorageKind] = {"d": "default", "r": "row_sparse", "c": "csr"}


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]} {c[1]}>{c[2]}" for c in CASES])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(sizes=st.tuples(*[st.integers(1, 9)] * 3), seed=st.integers(0, 10_000), spare=st.integers(0, 3))
def test_no_result_stores_more_than_its_bound(
    case: Case, sizes: tuple[int, int, int], seed: int, spare: int
) -> None:
    op, kinds, made, oracle, shapes = case
    rng = np.random.default_rng(seed)
    arrays = [drawn(KINDS[k], shape, rng) for k, shape in zip(kinds, shapes(*sizes), strict=True)]
    result = oracle(*arrays)
    operands = [stored(KINDS[k], a, spare) for k, a in zip(kinds, arrays)]
    bound = after_mxnet(op, Stored(StorageType(KINDS[made], "float32"), result.shape), operands)
    assert entries(KINDS[made], result) <= bound <= result.shape[0] * (1 if made == "r" else result.shape[1])


def test_bounds_of_products_are_reached() -> None:
    """An element in each of several rows and columns: no smaller bound would hold."""
    x = np.zeros((8, 9))
    x[[1, 4, 6], [2, 3, 7]] = 1
    left, dense = stored("csr", x), stored("default", np.ones((8, 5)))
    turned = after_mxnet("dot", Stored(StorageType("row_sparse", "float32"), (9, 5)), [left, dense])
    assert turned == entries("row_sparse", x.T @ np.ones((8, 5))) == 3
    right = after_mxnet(
        "dot", Stored(StorageType("csr", "float32"), (4, 9)), [stored("default", np.ones((4, 8))), left]
    )
    assert right == entries("csr", np.ones((4, 8)) @ x) == 12
    taken = Stored(StorageType("csr", "float32"), (5, 9))
    assert after_mxnet("take", taken, [stored("csr", x[[1]]), stored("default", np.zeros((5, 1)))]) == 5


def matrix(m: int, n: int, nnz: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    x = np.zeros((m, n), np.float32)
    x.reshape(-1)[rng.choice(m * n, nnz, replace=False)] = rng.uniform(0.5, 2, nnz)
    return x


RUNS = {
    "Gemm turned": ("(float[40,30] x, float[40,6] w) => (float[30,6] y) { g = Gemm<transA=1>(x, w) y = Relu(g) }", "g", "row_sparse", 7),
    "Gather": ("(float[40,30] x, int64[5] i) => (float[5,30] y) { g = Gather(x, i) y = Relu(g) }", "g", "csr", 35),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RUNS)
def test_results_fit_their_bounds_in_poisoned_memory(name: str, seed: int, compiler: Compiler) -> None:
    text, value, kind, bound = RUNS[name]
    program = planned(text, csr(7), options=MXNET)
    found = {v.name: s for v, s in program.compilation.plan.require("storage").items()}[value]
    assert (found.kind, found.bound) == (kind, bound)
    rng = np.random.default_rng(seed)
    x = matrix(40, 30, 7, seed)
    given_w = rng.standard_normal((40, 6)).astype(np.float32)
    ids = np.full(5, int(np.argmax(np.count_nonzero(x, axis=1))))
    other, expected = (
        ({"w": given_w}, np.maximum(x.T @ given_w, 0)) if name != "Gather" else ({"i": ids}, x[ids])
    )
    y = ran(program, compiler, {"x": x, **other})["y"]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_an_infinity_beside_nothing_stays_in_the_buffer(compiler: Compiler) -> None:
    """0 times infinity is NaN at a place that neither bound counts: the buffer holds, and NaN shows."""
    program = planned(
        "(float[40,30] x, float[40,30] z) => (float[40,30] y) { m = Mul(x, z) y = Relu(m) }",
        Bindings(storage={"x": DeclaredStorage("csr", 9), "z": DeclaredStorage("csr", 1)}),
        options=MXNET,
    )
    storage = {v.name: s for v, s in program.compilation.plan.require("storage").items()}
    assert (storage["m"].kind, storage["m"].bound) == ("csr", 1)
    x, z = matrix(40, 30, 9, 0), np.zeros((40, 30), np.float32)
    x[x != 0] = np.inf
    z[39, 29] = 1
    y = ran(program, compiler, {"x": x, "z": z})["y"]
    assert np.isnan(y).any()
