"""Processor time of requests over HTTP, and threads that take it."""

import threading
import time

import pytest

from app.engine.planning.capacity.http import HttpCosts, HttpThreads, spend

KIB = 1 << 10


def row(request: int, answer: int, api: float, received: float = 0.1) -> dict[str, float]:
    seconds = {"sent": request / 1e6, "received": received, "api": api, "executor": 0.2}
    return {"request": request * KIB, "answer": answer * KIB, **seconds}


ROWS = (row(1, 1, 0.4), row(401, 1, 0.8), row(401, 401, 1.0, 0.5), row(801, 1, 1.6), row(801, 801, 2.4, 0.9))


@pytest.mark.parametrize(
    ("request_kib", "answer_kib", "request_api", "answer_api", "received"),
    [
        (1, 1, 0.2, 0.2, 0.1),
        (401, 1, 0.6, 0.2, 0.1),
        (601, 1, 1.0, 0.2, 0.1),  # in the middle of two
        (801, 401, 1.4, 0.4, 0.5),
        (1601, 1, 3.0, 0.2, 0.1),  # beyond the largest, as the last two
        (1, 1601, 0.2, 0.2 + 2.0, 0.1 + 1.6),
    ],
)
def test_costs_lie_between_those_that_were_measured(
    request_kib: int, answer_kib: int, request_api: float, answer_api: float, received: float
) -> None:
    found = HttpCosts.at(ROWS, request_kib * KIB, answer_kib * KIB)
    assert found.request == pytest.approx(request_api)
    assert found.answer == pytest.approx(answer_api)
    assert found.received == pytest.approx(received)
    assert found.sent == pytest.approx(request_kib / 1e6)
    assert found.executor == pytest.approx(0.2)
    parts = found.sent, found.request, found.executor, found.answer, found.received
    assert found.total == pytest.approx(sum(parts))


def test_time_is_spent_by_the_thread_itself() -> None:
    began = time.thread_time()
    spend(0.01)
    assert time.thread_time() - began >= 0.01


def test_requests_and_answers_pass_once_each_and_in_their_order() -> None:
    arrived: list[int] = []
    answered: list[int] = []
    times: dict[str, float] = {}

    def arrive(number: int) -> None:
        arrived.append(number)
        times["api"] = time.thread_time()
        threads.answer(number)

    def note(number: int) -> None:
        answered.append(number)
        times["client"] = time.thread_time()
        if len(answered) == 20:
            done.set()

    done = threading.Event()
    threads = HttpThreads(HttpCosts(0.0, 0.001, 0.0, 0.001, 0.0005), arrive, note)
    for number in range(20):
        threads.send(number)
    assert done.wait(60)
    threads.close()
    assert arrived == answered == list(range(20))
    assert times["api"] >= 0.020
    assert times["client"] >= 0.010
