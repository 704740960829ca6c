"""Blobs and models: upload, look at, validate, delete. Nothing here parses a model."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from app.api.http import errors, long_poll, paging, uploads
from app.api.http.errors import MediaTypeError
from app.api.schemas.fields import Sha256
from app.api.schemas.models import (
    BlobAnswer,
    Finding,
    LabelsRequest,
    ModelAnswer,
    ModelList,
    ModelManifest,
    ModelName,
    ModelRequest,
    ValidateAnswer,
    ValidateRequest,
)
from app.api.schemas.requests import drafts_of
from app.api.service import Service, ServiceOf
from app.engine.types.errors import ExternalDataError, GraphError, ModelTooLargeError
from app.jobs.errors import (
    BlobNotFoundError,
    HashMismatchError,
    InvalidModelError,
    ModelInUseError,
    ModelNotFoundError,
    NoAnswerError,
    QuotaError,
    RequestError,
    StorageFullError,
    TooLargeError,
)
from app.jobs.store import job_repository, labels, model_repository
from app.jobs.store.auth_context import visible
from app.jobs.store.database import models
from app.jobs.worker import prescan
from app.jobs.worker.child_request import Limits

router = APIRouter(prefix="/v1", tags=["models"])
ModelId = Annotated[str, Path(max_length=64, examples=["9f86d081884c7d659a2feaa0c55ad015"])]
_OCTETS = {"schema": {"type": "string", "format": "binary"}}
_MANIFEST = {"schema": {"$ref": "#/components/schemas/ModelManifest"}}
_BODY = {"required": True, "content": {"application/octet-stream": _OCTETS}}
_UPLOAD: dict[str, Any] = {"status_code": 201, "openapi_extra": {"requestBody": _BODY}}
_REFUSALS = (TooLargeError, QuotaError, StorageFullError, MediaTypeError)  # of uploads
_THERE_ALREADY = {200: {"model": BlobAnswer, "description": "The bytes were there already."}}
_WAIT_MARGIN = 30.0  # seconds for a validation to find a free worker


@router.post(
    "/blobs", summary="Upload bytes", responses=errors.responses(*_REFUSALS, also=_THERE_ALREADY), **_UPLOAD
)
async def create_blob(request: Request, response: Response, service: ServiceOf) -> BlobAnswer:
    """Store bytes whose hash the sender does not know, as `putBlob` does."""
    return await _store(request, response, service, None)


@router.put(
    "/blobs/sha256/{sha256}",
    summary="Upload bytes under their hash",
    responses=errors.responses(HashMismatchError, *_REFUSALS, also=_THERE_ALREADY),
    **_UPLOAD,
)
async def put_blob(sha256: Sha256, request: Request, response: Response, service: ServiceOf) -> BlobAnswer:
    """Store bytes. They are kept for a while, and then as long as a model or a job needs them."""
    return await _store(request, response, service, sha256)


async def _store(request: Request, response: Response, service: Service, expected: str | None) -> BlobAnswer:
    limit = service.settings.max_model_bytes
    with service.blobs.upload(limit) as upload:
        blob = await uploads.receive(
            request, upload, limit, expected=expected, claim=service.settings.claim_seconds
        )
    response.status_code = 201 if blob.created else 200
    return BlobAnswer(sha256=blob.sha256, size=blob.size)


@router.head(
    "/blobs/sha256/{sha256}",
    summary="Ask whether bytes are there",
    response_class=Response,
    responses=errors.responses(
        BlobNotFoundError, also={200: {"description": "They are, and need no upload.", "content": {}}}
    ),
)
def head_blob(sha256: Sha256, service: ServiceOf) -> Response:
    """Answer 200 with the size when the blob is there, 404 when it must be uploaded."""
    size = service.blobs.size(sha256)
    if size is None:
        raise BlobNotFoundError(f"there is no blob {sha256}")
    return Response(headers={"content-length": str(size), "etag": f'"sha256-{sha256}"'})


@router.post(
    "/models",
    summary="Upload a model, or make one of blobs",
    status_code=201,
    responses=errors.responses(
        TooLargeError,
        MediaTypeError,
        BlobNotFoundError,
        ExternalDataError,
        ModelTooLargeError,
        QuotaError,
        StorageFullError,
        RequestError,
        also={200: {"model": ModelAnswer, "description": "The model was there already."}},
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": _OCTETS, "application/json": _MANIFEST},
        }
    },
)
async def create_model(
    request: Request,
    response: Response,
    service: ServiceOf,
    wait: long_poll.Wait = None,
    name: Annotated[
        ModelName | None, Query(description="What to call it, such as its file's name; see `updateModel`.")
    ] = None,
    content_type: uploads.MediaType = "application/octet-stream",
) -> ModelAnswer:
    """Take an ONNX file as the body, or a JSON manifest of blobs for a model with external data.

    The file may also be a symbol of MXNet (`NAME-symbol.json`, as octets); its parameters
    (`NAME-0000.params`) are external data.

    The same files are the same model, which keeps the name that it has. It is inspected in a limited
    process: `state` is `inspecting` until then, or for as long as `wait` says.
    """
    files, listed = await _files_of(request, content_type, service)
    identifier, inspections = await run_in_threadpool(add, service, files, name or listed or "")
    response.status_code = 201 if inspections else 200
    response.headers["location"] = service.address(f"/v1/models/{identifier}")
    return await inspected(service, identifier, wait)


async def _files_of(request: Request, media_type: str, service: Service) -> tuple[dict[str, str], str | None]:
    """Hashes by location, and the name that a manifest gives."""
    if media_type == "application/json":
        body = await uploads.read(request, service.settings.max_json_bytes)
        manifest = uploads.parsed(ModelManifest, body)
        return {"": manifest.model} | manifest.external_data, manifest.name
    if media_type not in ("application/octet-stream", "application/x-protobuf", "application/onnx"):
        raise MediaTypeError(
            f"media type {media_type!r} is not understood; "
            "send application/octet-stream for a file or application/json for a manifest"
        )
    limit = service.settings.max_model_bytes
    with service.blobs.upload(limit) as upload:
        blob = await uploads.receive(request, upload, limit, claim=60.0)
    if not blob.size:
        raise RequestError(
            "the body is empty; expected an ONNX file, or a manifest in JSON", pointer="/model"
        )
    return {"": blob.sha256}, None


def add(
    service: Service, files: dict[str, str], name: str, origin: Mapping[str, Any] | None = None
) -> tuple[str, list[str]]:
    """Make a model of blobs and send its inspection; its id, and the jobs that inspect it if it is new."""
    files = model_repository.located(files, _check_content(service, files[""]))
    settings = service.settings
    limits = Limits(settings.inspect_seconds, settings.job_memory_bytes, settings.max_artifact_bytes)
    with service.database.write() as connection:
        identifier, inspections = model_repository.add_model(connection, files, asdict(limits), name, origin)
    service.dispatcher.try_send(inspections)
    return identifier, inspections


def _check_content(service: Service, sha256: str) -> tuple[str, ...]:
    """Refuse what no parser should see, and return the locations of its external data.

    A hash that the caller does not hold is refused later.
    """
    if service.blobs.size(sha256) is None:
        return ()
    bounds = prescan.Bounds(tensor_bytes=service.settings.max_model_bytes)
    return prescan.scan_file(service.blobs.path(sha256), bounds).locations


def _answer(service: Service, identifier: str) -> ModelAnswer:
    with service.database.read() as connection:
        return _answer_of(connection, model_repository.find_model(connection, identifier))


def _answer_of(connection: sa.Connection, row: job_repository.Row) -> ModelAnswer:
    return ModelAnswer.of(
        row,
        files=job_repository.model_paths(connection, row["id"]),
        labels=labels.of(connection, [row["id"]]).get(row["id"], {}),
    )


@router.get("/models", summary="List models", responses=errors.responses(RequestError))
def list_models(
    request: Request,
    response: Response,
    service: ServiceOf,
    label: paging.LabelQuery = None,
    q: paging.TextQuery = None,
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
) -> ModelList:
    """Models, latest first, in pages."""
    named = models.c.name.icontains(q or "", autoescape=True)
    query = (
        sa.select(models)
        .where(visible(models.c.owner), *labels.matching(models.c.id, label or (), q, named))
        .order_by(models.c.created.desc(), models.c.id.desc())
        .limit(limit + 1)
    )
    if cursor is not None:
        created, _, identifier = paging.decode_cursor(cursor).partition(" ")
        try:
            place = (float.fromhex(created), identifier)
        except (ValueError, OverflowError) as error:
            raise RequestError("cursor: expected `next` of a page", pointer="query:cursor") from error
        query = query.where(sa.tuple_(models.c.created, models.c.id) < place)
    with service.database.read() as connection:
        rows = connection.execute(query).mappings().all()
        answers = [_answer_of(connection, row) for row in rows[:limit]]
    following = None
    if len(rows) > limit:
        following = paging.encode_cursor(f"{answers[-1].created.hex()} {answers[-1].id}")
    paging.link_next(response, service, "/v1/models", request, following)
    return ModelList(models=answers, next=following)


@router.patch("/models/{model_id}", summary="Rename a model", responses=errors.responses(ModelNotFoundError))
def update_model(model_id: ModelId, body: ModelRequest, service: ServiceOf) -> ModelAnswer:
    """Give it another name, by which lists and pages show it."""
    with service.database.write() as connection:
        model_repository.rename_model(connection, model_id, body.name)
    return _answer(service, model_id)


@router.put(
    "/models/{model_id}/labels", summary="Label a model", responses=errors.responses(ModelNotFoundError)
)
def label_model(model_id: ModelId, body: LabelsRequest, service: ServiceOf) -> ModelAnswer:
    """Replace its labels, by which it can be found."""
    with service.database.write() as connection:
        model_repository.find_model(connection, model_id)
        labels.put(connection, model_id, body.labels)
    return _answer(service, model_id)


@router.get("/models/{model_id}", summary="Look at a model", responses=errors.responses(ModelNotFoundError))
async def get_model(model_id: ModelId, service: ServiceOf, wait: long_poll.Wait = None) -> ModelAnswer:
    """Its inputs, outputs, operators and opsets, once the inspection has ended."""
    return await inspected(service, model_id, wait)


@router.get(
    "/models/{model_id}/file",
    summary="Download a file of a model",
    response_class=FileResponse,
    responses=errors.responses(
        ModelNotFoundError,
        BlobNotFoundError,
        also={200: {"description": "Its bytes.", "content": {"application/octet-stream": _OCTETS}}},
    ),
)
def get_model_file(
    model_id: ModelId,
    service: ServiceOf,
    name: Annotated[
        str, Query(max_length=255, description="A key of `files`; without it, the graph itself.")
    ] = "",
) -> FileResponse:
    """The graph, its external data, or the parameters of a symbol."""
    with service.database.read() as connection:
        row = model_repository.find_model(connection, model_id)
        files = job_repository.model_paths(connection, model_id)
    if name not in files:
        raise BlobNotFoundError(
            f"model {model_id} has no file {name!r}; it has {', '.join(map(repr, files))}"
        )
    headers = {"x-content-type-options": "nosniff"}
    title = name or row["name"] or "model"
    return FileResponse(
        service.blobs.path(files[name]),
        media_type="application/octet-stream",
        headers=headers,
        filename=title.rpartition("/")[2],
    )


async def inspected(service: Service, model_id: str, wait: float | None) -> ModelAnswer:
    """A model, after its inspection or so many seconds."""

    def look() -> tuple[ModelAnswer, bool]:
        answer = _answer(service, model_id)
        return answer, answer.state != "inspecting"

    return await long_poll.until_done(service, look, wait)


@router.delete(
    "/models/{model_id}",
    summary="Delete a model",
    status_code=204,
    responses=errors.responses(ModelNotFoundError, ModelInUseError),
)
def delete_model(model_id: ModelId, service: ServiceOf) -> None:
    """Forget a model and free its blobs; jobs that ended keep their artifacts."""
    with service.database.write() as connection:
        model_repository.delete_model(connection, model_id)
    service.blobs.free()


@router.post(
    "/models/{model_id}/validate",
    summary="Ask what would stop an optimization",
    responses=errors.responses(
        ModelNotFoundError, BlobNotFoundError, InvalidModelError, NoAnswerError, GraphError, TooLargeError
    ),
)
async def validate_model(model_id: ModelId, body: ValidateRequest, service: ServiceOf) -> ValidateAnswer:
    """Load the model and bind its inputs for a target, in a limited process, without optimizing it."""

    def drafted(connection: sa.Connection) -> list[job_repository.Draft]:
        return drafts_of(connection, service.settings, "validate", model_id, [body.target], body)

    row = await long_poll.ended(service, drafted, service.settings.inspect_seconds + _WAIT_MARGIN)
    problems = _problems(row)
    return ValidateAnswer(model=model_id, target=body.target, valid=not problems, problems=problems)


def _problems(row: Any) -> list[Finding]:
    if row["state"] == "succeeded":
        return [Finding.model_validate(p) for p in row["summary"]]
    return [
        Finding(code=row["code"] or "cancelled", detail=row["detail"] or "", pointer=row["pointer"] or "")
    ]
