"""The API's end of one executor: requests go out, answers wake whoever waits for them.

Nothing here blocks, and no other thread is asked: the event loop watches the socket.
"""

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from pathlib import Path
from struct import error as StructError  # noqa: N812  it is a class
from typing import Any

from app.serving import channel
from app.serving.oip_codec import ERROR_NBYTES, NO_HEADER, InferenceError
from app.serving.scheduling.connection_queue import ConnectionQueue
from app.serving.shared_arena import Region, SharedArena

_TOLD = ("loading", "ready", "failed", channel.STOPPING)  # states that the executor knows of
logger = logging.getLogger("stowplan.serving")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on requests to one deployed model.

    Attributes:
        body_nbytes: of one request.
        arena_nbytes: of all requests and answers at once.
        waiting: requests at once.
        seconds: until a request is answered, however it may be.
    """

    body_nbytes: int
    arena_nbytes: int
    waiting: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of the executor.

    Attributes:
        waited: seconds; None for a request that it did not begin, as `held` and `ran`.
        held: part of it that it waited for others of its batch while an instance was free.
        retry_after: seconds after which another try may succeed; 0 where none helps.
    """

    status: int
    body: bytes
    header_nbytes: int
    waited: float | None
    held: float | None
    ran: float | None
    retry_after: int = 0


@dataclass(eq=False, slots=True)
class _Call:
    """A request that has its region of the arena."""

    region: Region
    start: int  # of the body
    reply: "asyncio.Future[Reply]"
    alarm: asyncio.TimerHandle | None = None
    building: bool = False

    def settle(self, outcome: Reply | InferenceError) -> None:
        """Wake whoever waits. The region stays taken until the executor is done with it."""
        if self.alarm is not None:
            self.alarm.cancel()
        if self.reply.done():
            return  # it was cancelled, or took too long
        if isinstance(outcome, Reply):
            self.reply.set_result(outcome)
        else:
            self.reply.set_exception(outcome)


class ExecutorClient:
    """One deployed model, as the API sees it.

    Attributes:
        state: `starting` when no process answers, `loading`, `ready`, `failed` or `deleted`.
        detail: why it failed.
        metadata: inputs and outputs, once they are known.
        programs: shapes that are compiled now.
        restarts: processes that ended while they were connected.
        connections: those that are read when the model has less to do.
    """

    def __init__(self, path: Path, bounds: Bounds, lost: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._lost = lost  # called when the process has ended
        self._bounds = bounds
        self._arena = SharedArena(bounds.arena_nbytes)
        self._socket: socket.socket | None = None
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._largest = ERROR_NBYTES  # answer so far, as far as every request can have as much
        self._receiving = 0
        self._leaving = False  # the connection closes after the last answer
        self._buffer = memoryview(bytearray(channel.LARGEST))
        self.state = "starting"
        self.detail = ""
        self.metadata: dict[str, Any] | None = None
        self.programs = 0
        self.restarts = 0
        self.connections = ConnectionQueue(bounds.waiting, lambda: self.waiting, bounds.seconds)

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return len(self._calls) + self._receiving

    @property
    def is_busy(self) -> bool:
        """True while connections that have called the model are to be read in turn."""
        return self.state == "ready" and self.connections.is_needed

    @property
    def is_connected(self) -> bool:
        """True if a process answers, even one that still loads or has failed."""
        return self._socket is not None

    def connect(self) -> None:
        """Try to reach the process; nothing happens while it is not there, or when it is connected."""
        if self._socket is not None:
            return
        try:
            connection = channel.connect(self._path)
        except OSError:
            return
        arena = self._arena
        try:
            socket.send_fds(connection, [channel.ARENA.pack(b"M", arena.nbytes)], [arena.descriptor])
        except OSError:
            connection.close()
            return
        self._socket = connection
        self._leaving = False
        self.state = "loading"
        asyncio.get_running_loop().add_reader(connection, self._read)

    def retire(self) -> None:
        """Take no more requests, and let go of the process when those that it has are answered."""
        self.state = "deleted"
        self._leave()

    def _leave(self) -> None:
        self._leaving = True
        self._close_when_idle()

    def _answered_one(self) -> None:
        """A request waits no longer: another one may come, or the connection may close."""
        self.connections.call()
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._leaving and not self.waiting:
            self._lose()

    def close(self) -> None:
        """Let go of the process."""
        self._lose()
        self.state = "deleted"

    async def infer(
        self, body: AsyncIterable[bytes], nbytes: int, header_nbytes: int | None, waited: float = 0.0
    ) -> Reply:
        """Send a request, and wait for the answer of the executor.

        Args:
            body: its pieces, as they come from the network.
            nbytes: its size, as announced.
            header_nbytes: size of the JSON at its start; None when all of it is JSON.
            waited: seconds since it came to this machine, of which its time limit is counted too.

        Raises:
            InferenceError: it could not be sent, the process ended meanwhile, or it took too long.
        """
        began = time.monotonic() - waited
        self.connections.note_arrival()
        call = self._reserve(nbytes, header_nbytes)
        self._receiving += 1
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await _receive(body, self._arena.view[call.start : call.start + nbytes])
            self._submit(call, nbytes, header_nbytes, began)
        except BaseException as error:
            self._arena.give(call.region)
            if isinstance(error, TimeoutError):
                raise InferenceError("the body of the request did not come in time", 408) from None
            raise
        finally:
            self._receiving -= 1
            self._answered_one()
        try:
            return await call.reply
        finally:
            if call.alarm is not None:
                call.alarm.cancel()

    def _reserve(self, nbytes: int, header_nbytes: int | None) -> _Call:
        """Reserve a region for a body, such that its binary part is aligned.

        Raises:
            InferenceError: the model is not ready, has enough to do, or takes no body of that size.
        """
        if self.state == "failed":
            raise InferenceError(f"the model cannot be served: {self.detail}", 503)
        if self.state != "ready":
            raise InferenceError(f"the model is {self.state}: try again", 503, retry_after=1)
        if self.waiting >= self._bounds.waiting:
            raise InferenceError(f"{self.waiting} requests wait for the model already", 503, retry_after=1)
        if nbytes > self._bounds.body_nbytes:
            raise InferenceError(f"the body exceeds the limit of {self._bounds.body_nbytes} byte", 413)
        lead = -(header_nbytes or 0) % channel.ALIGNMENT
        region = self._arena.take(max(nbytes + lead, self._largest))
        if region is None:
            raise InferenceError("the requests that wait take all memory: try again", 503, retry_after=1)
        return _Call(region, region.start + lead, asyncio.get_running_loop().create_future())

    def _submit(self, call: _Call, nbytes: int, header_nbytes: int | None, began: float) -> None:
        """Send a request whose body has come.

        Raises:
            InferenceError: it could not be sent.
        """
        self._number += 1
        capacity = call.region.end - call.start
        header = NO_HEADER if header_nbytes is None else header_nbytes
        deadline = began + self._bounds.seconds
        place = call.start, capacity, nbytes, header
        packed = channel.REQUEST.pack(b"Q", self._number, *place, began, deadline)
        rejection = self._send(packed)
        if rejection is not None:
            raise rejection
        self._calls[self._number] = call
        loop = asyncio.get_running_loop()
        call.alarm = loop.call_at(loop.time() + deadline - time.monotonic(), self._expire, call)

    def _send(self, message: bytes) -> InferenceError | None:
        """Reason why a message cannot be sent; None when it was."""
        if self._socket is not None:
            try:
                self._socket.send(message)
            except BlockingIOError:
                return InferenceError("the process of the model takes no more requests", 503, retry_after=1)
            except OSError:
                pass
            else:
                return None
        return InferenceError("the process of the model has ended: try again", 503, retry_after=1)

    def _expire(self, call: _Call) -> None:
        error = InferenceError(f"no answer within {self._bounds.seconds:g} s", 504)
        if call.building:
            error = InferenceError(channel.COMPILING, 503, retry_after=5)
        call.settle(error)

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
            _, number, limit, status, nbytes, header_nbytes, *told = channel.ANSWER.unpack(text)
            call = self._calls.pop(number)
            self._note_size(nbytes)
            self.connections.note_limit(limit)
            body = bytes(self._arena.view[call.start : min(call.start + nbytes, call.region.end)])
            self._arena.give(call.region)
            call.settle(Reply(status, body, header_nbytes, *told))
            self._answered_one()
        elif kind == channel.STATE:
            told = json.loads(bytes(text[1:]))
            if told["state"] not in _TOLD:
                raise ValueError(f"state {told['state']!r}")
            self.programs, self.metadata = told["programs"], told["metadata"]
            if self.state == "deleted":
                return
            self.state, self.detail = told["state"], told["detail"]
            if self.state == channel.STOPPING:
                self.state = "starting"  # as the process that takes its place will be
                self._leave()
        elif kind == b"B":
            self._calls[channel.BUILDING.unpack(text)[1]].building = True
        elif kind == b"N":
            self._grant(*channel.NEEDS.unpack(text)[1:])

    def _grant(self, number: int, nbytes: int) -> None:
        """Give an answer a region where it fits, or none."""
        assert self._socket is not None
        call = self._calls[number]
        self._note_size(nbytes)
        self._arena.give(call.region)
        region = self._arena.take(nbytes)
        if region is None:
            del self._calls[number]
            call.settle(InferenceError(f"no memory is free for an answer of {nbytes} byte", 503))
            region = Region(0, 0)
        call.region, call.start = region, region.start
        self._socket.send(channel.GRANT.pack(b"G", number, region.start, region.nbytes))
        self._answered_one()

    def _note_size(self, nbytes: int) -> None:
        bounds = self._bounds
        self._largest = min(max(self._largest, nbytes), bounds.arena_nbytes // (2 * bounds.waiting))

    def _lose(self) -> None:
        """The process has ended: so have all its requests."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        if self.state != "deleted":
            self.state = "starting"
        self.programs = 0
        self._lost()
        calls, self._calls = self._calls, {}
        ended = "the process of the model ended before it answered: try again"
        for call in calls.values():
            self._arena.give(call.region)
            call.settle(InferenceError(ended, 503, retry_after=1))
        self.connections.call()


async def _receive(body: AsyncIterable[bytes], place: memoryview) -> None:
    """Copy the pieces of a body as they come.

    Raises:
        InferenceError: it has another size than `place`.
    """
    count = 0
    async for piece in body:
        end = count + len(piece)
        if end <= len(place):
            place[count:end] = piece
        count = end
    if count != len(place):
        raise InferenceError(f"expected a body of {len(place)} byte, found {count} byte")
