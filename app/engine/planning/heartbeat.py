"""Progress of long work, told again while it lasts, and the memory that each phase takes."""

import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from app.engine.core.pipeline import Progress

SILENCE = 1.0  # seconds without progress, after which it is told again
LOOK = 0.1  # seconds between two looks at the clock and the memory

Json = dict[str, Any]


class Heartbeat:
    """Passes progress on, and repeats it from a thread while nothing new is told.

    Also samples the resident memory of this process.

    Attributes:
        between: called when a phase ends.
    """

    def __init__(self, progress: Progress) -> None:
        self.between: Callable[[], None] = lambda: None
        self._tell = progress
        self._lock = threading.Lock()
        self._last = ("", 0, 0)
        self._told = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._base, self._high = resident_bytes()
        self._peaks: dict[str, int] = {}

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def progress(self, phase: str, done: int, total: int) -> None:
        """Tell how far the work is; returns when whoever is told does.

        What follows a colon tells of the phase before it.
        """
        with self._lock:
            self._sample()
            if phase.partition(":")[0] != self._last[0].partition(":")[0]:
                self.between()
                trim()
            self._last = (phase, done, total)
            self._tell(phase, done, total)
            self._told = time.monotonic()

    def memory(self, file_bytes: int) -> Json:
        """Bytes of the model's files, before the work, at its highest, and by phase."""
        with self._lock:
            self._sample()
        peak = max(self._peaks.values(), default=self._base)
        return {
            "file_bytes": file_bytes,
            "base_bytes": self._base,
            "peak_bytes": peak,
            "phases": dict(self._peaks),
        }

    def _watch(self) -> None:
        while not self._ended.wait(LOOK):
            # Who holds the lock tells progress, or waits for a turn to.
            if not self._lock.acquire(blocking=False):
                continue
            try:
                self._sample()
                if self._last[0] and time.monotonic() - self._told >= SILENCE:
                    self._tell(*self._last)
                    self._told = time.monotonic()
            finally:
                self._lock.release()

    def _sample(self) -> None:
        """Note the memory of the phase: what there is, and the highest ever where that has risen."""
        now, high = resident_bytes()
        phase = self._last[0].partition(":")[0] or "start"
        risen = high if high > self._high else 0
        self._high = max(high, self._high)
        self._peaks[phase] = max(self._peaks.get(phase, 0), now, risen)


@functools.cache
def _trimming() -> Callable[[int], int] | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return getattr(library, "malloc_trim", None)


def trim() -> None:
    """Give freed memory back to the system, where the C library can: it keeps pieces below 32 MiB.

    Source: malloc_trim(3), M_MMAP_THRESHOLD of mallopt(3).
    """
    trimming = _trimming()
    if trimming is not None:
        trimming(0)


def resident_bytes() -> tuple[int, int]:
    """Resident memory of this process, now and at its highest; zeros where the system does not tell.

    Source: proc_pid_status(5), VmRSS and VmHWM.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return 0, 0
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    now, high = (int(lines.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, high
