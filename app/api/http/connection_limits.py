"""Limits of connections: in number, in time for the head of a request, in silence inside a body or an answer.

A protocol of asyncio around the server's own: it counts bytes and looks at no request. What it must know of
requests, that one begins and ends, the middleware `Requests` tells, in the context that the server made its
task in.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send

_LOOK_SECONDS = 0.5  # between two looks at all connections
_MOST_CLOSED = 25  # connections in one look: each takes some 50 us, and other requests wait meanwhile
_NEXT_SECONDS = 0.005  # before the next look where more connections are late
_CURRENT: ContextVar["Guarded | None"] = ContextVar("connection", default=None)
logger = logging.getLogger("stowplan.connections")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the connections of one server.

    Attributes:
        connections: open at once; beyond it the one that waits longest for a request is closed.
        head_seconds: for the head of a request, from the connection or from its first byte.
        silence_seconds: that a client may take no byte of an answer.
    """

    connections: int
    head_seconds: float
    silence_seconds: float


class Guard:
    """All connections of one server; `clock` is the monotonic one."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self._open: dict[Guarded, None] = {}  # oldest first
        self._look: asyncio.TimerHandle | None = None

    def around(self, protocol: Callable[..., asyncio.BufferedProtocol]) -> type[asyncio.Protocol]:
        """A protocol with these limits, for the server to make one of each connection."""

        def guarded(*given: Any, **named: Any) -> Guarded:
            return Guarded(self, protocol(*given, **named))

        return cast(type[asyncio.Protocol], guarded)  # the server only calls it

    def add(self, connection: "Guarded") -> None:
        """Watch a connection; in place of another one where there are as many as may be."""
        if len(self._open) >= self.limits.connections:
            waiting = (c for c in self._open if not c.requests)
            self._end([next(waiting, connection)], "more connections are open than the limit allows")
        if not connection.transport.is_closing():
            self._open[connection] = None
            self._arm()

    def remove(self, connection: "Guarded") -> None:
        """Forget a connection."""
        self._open.pop(connection, None)

    def _arm(self, seconds: float = _LOOK_SECONDS) -> None:
        if self._look is None and self._open:
            self._look = asyncio.get_running_loop().call_later(seconds, self._close_late)

    def _close_late(self) -> None:
        self._look = None
        now, limits = self.clock(), self.limits
        heads, answers = now - limits.head_seconds, now - limits.silence_seconds
        late = [c for c in self._open if not c.requests and c.head_since is not None and c.head_since < heads]
        self._end(late, f"no request came within {limits.head_seconds:g} s")
        deaf = [c for c in self._open if c.paused_since is not None and c.paused_since < answers]
        self._end(deaf, f"the client took nothing of an answer for {limits.silence_seconds:g} s")
        self._arm(_NEXT_SECONDS if max(len(late), len(deaf)) > _MOST_CLOSED else _LOOK_SECONDS)

    def _end(self, late: list["Guarded"], reason: str) -> None:
        connections = late[:_MOST_CLOSED]
        for connection in connections:
            connection.transport.abort()
            self.remove(connection)
        if connections:
            logger.info("%d connections closed: %s", len(connections), reason)


class Guarded(asyncio.BufferedProtocol):
    """One connection.

    Attributes:
        requests: whose heads have come and that are not answered.
        head_since: when the wait for the present head began; None between requests.
        paused_since: when the client stopped to take an answer; None while it takes it.
    """

    transport: asyncio.Transport

    def __init__(self, guard: Guard, inner: asyncio.BufferedProtocol) -> None:
        self._guard = guard
        self._inner = inner
        self.requests = 0
        self.head_since: float | None = guard.clock()
        self.paused_since: float | None = None
        self.get_buffer = inner.get_buffer  # type: ignore[method-assign]  # nothing to add

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(self.transport)
        self._guard.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has left."""
        self._guard.remove(self)
        self._inner.connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of it have come."""
        if not self.requests and self.head_since is None:
            self.head_since = self._guard.clock()
        with self.entered():
            self._inner.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        """It sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """It does not take what it is sent."""
        self.paused_since = self._guard.clock()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self.paused_since = None
        self._inner.resume_writing()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let requests that begin in this context be known as this connection's."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def begin(self) -> None:
        """The head of a request has come whole."""
        self.requests += 1

    def end(self) -> None:
        """The request was answered."""
        self.requests -= 1
        self.head_since = None


def current() -> Guarded | None:
    """The connection of the request that is read or answered here; None where connections have no limits."""
    return _CURRENT.get()


class Requests:
    """Middleware around all others: tells the connection of a request when that begins and ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        connection = current() if scope["type"] == "http" else None
        if connection is None:
            await self._app(scope, receive, send)
            return
        connection.begin()
        try:
            await self._app(scope, receive, send)
        finally:
            connection.end()
