"""What is said of the memory of training graphs, against the plan's own documents."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.entry.optimize import optimize
from app.engine.entry.training import write
from app.engine.gradient import marks
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.training_memory import backward_steps, described
from app.engine.report.report import memory_json
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from tests.conftest import KERNELS

OPTIONS = Options(autotune=False, choose="first", timings="predicted", verify=False)
TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[32, 16] x) => (float[32, 8] y)
    <float[16, 64] w = {WIDE}, float[64, 64] v = {SQUARE}, float[64, 8] u = {LAST}> {
    a = MatMul(x, w) b = Tanh(a) c = MatMul(b, v) d = Sigmoid(c) e = Softplus(d) f = Exp(e) k = Sin(f) y = MatMul(k, u) }"""


def made(folder: Path) -> Path:
    """The training graph of a network of three layers."""
    text = TEXT
    for name, count in (("WIDE", 16 * 64), ("SQUARE", 64 * 64), ("LAST", 64 * 8)):
        text = text.replace(name, ", ".join(f"{(i % 17 - 8) / 64}" for i in range(count)))
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    write(folder / "model.onnx", "y", None, Bindings(), folder / "training.onnx")
    return folder / "training.onnx"


def test_peaks_and_kept_values_are_those_of_the_plan(tmp_path: Path) -> None:
    loaded = load(made(tmp_path))
    gradients = marks.gradients(loaded.model)
    assert gradients == {"w_grad", "v_grad", "u_grad"}
    compilation = session.canonical(loaded, host(), OPTIONS, Bindings(), load_registry())
    program = session.planned(compilation, OPTIONS)
    found = described(program, gradients, session.builder(compilation, OPTIONS))
    assert found is not None
    backward = backward_steps(program, gradients)
    forward = {s.index for s in program.steps} - backward
    # `y` and `y_sum` are what forward steps are for.
    assert {v.name for s in program.steps if s.index in backward for v in s.group.outputs} >= gradients
    assert {v.name for s in program.steps if s.index in forward for v in s.group.outputs} >= {"y", "y_sum"}
    live = [s["live_bytes"] for s in memory_json(program.compilation)["steps"]]
    assert found["forward"] == {"steps": len(forward), "peak_bytes": max(live[i] for i in forward)}
    assert found["backward"] == {"steps": len(backward), "peak_bytes": max(live[i] for i in backward)}
    kept = {k["name"]: k["bytes"] for k in found["kept"]}
    assert (found["kept_bytes"], found["kept_values"]) == (sum(kept.values()), len(kept))
    forward_values = {v.name for s in program.steps if s.index in forward for v in s.group.outputs}
    read = {v.name for s in program.steps if s.index in backward for v in s.group.inputs}
    assert kept.keys() == forward_values & read - {"y", "y_sum"}
    assert kept["b"] == 32 * 64 * 4
    order = found["order"]
    assert order == memory_json(program.compilation)["order"]
    assert order["gap"] == program.arena_bytes / order["lower_bound"] - 1
    assert order["proved"] == (program.arena_bytes == order["lower_bound"])


def test_points_of_computing_again_are_smaller_plans(tmp_path: Path) -> None:
    loaded = load(made(tmp_path))
    gradients = marks.gradients(loaded.model)
    compilation = session.canonical(loaded, host(), OPTIONS, Bindings(), load_registry())
    program = session.planned(compilation, OPTIONS)
    found = described(program, gradients, session.builder(compilation, OPTIONS))
    assert found is not None
    points = found["rematerialization"]
    assert points, "the values between Sigmoid and Sin are cheap to compute again"
    peaks = [program.arena_bytes, *(p["peak_bytes"] for p in points)]
    assert peaks == sorted(set(peaks), reverse=True)
    for point in points:
        assert point["saved_bytes"] == program.arena_bytes - point["peak_bytes"]
        assert point["nodes"] >= len(point["values"]) > 0


def test_a_job_reports_the_memory_of_a_training_graph(tmp_path: Path) -> None:
    summaries = []
    for name in (made(tmp_path), tmp_path / "model.onnx"):
        folder = tmp_path / name.stem
        folder.mkdir()
        summaries.append(optimize(name, host(), OPTIONS, Bindings(), folder, kernels=KERNELS))
    training, plain = summaries
    assert training["training"]["gradients"] == 3
    assert training["training"]["kept_bytes"] > 0
    assert plain["training"] is None
    assert "kept for backward" in (tmp_path / "training" / "report.html").read_text()
    assert "kept for backward" not in (tmp_path / "model" / "report.html").read_text()
    # The optimized graph is one with gradients still.
    optimized = load(tmp_path / "training" / "optimized.onnx")
    assert marks.gradients(optimized.model) == {"w_grad", "v_grad", "u_grad"}


@pytest.mark.parametrize("noted", ['["y", 3, "no such"]', "[[[", '{"y": 1}', "[" * 100_000])
def test_notes_of_strangers_name_outputs_or_nothing(noted: str) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Sin(x) }'
    )
    proto.metadata_props.add(key=marks.NOTE, value=noted)
    assert marks.gradients(ir.from_proto(proto)) == ({"y"} if "no such" in noted else set())
