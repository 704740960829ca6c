"""Pad and CenterCropPad against NumPy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.backends.cpu.lookup import longest_run
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import context, implementation
from tests.kernels.single_node import REGISTRY, reference, run_text, text_group

properties = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@properties
@given(data=st.data())
def test_pad_equals_numpy(compiler: Compiler, data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    pads = [(data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))) for _ in shape]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    constants = {"p": np.array([b for b, _ in pads] + [e for _, e in pads])}
    if mode == "constant":
        constants["v"] = np.array(2.5, np.float32)
    body = f'Pad <mode = "{mode}"> ({", ".join(["x", *constants])})'
    (y,) = run_text(compiler, "pad.lookup", body, {"x": x}, constants, threads=2)
    filled = {"constant_values": 2.5} if mode == "constant" else {}
    np.testing.assert_array_equal(y, np.pad(x, pads, mode, **filled))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "int32", "float64"])
def test_pad_fills_with_zero_where_no_value_is_given(compiler: Compiler, dtype: str) -> None:
    x = np.ones((2, 30), dtype)
    constants = {"p": np.array([3, 2]), "a": np.array([-1])}
    (y,) = run_text(compiler, "pad.lookup", "Pad (x, p, , a)", {"x": x}, constants)
    np.testing.assert_array_equal(y, np.pad(x, [(0, 0), (3, 2)]))


def test_negative_pads_crop(compiler: Compiler) -> None:
    x = np.arange(40, dtype=np.float32).reshape(4, 10)
    constants = {"p": np.array([-1, 2, 1, -3]), "v": np.array(-1, np.float32)}
    (y,) = run_text(compiler, "pad.lookup", "Pad (x, p, v)", {"x": x}, constants)
    np.testing.assert_array_equal(y, np.pad(x[1:, :7], [(0, 1), (2, 0)], constant_values=-1))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(-1, 2), (9, -3), (-2, 11), (-8, 3), (-4, -5)])
def test_what_negative_pads_leave_is_repeated(compiler: Compiler, mode: str, pads: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 10)).astype(np.float32)
    body = f'Pad <mode = "{mode}"> (x, p, , a)'
    (y,) = run_text(compiler, "pad.lookup", body, {"x": x}, {"p": np.array(pads), "a": np.array([1])})
    before, after = pads
    left = x[:, max(-before, 0) : 10 + min(after, 0)]
    np.testing.assert_array_equal(y, np.pad(left, [(0, 0), (max(before, 0), max(after, 0))], mode))


def test_the_fill_value_may_be_computed_at_run_time(compiler: Compiler) -> None:
    inputs = {"x": np.ones((2, 3), np.float32), "v": np.array(7, np.float32)}
    (y,) = run_text(compiler, "pad.lookup", "Pad (x, p, v)", inputs, {"p": np.array([0, 1, 0, 1])})
    np.testing.assert_array_equal(y, np.pad(inputs["x"], [(0, 0), (1, 1)], constant_values=7))


def test_an_empty_tensor_is_padded_with_the_value_only(compiler: Compiler) -> None:
    x = np.ones((2, 0), np.float32)
    (y,) = run_text(compiler, "pad.lookup", "Pad (x, p)", {"x": x}, {"p": np.array([0, 1, 0, 2])})
    np.testing.assert_array_equal(y, np.zeros((2, 3), np.float32))
    for array, pads in ((x, [0, 1, 0, 2]), (np.ones((2, 3), np.float32), [0, -3, 0, 2])):
        group = text_group('Pad <mode = "edge"> (x, p)', {"x": array}, {"p": np.array(pads)})
        rejection = implementation("pad.lookup", REGISTRY).rejection(group, context())
        assert "nothing to repeat" in (rejection or "")


@pytest.mark.parametrize("target", [(3, 8), (6, 4), (7, 3)])
def test_center_crop_pad_keeps_the_middle(compiler: Compiler, target: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal((6, 5, 4)).astype(np.float32)
    shape = np.array(target)
    body = "CenterCropPad <axes = [0, 2]> (x, s)"
    (y,) = run_text(compiler, "center_crop_pad.lookup", body, {"x": x}, {"s": shape})
    np.testing.assert_array_equal(y, reference(body, {"x": x, "s": shape})[0])


@given(st.lists(st.sampled_from([-1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]), min_size=1, max_size=40))
def test_the_longest_run_counts_up_by_one(offsets: list[int]) -> None:
    first, last = longest_run(np.array(offsets))
    assert all(b - a == 1 and a >= 0 for a, b in zip(offsets[first:last], offsets[first + 1 : last]))


def test_the_longest_run_is_the_middle_of_a_padded_row() -> None:
    assert longest_run(np.array([-1, -1, *range(100), -1])) == (2, 102)
    assert longest_run(np.array([2, 1, *range(30), 28, 27])) == (2, 32)
    assert longest_run(np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])) == (10, 10)


@pytest.mark.parametrize("before", [0, 1, 3, 16, 17])
def test_long_rows_are_copied_to_wherever_they_begin(compiler: Compiler, before: int) -> None:
    x = np.arange(15000, dtype=np.float32).reshape(3, 5000)
    (y,) = run_text(compiler, "pad.lookup", "Pad (x, p)", {"x": x}, {"p": np.array([0, before, 0, 2])})
    np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (before, 2))))
