"""The documentation page, and the description of the API that it reads."""

import copy
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.http import errors
from app.api.http.auth_middleware import PUBLIC, scope_of
from app.api.http.errors import NotReadyError
from app.api.schemas import inference
from app.api.schemas.memory_plans import MemoryPlanRequest
from app.api.schemas.models import ModelManifest
from app.api.schemas.problems import Problem
from app.jobs.errors import ForbiddenError, TooManyError, UnauthorizedError
from app.web import STATIC

# Swagger UI sets style attributes and draws icons from data addresses.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Schemas that operations refer to by name only.
_NAMED: tuple[type[BaseModel], ...] = (Problem, ModelManifest, MemoryPlanRequest)

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def docs() -> FileResponse:
    """The API's documentation, to read and to try."""
    return FileResponse(STATIC / "docs.html", headers={"content-security-policy": _POLICY})


@router.get("/favicon.ico")
def favicon() -> FileResponse:
    """The icon that browsers ask for."""
    return FileResponse(STATIC / "favicon.svg", media_type="image/svg+xml")


def describe(app: FastAPI) -> None:
    """Let the application tell all that its operations may answer."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to replace it


def _describe(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, named = models_json_schema(
        [(model, "serialization") for model in _NAMED], ref_template="#/components/schemas/{model}"
    )
    found.setdefault("components", {}).setdefault("schemas", {}).update(named["$defs"])
    _describe_keys(found)
    found["paths"] |= inference.paths()
    found["components"]["schemas"] |= inference.SCHEMAS
    for unused in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(unused, None)
    return found


def _describe_keys(found: dict[str, Any]) -> None:
    """Every operation that is not public takes a key, and may be refused by the authentication."""
    found["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "A key (`createKey`), where there are keys.",
        }
    }
    refusals = errors.responses(UnauthorizedError, ForbiddenError, TooManyError, NotReadyError)
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            scope = scope_of(method.upper(), path)
            if scope != PUBLIC:
                operation["security"] = [{"key": []}, {}]
                operation["x-scope"] = scope
                _merge(operation["responses"], refusals)


def _merge(responses: dict[str, Any], more: dict[int | str, dict[str, Any]]) -> None:
    """Add what is documented of failures, to statuses that have some already too."""
    for status, row in more.items():
        if status == 422:
            continue
        known = responses.get(str(status))
        if known is None:
            responses[str(status)] = copy.deepcopy(row)
        elif errors.MEDIA_TYPE in known.get("content", {}):
            known["content"][errors.MEDIA_TYPE]["examples"] |= row["content"][errors.MEDIA_TYPE]["examples"]
            known["description"] = f"{known['description']}; {row['description']}"
