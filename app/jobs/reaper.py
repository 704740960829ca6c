"""Heartbeats of workers, and what has to be done again because someone died.

Every worker does all of it: each action changes only what nobody else has changed first, so two
at once do no harm. The one use of the queue's private recovery function is here.
"""

import time
from collections.abc import Sequence

import sqlalchemy as sa
from dbos import DBOS

from app.jobs import ledger
from app.jobs.blobs import BlobStore
from app.jobs.database import Database, idempotency, jobs, workers
from app.jobs.dispatch import Dispatcher
from app.settings import Settings

BEAT_SECONDS = 2.0
_LOST_SECONDS = 5.0  # after which a job that its sender did not put in the queue is put there
_SWEEP_SECONDS = 60.0
_ANSWERED_SECONDS = 3600.0  # that the row of a validation is kept
_IDEMPOTENCY_SECONDS = 24 * 3600.0


def recover(dead: Sequence[str]) -> None:
    """Put the running jobs of dead workers back in their queues.

    `_recover_pending_workflows` is private to the queue's library, whose version is pinned; its
    public `resume_workflow` resets the count of attempts and does not check the owner.
    """
    DBOS._recover_pending_workflows(list(dead))


class Reaper:
    """The recurring duties of a worker."""

    def __init__(self, settings: Settings, database: Database, worker: str, queues: Sequence[str]) -> None:
        self._settings = settings
        self._database = database
        self._worker = worker
        self._queues = list(queues)
        self._dispatcher = Dispatcher(settings, database)
        self._blobs = BlobStore(settings.data / "blobs", database)
        self._swept = 0.0

    def beat(self) -> None:
        """Say that this worker lives, and look after what the dead left."""
        now = time.time()
        with self._database.write() as connection:
            seen = {"seen": now, "queues": self._queues}
            if not connection.execute(
                workers.update().where(workers.c.id == self._worker).values(**seen)
            ).rowcount:
                connection.execute(workers.insert().values(id=self._worker, **seen))
            dead = connection.scalars(
                sa.select(workers.c.id).where(workers.c.seen < now - self._settings.dead_seconds)
            ).all()
        if dead:
            recover(dead)
            with self._database.write() as connection:
                connection.execute(
                    workers.delete().where(
                        workers.c.id.in_(dead), workers.c.seen < now - self._settings.dead_seconds
                    )
                )
        self._send_lost(now)
        if now > self._swept + _SWEEP_SECONDS:
            self._swept = now
            self._sweep(now)

    def leave(self) -> None:
        """Say that this worker stops, with nothing left to recover."""
        with self._database.write() as connection:
            connection.execute(workers.delete().where(workers.c.id == self._worker))
        self._dispatcher.close()

    def _send_lost(self, now: float) -> None:
        with self._database.read() as connection:
            lost = connection.scalars(
                sa.select(jobs.c.id).where(
                    jobs.c.enqueued.is_(False),
                    jobs.c.state.in_(ledger.WAITING),
                    jobs.c.created < now - _LOST_SECONDS,
                )
            ).all()
        if lost:
            self._dispatcher.send(lost)

    def _sweep(self, now: float) -> None:
        patience = self._settings.wait_for_target_seconds
        with self._database.write() as connection:
            answered = (jobs.c.kind.in_(("validate", "operator")), jobs.c.finished < now - _ANSWERED_SECONDS)
            connection.execute(jobs.delete().where(*answered))
            connection.execute(idempotency.delete().where(idempotency.c.created < now - _IDEMPOTENCY_SECONDS))
            waiting = connection.execute(
                sa.select(jobs).where(jobs.c.state == "waiting_for_target", jobs.c.created < now - patience)
            ).mappings()
            for row in waiting.all():
                ledger.finish(
                    connection,
                    row,
                    "failed",
                    code="target-unavailable",
                    detail=f"no worker on target {row['target']!r} came within {patience:g} s",
                )
        self._blobs.free()
