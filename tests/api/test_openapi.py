"""The description of the API is whole, and its page needs nothing from outside."""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from app.api.schemas.jobs import JobOptions
from app.api.schemas.targets import TargetSpec
from app.engine.types.options import Options
from app.engine.types.target import Target
from app.web import STATIC
from tests.api.inside import description
from tests.jobs.service import Served

SPEC = description()


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in SPEC["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


OPERATIONS = dict(operations())
each = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def test_the_operations_are_those_of_the_contract() -> None:
    assert set(OPERATIONS) == {
        "post /v1/blobs",
        "put /v1/blobs/sha256/{sha256}",
        "head /v1/blobs/sha256/{sha256}",
        "get /v1/models",
        "post /v1/models",
        "put /v1/models/{model_id}/labels",
        "put /v1/jobs/{job_id}/labels",
        "get /v1/keys",
        "post /v1/keys",
        "delete /v1/keys/{key_id}",
        "get /metrics",
        "get /v1/models/{model_id}",
        "delete /v1/models/{model_id}",
        "patch /v1/models/{model_id}",
        "post /v1/models/{model_id}/validate",
        "get /v1/models/{model_id}/values",
        "post /v1/models/{model_id}/extract",
        "post /v1/models/{model_id}/gradient",
        "post /v1/models/{model_id}/symbol",
        "get /v1/models/{model_id}/file",
        "post /v1/models/compose",
        "get /v1/targets",
        "post /v1/targets",
        "get /v1/targets/{name}",
        "post /v1/jobs",
        "get /v1/jobs",
        "get /v1/jobs/{job_id}",
        "delete /v1/jobs/{job_id}",
        "get /v1/jobs/{job_id}/events",
        "post /v1/jobs/{job_id}/deploy",
        "post /v1/jobs/{job_id}/capacity",
        "get /v1/deployments",
        "delete /v1/deployments/{name}",
        "get /v2",
        "get /v2/health/live",
        "get /v2/health/ready",
        "get /v2/models/{name}",
        "get /v2/models/{name}/ready",
        "post /v2/models/{name}/infer",
        "get /v2/models/{name}/versions/{version}",
        "get /v2/models/{name}/versions/{version}/ready",
        "post /v2/models/{name}/versions/{version}/infer",
        "post /v1/jobs/{job_id}/cancel",
        "post /v1/jobs/{job_id}/retry",
        "post /v1/jobs/{job_id}/peak",
        "post /v1/jobs/{job_id}/export",
        "post /v1/job-groups",
        "get /v1/job-groups/{group_id}",
        "post /v1/job-groups/{group_id}/cancel",
        "get /v1/jobs/{job_id}/artifacts/{name}",
        "get /v1/jobs/{job_id}/decisions",
        "post /v1/operators/run",
        "get /v1/operators",
        "get /v1/operators/{name}",
        "post /v1/memory-plans",
        "get /v1/problems",
        "get /v1/problems/{code}",
        "get /healthz",
        "get /readyz",
    }


def test_operation_ids_are_unique_and_say_what_is_done() -> None:
    ids = [o["operationId"] for o in OPERATIONS.values()]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", i) for i in ids)


@each
def test_an_operation_documents_its_failures(operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    is_protocol = operation["tags"] == ["inference"]
    media, schema = ("json", "InferenceError") if is_protocol else ("problem+json", "Problem")
    for status, answer in operation["responses"].items():
        if int(status) >= 400:
            found = {kind: row["schema"] for kind, row in answer["content"].items()}
            assert found == {f"application/{media}": {"$ref": f"#/components/schemas/{schema}"}}
    if not is_protocol and ("parameters" in operation or "requestBody" in operation):
        assert "422" in operation["responses"]


@each
def test_an_operation_shows_an_example_of_what_it_takes(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            assert parameter.get("example") or parameter["schema"].get("examples"), parameter["name"]
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        if media == "application/json":
            name = body["schema"]["$ref"].rpartition("/")[2]
            assert SPEC["components"]["schemas"][name]["examples"], name


@each
def test_an_operation_takes_a_key_unless_it_is_public(operation: dict[str, Any]) -> None:
    public = {"getHealth", "getReadiness", "listProblems", "getProblem", "getServerLive", "getServerReady"}
    if operation["operationId"] in public:
        assert "security" not in operation
    else:
        assert operation["security"] == [{"key": []}, {}]
        assert {"401", "403", "429", "503"} <= set(operation["responses"])


def test_every_reference_leads_somewhere() -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            for child in node.values():
                yield from references(child)
        elif isinstance(node, list):
            for child in node:
                yield from references(child)

    found = set(references(SPEC))
    assert found
    for reference in found:
        assert reference.rpartition("/")[2] in SPEC["components"]["schemas"], reference
    assert "HTTPValidationError" not in SPEC["components"]["schemas"]


def test_unknown_fields_are_refused_by_every_schema() -> None:
    for name, schema in SPEC["components"]["schemas"].items():
        assert schema.get("additionalProperties") is False, name


def test_the_options_of_a_job_are_those_of_the_engine() -> None:
    assert set(JobOptions.model_fields) == {f.name for f in fields(Options)} - {
        "exact",
        "direct",
        "int16",
    }  # found
    assert JobOptions().to_options() == Options()


def test_a_target_can_say_all_that_the_engine_knows() -> None:
    assert set(TargetSpec.model_fields) == {f.name for f in fields(Target)} - {"cpu_model"}
    assert TargetSpec(name="t").to_target() == Target("t")


def test_the_documentation_page_asks_for_nothing_outside(service: Served) -> None:
    page = service.http.get("/docs")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "://" not in page.text
    assert "<script>" not in page.text, "the policy forbids scripts inside the page"
    for link in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        answer = service.http.get(f"/{link}")
        assert answer.status_code == 200, link
        assert len(answer.content) > 100
    assert service.http.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
    assert service.http.get("/openapi.json").json() == SPEC


def test_the_assets_of_the_page_load_nothing_from_outside() -> None:
    for path in (*STATIC.glob("*.css"), *STATIC.glob("*.html"), STATIC / "docs.js"):
        text = path.read_text()
        assert not re.search(r"@import|url\(\s*['\"]?(?!data:)(?:https?:)?//", text), path.name
    assert "validatorUrl: null" in (STATIC / "docs.js").read_text()
