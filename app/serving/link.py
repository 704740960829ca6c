"""The API's end of one executor: requests go out, answers wake whoever waits for them.

Nothing here blocks, and no other thread is asked: the event loop watches the socket.
"""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from struct import error as StructError  # noqa: N812  it is a class
from typing import Any

from app.serving import channel
from app.serving.protocol import ERROR_NBYTES, NO_HEADER, InferenceError
from app.serving.ring import Region, Ring

_TOLD = ("loading", "ready", "failed")  # states that the executor knows of
logger = logging.getLogger("stowplan.serving")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one deployed model may be asked.

    Attributes:
        body_nbytes: of one request.
        ring_nbytes: of all requests and answers at once.
        waiting: requests at once.
        seconds: until a request is answered, however it may be.
    """

    body_nbytes: int
    ring_nbytes: int
    waiting: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What the executor answered; seconds are None where it did not come to it."""

    status: int
    body: bytes
    header_nbytes: int
    waited: float | None
    ran: float | None


@dataclass(eq=False, slots=True)
class _Call:
    region: Region
    start: int  # of the body
    future: "asyncio.Future[Reply] | None" = None  # None when nobody waits any more
    building: bool = False


class Link:
    """One deployed model, as the API sees it.

    Attributes:
        state: `starting` when no process answers, `loading`, `ready`, `failed` or `deleted`.
        detail: why it failed.
        metadata: inputs and outputs, once they are known.
        programs: shapes that are compiled now.
        restarts: processes that ended while they were connected.
    """

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._path = path
        self._bounds = bounds
        self._ring = Ring(bounds.ring_nbytes)
        self._socket: socket.socket | None = None
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._largest = ERROR_NBYTES  # answer so far, as far as every request can have as much
        self._receiving = 0
        self._buffer = memoryview(bytearray(channel.LARGEST))
        self.state = "starting"
        self.detail = ""
        self.metadata: dict[str, Any] | None = None
        self.programs = 0
        self.restarts = 0

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return len(self._calls) + self._receiving

    def connect(self) -> None:
        """Try to reach the process; nothing happens while it is not there, or when it is connected."""
        if self._socket is not None:
            return
        try:
            connection = channel.connect(self._path)
        except OSError:
            return
        ring = self._ring
        try:
            socket.send_fds(connection, [channel.RING.pack(b"M", ring.nbytes)], [ring.descriptor])
        except OSError:
            connection.close()
            return
        self._socket = connection
        self.state = "loading"
        asyncio.get_running_loop().add_reader(connection, self._read)

    def close(self) -> None:
        """Let go of the process."""
        self._lose()
        self.state = "deleted"

    async def infer(
        self, body: Callable[[memoryview], Awaitable[int]], nbytes: int, header_nbytes: int | None
    ) -> Reply:
        """Send a request, and wait for what the executor says.

        Args:
            body: puts it where it is told, as it comes from the network, and tells its size.
            nbytes: of it, as announced.
            header_nbytes: of the JSON at its start; None when all of it is.

        Raises:
            InferenceError: it could not be sent, the process ended meanwhile, or it took too long.
        """
        deadline = time.monotonic() + self._bounds.seconds
        self._check()
        self._receiving += 1
        try:
            async with asyncio.timeout(self._bounds.seconds):
                call = await self._receive(body, nbytes, header_nbytes or 0)
        except TimeoutError:
            raise InferenceError("the body of the request did not come in time", 408) from None
        finally:
            self._receiving -= 1
        return await self._answer(
            call, nbytes, NO_HEADER if header_nbytes is None else header_nbytes, deadline
        )

    def _check(self) -> None:
        """Refuse what cannot be answered now.

        Raises:
            InferenceError: the model is not ready, or has enough to do.
        """
        if self.state == "failed":
            raise InferenceError(f"the model cannot be served: {self.detail}", 503)
        if self.state != "ready":
            raise InferenceError(f"the model is {self.state}: try again", 503, retry_after=1)
        if self.waiting >= self._bounds.waiting:
            raise InferenceError(f"{self.waiting} requests wait for the model already", 503, retry_after=1)

    async def _receive(
        self, body: Callable[[memoryview], Awaitable[int]], nbytes: int, header_nbytes: int
    ) -> _Call:
        """A body in the ring, its binary part aligned."""
        call = self._reserve(nbytes, header_nbytes)
        try:
            found = await body(self._ring.view[call.start : call.start + nbytes])
        except BaseException:
            self._ring.give(call.region)
            raise
        if found != nbytes:
            self._ring.give(call.region)
            raise InferenceError(f"expected a body of {nbytes} byte, found {found} byte")
        return call

    def _reserve(self, nbytes: int, header_nbytes: int) -> _Call:
        if nbytes > self._bounds.body_nbytes:
            raise InferenceError(f"the body exceeds the limit of {self._bounds.body_nbytes} byte", 413)
        lead = -header_nbytes % channel.ALIGNMENT
        region = self._ring.take(max(nbytes + lead, self._largest))
        if region is None:
            raise InferenceError("the requests that wait take all memory: try again", 503, retry_after=1)
        return _Call(region, region.start + lead)

    async def _answer(self, call: _Call, nbytes: int, header_nbytes: int, deadline: float) -> Reply:
        loop = asyncio.get_running_loop()
        if self._socket is None:
            self._ring.give(call.region)
            raise InferenceError("the process of the model has ended: try again", 503, retry_after=1)
        self._number += 1
        number = self._number
        capacity = call.region.end - call.start
        future: asyncio.Future[Reply] = loop.create_future()
        call.future = future
        try:
            self._socket.send(
                channel.REQUEST.pack(b"Q", number, call.start, capacity, nbytes, header_nbytes, deadline)
            )
        except BlockingIOError:
            self._ring.give(call.region)
            raise InferenceError(
                "the process of the model takes no more requests", 503, retry_after=1
            ) from None
        except OSError:
            self._ring.give(call.region)
            raise InferenceError(
                "the process of the model has ended: try again", 503, retry_after=1
            ) from None
        self._calls[number] = call
        alarm = loop.call_at(loop.time() + deadline - time.monotonic(), self._expire, call)
        try:
            return await future
        finally:
            alarm.cancel()
            call.future = None  # the region stays taken until the executor is done with it

    def _expire(self, call: _Call) -> None:
        if call.future is None or call.future.done():
            return
        error = InferenceError(f"no answer within {self._bounds.seconds:g} s", 504)
        if call.building:
            error = InferenceError(
                "a program for these shapes is still being compiled: try again", 503, retry_after=5
            )
        call.future.set_exception(error)

    def _read(self) -> None:
        """Take all messages that wait."""
        while self._socket is not None:
            try:
                text = self._buffer[: self._socket.recv_into(self._buffer)]
            except BlockingIOError:
                return
            except OSError:
                text = self._buffer[:0]
            try:
                if len(text):
                    self._hear(text)
                    continue
            except (OSError, KeyError, ValueError, StructError):
                logger.exception("the process of a model does not keep to the rules")
            self.restarts += 1
            self._lose()

    def _hear(self, text: memoryview) -> None:
        kind = bytes(text[:1])
        if kind == b"A":
            _, number, status, nbytes, header_nbytes, waited, ran = channel.ANSWER.unpack(text)
            call = self._calls.pop(number)
            self._note_size(nbytes)
            if call.future is not None and not call.future.done():
                nbytes = min(nbytes, call.region.end - call.start)
                body = bytes(self._ring.view[call.start : call.start + nbytes])
                call.future.set_result(Reply(status, body, header_nbytes, waited, ran))
            self._ring.give(call.region)
        elif kind == channel.STATE:
            told = json.loads(bytes(text[1:]))
            if told["state"] not in _TOLD:
                raise ValueError(f"state {told['state']!r}")
            self.state, self.detail = told["state"], told["detail"]
            self.programs, self.metadata = told["programs"], told["metadata"]
        elif kind == b"B":
            self._calls[channel.BUILDING.unpack(text)[1]].building = True
        elif kind == b"N":
            _, number, nbytes = channel.NEEDS.unpack(text)
            self._grant(number, nbytes)

    def _grant(self, number: int, nbytes: int) -> None:
        """Give an answer a region where it fits, or none."""
        assert self._socket is not None
        call = self._calls[number]
        self._note_size(nbytes)
        self._ring.give(call.region)
        region = self._ring.take(nbytes)
        if region is None:
            del self._calls[number]
            self._fail(call, InferenceError(f"no memory is free for an answer of {nbytes} byte", 503))
            region = Region(0, 0)
        call.region, call.start = region, region.start
        self._socket.send(channel.GRANT.pack(b"G", number, region.start, region.nbytes))

    def _note_size(self, nbytes: int) -> None:
        bounds = self._bounds
        self._largest = min(max(self._largest, nbytes), bounds.ring_nbytes // (2 * bounds.waiting))

    @staticmethod
    def _fail(call: _Call, error: InferenceError) -> None:
        if call.future is not None and not call.future.done():
            call.future.set_exception(error)

    def _lose(self) -> None:
        """The process has ended: so have all its requests."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        self.state, self.programs = "starting", 0
        for call in self._calls.values():
            self._fail(
                call,
                InferenceError(
                    "the process of the model ended before it answered: try again", 503, retry_after=1
                ),
            )
            self._ring.give(call.region)
        self._calls.clear()
