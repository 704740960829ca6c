"""Processor time of requests over HTTP besides their runs, and threads that take it in a load.

A load in the process of the model has neither a client nor an API. Threads take their place, which use as
much of the processor for each request, beside the instances and on the same cores: one for what the client
sends, one for the API, in the order in which requests and answers come, and one for what the client receives.
"""

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

_BYTES = bytes(1 << 14)  # whose check sum Python computes without its lock, in some 10 us


@dataclass(frozen=True, slots=True)
class HttpCosts:
    """Processor seconds of one request besides its run.

    Attributes:
        sent: of the client, for the request.
        request: of the API, for the request.
        executor: of the process of the model.
        answer: of the API, for the answer.
        received: of the client, for the answer.
    """

    sent: float
    request: float
    executor: float
    answer: float
    received: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.sent + self.request + self.executor + self.answer + self.received

    def saturation(self, cores: int, seconds: float) -> float:
        """Requests per second of so many cores where the process of the model takes `seconds` for each.

        The client sends and receives one request after the other, and so does the API.
        """
        one_by_one = max(self.sent, self.request + self.answer, self.received)
        return 1.0 / max((seconds + self.total - self.executor) / cores, one_by_one)

    @classmethod
    def at(cls, rows: Sequence[Mapping[str, float]], request: int, answer: int) -> "HttpCosts":
        """Costs for so many bytes of inputs and outputs, between those of `app.api.http_costs`.

        Rows with the least answer tell what a request costs, and others how much more a larger answer does.
        Of what requests of no size cost the API, half is for the request and half for the answer.
        """
        least = min(row["answer"] for row in rows)
        small = sorted((row for row in rows if row["answer"] == least), key=lambda row: row["request"])
        by_request = {row["request"]: row for row in small}
        large = sorted((row for row in rows if row["answer"] > least), key=lambda row: row["answer"])
        asked = [row["request"] for row in small]

        def of_request(name: str) -> float:
            return _between(request, asked, [row[name] for row in small])

        def of_answer(name: str) -> float:
            more = [max(0.0, row[name] - by_request[row["request"]][name]) for row in large]
            return _between(answer, [least, *(row["answer"] for row in large)], [0.0, *more])

        fixed = small[0]["api"] / 2
        return cls(
            of_request("sent"),
            of_request("api") - fixed,
            of_request("executor") + of_answer("executor"),
            fixed + of_answer("api"),
            small[0]["received"] + of_answer("received"),
        )


def _between(nbytes: int, sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds at a size, linear between those that were measured and as the last two beyond them."""
    more = max(0.0, seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return float(np.interp(nbytes, sizes, seconds)) + more * max(0.0, nbytes - sizes[-1])


def spend(seconds: float) -> None:
    """Use the processor for some time, nearly all of it without Python's lock."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        zlib.crc32(_BYTES)


class HttpThreads:
    """Threads in the place of a client and of the API.

    Args:
        costs: of each request.
        arrive: called with the number of a request when the model may have it.
        answered: called with the number of a request when the client has its answer.
    """

    def __init__(
        self, costs: HttpCosts, arrive: Callable[[int], None], answered: Callable[[int], None]
    ) -> None:
        self._costs = costs
        self._arrive = arrive
        self._answered = answered
        self._api: SimpleQueue[tuple[int, bool] | None] = SimpleQueue()  # number, and whether it is answered
        self._client: SimpleQueue[int | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=act, name=act.__name__) for act in (self._pass, self._receive)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, number: int) -> None:
        """Send a request; the API reads while the client writes."""
        self._api.put((number, False))
        spend(self._costs.sent)

    def answer(self, number: int) -> None:
        """Send an answer."""
        self._api.put((number, True))

    def close(self) -> None:
        """End the threads when all that was sent has passed them."""
        self._api.put(None)
        for thread in self._threads:
            thread.join()

    def _pass(self) -> None:
        while (found := self._api.get()) is not None:
            number, is_answered = found
            spend(self._costs.answer if is_answered else self._costs.request)
            (self._client.put if is_answered else self._arrive)(number)
        self._client.put(None)

    def _receive(self) -> None:
        while (number := self._client.get()) is not None:
            spend(self._costs.received)
            self._answered(number)
