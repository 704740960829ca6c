"""Integer products against NumPy."""

from typing import Any

import numpy as np
import pytest

from app.engine.registry import load
from app.kernels.cpu.compiler import Compiler
from tests import harness

REGISTRY = load()
Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 10, opset_import: ["": 21]> g '


def random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype.startswith("float"):
        return (rng.random(shape) * 0.02 + 0.01).astype(dtype)
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, shape, endpoint=True).astype(dtype)


def declared(values: dict[str, Array]) -> str:
    names = {"float32": "float"}
    return ", ".join(
        f"{names.get(v.dtype.name, v.dtype.name)}{list(v.shape) if v.ndim else ''} {n}"
        for n, v in values.items()
    )


@pytest.mark.parametrize("changing", [("a",), ("a", "b", "z", "w")], ids=["b fixed", "all change"])
@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")], ids=str)
def test_matmul_integer_equals_numpy(
    compiler: Compiler, types: tuple[str, str], changing: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, types[0], (3, 7, 500)), random(rng, types[1], (500, 21))
    z, w = random(rng, types[0], ()), random(rng, types[1], ())
    expected = (a.astype(np.int64) - z) @ (b.astype(np.int64) - w)
    values = {"a": a, "b": b, "z": z, "w": w}
    model = harness.model_of(
        f"{HEAD} ({declared(values)}) => (int32[3,7,21] y) {{ y = MatMulInteger(a, b, z, w) }}",
        {n: v for n, v in values.items() if n not in changing},
    )
    for threads in (1, 2):
        (found,) = harness.run_group(
            harness.implementation("matmul_integer.pairs", REGISTRY),
            harness.group_of(model, REGISTRY),
            {n: values[n] for n in changing},
            compiler,
            threads=threads,
        )
        np.testing.assert_array_equal(found, expected)


def test_matmul_integer_takes_a_zero_point_per_column(compiler: Compiler) -> None:
    rng = np.random.default_rng(0)
    a, b, w = random(rng, "uint8", (5, 9)), random(rng, "int8", (9, 6)), random(rng, "int8", (6,))
    z = np.uint8(3).reshape(())
    values = {"a": a, "b": b, "z": z, "w": w}
    model = harness.model_of(
        f"{HEAD} ({declared(values)}) => (int32[5,6] y) {{ y = MatMulInteger(a, b, z, w) }}",
        {n: v for n, v in values.items() if n != "a"},
    )
    (found,) = harness.run_group(
        harness.implementation("matmul_integer.pairs", REGISTRY),
        harness.group_of(model, REGISTRY),
        {"a": a},
        compiler,
    )
    np.testing.assert_array_equal(found, (a.astype(np.int64) - 3) @ (b.astype(np.int64) - w))


def test_conv_integer_pads_with_the_zero_point(compiler: Compiler) -> None:
    rng = np.random.default_rng(0)
    x, w = random(rng, "uint8", (2, 6, 9, 8)), random(rng, "uint8", (8, 3, 3, 3))
    z, u = random(rng, "uint8", ()), random(rng, "uint8", ())
    values = {"x": x, "w": w, "z": z, "u": u}
    wide = np.pad(x.astype(np.int64) - z, ((0, 0), (0, 0), (1, 1), (1, 1))).reshape(2, 2, 3, 11, 10)
    kernel = (w.astype(np.int64) - u).reshape(2, 4, 3, 3, 3)
    views = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (3, 4))[:, :, :, ::2]
    expected = np.einsum("ngcyxhw,gfchw->ngfyx", views, kernel).reshape(2, 8, 5, 8)
    model = harness.model_of(
        f"""{HEAD} ({declared(values)}) => (int32[2,8,5,8] y) {{
        y = ConvInteger <pads = [1, 1, 1, 1], strides = [2, 1], group = 2> (x, w, z, u) }}""",
        {n: v for n, v in values.items() if n not in ("x", "z")},
    )
    (found,) = harness.run_group(
        harness.implementation("conv_integer.pairs", REGISTRY),
        harness.group_of(model, REGISTRY),
        {"x": x, "z": z},
        compiler,
        threads=2,
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("per_channel", [False, True], ids=["one scale", "a scale per channel"])
@pytest.mark.parametrize("op", ["QLinearConv", "QLinearMatMul"])
def test_quantized_products_equal_the_dequantized_ones(
    compiler: Compiler, op: str, per_channel: bool
) -> None:
    rng = np.random.default_rng(0)
    is_conv = op == "QLinearConv"
    a = random(rng, "uint8", (2, 5, 6, 7) if is_conv else (14, 40))
    b = random(rng, "int8", (3, 5, 3, 3) if is_conv else (40, 3))
    scales = {"p": random(rng, "float32", ()), "q": random(rng, "float32", (3,) if per_channel else ())}
    values = {
        "a": a,
        "p": scales["p"],
        "i": random(rng, "uint8", ()),
        "b": b,
        "q": scales["q"],
        "j": np.zeros((3,) if per_channel else (), np.int8),
        "r": np.float32(0.9).reshape(()),
        "k": np.uint8(128).reshape(()),
    }
    if is_conv:
        values["c"] = rng.integers(-9999, 9999, 3).astype(np.int32)
    exact = (a.astype(np.float64) - values["i"]) * scales["p"]
    weights = b.astype(np.float64) * (scales["q"].reshape(-1, 1, 1, 1) if is_conv else scales["q"])
    if is_conv:
        views = np.lib.stride_tricks.sliding_window_view(exact, (3, 3), (2, 3))
        exact = np.einsum("ncyxhw,fchw->nfyx", views, weights)
        exact += (values["c"] * scales["p"] * scales["q"]).reshape(-1, 1, 1)
    else:
        exact = exact @ weights
    expected = np.clip(np.rint(exact / values["r"]) + 128, 0, 255)
    model = harness.model_of(
        f"{HEAD} ({declared(values)}) => (uint8{list(expected.shape)} y) {{ y = {op}({', '.join(values)}) }}",
        {n: v for n, v in values.items() if n != "a"},
    )
    row = "qlinear_conv.pairs" if is_conv else "qlinear_matmul.pairs"
    (found,) = harness.run_group(
        harness.implementation(row, REGISTRY),
        harness.group_of(model, REGISTRY),
        {"a": a},
        compiler,
        threads=2,
    )
    difference = np.abs(found.astype(np.int64) - expected)
    assert difference.max() <= 1  # float32 may round a half the other way
    assert (difference > 0).mean() < 0.01
    assert len(np.unique(found)) > 10
