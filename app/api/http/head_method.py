"""HEAD for every address that has GET: the same head, and no body."""

import asyncio
from contextlib import suppress

from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def methods_of(scope: Scope) -> list[str]:
    """Methods that an address answers."""
    found = [method for method in _METHODS if _is_answered(scope, method)]
    return [*found, "HEAD"] if "GET" in found and "HEAD" not in found else found


def _is_answered(scope: Scope, method: str) -> bool:
    asked = {**scope, "method": method}
    return any(route.matches(asked)[0] == Match.FULL for route in scope["app"].router.routes)


class HeadOfGet:
    """Middleware that lets a request for a head be answered by the route of GET, until the head is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; as GET where that is what the address has."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or _is_answered(scope, "HEAD"):
            await self._app(scope, receive, send)
            return
        sent = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                sent.set()

        # A body may be long, or a stream that never ends.
        answer = asyncio.ensure_future(self._app({**scope, "method": "GET"}, receive, send_head))
        waiting = asyncio.ensure_future(sent.wait())
        try:
            await asyncio.wait((answer, waiting), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        finally:
            for task in (answer, waiting):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
