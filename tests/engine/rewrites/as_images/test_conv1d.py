"""Convolutions along one axis become those of images: which operators follow, and that they compute the same."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.rewrites.as_images import conv1d
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.oracle import evaluate
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import Array, assert_same_outputs, canonical, operators, saved
from tests.harness import assert_close

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(5)
ROWS = conv1d.rows("numba-cpu")


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(folder: Path, body: str, out: str, x: str = "2,6,20", **weights: Array) -> Path:
    text = f"{HEAD} g (float[{x}] x) => (float[{out}] y) {{ {body} }}"
    return saved(text, folder, {name: array for name, array in weights.items() if name in body})


def rewritten(path: Path) -> Compilation:
    found = canonical(path, rewrites=ROWS)
    assert_same_outputs(path, found)
    return found


def ranks(compilation: Compilation) -> dict[str, int]:
    """Axes of the first output, by operator; views left out."""
    return {
        n.op_type: len(graph.static_shape(n.outputs[0]))
        for n in compilation.graph
        if n.op_type not in conv1d.VIEWS
    }


W, TURNED, SLOPE, ALONG = normal(8, 6, 3), normal(8, 5, 3), normal(8, 1), normal(1, 8, 18)
CONV = "c = Conv(x, w)"  # float[2,8,18]


@pytest.mark.parametrize(
    ("body", "out"),
    [
        (f"{CONV} y = Relu(c)", "2,8,18"),
        (f"{CONV} y = PRelu(c, slope)", "2,8,18"),
        (f"{CONV} y = Add(along, c)", "2,8,18"),
        (f"{CONV} s = Sigmoid(c) y = Mul(s, c)", "2,8,18"),
        (f"{CONV} z = Slice(x, zero, eighteen, two) d = Concat<axis = 1>(z, x_less) y = Add(c, d)", "2,8,18"),
        (f"{CONV} y = Concat<axis = 2>(c, c)", "2,8,36"),
        (f"{CONV} y = Concat<axis = -2>(c, c)", "2,16,18"),
        (f"{CONV} y = Concat<axis = 0>(c, c)", "4,8,18"),
        (f"{CONV} y = Pad(c, pads, half)", "2,9,23"),
        (f"{CONV} y = Pad<mode = \"reflect\">(c, ends)", "2,8,21"),
        (f"{CONV} y = MaxPool<kernel_shape = [3], strides = [2], pads = [1, 0]>(c)", "2,8,9"),
        (f"{CONV} y = MaxPool<kernel_shape = [4], strides = [3], ceil_mode = 1>(c)", "2,8,6"),
        (f"{CONV} y = AveragePool<kernel_shape = [3], pads = [1, 1], count_include_pad = 1>(c)", "2,8,18"),
        (f"{CONV} y = GlobalAveragePool(c)", "2,8,1"),
        (f"{CONV} y = GlobalMaxPool(c)", "2,8,1"),
        (f"{CONV} y = Transpose<perm = [0, 2, 1]>(c)", "2,18,8"),
        (f"{CONV} y = ConvTranspose<strides = [2], output_padding = [1], pads = [1, 0]>(c, turned)", "2,5,37"),
        ("y = Conv<pads = [3, 0], dilations = [2], strides = [2]>(x, w)", "2,8,10"),
        ("y = Conv<group = 2, kernel_shape = [3]>(x, grouped, bias)", "2,8,18"),
        ("y = Conv<auto_pad = \"SAME_LOWER\", strides = [3]>(x, w)", "2,8,7"),
    ],
)  # fmt: skip
def test_what_reads_a_convolution_works_on_its_image(body: str, out: str, tmp_path: Path) -> None:
    path = model(
        tmp_path, body, out, w=W, turned=TURNED, slope=SLOPE, along=ALONG, grouped=normal(8, 3, 3),
        bias=normal(8), zero=np.array([0]), eighteen=np.array([18]), two=np.array([2]),
        x_less=normal(2, 2, 18), pads=np.array([0, 1, 2, 0, 0, 3]), ends=np.array([0, 0, 2, 0, 0, 1]),
        half=np.array(0.5, np.float32),
    )  # fmt: skip
    found = rewritten(path)
    assert "Conv" in operators(found.graph) or "ConvTranspose" in operators(found.graph)
    assert {op: rank for op, rank in ranks(found).items() if rank != 4 and op != "Slice"} in (
        {},
        {"Concat": 3},
    )


def test_a_chain_of_convolutions_is_one_of_images(tmp_path: Path) -> None:
    """Only the ends of the chain are views; a residual and a gate are within."""
    body = """a = Conv<pads = [1, 1]>(x, w) b = Relu(a) c = Conv<pads = [2, 2], dilations = [2]>(b, v)
    t = Tanh(c) s = Sigmoid(c) g = Mul(t, s) r = Add(g, b) y = Conv(r, v)"""
    path = model(tmp_path, body, "2,8,18", w=W, v=normal(8, 8, 3))
    found = rewritten(path)
    views = [n for n in found.graph if n.op_type in conv1d.VIEWS]
    assert len(views) == 2
    assert [n.name for n in found.graph if n.op_type == "Conv"] == [
        n.name for n in canonical(path).graph if n.op_type == "Conv"
    ]


def test_channels_last_around_convolutions_stay_transposes_of_images(tmp_path: Path) -> None:
    body = """a = Transpose<perm = [0, 2, 1]>(x) b = Conv(a, w) c = Relu(b) d = Conv(c, v)
    y = Transpose<perm = [0, 2, 1]>(d)"""
    path = model(tmp_path, body, "2,16,8", x="2,20,6", w=W, v=normal(8, 8, 3))
    found = rewritten(path)
    assert operators(found.graph) == ["Reshape", "Transpose", "Conv", "Relu", "Conv", "Transpose", "Reshape"]


def test_a_view_of_a_view_without_height_is_one_of_the_image(tmp_path: Path) -> None:
    body = f"{CONV} u = Unsqueeze(c, two) d = Conv(u, image) y = Flatten(d)"
    path = model(tmp_path, body, "2,144", w=W, two=np.array([2]), image=normal(8, 8, 1, 1))
    assert operators(rewritten(path).graph) == ["Reshape", "Conv", "Conv", "Flatten"]


@pytest.mark.parametrize(
    ("body", "x", "out"),
    [
        ("y = Relu(x)", "2,6,20", "2,6,20"),
        ("y = MaxPool<kernel_shape = [3]>(x)", "2,6,20", "2,6,18"),
        ("y = Conv(x, w)", "0,6,20", "0,8,18"),
        ("k = Relu(x) y = Conv(image, k)", "8,6,3", "1,8,5"),
        ("y = Conv(x, w)", "1,6,n", "1,8,m"),
    ],
)
def test_what_is_no_such_convolution_stays(body: str, x: str, out: str, tmp_path: Path) -> None:
    path = model(tmp_path, body, out, x=x, w=W, image=normal(1, 6, 7))
    found = canonical(path, rewrites=ROWS, shapes={"x": (1, 6, 20)} if "n" in x else None)
    expected = canonical(path, shapes={"x": (1, 6, 20)} if "n" in x else None)
    if "n" in x:  # once bound, it is one
        assert operators(found.graph) == ["Reshape", "Conv", "Reshape"]
    else:
        assert operators(found.graph) == operators(expected.graph)


def test_a_network_of_sequences_runs_on_blocks(tmp_path: Path, compiler: Compiler) -> None:
    """Wide ones take blocked layouts; poisoned padding and dead memory are not read."""
    body = """a = Conv<pads = [1, 1]>(x, w) b = Relu(a) c = Conv<strides = [2]>(b, v, bias)
    p = MaxPool<kernel_shape = [2], strides = [2]>(c) d = Concat<axis = 1>(p, p) s = Sigmoid(d)
    e = ConvTranspose<strides = [2]>(s, t) y = Transpose<perm = [0, 2, 1]>(e)"""
    weights = {"w": normal(40, 24, 3), "v": normal(40, 40, 3), "bias": normal(40), "t": normal(80, 20, 3)}
    path = model(tmp_path, body, "3,49,20", x="3,24,100", **weights)
    compilation = session.canonical(load(path), host(), Options(), Bindings(), load_registry())
    program = session.planned(compilation, Options())
    layouts = program.compilation.plan.layout or {}
    anchors = {"Conv", "MaxPool"}
    blocked = [s for s in program.steps if s.group.op in anchors and not layouts[s.group.outputs[0]].is_plain]
    assert len(blocked) == 3
    executor = Executor(program, compiler, poison=True)
    fed = {"x": normal(3, 24, 100)}
    assert_close(np.asarray(executor.run(fed)["y"]), np.asarray(evaluate(load(path).model, fed)["y"]), 1e-4)
    executor.close()
