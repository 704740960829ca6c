"""Limits of connections: their number, the size and time of a request's head, the time for an answer.

uvicorn's protocol enforces none of these. A body that stalls is the matter of `app.api.http.body_limits`.

The rest of a body whose request was answered before it had come is read only so that the client can send it,
and then read the answer. Few such bodies are read at once: those of requests that are served go first.

A connection that has called a model which is busy is read when its turn comes, see
`app.serving.scheduling.connection_queue`.
"""

import asyncio
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.serving.executor_client import ExecutorClient
from app.serving.scheduling.connection_queue import ConnectionQueue

_LOOK_SECONDS = 0.5  # between two looks at all connections
_MAX_CLOSED = 25  # connections in one look: each takes some 50 us, and other requests wait meanwhile
_NEXT_SECONDS = 0.005  # before the next look where more connections are late
WAITED = "stowplan.waited"  # key of a scope: seconds that a request lay in the kernel before it was read
MODEL = "stowplan.model"  # key of a scope: `ExecutorClient` of the model that the request calls
_LAST_RECEIVED = struct.Struct("52xI")  # tcpi_last_data_recv of struct tcp_info, in ms: tcp(7), linux/tcp.h
_MAX_HEAD = 1 << 17  # byte of a request line and headers; those read with its first byte do not count
_DRAINED = 16  # bodies of answered requests that are read at once
_DRAIN_SECONDS = 0.5  # after which one that is read still makes way for another
_REJECTION = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
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


class ConnectionLimiter:
    """All connections of one server; `clock` is the monotonic one."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self._open: dict[LimitedConnection, None] = {}  # oldest first
        self._look: asyncio.TimerHandle | None = None
        self._held: deque[LimitedConnection] = deque()  # with the rest of a body that nobody needs
        self._drained: dict[LimitedConnection, float] = {}  # whose rest is read, and since when

    def protocol(self) -> type[asyncio.Protocol]:
        """HTTP protocol with these limits, for the server to make one of each connection."""
        return cast(type[asyncio.Protocol], partial(LimitedConnection, self))  # the server only calls it

    def add(self, connection: "LimitedConnection") -> None:
        """Count a connection; beyond the limit, close the one that waits longest for a request."""
        if len(self._open) >= self.limits.connections:
            idle = (c for c in self._open if not c.requests)
            self._end([next(idle, connection)], "more connections are open than the limit allows")
        if not connection.transport.is_closing():
            self._open[connection] = None
            self._arm()

    def remove(self, connection: "LimitedConnection") -> None:
        """Forget a connection."""
        self._open.pop(connection, None)
        self.drained(connection)

    def hold(self, connection: "LimitedConnection") -> None:
        """Read the rest of a body that nobody needs when its turn comes."""
        if connection.timeout_keep_alive_task is not None:
            connection.timeout_keep_alive_task.cancel()  # it is not the client that is silent
        connection.flow.pause_reading()
        self._held.append(connection)
        self._drain()

    def drained(self, connection: "LimitedConnection") -> None:
        """Let another connection have its turn, where this one had one."""
        if self._drained.pop(connection, None) is not None:
            self._drain()

    def _drain(self) -> None:
        while self._held and len(self._drained) < _DRAINED:
            connection = self._held.popleft()
            if not connection.transport.is_closing():
                self._drained[connection] = connection.head_since = self.clock()
                connection.flow.resume_reading()

    def _arm(self, seconds: float = _LOOK_SECONDS) -> None:
        if self._look is None and self._open:
            self._look = asyncio.get_running_loop().call_later(seconds, self._close_late)

    def _close_late(self) -> None:
        self._look = None
        now, limits = self.clock(), self.limits
        for connection in [c for c, since in self._drained.items() if since < now - _DRAIN_SECONDS]:
            self.drained(connection)
        head_due, answer_due = now - limits.head_seconds, now - limits.silence_seconds
        late = [
            c for c in self._open if not c.requests and c.head_since is not None and c.head_since < head_due
        ]
        self._end(late, f"no request came within {limits.head_seconds:g} s")
        deaf = [c for c in self._open if c.paused_since is not None and c.paused_since < answer_due]
        self._end(deaf, f"the client took nothing of an answer for {limits.silence_seconds:g} s")
        self._arm(_NEXT_SECONDS if max(len(late), len(deaf)) > _MAX_CLOSED else _LOOK_SECONDS)

    def _end(self, late: list["LimitedConnection"], reason: str) -> None:
        connections = late[:_MAX_CLOSED]
        for connection in connections:
            connection.transport.abort()
            self.remove(connection)
        if connections:
            logger.info("%d connections closed: %s", len(connections), reason)


class LimitedConnection(HttpToolsProtocol):
    """One connection: uvicorn's protocol, observed through the callbacks of the transport and of the parser.

    Attributes:
        requests: whose heads have come and that are not answered.
        head_since: start of the wait for the present head; None between requests.
        paused_since: time when the client stopped taking an answer; None while it takes it.
    """

    def __init__(self, limiter: ConnectionLimiter, **named: Any) -> None:
        super().__init__(**named)
        self._limiter = limiter
        self._head_nbytes: int | None = None  # of the present head so far; None outside of one
        self._in_body = False  # a head has come, and its body not whole
        self._turn: tuple[ConnectionQueue, asyncio.TimerHandle] | None = None  # that it waits for
        self.requests = 0
        self.head_since: float | None = limiter.clock()
        self.paused_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection."""
        super().connection_made(transport)
        self._limiter.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        self._limiter.remove(self)
        self._end_turn()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse a head that exceeds its limit."""
        if not self.requests and self.head_since is None:
            self.head_since = self._limiter.clock()
        continued = self._head_nbytes is not None
        super().data_received(data)
        if not continued or self._head_nbytes is None:
            return
        self._head_nbytes += len(data)
        if self._head_nbytes > _MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_REJECTION)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to count the bytes of a head."""
        self._end_turn()
        super().on_message_begin()
        self._head_nbytes = 0

    def on_headers_complete(self) -> None:
        """Count a request whose head has come."""
        self._head_nbytes = None
        self._in_body = True
        self.scope[WAITED] = seconds_in_kernel(self.transport)  # type: ignore[literal-required]  # ours
        super().on_headers_complete()
        self.requests += 1

    def on_message_complete(self) -> None:
        """Note the end of a body."""
        self._in_body = False
        super().on_message_complete()
        self._limiter.drained(self)
        self._await_turn()

    def on_response_complete(self) -> None:
        """Count an answered request no longer."""
        self.requests -= 1
        self.head_since = None
        super().on_response_complete()
        if self._in_body and not self.requests and not self.transport.is_closing():
            self._limiter.hold(self)
        self._await_turn()

    def _await_turn(self) -> None:
        """Read no further request while the model of the last one is busy, as long as requests may lie."""
        model: ExecutorClient | None = self.scope.get(MODEL)  # type: ignore[assignment]  # ours
        has_request = self.requests or self._in_body or self._turn
        if model is not None and model.is_busy and not has_request and not self.transport.is_closing():
            self.flow.pause_reading()
            self._turn = model.connections, self.loop.call_later(model.connections.patience, self._resume)
            model.connections.add(self, self._resume)

    def _resume(self) -> None:
        self._end_turn()
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _end_turn(self) -> None:
        if self._turn is not None:
            connections, alarm = self._turn
            self._turn = None
            alarm.cancel()
            connections.remove(self)

    def pause_writing(self) -> None:
        """Note when the client stopped taking an answer."""
        self.paused_since = self._limiter.clock()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that it takes the answer again."""
        self.paused_since = None
        super().resume_writing()


def seconds_in_kernel(transport: asyncio.BaseTransport) -> float:
    """Seconds since the last bytes of a TCP connection came, which a busy loop reads late; 0 for others."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0
    try:
        told = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
    except OSError:
        return 0.0
    return float(_LAST_RECEIVED.unpack(told)[0]) * 1e-3 if len(told) == _LAST_RECEIVED.size else 0.0
