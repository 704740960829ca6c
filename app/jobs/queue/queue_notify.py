"""Tells workers that there is work, so that they need not look for it all the time.

A worker on this machine waits at a named pipe in the data folder; with PostgreSQL all machines hear
a notification instead. A notification names a queue. One that is lost does no harm: workers look into
the queues on their own too, seldom.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psycopg
import sqlalchemy as sa

from app.jobs.store.database import OUTAGE, Database
from app.settings import Settings

_CHANNEL = "stowplan_jobs"
_ANY = "*"
_AGAIN_SECONDS = 2.0  # between two tries to listen at a server that does not answer
_READ_BYTES = 65536  # byte read at once
logger = logging.getLogger("stowplan.queue_notify")


class QueueNotifier:
    """Sends notifications of work, and receives them."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._database = database
        self._url = "" if database.sqlite else settings.queue_database_url
        self._folder = settings.data / "notify"

    def notify(self, queues: Iterable[str]) -> None:
        """Wake whoever serves the queues; it is no failure when that cannot be done."""
        names = sorted(set(queues))
        if self._url:
            statement = sa.text("select pg_notify(:channel, :queue)")
            with contextlib.suppress(*OUTAGE), self._database.write() as connection:
                for queue in names:
                    connection.execute(statement, {"channel": _CHANNEL, "queue": queue})
        elif self._folder.is_dir():
            for path in self._folder.iterdir():
                _write(path, "".join(f"{queue}\n" for queue in names).encode())

    def listen(self, name: str, served: Iterable[str], wake: Callable[[], None]) -> None:
        """Call `wake` when one of the queues may have work, from a thread, until the process ends.

        `name` is unique among the listeners of this data folder.
        """
        known = {_ANY, *served}
        waits = self._at_server if self._url else lambda: self._at_pipe(name)

        def run() -> None:
            for queue in waits():
                if queue in known:
                    wake()

        threading.Thread(target=run, name="queue-notify", daemon=True).start()

    def _at_pipe(self, name: str) -> Iterator[str]:
        path = self._folder / name.replace(":", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDWR)  # also for writing: it never ends then
        while True:
            yield from set(os.read(pipe, _READ_BYTES).decode(errors="replace").splitlines())

    def _at_server(self) -> Iterator[str]:
        while True:
            try:
                with psycopg.connect(_plain(self._url), autocommit=True) as connection:
                    connection.execute(f"listen {_CHANNEL}")
                    yield _ANY  # notifications sent before
                    for notification in connection.notifies():
                        yield notification.payload
            except psycopg.OperationalError:
                logger.info("the database does not answer; listening again soon", exc_info=True)
            time.sleep(_AGAIN_SECONDS)


def _plain(url: str) -> str:
    """The URL as the driver takes it, without the name of the driver."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"


def _write(path: Path, text: bytes) -> None:
    """Put a text into a pipe: nothing happens where nobody reads, or notifications wait already."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        with contextlib.suppress(BlockingIOError):
            os.write(pipe, text)
    finally:
        os.close(pipe)
