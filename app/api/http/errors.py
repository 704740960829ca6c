"""Every failure as an RFC 9457 problem: ONE table from error class to status, and the codes from the classes.

A class gives the stable `code`, its docstring the title, this table the status.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from app.api.http.head_method import methods_of
from app.api.schemas.problems import ProblemKindAnswer
from app.engine.types import errors as engine
from app.jobs import errors as jobs
from app.jobs.store.database import OUTAGE
from app.web.rendering import error_page, is_page

MEDIA_TYPE = "application/problem+json"
logger = logging.getLogger("stowplan.api")


class MediaTypeError(jobs.ServiceError):
    """The body has a media type or an encoding that is not understood."""

    code = "media-type-unsupported"


class BodyTooLateError(jobs.ServiceError):
    """The body of the request stopped to come."""

    code = "body-too-late"


class NotReadyError(jobs.ServiceError):
    """The service cannot work at the moment."""

    code = "not-ready"


class RouteNotFoundError(jobs.NotFoundError):
    """No operation has this address."""

    code = "route-not-found"


class MethodNotAllowedError(jobs.ServiceError):
    """The address does not take this method."""

    code = "method-not-allowed"


class BadRequestError(jobs.ServiceError):
    """The request is no valid HTTP."""

    code = "bad-request"


class InternalError(jobs.ServiceError):
    """A defect of the service."""

    code = "internal-error"


# The first row that the error is an instance of decides.
STATUS: tuple[tuple[type[Exception], int], ...] = (
    (engine.ModelTooLargeError, 413),
    (engine.GraphError, 422),
    (engine.InputError, 422),
    (engine.TargetError, 422),
    (engine.CapacityError, 422),
    (engine.EngineError, 500),
    (jobs.NotFoundError, 404),
    (jobs.ConflictError, 409),
    (jobs.TooLargeError, 413),
    (jobs.HashMismatchError, 422),
    (jobs.RequestError, 422),
    (jobs.IdempotencyKeyReusedError, 422),
    (jobs.UnauthorizedError, 401),
    (jobs.ForbiddenError, 403),
    (jobs.TooManyError, 429),
    (jobs.StorageFullError, 507),
    (jobs.StoreOutageError, 503),
    (jobs.InvalidModelError, 422),
    (jobs.OperatorFailedError, 422),
    (jobs.NoAnswerError, 503),
    (NotReadyError, 503),
    (BodyTooLateError, 408),
    (MediaTypeError, 415),
    (MethodNotAllowedError, 405),
    (BadRequestError, 400),
    (InternalError, 500),
)

# Failures that the framework raises, by status.
_FROM_HTTP: dict[int, type[jobs.ServiceError]] = {
    400: jobs.RequestError,  # a body that cannot be decoded
    404: RouteNotFoundError,
    405: MethodNotAllowedError,
    408: BodyTooLateError,
    413: jobs.TooLargeError,
}

# Codes of failed jobs that no class stands for: the supervision of the process gives them.
_JOB_CODES: tuple[tuple[str, str], ...] = (
    ("time-limit", "The job took longer than its limit."),
    ("memory-limit", "The job needed more memory than its limit."),
    ("child-crashed", "The process that ran the job died."),
    ("worker-crashed", "The workers that ran the job died, too often."),
    ("target-unavailable", "No worker on the job's target came in time."),
    ("artifact-unreadable", "A file that the job wrote could not be kept."),
)


def status_of(kind: type[Exception]) -> int:
    """The status that answers an error of that class."""
    return next((status for row, status in STATUS if issubclass(kind, row)), 500)


def _title(kind: type[Exception]) -> str:
    return (kind.__doc__ or kind.__name__).partition("\n")[0]


def _classes(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _classes(child)


def problem_kinds() -> list[ProblemKindAnswer]:
    """All codes, sorted."""
    found = {
        kind.code: ProblemKindAnswer(code=kind.code, title=_title(kind), status=status_of(kind))  # type: ignore[attr-defined]  # both roots have it
        for root in (engine.EngineError, jobs.ServiceError)
        for kind in _classes(root)
    }
    found |= {code: ProblemKindAnswer(code=code, title=title, status=None) for code, title in _JOB_CODES}
    return [found[code] for code in sorted(found)]


def problem(
    request: Request,
    error: engine.EngineError | jobs.ServiceError,
    errors: Sequence[dict[str, str]] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """The answer to a failed request: a problem, or a page that tells it to people.

    Clients of the Open Inference Protocol do not know problem documents and get its own.
    """
    status, root = status_of(type(error)), request.scope.get("root_path", "")
    path = request.url.path.removeprefix(root)
    if path == "/v2" or path.startswith("/v2/"):
        return protocol_error(status, error.message, headers)
    if error.pointer:
        errors = [{"pointer": error.pointer, "message": error.message}]
    body: dict[str, Any] = {
        "type": f"{root}/v1/problems/{error.code}",
        "title": _title(type(error)),
        "status": status,
        "detail": error.message,
        "instance": request.url.path,
        "code": error.code,
        "errors": list(errors),
        "request_id": request.scope.get("request_id", ""),
    }
    if is_page(request):
        return error_page(request, body)
    return JSONResponse(body, status, media_type=MEDIA_TYPE, headers=headers)


def protocol_error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A failure as the Open Inference Protocol has it."""
    return JSONResponse({"error": message}, status, headers=headers)


# What failed answers tell besides the problem.
_HEADERS: tuple[tuple[type[Exception], dict[str, str]], ...] = (
    (jobs.UnauthorizedError, {"www-authenticate": "Bearer"}),
    (jobs.TooManyError, {"retry-after": "1"}),
    (NotReadyError, {"retry-after": "2"}),
    (jobs.StorageFullError, {"retry-after": "60"}),
    (jobs.StoreOutageError, {"retry-after": "5"}),
)
# Failures that are no defects.
_OF_THE_SITUATION = (NotReadyError, jobs.NoAnswerError, jobs.StorageFullError, jobs.StoreOutageError)


def answer_to(request: Request, error: engine.EngineError | jobs.ServiceError) -> Response:
    """The answer to a request that failed with an error of ours."""
    if status_of(type(error)) >= 500 and not isinstance(error, _OF_THE_SITUATION):
        logger.error("request failed", exc_info=error)
    headers = next((headers for kind, headers in _HEADERS if isinstance(error, kind)), None)
    return problem(request, error, headers=headers)


async def _on_known(request: Request, error: Exception) -> Response:
    assert isinstance(error, engine.EngineError | jobs.ServiceError)
    return answer_to(request, error)


async def _on_database(request: Request, error: Exception) -> Response:
    """The database is gone, or its disk is full: both pass."""
    logger.warning("the database failed: %s", error)
    if "disk is full" in str(error) or "No space left" in str(error):
        return answer_to(request, jobs.StorageFullError("the disk of the database is full"))
    return answer_to(request, NotReadyError("the database does not answer; try again"))


def message_of(error: Mapping[str, Any]) -> str:
    """Message of one of pydantic's errors, without its prefix of those that our validators raise."""
    return str(error["msg"]).removeprefix("Value error, ")


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    rows = [{"pointer": _pointer(e["loc"]), "message": message_of(e)} for e in error.errors()]
    detail = "; ".join(f"{r['pointer'] or 'body'}: {r['message']}" for r in rows[:3])
    return problem(request, jobs.RequestError(detail), rows)


def _pointer(location: Sequence[Any]) -> str:
    """A JSON pointer for a place in the body, the parameter's name for one elsewhere."""
    where, *steps = location
    if where == "body":
        return "".join(f"/{str(s).replace('~', '~0').replace('/', '~1')}" for s in steps)
    return f"{where}:{'.'.join(map(str, steps))}"


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _FROM_HTTP.get(error.status_code, BadRequestError)
    detail = str(error.detail)
    if kind is RouteNotFoundError:
        detail = f"no operation has the address {request.url.path}"
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # the router knows the first route only
        headers["allow"] = ", ".join(methods_of(request.scope))
    return problem(request, kind(detail), headers=headers)


async def _on_defect(request: Request, error: Exception) -> Response:
    return problem(request, InternalError(f"{type(error).__name__}; the log has more under the request id"))


def install(app: FastAPI) -> None:
    """Let the app answer every failure with a problem."""
    app.add_exception_handler(engine.EngineError, _on_known)
    app.add_exception_handler(jobs.ServiceError, _on_known)
    for kind in (*OUTAGE, PoolTimeoutError):
        app.add_exception_handler(kind, _on_database)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_defect)


def responses(
    *kinds: type[Exception], also: Mapping[int, dict[str, Any]] = MappingProxyType({})
) -> dict[int | str, dict[str, Any]]:
    """The documentation of an operation's failures: those of the given classes, and 422.

    `also` documents other answers.
    """
    by_status: dict[int, list[Any]] = {}
    every: tuple[type[Exception], ...] = (jobs.RequestError, *kinds)
    for kind in dict.fromkeys(every):
        by_status.setdefault(status_of(kind), []).append(kind)
    documented: dict[int | str, dict[str, Any]] = dict(also.items())
    for status, rows in sorted(by_status.items()):
        documented[status] = {
            "description": "; ".join(f"`{k.code}`: {_title(k)}" for k in rows),
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "examples": {k.code: {"value": _example(k, status)} for k in rows},
                }
            },
        }
    return documented


def _example(kind: Any, status: int) -> dict[str, Any]:
    return {
        "type": f"/v1/problems/{kind.code}",
        "title": _title(kind),
        "status": status,
        "detail": _title(kind),
        "instance": "/v1/…",
        "code": kind.code,
        "errors": [],
        "request_id": "6f1d0c5b9a2e4c37",
    }
