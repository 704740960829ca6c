"""Reads request bodies in pieces: hashed, counted and written as they come."""

from collections.abc import AsyncIterator
from typing import Annotated, TypeVar

from fastapi import Header, Request
from pydantic import AfterValidator, BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from app.api.http import body_limits
from app.api.http.errors import MediaTypeError, message_of
from app.jobs.errors import RequestError
from app.jobs.store.blobs import Blob, Upload

_PIECE = 1 << 20  # byte, written at once
Body = TypeVar("Body", bound=BaseModel)
# `Content-Type` without its parameters.
MediaType = Annotated[
    str,
    Header(include_in_schema=False),
    AfterValidator(lambda text: text.partition(";")[0].strip().lower()),
]


async def receive(
    request: Request, upload: Upload, limit: int, *, expected: str | None = None, claim: float = 0.0
) -> Blob:
    """Write the body, of at most `limit` bytes, into an upload and commit it.

    Raises:
        MediaTypeError: it is compressed.
        HashMismatchError: it is not what was expected.
    """
    async for piece in _pieces(request, limit):
        await run_in_threadpool(upload.write, piece)
    return await run_in_threadpool(lambda: upload.commit(expected=expected, claim=claim))


async def read(request: Request, limit: int) -> bytes:
    """The whole of a short body, of at most `limit` bytes.

    Raises:
        MediaTypeError: it is compressed.
    """
    return b"".join([piece async for piece in _pieces(request, limit)])


def parsed(kind: type[Body], text: bytes) -> Body:
    """The JSON body of a request that takes other media types too.

    Raises:
        RequestError: it is no JSON, or not as the schema says.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(message_of(first), pointer="/" + "/".join(map(str, first["loc"]))) from error


async def _pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise MediaTypeError(f"content encoding {encoding!r} is not understood; send the bytes as they are")
    body_limits.allow(request, limit)
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
