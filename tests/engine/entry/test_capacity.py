"""Capacity of small models, from the file to the deployment that it names."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from app.api.schemas.deployments import CapacityAnswer, DeployRequest
from app.engine.entry import capacity as entry
from app.engine.entry.capacity import capacity
from app.engine.types.errors import InputError
from app.engine.types.options import Bindings, Options
from app.kernels.cpu.runtime.compiler import Compiler

WIDTH = 256
TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
model (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{
h = MatMul (x, w)
y = Softmax <axis = 1> (h)
}}"""
MIXING = f"""<ir_version: 10, opset_import: ["" : 21]>
model (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{
h = MatMul (x, w)
y = Softmax <axis = 0> (h)
}}"""
OPTIONS = Options(autotune=False, choose="first")
FREE = {"percentile": None, "seconds": None, "memory_bytes": None, "answer_seconds": 60.0}


@pytest.fixture(autouse=True)
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of a tenth of a second, or of a hundred requests: more make percentiles exact, which no test reads."""
    monkeypatch.setattr(entry, "_LOAD_SECONDS", 0.1)


def found_for(
    tmp_path: Path,
    compiler: Compiler,
    text: str = TEXT,
    shape: tuple[int, ...] | None = (1, WIDTH),
    **bounds: Any,
) -> CapacityAnswer:
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    bindings = Bindings() if shape is None else Bindings(shapes={"x": shape})
    answer = capacity(
        *(tmp_path / "model.onnx", OPTIONS, bindings, FREE | bounds, tmp_path),
        kernels=compiler.folder,
        external={},
        progress=lambda _phase, _done, _total: None,
    )
    return CapacityAnswer.model_validate(answer)


def test_the_answer_names_a_deployment_within_its_bounds(tmp_path: Path, compiler: Compiler) -> None:
    most = 4 << 30
    found = found_for(tmp_path, compiler, percentile=95.0, seconds=1.0, memory_bytes=most)
    chosen = found.chosen
    assert chosen is not None
    DeployRequest(name="it", **chosen.deployment.model_dump())
    assert chosen.deployment.instances * chosen.deployment.threads <= found.cores
    (row,) = (row for row in found.configurations if row.is_chosen)
    assert row.best is not None
    assert row.best.latency["p95"] <= 1.0
    assert row.memory_bytes == pytest.approx(chosen.memory.predicted_bytes, rel=0.01)
    assert row.memory_bytes <= most
    assert chosen.loads[0].rate <= row.best.rate
    assert chosen.verified == chosen.loads[-1].met == (chosen.loads[-1].latency["p95"] <= 1.0)
    assert any(row.batch_sizes for row in found.configurations), found.notes
    parts = chosen.memory
    assert parts.predicted_bytes == parts.process_bytes + parts.weights_bytes + parts.instances_bytes
    assert parts.weights_bytes >= WIDTH * WIDTH * 4
    assert found.curves
    assert found.http is None


def test_costs_of_http_are_part_of_the_answer(tmp_path: Path, compiler: Compiler) -> None:
    rows = [
        {"request": 1, "answer": 1, "sent": 1e-4, "received": 2e-4, "api": 6e-4, "executor": 3e-4},
        {"request": 4096, "answer": 1, "sent": 1e-4, "received": 2e-4, "api": 6e-4, "executor": 3e-4},
        {"request": 4096, "answer": 4096, "sent": 1e-4, "received": 2e-4, "api": 6e-4, "executor": 3e-4},
    ]
    found = found_for(tmp_path, compiler, percentile=95.0, seconds=1.0, http=rows)
    assert found.http is not None
    assert found.http.model_dump() == pytest.approx(
        {"sent": 1e-4, "request": 3e-4, "executor": 3e-4, "answer": 3e-4, "received": 2e-4}
    )
    assert found.chosen is not None
    outside = found.http.request + found.http.answer + found.http.received
    assert found.chosen.loads[0].latency["p50"] > outside + found.http.executor
    assert found.chosen.predicted.latency["p50"] > outside + found.http.executor


def test_requests_that_mix_are_not_computed_together_and_the_reason_is_told(
    tmp_path: Path, compiler: Compiler
) -> None:
    found = found_for(tmp_path, compiler, MIXING)
    assert not any(row.batch_sizes for row in found.configurations)
    (note,) = (note for note in found.notes if "batches" in note)
    assert "it works along axis 0, which has the requests" in note


def test_a_bound_that_nothing_meets_has_no_deployment(tmp_path: Path, compiler: Compiler) -> None:
    found = found_for(tmp_path, compiler, memory_bytes=1000)
    assert found.chosen is None
    assert all("1000 byte are allowed" in row.rejection for row in found.configurations)
    assert any("no configuration meets the bounds" in note for note in found.notes)


def test_a_job_that_does_not_know_its_shapes_has_no_capacity(tmp_path: Path, compiler: Compiler) -> None:
    with pytest.raises(InputError, match="the job does not know the shapes"):
        found_for(tmp_path, compiler, shape=None)
