"""A worker process: takes jobs from the queues that this machine can serve, one at a time."""

import fcntl
import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dbos import error as queue_error
from sqlalchemy.exc import SQLAlchemyError

from app.engine.runtime.capabilities import present
from app.engine.types.target import host
from app.jobs.fingerprint import target_queue
from app.jobs.queue import dispatch
from app.jobs.queue.polling import LINGER_SECONDS, Need, Queues
from app.jobs.queue.queue_notify import QueueNotifier
from app.jobs.queue.workflow import Runner, Stopping
from app.jobs.reaper import BEATS, Reaper
from app.jobs.store.database import Database, migrate
from app.jobs.worker import benchmark_lock
from app.jobs.worker.parent_death import ORPHANED
from app.settings import Settings, SettingsError
from app.telemetry import logs, tracing

_MAX_SLOTS = 256
_GIVE_BACK_SECONDS = 5.0
logger = logging.getLogger("stowplan.worker")


@contextmanager
def identity(data: Path) -> Iterator[str]:
    """An executor id that no other living worker has: the node's id and the first free slot.

    It is the same again after a restart, so that a worker finds the jobs it had. Two workers with
    one id would both run them.
    """
    locks = data / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    node = _node_id(data)
    for slot in range(_MAX_SLOTS):
        file: IO[str] = (locks / f"worker-{slot}").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        with file:
            yield f"{node}:{slot}"
        return
    raise RuntimeError(f"{_MAX_SLOTS} workers share the folder {data} already")


def _node_id(data: Path) -> str:
    path = data / "node-id"
    if not path.exists():
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        fresh.write_text(secrets.token_hex(6))
        try:
            os.link(fresh, path)  # fails where another worker was first
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_text().strip()


def run(settings_json: str) -> None:
    """Work until SIGTERM; a job that runs then has a while to end before it goes back to its queue.

    When the supervisor dies, or at SIGHUP if that is not ignored (`nohup`), it goes back at once.
    """
    settings = Settings.from_json(settings_json)
    stopping = Stopping()

    def hurry(*_: object) -> None:
        stopping.at_once = True
        stopping.set()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(ORPHANED, hurry)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hurry)
    logs.configure(settings, "worker")
    tracing.configure(settings, "worker")
    benchmark_lock.check(settings.benchmark_lock)
    migrate(settings)
    with identity(settings.data) as name:
        work(settings, name, stopping)
    tracing.close()
    os._exit(0)  # threads of the queue may still wait in jobs that were given back


def work(settings: Settings, name: str, stopping: Stopping) -> None:
    """Serve the queues under an executor id until `stopping`."""
    database = Database(settings.jobs_database_url)
    folder = settings.data / "work" / name.replace(":", "-")
    shutil.rmtree(folder, ignore_errors=True)  # of a worker that died under this id
    runner = Runner(settings, database, folder, stopping, name)
    idle, need = _Idle(), Need()

    def carry_out_job(job_id: str) -> None:
        with idle.busy():
            try:
                runner.run(job_id)
            finally:
                need.note()  # the library has to note the end

    able = served(settings.queues)
    reaper = Reaper(settings, database, name, able)
    reaper.register()
    queues = Queues(settings, name, able, carry_out_job)
    QueueNotifier(settings, database).listen(name, able, stopping.wake)
    beat = time.monotonic()
    need.note()  # of jobs that this worker had when it died, nobody else tells
    while not stopping.is_set():
        try:
            if time.monotonic() >= beat:
                beat = time.monotonic() + settings.dead_seconds / BEATS
                if reaper.beat():
                    need.note()
            if idle.is_busy():
                need.note()
            if need and not queues.is_launched:
                queues.launch()
                need.note()  # it takes long where much else runs
            elif queues.is_launched and not need:
                queues.close()
        except (SQLAlchemyError, queue_error.DBOSException):
            logger.exception("the database did not take a heartbeat; trying again")
        until = LINGER_SECONDS if queues.is_launched else beat - time.monotonic()
        if stopping.woken.wait(max(0.0, min(until, beat - time.monotonic()))):
            stopping.woken.clear()
            need.note()
    idle.wait(settings.drain_seconds + _GIVE_BACK_SECONDS)
    runner.close()
    try:
        reaper.leave()
    except SQLAlchemyError:
        logger.exception("the database did not take the end of this worker; others will miss its heartbeat")


def queues_of(text: str) -> tuple[str, ...]:
    """The queues that a list names, divided by commas; `target` is this machine's own.

    Raises:
        SettingsError: this machine cannot serve one of them.
    """
    own = target_queue(host())
    return served([own if name == "target" else name for name in map(str.strip, text.split(",")) if name])


def served(wanted: Sequence[str]) -> tuple[str, ...]:
    """The queues of a worker: those wanted, or all that this machine can serve.

    That of a GPU is among them only when the GPU answers.

    Raises:
        SettingsError: this machine cannot serve one of them.
    """
    able = (dispatch.CPU_QUEUE, dispatch.INSPECT_QUEUE, *map(target_queue, present()))
    unable = [queue for queue in wanted if queue not in able]
    if unable:
        raise SettingsError(f"queue {unable[0]!r}: this machine can serve {', '.join(able)}")
    return tuple(wanted) or able


class _Idle:
    """Counts what runs, so that a stop can wait for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        with self._condition:
            self._running += 1
        try:
            yield
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    def is_busy(self) -> bool:
        return self._running > 0

    def wait(self, seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._running == 0, seconds)
