"""Every failure is a problem with a code that is documented."""

import pytest
import sqlalchemy as sa

from app.api.http import errors
from app.api.main import create_app
from app.engine.types.errors import EngineError, InputError
from app.jobs.errors import ServiceError
from app.settings import Settings
from tests.api.inside import inside
from tests.api.test_models import refused
from tests.jobs.service import Served


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "route-not-found"),
        ("GET", "/v1/jobs/", 404, "route-not-found"),
        ("DELETE", "/v1/targets", 405, "method-not-allowed"),
        ("GET", "/static/../../settings.py", 404, "route-not-found"),
        ("GET", "/static/%2e%2e/__init__.py", 404, "route-not-found"),
        ("GET", "/v1/problems/none", 404, "route-not-found"),
        ("GET", "/v1/jobs?limit=many", 422, "request-invalid"),
        ("GET", "/v1/jobs/x?wait=forever", 422, "request-invalid"),
        ("POST", "/v1/jobs", 422, "request-invalid"),
    ],
)
def test_what_the_framework_refuses_is_a_problem(
    service: Served, method: str, path: str, status: int, code: str
) -> None:
    refused(service.http.request(method, path), status, code)


def test_every_code_is_described_where_its_type_leads(service: Served) -> None:
    kinds = service.http.get("/v1/problems").json()
    codes = {k["code"] for k in kinds}
    assert {"time-limit", "memory-limit", "numerics-mismatch", "memory-budget-exceeded", "not-onnx"} <= codes
    problem = service.http.get("/nowhere").json()
    assert service.http.get(problem["type"]).json()["code"] == problem["code"]


def test_every_error_class_has_a_row_of_its_own_or_its_parents() -> None:
    for root in (EngineError, ServiceError):
        for kind in errors._classes(root):
            if kind not in (ServiceError, EngineError):
                assert any(issubclass(kind, row) for row, _ in errors.STATUS), kind


def test_no_two_classes_share_a_code() -> None:
    kinds = [k for root in (EngineError, ServiceError) for k in errors._classes(root)]
    codes = [k.code for k in kinds]  # type: ignore[attr-defined]
    assert len(codes) == len(set(codes))


def test_a_defect_is_a_problem_that_tells_no_secret(settings: Settings) -> None:
    app = create_app(settings)

    @app.get("/defect")
    def defect() -> None:
        raise ZeroDivisionError("a secret")

    @app.get("/engine")
    def engine() -> None:
        raise InputError("no shape", pointer="/input_shapes/a~b")

    with inside(settings, app) as api:
        body = refused(api.http.get("/engine"), 422, "input-invalid")
        assert body["errors"] == [{"pointer": "/input_shapes/a~b", "message": "no shape"}]
        answer = api.http.get("/defect")
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["code"]) == (500, "internal-error")
        assert "secret" not in answer.text


def test_a_database_that_does_not_answer_is_no_defect(settings: Settings) -> None:
    with inside(settings) as api:
        api.database.close()
        api.database._engine = api.database._writer = sa.create_engine("sqlite:////nowhere/at/all.db")  # type: ignore[misc]
        answer = api.http.get("/v1/jobs")
        refused(answer, 503, "not-ready")
        assert answer.headers["retry-after"]
        refused(api.http.get("/readyz"), 503, "not-ready")
        assert api.http.get("/healthz").status_code == 200
