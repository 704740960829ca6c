"""Recorded models through the whole service: every output as it was recorded."""

import importlib.util
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from app.cli.main import main
from app.client import Client, ServiceFailureError
from benchmarks.models import recorded
from tests.api.test_models import refused
from tests.engine.canonical import runtime
from tests.engine.model.mxnet.writing import written
from tests.jobs.service import Served

pytestmark = pytest.mark.last

TOLERANCE = 1e-4  # of the output's maximum
MODELS = ("mnist_8", "silero_vad_v6", "super_resolution_10")


@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_model_runs_over_http_with_its_recorded_outputs(
    real_service: Served, shared: Path, tmp_path: Path, name: str
) -> None:
    with Client(str(real_service.http.base_url)) as client:
        model = client.model(client.upload(shared / "models" / f"{name}.onnx").id, wait=60)
        assert model.state == "ready", model
        for inputs, outputs in recorded(shared / "models", name):
            # A scalar, such as a sampling rate, decides which branches there are.
            scalars = {key: array.item() for key, array in inputs.items() if array.ndim == 0}
            tensors = {key: array for key, array in inputs.items() if key not in scalars}
            blobs = {}
            for key, array in tensors.items():
                np.save(tmp_path / "given.npy", array)
                blobs[key] = client.put_blob(tmp_path / "given.npy")
            job = client.submit(
                model.id,
                inputs=blobs,
                input_values=scalars,
                input_shapes={key: list(array.shape) for key, array in tensors.items()},
                options={"benchmark_seconds": 0.05},
            )
            job = client.wait(job.id, timeout=300)
            assert job.state == "succeeded", (job.code, job.detail)
            with np.load(io.BytesIO(client.artifact(job.id, "outputs.npz"))) as found:
                for key, expected in outputs.items():
                    scale = max(float(np.abs(expected).max(initial=0)), 1e-30)
                    np.testing.assert_allclose(found[key], expected, rtol=0, atol=TOLERANCE * scale)
            assert json.loads(client.artifact(job.id, "plan.json"))


def test_a_job_leaves_libraries_that_compute_what_was_recorded(
    real_service: Served, shared: Path, tmp_path: Path
) -> None:
    path = shared / "models" / "mnist_8.onnx"
    line = [str(path), "--target", "host", "--url", str(real_service.http.base_url), "--out", str(tmp_path)]
    assert main(["optimize", *line, "--export", "c,wheel,ort,static", "--name", "MNIST 8"]) == 0
    (wheel,) = tmp_path.glob("mnist_8-*.whl")
    operator, static, archive = sorted(tmp_path.glob("mnist_8-*.tar.gz"))
    with tarfile.open(static) as tar:
        assert {Path(name).name for name in tar.getnames()} >= {"mnist_8.o", "mnist_8.h", "manifest.json"}
    with tarfile.open(archive) as tar:
        assert {Path(name).name for name in tar.getnames()} >= {"model.so", "model.h", "manifest.json"}
    with tarfile.open(operator) as tar:
        tar.extractall(tmp_path / "operator")
    (graph,) = tmp_path.glob("operator/*/mnist_8.stowplan.onnx")
    registered = onnxruntime.SessionOptions()
    registered.register_custom_ops_library(str(graph.with_name("model.so")))
    session = onnxruntime.InferenceSession(str(graph), registered)
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    spec = importlib.util.spec_from_file_location("mnist_8", tmp_path / "installed/mnist_8/__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for inputs, outputs in recorded(shared / "models", "mnist_8"):
        (expected,) = outputs.values()
        found = module.run(**inputs)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
        assert session.run(None, inputs)[0].tobytes() == found.tobytes()


def test_the_command_line_optimizes_a_sample_and_saves_every_artifact(
    real_service: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--sample", "squeezenet", "--target", "host", "--url", str(real_service.http.base_url)]
    assert main(["optimize", *arguments, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    for title in (
        "Slowest steps (measured)",
        "Before and after",
        "Difference from the original in onnxruntime",
    ):
        assert title in shown
    assert {p.name for p in out.iterdir()} == {
        "optimized.onnx",
        "optimized.functions.onnx",
        "optimized.inlined.onnx",
        "plan.json",
        "plan.txt",
        "memory.json",
        "memory.html",
        "timings.json",
        "trace.json",
        "decisions.json",
        "graph.json",
        "report.html",
    }
    memory = json.loads((out / "memory.json").read_text())
    assert memory["peak_bytes"] >= memory["lower_bound"] > 0
    timings = json.loads((out / "timings.json").read_text())
    assert timings["kind"] == "measured"
    assert timings["optimized"]["p50"] > 0


def test_a_machine_that_this_one_is_not_gets_predictions(real_service: Served, shared: Path) -> None:
    with Client(str(real_service.http.base_url)) as client:
        model = client.upload(shared / "models" / "mnist_8.onnx")
        jobs = client.submit_all(model.id, ["cpu-avx512", "cuda-sm90", "edge-npu"])
        for job in jobs:
            job = client.wait(job.id, timeout=120)
            assert job.state == "succeeded", (job.target, job.code, job.detail)
            assert job.summary is not None
            assert job.summary["timings"] == "predicted"
            assert job.summary["latency"]["after"] > 0


def test_every_node_has_an_answer_to_why(real_service: Served, shared: Path) -> None:
    with Client(str(real_service.http.base_url)) as client:
        model = client.upload(shared / "models" / "mtcnn_rnet.onnx")
        job = client.submit(model.id, target="cpu-avx512", input_shapes={"input_2": [1, 24, 24, 3]})
        assert client.wait(job.id, timeout=120).state == "succeeded"
        plan = json.loads(client.artifact(job.id, "plan.json"))
        rows = client.decisions(job.id)
        assert [r["subject"] for r in rows] == [s["name"] for s in plan["steps"]]
        names = [name for step in plan["steps"] for name in step["nodes"]]
        for name in names:
            (row,) = client.decisions(job.id, name)
            assert name in row["nodes"]
            assert row["chosen"]
            assert row["bytes"] > 0
            blocked = [v for v, at in row["layout"].items() if at and at["blocks"]]
            assert bool(row["why_not_blocked"]) != bool(blocked)
            for other in row["alternatives"]:
                assert (other["seconds"] is None) == (other["bytes"] is None)
                assert other["reason"] or other["seconds"] is not None, "a rejection has its reason"
        answer = real_service.http.get(f"/v1/jobs/{job.id}/decisions", params={"node": names[0] + "x"})
        refused(answer, 404, "node-not-found")
        assert repr(names[0]) in answer.json()["detail"]
        refused(real_service.http.get("/v1/jobs/nothing/decisions"), 404, "job-not-found")


def test_parts_of_a_model_are_models_and_compose_to_it(
    real_service: Served, shared: Path, tmp_path: Path
) -> None:
    path = shared / "models" / "mnist_8.onnx"
    with Client(str(real_service.http.base_url)) as client:
        model = client.model(client.upload(path).id, wait=60)
        internal = [v["name"] for v in client.values(model.id, role="internal")]
        (given,), (result,) = (list(client.values(model.id, role=role)) for role in ("input", "output"))
        middle = internal[len(internal) // 2]
        head = client.model(client.extract(model.id, [middle]).id, wait=60)
        tail = client.model(client.extract(model.id, [result["name"]], [middle]).id, wait=60)
        whole = client.model(client.compose(head.id, tail.id, {middle: middle}).id, wait=60)
        assert [m.state for m in (head, tail, whole)] == ["ready"] * 3
        assert head.report is not None
        assert tail.report is not None
        assert whole.report is not None
        assert model.report is not None
        assert head.report["nodes"] + tail.report["nodes"] == whole.report["nodes"] == model.report["nodes"]
        assert [port["name"] for port in whole.report["inputs"]] == [given["name"]]
        with pytest.raises(ServiceFailureError, match="no value 'nowhere'"):
            client.extract(model.id, ["nowhere"])


def test_a_model_is_written_as_a_symbol_that_is_a_model(
    real_service: Served, shared: Path, tmp_path: Path
) -> None:
    with Client(str(real_service.http.base_url)) as client:
        model = client.model(client.upload(shared / "models" / "mnist_8.onnx").id, wait=60)
        made = client.model(client.symbol(model.id).id, wait=60)
        assert made.report is not None
        assert model.report is not None
        assert (made.state, made.report["producer"]) == ("ready", "mxnet")
        assert made.report["inputs"] == model.report["inputs"]
        symbol, parameters = tmp_path / "net-symbol.json", tmp_path / "net-0000.params"
        client.model_file(made.id, symbol)
        client.model_file(made.id, parameters, "model-0000.params")
        again = client.model(client.upload(symbol, {"model-0000.params": parameters}).id, wait=60)
        assert again.id == made.id
        branches = client.upload(shared / "models" / "silero_vad_v6.onnx").id
        with pytest.raises(ServiceFailureError, match="no spelling of .* nodes: .*If"):
            client.symbol(branches)


def test_the_graph_is_exported_in_the_opset_of_choice_with_its_weights_beside(
    real_service: Served, shared: Path, tmp_path: Path
) -> None:
    with Client(str(real_service.http.base_url)) as client:
        model = client.model(client.upload(shared / "models" / "mnist_8.onnx").id, wait=60)
        options = {"opset": 9, "external_data": True, "benchmark_seconds": 0.05}
        job = client.wait(client.submit(model.id, options=options).id, timeout=300)
        assert job.state == "succeeded", (job.code, job.detail)
        for name in ("optimized.onnx", "optimized.onnx.data"):
            client.download(job.id, name, tmp_path / name)
        inputs, outputs = recorded(shared / "models", "mnist_8")[0]
        found = runtime(tmp_path / "optimized.onnx", inputs)
        for key, expected in outputs.items():
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(found[key], expected, rtol=0, atol=TOLERANCE * scale)
        proto = onnx.load(tmp_path / "optimized.onnx", load_external_data=False)
        assert [o.version for o in proto.opset_import if not o.domain] == [9]
        assert any(t.external_data for t in proto.graph.initializer)
        refused = client.wait(client.submit(model.id, options={"opset": 999}).id, timeout=300)
        assert (refused.code, refused.pointer) == ("opset-unsupported", "/options/opset")


def test_a_symbol_is_uploaded_with_its_parameters(real_service: Served, tmp_path: Path) -> None:
    symbol, weights = written(tmp_path)
    hashes = [
        real_service.http.post("/v1/blobs", content=path.read_bytes()).json()["sha256"]
        for path in (symbol, weights)
    ]
    manifest = {"name": "net", "model": hashes[0], "external_data": {"net-0000.params": hashes[1]}}
    found = real_service.http.post("/v1/models?wait=60", json=manifest).json()
    assert (found["state"], found["report"]["outputs"][0]["name"]) == ("ready", "softmax_output")
    alone = real_service.http.post("/v1/models?wait=60", content=symbol.read_bytes()).json()
    assert (alone["state"], alone["code"]) == ("invalid", "external-data-invalid")
    assert "0000.params" in alone["detail"]


def test_a_training_graph_of_an_uploaded_model_is_a_model(real_service: Served, shared: Path) -> None:
    with Client(str(real_service.http.base_url)) as client:
        source = client.model(client.upload(shared / "models" / "mnist_8.onnx").id, wait=60)
        output = source.report["outputs"][0]["name"] if source.report else ""
        made = client.model(client.gradient(source.id, output).id, wait=60)
        assert made.state == "ready", made
        names = [o["name"] for o in made.report["outputs"]] if made.report else []
        assert names[0] == output
        assert sum(name.endswith("_grad") for name in names) >= 4
        refused = real_service.http.post(f"/v1/models/{source.id}/gradient", json={"loss": "nowhere"})
        assert (refused.status_code, refused.json()["code"]) == (422, "graph-invalid")
        assert refused.json()["errors"][0]["pointer"] == "/loss"


def test_a_row_sparse_gradient_is_planned_run_and_verified_over_http(
    real_service: Served, tmp_path: Path
) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[300,16] table, int64[2,3] rows) => (float[2,3,16] y) {
        e = Gather(table, rows) y = Tanh(e) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    random = np.random.default_rng(2)
    given = {"table": random.standard_normal((300, 16)).astype("f4"), "rows": random.integers(0, 300, (2, 3))}
    with Client(str(real_service.http.base_url)) as client:
        source = client.model(client.upload(tmp_path / "m.onnx").id, wait=60)
        with pytest.raises(ServiceFailureError, match="row_sparse names 'y'"):
            client.gradient(source.id, "y", ["table"], row_sparse=["y"])
        made = client.model(client.gradient(source.id, "y", ["table"], row_sparse=["table"]).id, wait=60)
        assert made.state == "ready", made
        blobs = {}
        for name, array in given.items():
            np.save(tmp_path / "given.npy", array)
            blobs[name] = client.put_blob(tmp_path / "given.npy")
        options = {"benchmark_seconds": 0.05, "autotune": False}
        job = client.wait(client.submit(made.id, inputs=blobs, options=options).id, timeout=300)
        assert job.state == "succeeded", (job.code, job.detail)
        assert job.summary is not None
        assert job.summary["verification"]["status"] == "verified"
        plan = json.loads(client.artifact(job.id, "plan.json"))
        stored = plan["values"]["table_grad"]["storage"]
        assert (stored["kind"], stored["bound"], stored["bytes"]) == ("row_sparse", 6, 416)
        with np.load(io.BytesIO(client.artifact(job.id, "outputs.npz"))) as found:
            expected = np.zeros((300, 16))
            np.add.at(expected, given["rows"], 1 - np.tanh(given["table"].astype("f8")[given["rows"]]) ** 2)
            assert found["table_grad.shape"].tolist() == [300, 16]
            dense = np.zeros((300, 16), np.float32)
            dense[found["table_grad.indices"]] = found["table_grad.values"]
            np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-6)
