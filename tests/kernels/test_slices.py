"""Concat, Split, Slice and Gather that move nothing, in small graphs planned as a whole and run in poisoned memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.operators.movement import Part, first_element
from app.engine.types.layout import Layout, blocked, plain
from app.engine.types.options import Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import model_of
from tests.session import Session


def run(body: str, compiler: Compiler, folder: Path, threads: int = 1, **constants: np.ndarray) -> list[str]:
    """Compare with the reference; the implementations of what moves data, with `copied` where a part is."""
    given = "".join(f", {_type(v)}[{','.join(map(str, v.shape))}] {k}" for k, v in constants.items())
    head = '<ir_version: 10, opset_import: ["": 21]> agraph (float[1,32,4,8] x, float[2,32,4,4] z'
    proto = onnx.parser.parse_model(f"{head}{given}) => {body}")
    kept = [v for v in proto.graph.input if v.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in constants.items())
    path = folder / "model.onnx"
    onnx.save(proto, path)
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 32, 4, 8), "z": (2, 32, 4, 4)}
    inputs = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    target = replace(host(), vector_lanes=8)
    options = Options(threads=threads, fast_algorithms=False, autotune=False)
    session = Session(path, compiler, options=options, target=target, poison=True)
    expected = ReferenceEvaluator(proto).run(None, inputs)
    for _ in range(2):
        found = session.run(inputs)
        for value, output in zip(expected, proto.graph.output, strict=True):
            np.testing.assert_allclose(found[output.name], value, rtol=1e-4, atol=1e-5)
    session.close()
    moving = ("Concat", "Split", "Slice", "Gather")
    return [
        s.choice.implementation.name + (" copied" if s.calls and s.choice.views else "")
        for s in session.program.steps
        if s.group.op in moving
    ]


def _type(array: np.ndarray) -> str:
    return {"f": "float", "i": "int64"}[array.dtype.kind]


WEIGHTS = np.random.default_rng(1).standard_normal((16, 32, 3, 3)).astype(np.float32) / 16
CUT = np.array([8, 24])
# (outputs and body, constants, rows in order)
CASES = {
    "parts are written into the whole": (
        "(float[1,64,4,8] y) { a = Relu(x) b = Exp(x) w = Concat<axis = 1>(a, b) y = Sigmoid(w) }",
        {},
        ["concat.view"],
    ),
    "the whole is an output": (
        "(float[2,32,4,8] y) { a = Relu(x) b = Exp(x) y = Concat<axis = 0>(a, b) }",
        {},
        ["concat.view"],
    ),
    "an input is copied beside parts in place": (
        "(float[1,64,4,8] y) { a = Relu(x) w = Concat<axis = 1>(x, a) y = Sigmoid(w) }",
        {},
        ["concat.view copied"],
    ),
    "a part comes twice": (
        "(float[1,64,4,8] y) { a = Relu(x) w = Concat<axis = 1>(a, a) y = Sigmoid(w) }",
        {},
        ["concat.view copied"],
    ),
    "the whole lies in pieces": (
        "(float[2,64,4,4] y) { a = Relu(z) b = Exp(z) w = Concat<axis = 1>(a, b) y = Sigmoid(w) }",
        {},
        ["concat.blocks"],
    ),
    "parts are read in the whole": (
        "(float[1,8,4,8] p, float[1,24,4,8] q) "
        "{ a = Relu(x) b, c = Split<axis = 1>(a, cut) p = Exp(b) q = Sigmoid(c) }",
        {"cut": CUT},
        ["split.view"],
    ),
    "of the parts of a split one is an output": (
        "(float[1,8,4,8] b, float[1,24,4,8] q) { a = Relu(x) b, c = Split<axis = 1>(a, cut) q = Sigmoid(c) }",
        {"cut": CUT},
        ["split.view copied"],
    ),
    "parts are read in an input": (
        "(float[1,8,4,8] p, float[1,24,4,8] q) { b, c = Split<axis = 1>(x, cut) p = Exp(b) q = Sigmoid(c) }",
        {"cut": CUT},
        ["split.view"],
    ),
    "parts are joined in another order": (
        "(float[1,32,4,8] y) "
        "{ a = Relu(x) b, c = Split<axis = 1>(a, cut) w = Concat<axis = 1>(c, b) y = Sigmoid(w) }",
        {"cut": CUT},
        ["split.view", "concat.view copied"],
    ),
    "a slice and a row": (
        "(float[1,16,4,8] p, float[32,4,8] q) "
        "{ a = Relu(x) b = Slice(a, start, end, axis) p = Exp(b) c = Gather<axis = 0>(a, zero) q = Exp(c) }",
        {"start": np.array([8]), "end": np.array([24]), "axis": np.array([1]), "zero": np.array(0)},
        ["slice.view", "gather.view"],
    ),
    "a slice of every second channel": (
        "(float[1,16,4,8] p) { a = Relu(x) b = Slice(a, start, end, axis, step) p = Exp(b) }",
        {"start": np.array([0]), "end": np.array([32]), "axis": np.array([1]), "step": np.array([2])},
        ["slice.strided"],
    ),
    "blocked images": (
        "(float[1,16,4,8] y) { a = Conv<pads = [1, 1, 1, 1]>(x, f) b = Conv<pads = [1, 1, 1, 1]>(x, g) "
        "w = Concat<axis = 1>(a, b) c = Conv<pads = [1, 1, 1, 1]>(w, f) d = Concat<axis = 1>(a, b, c) "
        "e = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(d) p, q = Split<axis = 1>(e, half) "
        "h = Conv<pads = [1, 1, 1, 1]>(q, f) y = Add(h, a) }",
        {"f": WEIGHTS, "g": WEIGHTS[::-1].copy(), "half": np.array([16, 32])},
        ["concat.view.blocked", "concat.view.blocked", "split.view.blocked"],
    ),
    "blocked images and a constant": (
        "(float[1,16,4,8] y) { a = Conv<pads = [1, 1, 1, 1]>(x, f) b = Concat<axis = 1>(a, k) "
        "y = Conv<pads = [1, 1, 1, 1]>(b, f) }",
        {"f": WEIGHTS, "k": np.random.default_rng(3).standard_normal((1, 16, 4, 8)).astype(np.float32)},
        ["concat.view.blocked copied"],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_graph_computes_the_same_with_parts_in_place(
    case: tuple[str, dict[str, np.ndarray], list[str]], compiler: Compiler, tmp_path: Path
) -> None:
    body, constants, rows = case
    assert run(body, compiler, tmp_path, **constants) == rows


def test_growing_joins_lie_in_one_buffer_and_threads_share_them(compiler: Compiler, tmp_path: Path) -> None:
    body = """(float[1,128,4,8] y) {
        a = Relu(x)  b = Exp(a)  ab = Concat<axis = 1>(a, b)
        c = ReduceMean(ab, axis)  cc = Add(a, c)  abc = Concat<axis = 1>(a, b, cc)
        d = ReduceMean(abc, axis)  dd = Add(a, d)  abcd = Concat<axis = 1>(a, b, cc, dd)
        y = Sigmoid(abcd)
    }"""
    assert run(body, compiler, tmp_path, threads=2, axis=np.array([1])) == ["concat.view"] * 3


def test_the_place_of_a_late_part_is_free_until_it_is_written(compiler: Compiler, tmp_path: Path) -> None:
    # Two other values of its size live before it, where all of the common buffer would be taken.
    body = """(float[33,32] y) {
        a = Exp(x)  m = Reshape(a, square)  early = ReduceMean(m, axis)
        t = MatMul(m, w)  u = MatMul(t, w)  r = ReduceMean(u, axis)  late = MatMul(column, r)
        joined = Concat<axis = 0>(early, late)  y = MatMul(joined, w)
    }"""
    constants = {"w": np.eye(32, dtype=np.float32), "column": np.ones((32, 1), np.float32)}
    numbers = {"axis": np.array([0]), "square": np.array([32, 32])}
    assert run(body, compiler, tmp_path, **constants, **numbers) == ["concat.view"]


def part(shape: tuple[int, ...], **taken: range) -> Part:
    model = model_of(
        f'<ir_version: 10, opset_import: ["": 21]> agraph (float{list(shape)} x) => (float{list(shape)} y) '
        "{ y = Relu(x) }"
    )
    ranges = [taken.get("nchw"[i], range(n)) for i, n in enumerate(shape)]
    return Part(model.graph.inputs[0], model.graph.outputs[0], tuple(ranges))


BLOCKED = blocked(4, 8)


@pytest.mark.parametrize(
    ("found", "layout", "expected"),
    [
        (part((1, 32, 4, 4), c=range(8, 16)), plain(4), 8 * 16),
        (part((1, 32, 4, 4), c=range(8, 16)), BLOCKED, 8 * 16),
        (part((1, 20, 4, 4), c=range(16, 20)), BLOCKED, 16 * 16),
        (part((1, 20, 4, 4), c=range(12)), BLOCKED, 0),
        (part((1, 20, 4, 4), c=range(12, 20)), BLOCKED, "'y' begins within a block of 'x'"),
        (part((2, 32, 4, 4), n=range(1, 2), c=range(8, 16)), plain(4), 32 * 16 + 8 * 16),
        (part((2, 32, 4, 4), n=range(1, 2), c=range(8, 16)), BLOCKED, 32 * 16 + 8 * 16),
        (part((2, 32, 4, 4), c=range(8, 16)), plain(4), "'y' lies in several pieces of 'x'"),
        (part((2, 32, 4, 4), c=range(8, 16)), BLOCKED, "'y' lies in several pieces of 'x'"),
        (part((1, 32, 4, 4), h=range(2)), plain(4), "'y' lies in several pieces of 'x'"),
        (part((1, 32, 4, 4), c=range(0, 32, 2)), plain(4), "'y' takes every 2th element of 'x'"),
        (part((1, 32, 4, 4), c=range(3, 2, -1)), plain(4), 3 * 16),
        (part((1, 1, 4, 4), h=range(2, 4)), Layout((0, 1, 3, 2)), "'y' lies in several pieces of 'x'"),
    ],
)
def test_a_part_begins_where_its_first_element_lies(found: Part, layout: Layout, expected: int | str) -> None:
    assert first_element(found, layout) == expected


@pytest.mark.parametrize("rest", ["t = Add(s, one) y = Softmax(t)", "t = Greater(s, one) y = Not(t)"])
@pytest.mark.parametrize("place", [0, 9])
def test_a_slice_without_elements_takes_the_place_of_nothing(
    compiler: Compiler, tmp_path: Path, place: int, rest: str
) -> None:
    kind = "bool" if "Not" in rest else "float"
    body = f"({kind}[1,0,4,8] y) {{ e = Exp(x) s = Slice(e, begin, end, axis) {rest} }}"
    ends = {"begin": np.array([place]), "end": np.array([place]), "axis": np.array([1])}
    run(body, compiler, tmp_path, one=np.ones(1, np.float32), **ends)


def test_nothing_is_computed_in_place_of_a_value_without_bytes(compiler: Compiler, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float16[8,8] a, float16[2,1] b) => (bool[2,0] y, float16[2,7] r)
    <int64[2] halves = {7, 1}, int64[2] rows = {6, 2}, int64[1] from = {-1}, int64[1] to = {-2}, int64[1] along = {1}>
    {
        left, right = Split <axis = 1> (a, halves)
        upper, lower = Split <axis = 0> (right, rows)
        e = Exp(b)
        q = Div(e, lower)
        s = Slice(q, from, to, along)
        y = GreaterOrEqual(s, b)
        c, r = Split <axis = 0> (left, rows)
    }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    rng = np.random.default_rng(0)
    inputs = {k: rng.standard_normal(s).astype(np.float16) for k, s in {"a": (8, 8), "b": (2, 1)}.items()}
    found = Session(path, compiler, options=Options(autotune=False), poison=True).run(inputs)
    assert found["y"].shape == (2, 0)
    np.testing.assert_array_equal(found["r"], inputs["a"][6:, :7])
