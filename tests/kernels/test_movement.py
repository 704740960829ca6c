"""Transpose, Slice, Concat and kin against NumPy."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.backends.cpu.strided import merged
from app.engine.operators.strides import StridedCopy, strides_of
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, context, implementation, run_group
from tests.kernels.single_node import REGISTRY, reference, run_text, text_group

properties = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def counting(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Distinct elements as far as the type goes."""
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((), ()),
        ((5,), (0,)),
        ((37, 53), (1, 0)),
        ((3, 100), (1, 0)),
        ((0, 4), (1, 0)),
        ((2, 17, 19, 5), (0, 3, 1, 2)),
        ((2, 3, 33, 18), (0, 2, 3, 1)),
        ((1, 4, 8, 6, 5), (0, 2, 1, 3, 4)),
        ((2, 3, 2, 5, 2, 7), (5, 3, 1, 4, 2, 0)),
        ((2, 1, 2, 3, 2, 2, 2, 3), (7, 6, 5, 4, 3, 2, 1, 0)),
    ],
)
def test_transpose_moves_any_element_size(
    compiler: Compiler,
    dtype: str,
    threads: int,
    shape: tuple[int, ...],
    perm: tuple[int, ...],
) -> None:
    x = counting(shape, dtype)
    body = f"Transpose <perm = [{', '.join(map(str, perm))}]> (x)" if perm else "Transpose (x)"
    (y,) = run_text(compiler, "transpose.strided", body, {"x": x}, threads=threads)
    np.testing.assert_array_equal(y, x.transpose(perm))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
@pytest.mark.parametrize("few", range(2, 18))
def test_matrices_of_few_rows_or_columns_are_transposed(compiler: Compiler, dtype: str, few: int) -> None:
    for shape in ((2, few, 67), (2, 67, few), (1, few, 1100), (1100, few)):
        x = counting(shape, dtype)
        axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        body = f"Transpose <perm = {list(axes)}> (x)"
        (y,) = run_text(compiler, "transpose.strided", body, {"x": x}, threads=2)
        np.testing.assert_array_equal(y, x.transpose(axes))


@properties
@given(data=st.data())
def test_transpose_and_its_inverse_give_the_input_back(compiler: Compiler, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    perm = data.draw(st.permutations(range(len(shape))))
    x = counting(shape)
    for axes in (perm, np.argsort(perm)):
        body = f"Transpose <perm = [{', '.join(map(str, axes))}]> (x)"
        (x,) = run_text(compiler, "transpose.strided", body, {"x": x})
    np.testing.assert_array_equal(x, counting(shape))


@properties
@given(data=st.data())
def test_concat_of_a_split_is_the_input(compiler: Compiler, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    shape[axis] = sum(sizes)
    x = counting(tuple(shape))
    names = [f"y{i}" for i in range(len(sizes))]
    parts = run_text(
        compiler,
        "split.blocks",
        f"Split <axis = {axis}> (x, split)",
        {"x": x},
        {"split": np.array(sizes)},
        names,
    )
    for part, expected in zip(parts, np.split(x, np.cumsum(sizes)[:-1], axis)):
        np.testing.assert_array_equal(part, expected)
    body = f"Concat <axis = {axis}> ({', '.join(names)})"
    (y,) = run_text(compiler, "concat.blocks", body, dict(zip(names, parts)))
    np.testing.assert_array_equal(y, x)


def test_split_skips_outputs_that_nobody_reads(compiler: Compiler) -> None:
    x = counting((4, 6))
    group = text_group("Split <axis = 1, num_outputs = 3> (x)", {"x": x}, None, ("a", "b", "c"))
    middle = replace(group, outputs=group.outputs[1:2])
    (y,) = run_group(implementation("split.blocks", REGISTRY), middle, {"x": x}, compiler)
    np.testing.assert_array_equal(y, x[:, 2:4])


@properties
@given(data=st.data())
def test_slice_with_any_step_takes_what_the_standard_says(compiler: Compiler, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    axes = data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(1, len(shape)))]
    bound = st.integers(-11, 11)
    starts = [data.draw(bound) for _ in axes]
    ends = [data.draw(st.one_of(bound, st.sampled_from([-(2**31), 2**31 - 1]))) for _ in axes]
    steps = [data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3])) for _ in axes]
    x = counting(shape)
    bounds = {"starts": starts, "ends": ends, "axes": list(axes), "steps": steps}
    (y,) = run_text(
        compiler,
        "slice.strided",
        "Slice (x, starts, ends, axes, steps)",
        {"x": x},
        {k: np.array(v) for k, v in bounds.items()},
    )
    index = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps):
        # The one difference to NumPy: starts are clamped to the first element, also downwards.
        index[axis] = slice(max(start, -shape[axis]), end, step)
    np.testing.assert_array_equal(y, x[tuple(index)])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("shape", [(5, 3, 34), (3, 110), (2, 4096)])
def test_every_second_or_third_element_of_long_rows(
    compiler: Compiler, shape: tuple[int, ...], step: int, dtype: type
) -> None:
    x = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    bounds = {"starts": 1, "ends": 2**31, "axes": -1, "steps": step}
    (y,) = run_text(
        compiler,
        "slice.strided",
        "Slice (x, starts, ends, axes, steps)",
        {"x": x},
        {k: np.array([v]) for k, v in bounds.items()},
        threads=2,
    )
    np.testing.assert_array_equal(y, x[..., 1::step])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "target"), [((), (3, 2)), ((1,), (0,)), ((3, 1, 5), (2, 3, 4, 5)), ((2, 1, 1), (2, 70, 90))]
)
def test_expand_broadcasts(
    compiler: Compiler, threads: int, shape: tuple[int, ...], target: tuple[int, ...]
) -> None:
    x = counting(shape)
    (y,) = run_text(
        compiler,
        "expand.strided",
        "Expand (x, s)",
        {"x": x},
        {"s": np.array(target)},
        threads=threads,
    )
    np.testing.assert_array_equal(y, np.broadcast_to(x, np.broadcast_shapes(shape, target)))


@pytest.mark.parametrize(
    ("shape", "repeats"), [
        ((3,), (4,)), ((2, 3, 4), (2, 1, 3)), ((2, 3), (1, 1)), ((2, 3), (0, 2)), ((50, 37), (3, 4)),
        ((7, 100), (2, 5)), ((5, 4, 3), (2, 3, 2)), ((1300, 111), (2, 2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_tile_repeats(
    compiler: Compiler, shape: tuple[int, ...], repeats: tuple[int, ...], dtype: Any
) -> None:
    x = counting(shape).astype(dtype)
    (y,) = run_text(compiler, "tile.strided", "Tile (x, r)", {"x": x}, {"r": np.array(repeats)}, threads=2)
    np.testing.assert_array_equal(y, np.tile(x, repeats))


@pytest.mark.parametrize(
    ("row", "body", "shape"),
    [
        ("depth_to_space.strided", 'DepthToSpace <blocksize = 2, mode = "DCR"> (x)', (2, 12, 3, 5)),
        ("depth_to_space.strided", 'DepthToSpace <blocksize = 3, mode = "CRD"> (x)', (1, 18, 4, 3)),
        ("space_to_depth.strided", "SpaceToDepth <blocksize = 2> (x)", (2, 3, 6, 4)),
    ],
)
def test_blocks_move_between_depth_and_space(
    compiler: Compiler, row: str, body: str, shape: tuple[int, ...]
) -> None:
    x = counting(shape)
    (y,) = run_text(compiler, row, body, {"x": x}, threads=2)
    np.testing.assert_array_equal(y, reference(body, {"x": x})[0])


def test_pairs_of_elements_move_as_one(compiler: Compiler) -> None:
    for shape, dtype in (((5, 40, 2), "float32"), ((9, 33, 4), "uint8"), ((7, 21, 2), "float16")):
        x = counting(shape, dtype)
        body = "Transpose <perm = [1, 0, 2]> (x)"
        (y,) = run_text(compiler, "transpose.strided", body, {"x": x}, threads=2)
        np.testing.assert_array_equal(y, x.transpose(1, 0, 2))
        (call,) = implementation("transpose.strided", REGISTRY).lower(text_group(body, {"x": x}), context())
        assert call.types[0] == f"uint{8 * x.itemsize * shape[-1]}*"
    odd = {"x": counting((6, 3)), "s": np.array([1]), "e": np.array([3]), "a": np.array([1])}
    (y,) = run_text(
        compiler, "slice.strided", "Slice (x, s, e, a)", {"x": odd.pop("x")}, odd
    )  # starts between two pairs
    np.testing.assert_array_equal(y, counting((6, 3))[:, 1:3])


def test_long_rows_are_shared_among_threads(compiler: Compiler) -> None:
    x, z = counting((2, 5000)), counting((2, 3000)) + 20000
    (y,) = run_text(compiler, "concat.blocks", "Concat <axis = 1> (x, z)", {"x": x, "z": z}, threads=2)
    np.testing.assert_array_equal(y, np.concatenate([x, z], 1))
    group = text_group("Concat <axis = 0> (x, x)", {"x": x})
    calls = implementation("concat.blocks", REGISTRY).lower(group, context())
    assert [c.units for c in calls] == [10000, 10000]  # axis 0: one plain block an input


@given(st.lists(st.integers(1, 4), max_size=5), st.randoms(use_true_random=False))
def test_merged_axes_visit_the_same_elements(shape: list[int], random: object) -> None:
    perm = list(range(len(shape)))
    random.shuffle(perm)  # type: ignore[attr-defined]
    sizes = tuple(shape[a] for a in perm)
    copy = StridedCopy(sizes, tuple(strides_of(shape)[a] for a in perm), strides_of(sizes))

    def visited(c: StridedCopy) -> set[tuple[int, int]]:
        return {
            (sum(map(math.prod, zip(i, c.sx))), sum(map(math.prod, zip(i, c.sy))))
            for i in np.ndindex(*c.sizes)
        }

    assert visited(merged(copy)) == visited(copy)
    assert len(merged(copy).sizes) <= len(sizes)


@pytest.mark.parametrize(
    ("row", "body"),
    [
        ("reshape.copy", "Reshape (x, s)"),
        ("flatten.copy", "Flatten (x)"),
        ("identity.copy", "Identity (x)"),
        ("squeeze.copy", "Squeeze (x)"),
        ("unsqueeze.copy", "Unsqueeze (x, a)"),
    ],
)
def test_reshapes_alias_or_copy(compiler: Compiler, row: str, body: str) -> None:
    x = counting((1, 4, 6))
    constants = {"s": np.array([3, -1])} if "s)" in body else {"a": np.array([0])} if "a)" in body else {}
    (y,) = run_text(compiler, row, body, {"x": x}, constants, threads=2)
    np.testing.assert_array_equal(y.ravel(), x.ravel())
    group = text_group(body, {"x": x}, constants)
    view = implementation(row.replace("copy", "view"), REGISTRY)
    assert view.rejection(group, context()) is None
    assert view.lower(group, context()) == ()
    assert view.views(group, context()) == ((group.inputs[0], group.outputs[0], 0),)


def test_a_transpose_is_a_view_only_if_long_axes_keep_their_order() -> None:
    view = implementation("transpose.view", REGISTRY)
    x = counting((1, 4, 1, 6))
    still = text_group("Transpose <perm = [2, 1, 3, 0]> (x)", {"x": x})
    assert view.rejection(still, context()) is None
    moved = text_group("Transpose <perm = [0, 3, 2, 1]> (x)", {"x": x})
    assert "moves elements" in (view.rejection(moved, context()) or "")


def test_refusals_name_the_input_and_the_shape() -> None:
    row = implementation("slice.strided", REGISTRY)
    two = np.zeros(2, np.int64)
    variable = text_group("Slice (x, s, e)", {"x": counting((3, 4)), "s": two, "e": two})
    assert "dynamic" in (row.rejection(variable, context()) or "")
    dynamic = text_group("Slice (x, s, e)", {"x": counting((3, 4)), "s": two}, {"e": two})
    assert row.rejection(dynamic, context()) is not None
