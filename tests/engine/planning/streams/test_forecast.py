"""Predicted bytes of plans in strips of rows."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from app.engine.core.program import Program
from app.engine.entry.explain import plan
from app.engine.planning.streams.forecast import forecast, row_graph
from app.engine.types.errors import EngineError
from app.engine.types.options import Options
from app.engine.types.target import find

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
BLOCK = (
    "float[1,8,N,64] x, float[32,8,1,1] w, float[32,1,3,3] d, float[8,32,1,1] p",
    """
    a = Conv(x, w)
    b = Relu(a)
    c = Conv<group = 32, pads = [1, 1, 1, 1]>(b, d)
    e = Relu(c)
    f = Conv(e, p)
    y = Add(x, f)
    s = GlobalAveragePool(y)
    """,
)


def _planned(folder: Path, inputs: str, body: str, outputs: str) -> Program:
    proto = onnx.parser.parse_model(f"{HEAD}g ({inputs}) => ({outputs}) {{ {body} }}")
    kept = [v for v in proto.graph.input if v.name == "x"]
    for value in proto.graph.input:
        if value.name != "x":
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            array = np.ones(shape, np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return plan(path, options=Options(autotune=False), target=find("cpu-avx2")).program


@pytest.fixture
def block(tmp_path: Path) -> Program:
    inputs, body = BLOCK
    return _planned(tmp_path, inputs.replace("N", "64"), body, "float[1,8,1,1] s")


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
    found = forecast(_planned(tmp_path, "float[1,8,16,16] x", body, "float[1,8,16,16] y"))
    assert any("Softmax" in reason for _, reason in found.barriers)


def test_a_graph_of_unknown_shape_has_no_forecast(tmp_path: Path):
    program = _planned(tmp_path, "float[1,8,16,16] x", "y = NonZero(x)", "int64[4,n] y")
    with pytest.raises(EngineError, match="no static shape"):
        forecast(program)
