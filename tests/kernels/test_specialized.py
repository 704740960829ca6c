"""Operators whose parameters or sizes a run tells, as models, against NumPy and the reference evaluator."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.types.errors import InputError, KernelError
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array
from tests.kernels.single_node import kind_of, node_text, reference
from tests.session import Session, on_own_kernels

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((4, 1, 6, 5)).astype(np.float32)


def node(
    compiler: Compiler,
    folder: Path,
    body: str,
    runs: Sequence[Mapping[str, Array]],
    outputs: Mapping[str, type],
    opset: int = 21,
) -> list[list[Array]]:
    """Outputs of a node in each of several runs, whose operands have the shapes of the first."""
    text = node_text(body, runs[0], outputs, opset=opset)
    for name, kind in outputs.items():
        text = text.replace(f"{kind_of(kind)}[] {name}", f"{kind_of(kind)} {name}")
    session = on_own_kernels(compiler, folder, text)
    results = [session.run(inputs) for inputs in runs]
    session.close()
    return [[np.asarray(found[name]) for name in outputs] for found in results]


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


REDUCTIONS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **how: np.abs(x).sum(**how),
    "ReduceL2": lambda x, **how: np.sqrt((x * x).sum(**how)),
    "ReduceSumSquare": lambda x, **how: (x * x).sum(**how),
    "ReduceLogSumExp": lambda x, **how: np.log(np.exp(x).sum(**how)),
}


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_over_the_axes_of_each_run(
    compiler: Compiler, tmp_path: Path, op: str, keepdims: int
) -> None:
    runs = [{"x": X * f, "a": integers(*a)} for f, a in ((1, (1, 3)), (2, (0, 2)), (3, (-1, 0)), (4, (1, 3)))]
    for inputs, (found,) in zip(
        runs, node(compiler, tmp_path, f"{op} <keepdims = {keepdims}> (x, a)", runs, {"y": np.float32})
    ):
        axes = tuple(int(a) for a in inputs["a"])
        expected = REDUCTIONS[op](inputs["x"].astype(np.float64), axis=axes, keepdims=bool(keepdims))
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("empty", [(), (0,), (0, 1)])
def test_a_reduction_over_no_axes_or_no_elements(
    compiler: Compiler, tmp_path: Path, dtype: type, empty: tuple[int, ...]
) -> None:
    inputs = {"x": np.zeros((2, 0, 3), dtype), "a": integers(*empty)}
    ((found,),) = node(compiler, tmp_path, "ReduceSum (x, a)", [inputs], {"y": dtype})
    np.testing.assert_array_equal(found, inputs["x"].sum(axis=empty or None, keepdims=True))


MOVES = {
    "Reshape (x, a)": [{"a": integers(*a)} for a in ((10, 12), (6, -1), (0, -1), (120, 1))],
    "Reshape <allowzero = 1> (x, a)": [{"a": integers(5, -1, 3)}, {"a": integers(2, 3, 20)}],
    "Squeeze (x, a)": [{"a": integers(1)}, {"a": integers(-3)}],
    "Unsqueeze (x, a)": [{"a": integers(0, 3)}, {"a": integers(-1, 1)}],
    "Expand (x, a)": [{"a": integers(*a)} for a in ((4, 3, 6, 5), (1, 7, 1, 1), (4, 1, 6, 5))],
    "Tile (x, a)": [{"a": integers(*a)} for a in ((1, 2, 1, 3), (2, 1, 1, 1), (1, 0, 1, 1))],
    "Slice (x, s, e, a, t)": [
        {"s": integers(*s), "e": integers(*e), "a": integers(*a), "t": integers(*t)}
        for s, e, a, t in (
            ((1, 0), (3, 4), (0, 2), (1, 2)),
            ((-1, 4), (-100, 0), (2, -1), (-1, -2)),
            ((5, 2), (9, 1), (0, 3), (1, 1)),
        )
    ],
    "Pad (x, p, v)": [
        {"p": integers(*p), "v": np.array(f, np.float32)}
        for p, f in (((0, 1, 0, 2, 0, 0, 1, 0), 3), ((0, 0, 0, 0, 1, 0, 0, 3), 7))
    ],
    'Pad <mode = "reflect"> (x, p, , a)': [
        {"p": integers(2, 1, 0, 3), "a": integers(3, 2)},
        {"p": integers(1, 1, 1, 1), "a": integers(-1, 0)},
    ],
    'Pad <mode = "wrap"> (x, p)': [{"p": integers(0, 0, 2, 1, 1, 1, 0, 9)}],
}


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64, np.bool_, np.uint16])
@pytest.mark.parametrize("body", MOVES)
def test_movements_by_the_parameters_of_each_run(
    compiler: Compiler, tmp_path: Path, body: str, dtype: type
) -> None:
    def typed(array: Array) -> Array:
        return array if array.dtype == np.int64 else array.astype(dtype)

    runs = [{"x": (9 * X).astype(dtype), **{n: typed(a) for n, a in r.items()}} for r in MOVES[body]]
    for inputs, found in zip(runs, node(compiler, tmp_path, body, runs, {"y": dtype})):
        expected = reference(body, inputs)
        assert found[0].dtype == dtype
        np.testing.assert_array_equal(found[0], expected[0])


def test_pads_that_crop(compiler: Compiler, tmp_path: Path) -> None:
    runs = [{"x": X, "p": integers(*p)} for p in ((0, 0, -1, -2, 0, 0, -2, 1), (-4, 0, 0, 0, 0, 0, 0, 0))]
    (first,), (second,) = node(compiler, tmp_path, "Pad (x, p)", runs, {"y": np.float32})
    np.testing.assert_array_equal(first, np.pad(X[:, :, 1:4, 2:], ((0, 0),) * 3 + ((0, 1),)))
    assert second.shape == (0, 1, 6, 5)


@pytest.mark.parametrize("sizes", [((2, 3, 1), (6, 0, 0)), ((1, 1, 4), (1, 1, 4))])
def test_parts_of_the_sizes_of_each_run(
    compiler: Compiler, tmp_path: Path, sizes: tuple[tuple[int, ...], ...]
) -> None:
    runs = [{"x": X, "s": integers(*s)} for s in sizes]
    outputs = dict.fromkeys("abc", np.float32)
    for inputs, parts in zip(runs, node(compiler, tmp_path, "Split <axis = 2> (x, s)", runs, outputs)):
        for part, expected in zip(parts, np.split(X, np.cumsum(inputs["s"])[:-1], 2), strict=True):
            np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("largest", [0, 1])
def test_as_many_of_the_largest_as_each_run_asks_for(
    compiler: Compiler, tmp_path: Path, largest: int
) -> None:
    runs = [{"x": X, "k": integers(k)} for k in (3, 6, 1, 0)]
    body = f"TopK <axis = 2, largest = {largest}> (x, k)"
    outputs = {"y": np.float32, "i": np.int64}
    for inputs, (y, i) in zip(runs, node(compiler, tmp_path, body, runs, outputs)):
        order = np.argsort(-X if largest else X, axis=2, kind="stable")[:, :, : inputs["k"][0]]
        np.testing.assert_array_equal(i, order)
        np.testing.assert_array_equal(y, np.take_along_axis(X, order, 2))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_images_of_the_sizes_of_each_run(compiler: Compiler, tmp_path: Path, mode: str) -> None:
    runs = [{"x": X, "s": integers(*s)} for s in ((4, 1, 9, 10), (4, 1, 6, 5), (4, 1, 3, 1), (2, 1, 6, 2))]
    body = f'Resize <mode = "{mode}", coordinate_transformation_mode = "asymmetric"> (x, , , s)'
    for inputs, (found,) in zip(runs, node(compiler, tmp_path, body, runs, {"y": np.float32})):
        np.testing.assert_allclose(found, reference(body, inputs)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_images_scaled_along_some_axes(compiler: Compiler, tmp_path: Path, mode: str) -> None:
    runs = [{"x": X, "s": np.array(s, np.float32)} for s in ((2, 1), (0.5, 3), (1, 1))]
    body = f'Resize <mode = "{mode}", axes = [2, 1]> (x, , s)'
    for inputs, (found,) in zip(runs, node(compiler, tmp_path, body, runs, {"y": np.float32})):
        np.testing.assert_allclose(found, reference(body, inputs)[0], rtol=1e-5, atol=1e-6)


def test_corners_are_aligned_by_sizes(compiler: Compiler, tmp_path: Path) -> None:
    body = 'Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , , s)'
    x = RANDOM.standard_normal((1, 1, 49, 3)).astype(np.float32)
    runs = [{"x": x, "s": integers(*s)} for s in ((1, 1, 7, 49), (1, 1, 99, 1), (1, 1, 49, 3))]
    for inputs, (found,) in zip(runs, node(compiler, tmp_path, body, runs, {"y": np.float32})):
        # Coordinates are computed in float32: of 49 elements they are off by 3e-6.
        np.testing.assert_allclose(found, reference(body, inputs)[0], rtol=0, atol=1e-4)


def test_made_tensors(compiler: Compiler, tmp_path: Path) -> None:
    runs = [{"s": integers(*s)} for s in ((2, 3), (0, 4), (5, 1))]
    body = "ConstantOfShape <value = int32[1] {7}> (s)"
    for inputs, (found,) in zip(runs, node(compiler, tmp_path, body, runs, {"y": np.int32})):
        np.testing.assert_array_equal(found, np.full(inputs["s"], 7, np.int32))
    depths = [{"x": integers(0, 2, -1, 9), "d": np.array(d), "v": integers(3, 8)} for d in (3, 5)]
    for inputs, (found,) in zip(
        depths, node(compiler, tmp_path, "OneHot (x, d, v)", depths, {"y": np.int64})
    ):
        np.testing.assert_array_equal(found, reference("OneHot (x, d, v)", inputs)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
def test_ranges(compiler: Compiler, tmp_path: Path, dtype: type) -> None:
    runs = [
        {n: np.array(v, dtype) for n, v in zip("abc", bounds)}
        for bounds in ((1, 9, 3), (10, -4, -3), (2, 2, 1), (0, 5000, 1))
    ]
    for inputs, (found,) in zip(runs, node(compiler, tmp_path, "Range (a, b, c)", runs, {"y": dtype})):
        np.testing.assert_array_equal(found, np.arange(*(inputs[n] for n in "abc"), dtype=dtype))


@pytest.mark.parametrize(("op", "function"), [("CumSum", np.cumsum), ("CumProd", np.cumprod)])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_scans_along_the_axis_of_each_run(
    compiler: Compiler, tmp_path: Path, op: str, function: np.ufunc, kind: type
) -> None:
    x = RANDOM.uniform(0.8, 1.2, (3, 4, 700))
    runs = [{"x": x, "a": np.array(a, kind)} for a in (0, 1, -1)]
    for inputs, (found,) in zip(runs, node(compiler, tmp_path, f"{op} (x, a)", runs, {"y": np.float64}, 26)):
        np.testing.assert_allclose(found, function(x, axis=int(inputs["a"])), rtol=1e-12)


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles_above_the_diagonal_of_each_run(compiler: Compiler, tmp_path: Path, upper: int) -> None:
    runs = [{"x": X, "k": np.array(k)} for k in (0, -2, 3, 99, -(2**63))]
    body = f"Trilu <upper = {upper}> (x, k)"
    for inputs, (found,) in zip(runs, node(compiler, tmp_path, body, runs, {"y": np.float32})):
        k = max(int(inputs["k"]), -99)
        np.testing.assert_array_equal(found, (np.triu if upper else np.tril)(X, k))


WRONG = {
    "ReduceSum (x, a)": (integers(0), integers(4)),
    "Reshape (x, a)": (integers(120), integers(119)),
    "Squeeze (x, a)": (integers(1), integers(0)),
    "Unsqueeze (x, a)": (integers(0), integers(9)),
    "Expand (x, a)": (integers(4, 1, 6, 5), integers(4, 1, 7, 5)),
    "Tile (x, a)": (integers(1, 1, 1, 1), integers(1, 1, 1, -1)),
    "Split <axis = 2> (x, a)": (integers(6), integers(7)),
    "TopK (x, a)": (integers(5), integers(6)),
    "Pad (x, a)": (integers(*[0] * 8), integers(-5, *[0] * 7)),
    "Resize (x, , , a)": (integers(4, 1, 6, 5), integers(4, 1, 0, 5)),
    "Slice (x, c, d, e, a)": (integers(1), integers(0)),
}


@pytest.mark.parametrize("body", WRONG)
def test_parameters_that_do_not_fit_are_an_error(compiler: Compiler, tmp_path: Path, body: str) -> None:
    good, bad = WRONG[body]
    outputs = "y, i" if body.startswith("TopK") else "y"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[4,1,6,5] x, int64[{good.size}] a) => (float y) {{
        c = Constant <value_ints = [1]> () d = Constant <value_ints = [4]> ()
        e = Constant <value_ints = [0]> () {outputs} = {body} }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    before = session.run({"x": X, "a": good})
    with pytest.raises(KernelError, match=body.split()[0]):
        session.run({"x": X, "a": bad})
    np.testing.assert_array_equal(session.run({"x": X, "a": good})["y"], before["y"])
    session.close()


def test_an_axis_of_a_scan_that_is_none_is_an_error(compiler: Compiler, tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x, int64 a) => (float y) { y = CumSum(x, a) }'
    )
    session = on_own_kernels(compiler, tmp_path, text)
    for wrong in (2, -3):
        with pytest.raises(InputError, match=f"axis {wrong} is out of range for rank 2"):
            session.run({"x": X[:2, 0, :3, 0], "a": np.array(wrong)})
    session.close()


# Each operator reads values whose sizes only a run tells, made by a Slice.
CHAINS = {
    "y = Relu(t)": lambda t, _b: np.maximum(t, 0),
    "y = Add(t, b)": lambda t, b: t + b,
    "u = Transpose<perm = [1, 0]>(t) y = Mul(u, t)": lambda t, _b: t.T * t if t.shape[0] == 1 else None,
    "u = Exp(t) v = Sub(u, t) y = ReduceSum(v)": lambda t, _b: (
        (np.exp(t) - t).sum(keepdims=True).reshape(1, 1)
    ),
    "y = Concat<axis = 0>(t, b, t)": lambda t, b: np.concatenate([t, b, t]),
    "n = Shape(t) u = Expand(b, n) y = Mul(u, t)": lambda t, b: b * t,
    "i = Constant<value_ints = [2, 0]>() y = Gather<axis = 1>(t, i)": lambda t, _b: t[:, [2, 0]],
    "c = Less(t, b) y = Where(c, t, b)": lambda t, b: np.minimum(t, b),
    "y = ReduceSum<keepdims = 0>(t)": lambda t, _b: t.sum(),
    "a = Constant<value_ints = [0]>() y = ReduceMax(t, a)": (
        lambda t, _b: t.max(0, keepdims=True) if len(t) else None
    ),
    "y = Transpose(t)": lambda t, _b: t.T,
    "y = Flatten<axis = 0>(t)": lambda t, _b: t.reshape(1, -1),
}


@pytest.mark.parametrize("body", CHAINS)
def test_operators_on_values_of_unknown_sizes(compiler: Compiler, tmp_path: Path, body: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[7,3] x, int64[1] s, int64[1] e, float[1,3] b) => (float y) {{ t = Slice(x, s, e) {body} }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    x, b = (RANDOM.standard_normal(s).astype(np.float32) for s in ((7, 3), (1, 3)))
    for first, last in ((0, 1), (2, 6), (6, 7), (3, 3), (0, 7)):
        expected = CHAINS[body](x[first:last].astype(np.float64), b.astype(np.float64))
        if expected is None:
            continue
        found = session.run({"x": x, "s": integers(first), "e": integers(last), "b": b})["y"]
        assert isinstance(found, np.ndarray)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    session.close()


FUSED = {
    "u = Exp(t) v = Mul(u, b) y = Sub(v, t)": lambda t, b: np.exp(t) * b - t,
    "u = Mul(t, b) v = Tanh(u) w = Add(v, c) y = Mul(w, t)": lambda t, b: (np.tanh(t * b) + 0.5) * t,
    "u = Neg(t) y = Add(u, u)": lambda t, _b: -2 * t,
    "u = Neg(t) v = Exp(u) w = Add(u, b) y = Mul(v, w)": lambda t, b: np.exp(-t) * (b - t),
}


@pytest.mark.parametrize("body", FUSED)
def test_elementwise_operators_on_values_of_unknown_sizes_are_one_kernel(
    compiler: Compiler, tmp_path: Path, body: str
) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[7,3] x, int64[1] s, int64[1] e, float[3] b)
        => (float y) {{ c = Constant <value_float = 0.5> () t = Slice(x, s, e) {body} }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    assert len(session.program.steps) == 2
    x, b = (RANDOM.standard_normal(s).astype(np.float32) for s in ((7, 3), (3,)))
    for first, last in ((2, 6), (6, 7), (3, 3), (0, 7)):
        found = session.run({"x": x, "s": integers(first), "e": integers(last), "b": b})["y"]
        expected = FUSED[body](x[first:last].astype(np.float64), b.astype(np.float64))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, strict=False)
    session.close()


@pytest.fixture(scope="module")
def sums(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Session:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2,3,1,2,3,2] x, int64[3] a) => (float y) { y = ReduceSum(x, a) }"""
    return on_own_kernels(compiler, tmp_path_factory.mktemp("sums"), text)


@settings(max_examples=60, deadline=None)
@given(axes=st.lists(st.integers(0, 5), min_size=3, max_size=3, unique=True))
def test_probes_find_every_kernel_of_a_reduction(sums: Session, axes: list[int]) -> None:
    x = np.arange(72, dtype=np.float32).reshape(2, 3, 1, 2, 3, 2)
    np.testing.assert_array_equal(
        sums.run({"x": x, "a": integers(*axes)})["y"], x.sum(axis=tuple(axes), keepdims=True)
    )


def test_more_specializations_than_are_kept(compiler: Compiler, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[20] x, int64[1] s, int64[1] e) => (float y) { y = Slice(x, s, e) }"""
    session = on_own_kernels(compiler, tmp_path, text)
    x = np.arange(20, dtype=np.float32)
    for first in (*range(12), *range(12)):
        found = session.run({"x": x, "s": integers(first), "e": integers(18)})["y"]
        np.testing.assert_array_equal(found, x[first:18])
    session.close()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_all_axes_of_a_value_of_unknown_size_are_reduced(
    compiler: Compiler, tmp_path: Path, count: int
) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[7,1] x, int64[1] s, int64[1] e) => (float y) { t = Slice(x, s, e) y = ReduceSum(t) }"""
    session = on_own_kernels(compiler, tmp_path, text)
    x = RANDOM.standard_normal((7, 1)).astype(np.float32)
    found = session.run({"x": x, "s": integers(0), "e": integers(count)})["y"]
    np.testing.assert_allclose(found, x[:count].sum(keepdims=True).reshape(1, 1), rtol=1e-6)
    session.close()


def test_one_value_may_be_several_parameters(compiler: Compiler, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[7,5,3] x, int64[1] s, int64[1] e) => (float y) {
            one = Constant <value_ints = [1]> ()
            t = Slice(x, s, e)
            u = Slice(t, one, e, one, one)
            y = Exp(u)
        }"""
    session = on_own_kernels(compiler, tmp_path, text)
    x = RANDOM.standard_normal((7, 5, 3)).astype(np.float32)
    for start, end in ((0, 4), (2, 3), (1, 7)):
        found = session.run({"x": x, "s": integers(start), "e": integers(end)})["y"]
        np.testing.assert_allclose(np.asarray(found), np.exp(x[start:end, 1:end]), rtol=1e-6)
    session.close()
