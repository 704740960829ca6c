"""A model with symbols through the whole service: planned, asked for its memory, deployed and called."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
import tritonclient.http as triton

from app.cli.main import main
from app.client import Client
from tests.jobs.service import Served
from tests.serving.deployed import client, undeploy

pytestmark = pytest.mark.last

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
model (float[N, 3, H, 16] x, float[64, 3, 3, 3] w, float[8, 64, 3, 3] v) => (float[N, 8, H, 16] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (c)
    y = Conv <pads = [1, 1, 1, 1]> (r, v)
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (64, 3, 3, 3)), ("v", (8, 64, 3, 3))):
        array = (rng.standard_normal(shape) / 8).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del proto.graph.input[1:]
    path = tmp_path_factory.mktemp("region") / "model.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def served(real_service: Served, model: Path) -> Iterator[tuple[Served, str]]:
    with Client(str(real_service.http.base_url)) as here:
        job = here.submit(
            here.upload(model).id,
            input_shapes={"x": ["N<=3", 3, "H:8..64%8", 16]},
            shape_histogram=[{"sizes": {"N": 1, "H": 24}, "weight": 2}],
            options={"autotune": False, "timings": "predicted", "backends": ["numba-cpu"]},
        )
        done = here.wait(job.id, timeout=120)
        assert done.state == "succeeded", done
        here.deploy(job.id, "region")
        found = here.wait_until_ready("region", timeout=120)
        assert found.state == "ready", found
        yield real_service, job.id
        undeploy(real_service)


def test_the_peak_of_a_shape_is_known_before_it_runs(
    served: tuple[Served, str], capsys: pytest.CaptureFixture[str]
) -> None:
    service, job = served
    peaks = {}
    for rows, height in ((3, 64), (1, 8), (2, 40)):
        shapes = {"x": [rows, 3, height, 16]}
        answer = service.http.post(f"/v1/jobs/{job}/peak", json={"input_shapes": shapes})
        assert answer.status_code == 200, answer.text
        peaks[rows] = answer.json()["peak_bytes"]
        assert peaks[rows] <= answer.json()["worst_bytes"]
        assert answer.json()["proof"]
    assert peaks[1] < peaks[2] < peaks[3]
    line = ["peak", job, "--input", "x=2x3x40x16", "--url", str(service.http.base_url)]
    assert main(line) == 0
    assert str(peaks[2]) in capsys.readouterr().out
    assert main([*line[:3], "x=2x3x41x16", *line[4:]]) == 1
    assert "'x' takes [N:1..3, 3, H:8..64%8, 16], found [2, 3, 41, 16]" in capsys.readouterr().err
    refused = service.http.post(f"/v1/jobs/{job}/peak", json={"input_shapes": {"x": [4, 3, 8, 16]}})
    assert (refused.status_code, refused.json()["code"]) == (422, "request-invalid")


def test_a_job_tells_the_plans_of_its_region_and_what_they_lose(served: tuple[Served, str]) -> None:
    service, job = served
    summary = service.http.get(f"/v1/jobs/{job}").json()["summary"]
    region = summary["region"]
    assert sum(piece["points"] for piece in region["pieces"]) == region["points"] == 24
    assert {"N": 1, "H": 24} in [sample["sizes"] for sample in region["curve"]]
    for sample in region["curve"]:
        assert sample["loss"] == pytest.approx(sample["seconds"] / sample["own_seconds"])
        assert sample["measured"] == 0
    page = service.http.get(f"/jobs/{job}/report").text
    assert "Time lost to a plan for one shape" in page
    assert "N=1 H=24" in page


def test_a_deployment_answers_every_shape_of_the_region(served: tuple[Served, str], model: Path) -> None:
    service, _ = served
    reference = onnx.reference.ReferenceEvaluator(onnx.load(model))
    rng = np.random.default_rng(1)
    with client(service) as infer:
        for rows, height in ((3, 64), (1, 8), (2, 40), (1, 64), (3, 8), (3, 64), (1, 12)):
            x = rng.standard_normal((rows, 3, height, 16)).astype(np.float32)
            given = triton.InferInput("x", list(x.shape), "FP32")
            given.set_data_from_numpy(x)
            found = infer.infer("region", [given]).as_numpy("y")
            np.testing.assert_allclose(found, reference.run(None, {"x": x})[0], atol=1e-4)


def test_a_job_without_symbols_has_no_peak_of_other_shapes(served: tuple[Served, str], model: Path) -> None:
    service, _ = served
    with Client(str(service.http.base_url)) as here:
        options = {"autotune": False, "timings": "predicted"}
        job = here.submit(here.upload(model).id, input_shapes={"x": [1, 3, 8, 16]}, options=options)
        assert here.wait(job.id, timeout=120).state == "succeeded"
    answer: httpx.Response = service.http.post(
        f"/v1/jobs/{job.id}/peak", json={"input_shapes": {"x": [1, 3, 8, 16]}}
    )
    assert answer.status_code == 422
    assert "no input shape has a symbol" in answer.json()["detail"]
