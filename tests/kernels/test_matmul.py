"""Matrix products against NumPy in double precision."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import PlanningContext, load
from app.engine.types.target import host
from app.kernels.cpu import gemm
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

REGISTRY = load()
Array = np.ndarray[Any, Any]
TYPES = {"float32": "float", "float64": "double"}
SHAPES = [
    ((1,), (1,)),
    ((7,), (7, 5)),
    ((6, 9), (9,)),
    ((1, 64), (64, 1000)),
    ((6, 16), (16, 16)),
    ((13, 31), (31, 50)),
    ((200, 17), (17, 33)),
    ((5, 900), (900, 70)),
    ((2, 3, 7, 11), (11, 19)),
    ((4, 9, 8), (4, 8, 17)),
    ((2, 1, 9, 8), (1, 3, 8, 17)),
    ((9, 8), (3, 8, 5)),
    ((6, 4, 8), (6, 8, 8)),  # as many columns as a register has lanes
    ((3, 11, 5), (5, 8)),
    ((2, 3, 5), (5, 16)),
    ((3, 4, 5), (5,)),
    ((3, 0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((40, 600), (600, 70)),  # two threads share its rows
]


def run(
    compiler: Compiler,
    name: str,
    nodes: str,
    values: dict[str, Array],
    shape: tuple[int, ...],
    *,
    fixed: tuple[str, ...] = (),
    threads: int = 1,
    inplace: bool = False,
) -> Array:
    """The output y of a group of nodes; operands in `fixed` are constant."""
    kind = next(iter(values.values())).dtype.name

    def declare(name: str, shape: tuple[int, ...]) -> str:
        sizes = f"[{','.join(map(str, shape))}]" if shape else ""
        return f"{TYPES.get(kind, kind)}{sizes} {name}"

    declared = ", ".join(declare(n, v.shape) for n, v in values.items())
    model = harness.model_of(
        f'<ir_version: 10, opset_import: ["": 21]> g ({declared}) => ({declare("y", shape)}) {{ {nodes} }}',
        {n: values[n] for n in fixed},
    )
    group = harness.group_of(model, REGISTRY)
    row = harness.implementation(name, REGISTRY)
    pairs = row.inplace(group, harness.context(threads))
    assert pairs or not inplace
    given = {n: v for n, v in values.items() if n not in fixed}
    (found,) = harness.run_group(
        row, group, given, compiler, threads=threads, alias=pairs[:1] if inplace else ()
    )
    return found


def random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 50, shape).astype(dtype)


def exact(x: Array) -> Array:
    return x.astype(np.float64 if x.dtype.kind == "f" else x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 21), (21, 600)),
        ((9,), (2, 9, 7)),
        ((2, 3, 1, 16), (3, 16, 40)),
        ((2, 1, 5), (2, 5, 1030)),
        ((3, 1, 0), (3, 0, 4)),
    ],
    ids=str,
)
def test_single_rows_times_matrices_that_change(
    compiler: Compiler, shapes: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    rng = np.random.default_rng(1)
    a, b = (random(rng, dtype, shape) for shape in shapes)
    expected = np.matmul(exact(a), exact(b))
    found = run(compiler, "matmul.rows", "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape, threads=2)
    harness.assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fixed", [(), ("a",), ("b",)], ids=["none fixed", "a fixed", "b fixed"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((70, 21), (21, 1)),
        ((2, 130, 7), (2, 7, 1)),
        ((3, 9, 64), (64,)),
        ((2, 1, 9, 65), (3, 65, 1)),
        ((4, 5, 0), (4, 0, 1)),
    ],
    ids=str,
)
def test_matrices_times_vectors(
    compiler: Compiler, shapes: tuple[tuple[int, ...], ...], fixed: tuple[str, ...], dtype: str
) -> None:
    rng = np.random.default_rng(1)
    a, b = (random(rng, dtype, shape) for shape in shapes)
    expected = np.matmul(exact(a), exact(b))
    found = run(
        compiler, "matmul.dots", "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape, fixed=fixed, threads=2
    )
    harness.assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fixed", [(), ("a",), ("b",)], ids=["none fixed", "a fixed", "b fixed"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((4200, 3), (3, 3)),
        ((2, 37, 1), (2, 1, 2)),
        ((3, 5, 4), (4,)),
        ((4, 100, 5), (5, 11)),
        ((2, 1, 19, 4), (3, 4, 6)),
        ((4,), (4, 301)),
        ((2, 3), (3, 4200)),
        ((7, 4), (5, 4, 23)),
        ((13, 2), (2, 2060)),
        ((2100, 3), (3, 64)),
        ((70, 16), (16, 16)),
        ((2, 50, 6), (2, 6, 33)),
        ((1, 1), (1, 1)),
    ],
    ids=str,
)
def test_products_of_which_one_operand_is_small(
    compiler: Compiler, shapes: tuple[tuple[int, ...], ...], fixed: tuple[str, ...], dtype: str
) -> None:
    rng = np.random.default_rng(1)
    a, b = (random(rng, dtype, shape) for shape in shapes)
    expected = np.matmul(exact(a), exact(b))
    for threads in (1, 2):
        found = run(
            compiler, "matmul.short", "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape, fixed=fixed,
            threads=threads,
        )  # fmt: skip
        harness.assert_close(found, expected, 1e-6 if dtype == "float32" else 1e-15)


@pytest.mark.parametrize("fixed", [(), ("a",), ("b",)], ids=["none fixed", "a fixed", "b fixed"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_equals_numpy(compiler: Compiler, shapes: tuple, fixed: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = (random(rng, "float32", s) for s in shapes)
    expected = np.asarray(exact(a) @ exact(b))
    for threads in (1, 2):
        found = run(
            compiler,
            "matmul.blocked",
            "y = MatMul(a, b)",
            {"a": a, "b": b},
            expected.shape,
            fixed=fixed,
            threads=threads,
        )
        harness.assert_close(found, expected.astype(np.float32))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("shapes", [SHAPES[i] for i in (3, 5, 7, 10)], ids=str)
def test_matmul_is_the_same_for_any_width_of_registers(
    compiler: Compiler, shapes: tuple, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(host(), vector_lanes=lanes)
    monkeypatch.setattr(harness, "context", lambda threads=1, lanes=0: PlanningContext(target, threads))
    rng = np.random.default_rng(0)
    a, b = (random(rng, "float32", s) for s in shapes)
    expected = exact(a) @ exact(b)
    for fixed in ((), ("b",)):
        found = run(
            compiler, "matmul.blocked", "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape, fixed=fixed
        )
        harness.assert_close(found, expected.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint32", "int64", "uint64"])
def test_matmul_of_other_types(compiler: Compiler, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, dtype, (3, 17, 500)), random(rng, dtype, (500, 21))
    for fixed in ((), ("b",)):
        found = run(
            compiler, "matmul.blocked", "y = MatMul(a, b)", {"a": a, "b": b}, (3, 17, 21), fixed=fixed
        )
        harness.assert_close(found, a @ b, 1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(9, 16, 33), (40, 3, 20), (40, 37, 150), (40, 700, 5)]
)
def test_a_second_operand_with_contiguous_columns_is_turned(
    compiler: Compiler, rows: int, depth: int, columns: int, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, dtype, (rows, depth)), random(rng, dtype, (columns, depth))
    nodes = "y = Gemm <transB = 1> (a, b)"
    found = run(compiler, "gemm.blocked", nodes, {"a": a, "b": b}, (rows, columns))
    harness.assert_close(
        found, (exact(a) @ exact(b).T).astype(dtype), *([1e-13] if dtype == "float64" else [])
    )


ATTRIBUTES = ["", "<transA = 1>", "<transB = 1>", "<transA = 1, transB = 1, alpha = 0.5, beta = -2.0>"]


@pytest.mark.parametrize("fixed", [(), ("b",), ("b", "c"), ("a", "b", "c")], ids=str)
@pytest.mark.parametrize("c_shape", [None, (20,), (1, 20), (13, 1), (1, 1), (), (13, 20)], ids=str)
@pytest.mark.parametrize("given", ATTRIBUTES)
def test_gemm_equals_numpy(
    compiler: Compiler, given: str, c_shape: tuple[int, ...] | None, fixed: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(0)
    a = random(rng, "float32", (70, 13) if "transA" in given else (13, 70))
    b = random(rng, "float32", (20, 70) if "transB" in given else (70, 20))
    values = {"a": a, "b": b}
    alpha, beta = (0.5, -2.0) if "alpha" in given else (1.0, 1.0)
    expected = alpha * exact(a.T if "transA" in given else a) @ exact(b.T if "transB" in given else b)
    if c_shape is not None:
        values["c"] = random(rng, "float32", c_shape)
        expected = expected + beta * exact(values["c"])
    if beta != 1.0 and c_shape in ((13, 1), (1, 1), ()) and "c" not in fixed:
        pytest.skip("refused, see below")
    nodes = f"y = Gemm {given} ({', '.join(values)})"
    found = run(
        compiler,
        "gemm.blocked",
        nodes,
        values,
        expected.shape,
        fixed=tuple(n for n in fixed if n in values),
        threads=2,
    )
    harness.assert_close(found, expected.astype(np.float32))


def test_a_scaled_column_that_changes_between_runs_is_refused() -> None:
    model = harness.model_of(
        """<ir_version: 10, opset_import: ["": 21]> g (float[3,4] a, float[4,5] b, float[3,1] c) =>
        (float[3,5] y) { y = Gemm <beta = 2.0> (a, b, c) }"""
    )
    row = harness.implementation("gemm.blocked", REGISTRY)
    reason = row.rejection(harness.group_of(model, REGISTRY), harness.context())
    assert reason is not None
    assert "beta" in reason


# Nodes after c, and what they compute. r: as the output, q: one per column, g: one per row, s: a scalar.
EPILOGUES: dict[str, tuple[str, Callable[..., Array]]] = {
    "bias": ("y = Add(c, q)", lambda c, q, **_: c + q),
    "bias, residual, relu": (
        "d = Add(q, c) e = Add(r, d) y = Relu(e)",
        lambda c, q, r, **_: np.maximum(c + q + r, 0),
    ),
    "silu": ("d = Sigmoid(c) y = Mul(c, d)", lambda c, **_: c / (1 + np.exp(-c))),
    "everything": (
        "d = Relu(c) e = Mul(d, q) f = Add(e, r) h = Mul(f, g) y = Sub(s, h)",
        lambda c, q, r, g, s, **_: s - (np.maximum(c, 0) * q + r) * g,
    ),
}
FUSED = [
    ((13, 31), (31, 50)),
    ((5, 900), (900, 70)),
    ((2, 1, 9, 8), (1, 3, 8, 17)),
    ((2, 3, 7, 11), (11, 19)),
]


def check_what_follows(
    compiler: Compiler, row: str, shapes: tuple, epilogue: str, inplace: bool, within: float
) -> None:
    """A row computes a product and one of EPILOGUES in one step, on one thread and on two."""
    rng = np.random.default_rng(0)
    a, b = (random(rng, "float32", s) for s in shapes)
    c = exact(a) @ exact(b)
    text, compute = EPILOGUES[epilogue]
    operands = {"r": c.shape, "q": c.shape[-1:], "g": (*c.shape[:-1], 1), "s": ()}
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    extra = {n: random(rng, "float32", s) for n, s in operands.items() if n in words}
    if inplace and "r" not in extra:
        pytest.skip("nothing to overwrite")
    expected = compute(c=c, **{n: exact(v) for n, v in extra.items()})
    for threads in (1, 2):
        found = run(
            compiler,
            row,
            f"c = MatMul(a, b) {text}",
            {"a": a, "b": b, **extra},
            expected.shape,
            fixed=("b", *(n for n in extra if n == "q")),
            threads=threads,
            inplace=inplace,
        )
        harness.assert_close(found, expected.astype(np.float32), within)


@pytest.mark.parametrize("inplace", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("shapes", FUSED, ids=str)
def test_what_follows_is_computed_in_the_same_step(
    compiler: Compiler, shapes: tuple, epilogue: str, inplace: bool
) -> None:
    check_what_follows(compiler, "matmul.blocked", shapes, epilogue, inplace, 1e-5)


def test_the_output_does_not_overwrite_what_the_product_reads() -> None:
    model = harness.model_of(
        """<ir_version: 10, opset_import: ["": 21]> g (float[8,8] a, float[8,8] b) => (float[8,8] y) {
        c = MatMul(a, b) y = Add(c, a) }"""
    )
    row = harness.implementation("matmul.blocked", REGISTRY)
    group = harness.group_of(model, REGISTRY)
    assert row.rejection(group, harness.context()) is None
    assert row.inplace(group, harness.context()) == ()


def test_what_follows_a_product_with_a_vector_is_refused() -> None:
    model = harness.model_of(
        """<ir_version: 10, opset_import: ["": 21]> g (float[8,4] a, float[4] b, float[8] q) => (float[8] y) {
        c = MatMul(a, b) y = Add(c, q) }""",
        {"q": np.ones(8, np.float32)},
    )
    row = harness.implementation("matmul.blocked", REGISTRY)
    reason = row.rejection(harness.group_of(model, REGISTRY), harness.context())
    assert reason is not None
    assert "vector" in reason


@pytest.mark.parametrize(("lanes", "asked"), [(16, ["lines=3", "lines=3"]), (8, ["lines=1", "lines=0"])])
def test_tiles_ask_for_every_cache_line_that_a_step_reads(lanes: int, asked: list[str]) -> None:
    """Of the tiles of many and of few rows; with 16 registers the hardware asks for those of few rows."""
    (text, *_) = gemm.product_library("float32", lanes, tiles.WIDE if lanes == 16 else tiles.NARROW[2])
    assert re.findall(r"lines=\d", text) == asked
