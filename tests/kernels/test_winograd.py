"""Winograd convolutions against a direct sum in double precision."""

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from app.engine.backends.cpu import winograd as rows
from app.engine.core.group import Group
from app.engine.core.registry import load
from app.engine.operators import conv_geometry
from app.kernels.cpu import winograd_transforms
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

REGISTRY = load()
Array = np.ndarray[Any, Any]
SAME = (1, 1, 1, 1)
WIDE = (2, 2, 2, 2)
CONV = "Conv <kernel_shape = [{taps}, {taps}], pads = [{pads}]> (x, w, b)"
# batch, channels of the input, of the output, height, width, pads; a single block of channels, odd
# numbers of blocks, channels that fill none, tiles that stick out, blocks of tiles.
CASES = [
    (1, 8, 8, 4, 4, SAME),
    (1, 3, 5, 1, 1, SAME),
    (2, 13, 24, 7, 9, (1, 0, 0, 1)),
    (1, 16, 40, 13, 6, (0, 0, 0, 0)),
    (3, 33, 17, 5, 3, (0, 1, 1, 0)),
    (1, 24, 32, 41, 38, SAME),
    (1, 130, 64, 14, 14, SAME),
]


# The same for filters of 5 x 5.
LARGER = [
    (1, 8, 16, 14, 14, WIDE),
    (1, 3, 5, 1, 1, WIDE),
    (2, 13, 24, 7, 9, (2, 0, 1, 2)),
    (1, 16, 40, 13, 6, (0, 0, 0, 0)),
    (3, 33, 17, 5, 6, (1, 2, 2, 0)),
]


def convolve(x: Array, w: Array, pads: tuple[int, ...]) -> Array:
    """The definition, in float64."""
    taps = w.shape[-1]
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    height, width = (d - taps + 1 for d in wide.shape[2:])
    y = np.zeros((x.shape[0], w.shape[0], height, width))
    for i, j in itertools.product(range(taps), range(taps)):
        part = wide[:, :, i : i + height, j : j + width]
        y += np.einsum("nchw,fc->nfhw", part, w[:, :, i, j].astype(np.float64))
    return y


def operands(case: tuple[Any, ...], taps: int = 3) -> tuple[dict[str, Array], Array]:
    """x, weights and bias, and the output by definition; its elements are about one."""
    n, channels, outputs, height, width, pads = case
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, channels, height, width), np.float32)
    w = rng.standard_normal((outputs, channels, taps, taps), np.float32) / np.float32(taps * channels**0.5)
    b = rng.standard_normal(outputs, np.float32)
    return {"x": x, "w": w, "b": b}, convolve(x, w, pads) + b.reshape(-1, 1, 1)


def group(
    values: dict[str, Array], shape: tuple[int, ...], nodes: str, changing: tuple[str, ...] = ("x",)
) -> Group:
    given = ", ".join(f"float[{','.join(map(str, v.shape))}] {n}" for n, v in values.items())
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({given}) => (float[{",".join(map(str, shape))}] y) {{ {nodes} }}"""
    constants = {n: v for n, v in values.items() if n not in changing}
    return harness.group_of(harness.model_of(text, constants), REGISTRY)


def conv(pads: tuple[int, ...] = SAME, taps: int = 3) -> str:
    return CONV.format(taps=taps, pads=", ".join(map(str, pads)))


def relative(found: Array, expected: Array) -> float:
    assert np.isfinite(found).all()
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (2, 5)])
def test_the_matrices_compute_a_convolution(m: int, r: int) -> None:
    b, g, a = winograd_transforms.matrices(m, r)
    rng = np.random.default_rng(0)
    d, taps = rng.standard_normal(m + r - 1), rng.standard_normal(r)
    np.testing.assert_allclose(a @ ((g @ taps) * (b @ d)), np.correlate(d, taps), atol=1e-12)
    # All that transforms of activations multiply by is exact.
    assert all(Fraction(float(np.float32(x))) == Fraction(float(x)) for x in (*b.ravel(), *a.ravel()))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("m", [2, 4])
def test_winograd_equals_the_definition(
    compiler: Compiler, m: int, case: tuple[Any, ...], threads: int
) -> None:
    values, expected = operands(case)
    own = group(values, expected.shape, f"y = {conv(case[-1])}")
    row = harness.implementation(f"conv.winograd_f{m}", REGISTRY)
    (found,) = harness.run_group(row, own, {"x": values["x"]}, compiler, threads=threads)
    assert relative(found, expected) < {2: 5e-7, 4: 2e-6}[m]


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("size", [7, 14, 28, 56, 112])
def test_threads_do_not_share_some_blocks_of_several(size: int, threads: int) -> None:
    """All share the only one, or each has as many as any other."""
    values = {
        "x": np.zeros((1, 64, size, size), np.float32),
        "w": np.ones((1024, 64, 3, 3), np.float32),
        "b": np.zeros(1024, np.float32),
    }
    own = group(values, (1, 1024, size, size), f"y = {conv()}")
    known = harness.context(threads)
    window = conv_geometry.of_conv(own)
    single, found = (rows.tiling_of(window, rows.Form(4), replace(known, threads=n)) for n in (1, threads))
    assert found.parts == 1 or found.parts % threads == 0
    assert found.parts >= single.parts / 1.5


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("case", LARGER, ids=str)
def test_larger_filters(compiler: Compiler, case: tuple[Any, ...], lanes: int) -> None:
    values, expected = operands(case, taps=5)
    own = group(values, expected.shape, f"y = {conv(case[-1], taps=5)}")
    row = harness.implementation("conv.winograd_f2_5x5", REGISTRY)
    assert row.rejection(own, harness.context(lanes=lanes)) is None
    (found,) = harness.run_group(row, own, {"x": values["x"]}, compiler, threads=2, lanes=lanes)
    assert relative(found, expected) < 3e-6


@pytest.mark.parametrize("case", [CASES[i] for i in (0, 2, 3, 5)], ids=str)
def test_winograd_is_the_same_for_wider_registers(compiler: Compiler, case: tuple[Any, ...]) -> None:
    values, expected = operands(case)
    own = group(values, expected.shape, f"y = {conv(case[-1])}")
    row = harness.implementation("conv.winograd_f4", REGISTRY)
    (found,) = harness.run_group(row, own, {"x": values["x"]}, compiler, lanes=16, threads=2)
    assert relative(found, expected) < 2e-6


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("m", [2, 4])
def test_a_residual_is_added_before_the_limits(compiler: Compiler, m: int, inplace: bool) -> None:
    values, expected = operands((2, 13, 24, 7, 9, SAME))
    values["r"] = np.random.default_rng(1).standard_normal(expected.shape, np.float32)
    own = group(values, expected.shape, f"c = {conv()} s = Add(c, r) y = Relu(s)", ("x", "r"))
    row = harness.implementation(f"conv.winograd_f{m}", REGISTRY)
    pairs = row.inplace(own, harness.context())
    assert [(i.name, o.name) for i, o in pairs] == [("r", "y")]
    given = {n: values[n] for n in ("x", "r")}
    (found,) = harness.run_group(row, own, given, compiler, alias=pairs if inplace else ())
    assert relative(found, np.maximum(expected + values["r"], 0)) < 2e-6


def test_a_recipe_follows_on_what_was_stored(compiler: Compiler) -> None:
    values, expected = operands((2, 16, 20, 9, 22, SAME))
    rng = np.random.default_rng(1)
    values["r"], values["p"] = rng.standard_normal((2, *expected.shape), np.float32)
    values["q"] = rng.standard_normal((20, 1, 1), np.float32)
    values["e"] = rng.standard_normal((2, 20, 1, 1), np.float32)
    nodes = f"c = {conv()} s = Add(c, r) a = Relu(s) f = Mul(a, q) h = Mul(f, e) y = Mul(h, p)"
    own = group(values, expected.shape, nodes, ("x", "r", "p", "e"))
    row = harness.implementation("conv.winograd_f4", REGISTRY)
    pairs = row.inplace(own, harness.context())
    assert [(i.name, o.name) for i, o in pairs] == [("r", "y")]
    given = {n: values[n] for n in ("x", "r", "p", "e")}
    for threads in (1, 2):
        (found,) = harness.run_group(row, own, given, compiler, alias=pairs, threads=threads)
        wanted = np.maximum(expected + values["r"], 0) * values["q"] * values["e"] * values["p"]
        assert relative(found, wanted) < 2e-6


# Channels that are a multiple of four: a single block, odd numbers of blocks, channels and outputs that fill
# none, tiles that stick out, and more of them than the largest register tile has rows.
IN_FIXED_POINT = [
    (1, 8, 8, 4, 4, SAME),
    (1, 4, 5, 1, 1, SAME),
    (2, 12, 24, 7, 9, (1, 0, 0, 1)),
    (1, 16, 40, 13, 6, (0, 0, 0, 0)),
    (3, 36, 17, 5, 3, (0, 1, 1, 0)),
    (1, 132, 112, 14, 14, SAME),
]


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in fixed point of layers too small for it."""
    monkeypatch.setattr(rows, "LEAST_BYTES", 0)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("inplace", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("case", IN_FIXED_POINT, ids=str)
@pytest.mark.parametrize("m", [2, 4])
def test_weights_in_fixed_point(
    compiler: Compiler, m: int, case: tuple[Any, ...], inplace: bool, lanes: int
) -> None:
    values, expected = operands(case)
    # Columns are as precise whatever their scale; one is zero.
    scales = 10.0 ** np.random.default_rng(2).integers(-3, 3, case[2]).astype(np.float32)
    scales[-1] = 0
    for name, shape in (("w", (-1, 1, 1, 1)), ("b", (-1,))):
        values[name] *= scales.reshape(shape)
    expected *= scales.reshape(-1, 1, 1)
    values["r"] = np.random.default_rng(1).standard_normal(expected.shape, np.float32)
    values["r"] *= scales.reshape(-1, 1, 1)
    own = group(values, expected.shape, f"c = {conv(case[-1])} s = Add(c, r) y = Relu(s)", ("x", "r"))
    row = harness.implementation(f"conv.winograd_f{m}_fixed_point", REGISTRY)
    pairs = row.inplace(own, harness.context(lanes=lanes))
    given = {n: values[n] for n in ("x", "r")}
    for threads in (1, 2):
        (found,) = harness.run_group(
            row, own, given, compiler, threads=threads, lanes=lanes, alias=pairs if inplace else ()
        )
        expected_ = np.maximum(expected + values["r"], 0)
        assert np.all(found[:, -1] == 0)
        live = scales > 0
        assert (
            relative(found[:, live] / scales[live, None, None], expected_[:, live] / scales[live, None, None])
            < {2: 5e-7, 4: 2e-6}[m]
        )


@pytest.mark.usefixtures("any_size")
def test_the_error_in_fixed_point_is_that_of_the_kernel(compiler: Compiler) -> None:
    values, expected = operands((1, 64, 32, 16, 16, SAME))
    values["b"][:] = 0
    own = group(values, expected.shape, f"y = {conv()}")
    exact = convolve(values["x"], values["w"], SAME)
    errors = {}
    for form in (rows.Form(2, fixed=True), rows.Form(4, fixed=True), rows.Form(4)):
        row = harness.implementation(form.name, REGISTRY)
        (found,) = harness.run_group(row, own, {"x": values["x"]}, compiler)
        errors[form] = relative(found, exact)
        assert 0.5 < rows.error(form, own, harness.context()) / errors[form] < 2
    assert errors[rows.Form(4, fixed=True)] < 1.2 * errors[rows.Form(4)]


def test_weights_in_fixed_point_are_refused_where_they_save_nothing_or_lose_precision() -> None:
    row = harness.implementation("conv.winograd_f2_fixed_point", REGISTRY)

    def rejection(case: tuple[Any, ...], weight: float | None = None, **facts: Any) -> str:
        values, expected = operands(case)
        if weight is not None:
            values["w"][1, 3] = weight
        own = group(values, expected.shape, f"y = {conv()}")
        return row.rejection(own, replace(harness.context(), **facts)) or ""

    large = (1, 192, 128, 8, 8, SAME)
    assert rejection(large) == ""
    assert "fewer multiplications" in rejection(large, fast_algorithms=False)
    assert "relative rms error" in rejection(large, tolerance=1e-7)
    assert "multiples of 4" in rejection((1, 190, 128, 8, 8, SAME))
    assert "stay in a cache" in rejection((1, 64, 64, 8, 8, SAME))
    assert "81 tiles, more than 64" in rejection((1, 192, 128, 18, 18, SAME))
    # The others of this output would be lost, though little of the sum.
    assert "on these weights exceeds" in rejection(large, weight=1e6)
    assert "not all below" in rejection(large, weight=np.nan)


REFUSED = [
    ("y = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, b)", (8, 8), "strides"),
    ("y = Conv <kernel_shape = [3, 3], dilations = [2, 2], pads = [2, 2, 2, 2]> (x, w, b)", (8, 8), "taps"),
    ("y = Conv <kernel_shape = [3, 3], pads = [2, 1, 1, 1]> (x, w, b)", (8, 8), "pads 2 and 1"),
    ("y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 2> (x, w, b)", (8, 4), "2 groups"),
]


@pytest.mark.parametrize(("node", "channels", "reason"), REFUSED)
def test_other_convolutions_are_refused(node: str, channels: tuple[int, int], reason: str) -> None:
    values = {
        "x": np.zeros((1, 8, 10, 10), np.float32),
        "w": np.zeros((*channels, 3, 3), np.float32),
        "b": np.zeros(8, np.float32),
    }
    shape = {"strides": (1, 8, 5, 5), "pads 2 and 1": (1, 8, 11, 10)}.get(reason, (1, 8, 10, 10))
    row = harness.implementation("conv.winograd_f4", REGISTRY)
    assert reason in (row.rejection(group(values, shape, node), harness.context()) or "")
    changing = group(values, (1, 8, 10, 10), f"y = {conv()}", ("x", "w", "b"))
    assert "weights change" in (row.rejection(changing, harness.context()) or "")


def test_the_error_is_that_of_the_kernel(compiler: Compiler) -> None:
    case = (1, 64, 32, 16, 16, SAME)
    values, expected = operands(case)
    values["b"][:] = 0
    own = group(values, expected.shape, f"y = {conv()}")
    exact = convolve(values["x"], values["w"], SAME)
    for m in (2, 4):
        row = harness.implementation(f"conv.winograd_f{m}", REGISTRY)
        (found,) = harness.run_group(row, own, {"x": values["x"]}, compiler)
        assert 0.5 < rows.error(rows.Form(m), own, harness.context()) / relative(found, exact) < 2


def test_the_error_of_larger_filters_is_that_of_the_kernel(compiler: Compiler) -> None:
    values, expected = operands((1, 32, 32, 16, 16, WIDE), taps=5)
    values["b"][:] = 0
    own = group(values, expected.shape, f"y = {conv(WIDE, taps=5)}")
    exact = convolve(values["x"], values["w"], WIDE)
    row = harness.implementation("conv.winograd_f2_5x5", REGISTRY)
    (found,) = harness.run_group(row, own, {"x": values["x"]}, compiler)
    assert 0.5 < rows.error(rows.Form(2, taps=5), own, harness.context()) / relative(found, exact) < 2


def test_a_layer_whose_error_is_too_large_is_refused() -> None:
    values, expected = operands((1, 64, 8, 8, 8, SAME))
    own = group(values, expected.shape, f"y = {conv()}")
    tight = replace(harness.context(), tolerance=3e-6)
    refusals = {
        m: harness.implementation(f"conv.winograd_f{m}", REGISTRY).rejection(own, tight) for m in (2, 4)
    }
    assert refusals[2] is None
    assert "relative rms error" in (refusals[4] or "")
    exact = replace(harness.context(), fast_algorithms=False)
    assert "fewer multiplications" in (
        harness.implementation("conv.winograd_f2", REGISTRY).rejection(own, exact) or ""
    )
    values["w"][0, 0, 0, 0] = np.inf
    own = group(values, expected.shape, f"y = {conv()}")
    reason = harness.implementation("conv.winograd_f2", REGISTRY).rejection(own, harness.context())
    assert "not all below" in (reason or "")


def test_few_channels_are_predicted_to_be_faster_by_the_definition() -> None:
    def cost(name: str, channels: int) -> float:
        values, expected = operands((1, channels, channels, 56, 56, SAME))
        own = group(values, expected.shape, f"y = {conv()}")
        return harness.implementation(name, REGISTRY).cost(own, harness.context(lanes=8))

    assert cost("conv.implicit_gemm", 2) < min(cost("conv.winograd_f4", 2), cost("conv.winograd_f2", 2))
    assert cost("conv.winograd_f4", 64) < cost("conv.winograd_f2", 64) < cost("conv.blocked", 64)
