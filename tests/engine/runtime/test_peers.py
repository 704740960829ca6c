"""Peers beside ours: what is measured, what is not, and what every step says of the machine."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from app.engine.core.registry import load as load_registry
from app.engine.cost import roofline
from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.planning import session, utilization
from app.engine.report.units import size
from app.engine.runtime import onnxruntime_arena, peers
from app.engine.runtime.comparison import text
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Peak, find, host
from app.kernels.cpu.runtime.compiler import Compiler

QUICK = Options(autotune=False, benchmark_seconds=0.05)
MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[1, 16, 32, 32] x) => (float[1, 16, 32, 32] y) {
  [stem] a = Conv<pads = [1, 1, 1, 1]>(x, w)
  [gate] b = Sigmoid(a)
  y = Mul(a, b)
}"""


def saved(folder: Path, source: str = MODEL) -> Path:
    model = parser.parse_model(source)
    weights = np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def told(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("job")
    return optimize(saved(folder), host(), QUICK, Bindings(), folder, kernels=compiler.cache) | {
        "folder": folder
    }


def test_a_measured_job_leads_with_its_speed_beside_onnxruntime(told: dict[str, Any]) -> None:
    found = told["comparison"]
    peer = found["peers"][0]
    assert peer["name"] == "onnxruntime"
    assert peer["ratio"] == pytest.approx(peer["seconds"] / peer["ours"])
    assert peer["same_answer"] is True
    assert found["sentence"].startswith(f"{peer['ratio']:.2f}x onnxruntime's speed (")
    page = (told["folder"] / "report.html").read_text()
    head = f"{peer['ratio']:.2f}x onnxruntime&#39;s speed"
    assert head in page
    assert page.index(head) < page.index("Before and after")


def test_memory_stands_beside_the_high_water_of_onnxruntimes_arena(told: dict[str, Any]) -> None:
    memory = told["comparison"]["memory"]
    assert memory["bytes"] == told["peak_bytes"]["after"]
    # Three activations of 64 KiB lie outside its inputs and outputs; its arena grows by powers of two.
    assert memory["onnxruntime"] >= 2**16
    assert memory["ratio"] == memory["bytes"] / memory["onnxruntime"]


def test_steps_and_the_time_outside_of_them_are_the_whole_run(told: dict[str, Any]) -> None:
    steps = told["operators"]
    whole = sum(s["seconds"] for s in steps) + told["outside"]["seconds"]
    assert whole >= told["latency"]["after"] * (1 - 1e-9)
    assert sum(s["share"] for s in steps) + told["outside"]["share"] == pytest.approx(1.0)


def test_every_step_that_computes_has_operations_bytes_and_a_share_of_the_peak(told: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in told["operators"]}
    stem = rows["stem"]
    assert stem["flops"] >= 2 * 16 * 32 * 32 * 16 * 9
    assert stem["bytes"] >= 2 * 4 * 16 * 32 * 32 + 4 * 16 * 16 * 9
    assert stem["of_peak"] > 0
    assert stem["gflops"] == pytest.approx(stem["flops"] / stem["seconds"] / 1e9)


def test_openvino_is_measured_where_it_is_installed(told: dict[str, Any]) -> None:
    pytest.importorskip("openvino")
    peer = told["comparison"]["peers"][1]
    assert (peer["name"], peer["same_answer"], peer["unavailable"]) == ("OpenVINO", True, "")


def test_a_missing_peer_is_told_and_nothing_breaks(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = peers.Peer("Nothing", "a_package_that_nobody_has", lambda *_: pytest.fail("opened"))
    monkeypatch.setattr("app.engine.entry.execution.PEERS", (absent,))
    found = optimize(saved(tmp_path), host(), QUICK, Bindings(), tmp_path, kernels=compiler.cache)
    assert found["comparison"]["peers"][0]["unavailable"] == "a_package_that_nobody_has is not installed"
    assert found["timings"] == "measured"
    assert found["comparison"]["lines"][0]["about"] == "memory"
    assert "Nothing not measured: a_package" in found["comparison"]["lines"][1]["text"]


def test_a_peer_is_released_before_the_next_is_opened(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[str] = []

    class Run:
        def __init__(self, name: str) -> None:
            self.name = name
            assert not alive, f"{alive} beside {name}"
            alive.append(name)

        def __call__(self, _inputs: object) -> dict[str, object]:
            return {}

        def __del__(self) -> None:
            alive.remove(self.name)

    rows = tuple(peers.Peer(name, "numpy", lambda *_, name=name: Run(name)) for name in ("first", "second"))
    monkeypatch.setattr("app.engine.entry.execution.PEERS", rows)
    found = optimize(saved(tmp_path), host(), QUICK, Bindings(), tmp_path, kernels=compiler.cache)
    assert [peer["name"] for peer in found["comparison"]["peers"]] == ["first", "second"]
    assert not alive


def test_a_predicted_job_leads_with_memory_and_says_that_it_is_predicted(
    compiler: Compiler, tmp_path: Path
) -> None:
    found = optimize(saved(tmp_path), find("edge-npu"), QUICK, Bindings(), tmp_path, kernels=compiler.cache)[
        "comparison"
    ]
    assert found["sentence"].startswith(f"{text(size(found['memory']['bytes']))} of activations, ")
    assert "a run, predicted (this machine is not the target: " in found["lines"][1]["text"]


def test_the_high_water_is_read_from_the_log_after_the_mark() -> None:
    log = """Extending BFCArena for Cpu. bin_num:0 rounded_bytes: 256 num_bytes: 1024
Total allocated bytes: 1000
Reserving memory in BFCArena for Cpu size: 24
mark
Total allocated bytes: 5024
Total allocated bytes: 9024
"""
    assert onnxruntime_arena.high_water(log, "mark") == 9024 - 1024
    assert onnxruntime_arena.high_water("mark\n", "mark") == 0


def test_standard_error_is_given_back_after_the_log_was_read(tmp_path: Path) -> None:
    before = os.fstat(2)
    x = {"x": np.zeros((1, 16, 32, 32), np.float32)}
    y = {"y": np.zeros((1, 16, 32, 32), np.float32)}
    assert onnxruntime_arena.measured(saved(tmp_path), x, y, 1, tmp_path) > 0
    with pytest.raises(ValueError, match="'y' is no tensor of numbers"):
        onnxruntime_arena.measured(saved(tmp_path), x, {"y": [1]}, 1, tmp_path)
    after = os.fstat(2)
    assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)


def test_bytes_of_a_step_count_every_operand_once_as_it_is_stored(tmp_path: Path) -> None:
    model = MODEL.replace("[gate] b = Sigmoid(a)\n  y = Mul(a, b)", "y = Mul(a, a)")
    loaded = load(saved(tmp_path, model))
    options = Options(fuse=False)
    compilation = session.canonical(loaded, find("cpu-avx2"), options, Bindings(), load_registry())
    program = session.planned(compilation, options)
    (square,) = (s for s in program.steps if s.group.op in ("Mul", "Elementwise"))
    assert utilization.nbytes(square, program.compilation) == 2 * 4 * 16 * 32 * 32


def test_a_share_of_the_peak_is_of_what_bounds_the_step() -> None:
    peak = Peak(100.0, {10: 50.0, 1000: 10.0}, measured=False)
    assert peak.share(100.0, 10, 2.0) == 0.5
    assert peak.share(0.0, 10, 1.0) == pytest.approx(0.2)
    assert peak.share(0.0, 5000, 1000.0) == 0.5
    assert peak.share(100.0, 0, 1.0, rate=2.0) == 0.5
    assert peak.share(0.0, 0, 1.0) is None


def test_the_described_peak_is_that_of_predictions() -> None:
    target = find("cpu-avx2")
    peak = Peak.described(target, 2)
    seconds = roofline.roofline(target, flops=0, nbytes=1024, efficiency=1.0) - target.launch
    assert peak.flops == 2 * target.flops
    assert peak.share(0.0, 1024, seconds) == pytest.approx(1.0)


def test_nodes_without_a_name_are_called_by_their_operator_and_main_output(tmp_path: Path) -> None:
    model = MODEL.replace("[stem] ", "").replace("[gate] ", "")
    options = Options(fuse=False)
    loaded = load(saved(tmp_path, model))
    compilation = session.canonical(loaded, find("edge-npu"), options, Bindings(), load_registry())
    names = [step.group.name for step in session.planned(compilation, options).steps]
    assert names == ["Conv a", "Sigmoid b", "Mul y"]


def test_nodes_of_samples_have_names_that_tell_what_they_are() -> None:
    from app import samples

    model = onnx.ModelProto.FromString(samples.build("squeezenet"))
    names = [node.name for node in model.graph.node if node.op_type == "Conv"]
    assert names[:3] == ["conv1", "fire2/squeeze1x1", "fire2/expand1x1"]
    assert len(set(names)) == len(names)


def test_a_peer_that_would_exceed_the_jobs_memory_is_left_out(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "spare_bytes", lambda: 10)
    found = optimize(saved(tmp_path), host(), QUICK, Bindings(), tmp_path, kernels=compiler.cache)
    assert [p["ratio"] for p in found["comparison"]["peers"]] == [None, None]
    assert "byte for its weights, the job may take 10 more" in found["comparison"]["lines"][1]["text"]
