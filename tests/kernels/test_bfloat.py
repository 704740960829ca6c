"""Products of bfloat16 against sums in double precision of the rounded operands: an exact model of them.

This machine may lack the instructions: kernels are forced to compute the same by shifts.
"""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.engine.backends.cpu import winograd as winograd_rows
from app.engine.core.registry import PlanningContext
from app.engine.types.target import host
from app.kernels.cpu import winograd_transforms
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels import test_nchwc_conv as conv_cases
from tests.kernels import test_winograd as winograd_cases
from tests.kernels.test_conv import attributes, close, convolve, run
from tests.kernels.test_matmul import run as product

Array = np.ndarray[Any, Any]


def in_bf16(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Jobs in bf16 for registers of so many float32."""
    monkeypatch.setattr(
        harness,
        "context",
        lambda threads=1, lanes=0: harness.bf16(
            PlanningContext(replace(host(), vector_lanes=lanes or width), threads)
        ),
    )


@pytest.fixture(autouse=True)
def narrow_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers of 8 float32, but for tests that ask for others."""
    in_bf16(monkeypatch, 8)


def rounded(x: Array) -> Array:
    """The nearest bfloat16, in float64."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def operands(case: tuple[Any, ...]) -> tuple[dict[str, Array], Array]:
    """x, weights and bias, and the output by definition for rounded operands."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in case[:2])
    b = rng.standard_normal(w.shape[0]).astype(np.float32)
    return {"x": x, "w": w, "b": b}, convolve(rounded(x), rounded(w), *case[2:]) + b.reshape(-1, 1, 1)


def check(
    row: str,
    case: tuple[Any, ...],
    name: str,
    compiler: Compiler,
    *,
    threads: int = 1,
    inplace: bool = False,
) -> None:
    values, y = operands(case)
    nodes, extra = conv_cases.EPILOGUES[name]
    rng = np.random.default_rng(1)
    values.update({n: rng.standard_normal(y.shape).astype(np.float32) for n in extra})
    expected = conv_cases.expected_of(name, y, values)
    found = run(
        compiler, row, nodes.format(attributes(case)), values, y.shape,
        changing=("x", *extra), threads=threads, inplace=inplace,
    )  # fmt: skip
    close(found, expected, int(np.prod(case[1][1:])))


@pytest.mark.parametrize("case", conv_cases.CASES, ids=str)
def test_conv(case: tuple[Any, ...], compiler: Compiler) -> None:
    check("conv.blocked_bf16", case, "none", compiler, threads=2)


@pytest.mark.parametrize("case", conv_cases.STEMS, ids=str)
def test_stem(case: tuple[Any, ...], compiler: Compiler) -> None:
    check("conv.blocked_stem_bf16", case, "relu", compiler)


@pytest.mark.parametrize("name", ["residual", "silu"])
def test_epilogues(name: str, compiler: Compiler) -> None:
    case = conv_cases.CASES[5]
    check("conv.blocked_bf16", case, name, compiler, threads=2, inplace=name == "residual")


PRODUCTS = [
    ((7,), (7, 5), "MatMul", "none"),
    ((6, 9), (9,), "MatMul", "none"),
    ((1, 64), (64, 1000), "Gemm", "relu"),
    ((13, 31), (31, 50), "Gemm <transB = 1, alpha = 0.5>", "none"),
    ((200, 17), (17, 33), "MatMul", "residual"),
    ((5, 1900), (1900, 70), "MatMul", "none"),
    ((2, 3, 7, 11), (11, 19), "MatMul", "gelu"),
    ((4, 9, 8), (4, 8, 17), "MatMul", "none"),
]
FOLLOWING = {
    "none": ("y = {}(a, b)", lambda y, _r: y),
    "relu": ("p = {}(a, b) y = Relu(p)", lambda y, _r: np.maximum(y, 0)),
    "residual": ("p = {}(a, b) y = Add(p, r)", lambda y, r: y + r),
    "gelu": ("p = {}(a, b) s = Sigmoid(p) y = Mul(p, s)", lambda y, _r: y / (1 + np.exp(-y))),
}


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products(case: tuple[Any, ...], compiler: Compiler) -> None:
    check_product(case, "blocked_bf16", compiler)


def check_product(case: tuple[Any, ...], row: str, compiler: Compiler) -> None:
    *shapes, op, follows = case
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    y = np.asarray(rounded(a) @ rounded(b)) * (0.5 if "alpha" in op else 1.0)
    r = rng.standard_normal(y.shape).astype(np.float32)
    nodes, oracle = FOLLOWING[follows]
    values = {"a": a, "b": np.ascontiguousarray(b.T) if "transB" in op else b}
    values |= {"r": r} if follows == "residual" else {}
    for threads in (1, 2):
        found = product(
            compiler, f"{op.split()[0].lower()}.{row}", nodes.format(op), values, y.shape,
            fixed=("b",), threads=threads, inplace=follows == "residual",
        )  # fmt: skip
        close(found, oracle(y, r), shapes[0][-1])


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("case", [winograd_cases.CASES[i] for i in (0, 4, 5, 6)], ids=str)
def test_winograd(case: tuple[Any, ...], m: int, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd_rows, "BF16_ERROR", 1.0)
    n, channels, outputs, *rest = case
    case = (n, channels + channels % 2, outputs, *rest)
    values, _ = winograd_cases.operands(case)
    exact = winograd_model(values["x"], values["w"], m, case[-1]) + values["b"].reshape(-1, 1, 1)
    r = np.random.default_rng(1).standard_normal(exact.shape, np.float32)
    node = f"c = {winograd_cases.conv(case[-1])} d = Add(c, r) y = Relu(d)"
    own = winograd_cases.group({**values, "r": r}, exact.shape, node, ("x", "r"))
    row = harness.implementation(f"conv.winograd_f{m}_bf16", winograd_cases.REGISTRY)
    pairs = row.inplace(own, harness.context())
    (found,) = harness.run_group(row, own, {"x": values["x"], "r": r}, compiler, threads=2, alias=pairs[:1])
    # A sum that is halfway between two bfloat16 may be rounded to the other by an error of float32.
    harness.assert_close(found, np.maximum(exact + r, 0).astype(np.float32), 2e-3)
    assert winograd_cases.relative(found, np.maximum(exact + r, 0)) < 2e-4


def winograd_model(x: Array, w: Array, m: int, pads: tuple[int, ...]) -> Array:
    """The algorithm by its matrices, in float64 but for the operands of its products."""
    b, g, a = winograd_transforms.matrices(m)
    height, width = (d + p + q - 2 for d, p, q in zip(x.shape[2:], pads[:2], pads[2:]))
    high, wide = -(-height // m), -(-width // m)
    whole = np.zeros((*x.shape[:2], high * m + 2, wide * m + 2))
    whole[:, :, pads[0] : pads[0] + x.shape[2], pads[1] : pads[1] + x.shape[3]] = x
    y = np.zeros((x.shape[0], w.shape[0], high * m, wide * m))
    u = rounded(np.einsum("ia,ocab,jb->ijoc", g, w, g).astype(np.float32))
    for i in range(high):
        for j in range(wide):
            tile = whole[:, :, i * m : i * m + m + 2, j * m : j * m + m + 2]
            v = rounded(np.einsum("ia,ncab,jb->ijnc", b, tile, b).astype(np.float32))
            products = np.einsum("ijoc,ijnc->ijno", u, v)
            y[:, :, i * m : i * m + m, j * m : j * m + m] = np.einsum("ai,ijno,bj->noab", a, products, a)
    return y[:, :, :height, :width]


def test_winograd_is_taken_where_its_error_is_small(compiler: Compiler) -> None:
    values, expected = winograd_cases.operands((1, 64, 32, 16, 16, (1, 1, 1, 1)))
    values["b"][:] = 0
    own = winograd_cases.group(values, expected.shape, f"y = {winograd_cases.conv()}")
    rows = {m: harness.implementation(f"conv.winograd_f{m}_bf16", winograd_cases.REGISTRY) for m in (2, 4)}
    assert rows[2].rejection(own, harness.context()) is None
    assert "exceeds 5.0e-03" in (rows[4].rejection(own, harness.context()) or "")
    (found,) = harness.run_group(rows[2], own, {"x": values["x"]}, compiler)
    exact = winograd_cases.convolve(values["x"], values["w"], (1, 1, 1, 1))
    error = rows[2].error(own, harness.context())
    assert error is not None
    assert 0.5 < error / winograd_cases.relative(found, exact) < 2


def test_wider_registers(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM splits what is too wide for this machine, which takes long: a case of each kernel."""
    in_bf16(monkeypatch, 16)
    check("conv.blocked_bf16", conv_cases.CASES[2], "none", compiler, threads=2)
    check("conv.blocked_bf16", conv_cases.CASES[5], "residual", compiler, inplace=True)
    check("conv.blocked_stem_bf16", conv_cases.STEMS[0], "none", compiler)
    test_products(PRODUCTS[3], compiler)
    test_winograd(winograd_cases.CASES[5], 2, compiler, monkeypatch)
