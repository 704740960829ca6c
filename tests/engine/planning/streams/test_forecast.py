"""Predicted bytes of plans in strips of rows."""

from pathlib import Path

import pytest

from app.engine.core.program import Program
from app.engine.planning.streams.forecast import forecast, row_graph
from app.engine.types.errors import EngineError
from tests.engine.planning.streams.programs import BLOCK, planned


@pytest.fixture
def block(tmp_path: Path) -> Program:
    """The plan of a block of MobileNetV2 with its sum, 64 x 64."""
    inputs, body = BLOCK
    return planned(tmp_path, inputs.replace("N", "64"), body, "float[1,8,1,1] s")


def test_a_block_in_rows_takes_less_and_stays_above_its_bound(block: Program):
    found = forecast(block, bound=True)
    assert 0 < found.lower_bound <= found.rows <= found.rings < found.whole / 4
    assert found.barriers == ()
    assert max(map(len, found.segments)) > 2
    assert f"{found.rings:12} rows in rings" in str(found)
    assert "segment of" in str(found)


def test_the_rows_of_a_plan_are_those_of_its_groups(block: Program):
    rows, _ = row_graph(block)
    assert [o.name for o in rows.operators] == [s.group.name for s in block.steps]
    assert [v.rows for v in rows.values if v.accumulated] == [64]
    assert rows.outputs == ("s",)


def test_a_group_that_reads_all_rows_first_is_named_with_the_reason(tmp_path: Path):
    body = "a = Relu(x) b = Transpose<perm = [0, 1, 3, 2]>(a) y = Softmax<axis = 2>(b)"
    found = forecast(planned(tmp_path, "float[1,8,16,16] x", body, "float[1,8,16,16] y"))
    assert any("Softmax" in reason for _, reason in found.barriers)


def test_a_graph_of_unknown_shape_has_no_forecast(tmp_path: Path):
    program = planned(tmp_path, "float[1,8,16,16] x", "y = NonZero(x)", "int64[4,n] y")
    with pytest.raises(EngineError, match="no static shape"):
        forecast(program)
