"""Layouts as text, and round trips between logical tensors and their bytes."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.types.layout import WEIGHTS, Layout, blocked, convert, plain, to_logical, to_physical

QUICK = settings(max_examples=80, deadline=None)


@st.composite
def layouts(draw: st.DrawFn, rank: int) -> Layout:
    """Any order of the axes, up to four splits of any of them."""
    order = draw(st.permutations(range(rank)))
    split = st.tuples(st.integers(0, rank - 1), st.sampled_from((2, 3, 4)))
    return Layout(tuple(order), tuple(draw(st.lists(split, max_size=4)) if rank else ()))


@st.composite
def tensors(draw: st.DrawFn, number: int) -> tuple[tuple[int, ...], list[Layout]]:
    """A shape, zero extents included, and layouts of its rank."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    return tuple(shape), [draw(layouts(len(shape))) for _ in range(number)]


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("NCHW16c", blocked(4, 16)),
        ("NCHW8c", blocked(4, 8)),
        ("NHWC", Layout((0, 2, 3, 1))),
        ("OIHW16i16o", Layout((0, 1, 2, 3), ((1, 16), (0, 16)))),
        ("HWIO", Layout((2, 3, 1, 0))),
        ("NCHW4c8c", Layout((0, 1, 2, 3), ((1, 4), (1, 8)))),
        ("NHWC2h3w", Layout((0, 2, 3, 1), ((2, 2), (3, 3)))),
        ("BAC12a", Layout((1, 0, 2), ((0, 12),))),
        ("", plain(0)),
    ],
)
def test_names_of_the_field(text: str, layout: Layout) -> None:
    assert Layout.parse(text) == layout
    assert text in (str(layout), layout.spelled(WEIGHTS) if len(layout.order) == 4 else None)


@QUICK
@given(st.integers(0, 6).flatmap(layouts))
def test_a_text_names_one_layout(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout
    if len(layout.order) == 4:
        assert Layout.parse(layout.spelled(WEIGHTS)) == layout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("NCHWc", "expected upper-case axes, then blocks like '16c'; cannot read 'c'"),
        ("NCHW16", "cannot read '16'"),
        ("NC8cHW", "cannot read 'HW'"),
        ("NCHH", "once, found 'NCHH'"),
        ("NCHWQ", "expected each letter of NCHW, OIHW or ABCDE once, found 'NCHWQ'"),
        ("NCHW8i", "block '8i' splits no axis of 'NCHW'"),
        ("NCHW1c", "block '1c' must hold at least 2 lanes"),
    ],
)
def test_an_error_says_what_was_expected(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        Layout.parse(text)


def test_a_shape_must_have_the_axes_of_the_layout() -> None:
    with pytest.raises(ValueError, match=r"layout NCHW8c has 4 axes, shape \(2, 3\) has 2"):
        blocked(4, 8).physical_shape((2, 3))
    with pytest.raises(ValueError, match=r"takes 16 elements \(1, 2, 1, 1, 8\), found 9"):
        to_logical(np.zeros(9), blocked(4, 8), (1, 9, 1, 1))


@QUICK
@given(tensors(1))
def test_round_trip(drawn: tuple[tuple[int, ...], list[Layout]]) -> None:
    shape, (layout,) = drawn
    array = numbered(shape)
    physical = to_physical(array, layout, np.nan)
    assert physical.shape == layout.physical_shape(shape)
    assert physical.nbytes == layout.nbytes(shape, 4)
    assert np.isnan(physical).sum() == physical.size - array.size
    np.testing.assert_array_equal(to_logical(physical, layout, shape), array)


@QUICK
@given(tensors(3))
def test_conversions_compose_and_have_inverses(drawn: tuple[tuple[int, ...], list[Layout]]) -> None:
    shape, (a, b, c) = drawn
    start = to_physical(numbered(shape), a, np.nan)
    between = convert(start, a, b, shape, np.nan)
    np.testing.assert_array_equal(convert(between, b, c, shape, np.nan), convert(start, a, c, shape, np.nan))
    np.testing.assert_array_equal(convert(between, b, a, shape, np.nan), start)


@QUICK
@given(tensors(1))
def test_the_same_bytes_are_those_of_row_major_order(drawn: tuple[tuple[int, ...], list[Layout]]) -> None:
    shape, (layout,) = drawn
    array = numbered(shape)
    same = np.array_equal(to_physical(array, layout, np.nan).reshape(-1), array.reshape(-1))
    if layout.is_same_bytes(shape):
        assert same
    elif array.size > 1:  # one element and its padding may differ in padding alone
        assert not same


def test_every_element_lies_where_the_definition_says() -> None:
    shape = (2, 13, 3)
    layout = Layout((2, 0, 1), ((1, 3), (0, 2), (1, 2)))  # CAB3b2a2b
    array = numbered(shape)
    physical = to_physical(array, layout)
    for a, b, c in itertools.product(*map(range, shape)):
        assert physical[c, a // 2, b // 6, b // 2 % 3, a % 2, b % 2] == array[a, b, c]


def test_blocked_element() -> None:
    array = numbered((2, 20, 3, 5))
    physical = to_physical(array, blocked(4, 8))
    assert physical[1, 2, 1, 4, 3] == array[1, 19, 1, 4]
