"""A model of the engine that is served in batches: many clients at once get what each gets alone."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnx.parser
import pytest
import tritonclient.http as triton

from app.client import Client
from tests.jobs.service import Served
from tests.serving.deployed import client, undeploy

pytestmark = pytest.mark.last

WIDTH, CLIENTS, CALLS = 64, 8, 20
TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
model (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y, float[{WIDTH}, {WIDTH}] c) {{
h = MatMul (x, w)
y = Softmax <axis = 1> (h)
c = Identity (w)
}}"""
MIXING = f"""<ir_version: 10, opset_import: ["" : 21]>
model (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{
y = Softmax <axis = 0> (x)
}}"""
OPTIONS = {"autotune": False, "timings": "predicted"}


def weights() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8


@pytest.fixture(scope="module")
def served(real_service: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("batches")
    for name, text in (("good", TEXT), ("mixing", MIXING)):
        model = onnx.parser.parse_model(text)
        if name == "good":
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights(), "w"))
        onnx.save(model, folder / f"{name}.onnx")
    with Client(str(real_service.http.base_url)) as here:
        for name in ("good", "mixing"):
            model_id = here.upload(folder / f"{name}.onnx").id
            job = here.submit(model_id, input_shapes={"x": [1, WIDTH]}, options=OPTIONS)
            assert here.wait(job.id, timeout=120).state == "succeeded"
            here.deploy(job.id, name, instances=2, batch_sizes=[4, 2, 4], batch_delay_ms=20.0)
        yield real_service
        undeploy(real_service)


def test_clients_get_what_each_gets_alone(served: Served) -> None:
    with Client(str(served.http.base_url)) as here:
        found = here.wait_until_ready("good", timeout=120)
        assert (found.state, found.instances) == ("ready", 2), found
    barrier = threading.Barrier(CLIENTS)

    def calls(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with client(served) as here:
            for _ in range(CALLS):
                x = rng.standard_normal((1, WIDTH)).astype(np.float32)
                tensor = triton.InferInput("x", [1, WIDTH], "FP32")
                tensor.set_data_from_numpy(x, binary_data=True)
                barrier.wait(60)
                answer = here.infer("good", [tensor])
                h = np.exp(x.astype(np.float64) @ weights())
                np.testing.assert_allclose(answer.as_numpy("y"), h / h.sum(1, keepdims=True), rtol=1e-5)
                np.testing.assert_array_equal(answer.as_numpy("c"), weights())

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(calls, range(CLIENTS)))


def test_a_deployment_that_mixes_requests_fails_and_names_the_node(served: Served) -> None:
    with Client(str(served.http.base_url)) as here:
        found = here.wait_until_ready("mixing", timeout=120)
    assert found.state == "failed"
    assert found.detail is not None
    assert "Softmax" in found.detail
    assert "it works along axis 0, which has the requests" in found.detail
    (row,) = (r for r in served.http.get("/v1/deployments").json()["deployments"] if r["name"] == "mixing")
    assert (row["batch_sizes"], row["batch_delay_ms"]) == ([2, 4], 20.0)
