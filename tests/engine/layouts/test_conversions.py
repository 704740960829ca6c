"""Seconds of conversions, measured of some layouts and predicted of others."""

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir
import pytest

from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext, load
from app.engine.cost import roofline
from app.engine.layouts.conversions import change, conversion, rows_between
from app.engine.types.layout import LAST, Layout, blocked
from app.engine.types.target import find

TARGET = find("cpu-avx2")
BLOCKS = blocked(4, TARGET.vector_lanes)
IMAGE = ir.Value(name="x", shape=ir.Shape((1, 64, 20, 20)), type=ir.TensorType(ir.DataType.FLOAT))
COMPILATION = Compilation(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), TARGET, load())
CONTEXT = PlanningContext.of(COMPILATION)


def seconds(layout: Layout, timings: Mapping[str, float]) -> float:
    return conversion(IMAGE, layout, COMPILATION, dataclasses.replace(CONTEXT, timings=timings))


def timings(layout: Layout, factor: float) -> dict[str, float]:
    """A table in which both directions take so many times as long as predicted."""
    group = change(IMAGE)
    rows = [row for rows in rows_between(group, layout, COMPILATION, CONTEXT) for row in rows]
    assert len(rows) == 2
    return {roofline.key(row, group, CONTEXT): factor * seconds(layout, {}) for row in rows}


@pytest.mark.parametrize(("measured", "other"), [(BLOCKS, LAST), (LAST, BLOCKS)], ids=["blocks", "last"])
def test_layouts_that_were_not_measured_are_on_the_scale_of_those_that_were(
    measured: Layout, other: Layout
) -> None:
    slow = timings(measured, 6.0)
    assert seconds(measured, slow) == pytest.approx(6 * seconds(measured, {}))
    assert seconds(other, slow) == pytest.approx(6 * seconds(other, {}))


def test_what_is_measured_is_taken_as_it_is() -> None:
    both = {**timings(BLOCKS, 6.0), **timings(LAST, 2.0)}
    assert seconds(LAST, both) == pytest.approx(2 * seconds(LAST, {}))


def test_times_of_another_value_say_nothing() -> None:
    other = {key.replace("20, 20", "21, 21"): s for key, s in timings(BLOCKS, 6.0).items()}
    assert set(other).isdisjoint(timings(BLOCKS, 6.0))
    assert seconds(LAST, other) == seconds(LAST, {})
