"""Requests over HTTP at a given rate, whatever becomes of them: an open load, from a process of its own.

One thread with sockets that do not block: a request costs the machine little beside the service. Each of many
connections has one request at a time; a request that finds none free is counted as not sent.
"""

import json
import multiprocessing
import selectors
import socket
import time
from collections import deque
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


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    left: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytearray = field(default_factory=bytearray)
    planned: float = 0.0
    sent: float = 0.0  # the first byte


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


def offered(
    address: tuple[str, int], request: bytes, rate: float, seconds: float, connections: int
) -> tuple[list[Outcome], int]:
    """Outcomes of a load from another process, and the number of requests that were not sent."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        found: tuple[list[Outcome], int] = pool.apply(offer, (address, request, rate, seconds, connections))
    return found


def offer(
    address: tuple[str, int], request: bytes, rate: float, seconds: float, connections: int
) -> tuple[list[Outcome], int]:
    """The same, from this process."""
    moments = np.cumsum(np.random.default_rng(0).exponential(1 / rate, round(rate * seconds))).tolist()
    selector = selectors.DefaultSelector()
    idle: deque[_Connection] = deque(_connected(address) for _ in range(connections))
    outcomes: list[Outcome] = []
    unsent, busy = 0, 0
    began, number = time.perf_counter(), 0
    while number < len(moments) or busy:
        now = time.perf_counter() - began
        while number < len(moments) and moments[number] <= now:
            if idle:
                it = idle.pop()
                it.planned, it.left = moments[number], memoryview(request)
                it.sent = time.perf_counter() - began
                selector.register(it.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, it)
                busy += 1
            else:
                unsent += 1
            number += 1
        patience = max(0.0, moments[number] - now) if number < len(moments) else 1.0
        for key, events in selector.select(patience):
            it = key.data
            if events & selectors.EVENT_WRITE:
                _send(selector, it)
            if events & selectors.EVENT_READ and (outcome := _receive(it, began)) is not None:
                outcomes.append(outcome)
                selector.unregister(it.socket)
                busy -= 1
                if outcome.status == 0 or it.left:  # the connection has ended
                    it.socket.close()
                    it = _connected(address)
                it.received.clear()
                idle.append(it)
    for it in idle:
        it.socket.close()
    return outcomes, unsent


def _connected(address: tuple[str, int]) -> _Connection:
    found = socket.create_connection(address)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setblocking(False)
    return _Connection(found)


def _send(selector: selectors.BaseSelector, it: _Connection) -> None:
    try:
        it.left = it.left[it.socket.send(it.left) :]
    except BlockingIOError:
        return
    except OSError:
        it.left = it.left[:0]
    if not it.left:
        selector.modify(it.socket, selectors.EVENT_READ, it)


def _receive(it: _Connection, began: float) -> Outcome | None:
    """The outcome of a request whose answer has come whole; status 0 where the connection ended before."""
    try:
        piece = it.socket.recv(1 << 18)
    except BlockingIOError:
        return None
    except OSError:
        piece = b""
    it.received += piece
    end = it.received.find(HEAD_END)
    now = time.perf_counter() - began
    if end >= 0:
        lines = bytes(it.received[:end]).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (row.partition(":") for row in lines[1:])
        }
        if len(it.received) >= end + len(HEAD_END) + int(headers.get("content-length", 0)):
            status = int(lines[0].split()[1])
            return Outcome(it.sent, it.sent - it.planned, status, now - it.sent, headers.get("retry-after"))
    return None if piece else Outcome(it.sent, it.sent - it.planned, 0, now - it.sent, None)
