"""A job whose input is given as triples, deployed and called with triples: all processes of the service."""

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from app import sparse_inputs
from app.client import Client
from tests.jobs.service import Served
from tests.serving.deployed import undeploy

pytestmark = pytest.mark.last

ROWS, COLUMNS, WIDTH, MOST = 300, 1500, 20, 400
TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
model (float[{ROWS},{COLUMNS}] x) => (float[{ROWS},{WIDTH}] y) {{
    s = Sqrt(x) p = MatMul(s, w) q = Add(p, b) y = Relu(q)
}}"""
random = np.random.default_rng(3)
WEIGHTS = random.standard_normal((COLUMNS, WIDTH)).astype("f4")
BIAS = random.standard_normal(WIDTH).astype("f4")
Triples = tuple[np.ndarray, np.ndarray, np.ndarray]


def drawn(count: int, seed: int) -> Triples:
    """Rows, columns and values of so many elements, in no order."""
    rng = np.random.default_rng(seed)
    places = rng.choice(ROWS * COLUMNS, count, replace=False)
    return places // COLUMNS, places % COLUMNS, rng.uniform(0.1, 2, count).astype("f4")


def expected(triples: Triples) -> np.ndarray:
    """The outputs, in float64 from all elements."""
    x = np.zeros((ROWS, COLUMNS))
    x[triples[0], triples[1]] = triples[2]
    return np.asarray(np.maximum(np.sqrt(x) @ WEIGHTS.astype("f8") + BIAS, 0))


@pytest.fixture(scope="module")
def served(
    real_service: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, dict[str, bytes]]]:
    """A service with the deployed model, and the artifacts of its job."""
    folder = tmp_path_factory.mktemp("sparse")
    proto = onnx.parser.parse_model(TEXT)
    for name, array in (("w", WEIGHTS), ("b", BIAS)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, folder / "model.onnx")
    rows, columns, values = drawn(MOST, 0)
    matrix = sparse_inputs.from_triples((ROWS, COLUMNS), rows.tolist(), columns.tolist(), values)
    sparse_inputs.write(folder / "x.npz", matrix)
    with Client(str(real_service.http.base_url)) as here:
        job = here.submit(
            here.upload(folder / "model.onnx").id,
            inputs={"x": here.put_blob(folder / "x.npz")},
            input_storage={"x": {"storage": "csr", "nnz": MOST}},
            options={"timings": "predicted", "benchmark_seconds": 0.05},
        )
        done = here.wait(job.id, timeout=240)
        assert done.state == "succeeded", (done.code, done.detail)
        names = ("outputs.npz", "plan.json", "decisions.json")
        artifacts = {name: bytes(here.artifact(job.id, name)) for name in names}
        here.deploy(job.id, "sparse")
        assert here.wait_until_ready("sparse", timeout=120).state == "ready"
        yield real_service, artifacts
        undeploy(real_service)


def test_the_job_computes_the_given_triples_sparse(served: tuple[Served, dict[str, bytes]]) -> None:
    _, artifacts = served
    with np.load(io.BytesIO(artifacts["outputs.npz"])) as outputs:
        np.testing.assert_allclose(outputs["y"], expected(drawn(MOST, 0)), rtol=1e-4, atol=1e-4)
    chosen = [d["chosen"] for d in json.loads(artifacts["decisions.json"])["decisions"]]
    assert "matmul.csr_value" in chosen, chosen
    values = json.loads(artifacts["plan.json"])["values"]
    assert values["x"]["storage"]["kind"] == "csr"
    assert values["x"]["storage"]["bound"] == MOST


def inferred(service: Served, row: dict[str, Any], block: bytes = b"") -> np.ndarray:
    """The output for an input in the form of `row`."""
    head = json.dumps({"inputs": [row]}).encode()
    headers = {"inference-header-content-length": str(len(head))} if block else {}
    answer = service.http.post("/v2/models/sparse/infer", content=head + block, headers=headers)
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    return np.array(output["data"]).reshape(output["shape"])


def of_triples(triples: Triples) -> dict[str, Any]:
    rows, columns, values = (part.tolist() for part in triples)
    data = {"values": values, "rows": rows, "columns": columns}
    shape = [ROWS, COLUMNS]
    return {
        "name": "x",
        "datatype": "FP32",
        "shape": shape,
        "parameters": {"sparse": "triples"},
        "data": data,
    }


@pytest.mark.parametrize("count", [0, 1, 37, MOST])
def test_an_inference_takes_triples(served: tuple[Served, dict[str, bytes]], count: int) -> None:
    service, _ = served
    triples = drawn(count, 10 + count)
    found = inferred(service, of_triples(triples))
    np.testing.assert_allclose(found, expected(triples), rtol=1e-4, atol=1e-4)


def test_an_inference_takes_csr_as_bytes_and_the_whole_matrix(
    served: tuple[Served, dict[str, bytes]],
) -> None:
    service, _ = served
    triples = drawn(123, 5)
    rows, columns, values = triples
    matrix = sparse_inputs.from_triples((ROWS, COLUMNS), rows.tolist(), columns.tolist(), values)
    as_bytes = inferred(service, *sparse_inputs.inference_input("x", matrix))
    np.testing.assert_allclose(as_bytes, expected(triples), rtol=1e-4, atol=1e-4)
    x = np.zeros((ROWS, COLUMNS), np.float32)
    x[rows, columns] = values
    row = {"name": "x", "datatype": "FP32", "shape": [ROWS, COLUMNS], "data": x.reshape(-1).tolist()}
    np.testing.assert_array_equal(inferred(service, row), as_bytes)


def test_more_triples_than_the_job_declares_are_refused(served: tuple[Served, dict[str, bytes]]) -> None:
    service, _ = served
    answer = service.http.post("/v2/models/sparse/infer", json={"inputs": [of_triples(drawn(MOST + 1, 6))]})
    assert answer.status_code == 400, answer.text
    assert f"stores {MOST + 1} elements" in answer.text
    twice = tuple(np.concatenate([part, part[:1]]) for part in drawn(3, 7))
    answer = service.http.post("/v2/models/sparse/infer", json={"inputs": [of_triples(twice)]})
    assert answer.status_code == 400
    assert "is there twice" in answer.text
