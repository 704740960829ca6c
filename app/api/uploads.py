"""Reads request bodies in pieces: hashed, counted and written as they come."""

from collections.abc import AsyncIterator

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from app.api.errors import MediaTypeError
from app.jobs.blobs import Blob, Upload
from app.jobs.errors import TooLargeError

# Above every limit of ours, so that the app's limit for JSON bodies does not apply.
NO_LIMIT = 2**62
_PIECE = 1 << 20  # byte, written at once


async def receive(
    request: Request, upload: Upload, limit: int, *, expected: str | None = None, claim: float = 0.0
) -> Blob:
    """Write the body into an upload and commit it.

    Raises:
        TooLargeError: it is longer than the limit.
        MediaTypeError: it is compressed.
        HashMismatchError: it is not what was expected.
    """
    async for piece in _pieces(request, limit):
        await run_in_threadpool(upload.write, piece)
    return await run_in_threadpool(lambda: upload.commit(expected=expected, claim=claim))


async def read(request: Request, limit: int) -> bytes:
    """The whole of a short body.

    Raises:
        TooLargeError: it is longer than the limit.
        MediaTypeError: it is compressed.
    """
    body = bytearray()
    async for piece in _pieces(request, limit):
        body += piece
        if len(body) > limit:
            raise TooLargeError(f"the body exceeds the limit of {limit} byte")
    return bytes(body)


async def _pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise MediaTypeError(f"content encoding {encoding!r} is not understood; send the bytes as they are")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise TooLargeError(f"the body has {announced} byte, the limit is {limit} byte")
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
