"""Workers are woken for the queue that has work, and otherwise look seldom."""

import threading
import time
from collections.abc import Callable

import pytest

from app.jobs.database import Database
from app.jobs.doorbell import Doorbell
from app.jobs.polling import QUICK_SECONDS, SLOW_SECONDS, Pace
from app.settings import Settings
from tests.jobs.service import Served


class Counted(Pace):
    """Counts its rings."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1
        super().ring()


def until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_a_ring_reaches_all_who_serve_the_queue_and_nobody_else(
    settings: Settings, database: Database
) -> None:
    bell = Doorbell(settings, database)
    bell.ring(["cpu"])  # nobody is there yet
    workers = [{"cpu": Counted(), "inspect": Counted()}, {"cpu": Counted()}]
    for number, paces in enumerate(workers):
        Doorbell(settings, database).answer(f"node:{number}", paces)

    def heard() -> bool:
        bell.ring(["cpu", "gpu"])
        return all(paces["cpu"].rings > 1 for paces in workers)

    assert until(heard)
    assert workers[0]["inspect"].rings <= 1, "only of what was rung before it listened"
    for _ in range(3000):  # more than a pipe holds: no ring blocks
        bell.ring(["inspect"] if database.sqlite else [])
    assert until(lambda: workers[0]["inspect"].rings > 0) or not database.sqlite


def test_a_pace_is_quick_after_a_ring_and_slow_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, waited = Pace(lambda: 0), []
    monkeypatch.setattr(
        pace._condition, "wait_for", lambda _true, timeout=None: waited.append(timeout), raising=False
    )
    for _ in range(8):
        assert pace.wait(99.0) is False
    pace.ring()
    pace.wait(99.0)
    pace.wait(99.0)
    assert waited[0] == QUICK_SECONDS
    assert waited[:8] == sorted(waited[:8])
    assert waited[7] == waited[8] == SLOW_SECONDS
    assert waited[9] == QUICK_SECONDS


def test_a_worker_does_not_look_while_it_has_a_job() -> None:
    taken = [0]
    pace = Pace(lambda: taken[0])
    looks: list[float] = []

    def loop() -> None:
        while not pace.wait():
            looks.append(time.monotonic())

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    assert until(lambda: len(looks) > 1)
    with pace.busy() as leave:
        taken[0] = 1
        time.sleep(0.2)
        count = len(looks)
        pace.ring()
        time.sleep(0.1)
        assert len(looks) <= count + 1, "one may have been on its way"
        leave()
        assert until(lambda: len(looks) > count), "the slot is free while the job ends"
        taken[0] = 2
        time.sleep(0.1)
        count = len(looks)
        pace.ring()
        time.sleep(0.1)
        assert len(looks) <= count + 1, "another one was taken, and has not begun"
        taken[0] = 1
    count = len(looks)
    time.sleep(0.1)
    assert len(looks) <= count + 1, "the library still counts the job"
    taken[0] = 0
    assert until(lambda: len(looks) > count)
    pace.set()
    thread.join(5)
    assert not thread.is_alive()


def test_a_job_starts_soon_though_workers_look_seldom(either: Served) -> None:
    """Ten jobs, one after the other: as many waits for the slow look would take ten seconds on average."""
    waits = []
    for _ in range(10):
        job = either.end(either.submit("ok"))
        waits.append(job["started"] - job["created"])
    assert sorted(waits)[5] < SLOW_SECONDS / 2
