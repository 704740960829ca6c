"""One job in one worker: take it, let a child carry it out, keep what it made, end it."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import sqlalchemy as sa

from app.jobs.errors import StorageFullError, StoreOutageError, TooLargeError
from app.jobs.store import fallbacks, job_repository, results
from app.jobs.store.auth_context import Caller, acting_for
from app.jobs.store.blobs import BlobStore, Brought
from app.jobs.store.database import OUTAGE, Database, jobs, models
from app.jobs.worker import benchmark_lock, confinement, supervise_child
from app.jobs.worker.child_request import ARTIFACTS, ChildRequest, Limits
from app.jobs.worker.prefork_pool import Child, PreforkPool
from app.settings import Settings
from app.telemetry import logs, tracing

logger = logging.getLogger("stowplan.jobs")
_PROGRESS_SECONDS = 0.1  # between two times that progress is written
PREPARE_SECONDS = (
    120.0  # for a child that compiles what any model needs; it takes five with a core of its own
)
_OUTAGE_SECONDS = 0.5  # between two tries to reach a database that does not answer
T = TypeVar("T")


class Stopping(threading.Event):
    """Set when the worker shall stop; `at_once` when its job gets no time to end.

    `woken` is set then, and when there may be work.
    """

    at_once = False

    def __init__(self) -> None:
        super().__init__()
        self.woken = threading.Event()

    def set(self) -> None:
        """Let the worker stop."""
        super().set()
        self.wake()

    def wake(self) -> None:
        """Let the worker look for work."""
        self.woken.set()


class GivenBackError(BaseException):
    """The worker stops, or lost the job to another: the queue must not see an end.

    Not an `Exception`, which the queue would record as the job's failure.
    """


class Runner:
    """Carries out jobs of one worker process."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        folder: Path,
        stopping: Stopping,
        worker: str | None = None,
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._database = database
        self._folder = folder
        self._stopping = stopping
        self._blobs = BlobStore.of(settings, database)
        self._told = fallbacks.Told()
        confinement.hand_over(settings.data / "kernels")
        self._pool = PreforkPool(settings.engine, settings.warm_children)
        self._pool.replenish()
        threading.Thread(target=self._prepare, name="prepare", daemon=True).start()

    def _prepare(self) -> None:
        """Let a child compile what the first job of a machine would wait for; jobs need not wait for it."""
        folder = self._folder / "prepare"
        confinement.hand_over(folder)
        limits = Limits(PREPARE_SECONDS, self._settings.job_memory_bytes, self._settings.max_artifact_bytes)
        request = ChildRequest(kind="prepare", limits=limits, **self._places(folder))
        try:
            child = self._pool.take(self._stopping.is_set)
        except (OSError, EOFError):  # the first job tells
            return
        if child is None:
            return
        try:
            child.lower_priority()
            outcome = supervise_child.carry_out(child, request, lambda *_: None, self._stopping.is_set)
            if outcome.code is not None and not self._stopping.is_set():
                logger.warning("nothing was prepared: %s: %s", outcome.code, outcome.detail)
        finally:
            child.end()
            self._pool.replenish()
            shutil.rmtree(folder, ignore_errors=True)

    def _places(self, folder: Path) -> dict[str, Any]:
        """Paths of a request that are the same for all jobs, and its folder."""
        return {
            "folder": str(folder.absolute()),
            "kernels": str((self._settings.data / "kernels").absolute()),
            "benchmark_lock": str(self._settings.benchmark_lock),
            "private": str(self._settings.data.absolute()),
        }

    def run(self, job_id: str) -> None:
        """Bring a job to its end. Running it again after that does nothing.

        Raises:
            GivenBackError: the worker stops, or another worker has the job now.
        """
        if self._stopping.is_set():
            raise GivenBackError

        def start(connection: sa.Connection) -> _Taken | None:
            row = job_repository.start(
                connection, job_id, worker=self._worker, most=self._settings.max_attempts
            )
            if row is None:
                _note_failed_inspection(connection, job_id)
                return None
            files = job_repository.model_paths(connection, row["model_id"])
            return _Taken(row, files, job_repository.files(connection, job_id, "input"))

        while (taken := self._insist(start)) is not None:
            if self._attempt(taken):
                return

    def _attempt(self, taken: "_Taken") -> bool:
        """Try to bring a job to its end; False when it should be tried again."""
        row = taken.row
        folder = self._folder / row["id"]
        shutil.rmtree(folder, ignore_errors=True)
        confinement.hand_over(folder)
        try:
            with (
                acting_for(Caller(owner=row["owner"])),
                logs.about(job_id=row["id"]),
                tracing.span("job", row["trace"], kind=row["kind"], job=row["id"]),
            ):
                return self._carry_out(taken, folder)
        except Exception as error:
            logger.exception("job %s failed inside the worker", row["id"])
            self._end(
                row, supervise_child.Outcome(code="internal-error", detail=f"{type(error).__name__}: {error}")
            )
            return True
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End the children that wait."""
        self._pool.close()

    def _carry_out(self, taken: "_Taken", folder: Path) -> bool:
        row = taken.row
        job = _Following(self._database, row, self._stopping, self._settings.drain_seconds)
        request = self._until_done(lambda: self._request(taken, folder))
        child = self._pool.take(job.has_drained)
        if child is None:
            self._give_back(row, job)
        self._pool.replenish()  # now, as nothing is timed yet: the next job finds a child that waits
        try:
            outcome = supervise_child.carry_out(child, request, job.progress, job.should_stop)
            if outcome.stopped and not job.cancelled:
                self._give_back(row, job)
            if outcome.killed and row["attempt"] < self._settings.max_attempts:
                logger.warning("the process of job %s was killed; trying again", row["id"])
                job.flush()
                return False
            if outcome.code == "child-crashed":
                logger.warning("job %s: %s\n%s", row["id"], outcome.detail, _tail(folder / "log.txt"))
            self._told.note(outcome.result)
            outcome = self._kept(row, outcome, folder, child, job)
        finally:
            child.end()
        seconds = round(time.time() - row["started"], 3)
        what = {"kind": row["kind"], "code": outcome.code or "", "seconds": seconds, "owner": row["owner"]}
        logger.info("the job ended", extra=what)
        return True

    def _give_back(self, row: job_repository.Row, job: "_Following") -> NoReturn:
        job.flush()
        self._insist(lambda connection: job_repository.give_back(connection, row))
        raise GivenBackError

    def _kept(
        self,
        row: job_repository.Row,
        outcome: supervise_child.Outcome,
        folder: Path,
        child: Child,
        job: "_Following",
    ) -> supervise_child.Outcome:
        """End a job with what it made, if it did what was asked; with a failure if that cannot be kept."""
        paths = {}
        if outcome.code is None and not outcome.stopped:
            names = (n for n in ARTIFACTS if (folder / n).is_symlink() or (folder / n).exists())
            paths = {name: folder / name for name in names}

        def keep() -> None:
            # What was killed takes a while to go; what it wrote is read meanwhile.
            with self._blobs.copies(paths, self._settings.max_artifact_bytes) as made:
                child.end()
                self._end_once(row, outcome, made, job.told)

        try:
            self._until_done(keep)
        except StorageFullError as error:
            outcome = supervise_child.Outcome(code=error.code, detail=error.message)
        except (OSError, TooLargeError) as error:
            outcome = supervise_child.Outcome(code="artifact-unreadable", detail=str(error))
        else:
            return outcome
        child.end()
        self._end(row, outcome, job.told)
        return outcome

    def _end(
        self,
        row: job_repository.Row,
        outcome: supervise_child.Outcome,
        told: Sequence[job_repository.Progress] = (),
    ) -> None:
        self._until_done(lambda: self._end_once(row, outcome, {}, told))

    def _end_once(
        self,
        row: job_repository.Row,
        outcome: supervise_child.Outcome,
        made: Mapping[str, Brought],
        told: Sequence[job_repository.Progress],
    ) -> None:
        """End a job, with its artifacts and what it told last, in one transaction.

        Raises:
            GivenBackError: it is another worker's now.
        """
        state = "cancelled" if outcome.stopped else "succeeded" if outcome.code is None else "failed"
        key = row["cache_key"]
        if key is not None and state == "succeeded":
            key = results.filed(key, row["request"], self._settings.data / "kernels")
        with self._database.write() as connection:
            job_repository.progress(connection, row, told)
            blobs = self._blobs.enter(connection, list(made.values())) if made else []
            ending = job_repository.Ending(
                state,
                summary=outcome.result,
                code=outcome.code,
                detail="cancelled on request" if outcome.stopped else outcome.detail,
                pointer=outcome.pointer,
                cache_key=key if state == "succeeded" else None,
            )
            ended = job_repository.finish(connection, row, ending, dict(zip(made, blobs, strict=True)))
            if ended and row["kind"] == "inspect" and not outcome.stopped:
                _note_inspection(connection, row["model_id"], outcome)
            # It may have ended before, perhaps by us where only the answer to the commit was lost.
            found = sa.select(jobs.c.state).where(jobs.c.id == row["id"])
            over = ended or connection.scalar(found) in (None, *job_repository.TERMINAL)
        if not over:
            raise GivenBackError

    def _insist(self, change: Callable[[sa.Connection], T]) -> T:
        """Carry out a transaction, again and again while the database does not answer.

        Raises:
            GivenBackError: the worker stops meanwhile.
        """

        def write() -> T:
            with self._database.write() as connection:
                return change(connection)

        return self._until_done(write)

    def _until_done(self, act: Callable[[], T]) -> T:
        while True:
            try:
                return act()
            except (*OUTAGE, StoreOutageError):
                logger.warning("the database or the store does not answer; trying again", exc_info=True)
            if self._stopping.wait(_OUTAGE_SECONDS):
                raise GivenBackError

    def _request(self, taken: "_Taken", folder: Path) -> ChildRequest:
        benchmark_lock.check(self._settings.benchmark_lock)  # the child may open it, but not make it again
        row, files = taken.row, dict(taken.files)
        request = row["request"]
        bindings = dict(request.get("bindings", {}))
        model = request.get("model")  # in the place of that which was uploaded, and of its files
        model, files = (model, {}) if model else (files.pop("", None), files)
        if bindings.get("samples"):
            bindings["samples"] = str(self._blobs.path(bindings["samples"]))
        bindings["tensors"] = {f["name"]: str(self._blobs.path(f["sha256"])) for f in taken.inputs}
        return ChildRequest(
            kind=row["kind"],
            model=str(self._blobs.path(model)) if model else "",
            external={name: str(self._blobs.path(sha256)) for name, sha256 in files.items()},
            limits=Limits(**request["limits"]),
            **self._places(folder),
            target=request.get("target"),
            options=request.get("options", {}),
            bindings=bindings,
            operator=request.get("operator", {}),
            operation=request.get("operation", {}),
            capacity=request.get("capacity", {}),
        )


@dataclass(frozen=True, slots=True)
class _Taken:
    """A job that this worker has, and the hashes of its model's files and of given inputs."""

    row: job_repository.Row
    files: Mapping[str, str]
    inputs: Sequence[job_repository.Row]


class _Following:
    """Progress of one job under supervision, as the job repository is given it.

    What the job tells is written a few times a second, all steps at once.
    """

    def __init__(
        self, database: Database, row: job_repository.Row, stopping: Stopping, drain_seconds: float
    ) -> None:
        self._database = database
        self._row = row
        self._stopping = stopping
        self._drain_seconds = drain_seconds
        self._asked_to_stop: float | None = None
        self._written = time.monotonic()
        self.told: list[job_repository.Progress] = []  # but not written yet
        self.cancelled = False

    def progress(self, phase: str, done: int, total: int) -> None:
        self.told.append(job_repository.Progress(phase[:60], done, total))
        if time.monotonic() > self._written + _PROGRESS_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what was told."""
        self._written = time.monotonic()
        if not self.told:
            return
        try:
            with self._database.write() as connection:
                job_repository.progress(connection, self._row, self.told)
        except OUTAGE:
            logger.warning("the database did not take the progress of job %s", self._row["id"])
        self.told = []

    def should_stop(self) -> bool:
        self.flush()
        try:
            with self._database.read() as connection:
                wanted = job_repository.is_wanted(connection, self._row)
        except OUTAGE:
            wanted = True  # nobody says otherwise; what the job makes is kept when the database is back
        self.cancelled = wanted is False
        return wanted is not True or self.has_drained()

    def has_drained(self) -> bool:
        """True if the worker stops and the job has had its time to end."""
        if not self._stopping.is_set():
            return False
        now = time.monotonic()
        if self._asked_to_stop is None:
            self._asked_to_stop = now
        return self._stopping.at_once or now >= self._asked_to_stop + self._drain_seconds


def _note_inspection(connection: sa.Connection, model_id: str, outcome: supervise_child.Outcome) -> None:
    values: Mapping[str, Any] = {"state": "ready", "report": outcome.result}
    if outcome.code is not None:
        values = {
            "state": "invalid",
            "code": outcome.code,
            "detail": outcome.detail,
            "pointer": outcome.pointer,
        }
    connection.execute(models.update().where(models.c.id == model_id).values(**values))


def _note_failed_inspection(connection: sa.Connection, job_id: str) -> None:
    """An inspection that ended without a child (its workers died) leaves its model invalid."""
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).mappings().first()
    if row is not None and row["kind"] == "inspect" and row["state"] == "failed":
        _note_inspection(
            connection,
            row["model_id"],
            supervise_child.Outcome(code=row["code"], detail=row["detail"], pointer=row["pointer"]),
        )


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""
