"""Matrix products and convolutions of CUDA in the simulator, against float64."""

from dataclasses import replace

import numpy as np
import pytest

from app.kernels.cuda.conv import Conv, conv, packed_weights
from app.kernels.cuda.conv_transpose import ConvTranspose, conv_transpose
from app.kernels.cuda.conv_transpose import packed_weights as packed_transposed
from app.kernels.cuda.epilogue import ACTIVATIONS, Epilogue
from app.kernels.cuda.gemm import dtype_of, gemm
from app.kernels.cuda.gemv import gemv
from app.kernels.cuda.kernel import KernelError
from app.kernels.cuda.operands import reciprocal
from app.kernels.cuda.product import Product, reduction
from tests.kernels.cuda.oracle import (
    PRECISION_TOLERANCE,
    TOLERANCE,
    decoded,
    encoded,
    error,
    finished,
    poisoned,
)
from tests.kernels.cuda.simulator import simulate

pytestmark = pytest.mark.simulated

RELU = ("relu",)


def check_product(
    precision: str,
    tile: str,
    shape: tuple[int, int, int],
    after: Epilogue,
    splits: int = 1,
    batch: int = 1,
    columns: bool = False,
) -> None:
    """Rows of every operand are longer than they need be, and NaN there."""
    m, n, k = shape
    rng = np.random.default_rng(m * n)
    dtype = dtype_of(precision)
    aligned = 8 if dtype != "float32" else 4
    columns = columns or precision == "f32"
    b_shape = (k, n) if columns else (n, k)
    a_row, b_row = ((-(-size // aligned) + 1) * aligned for size in (k, b_shape[1]))
    y_row = n + 8
    a, b = poisoned(dtype, batch, m, a_row), poisoned(dtype, batch, b_shape[0], b_row)
    a[..., :k] = encoded(dtype, rng.standard_normal((batch, m, k)))
    b[..., : b_shape[1]] = encoded(dtype, rng.standard_normal((batch, *b_shape)))
    y = poisoned(after.dtype, batch, m, y_row)
    residual = rng.standard_normal((batch, m, n))
    if after.residual:  # y's own memory
        y[..., :n] = encoded(after.dtype, residual)
        residual = decoded(after.dtype, y[..., :n])
    bias = rng.standard_normal(n).astype(np.float32)
    product = Product(
        m, n, k, a_row, b_row, y_row, y_row, batch, m * a_row, b_shape[0] * b_row, m * y_row, 0, m * y_row
    )
    launches = gemm(product, precision, after, tile, splits, columns=columns)
    assert len(launches.steps) == (1 if splits == 1 else 2)
    simulate(launches, {"a": a, "b": b, "y": y, "bias": bias, "residual": y}, seed=m)
    right = decoded(dtype, b[..., : b_shape[1]])
    sums = decoded(dtype, a[..., :k]) @ (right if columns else right.transpose(0, 2, 1))
    expected = finished(sums, after, bias, residual)
    limit = PRECISION_TOLERANCE["bf16" if after.dtype == "bfloat16" else precision]
    assert error(decoded(after.dtype, y[..., :n]), expected) < limit
    assert np.isnan(decoded(after.dtype, y[..., n:])).all()


@pytest.mark.parametrize(
    ("precision", "tile", "shape", "after", "splits", "batch"),
    [
        ("bf16", "64x64", (71, 40, 72), Epilogue("bfloat16", 1.0, True, "before", RELU), 1, 1),
        ("fp16", "32x64", (33, 40, 136), Epilogue("float16", 0.5, True, "after", ("silu",)), 2, 1),
        ("bf16", "32x64", (33, 30, 61), Epilogue("float32", bias=True), 1, 2),
        ("bf16", "64x64wg", (71, 40, 72), Epilogue("bfloat16", 1.0, True, "before", RELU), 1, 1),
        ("fp16", "64x128wg", (33, 40, 136), Epilogue("float16", 0.5, True, "after", ("silu",)), 2, 1),
        ("bf16", "64x64wg", (33, 30, 61), Epilogue("float32", bias=True), 1, 2),
        ("tf32", "32x64", (35, 63, 38), Epilogue("float32", 1.0, True, "before", ("gelu",)), 1, 1),
        ("3xtf32", "32x64", (20, 66, 36), Epilogue("float32", bias=True), 1, 1),
        ("f32", "32x128", (37, 71, 37), Epilogue("float32", 1.0, True, "before", RELU), 1, 1),
        ("f32", "64x64", (20, 30, 40), Epilogue("bfloat16", bias=True), 2, 1),
    ],
)
def test_products_of_ragged_sizes(
    precision: str, tile: str, shape: tuple[int, int, int], after: Epilogue, splits: int, batch: int
) -> None:
    check_product(precision, tile, shape, after, splits, batch)


def summed(precision: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a[m, k] times b[n, k], as a kernel computes it."""
    dtype, (m, k), n = dtype_of(precision), a.shape, len(b)
    y = poisoned(dtype, m, n)
    product = Product(m, n, k, k, k, n, n)
    launches = gemm(product, precision, Epilogue(dtype), "32x64")
    simulate(launches, {"a": encoded(dtype, a), "b": encoded(dtype, b), "y": y}, seed=1)
    return decoded(dtype, y)


@pytest.mark.parametrize("precision", ["3xtf32", "tf32"])
def test_infinities_and_nan_in_an_operand_stay_where_they_belong(precision: str) -> None:
    """As float32 has it: infinite or not a number is what a product of such an operand makes so, and no more."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((16, 32)).astype(np.float32), rng.standard_normal((24, 32)).astype(np.float32)
    b[:, 8:] = np.round(b[:, 8:] * 4) / 4 + 0.125  # nothing is left of these beside their tf32 part
    largest = np.finfo(np.float32).max
    a[1, 3], a[2, 9], a[3, [4, 20]], a[4, 5], a[5, 9] = np.inf, -np.inf, (np.inf, np.inf), np.nan, largest
    b[1, 3], b[2, 9], b[3, 3], b[4, 6], b[5, 9], b[6] = np.inf, -np.inf, 0, np.nan, 0, 0
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.T.astype(np.float64)
    found = summed(precision, a, b)
    decided = np.isfinite(expected) == (np.abs(expected) < largest / 8)  # not where float32 itself overflows,
    with np.errstate(invalid="ignore"):  # be it a product that meets an infinity of the other sign
        products = np.abs(a.astype(np.float64))[:, None] * np.abs(b.astype(np.float64))
    decided &= ~(np.isfinite(products) & (products > largest)).any(axis=-1)
    if precision == "tf32":
        decided[5] = False  # what rounds to an infinity
    assert decided.sum() > 300
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(found)[decided], kind(expected)[decided])
    near = decided & np.isfinite(expected) & (np.abs(expected) < 1e3)
    assert error(found[near], expected[near]) < PRECISION_TOLERANCE[precision]


@pytest.mark.parametrize(
    ("precision", "k"), [("3xtf32", 4096), ("tf32", 4096), ("bf16", 4096), ("fp16", 4096), ("3xtf32", 520)]
)
def test_long_sums_of_one_sign_keep_their_precision_where_tensor_cores_truncate(
    precision: str, k: int
) -> None:
    rng = np.random.default_rng(k)
    dtype = dtype_of(precision)
    a, b = (decoded(dtype, encoded(dtype, rng.uniform(0.5, 1, (16, k)))) for _ in range(2))
    assert error(summed(precision, a, b), a @ b.T) < PRECISION_TOLERANCE[precision]


@pytest.mark.parametrize(
    ("precision", "tile", "shape"), [("bf16", "64x64", (20, 70, 81)), ("3xtf32", "32x64", (20, 66, 38))]
)
def test_right_operands_by_columns(precision: str, tile: str, shape: tuple[int, int, int]) -> None:
    check_product(precision, tile, shape, Epilogue(dtype_of(precision)), columns=True)


@pytest.mark.parametrize(
    ("precision", "tile", "shape"),
    [
        ("bf16", "128x256wg", (80, 264, 328)),
        ("bf16", "128x256", (50, 136, 64)),
        ("bf16", "128x64", (130, 40, 72)),
        ("f32", "128x128", (100, 40, 8)),
    ],
)
def test_large_tiles(precision: str, tile: str, shape: tuple[int, int, int]) -> None:
    check_product(precision, tile, shape, Epilogue(dtype_of(precision), bias=True, activation=RELU))


def reference(x: np.ndarray, w: np.ndarray, c: Conv) -> np.ndarray:
    """y[n, ho, wo, co] of x[n, h, w, ci] and w[co, ci / groups, kh, kw]."""
    ho, wo = c.out
    top, left, bottom, right = c.pads
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    y = np.zeros((c.n, ho, wo, c.co))
    ci, co = c.ci // c.groups, c.co // c.groups
    for g in range(c.groups):
        for i in range(c.kernel[0]):
            for j in range(c.kernel[1]):
                a, b = i * c.dilations[0], j * c.dilations[1]
                window = x[
                    :,
                    a : a + (ho - 1) * c.strides[0] + 1 : c.strides[0],
                    b : b + (wo - 1) * c.strides[1] + 1 : c.strides[1],
                    g * ci : (g + 1) * ci,
                ]
                y[..., g * co : (g + 1) * co] += window @ w[g * co : (g + 1) * co, :, i, j].T
    return y


CONVS = [
    ("bf16", "64x64wg", Conv(1, 7, 9, 16, 40, (3, 3), (2, 2), (1, 1, 1, 1)), "before", 1),
    ("bf16", "32x64", Conv(1, 7, 9, 16, 40, (3, 3), (2, 2), (1, 1, 1, 1)), "before", 1),
    # Three channels, at pixels of 16 bytes whose rest is NaN; asymmetric in every way.
    ("fp16", "32x64", Conv(2, 6, 5, 3, 24, (3, 2), (1, 2), (0, 1, 2, 1), (2, 1), x_pixel=8), "", 1),
    ("bf16", "32x64", Conv(1, 5, 6, 32, 18, (3, 3), (1, 1), (1, 1, 1, 1), groups=2, y_pixel=24), "", 2),
    ("tf32", "32x64", Conv(1, 5, 6, 12, 22, (1, 1)), "", 1),
    ("f32", "32x128", Conv(1, 5, 6, 8, 22, (3, 3), (1, 1), (1, 1, 1, 1), groups=2), "before", 1),
    ("f32", "32x128", Conv(1, 6, 6, 5, 6, (1, 1), (2, 2), x_pixel=8), "", 1),
    ("bf16", "32x64", Conv(1, 4, 5, 6, 8, (3, 3), pads=(1, 1, 1, 1), groups=2, x_pixel=7), "", 1),
]


@pytest.mark.parametrize(("precision", "tile", "c", "residual", "splits"), CONVS)
def test_convolutions(precision: str, tile: str, c: Conv, residual: str, splits: int) -> None:
    rng = np.random.default_rng(c.co)
    dtype = dtype_of(precision)
    after = Epilogue(dtype, bias=True, residual=residual, activation=("clip", -1.0, 3.0))
    x = poisoned(dtype, c.n, c.h, c.w, c.x_pixel or c.ci)
    x[..., : c.ci] = encoded(dtype, rng.standard_normal((c.n, c.h, c.w, c.ci)))
    w = encoded(dtype, rng.standard_normal((c.co, c.ci // c.groups, *c.kernel)))
    packed = encoded(dtype, packed_weights(np.float32(decoded(dtype, w)), c.groups, precision))
    bias = rng.standard_normal(c.co).astype(np.float32)
    y = poisoned(dtype, c.n, *c.out, c.y_pixel or c.co)
    r = encoded(dtype, rng.standard_normal((c.n, *c.out, c.co)))
    launches = conv(c, precision, after, tile, splits)
    simulate(launches, {"x": x, "w": packed, "y": y, "bias": bias, "residual": r}, seed=c.h)
    sums = reference(decoded(dtype, x[..., : c.ci]), decoded(dtype, w), c)
    expected = finished(sums, after, bias, decoded(dtype, r))
    assert error(decoded(dtype, y[..., : c.co]), expected) < PRECISION_TOLERANCE[precision]
    assert np.isnan(decoded(dtype, y[..., c.co :])).all()


@pytest.mark.parametrize(
    ("precision", "tile", "c"),
    [
        ("bf16", "32x64", ConvTranspose(2, 3, 4, 16, 12, (2, 2), (2, 2))),
        (
            "bf16",
            "32x64",
            ConvTranspose(
                1, 3, 4, 16, 6, (3, 4), (2, 1), (1, 0, 0, 2), (1, 2), groups=2, output_padding=(1, 0)
            ),
        ),
        ("f32", "32x128", ConvTranspose(1, 3, 2, 3, 5, (1, 2), (2, 1), x_pixel=4, y_pixel=8)),
    ],
)
def test_transposed_convolutions(precision: str, tile: str, c: ConvTranspose) -> None:
    rng = np.random.default_rng(c.co)
    dtype = dtype_of(precision)
    x = poisoned(dtype, c.n, c.h, c.w, c.x_pixel or c.ci)
    x[..., : c.ci] = encoded(dtype, rng.standard_normal((c.n, c.h, c.w, c.ci)))
    w = decoded(dtype, encoded(dtype, rng.standard_normal((c.ci, c.co // c.groups, *c.kernel))))
    packed = encoded(dtype, packed_transposed(np.float32(w), c, precision))
    bias = rng.standard_normal(c.co).astype(np.float32)
    y = poisoned(dtype, c.n, *c.out, c.y_pixel or c.co)
    after = Epilogue(dtype, bias=True, activation=RELU)
    simulate(conv_transpose(c, precision, after, tile), {"x": x, "w": packed, "y": y, "bias": bias})
    reach = [
        (size - 1) * s + d * (k - 1) + 1
        for size, s, d, k in zip((c.h, c.w), c.strides, c.dilations, c.kernel)
    ]
    full = np.zeros((c.n, reach[0] + c.output_padding[0], reach[1] + c.output_padding[1], c.co))
    ci, co = c.ci // c.groups, c.co // c.groups
    values = decoded(dtype, x[..., : c.ci])
    for g in range(c.groups):
        for i in range(c.kernel[0]):
            for j in range(c.kernel[1]):
                a, b = i * c.dilations[0], j * c.dilations[1]
                full[
                    :,
                    a : a + (c.h - 1) * c.strides[0] + 1 : c.strides[0],
                    b : b + (c.w - 1) * c.strides[1] + 1 : c.strides[1],
                    g * co : (g + 1) * co,
                ] += values[..., g * ci : (g + 1) * ci] @ w[g * ci : (g + 1) * ci, :, i, j]
    sums = full[:, c.pads[0] : c.pads[0] + c.out[0], c.pads[1] : c.pads[1] + c.out[1]]
    expected = finished(sums, after, bias, np.zeros(1))
    assert error(decoded(dtype, y[..., : c.co]), expected) < PRECISION_TOLERANCE[precision]
    assert np.isnan(decoded(dtype, y[..., c.co :])).all()


def test_every_activation() -> None:
    """In the kernel that sums splits, which is nothing but an epilogue."""
    x = np.linspace(-6, 6, 2 * 40, dtype=np.float32).reshape(2, 1, 40)
    parameters = {1: (0.3,), 2: (0.25, 0.75), 0: ()}
    for name, (count, _) in ACTIVATIONS.items():
        after = Epilogue("float32", activation=(name, *parameters[count]))
        y = poisoned("float32", 1, 40)
        simulate(reduction(Product(1, 40, 8, 8, 8, 40), after, 2), {"workspace": x, "y": y})
        expected = finished(x.sum(0).astype(np.float64), after, np.zeros(1), np.zeros(1))
        np.testing.assert_allclose(y, expected, rtol=3e-6, atol=1e-6, err_msg=name)


def test_reciprocals_divide_exactly() -> None:
    x = np.concatenate([np.arange(2000), 2**31 - 1 - np.arange(2000)]).astype(object)
    for divisor in (1, 2, 3, 5, 7, 10, 64, 97, 224, 1000, 65535, 2**31 - 1):
        factor, shift = reciprocal(divisor)
        assert factor < 2**32
        assert all(x * factor >> shift == x // divisor)


def test_operands_that_are_not_aligned_are_copied_first() -> None:
    rng = np.random.default_rng(0)
    a, b = (encoded("bfloat16", rng.standard_normal(shape)) for shape in ((2, 9, 5), (5, 11)))
    y = poisoned("bfloat16", 2, 9, 11)
    product = Product(9, 11, 5, 5, 11, 11, batch=2, a_batch=45, y_batch=99)
    launches = gemm(product, "bf16", Epilogue("bfloat16"), "32x64", columns=True)
    assert [step.kernel.name for step in launches][:2] == ["realign_bfloat16"] * 2
    simulate(launches, {"a": a, "b": b, "y": y})
    expected = decoded("bfloat16", a) @ decoded("bfloat16", b)
    assert error(decoded("bfloat16", y), expected) < TOLERANCE["bfloat16"]


def test_what_the_kernels_cannot_do_is_refused() -> None:
    with pytest.raises(KernelError, match="index fewer than"):
        gemm(Product(2**17, 8, 2**16, 2**16, 2**16, 8), "bf16", Epilogue("bfloat16"), "64x64")
    with pytest.raises(KernelError, match="1 to 8"):
        gemv(Product(9, 8, 64, 64, 64, 8), "bfloat16", Epilogue("bfloat16"), 64)
    with pytest.raises(KernelError, match="b_row = 71: expected a multiple of 8"):
        gemv(Product(1, 8, 71, 72, 71, 8), "bfloat16", Epilogue("bfloat16"), 64)
    with pytest.raises(ValueError, match="activation"):
        replace(Epilogue(), activation=("swoosh",))


@pytest.mark.parametrize(
    ("dtype", "shape", "warps"),
    [("bfloat16", (1, 21, 600), 64), ("float16", (5, 9, 77), 4), ("float32", (8, 6, 130), 6)],
)
def test_few_rows(dtype: str, shape: tuple[int, int, int], warps: int) -> None:
    m, n, k = shape
    rng = np.random.default_rng(n)
    row = -(-k // 8) * 8 + 8
    a, b = poisoned(dtype, m, row), poisoned(dtype, n, row)
    a[:, :k], b[:, :k] = (encoded(dtype, rng.standard_normal((rows, k))) for rows in (m, n))
    y = encoded(dtype, rng.standard_normal((m, n)))
    residual, bias = decoded(dtype, y).copy(), rng.standard_normal(n).astype(np.float32)
    after = Epilogue(dtype, bias=True, residual="before", activation=RELU)
    launches = gemv(Product(m, n, k, row, row, n, n), dtype, after, warps)
    simulate(launches, {"a": a, "b": b, "y": y, "bias": bias, "residual": y})
    expected = finished(decoded(dtype, a[:, :k]) @ decoded(dtype, b[:, :k]).T, after, bias, residual)
    assert error(decoded(dtype, y), expected) < TOLERANCE[dtype]
