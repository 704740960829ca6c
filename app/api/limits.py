"""Bodies are counted as they come, whatever their headers announce."""

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
    """Middleware that refuses bodies of more than `nbytes`, unless the operation allows more."""

    def __init__(self, app: ASGIApp, nbytes: int) -> None:
        self._app = app
        self._nbytes = nbytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = scope[_KEY] = _Limit(self._nbytes)
        announced = Headers(scope=scope).get("content-length", "")
        count = 0

        async def receive_counted() -> Message:
            nonlocal count
            if announced.isdecimal() and int(announced) > limit.nbytes:
                raise _too_large(limit)
            message = await receive()
            count += len(message.get("body", b""))
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
