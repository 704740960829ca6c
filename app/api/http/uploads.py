"""Reads request bodies in pieces: hashed, counted and written as they come."""

from collections.abc import AsyncIterator

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from app.api.http import body_limits
from app.api.http.errors import MediaTypeError
from app.jobs.store.blobs import Blob, Upload

_PIECE = 1 << 20  # byte, written at once


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
