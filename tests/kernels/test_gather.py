"""Gather, GatherElements, GatherND and the scatters against NumPy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, context, implementation
from tests.kernels.single_node import REGISTRY, reference, run_text, text_group

properties = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def counting(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def some_indices(shape: tuple[int, ...], size: int, seed: int, dtype: str = "int64") -> Array:
    return np.random.default_rng(seed).integers(-size, size, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "axis", "index_shape"),
    [((5,), 0, ()), ((5,), 0, (3, 2)), ((3, 4, 5), 1, (2, 2)), ((7, 40), -1, (9,)), ((6, 3), 0, (0,))],
)
def test_gather_takes_rows(
    compiler: Compiler,
    dtype: str,
    threads: int,
    shape: tuple[int, ...],
    axis: int,
    index_shape: tuple[int, ...],
) -> None:
    inputs = {"x": counting(shape, dtype), "i": some_indices(index_shape, shape[axis], 1)}
    body = f"Gather <axis = {axis}> (x, i)"
    (y,) = run_text(compiler, "gather.rows", body, inputs, threads=threads)
    np.testing.assert_array_equal(y, np.take(inputs["x"], inputs["i"], axis))


def test_gather_of_one_constant_index_is_a_copy(compiler: Compiler) -> None:
    x, index = counting((3, 4, 5)), np.array(-2)
    (y,) = run_text(compiler, "gather.rows", "Gather <axis = 1> (x, i)", {"x": x}, {"i": index})
    np.testing.assert_array_equal(y, x[:, 2])


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_wrong_index_poisons_its_result_and_nothing_else(compiler: Compiler, dtype: str) -> None:
    inputs = {"x": counting((4, 3), dtype), "i": np.array([0, 4, -5, 3], np.int32)}
    (y,) = run_text(compiler, "gather.rows", "Gather (x, i)", inputs)
    poison = np.full(3, 0xFF, np.uint8).repeat(np.dtype(dtype).itemsize).view(dtype)
    np.testing.assert_array_equal(y, np.stack([inputs["x"][0], poison, poison, inputs["x"][3]]))


def test_a_wrong_constant_index_is_refused() -> None:
    group = text_group("Gather (x, i)", {"x": counting((4, 3))}, {"i": np.array([0, 4])})
    assert "outside" in (implementation("gather.rows", REGISTRY).rejection(group, context()) or "")


@properties
@given(data=st.data())
def test_gather_elements_equals_take_along_axis(compiler: Compiler, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    index_shape = tuple(
        data.draw(st.integers(0, 6 if a == axis else n), label=f"index extent {a}")
        for a, n in enumerate(shape)
    )
    x, i = counting(shape), some_indices(index_shape, shape[axis], 2, "int32")
    body = f"GatherElements <axis = {axis}> (x, i)"
    (y,) = run_text(compiler, "gather_elements.lines", body, {"x": x, "i": i}, threads=2)
    cut = x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(index_shape))]
    np.testing.assert_array_equal(y, np.take_along_axis(cut, i.astype(np.int64), axis))


@pytest.mark.parametrize(
    ("shape", "index_shape", "batch_dims"),
    [
        ((2, 3, 4), (5, 2), 0),
        ((2, 3, 4), (2, 7, 3), 0),
        ((4, 6), (0, 1), 0),
        ((2, 3, 4), (2, 5, 1), 1),
        ((2, 3, 4, 5), (2, 3, 2), 2),
    ],
)
def test_gather_nd_takes_slices(
    compiler: Compiler,
    shape: tuple[int, ...],
    index_shape: tuple[int, ...],
    batch_dims: int,
) -> None:
    axes = shape[batch_dims : batch_dims + index_shape[-1]]
    i = np.stack([some_indices(index_shape[:-1], n, a) for a, n in enumerate(axes)], -1)
    inputs = {"x": counting(shape), "i": i}
    body = f"GatherND <batch_dims = {batch_dims}> (x, i)"
    (y,) = run_text(compiler, "gather_nd.rows", body, inputs, threads=2)
    expected = []
    for batch in np.ndindex(*shape[:batch_dims]):
        tuples = i[batch].reshape(-1, len(axes))
        expected += [inputs["x"][batch][tuple(t)] for t in tuples]
    np.testing.assert_array_equal(y.ravel(), np.array(expected).ravel())


def test_a_wrong_tuple_poisons_its_slice(compiler: Compiler) -> None:
    inputs = {"x": counting((2, 3)), "i": np.array([[1], [2], [-3]])}
    (y,) = run_text(compiler, "gather_nd.rows", "GatherND (x, i)", inputs)
    np.testing.assert_array_equal(y[0], inputs["x"][1])
    assert np.isnan(y[1:]).all()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [("none", "float32"), ("add", "float32"), ("mul", "int32"), ("min", "float32"), ("max", "uint8")],
)
def test_scatter_elements_combines_in_order(
    compiler: Compiler, reduction: str, dtype: str, threads: int, inplace: bool
) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 50, (4, 5, 3)).astype(dtype)
    updates = rng.integers(0, 50, (3, 7, 2)).astype(dtype)
    i = some_indices(updates.shape, 5, 4)
    inputs = {"x": x, "i": i, "u": updates}
    body = f'ScatterElements <axis = 1, reduction = "{reduction}"> (x, i, u)'
    (y,) = run_text(compiler, "scatter_elements.lines", body, inputs, threads=threads, inplace=inplace)
    combine = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
    expected = x.copy()
    for place in np.ndindex(*updates.shape):
        at = (place[0], i[place], place[2])
        new = updates[place]
        expected[at] = combine[reduction](expected[at], new) if reduction in combine else new
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize(
    ("shape", "index_shape"), [((5, 8), (4, 1)), ((3, 4, 2), (2, 6, 2)), ((6,), (0, 1)), ((2, 3), (9, 2))]
)
def test_scatter_nd_combines_in_order(
    compiler: Compiler,
    shape: tuple[int, ...],
    index_shape: tuple[int, ...],
    reduction: str,
    inplace: bool,
) -> None:
    depth = index_shape[-1]
    i = np.stack([some_indices(index_shape[:-1], n, a) for a, n in enumerate(shape[:depth])], -1)
    x = counting(shape)
    updates = 100 - counting(index_shape[:-1] + shape[depth:])
    body = f'ScatterND <reduction = "{reduction}"> (x, i, u)'
    inputs = {"x": x, "i": i, "u": updates}
    (y,) = run_text(compiler, "scatter_nd.slices", body, inputs, threads=2, inplace=inplace)
    expected = x.copy()
    for place in np.ndindex(*index_shape[:-1]):
        at = tuple(i[place])
        old, new = expected[at].copy(), updates[place]
        expected[at] = {"none": new, "add": old + new, "max": np.maximum(old, new)}[reduction]
    np.testing.assert_array_equal(y, expected)


def test_scatter_at_a_wrong_index_poisons_what_it_may_have_meant(compiler: Compiler) -> None:
    inputs = {"x": counting((3, 4)), "i": np.array([[0, 3, 2]]), "u": counting((1, 3))}
    body = 'ScatterElements <axis = 0, reduction = "add"> (x, i, u)'
    (y,) = run_text(compiler, "scatter_elements.lines", body, inputs)
    assert np.isnan(y[:, 1]).all()
    assert np.isfinite(np.delete(y, 1, 1)).all()
    inputs = {"x": counting((3, 4)), "i": np.array([[3]]), "u": counting((1, 4))}
    (y,) = run_text(compiler, "scatter_nd.slices", "ScatterND (x, i, u)", inputs)
    assert np.isnan(y).all()


def test_a_scatter_of_a_tensor_into_itself_is_not_done_in_place() -> None:
    inputs = {"x": counting((3, 4)), "i": np.zeros((3, 4), np.int64)}
    group = text_group("ScatterElements (x, i, x)", inputs)
    assert implementation("scatter_elements.lines", REGISTRY).inplace(group, context()) == ()


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("inplace", [False, True])
def test_tensor_scatter_writes_into_the_cache(compiler: Compiler, mode: str, inplace: bool) -> None:
    cache, update = counting((2, 3, 5, 4)), -counting((2, 3, 2, 4))
    positions = np.array([1, 3 if mode == "linear" else 4])
    body = f'TensorScatter <mode = "{mode}"> (c, u, w)'
    inputs = {"c": cache, "u": update, "w": positions}
    (y,) = run_text(compiler, "tensor_scatter.rows", body, inputs, threads=2, inplace=inplace, opset=24)
    expected = cache.copy()
    for b, p in enumerate(positions):
        for s in range(2):
            expected[b, :, (p + s) % 5] = update[b, :, s]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", ["int64", "float32", "uint8"])
def test_one_hot_is_off_where_the_index_is_outside(compiler: Compiler, axis: int, dtype: str) -> None:
    i = np.array([[0, 3, 5], [2, 1, 250 if dtype == "uint8" else -1]]).astype(dtype)
    constants = {"d": np.array(4), "v": np.array([2.0, 7.0], np.float32)}
    body = f"OneHot <axis = {axis}> (i, d, v)"
    (y,) = run_text(compiler, "one_hot.rows", body, {"i": i}, constants, threads=2)
    classes = np.arange(4).reshape([4 if a == axis % 3 else 1 for a in range(3)])
    signed = i.astype(np.int64)
    on = np.expand_dims(np.where(signed < 0, signed + 4, signed), axis) == classes
    np.testing.assert_array_equal(y, np.where(on, np.float32(7), np.float32(2)))


@pytest.mark.parametrize("inner", [(), (3,)])
@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence_reverses_the_start_of_each(
    compiler: Compiler, time: int, batch: int, inner: tuple[int, ...]
) -> None:
    x = counting((4, 4, *inner))
    inputs = {"x": x, "n": np.array([1, 4, 2, 3])}
    body = f"ReverseSequence <time_axis = {time}, batch_axis = {batch}> (x, n)"
    (y,) = run_text(compiler, "reverse_sequence.rows", body, inputs, threads=2)
    expected = np.moveaxis(x.copy(), batch, 0)
    for b, n in enumerate(inputs["n"]):
        expected[b, :n] = expected[b, :n][::-1].copy()
    np.testing.assert_array_equal(y, np.moveaxis(expected, 0, batch))


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-9, -2, 0, 1, 9])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 2), (3, 0, 4)])
def test_trilu_keeps_a_triangle(compiler: Compiler, upper: int, k: int, shape: tuple[int, ...]) -> None:
    x = counting(shape) + 1
    body = f"Trilu <upper = {upper}> (x, k)"
    (y,) = run_text(compiler, "trilu.rows", body, {"x": x}, {"k": np.array(k)}, threads=2)
    np.testing.assert_array_equal(y, (np.triu if upper else np.tril)(x, k))


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_eye_like_makes_a_diagonal(compiler: Compiler, k: int) -> None:
    x = counting((4, 5))
    body = f"EyeLike <k = {k}, dtype = 1> (x)"
    (y,) = run_text(compiler, "eye_like.rows", body, {"x": x})
    np.testing.assert_array_equal(y, np.eye(4, 5, k, dtype=np.float32))
    np.testing.assert_array_equal(y, reference(body, {"x": x})[0])


@pytest.mark.parametrize("least", [0, -7])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_single_elements_are_gathered(compiler: Compiler, count: int, least: int) -> None:
    x, i = counting((9, 7)), np.random.default_rng(count).integers(least, 7, count)
    for threads in (1, 2, 5):
        (y,) = run_text(compiler, "gather.rows", "Gather<axis = 1>(x, i)", {"x": x, "i": i}, threads=threads)
        np.testing.assert_array_equal(y, x[:, i])


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_along_the_last_axis(compiler: Compiler, reduction: str) -> None:
    rng = np.random.default_rng(6)
    x, u = rng.standard_normal((4, 3, 9)), rng.standard_normal((3, 2, 20))
    i = rng.integers(-9, 9, u.shape)
    body = f'ScatterElements <axis = -1, reduction = "{reduction}"> (x, i, u)'
    given = {"x": x, "i": i, "u": u}
    (y,) = run_text(compiler, "scatter_elements.lines", body, given, threads=2)
    expected = x.copy()
    for place in np.ndindex(*u.shape):
        at = (*place[:2], i[place])
        expected[at] = u[place] + (expected[at] if reduction == "add" else 0)
    np.testing.assert_array_equal(y, expected)
    given["i"] = np.where(i == i[0, 0, 0], 9, i)  # outside
    (y,) = run_text(compiler, "scatter_elements.lines", body, given)
    assert np.isnan(y[0, 0]).all()
