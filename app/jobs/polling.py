"""When a worker looks into its queues: at once when there may be work, else seldom.

The one use of the queue library's private loop is here: that loop waits on an event for a fixed
interval, and takes another kind of event as well.
"""

import threading
from collections.abc import Sequence

from dbos import DBOS
from dbos._dbos import _get_dbos_instance
from dbos._queue import queue_worker_thread

QUICK_SECONDS = 0.01
SLOW_SECONDS = 2.0  # between two looks when nobody rang


class Pace:
    """Stands for the event that the loop waits on between two looks into a queue.

    After a ring the loop looks at once, then after `QUICK_SECONDS`, and each time after twice as
    long, up to `SLOW_SECONDS`: another worker may hold the rows at the moment, or a job just end.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung = False
        self._stopped = False
        self._seconds = QUICK_SECONDS

    def ring(self) -> None:
        """Let the loop look now."""
        with self._condition:
            self._rung = True
            self._condition.notify_all()

    def set(self) -> None:
        """Let the loop end."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def is_set(self) -> bool:
        """Whether the loop shall end."""
        return self._stopped

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002  the pace is ours, not the caller's
        """Wait for a ring, the end or the next look; whether it is the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._rung or self._stopped, self._seconds)
            self._seconds = QUICK_SECONDS if self._rung else min(2 * self._seconds, SLOW_SECONDS)
            self._rung = False
            return self._stopped


def look_into(queues: Sequence[str]) -> dict[str, Pace]:
    """Start to take jobs from queues, and return the pace of each.

    The process must have told the library to listen to no queues itself.
    """
    paces = {}
    for name in queues:
        queue, pace = DBOS.retrieve_queue(name), Pace()
        threading.Thread(
            target=queue_worker_thread,
            args=(pace, _get_dbos_instance(), queue),
            name=f"queue {name}",
            daemon=True,
        ).start()
        paces[name] = pace
    return paces
