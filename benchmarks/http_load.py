"""Requests over HTTP at a given rate, whatever becomes of them: an open load, from a process of its own.

One thread with sockets that do not block: a request costs the machine little beside the service. Each of many
connections has one request at a time; a request that finds none free is counted as not sent.
"""

import json
import multiprocessing
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
HEAD_END = b"\r\n\r\n"
NAMES = {"f4": "FP32", "f8": "FP64", "i4": "INT32", "i8": "INT64", "b1": "BOOL", "u1": "UINT8", "i1": "INT8"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request.

    Attributes:
        at: seconds from the begin of the load to the first byte.
        late: seconds from when it should have been sent to the first byte: the sender had no time.
        status: of the answer; 0 where the connection ended without one.
        seconds: from the first byte to the answer.
        retry_after: as the answer has it.
    """

    at: float
    late: float
    status: int
    seconds: float
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class Load:
    """Outcome of a load.

    Attributes:
        outcomes: of the requests that were sent.
        unsent: number of requests for which no connection was free.
        processor_seconds: that the sender itself took.
        seconds: from the first request to the last answer.
    """

    outcomes: list[Outcome]
    unsent: int
    processor_seconds: float
    seconds: float


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    left: memoryview = field(default_factory=lambda: memoryview(b""))  # of a request
    received: bytearray = field(default_factory=bytearray)
    planned: float = 0.0
    sent: float = 0.0  # the first byte
    busy: bool = False
    writing: bool = False  # the kernel tells when it takes more


def request_of(model: str, inputs: Mapping[str, Array], seconds: float | None = None) -> bytes:
    """An inference with binary tensors both ways, which may take so many seconds."""
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": NAMES[array.dtype.str[1:]],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    parameters: dict[str, Any] = {"binary_data_output": True}
    if seconds is not None:
        parameters["timeout"] = round(seconds * 1e6)
    header = json.dumps({"inputs": tensors, "parameters": parameters}).encode()
    body = header + b"".join(np.ascontiguousarray(array).tobytes() for array in inputs.values())
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        f"inference-header-content-length: {len(header)}\r\n\r\n"
    )
    return head.encode() + body


def offered(address: tuple[str, int], request: bytes, rate: float, seconds: float, connections: int) -> Load:
    """A load from another process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(offer, (address, request, rate, seconds, connections))


def offer(address: tuple[str, int], request: bytes, rate: float, seconds: float, connections: int) -> Load:
    """The same, from this process."""
    moments = np.cumsum(np.random.default_rng(0).exponential(1 / rate, round(rate * seconds))).tolist()
    epoll = select.epoll()
    idle = [_connected(address, epoll) for _ in range(connections)]
    of = {it.socket.fileno(): it for it in idle}
    outcomes: list[Outcome] = []
    unsent, number, processor = 0, 0, time.process_time()
    began = time.perf_counter()

    def renewed(it: _Connection) -> _Connection:
        del of[it.socket.fileno()]
        it.socket.close()
        found = _connected(address, epoll)
        of[found.socket.fileno()] = found
        return found

    while number < len(moments) or len(idle) < connections:
        now = time.perf_counter() - began
        while number < len(moments) and moments[number] <= now:
            if idle:
                it = idle.pop()
                it.planned, it.left, it.sent, it.busy = moments[number], memoryview(request), now, True
                _send(epoll, it)
            else:
                unsent += 1
            number += 1
        patience = max(0.0, moments[number] - now) if number < len(moments) else 1.0
        for descriptor, events in epoll.poll(patience):
            it = of[descriptor]
            if not it.busy:  # the service ends a connection without a request
                idle[idle.index(it)] = renewed(it)
                continue
            if events & select.EPOLLOUT:
                _send(epoll, it)
            if events & ~select.EPOLLOUT and (outcome := _receive(it, began)) is not None:
                outcomes.append(outcome)
                it.busy = False
                idle.append(renewed(it) if outcome.status == 0 or it.left else it)
    processor = time.process_time() - processor
    for it in idle:
        it.socket.close()
    epoll.close()
    return Load(outcomes, unsent, processor, time.perf_counter() - began)


def _connected(address: tuple[str, int], epoll: select.epoll) -> _Connection:
    found = socket.create_connection(address)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setblocking(False)
    epoll.register(found, select.EPOLLIN)
    return _Connection(found)


def _send(epoll: select.epoll, it: _Connection) -> None:
    """Send what the kernel takes; the rest when it takes more."""
    try:
        it.left = it.left[it.socket.send(it.left) :]
    except BlockingIOError:
        pass
    except OSError:
        it.left = it.left[:0]
    if bool(it.left) != it.writing:
        it.writing = bool(it.left)
        epoll.modify(it.socket, select.EPOLLIN | (select.EPOLLOUT if it.writing else 0))


def _receive(it: _Connection, began: float) -> Outcome | None:
    """The outcome of a request whose answer has come whole; status 0 where the connection ended before."""
    try:
        piece = it.socket.recv(1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        piece = b""
    it.received += piece
    end = it.received.find(HEAD_END)
    now = time.perf_counter() - began
    if end >= 0:
        head = it.received[:end].lower()
        if len(it.received) >= end + len(HEAD_END) + int(_header(head, b"content-length") or 0):
            it.received.clear()
            retry_after = _header(head, b"retry-after")
            return Outcome(it.sent, it.sent - it.planned, int(head[9:12]), now - it.sent, retry_after)
    return None if piece else Outcome(it.sent, it.sent - it.planned, 0, now - it.sent, None)


def _header(head: bytes, name: bytes) -> str | None:
    """Value of a header in a head in lower case; None where it has none."""
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.partition(b"\r\n")[0].strip().decode("latin-1") if found else None
