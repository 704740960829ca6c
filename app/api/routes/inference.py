"""The Open Inference Protocol, version 2, as inference clients speak it, with binary tensor data.

Requests pass as bytes: a body goes into memory that the model's process reads, and what that process
answers goes out. Nothing here looks into tensors.
"""

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from app.api.http import body_limits
from app.api.http.connection_limits import MODEL, WAITED
from app.api.http.errors import protocol_error
from app.api.service import Service
from app.serving.executor_client import Reply
from app.serving.model_repository import Deployed
from app.serving.oip_codec import NO_HEADER, InferenceError

HEADER_LENGTH = "inference-header-content-length"
EXTENSIONS = ("binary_tensor_data",)
_JSON = "application/json"
_OCTETS = "application/octet-stream"
_MOST_DIGITS = 18

Handler = Callable[[Request, Service], Awaitable[Response]]


def _handled(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose refusals are answers of the protocol."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request, request.app.state.service)
        except InferenceError as error:
            return _failed(error)

    return handle


def _failed(error: InferenceError) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == HTTPStatus.REQUEST_TIMEOUT:
        headers["connection"] = "close"  # the rest of the body may still come
    return protocol_error(error.status, error.message, headers)


def _answered(reply: Reply) -> Response:
    if reply.header_nbytes == NO_HEADER:
        headers = {"retry-after": str(reply.retry_after)} if reply.retry_after else {}
        return Response(reply.body, reply.status, headers, media_type=_JSON)
    return Response(reply.body, reply.status, {HEADER_LENGTH: str(reply.header_nbytes)}, media_type=_OCTETS)


def _json(content: dict[str, Any]) -> Response:
    return Response(json.dumps(content), media_type=_JSON)


def _deployed(request: Request, service: Service) -> Deployed:
    return service.deployed_models.find(request.path_params["name"], request.path_params.get("version"))


async def _server(request: Request, _service: Service) -> Response:
    return _json({"name": "stowplan", "version": request.app.version, "extensions": list(EXTENSIONS)})


async def _live(_request: Request, _service: Service) -> Response:
    return _json({"live": True})


async def _ready(_request: Request, service: Service) -> Response:
    if service.stopping.is_set():
        raise InferenceError("the service is stopping")
    count = service.deployed_models.not_ready()
    if count:
        raise InferenceError(f"{count} deployed models are not ready")
    return _json({"ready": True})


async def _metadata(request: Request, service: Service) -> Response:
    found = _deployed(request, service)
    told = found.client.metadata
    if told is None:
        raise _not_ready(found)
    return _json(
        {
            "name": found.name,
            "versions": service.deployed_models.versions(found),
            "platform": "stowplan_onnx",
            **told,
        }
    )


async def _model_ready(request: Request, service: Service) -> Response:
    found = _deployed(request, service)
    if found.client.state != "ready":
        raise _not_ready(found)
    return _json({"name": found.name, "ready": True})


def _not_ready(found: Deployed) -> InferenceError:
    client = found.client
    if client.state == "failed":
        return InferenceError(f"the model cannot be served: {client.detail}")
    return InferenceError(f"the model is {client.state}: try again", 503, retry_after=1)


async def _infer(request: Request, service: Service) -> Response:
    found = _deployed(request, service)
    request.scope[MODEL] = found.client
    headers = request.headers
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise InferenceError(
            f"content encoding {encoding!r} is not understood; send the bytes as they are", 415
        )
    body_limits.allow(request, service.settings.max_infer_bytes)
    nbytes = _count(headers.get("content-length"), "Content-Length")
    if nbytes is None:
        raise InferenceError("Content-Length: expected the size of the body", 411)
    header = _count(headers.get(HEADER_LENGTH), "Inference-Header-Content-Length")
    try:
        waited = request.scope.get(WAITED, 0.0)
        return _answered(await found.infer(request.stream(), nbytes, header, waited))
    except ClientDisconnect:
        raise InferenceError("the client is gone") from None


def _count(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > _MOST_DIGITS:
        raise InferenceError(f"{name}: expected a number of bytes, found {text[:60]!r}")
    return int(text)


_MODEL = "/v2/models/{name}"
_VERSION = f"{_MODEL}/versions/{{version}}"
ROUTES = (
    Route(f"{_MODEL}/infer", _handled(_infer), methods=["POST"]),
    Route(f"{_VERSION}/infer", _handled(_infer), methods=["POST"]),
    Route("/v2", _handled(_server), methods=["GET"]),
    Route("/v2/health/live", _handled(_live), methods=["GET"]),
    Route("/v2/health/ready", _handled(_ready), methods=["GET"]),
    Route(_MODEL, _handled(_metadata), methods=["GET"]),
    Route(f"{_MODEL}/ready", _handled(_model_ready), methods=["GET"]),
    Route(_VERSION, _handled(_metadata), methods=["GET"]),
    Route(f"{_VERSION}/ready", _handled(_model_ready), methods=["GET"]),
)
