"""The queue's library, launched while there is work for it.

While it is launched it looks into every queue each `POLL_SECONDS`, whether there is work or not; to launch it
takes some 30 ms. So a worker without a job has it closed, and launches it when it is told of work.
"""

import time
from collections.abc import Callable, Sequence

from dbos import DBOS, DBOSConfig

from app.jobs.queue import dispatch
from app.jobs.store.database import queue_engine
from app.settings import Settings

POLL_SECONDS = 0.1  # between two looks into a queue
LINGER_SECONDS = 2.0  # after the last job or notification
_SELDOM_SECONDS = 60.0  # between two looks of the library at what this service does not use


class Queues:
    """The queues of a worker: their jobs are taken from `launch` until `close`.

    `work` carries out a job by its id, in a thread of the library. Attempts are counted in our own rows,
    which users see: the library's limit must come later.
    """

    def __init__(
        self, settings: Settings, executor: str, queues: Sequence[str], work: Callable[[str], None]
    ) -> None:
        self._queues = list(queues)
        self._share = settings.max_running_per_key
        self._config: DBOSConfig = {
            "name": dispatch.APPLICATION,
            "system_database_url": settings.queue_database_url,
            "executor_id": executor,
            "application_version": dispatch.VERSION,
            "serializer": dispatch.SERIALIZER,
            "log_level": "ERROR",
            "db_engine_kwargs": queue_engine(settings),
            "run_migrations": False,  # they were run before
            "scheduler_polling_interval_sec": _SELDOM_SECONDS,
            "notification_coalesce_sec": 1.0,
            "notification_listener_polling_interval_sec": POLL_SECONDS,  # it is waited for at the end
        }
        self._registered = False
        self.is_launched = False
        DBOS.workflow(name=dispatch.WORKFLOW, max_recovery_attempts=1000)(work)

    def launch(self) -> None:
        """Begin to take jobs, those first that this worker had when it died or closed."""
        DBOS(config=self._config)
        DBOS.listen_queues(self._queues)
        DBOS.launch()
        self.is_launched = True
        if not self._registered:
            for queue in self._queues:
                DBOS.register_queue(
                    queue,
                    worker_concurrency=1,
                    partition_concurrency=self._share,
                    polling_interval_sec=POLL_SECONDS,
                    on_conflict="always_update",
                )
            self._registered = True

    def close(self) -> None:
        """Take no more jobs. None may run; one that was taken meanwhile is taken again at the next launch."""
        DBOS.destroy()
        self.is_launched = False


class Need:
    """How long the queues are needed: until `LINGER_SECONDS` after the last sign of work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + LINGER_SECONDS

    def note(self) -> None:
        """There is a sign of work."""
        self._until = self._clock() + LINGER_SECONDS

    def __bool__(self) -> bool:
        """True while they are needed."""
        return self._clock() < self._until
