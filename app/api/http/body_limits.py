"""Bodies are counted as they come, whatever their headers announce, and must not stop to come."""

import asyncio
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KEY = "stowplan.body_limit"


@dataclass(slots=True)
class _Limit:
    nbytes: int


class BodyLimit:
    """Middleware that refuses bodies of more than `nbytes`, unless the operation allows more.

    A body of which nothing comes for `seconds`, while the operation waits for it, is given up.
    """

    def __init__(self, app: ASGIApp, nbytes: int, seconds: float) -> None:
        self._app = app
        self._nbytes = nbytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = scope[_KEY] = _Limit(self._nbytes)
        announced = Headers(scope=scope).get("content-length", "")
        count, more = 0, True

        async def receive_counted() -> Message:
            nonlocal count, more
            if announced.isdecimal() and int(announced) > limit.nbytes:
                raise _too_large(limit)
            try:
                # After the body only the end of the connection can come, at any time.
                async with asyncio.timeout(self._seconds if more else None):
                    message = await receive()
            except TimeoutError:
                detail = f"nothing of the body came for {self._seconds:g} s"
                raise HTTPException(408, detail, headers={"connection": "close"}) from None
            count += len(message.get("body", b""))
            more = bool(message.get("more_body"))
            if count > limit.nbytes:
                raise _too_large(limit)
            return message

        await self._app(scope, receive_counted, send)


def allow(request: Request, nbytes: int) -> None:
    """Let the body of this request be that long."""
    request.scope[_KEY].nbytes = nbytes


def _too_large(limit: _Limit) -> HTTPException:
    # The framework passes its own exceptions through while it reads a body, and hides others.
    return HTTPException(413, f"the body exceeds the limit of {limit.nbytes} byte")
