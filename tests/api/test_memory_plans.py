"""Memory plans over HTTP: JSON and CSV, and what is refused."""

from tests.api.test_models import refused
from tests.jobs.service import Served

URL = "/v1/memory-plans"
ROWS = (("b1", 0, 3, 4), ("b2", 3, 9, 4), ("b3", 0, 9, 4), ("b4", 9, 21, 4), ("b5", 0, 21, 4))
BUFFERS = [dict(zip(("id", "lower", "upper", "size"), row, strict=True)) for row in ROWS]
CSV = "id,lower,upper,size\n" + "".join(f"{i},{lower},{upper},{size}\n" for i, lower, upper, size in ROWS)
AS_CSV = {"content-type": "text/csv"}


def test_buffers_get_offsets_as_json_and_as_csv(service: Served) -> None:
    first = service.http.post(URL, json={"buffers": BUFFERS, "capacity": 12})
    second = service.http.post(f"{URL}?capacity=12", content=CSV, headers=AS_CSV)
    assert (first.status_code, second.status_code) == (200, 200)
    for answer in (first.json(), second.json()):
        assert (answer["fits"], answer["peak_bytes"], answer["lower_bound"], answer["proved"]) == (
            True,
            12,
            12,
            True,
        )
        assert sorted(answer["offsets"]) == ["b1", "b2", "b3", "b4", "b5"]


def test_an_infeasible_capacity_is_answered_with_its_proof(service: Served) -> None:
    answer = service.http.post(URL, json={"buffers": BUFFERS, "capacity": 11}).json()
    assert answer["fits"] is False
    assert answer["offsets"] is None
    assert "proof: lower bound" in answer["reason"]


def test_what_cannot_be_read_is_refused_with_its_place(service: Served) -> None:
    body = refused(service.http.post(URL, content=CSV + "b6,1,x,2\n", headers=AS_CSV), 422, "request-invalid")
    assert "line 7, column upper" in body["detail"]
    twice = {"buffers": [BUFFERS[0], BUFFERS[0]]}
    assert (
        refused(service.http.post(URL, json=twice), 422, "request-invalid")["errors"][0]["pointer"]
        == "/buffers/1/id"
    )
    empty = {"buffers": [BUFFERS[0] | {"upper": 0}]}
    refused(service.http.post(URL, json=empty), 422, "request-invalid")
    refused(
        service.http.post(URL, content=b"x", headers={"content-type": "image/png"}),
        415,
        "media-type-unsupported",
    )
