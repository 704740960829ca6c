"""Requests that API processes send, and answers to them, each given once."""

import mmap
import os
import socket
import threading
import time
from dataclasses import dataclass, field

from app.serving import channel, oip_answers
from app.serving.oip_codec import InferenceError


@dataclass(eq=False, slots=True)
class Client:
    """An API process, and its arena."""

    socket: socket.socket
    arena: memoryview = field(default_factory=lambda: memoryview(b""))
    # Requests whose answers did not fit, and what is told of these.
    held: dict[int, tuple["Request", oip_answers.Answer, "Told"]] = field(default_factory=dict)
    lost: bool = False

    def receive(self) -> tuple[bytes, list[int]]:
        """A message, and the descriptors that came with it: the arena's, with the first one."""
        if self.arena.nbytes:
            return self.socket.recv(channel.SHORT), []
        text, descriptors, _, _ = socket.recv_fds(self.socket, channel.SHORT, 1)
        return text, descriptors

    def map_arena(self, nbytes: int, descriptor: int) -> None:
        """Map the memory in which its requests lie."""
        self.arena = memoryview(mmap.mmap(descriptor, nbytes))
        os.close(descriptor)

    def send(self, message: bytes) -> None:
        """Send a message; a client that takes no more is lost."""
        try:
            self.socket.send(message)
        except OSError:
            self.lost = True

    def put(self, request: "Request", place: memoryview, answer: oip_answers.Answer, told: "Told") -> None:
        """Write an answer where it fits, and tell of it."""
        answer.write(place)
        self.send(
            channel.ANSWER.pack(
                *(b"A", request.id, request.deadline - request.began),
                *(told.status, answer.nbytes, answer.header_nbytes),
                *(told.waited, request.held, told.ran, told.retry_after),
            )
        )


@dataclass(frozen=True, slots=True)
class Told:
    """Status of an answer, seconds that its request waited and ran, and after which to try again."""

    status: int
    waited: float
    ran: float
    retry_after: int = 0


@dataclass(eq=False, slots=True)
class Request:
    """A request in the region of the arena where its answer goes.

    Attributes:
        began: when the API began to receive it, by the monotonic clock, which all processes have in common.
        deadline: by the same clock.
        came: to this process.
        held: seconds that it waited for others of its batch while an instance was free.
    """

    client: Client
    id: int
    offset: int
    capacity: int
    nbytes: int
    header_nbytes: int
    began: float
    deadline: float
    came: float
    held: float = 0.0
    _unanswered: threading.Lock = field(default_factory=threading.Lock)

    @property
    def region(self) -> memoryview:
        """Where the answer goes."""
        return self.client.arena[self.offset : self.offset + self.capacity]

    @property
    def body(self) -> memoryview:
        """What was sent."""
        return self.region[: self.nbytes]

    @property
    def is_answered(self) -> bool:
        """True once an answer was sent, or is being sent."""
        return self._unanswered.locked()

    def answer(self, answer: oip_answers.Answer, told: Told) -> None:
        """Answer it, unless it was answered before: at its deadline, while it still ran."""
        if not self._unanswered.acquire(blocking=False):
            return
        if answer.nbytes > self.capacity:
            self.client.held[self.id] = self, answer.kept(), told
            self.client.send(channel.NEEDS.pack(b"N", self.id, answer.nbytes))
        else:
            self.client.put(self, self.region, answer, told)

    def refuse(self, error: InferenceError) -> None:
        """Answer it with an error."""
        told = Told(error.status, time.monotonic() - self.came, 0.0, error.retry_after or 0)
        self.answer(oip_answers.Answer(error.body(), ()), told)
