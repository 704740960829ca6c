"""Workers are woken for the queue that has work, and otherwise look seldom."""

import re
import time
from collections import Counter
from collections.abc import Callable

import psutil

from app.jobs.queue.polling import LINGER_SECONDS, Need
from app.jobs.queue.queue_notify import QueueNotifier
from app.jobs.store.database import Database
from app.settings import Settings
from tests.jobs.service import ROOT, Served


def until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_a_notification_reaches_all_who_serve_the_queue_and_nobody_else(
    settings: Settings, database: Database
) -> None:
    notifier = QueueNotifier(settings, database)
    notifier.notify(["cpu"])  # nobody is there yet
    counts: Counter[str] = Counter()
    for name, queues in (("node:0", ["cpu", "inspect"]), ("node:1", ["cpu"]), ("node:2", ["other"])):
        QueueNotifier(settings, database).listen(name, queues, lambda name=name: counts.update([name]))  # type: ignore[misc]  # a default binds it

    def heard() -> bool:
        notifier.notify(["cpu", "gpu"])
        return all(counts[f"node:{number}"] > 1 for number in (0, 1))

    assert until(heard)
    assert counts["node:2"] <= 1, "only of what was sent before it listened"
    before = counts["node:0"]
    for _ in range(3000):  # more than a pipe holds: no notification blocks
        notifier.notify(["inspect"] if database.sqlite else [])
    assert until(lambda: counts["node:0"] > before) or not database.sqlite


def test_the_queue_is_needed_for_a_while_after_the_last_sign_of_work() -> None:
    now = [0.0]
    need = Need(lambda: now[0])
    assert need
    now[0] = LINGER_SECONDS
    assert not need
    need.note()
    now[0] += LINGER_SECONDS / 2
    assert need


def test_an_idle_worker_has_the_queue_closed(either: Served) -> None:
    """Its threads tell: the library has some ten of them, the worker itself a few."""
    assert either.end(either.submit("ok"))["state"] == "succeeded"

    def threads() -> list[int]:
        workers = [p for p in psutil.Process(either.process.pid).children() if is_worker(p)]
        return [p.num_threads() for p in workers]

    assert until(lambda: bool(threads()) and max(threads()) < 8, 60), threads()
    assert either.end(either.submit("ok"))["state"] == "succeeded"


def is_worker(process: psutil.Process) -> bool:
    return any("/locks/worker-" in file.path for file in process.open_files())


def test_a_job_starts_soon_though_workers_look_seldom(either: Served) -> None:
    """Ten jobs, one after the other: as many waits for the slow look would take ten seconds on average."""
    waits = []
    for _ in range(10):
        job = either.end(either.submit("ok"))
        waits.append(job["started"] - job["created"])
    assert sorted(waits)[5] < 1.0


def test_the_queue_is_used_through_its_public_interface_only() -> None:
    """No module of the library whose name begins with an underscore, and no private name of it."""
    private = re.compile(r"\b(from|import) dbos\._|\bDBOS(Client)?\._|\bdbos\._|_dbos_instance")
    found = [path for path in (ROOT / "app").rglob("*.py") if private.search(path.read_text())]
    assert not found
