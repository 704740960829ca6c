"""Heartbeats of workers, and what has to be done again because someone died.

Every worker does all of it: each action changes only what nobody else has changed first, so two
at once do no harm.
"""

import time
from collections.abc import Sequence

import sqlalchemy as sa

from app.jobs.queue.dispatch import Dispatcher
from app.jobs.store import groups, job_repository, model_repository
from app.jobs.store.blobs import BlobStore
from app.jobs.store.database import Database, idempotency, jobs, models, workers
from app.settings import Settings

BEATS = 3  # in the time after which a worker that is silent counts as dead
_LOST_SECONDS = 5.0  # after which a job that its sender did not put in the queue is put there
_SWEEP_SECONDS = 60.0
_AUDIT_SECONDS = 15.0
_AUDITED = 500  # jobs looked at in one audit, oldest first
_RECOVERY_LOCK = 3  # key of the lock held while jobs of dead workers are put back
_RETIRED = 200  # jobs or models that one sweep deletes
_ANSWERED_SECONDS = 3600.0  # that the row of a validation is kept
_IDEMPOTENCY_SECONDS = 24 * 3600.0


class Reaper:
    """The recurring duties of a worker."""

    def __init__(self, settings: Settings, database: Database, worker: str, queues: Sequence[str]) -> None:
        self._settings = settings
        self._database = database
        self._worker = worker
        self._queues = list(queues)
        self._dispatcher = Dispatcher(settings, database)
        self._blobs = BlobStore.of(settings, database)
        self._swept = 0.0
        self._audited = 0.0
        self._suspects: set[str] = set()

    def register(self) -> None:
        """Say that this worker lives: best before it takes jobs, lest another one reaps them."""
        with self._database.write() as connection:
            self._register(connection, time.time())

    def _register(self, connection: sa.Connection, now: float) -> None:
        seen = {"seen": now, "queues": self._queues}
        if not connection.execute(
            workers.update().where(workers.c.id == self._worker).values(**seen)
        ).rowcount:
            connection.execute(workers.insert().values(id=self._worker, **seen))

    def beat(self) -> bool:
        """Say that this worker lives, and look after what the dead left.

        The answer is whether jobs wait in the queues of this worker: a notification may be lost.
        """
        now = time.time()
        with self._database.write() as connection:
            self._register(connection, now)
            silent = workers.c.seen < now - self._settings.dead_seconds
            dead = connection.scalars(sa.select(workers.c.id).where(silent)).all()
        if dead:
            with self._database.write() as connection:
                self._database.lock(connection, _RECOVERY_LOCK)
                dead = connection.scalars(sa.select(workers.c.id).where(silent)).all()
                self._dispatcher.recover(dead)
                connection.execute(workers.delete().where(workers.c.id.in_(dead), silent))
        has_work = self._look(now)
        if now > self._audited + _AUDIT_SECONDS:
            self._audited = now
            self._audit()
        if now > self._swept + _SWEEP_SECONDS:
            self._swept = now
            self._sweep(now)
        return has_work

    def leave(self) -> None:
        """Say that this worker stops: what the queue still counts as its own is for the others."""
        with self._database.write() as connection:
            connection.execute(workers.update().where(workers.c.id == self._worker).values(seen=0.0))
        self._dispatcher.close()

    def _audit(self) -> None:
        """Send jobs again that the queue thinks are over, seen twice: one may just be ending."""
        found = set(self._dispatcher.forgotten(_AUDITED))
        again = sorted(found & self._suspects)
        self._suspects = found - self._suspects
        if again:
            with self._database.write() as connection:
                connection.execute(
                    jobs.update()
                    .where(
                        jobs.c.id.in_(again), jobs.c.enqueued, jobs.c.state.not_in(job_repository.TERMINAL)
                    )
                    .values(enqueued=False)
                )

    def _look(self, now: float) -> bool:
        """Send jobs that their senders did not; whether jobs wait in the queues of this worker.

        A job waits also when nobody runs it any more: its worker died, or was this one before.
        """
        others = sa.select(workers.c.id).where(workers.c.id != self._worker)
        pending = jobs.c.state.in_(job_repository.WAITING)
        orphaned = (jobs.c.state == "running") & jobs.c.worker.not_in(others)
        waiting = jobs.c.queue.in_(self._queues) & (pending | orphaned)
        with self._database.read() as connection:
            waits = connection.scalar(sa.select(jobs.c.id).where(waiting).limit(1)) is not None
            lost = connection.scalars(
                sa.select(jobs.c.id).where(
                    jobs.c.enqueued.is_(False),
                    jobs.c.state.not_in(job_repository.TERMINAL),
                    jobs.c.created < now - _LOST_SECONDS,
                )
            ).all()
        if lost:
            self._dispatcher.send(lost)
        return waits

    def _sweep(self, now: float) -> None:
        patience = self._settings.wait_for_target_seconds
        with self._database.write() as connection:
            answered = (
                jobs.c.kind.in_(("validate", "operator", "derive", "capacity")),
                jobs.c.finished < now - _ANSWERED_SECONDS,
            )
            connection.execute(jobs.delete().where(*answered))
            connection.execute(idempotency.delete().where(idempotency.c.created < now - _IDEMPOTENCY_SECONDS))
            waiting = connection.execute(
                sa.select(jobs).where(jobs.c.state == "waiting_for_target", jobs.c.created < now - patience)
            ).mappings()
            for row in waiting.all():
                detail = f"no worker on target {row['target']!r} came within {patience:g} s"
                ending = job_repository.Ending("failed", code="target-unavailable", detail=detail)
                job_repository.finish(connection, row, ending)
            self._retire(connection, now)
            groups.forget_empty(connection)
        self._blobs.free()

    def _retire(self, connection: sa.Connection, now: float) -> None:
        """Delete what is older than the rules of retention allow."""
        jobs_seconds, models_seconds = (
            self._settings.retain_jobs_seconds,
            self._settings.retain_models_seconds,
        )
        ended = sa.select(jobs.c.id).where(jobs.c.kind == "optimize", jobs.c.finished < now - jobs_seconds)
        needed = sa.exists().where(*model_repository.needed(models.c.id))
        unused = sa.select(models.c.id).where(models.c.used < now - models_seconds, ~needed)
        for seconds, old, delete in (
            (jobs_seconds, ended, job_repository.delete),
            (models_seconds, unused, model_repository.delete_model),
        ):
            if seconds:
                for identifier in connection.scalars(old.limit(_RETIRED)).all():
                    delete(connection, identifier)
