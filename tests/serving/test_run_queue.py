"""The order of the run queue: which tasks an instance takes, and what waits for what."""

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.serving.oip_codec import Inference, InferenceError
from app.serving.program_cache import Batch, Ready
from app.serving.scheduling import run_queue
from app.serving.scheduling.requests import Client, Request
from app.serving.scheduling.run_queue import RunQueue, Task


class Refusals:
    """A client that notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.arena = memoryview(bytearray(1 << 12))

    def put(self, request: Request, _place: memoryview, _answer: object, _told: object) -> None:
        self.sent.append(bytes([request.id]))


def request(number: int, *, ago: float = 0.0, seconds: float = 30.0) -> Request:
    now = time.monotonic()
    client = cast(Client, Refusals())
    return Request(client, number, 0, 1 << 12, 0, 0, now - ago, now + seconds, came=now - ago)


INFERENCE = cast(Inference, SimpleNamespace(inputs={"x": np.zeros(1)}))


def ready(*batches: int, seconds: float = 0.001) -> Ready:
    return Ready((), {count: cast(Batch, SimpleNamespace(programs=())) for count in batches}, seconds=seconds)


def numbers(tasks: list[Task]) -> list[int]:
    return [task.request.id for task in tasks]


def queue(*rows: tuple[Request, Ready], delay: float = 10.0, **given: Any) -> RunQueue:
    found = RunQueue(given.get("instances", 1), delay)
    for row, programs in rows:
        found.put(row, INFERENCE, programs)
    return found


def test_a_full_batch_goes_though_the_first_task_still_waits_for_others() -> None:
    one, other = ready(2), ready(2)
    line = queue((request(1), one), (request(2), other), (request(3), other))
    assert numbers(line.take()) == [2, 3]


def test_a_task_without_batches_does_not_wait_behind_one_that_does() -> None:
    line = queue((request(1), ready(2)), (request(2), ready()))
    # It waits for nobody: its delay would help nobody.
    assert numbers(line.take()) == [2]


def test_tasks_of_one_kind_go_in_the_order_in_which_they_came() -> None:
    programs = ready(2, 4)
    line = queue(*((request(i, ago=20.0), programs) for i in range(1, 8)))
    assert [numbers(line.take()) for _ in range(3)] == [[1, 2, 3, 4], [5, 6], [7]]


@pytest.mark.parametrize("ago", [10.0, 11.0])
def test_the_first_that_has_waited_long_enough_goes_with_the_largest_batch_that_is_filled(ago: float) -> None:
    programs = ready(2, 4)
    line = queue((request(1, ago=ago), programs), (request(2), programs), (request(3), programs))
    assert numbers(line.take()) == [1, 2]


def test_a_task_waits_no_longer_than_its_delay() -> None:
    programs = ready(2)
    line = queue((request(1), programs), delay=0.05)
    began = time.monotonic()
    assert numbers(line.take()) == [1]
    assert time.monotonic() - began >= 0.04


def test_a_task_is_held_while_an_instance_is_free_and_not_while_all_run() -> None:
    came, programs = request(1, ago=20.0), ready(2)
    line = queue((came, programs), delay=0.05)
    assert numbers(line.take()) == [1]
    assert came.held < 10.0, "no instance was free before"
    fresh = request(2)
    line.put(fresh, INFERENCE, programs)
    assert numbers(line.take()) == [2]
    assert fresh.held >= 0.04


def test_waits_end_earlier_by_what_they_end_late_so_that_no_delay_is_exceeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delay, late, clock = 0.01, 0.002, [100.0]
    line, programs = queue(delay=delay), ready(2)

    def wait(patience: float) -> bool:
        clock[0] += patience + late
        return False

    monkeypatch.setattr(line._changed, "wait", wait)
    monkeypatch.setattr(run_queue, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    held = []
    for number in range(1000):
        came = request(number)
        came.came, came.deadline = clock[0], clock[0] + 30.0
        line.put(came, INFERENCE, programs)
        line.take()
        held.append(came.held)
    assert held[0] > delay, "by how much it is late is not known yet"
    late_ones = np.array(held) > delay
    assert np.mean(late_ones) < 0.02
    assert min(held) > 0.9 * delay, "it waits for others still"


def test_a_request_that_cannot_be_answered_in_time_is_refused_with_the_time_to_wait() -> None:
    line = queue(*((request(i), ready(seconds=1.0)) for i in range(4)), delay=0.0)
    with pytest.raises(InferenceError, match="4 requests wait for the model, for about 4 s") as refused:
        line.put(request(9, seconds=4.5), INFERENCE, ready(seconds=1.0))
    assert (refused.value.status, refused.value.retry_after) == (503, 4)
    line.put(request(10, seconds=6.5), INFERENCE, ready(seconds=1.0))
