"""Convolutions against a direct sum in double precision."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from numba import njit, types
from onnx.reference import ReferenceEvaluator

from app.engine.core.registry import PlanningContext, load
from app.engine.types.target import host
from app.kernels.cpu.codegen import generator, tiles
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

REGISTRY = load()
Array = np.ndarray[Any, Any]
TYPES = {"float32": "float", "float64": "double", "int32": "int32", "uint64": "uint64"}


def convolve(x: Array, w: Array, strides: tuple, pads: tuple, dilations: tuple, groups: int) -> Array:
    """The definition: a loop over taps, in float64."""
    rank = x.ndim - 2
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    out = [
        (i - (k - 1) * d - 1) // s + 1 for i, k, d, s in zip(wide.shape[2:], w.shape[2:], dilations, strides)
    ]
    filters = w.shape[0] // groups
    y = np.zeros((x.shape[0], groups, filters, *out))
    xs = wide.reshape(x.shape[0], groups, w.shape[1], *wide.shape[2:])
    ws = w.astype(np.float64).reshape(groups, filters, w.shape[1], *w.shape[2:])
    for tap in itertools.product(*(range(k) for k in w.shape[2:])):
        part = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilations, out, strides)
        )
        y += np.einsum("ngc...,gfc->ngf...", xs[(..., *part)], ws[(..., *tap)])
    return y.reshape(x.shape[0], w.shape[0], *out)


CASES = [
    # x, w, strides, pads, dilations, groups
    ((1, 5, 9), (7, 5, 3), (1,), (1, 1), (1,), 1),
    ((2, 6, 31), (4, 3, 4), (3,), (2, 0), (2,), 2),
    ((1, 3, 30, 29), (10, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    ((1, 16, 14, 14), (16, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 33, 7, 7), (65, 33, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 20, 28, 28), (31, 20, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 20, 15, 13), (31, 20, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    ((1, 512, 7, 7), (40, 512, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 60, 10, 11), (70, 60, 3, 3), (2, 1), (1, 0, 2, 3), (1, 1), 1),
    ((1, 12, 17, 19), (18, 4, 3, 3), (1, 1), (2, 2, 2, 2), (2, 3), 3),
    ((1, 4, 6, 40), (9, 4, 1, 5), (1, 2), (0, 4, 0, 4), (1, 2), 1),
    ((1, 2, 3, 3), (3, 2, 3, 3), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    ((1, 3, 5, 6, 7), (4, 3, 3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 0, 1), (1, 1, 2), 1),
    ((1, 8, 12, 12), (8, 8, 3, 3), (3, 3), (1, 1, 1, 1), (1, 1), 1),
    ((0, 3, 5, 5), (4, 3, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
]


def declaration(name: str, shape: tuple[int, ...], dtype: str = "float") -> str:
    return f"{dtype}[{','.join(map(str, shape))}] {name}"


def attributes(case: tuple) -> str:
    _, w, strides, pads, dilations, groups = case
    rows = {"kernel_shape": w[2:], "strides": strides, "pads": pads, "dilations": dilations}
    return ", ".join(f"{k} = [{', '.join(map(str, v))}]" for k, v in rows.items()) + f", group = {groups}"


def close(found: Array, expected: Array, depth: int) -> None:
    harness.assert_close(found, expected.astype(found.dtype), 1e-6 * max(depth, 16) ** 0.5)


DEPTHWISE = [
    ((1, 5, 14, 14), (5, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5),
    ((2, 3, 7, 7), (3, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
    ((1, 3, 30, 29), (6, 1, 5, 3), (2, 2), (2, 1, 2, 0), (1, 1), 3),
    ((1, 2, 61, 70), (2, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((1, 2, 20, 17), (2, 1, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 2),
    ((1, 2, 9, 40), (4, 1, 2, 4), (3, 3), (0, 1, 2, 3), (2, 1), 2),
    ((2, 4, 50), (4, 1, 5), (2,), (2, 1), (1,), 4),
    ((1, 2, 1, 3), (2, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((1, 2, 3, 2), (2, 1, 3, 3), (2, 2), (1, 5, 1, 5), (1, 1), 2),
    ((2, 3, 5, 9, 21), (3, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1, 1, 1, 1), (1, 1, 1), 3),
    ((1, 2, 7, 6, 5), (4, 1, 2, 3, 3), (2, 1, 3), (3, 0, 1, 0, 2, 1), (3, 2, 1), 2),
    ((1, 2, 1, 40, 50), (2, 1, 5, 3, 1), (1, 1, 1), (2, 1, 0, 2, 1, 0), (1, 1, 1), 2),
    ((2, 1, 4, 1, 2), (2, 1, 3, 3, 3), (1, 2, 1), (4, 1, 1, 4, 1, 1), (1, 1, 1), 1),
]


def run(
    compiler: Compiler,
    name: str,
    nodes: str,
    values: dict[str, Array],
    shape: tuple[int, ...],
    *,
    changing: tuple[str, ...] = ("x",),
    threads: int = 1,
    lanes: int = 0,
    inplace: bool = False,
) -> Array:
    """The output of a group of nodes; the operands in `changing` are inputs, the others constant.

    With `inplace` the output takes the memory of the first input that the row offers.
    """
    declared = ", ".join(declaration(n, v.shape, TYPES[v.dtype.name]) for n, v in values.items())
    kind = TYPES[values["x"].dtype.name]
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({declared}) => ({declaration("y", shape, kind)}) {{ {nodes} }}"""
    model = harness.model_of(text, {n: v for n, v in values.items() if n not in changing})
    group = harness.group_of(model, REGISTRY)
    row = harness.implementation(name, REGISTRY)
    pairs = row.inplace(group, harness.context(threads))
    assert pairs or not inplace
    (found,) = harness.run_group(
        row,
        group,
        {n: values[n] for n in changing},
        compiler,
        threads=threads,
        lanes=lanes,
        alias=pairs[:1] if inplace else (),
    )
    return found


def operands(case: tuple) -> tuple[dict[str, Array], Array]:
    """Random x, weights and bias, and the output by definition."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in case[:2])
    b = rng.standard_normal(w.shape[0]).astype(np.float32)
    expected = convolve(x, w, *case[2:]) + b.reshape(-1, *[1] * (x.ndim - 2))
    return {"x": x, "w": w, "b": b}, expected


@pytest.fixture(params=[8, 16])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Registers of 8 or 16 float32, whatever this machine has: LLVM splits what is too wide."""
    monkeypatch.setattr(
        harness,
        "context",
        lambda threads=1, lanes=0: PlanningContext(
            replace(host(), vector_lanes=lanes or request.param), threads
        ),
    )
    return request.param


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", [*CASES, *DEPTHWISE], ids=str)
def test_conv_equals_its_definition(compiler: Compiler, case: tuple, threads: int) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    found = run(compiler, "conv.implicit_gemm", node, values, expected.shape, threads=threads)
    close(found, expected, values["w"][0].size)


@pytest.mark.parametrize("case", [CASES[i] for i in (1, 2, 4, 5, 7, 8, 12)], ids=str)
def test_conv_is_the_same_for_any_width_of_registers(compiler: Compiler, case: tuple, lanes: int) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    found = run(compiler, "conv.implicit_gemm", node, values, expected.shape)
    close(found, expected, values["w"][0].size)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise_conv_equals_its_definition(compiler: Compiler, case: tuple, threads: int) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    found = run(compiler, "conv.depthwise", node, values, expected.shape, threads=threads)
    close(found, expected, values["w"][0].size)


SMALL = [
    ((1, 10, h, w), (10, 1, 3, 3), (stride, stride), pads, (1, 1), 10)
    for h, w in ((1, 1), (1, 2), (2, 1), (3, 1), (2, 3))
    for stride in (1, 2, 3)
    for pads in ((1, 1, 1, 1), (2, 2, 2, 2), (0, 1, 2, 3), (2, 3, 0, 1))
    if min(h + pads[0] + pads[2], w + pads[1] + pads[3]) >= 3
]


@pytest.mark.parametrize("name", ["conv.depthwise", "conv.implicit_gemm"])
def test_images_smaller_than_the_window(compiler: Compiler, name: str) -> None:
    """Some phases of a stride have no column of the image."""
    for case in SMALL:
        values, expected = operands(case)
        found = run(compiler, name, f"y = Conv <{attributes(case)}> (x, w, b)", values, expected.shape)
        close(found, expected, 9)


@pytest.mark.parametrize("case", DEPTHWISE[:4], ids=str)
def test_depthwise_conv_is_the_same_for_any_width_of_registers(
    compiler: Compiler, case: tuple, lanes: int
) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    close(
        run(compiler, "conv.depthwise", node, values, expected.shape),
        expected,
        values["w"][0].size,
    )


@pytest.mark.parametrize("case", [CASES[i] for i in (2, 4, 8)], ids=str)
def test_weights_and_bias_may_change_between_runs(compiler: Compiler, case: tuple) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    found = run(
        compiler, "conv.implicit_gemm", node, values, expected.shape, changing=("x", "w", "b"), threads=2
    )
    close(found, expected, values["w"][0].size)


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint64"])
@pytest.mark.parametrize("name", ["conv.implicit_gemm", "conv.depthwise"])
def test_conv_of_other_types(compiler: Compiler, name: str, dtype: str) -> None:
    case = DEPTHWISE[0] if name == "conv.depthwise" else CASES[8]
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 9, s).astype(dtype) for s in case[:2])
    if dtype == "float64":
        x, w = x + rng.random(x.shape), w + rng.random(w.shape)
    expected = convolve(x, w, *case[2:])
    found = run(compiler, name, f"y = Conv <{attributes(case)}> (x, w)", {"x": x, "w": w}, expected.shape)
    harness.assert_close(found, expected.astype(dtype), 1e-13)


AUTO = [
    ("SAME_UPPER", (2, 3), (1, 1)),
    ("SAME_LOWER", (2, 3), (1, 1)),
    ("SAME_LOWER", (1, 1), (2, 1)),
    ("VALID", (2, 1), (1, 2)),
]


@pytest.mark.parametrize("auto_pad", AUTO, ids=str)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_auto_pad_follows_the_reference(compiler: Compiler, op: str, auto_pad: tuple) -> None:
    kind, strides, dilations = auto_pad
    if op == "ConvTranspose" and dilations != (1, 1):
        dilations = (1, 1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 11, 12)).astype(np.float32)
    w = rng.standard_normal((3, 3, 4, 3)).astype(np.float32)
    given = f'auto_pad = "{kind}", strides = {list(strides)}, dilations = {list(dilations)}'
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[1,3,11,12] x, float[3,3,4,3] w) => (float[n,c,h,w] y) {{ y = {op} <{given}> (x, w) }}"""
    (expected,) = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, {"x": x, "w": w})
    name = "conv.implicit_gemm" if op == "Conv" else "conv_transpose.residues"
    found = run(compiler, name, f"y = {op} <{given}> (x, w)", {"x": x, "w": w}, expected.shape)
    close(found, expected, w[0].size)


def transpose_convolve(
    x: Array, w: Array, out: tuple, strides: tuple, pads: tuple, dilations: tuple, groups: int
) -> Array:
    """The definition: every input element adds the kernel to the output, in float64."""
    rank = x.ndim - 2
    spans = [
        (i - 1) * s + (k - 1) * d + 1 for i, s, k, d in zip(x.shape[2:], strides, w.shape[2:], dilations)
    ]
    room = [max(span, o + p) for span, o, p in zip(spans, out, pads[:rank])]
    y = np.zeros((x.shape[0], groups, w.shape[1], *room))
    xs = x.astype(np.float64).reshape(x.shape[0], groups, -1, *x.shape[2:])
    ws = w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
    for tap in itertools.product(*(range(k) for k in w.shape[2:])):
        part = tuple(
            slice(t * d, t * d + (i - 1) * s + 1, s)
            for t, d, i, s in zip(tap, dilations, x.shape[2:], strides)
        )
        y[(..., *part)] += np.einsum("ngc...,gcf->ngf...", xs, ws[(..., *tap)])
    kept = tuple(slice(p, p + o) for p, o in zip(pads[:rank], out))
    return y[(..., *kept)].reshape(x.shape[0], -1, *out)


TRANSPOSED = [
    # x, w, strides, pads, dilations, output_padding, groups
    ((1, 4, 9), (4, 3, 4), (2,), (1, 1), (1,), (0,), 1),
    ((1, 8, 5, 6), (8, 7, 2, 2), (2, 2), (0, 0, 0, 0), (1, 1), (0, 0), 1),
    ((2, 6, 7, 5), (6, 4, 3, 3), (2, 3), (1, 0, 1, 2), (1, 1), (1, 2), 2),
    ((1, 3, 8, 8), (3, 5, 3, 3), (1, 1), (1, 1, 1, 1), (2, 2), (0, 0), 1),
    ((1, 5, 6, 6), (5, 4, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), (0, 0), 1),
    ((1, 4, 6, 7), (4, 3, 2, 1), (3, 2), (0, 0, 0, 0), (2, 1), (1, 1), 1),
    ((1, 400, 4, 4), (400, 5, 4, 4), (2, 2), (1, 1, 1, 1), (1, 1), (0, 0), 1),
    ((1, 3, 3, 4, 5), (3, 2, 2, 3, 3), (2, 1, 2), (0, 1, 1, 0, 1, 1), (1, 1, 1), (0, 0, 1), 1),
    ((1, 6, 7, 7), (6, 1, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 6),
    ((2, 4, 5, 17), (4, 3, 3, 3), (2, 2), (0, 0, 0, 0), (1, 1), (0, 0), 2),
    ((1, 3, 3, 4, 5), (3, 2, 3, 3, 3), (2, 2, 2), (0, 1, 0, 0, 1, 0), (1, 1, 1), (0, 0, 0), 1),
    ((1, 4, 16), (4, 3, 4), (3,), (0, 0), (1,), (0,), 1),
    ((1, 4, 9, 8), (4, 3, 3, 3), (2, 2), (0, 0, 0, 0), (2, 2), (0, 0), 1),
]


def transposed(case: tuple) -> tuple[dict[str, Array], Array, str]:
    x_shape, w_shape, strides, pads, dilations, extra, groups = case
    rank = len(strides)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    b = rng.standard_normal(w_shape[1] * groups).astype(np.float32)
    out = tuple(
        (i - 1) * s + e + (k - 1) * d + 1 - before - after
        for i, s, e, k, d, before, after in zip(
            x_shape[2:], strides, extra, w_shape[2:], dilations, pads[:rank], pads[rank:]
        )
    )
    expected = transpose_convolve(x, w, out, strides, pads, dilations, groups)
    expected = expected + b.reshape(-1, *[1] * rank)
    given = attributes((x_shape, w_shape, strides, pads, dilations, groups))
    return {"x": x, "w": w, "b": b}, expected, f"{given}, output_padding = [{', '.join(map(str, extra))}]"


@pytest.mark.parametrize(
    ("changing", "threads", "lanes"), [("x", 1, 0), ("x", 2, 0), ("xw", 1, 0), ("xwb", 2, 0), ("xwb", 1, 8)]
)
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose_equals_its_definition(
    compiler: Compiler, case: tuple, changing: str, threads: int, lanes: int
) -> None:
    values, expected, given = transposed(case)
    node = f"y = ConvTranspose <{given}> (x, w, b)"
    name, shape = "conv_transpose.residues", expected.shape
    found = run(compiler, name, node, values, shape, changing=tuple(changing), threads=threads, lanes=lanes)
    close(found, expected, values["w"][:, 0].size)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# Nodes after c, and what they compute from c and the operands of that name. r: as the output,
# q: one per channel, g: one per channel and image, s: a scalar.
EPILOGUES: dict[str, tuple[str, Callable[..., Array]]] = {
    "residual": ("y = Add(c, r)", lambda c, r, **_: c + r),
    "residual first": ("y = Add(r, c)", lambda c, r, **_: c + r),
    "bias, residual, relu": (
        "d = Add(c, q) e = Add(d, r) y = Relu(e)",
        lambda c, q, r, **_: np.maximum(c + q + r, 0),
    ),
    "sub, clip": ("d = Sub(c, q) y = Clip(d, s)", lambda c, q, s, **_: np.maximum(c - q, s)),
    "silu": ("d = Sigmoid(c) y = Mul(c, d)", lambda c, **_: c * sigmoid(c)),
    "everything": (
        "d = Relu(c) e = Mul(d, q) f = Add(e, r) h = Mul(f, g) y = Sub(s, h)",
        lambda c, q, r, g, s, **_: s - (np.maximum(c, 0) * q + r) * g,
    ),
}
FUSED = [
    ("conv.implicit_gemm", CASES[2]),
    ("conv.implicit_gemm", CASES[4]),
    ("conv.implicit_gemm", CASES[7]),
    ("conv.implicit_gemm", CASES[8]),
    ("conv.implicit_gemm", CASES[12]),
    ("conv.few_outputs", ((2, 9, 13, 37), (3, 9, 3, 5), (2, 1), (1, 0, 2, 3), (1, 1), 1)),
    ("conv.depthwise", DEPTHWISE[1]),
    ("conv.depthwise", DEPTHWISE[2]),
    ("conv_transpose.residues", TRANSPOSED[2]),
    ("conv_transpose.residues", TRANSPOSED[4]),
]


@pytest.mark.parametrize("inplace", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("fused", FUSED, ids=str)
def test_what_follows_is_computed_in_the_same_step(
    compiler: Compiler, fused: tuple, epilogue: str, inplace: bool
) -> None:
    name, case = fused
    if name == "conv_transpose.residues":
        values, c, given = transposed(case)
        node = f"c = ConvTranspose <{given}> (x, w, b)"
    else:
        values, c = operands(case)
        node = f"c = Conv <{attributes(case)}> (x, w, b)"
    text, compute = EPILOGUES[epilogue]
    rng = np.random.default_rng(1)
    ones = (1,) * (c.ndim - 2)
    shapes = {"r": c.shape, "q": (c.shape[1], *ones), "g": (*c.shape[:2], *ones), "s": ()}
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    extra = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items() if n in words}
    if inplace and ("r" not in extra or name == "conv.depthwise"):
        pytest.skip("nothing to overwrite")
    expected = compute(c=c, **{n: v.astype(np.float64) for n, v in extra.items()})
    changing = ("x", *(n for n in extra if n in "rg"))
    for threads in (1, 2):
        found = run(
            compiler,
            name,
            f"{node} {text}",
            {**values, **extra},
            expected.shape,
            changing=changing,
            threads=threads,
            inplace=inplace,
        )
        close(found, expected, 10 * values["w"].size)


def test_the_output_does_not_overwrite_what_the_convolution_reads() -> None:
    model = harness.model_of(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,4,5,5] x, float[4,4,3,3] w) => (float[1,4,5,5] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Add(c, x) }""",
        {"w": np.ones((4, 4, 3, 3), np.float32)},
    )
    row = harness.implementation("conv.implicit_gemm", REGISTRY)
    group = harness.group_of(model, REGISTRY)
    assert row.rejection(group, harness.context()) is None
    assert row.inplace(group, harness.context()) == ()


def test_an_operand_along_another_axis_is_refused_with_a_reason() -> None:
    model = harness.model_of(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,4,5,6] x, float[4,4,3,3] w, float[6] u) => (float[1,4,5,6] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Mul(c, u) }""",
        {"w": np.ones((4, 4, 3, 3), np.float32)},
    )
    row = harness.implementation("conv.implicit_gemm", REGISTRY)
    reason = row.rejection(harness.group_of(model, REGISTRY), harness.context())
    assert reason is not None
    assert "'u'" in reason


@pytest.mark.parametrize("shapes", [tiles.SHAPES, tiles.WIDE], ids=["shapes", "wide"])
def test_the_inner_loop_of_a_tile_keeps_its_sums_in_registers(shapes: tiles.Shapes) -> None:
    width = host().vector_lanes
    rows, _, columns, unroll = shapes[width]
    compute = generator.tile("float32", width, rows, columns, unroll)
    p, n = types.CPointer(types.float32), types.int64

    @njit(types.void(p, n, n, n, p, n, n, p, n, p, n, p, n, p, n, p, p, n, p, n))
    def call(a, ar, ak, m, b, bk, k, ahead, ahead_k, c, cr, s, sr, rb, rs, cb, r, rr, sc, f):
        compute(a, ar, ak, m, b, bk, k, ahead, ahead_k, c, cr, s, sr, rb, rs, cb, r, rr, sc, f)

    (assembly,) = call.inspect_asm().values()
    loop = ".LBB0_1:\n\tvmovups\t%ymm4, 32(%rsp)\n\tjne\t.LBB0_1\n\tvmovups\t%ymm4, 32(%rsp)\n"
    assert generator.spills(f"tile_x:\n{loop}other:\n{loop}") == 1
    assert "tile_float32" in assembly
    assert generator.spills(assembly) == 0
