"""One benchmark at a time on a machine, whichever worker or service runs it: a lock on a file.

The kernel takes the lock from a process that dies. Cores are pinned by the engine while it measures;
two benchmarks at once would be pinned to the same ones.
"""

import fcntl
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from app.settings import PREFIX, SettingsError

MEASURING = ("benchmark",)  # phases of a job
WAITING = "wait for another benchmark"  # the phase of a job while another one holds the lock
POLL_SECONDS = 0.05  # between two tries to take the lock
TELL = 20  # tries after which a job tells again that it waits

Progress = Callable[[str, int, int], None]


class BenchmarkLock:
    """Tells the progress of one job, and holds it up while another one is measured."""

    def __init__(self, lock: Path, tell: Progress) -> None:
        self._lock = lock
        self._tell = tell
        self._held: int | None = None

    def progress(self, phase: str, done: int, total: int) -> None:
        """Tell how far the job is; return when it may go on."""
        if phase.partition(":")[0] in MEASURING and done < total:
            self._take()
        else:
            self._give()
        self._tell(phase, done, total)

    def _take(self) -> None:
        if self._held is not None:
            return
        descriptor = _open(self._lock)
        for wait in itertools.count():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait % TELL == 0:
                    self._tell(WAITING, 0, 1)
                time.sleep(POLL_SECONDS)
        self._held = descriptor

    def _give(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def check(lock: Path) -> None:
    """Make sure that this process can take the lock.

    Raises:
        SettingsError: the file cannot be opened.
    """
    try:
        os.close(_open(lock))
    except OSError as error:
        raise SettingsError(
            f"{PREFIX}BENCHMARK_LOCK: {str(lock)!r} cannot be opened ({error.strerror}); expected a file "
            "that all services of this machine can write"
        ) from error


def _open(lock: Path) -> int:
    """Open the file, and make it for all users if it is not there; a link is refused."""
    how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(lock, how)
    except FileNotFoundError:
        pass
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(lock, how | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:  # another process was first
        return os.open(lock, how)
    os.fchmod(descriptor, 0o666)  # whatever the mask says
    return descriptor
