"""When a worker looks into its queues: at once when there may be work, else seldom.

The one use of the queue library's private loops is here. The one that takes jobs waits on an event for
a fixed interval, and takes another kind of event as well. Those for what this service does not use
(schedules, delays, deadlines, a queue of the library's own) would ask the database every second, and end.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from dbos import DBOS
from dbos._core import ActiveWorkflowById
from dbos._dbos import _get_dbos_instance
from dbos._queue import queue_worker_thread

QUICK_SECONDS = 0.005
SLOW_SECONDS = 2.0  # between two looks when nobody rang
_GROWTH = 5.0
_MOST_LEAVING = 1  # jobs whose ends the next one does not wait for: their artifacts may be long in coming
_ENDING_SECONDS = 0.002  # between two looks whether the library noted the end of a job


class Pace:
    """Stands for the event that the loop waits on between two looks into a queue.

    After a ring the loop looks at once, then after `QUICK_SECONDS`, and each time `_GROWTH` times
    later, up to `SLOW_SECONDS`: another worker may hold the rows at the moment. It does not look while
    the worker has its one job of the queue: one that was taken and has not left its slot. `taken` counts
    those that were taken and have not ended.
    """

    def __init__(self, taken: Callable[[], int]) -> None:
        self._condition = threading.Condition()
        self._taken = taken
        self._rung = False
        self._busy = 0
        self._leaving = 0
        self._stopped = False
        self._seconds = QUICK_SECONDS

    def ring(self) -> None:
        """Let the loop look now."""
        with self._condition:
            self._rung = True
            self._condition.notify_all()

    @contextmanager
    def busy(self) -> Iterator[Callable[[], None]]:
        """Hold the loop until the job leaves its slot, with a call or the context, and let it look then."""
        held = True
        with self._condition:
            self._busy += 1

        def leave() -> None:
            nonlocal held
            with self._condition:
                if not held:
                    return
                held = False
                self._busy -= 1
                self._leaving += 1
            self.ring()

        try:
            yield leave
        finally:
            leave()
            with self._condition:
                self._leaving -= 1
                self._condition.notify_all()

    def _is_full(self) -> bool:
        return self._busy > 0 or self._leaving > _MOST_LEAVING

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
            while not self._stopped and ((full := self._is_full()) or self._taken() > self._leaving):
                self._condition.wait(None if full else _ENDING_SECONDS)
            self._seconds = QUICK_SECONDS if self._rung else min(_GROWTH * self._seconds, SLOW_SECONDS)
            self._rung = False
            return self._stopped


class _Uncounted(ActiveWorkflowById):
    """Lets the library take a job whenever it looks: the pace knows when there is room for one."""

    def count_for_queue(self, queue_name: str) -> int:  # noqa: ARG002  it is the same for all
        return 0

    def taken(self, queue: str) -> int:
        """Jobs of a queue that the library counts."""
        return super().count_for_queue(queue)


def look_into(queues: Sequence[str]) -> dict[str, Pace]:
    """Start to take jobs from queues, and return the pace of each.

    The process must have told the library to listen to no queues itself.
    """
    instance, paces = _get_dbos_instance(), {}
    for unused in (*instance.background_thread_stop_events, instance._background_jobs_stop_event):
        unused.set()
    active = instance._active_workflows_set = _Uncounted()
    for name in queues:
        pace = paces[name] = Pace(partial(active.taken, name))
        queue = DBOS.retrieve_queue(name)
        assert queue is not None
        queue.database_backed_queue = False  # nobody changes it: it need not be read again at each look
        loop = (pace, instance, queue)
        threading.Thread(target=queue_worker_thread, args=loop, name=f"queue {name}", daemon=True).start()
    return paces
