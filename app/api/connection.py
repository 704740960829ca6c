"""One connection of the HTTP server: uvicorn's, with three things more.

Heads of requests are bounded: its parser in C bounds none. A body may go straight to where it is
wanted, as the tensors of inferences do: the system writes it there, and no copy is made in between.
And head and body of a short answer go out together: whoever waits for it is woken once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_EXTENSION = "stowplan.body"
_BUFFER = 1 << 16  # byte read at once
_MOST_HEAD = 2 * _BUFFER  # byte of a request's line and headers; what precedes them in a buffer counts too
_MOST_JOINED = 1 << 16  # byte of an answer that are sent together
_REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

# Takes a body into memory of the size that was announced; the number of bytes that came.
Into = Callable[[memoryview], Awaitable[int]]


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """What the event loop reads a connection with."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._place: memoryview | None = None  # where the rest of the present body goes
        self._at = 0  # in that place
        self._joined: _Joined | None = None
        self._head: int | None = None  # bytes of the present head so far; None outside of one

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes are written."""
        return self._buffer if self._place is None else self._place[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        """They have been."""
        if self._place is None:
            piece = self._buffer[:nbytes]
        else:
            piece = self._place[self._at : self._at + nbytes]
            self._at += nbytes
        self.data_received(piece)  # type: ignore[arg-type]  # the parser takes any bytes
        if self._head is not None:
            self._head += nbytes
            if self._head > _MOST_HEAD and not self.transport.is_closing():
                self.transport.write(_REFUSAL)
                self.transport.close()

    def on_message_begin(self) -> None:
        """A request comes."""
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        """A body comes, or the next request."""
        super().on_headers_complete()
        self._head = None
        self._joined = self.cycle.transport = cast(Any, _Joined(self.transport, self.loop))
        self.scope["extensions"] = {_EXTENSION: cast(Any, _Body(self, self.cycle))}

    def on_body(self, body: bytes) -> None:
        """Keep a piece of a body, unless it is where it belongs already."""
        if self._place is None:
            super().on_body(body)

    def shutdown(self) -> None:
        """Stop after the present answer."""
        if self._joined is not None:
            self._joined.flush()
        super().shutdown()

    def divert(self, place: memoryview, at: int) -> None:
        """Let the rest of the present body go to a place, from `at` on."""
        self._place, self._at = place, at
        self.flow.resume_reading()

    def end_diversion(self) -> int:
        """Let what comes be read as ever; where the body ends."""
        self._place = None
        return self._at


class _Joined:
    """A transport that sends what is written in one turn of the event loop at once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._nbytes = 0

    def write(self, piece: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(piece)
        self._nbytes += len(piece)
        if self._nbytes > _MOST_JOINED:
            self.flush()

    def flush(self) -> None:
        if self._pieces:
            self._transport.write(b"".join(self._pieces))
            self._pieces.clear()
            self._nbytes = 0

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Body:
    """The body of one request."""

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle

    async def into(self, place: memoryview) -> int:
        """Take it into memory of its size."""
        connection, cycle = self._connection, self._cycle
        count = len(cycle.body)
        place[:count] = cycle.body
        cycle.body = bytearray()
        if cycle.waiting_for_100_continue and not cycle.transport.is_closing():
            cycle.waiting_for_100_continue = False
            cycle.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not cycle.more_body:
            return count
        connection.divert(place, count)
        try:
            while cycle.more_body:
                if cycle.disconnected:
                    raise ClientDisconnect
                cycle.message_event.clear()
                await cycle.message_event.wait()
        finally:
            count = connection.end_diversion()
        return count


def body_of(request: Request) -> Into:
    """What takes the body of a request, whatever server it came to."""
    scope: Scope = request.scope
    body = scope.get("extensions", {}).get(_EXTENSION)
    if body is not None:
        return cast(Into, body.into)

    async def into(place: memoryview) -> int:
        count = 0
        async for piece in request.stream():
            place[count : count + len(piece)] = piece[: len(place) - count]
            count += len(piece)
        return count

    return into
