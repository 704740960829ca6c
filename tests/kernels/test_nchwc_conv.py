"""Direct convolutions over blocked images against a direct sum in double precision."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.backends.cpu.nchwc_conv import FORMS, TUNINGS, cut
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.test_conv import REGISTRY, attributes, close, lanes, operands, run  # noqa: F401

CASES = [
    # x, w, strides, pads, dilations, groups
    ((1, 16, 14, 14), (16, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 33, 7, 7), (65, 33, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 20, 28, 28), (31, 20, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 20, 15, 13), (24, 20, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    ((1, 700, 7, 7), (40, 700, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 100, 10, 11), (70, 100, 3, 3), (2, 1), (1, 0, 2, 3), (1, 1), 1),
    ((1, 48, 17, 19), (32, 48, 3, 3), (1, 1), (2, 2, 2, 2), (2, 3), 1),
    ((2, 32, 9, 8), (64, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((1, 4, 6, 40), (9, 4, 1, 5), (1, 2), (0, 4, 0, 4), (1, 2), 1),
    ((2, 40, 1, 1), (72, 40, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 2, 3, 3), (3, 2, 3, 3), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    ((1, 8, 12, 12), (8, 8, 3, 3), (3, 3), (0, 0, 0, 0), (1, 1), 1),
]
STEMS = [
    ((1, 3, 30, 29), (10, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    ((2, 1, 12, 9), (24, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 4, 12, 19), (16, 4, 3, 3), (2, 2), (0, 0, 0, 0), (1, 2), 1),
    ((1, 5, 6, 6), (16, 5, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
]
EPILOGUES = {
    "none": ("y = Conv<{}>(x, w, b)", {}),
    "relu": ("c = Conv<{}>(x, w, b) y = Relu(c)", {}),
    "residual": ("c = Conv<{}>(x, w, b) d = Add(c, r) y = Relu(d)", {"r": "full"}),
    "silu": ("c = Conv<{}>(x, w, b) s = Sigmoid(c) y = Mul(c, s)", {}),
    "scales": (
        "c = Conv<{}>(x, w) d = Mul(c, p) e = Mul(d, k) y = Add(e, r)",
        {"p": "plane", "k": "channel", "r": "full"},
    ),
}


def expected_of(name: str, y: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
    if name == "relu":
        return np.maximum(y, 0)
    if name == "residual":
        return np.maximum(y + values["r"], 0)
    if name == "silu":
        return y / (1 + np.exp(-y))
    if name == "scales":
        bare = y - values["b"].reshape(-1, 1, 1)
        return bare * values["p"] * values["k"] + values["r"]
    return y


def check(row: str, case: tuple, name: str, compiler: Compiler, threads: int, inplace: bool = False) -> None:
    values, y = operands(case)
    rng = np.random.default_rng(1)
    nodes, extra = EPILOGUES[name]
    shapes = {"full": y.shape, "plane": (*y.shape[:2], 1, 1), "channel": (y.shape[1], 1, 1)}
    values.update({n: rng.standard_normal(shapes[kind]).astype(np.float32) for n, kind in extra.items()})
    expected = expected_of(name, y, values)
    if "b" not in nodes.split("y =")[0] and ", b)" not in nodes:
        del values["b"]
    changing = ("x", *(n for n in extra if n != "k"))
    found = run(
        compiler, row, nodes.format(attributes(case)), values, y.shape,
        changing=changing, threads=threads, inplace=inplace,
    )  # fmt: skip
    close(found, expected, case[1][1] * int(np.prod(case[1][2:])))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv(case: tuple, threads: int, lanes: int, compiler: Compiler) -> None:  # noqa: F811
    check("conv.blocked", case, "none", compiler, threads)


@pytest.mark.parametrize("tuning", [t for t in TUNINGS if t])
@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[5]], ids=str)
def test_tunings(case: tuple, tuning: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    known = harness.context
    monkeypatch.setattr(harness, "context", lambda *given: replace(known(*given), tuning=tuning))
    check("conv.blocked", case, "residual", compiler, 2)


@pytest.mark.parametrize("case", STEMS, ids=str)
def test_stem(case: tuple, lanes: int, compiler: Compiler) -> None:  # noqa: F811
    check("conv.blocked_stem", case, "relu", compiler, 2)


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_what_follows(case: tuple, name: str, lanes: int, compiler: Compiler) -> None:  # noqa: F811
    check("conv.blocked", case, name, compiler, 1)


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_residual_in_place(case: tuple, lanes: int, compiler: Compiler) -> None:  # noqa: F811
    check("conv.blocked", case, "residual", compiler, 2, inplace=True)


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize(
    ("shape", "weights", "stride"),
    [
        ((1, 1024, 14, 14), (256, 1024, 1, 1), 1),
        ((1, 256, 56, 56), (512, 256, 1, 1), 2),
        ((1, 256, 56, 56), (64, 256, 1, 1), 1),
        ((1, 256, 28, 28), (256, 256, 3, 3), 2),
    ],
)
def test_threads_share_pixels_and_channels_evenly(
    shape: tuple[int, ...], weights: tuple[int, ...], stride: int, threads: int, tuning: str
) -> None:
    pad, size = weights[-1] // 2, shape[-1] // stride
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[{",".join(map(str, shape))}] x)
        => (float[1,{weights[0]},{size},{size}] y)
        {{ y = Conv<pads = [{pad}, {pad}, {pad}, {pad}], strides = [{stride}, {stride}]>(x, w) }}"""
    group = harness.group_of(harness.model_of(text, {"w": np.zeros(weights, np.float32)}), REGISTRY)
    known = replace(harness.context(threads, lanes=16), tuning=tuning)
    found = FORMS["conv.blocked"].geometry(group, known)
    parts = cut(found, known, follows=False)
    blocks, strips = weights[0] // 16, -(-found.rows // parts.rows)
    edges = [i * found.rows // strips for i in range(strips + 1)]
    work = np.multiply.outer(
        np.diff(edges), [min(parts.part, blocks - i) for i in range(0, blocks, parts.part)]
    ).ravel()
    shares = [work[len(work) * t // threads : len(work) * (t + 1) // threads].sum() for t in range(threads)]
    assert max(shares) <= (1.05 if threads == 2 else 1.15) * np.mean(shares)
