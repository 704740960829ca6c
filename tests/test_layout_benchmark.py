"""The benchmark of layouts on tiny graphs: every figure is there. No time is asserted."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.passes.infer_layouts import InferLayouts
from app.engine.planning.session import FRONTEND_PASSES, backend_passes
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler
from benchmarks import layouts

TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    tiny (float[1, 12, 6, 6] x) => (float[1, 12, 6, 6] y) {
        c = Conv<pads = [1, 1, 1, 1]>(x, w)
        y = Relu(c)
    }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    weight = np.random.default_rng(0).standard_normal((12, 12, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


def test_every_policy_has_a_time_or_there_is_a_reason(tiny: Path, compiler: Compiler) -> None:
    row = layouts.policy_row(tiny, 0.01, compiler.folder)
    assert isinstance(row, dict)
    for figures in ("milliseconds", "chosen_for", "conversions"):
        assert set(row[figures]) == set(layouts.POLICIES)
    assert row["conversions"]["plain"] == 0
    assert row["conversions"]["blocked"] > 0
    (note,) = row["notes"]
    assert note.endswith("proved least by 1 minimum cut")
    assert layouts.policy_table([{"model": "tiny", **row}]).row_count == 1
    assert "joint" in layouts.told(row)


def test_the_layouts_of_images_are_told_with_their_padding(tiny: Path, compiler: Compiler) -> None:
    assert layouts.images(tiny, compiler.folder, 12)[0].startswith("NCHW")


@pytest.mark.parametrize("nodes", [1, 6, 50])
def test_the_generated_graph_has_as_many_nodes_as_asked(nodes: int) -> None:
    model = layouts.residual_network(nodes)
    assert len(model.graph) == nodes
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_every_pass_has_its_seconds() -> None:
    row = layouts.pipeline_row(30)
    assert list(row["passes"]) == [p.name for p in (*FRONTEND_PASSES, *backend_passes(Options()))]
    assert InferLayouts.name in row["passes"]
    assert layouts.pipeline_table([row]).row_count == 1


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        layouts.arguments_of(["speed"])
    assert "expected parts of sweep, policies, pipeline, found speed" in capsys.readouterr().err
