"""Integer products against NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import PlanningContext, load
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

REGISTRY = load()
Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 10, opset_import: ["": 21]> g '


@pytest.fixture(autouse=True)
def offers_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may lack the instruction of the `dot` rows: it computes the same by others."""
    context = harness.context

    def offering(*given: Any, **named: Any) -> PlanningContext:
        facts = context(*given, **named)
        return replace(facts, target=harness.offering(facts.target))

    monkeypatch.setattr(harness, "context", offering)


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


def narrow(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Weights of which no two products with a uint8 leave int16."""
    return rng.integers(-64, 64, shape, endpoint=True).astype(np.int8)


def rows_that_run(op: str) -> list[tuple[str, int]]:
    """Rows of an operator with the vectors that they compile for on this machine."""
    rows = [(f"{op}.pairs", 8), (f"{op}.pairs", 16), (f"{op}.dot", 8), (f"{op}.dot", 16)]
    rows += [(f"{op}.bytes", 8), (f"{op}.bytes", 16)] * (op == "matmul_integer")
    rows += [(f"{op}.tiles", 16)] * ("amx_int8" in host().isa)
    rows += [(f"{op}.quads", 8)] * ("avx2" in host().isa)
    # Pixels as rows of the product: the same arithmetic of convolutions.
    forms = [(row, lanes) for row, lanes in rows if row.split(".")[1] in ("pairs", "dot", "quads")]
    pixels = [(row.replace(".", f".{name}_"), lanes) for row, lanes in forms for name in ("pixels", "last")]
    return [*rows, *pixels * (op == "conv_integer")]


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
def test_quantized_products_are_rounded_once_from_exact_sums(
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
    sums, factors = a.astype(np.int32) - values["i"], scales["p"] * scales["q"] / values["r"]
    if is_conv:
        views = np.lib.stride_tricks.sliding_window_view(sums, (3, 3), (2, 3))
        sums = np.einsum("ncyxhw,fchw->nfyx", views, b.astype(np.int32)) + values["c"].reshape(-1, 1, 1)
        factors = factors.reshape(-1, 1, 1)
    else:
        sums = sums @ b.astype(np.int32)
    expected = np.clip(np.rint(sums.astype(np.float32) * factors) + 128, 0, 255)
    assert factors.dtype == np.float32
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
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 10


@pytest.mark.parametrize(("row", "lanes"), rows_that_run("matmul_integer"))
def test_ragged_products_are_exact_at_the_extremes(compiler: Compiler, row: str, lanes: int) -> None:
    rng = np.random.default_rng(1)
    for (m, k, n), dtype in (((1, 517, 33), "uint8"), ((43, 1100, 50), "uint8"), ((7, 3, 5), "int8")):
        bounds = np.iinfo(dtype)
        a = rng.choice([bounds.min, bounds.max], (m, k)).astype(dtype)
        wide = not row.endswith("quads")
        b = rng.choice([-128, 127] if wide else [-64, 64], (k, n)).astype(np.int8)
        a[0], b[:, 0] = bounds.max, b.max()
        for zero, fixed in ((0, True), (bounds.max, False)):
            values = {"a": a, "b": b, "z": np.array(zero, dtype)}
            model = harness.model_of(
                f"{HEAD} ({declared(values)}) => (int32[{m},{n}] y) {{ y = MatMulInteger(a, b, z) }}",
                {name: values[name] for name in (("b", "z") if fixed else ("b",))},
            )
            given = {"a": a} if fixed else {"a": a, "z": values["z"]}
            (found,) = harness.run_group(
                harness.implementation(row, REGISTRY),
                harness.group_of(model, REGISTRY),
                given,
                compiler,
                threads=2,
                lanes=lanes,
            )
            np.testing.assert_array_equal(found, (a.astype(np.int64) - zero) @ b.astype(np.int64))


@pytest.mark.parametrize(
    ("row", "lanes"), [r for r in rows_that_run("matmul_integer") if "tiles" not in r[0]]
)
@pytest.mark.parametrize(
    ("kind", "zero"), [("uint8", 101), ("uint8", 255), ("int8", -7), ("uint8", None), ("int8", None)]
)
def test_weights_beyond_int8_less_their_zero_point_are_exact(
    compiler: Compiler, row: str, lanes: int, kind: str, zero: int | None
) -> None:
    """All lack one number, or those of each column one, times which the sums of rows are added.

    Several blocks and chunks of them; None is a zero point for every column.
    """
    rng, bounds = np.random.default_rng(3), np.iinfo(kind)
    low, high = (bounds.min, bounds.max) if "quads" not in row else (bounds.max - 64, bounds.max)
    for m, k, n in ((1, 517, 33), (101, 1101, 50)):
        a = random(rng, "uint8", (m, k))
        b = rng.integers(low, high, (k, n), endpoint=True).astype(kind)
        b[0, :2] = low, high
        w = random(rng, kind, (n,)) if zero is None else np.array(zero, kind)
        values = {"a": a, "b": b, "z": np.array(13, np.uint8), "w": w}
        model = harness.model_of(
            f"{HEAD} ({declared(values)}) => (int32[{m},{n}] y) {{ y = MatMulInteger(a, b, z, w) }}",
            {"b": b, "w": w},
        )
        (found,) = harness.run_group(
            harness.implementation(row, REGISTRY),
            harness.group_of(model, REGISTRY),
            {"a": a, "z": values["z"]},
            compiler,
            threads=2,
            lanes=lanes,
        )
        np.testing.assert_array_equal(found, (a.astype(np.int64) - 13) @ (b.astype(np.int64) - w))


def test_weights_that_may_saturate_are_refused() -> None:
    b = np.zeros((4, 3), np.int8)
    b[2:, 1] = 64, 65
    values = {"a": np.zeros((2, 4), np.uint8), "b": b}
    model = harness.model_of(
        f"{HEAD} ({declared(values)}) => (int32[2,3] y) {{ y = MatMulInteger(a, b) }}", {"b": b}
    )
    row = harness.implementation("matmul_integer.quads", REGISTRY)
    reason = row.rejection(harness.group_of(model, REGISTRY), harness.context(lanes=8))
    assert reason is not None
    assert "16 bits" in reason or "avx2" in reason


def convolved(x: Array, w: Array, group: int, pads: tuple[int, ...], strides: tuple[int, int]) -> Array:
    """A convolution in int64. x: [n, c, h, w]; pads: before, then after."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    views = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[
        :, :, :: strides[0], :: strides[1]
    ]
    n, c, rows, columns = views.shape[:4]
    views = views.reshape(n, group, c // group, rows, columns, *w.shape[2:])
    kernel = w.reshape(group, -1, *w.shape[1:])
    return np.einsum("ngcyxhw,gfchw->ngfyx", views, kernel).reshape(n, -1, rows, columns)


# channels, outputs, groups, size, kernel, pads, strides
CONVOLUTIONS = (
    (7, 13, 1, (9, 11), (3, 3), (1, 1, 1, 1), (1, 1)),
    (10, 6, 2, (8, 19), (2, 5), (0, 2, 1, 1), (2, 3)),
    (9, 70, 1, (5, 5), (1, 1), (0, 0, 0, 0), (1, 1)),
    (130, 70, 1, (7, 9), (3, 3), (1, 1, 1, 1), (2, 1)),  # a reduction in parts
    (3, 20, 1, (18, 35), (7, 7), (3, 3, 3, 3), (2, 2)),  # a stem
    (33, 17, 1, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),  # one pixel
    (20, 50, 1, (10, 30), (1, 1), (0, 0, 0, 0), (1, 1)),  # several blocks of pixels
    (20, 40, 5, (9, 6), (3, 3), (1, 1, 1, 1), (1, 1)),  # groups that fill a vector together, some left over
    (16, 8, 4, (6, 9), (1, 1), (0, 0, 0, 0), (1, 1)),
)
DEPTHWISE = (
    (3, 3, 3, (7, 7), (3, 3), (1, 1, 1, 1), (1, 1)),
    (2, 2, 2, (13, 30), (3, 3), (1, 1, 1, 1), (2, 2)),
    (2, 2, 2, (30, 21), (5, 4), (2, 0, 1, 3), (1, 3)),
    (2, 2, 2, (90, 64), (1, 1), (0, 0, 0, 0), (1, 1)),
)

# whole and ragged blocks of channels, rows of less than a tile of pixels and more, several bands
DEPTHWISE_LANES = (
    (17, 17, 17, (7, 7), (3, 3), (1, 1, 1, 1), (1, 1)),
    (16, 16, 16, (13, 30), (5, 5), (2, 2, 2, 2), (2, 2)),
    (9, 9, 9, (30, 21), (4, 5), (2, 0, 1, 3), (1, 3)),
    (32, 32, 32, (40, 66), (3, 1), (1, 0, 1, 0), (1, 1)),
    (8, 8, 8, (2, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
)
DEPTHWISE_LAST = (
    *DEPTHWISE_LANES[:2],
    (35, 35, 35, (30, 21), (4, 5), (2, 0, 1, 3), (1, 3)),
    (32, 32, 32, (70, 66), (3, 1), (1, 0, 1, 0), (1, 1)),
)


@pytest.mark.parametrize(
    ("row", "lanes"),
    [
        *rows_that_run("conv_integer"),
        *(
            (f"conv_integer.{row}", lanes)
            for row in ("depthwise", "depthwise_lanes", "depthwise_last")
            for lanes in (8, 16)
        ),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_convolutions_are_exact(compiler: Compiler, row: str, lanes: int, dtype: str) -> None:
    rng = np.random.default_rng(2)
    shapes = (
        DEPTHWISE_LAST
        if "depthwise_last" in row
        else DEPTHWISE_LANES
        if "lanes" in row
        else DEPTHWISE
        if "depthwise" in row
        else CONVOLUTIONS
    )
    for c, f, group, size, kernel, pads, strides in shapes:
        if size == (1, 1) and "last" in row:
            continue  # lies so in row-major order
        x, w = random(rng, dtype, (2, c, *size)), random(rng, "int8", (f, c // group, *kernel))
        w = narrow(rng, w.shape) if "quads" in row else w
        values = {"x": x, "w": w, "z": np.array(77, dtype)}
        expected = convolved(x.astype(np.int64) - 77, w.astype(np.int64), group, pads, strides)
        model = harness.model_of(
            f"""{HEAD} ({declared(values)}) => (int32{list(expected.shape)} y) {{
            y = ConvInteger <pads = {list(pads)}, strides = {list(strides)}, group = {group}> (x, w, z) }}""",
            {"w": w},
        )
        (found,) = harness.run_group(
            harness.implementation(row, REGISTRY),
            harness.group_of(model, REGISTRY),
            {"x": x, "z": values["z"]},
            compiler,
            threads=2,
            lanes=lanes,
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("result", ["uint8", "int8"])
@pytest.mark.parametrize("outputs", [20, 5])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_bytes_of_pixels_are_those_of_planes(
    compiler: Compiler, lanes: int, result: str, outputs: int, size: int
) -> None:
    """Both scale and round sums alike; `pairs` is compared with NumPy above."""
    rng = np.random.default_rng(3)
    values = {
        "a": random(rng, "uint8", (2, 6, size, size)),
        "p": np.float32(0.02).reshape(()),
        "i": np.uint8(120).reshape(()),
        "b": random(rng, "int8", (outputs, 6, 1, 1)),
        "q": random(rng, "float32", (outputs,)),
        "j": np.zeros(outputs, np.int8),
        "r": np.float32(0.5).reshape(()),
        "k": np.array(5, result),
        "c": rng.integers(-999, 999, outputs).astype(np.int32),
    }
    model = harness.model_of(
        f"""{HEAD} ({declared(values)}) => ({result}[2,{outputs},{size},{size}] y)
        {{ y = QLinearConv({", ".join(values)}) }}""",
        {n: v for n, v in values.items() if n != "a"},
    )
    planes, *others = (
        harness.run_group(
            harness.implementation(f"qlinear_conv.{row}", REGISTRY),
            harness.group_of(model, REGISTRY),
            {"a": values["a"]},
            compiler,
            threads=2,
            lanes=lanes,
        )[0]
        for row in ("pairs", "pixels_pairs", *["last_pairs"] * (size > 1))
    )
    for found in others:
        np.testing.assert_array_equal(found, planes)
    assert len(np.unique(planes)) > 5


# channels, outputs, size, pads: odd and even, less than a vector of tiles and more, several blocks
NEIGHBORS = (
    (1, 1, (3, 3), (0, 0, 0, 0)),
    (5, 13, (7, 7), (1, 1, 1, 1)),
    (4, 25, (9, 34), (1, 0, 0, 2)),
    (3, 2, (70, 21), (0, 2, 1, 1)),
)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("outputs", [2, 4])
def test_winograd_convolutions_are_exact(
    compiler: Compiler, lanes: int, threads: int, extreme: bool, outputs: int
) -> None:
    rng = np.random.default_rng(5)
    for c, f, size, pads in NEIGHBORS:
        x, w = random(rng, "uint8", (2, c, *size)), random(rng, "uint8", (f, c, 3, 3))
        if extreme:
            x, w = x // 128 * 255, w // 128 * 255
        values = {"x": x, "w": w, "z": np.array(200, np.uint8), "v": random(rng, "uint8", (f,))}
        zeros = values["v"].astype(np.int64).reshape(-1, 1, 1, 1)
        expected = convolved(x.astype(np.int64) - 200, w.astype(np.int64) - zeros, 1, pads, (1, 1))
        model = harness.model_of(
            f"""{HEAD} ({declared(values)}) => (int32{list(expected.shape)} y) {{
            y = ConvInteger <pads = {list(pads)}> (x, w, z, v) }}""",
            {"w": w, "v": values["v"]},
        )
        (found,) = harness.run_group(
            harness.implementation(f"conv_integer.winograd_f{outputs}", REGISTRY),
            harness.group_of(model, REGISTRY),
            {"x": x, "z": values["z"]},
            compiler,
            lanes=lanes,
            threads=threads,
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("outputs", "times"), [(2, 4), (4, 64)])
def test_winograd_refuses_sums_that_do_not_fit_and_other_windows(outputs: int, times: int) -> None:
    row = harness.implementation(f"conv_integer.winograd_f{outputs}", REGISTRY)

    def reason(w: Array, attributes: str, shape: str) -> str | None:
        values = {"x": np.zeros((1, w.shape[1], 9, 9), np.uint8), "w": w}
        model = harness.model_of(
            f"{HEAD} ({declared(values)}) => (int32{shape} y) {{ y = ConvInteger {attributes} (x, w) }}",
            {"w": w},
        )
        return row.rejection(harness.group_of(model, REGISTRY), harness.context(lanes=8))

    most = (2**31 - 1) // (times * 255 * 9 * 128)  # channels of the lowest weights whose sums fit
    assert reason(np.full((1, most, 3, 3), -128, np.int8), "", "[1,1,7,7]") is None
    assert "32 bits" in (reason(np.full((1, most + 1, 3, 3), -128, np.int8), "", "[1,1,7,7]") or "")
    few = np.ones((2, 2, 3, 3), np.int8)
    assert "steps of one" in (reason(few, "<strides = [2, 2]>", "[1,2,4,4]") or "")
    assert "steps of one" in (reason(few, "<dilations = [2, 2]>", "[1,2,5,5]") or "")
    assert "groups" in (reason(few[:, :1], "<group = 2>", "[1,2,7,7]") or "")


@pytest.mark.parametrize(
    "row",
    [
        "conv_integer.pairs",
        "conv_integer.pixels_dot",
        "conv_integer.last_dot",
        "conv_integer.last_pairs",
        "conv_integer.depthwise",
        "conv_integer.depthwise_lanes",
        "conv_integer.depthwise_last",
        "conv_integer.winograd_f2",
        "conv_integer.winograd_f4",
    ],
)
@pytest.mark.parametrize(
    "tail",
    ["", "QuantizeLinear(f, u, t)", "QuantizeLinear(g, u, t)"],
    ids=["real", "quantized", "residual"],
)
def test_what_follows_the_sums_is_computed_with_them(compiler: Compiler, row: str, tail: str) -> None:
    rng = np.random.default_rng(3)
    c = 20
    group = c if "depthwise" in row else 1
    x, w = random(rng, "uint8", (2, c, 9, 13)), random(rng, "int8", (c, c // group, 3, 3))
    s, b = random(rng, "float32", (c, 1, 1)), rng.standard_normal((c, 1, 1)).astype(np.float32)
    e = random(rng, "int8", (2, c, 9, 13))
    fixed = {"w": w, "s": s, "b": b, "u": np.float32(1).reshape(()), "t": np.array(-3, np.int8)}
    f = convolved(x.astype(np.int64), w.astype(np.int64), group, (1, 1, 1, 1), (1, 1)) * s + b
    given, sums = {"x": x}, ""
    if "g" in tail:
        given["e"] = e
        f, sums = f + (e + 3.0), "d = DequantizeLinear(e, u, t)\n g = Add(f, d)"
    expected = np.clip(np.rint(f) - 3, -128, 127).astype(np.int8) if tail else f.astype(np.float32)
    kind, last = ("int8", f"y = {tail}") if tail else ("float", "y = Relu(f)")
    model = harness.model_of(
        f"""{HEAD} ({declared({**given, **fixed})}) => ({kind}[2,{c},9,13] y) {{
        i = ConvInteger <pads = [1, 1, 1, 1], group = {group}> (x, w)
        r = Cast <to = 1> (i)
        m = Mul(r, s)
        f = Add(m, b)
        {sums}
        {last} }}""",
        fixed,
    )
    (found,) = harness.run_group(
        harness.implementation(row, REGISTRY),
        harness.group_of(model, REGISTRY),
        given,
        compiler,
        threads=2,
    )
    if tail:
        assert np.abs(found.astype(int) - expected).max() <= 1
        assert (found != expected).mean() < 0.01
        assert set(np.unique(found)) >= {-128, 127}
    else:
        harness.assert_close(found, np.maximum(expected, 0), 1e-6)


@pytest.mark.parametrize("row", ["conv_integer.pairs", "conv_integer.pixels_pairs"])
@pytest.mark.parametrize("most", [9999, 2**19])
def test_a_quantized_bias_is_added_before_the_sums_are_scaled(
    compiler: Compiler, row: str, most: int
) -> None:
    rng = np.random.default_rng(4)
    x, w = random(rng, "uint8", (1, 6, 9, 13)), random(rng, "int8", (20, 6, 3, 3))
    scale, over = random(rng, "float32", (20, 1, 1)) / 9, np.float32(0.37)
    integers = rng.integers(-most, most, (20, 1, 1)).astype(np.int32)
    bias = integers * scale.astype(np.float64)
    fixed = {
        "w": w,
        "s": (scale / over).astype(np.float32),
        "b": (bias.astype(np.float32) / over).astype(np.float32),  # rounded twice, as files are rewritten
        "u": np.float32(1).reshape(()),
        "t": np.array(7, np.uint8),
    }
    sums = convolved(x.astype(np.int64), w.astype(np.int64), 1, (1, 1, 1, 1), (1, 1)) + integers
    expected = np.clip(np.rint(sums.astype(np.float32) * fixed["s"]) + 7, 0, 255).astype(np.uint8)
    model = harness.model_of(
        f"""{HEAD} ({declared({"x": x, **fixed})}) => (uint8[1,20,9,13] y) {{
        i = ConvInteger <pads = [1, 1, 1, 1]> (x, w)
        r = Cast <to = 1> (i) m = Mul(r, s) f = Add(m, b) y = QuantizeLinear(f, u, t) }}""",
        fixed,
    )
    (found,) = harness.run_group(
        harness.implementation(row, REGISTRY),
        harness.group_of(model, REGISTRY),
        {"x": x},
        compiler,
        threads=2,
    )
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 100


def test_a_vector_is_a_row(compiler: Compiler) -> None:
    a, b = np.arange(9, dtype=np.uint8), np.arange(18, dtype=np.int8).reshape(9, 2)
    model = harness.model_of(
        f"{HEAD} ({declared({'a': a, 'b': b})}) => (int32[2] y) {{ y = MatMulInteger(a, b) }}", {"b": b}
    )
    (found,) = harness.run_group(
        harness.implementation("matmul_integer.pairs", REGISTRY),
        harness.group_of(model, REGISTRY),
        {"a": a},
        compiler,
    )
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b)
