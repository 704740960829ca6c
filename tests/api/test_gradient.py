"""Training graphs over HTTP: made in a limited process, kept as models."""

from tests.jobs.service import Served


def test_a_training_graph_becomes_a_model(service: Served) -> None:
    model = service.model("nothing of gradients")
    body = {"loss": "loss", "wrt": ["x", "w"], "input_shapes": {"x": [1, 3]}}
    answer = service.http.post(f"/v1/models/{model}/gradient?wait=20", json=body)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert found["gradients"] == {"x": "x_grad", "w": "w_grad"}
    assert found["nodes"] == {"forward": 1, "backward": 1}
    assert found["kept"] == [{"name": "h", "bytes": 4}]
    assert found["model"]["state"] == "ready"
    assert found["model"]["id"] != model
    assert answer.headers["location"].endswith(found["model"]["id"])
    again = service.http.post(f"/v1/models/{model}/gradient", json=body)
    assert again.status_code == 200
    assert again.json()["model"]["id"] == found["model"]["id"]


def test_a_model_without_a_gradient_is_a_problem_with_the_code_of_the_failure(service: Served) -> None:
    answer = service.http.post(f"/v1/models/{service.model('flat')}/gradient", json={"loss": "none"})
    assert answer.status_code == 422
    assert answer.json()["code"] == "not-differentiable"
    assert answer.json()["errors"][0]["pointer"] == "node:n"


def test_an_unknown_model_and_an_empty_list_are_refused(service: Served) -> None:
    assert service.http.post("/v1/models/none/gradient", json={"loss": "l"}).status_code == 404
    empty = {"loss": "l", "wrt": []}
    assert service.http.post(f"/v1/models/{service.model('x')}/gradient", json=empty).status_code == 422
