"""One connection of the HTTP server: uvicorn's, with four things more.

Heads of requests are bounded: its parser in C bounds none. A body may go straight to where it is
wanted, as the tensors of inferences do: the system writes it there, and no copy is made in between.
Head and body of a short answer go out together: whoever waits for it is woken once. And a request
whose head is known may go a short way, past the parser and the application (`app.api.http.fast_path`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

SHORT_WAY: Final = "stowplan.short_way"  # of the lifespan's state
_EXTENSION = "stowplan.body"
_BUFFER = 1 << 16  # byte read at once
_MOST_HEAD = 2 * _BUFFER  # byte of a request's line and headers; what precedes them in a buffer counts too
_MOST_JOINED = 1 << 16  # byte of an answer that are sent together
_REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

_END_OF_HEAD = b"\r\n\r\n"
_LONGEST_KNOWN = 4096  # byte of a head that may be known

# Takes a body into memory of the size that was announced; the number of bytes that came.
Into = Callable[[memoryview], Awaitable[int]]


class Passage(Protocol):
    """One request on the short way."""

    place: memoryview  # where its body goes

    def go_on(self) -> None:
        """The body has come."""

    def leave(self) -> None:
        """The client has left."""


class ShortWay(Protocol):
    """Takes requests whose heads it knows."""

    def enter(self, head: bytes, connection: "Connection") -> Passage | None:
        """Take a request; it must call `answer` of the connection, once, unless the client leaves."""


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """What the event loop reads a connection with."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._bytes = bytearray(_BUFFER)
        self._buffer = memoryview(self._bytes)
        self._place: memoryview | None = None  # where the rest of the present body goes
        self._at = 0  # in that place
        self._joined: _Joined | None = None
        self._head: int | None = None  # bytes of the present head so far; None outside of one
        self._known = b""  # the head that the parser gets now, whole
        self._short_way: ShortWay | None = self.app_state.get(SHORT_WAY)
        self._passage: Passage | None = None
        self._ahead = 0  # byte in the buffer that came before the answer to the passage
        self._closes = False  # after that answer
        self._own: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")  # the server's headers, and as lines

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes are written."""
        return self._buffer if self._place is None else self._place[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        """They have been."""
        if self._passage is not None:
            self._carry_on(nbytes)
            return
        if self._place is None:
            if self._enters(nbytes):
                return
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

    def _enters(self, nbytes: int) -> bool:
        """Whether what is in the buffer goes the short way."""
        self._known = b""
        cycle, size = self.cycle, self._bytes.find(_END_OF_HEAD, 0, min(nbytes, _LONGEST_KNOWN))
        between = cycle is None or (cycle.response_complete and not cycle.more_body)
        if self._short_way is None or size < 0 or not between or self._head is not None:
            return False
        size += len(_END_OF_HEAD)
        self._known = bytes(self._buffer[:size])
        passage = self._short_way.enter(self._known, self)
        if passage is None:
            return False
        self._unset_keepalive_if_required()
        self._passage = passage
        rest = min(nbytes - size, len(passage.place))
        passage.place[:rest] = self._buffer[size : size + rest]
        self._place, self._at = passage.place, 0
        self._carry_on(rest)
        ahead = nbytes - size - rest
        if ahead:
            self._bytes[:ahead] = self._bytes[size + rest : nbytes]
            self._carry_on(ahead)
        return True

    def _carry_on(self, nbytes: int) -> None:
        """Bytes of a body on the short way have come, or of what follows it."""
        assert self._passage is not None
        if self._place is None:
            self._ahead = nbytes
            self.flow.pause_reading()
            return
        self._at += nbytes
        if self._at == len(self._place):
            self._place = None
            self._passage.go_on()

    def answer(self, head: bytes, body: bytes, *, close: bool = False) -> None:
        """Answer the request on the short way; `head` lacks the lines that the server adds."""
        self._passage = self._place = None
        closes = close or self._closes
        defaults = self.server_state.default_headers
        if self._own[0] is not defaults:  # the server makes a new list when the date changes
            self._own = defaults, b"".join(b"%b: %b\r\n" % pair for pair in defaults)
        end = b"connection: close\r\n\r\n" if closes else b"\r\n"
        self.transport.write(b"".join((head, self._own[1], end, body)))
        if closes:
            self.transport.close()
        self.on_response_complete()
        ahead, self._ahead = self._ahead, 0
        if ahead and not closes:
            self.buffer_updated(ahead)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or the connection was closed."""
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.leave()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request comes."""
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        """A body comes, or the next request."""
        super().on_headers_complete()
        self._head = None
        self._joined = self.cycle.transport = cast(Any, _Joined(self.transport, self.loop))
        known, self._known = self._known, b""
        reusable = self.cycle.keep_alive and not self.cycle.waiting_for_100_continue
        body = _Body(self, self.cycle, known if reusable else b"")
        self.scope["extensions"] = {_EXTENSION: cast(Any, body)}

    def on_body(self, body: bytes) -> None:
        """Keep a piece of a body, unless it is where it belongs already."""
        if self._place is None:
            super().on_body(body)

    def shutdown(self) -> None:
        """Stop after the present answer."""
        if self._passage is not None:
            self._closes = True
            return
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
    """The body of one request, and its head where others may have the same."""

    def __init__(self, connection: Connection, cycle: RequestResponseCycle, head: bytes) -> None:
        self._connection = connection
        self._cycle = cycle
        self.head = head

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


def head_of(request: Request) -> bytes | None:
    """The bytes of a request up to its body, if others on a kept connection may have the same."""
    body = request.scope.get("extensions", {}).get(_EXTENSION)
    return None if body is None else body.head or None
