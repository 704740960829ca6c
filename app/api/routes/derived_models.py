"""Values of a stored model, and new models made of stored ones: small jobs of a limited process."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.http import errors, long_poll, paging
from app.api.routes.models import ModelId, add, inspected
from app.api.schemas.jobs import JobLimits
from app.api.schemas.models import (
    ComposeRequest,
    ExtractRequest,
    GradientRequest,
    ModelAnswer,
    Origin,
    SymbolRequest,
    ValueAnswer,
    ValueList,
    ValueRole,
)
from app.api.schemas.requests import limits_of
from app.api.service import Service, ServiceOf
from app.engine.types.errors import GraphError, InputError
from app.jobs.errors import (
    InvalidModelError,
    ModelNotFoundError,
    NoAnswerError,
    OperationFailedError,
    QuotaError,
    RequestError,
    StorageFullError,
    TooLargeError,
)
from app.jobs.queue.dispatch import INSPECT_QUEUE
from app.jobs.store import job_repository, model_repository

router = APIRouter(prefix="/v1/models", tags=["models"])
# Artifacts of a job that makes a model, by the names that the model's files have.
MADE = ("model.onnx", "model-symbol.json", "model-0000.params")
GRAPHS = MADE[:2]
_LONGEST_NAME = 255  # of a file, as tables keep it
_WAIT_MARGIN = 30.0  # seconds for a job to find a free worker
_MAKING: dict[str, Any] = {
    "status_code": 201,
    "responses": errors.responses(
        ModelNotFoundError,
        InvalidModelError,
        OperationFailedError,
        GraphError,
        InputError,
        NoAnswerError,
        QuotaError,
        RequestError,
        StorageFullError,
        TooLargeError,
        also={200: {"model": ModelAnswer, "description": "The model was there already."}},
    ),
}


@router.get(
    "/{model_id}/values",
    summary="List the values of a model",
    responses=errors.responses(
        ModelNotFoundError, InvalidModelError, OperationFailedError, NoAnswerError, RequestError
    ),
)
async def get_model_values(
    model_id: ModelId,
    request: Request,
    response: Response,
    service: ServiceOf,
    role: Annotated[ValueRole | None, Query(description="Of which role; all without.")] = None,
    limit: paging.Limit = 200,
    cursor: paging.Cursor = None,
) -> ValueList:
    """Inputs, weights, internal values and outputs of the main graph with type and shape, in pages."""
    offset = _place(cursor)
    asked = {"role": role, "offset": offset, "limit": limit}
    row = await _done(service, "values", [model_id], asked)
    await run_in_threadpool(_forget, service, row["id"])
    found = [ValueAnswer.model_validate(value) for value in row["summary"]["values"]]
    total, after = row["summary"]["total"], offset + len(found)
    following = paging.encode_cursor(str(after)) if found and after < total else None
    paging.link_next(response, service, f"/v1/models/{model_id}/values", request, following)
    return ValueList(model=model_id, total=total, values=found, next=following)


def _place(cursor: str | None) -> int:
    if cursor is None:
        return 0
    text = paging.decode_cursor(cursor)
    if not (text.isdecimal() and len(text) < 10):
        raise RequestError("cursor: expected `next` of a page", pointer="query:cursor")
    return int(text)


@router.post("/{model_id}/extract", summary="Make a model of a part of one", **_MAKING)
async def extract_model(
    model_id: ModelId,
    body: ExtractRequest,
    response: Response,
    service: ServiceOf,
    wait: long_poll.Wait = None,
) -> ModelAnswer:
    """Cut at values by name: what computes `outputs` from `inputs` becomes a model of its own."""
    asked = body.model_dump(exclude={"name"})
    return await made_of(service, "extract", [model_id], asked, response, body.name, wait)


@router.post("/{model_id}/gradient", summary="Make the training graph of a model", **_MAKING)
async def differentiate_model(
    model_id: ModelId,
    body: GradientRequest,
    response: Response,
    service: ServiceOf,
    wait: long_poll.Wait = None,
) -> ModelAnswer:
    """Extend a model by the loss and its gradients, in plain ONNX operators.

    Outputs are those of the model, the loss, and `<name>_grad` of each of `wrt`.
    """
    asked = body.model_dump(exclude={"name"})
    return await made_of(service, "gradient", [model_id], asked, response, body.name, wait)


@router.post("/{model_id}/symbol", summary="Write a model as a symbol of MXNet", **_MAKING)
async def write_symbol(
    model_id: ModelId,
    body: SymbolRequest,
    response: Response,
    service: ServiceOf,
    wait: long_poll.Wait = None,
) -> ModelAnswer:
    """Spell a model in plain operators of MXNet 1.9.1; the new model has the symbol and `model-0000.params`.

    `getModelFile` downloads both. A model with nodes that have no spelling is refused, with all of their
    reasons (`symbol-unsupported`).
    """
    asked = body.model_dump(exclude={"name"})
    return await made_of(service, "symbol", [model_id], asked, response, body.name, wait)


@router.post("/compose", summary="Make one model of two", **_MAKING)
async def compose_models(
    body: ComposeRequest, response: Response, service: ServiceOf, wait: long_poll.Wait = None
) -> ModelAnswer:
    """Let outputs of one model be inputs of another; names of the second that collide get the prefix."""
    asked = body.model_dump(include={"connect", "prefix"})
    return await made_of(service, "compose", [body.first, body.second], asked, response, body.name, wait)


async def made_of(
    service: Service,
    operation: str,
    sources: Sequence[str],
    asked: Mapping[str, Any],
    response: Response,
    name: str | None,
    wait: float | None,
) -> ModelAnswer:
    """The model that an operation of `app.engine.entry.derive` makes of others, in the store."""
    row = await _done(service, operation, sources, asked)
    origin = Origin(operation=operation, models=list(sources), request=dict(asked)).model_dump()

    def keep() -> tuple[str, list[str]]:
        with service.database.read() as connection:
            files = job_repository.files(connection, row["id"], "artifact")
            first = model_repository.names_of(connection, sources)[sources[0]]
        found = {"" if f["name"] in GRAPHS else f["name"]: f["sha256"] for f in files if f["name"] in MADE}
        kept = add(service, found, name or f"{operation} of {first}"[:_LONGEST_NAME], origin)
        _forget(service, row["id"])  # after that: the model holds the bytes now
        return kept

    identifier, inspections = await run_in_threadpool(keep)
    response.status_code = 201 if inspections else 200
    response.headers["location"] = service.address(f"/v1/models/{identifier}")
    return await inspected(service, identifier, wait)


async def _done(
    service: Service, operation: str, sources: Sequence[str], asked: Mapping[str, Any]
) -> job_repository.Row:
    """The row of the job that carried an operation out.

    Raises:
        OperationFailedError: it was refused; with the code of the reason.
    """

    def drafted(connection: sa.Connection) -> list[job_repository.Draft]:
        beside: dict[str, str] = {}
        for number, identifier in enumerate(sources[1:], start=1):
            job_repository.check_model(connection, identifier)
            files = job_repository.model_paths(connection, identifier)
            beside |= {f"{number}/{location}": sha256 for location, sha256 in files.items()}
        if longest := [name for name in beside if len(name) > _LONGEST_NAME]:
            raise RequestError(f"a name of external data is too long: {longest[0][2:]!r}", pointer="/second")
        request = {
            "operation": {"operation": operation, **asked},
            "limits": asdict(limits_of(service.settings, "derive", JobLimits())),
        }
        return [job_repository.Draft("derive", sources[0], "host", INSPECT_QUEUE, request, inputs=beside)]

    row = await long_poll.ended(service, drafted, service.settings.inspect_seconds + _WAIT_MARGIN)
    if row["state"] != "succeeded":
        code = row["code"] or "cancelled"
        raise OperationFailedError(row["detail"] or code, code=code, pointer=row["pointer"] or "")
    return row


def _forget(service: Service, job_id: str) -> None:
    with service.database.write() as connection:
        job_repository.delete(connection, job_id)
