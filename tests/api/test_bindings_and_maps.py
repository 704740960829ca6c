"""Through the whole service: sequences of maps, given tensors, and bindings that cannot be."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.client import Client, Job
from tests.jobs.service import Served

pytestmark = pytest.mark.last

TEXT = """<ir_version: 8, opset_import: ["": 15, "ai.onnx.ml": 1]>
    g (float[n, 3] x) => (int64[n] label, float[n] p) {
        label, scores = ai.onnx.ml.LinearClassifier <
            coefficients = [1.0, -1.0, 0.5, 0.25, 1.0, -2.0], intercepts = [0.1, -0.1],
            classlabels_ints = [3, 8], post_transform = "SOFTMAX"> (x)
        p = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 8]> (scores)
    }"""


@pytest.fixture(scope="module")
def client(real_service: Served) -> Iterator[Client]:
    with Client(str(real_service.http.base_url)) as here:
        yield here


@pytest.fixture(scope="module")
def model(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    proto = onnx.parser.parse_model(TEXT)
    output = proto.graph.output[1]
    output.ClearField("type")
    map_type = output.type.sequence_type.elem_type.map_type
    map_type.key_type = onnx.TensorProto.INT64
    map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    path = tmp_path_factory.mktemp("model") / "classifier.onnx"
    path.write_bytes(proto.SerializeToString())
    return client.upload(path).id


def ended(client: Client, model: str, folder: Path, content: Any = None, **body: Any) -> Job:
    if content is not None:
        path = folder / "x.npy"
        path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
        body["inputs"] = {"x": client.put_blob(path)}
    options = {"autotune": False, "timings": "predicted"}
    return client.wait(client.submit(model, options=options, **body).id, timeout=120)


def test_a_classifier_with_zipmap_is_inspected_run_and_answers_with_arrays(
    client: Client, model: str, tmp_path: Path
) -> None:
    described = client.model(model, wait=60)
    assert described.state == "ready", described
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    job = ended(client, model, tmp_path, x)  # no shape: the tensor has one
    assert job.state == "succeeded", (job.code, job.detail)
    with np.load(io.BytesIO(client.artifact(job.id, "outputs.npz")), allow_pickle=False) as found:
        assert found["label"].shape == (5,)
        assert found["p.keys"].tolist() == [3, 8]
        assert found["p.values"].shape == (5, 2)


@pytest.mark.parametrize(
    ("content", "body", "pointer", "detail"),
    [
        (b"1, 2, 3\n", {}, "/inputs/x", "expected a .npy file, found a file that begins with"),
        (None, {"input_shapes": {"x": [2**63 - 1, 3]}}, "/input_shapes/x", f"takes {(2**63 - 1) * 12} byte"),
        (
            np.zeros((2, 3), np.float32),
            {"input_shapes": {"x": [4, 3]}},
            "/input_shapes/x",
            "stated as [4, 3]",
        ),
    ],
    ids=["no .npy", "too large", "contradiction"],
)
def test_a_binding_that_cannot_be_is_an_invalid_input(
    client: Client, model: str, tmp_path: Path, content: Any, body: dict[str, Any], pointer: str, detail: str
) -> None:
    job = ended(client, model, tmp_path, content, **body)
    assert (job.state, job.code, job.pointer) == ("failed", "input-invalid", pointer)
    assert detail in (job.detail or "")


def test_an_empty_batch_is_run(client: Client, model: str, tmp_path: Path) -> None:
    job = ended(client, model, tmp_path, input_shapes={"x": [0, 3]})
    assert job.state == "succeeded", (job.code, job.detail)
