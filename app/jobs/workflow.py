"""One job in one worker: take it, let a child carry it out, keep what it made, end it."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from app import logs, tracing
from app.jobs import fallbacks, ledger, results, watch
from app.jobs.blobs import Blob, BlobStore
from app.jobs.callers import Caller, acting_for
from app.jobs.database import OUTAGE, Database, jobs, models
from app.jobs.errors import StorageFullError, StoreOutageError, TooLargeError
from app.jobs.nursery import Nursery
from app.jobs.orders import ARTIFACTS, Limits, Order
from app.settings import Settings

logger = logging.getLogger("stowplan.jobs")
_PROGRESS_SECONDS = 0.1  # between two progress events of the same phase
_OUTAGE_SECONDS = 0.5  # between two tries to reach a database that does not answer
T = TypeVar("T")


class Stopping(threading.Event):
    """Set when the worker shall stop; `at_once` when its job gets no time to end."""

    at_once = False


class GivenBackError(BaseException):
    """The worker stops, or lost the job to another: the queue must not see an end.

    Not an `Exception`, which the queue would record as the job's failure.
    """


class Runner:
    """Carries out jobs of one worker process; `busy` is entered, with its queue, while one is tried."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        folder: Path,
        stopping: Stopping,
        worker: str | None = None,
        busy: Callable[[str], AbstractContextManager[None]] = lambda _queue: nullcontext(),
    ) -> None:
        self._worker = worker
        self._busy = busy
        self._settings = settings
        self._database = database
        self._folder = folder
        self._stopping = stopping
        self._blobs = BlobStore.of(settings, database)
        self._told = fallbacks.Told()
        self._nursery = Nursery(settings.engine, settings.warm_children)
        self._nursery.replenish()

    def run(self, job_id: str) -> None:
        """Bring a job to its end. Running it again after that does nothing.

        Raises:
            GivenBackError: the worker stops, or another worker has the job now.
        """
        if self._stopping.is_set():
            raise GivenBackError

        def start(connection: sa.Connection) -> ledger.Row | None:
            row = ledger.start(connection, job_id, worker=self._worker, most=self._settings.max_attempts)
            _note_failed_inspection(connection, job_id)
            return row

        while (row := self._insist(start)) is not None:
            with self._busy(row["queue"]):
                if self._attempt(row):
                    return

    def _attempt(self, row: ledger.Row) -> bool:
        """Try to bring a job to its end; False when it should be tried again."""
        folder = self._folder / row["id"]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        try:
            with (
                acting_for(Caller(owner=row["owner"])),
                logs.about(job_id=row["id"]),
                tracing.span("job", row["trace"], kind=row["kind"], job=row["id"]),
            ):
                return self._carry_out(row, folder)
        except Exception as error:
            logger.exception("job %s failed inside the worker", row["id"])
            self._end(row, watch.Outcome(code="internal-error", detail=f"{type(error).__name__}: {error}"))
            return True
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self._nursery.replenish()

    def close(self) -> None:
        """End the children that wait."""
        self._nursery.close()

    def _carry_out(self, row: ledger.Row, folder: Path) -> bool:
        job = _Following(self._database, row, self._stopping, self._settings.drain_seconds)
        order = self._until_done(lambda: self._order(row, folder))
        child = self._nursery.take()
        try:
            outcome = watch.carry_out(child, order, job.progress, job.should_stop)
            # What was killed takes a while to go; what it wrote is read meanwhile.
            outcome, artifacts = self._kept(folder, outcome)
        finally:
            child.end()
        if outcome.stopped and not job.cancelled:
            self._insist(lambda connection: ledger.give_back(connection, row))
            raise GivenBackError
        if outcome.killed and row["attempt"] < self._settings.max_attempts:
            logger.warning("the process of job %s was killed; trying again", row["id"])
            return False
        if outcome.code == "child-crashed":
            logger.warning("job %s: %s\n%s", row["id"], outcome.detail, _tail(folder / "log.txt"))
        self._told.note(outcome.result)
        self._end(row, outcome, artifacts)
        seconds = round(time.time() - row["started"], 3)
        what = {"kind": row["kind"], "code": outcome.code or "", "seconds": seconds, "owner": row["owner"]}
        logger.info("the job ended", extra=what)
        return True

    def _end(
        self, row: ledger.Row, outcome: watch.Outcome, artifacts: Mapping[str, Blob] | None = None
    ) -> None:
        state = "cancelled" if outcome.stopped else "succeeded" if outcome.code is None else "failed"

        key = row["cache_key"]
        if key is not None and state == "succeeded":
            key = results.filed(key, row["request"], self._settings.data / "kernels")

        def end(connection: sa.Connection) -> bool:
            ended = ledger.finish(
                connection,
                row,
                state,
                summary=outcome.result,
                code=outcome.code,
                detail="cancelled on request" if outcome.stopped else outcome.detail,
                pointer=outcome.pointer,
                artifacts=artifacts,
                cache_key=key if state == "succeeded" else None,
            )
            if ended and row["kind"] == "inspect" and not outcome.stopped:
                _note_inspection(connection, row["model_id"], outcome)
            return ended or self._is_over(connection, row["id"])

        if not self._insist(end):
            raise GivenBackError

    @staticmethod
    def _is_over(connection: sa.Connection, job_id: str) -> bool:
        """Whether a job has ended: perhaps by us, and only the answer to the commit was lost."""
        state = connection.scalar(sa.select(jobs.c.state).where(jobs.c.id == job_id))
        return state is None or state in ledger.TERMINAL

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

    def _order(self, row: ledger.Row, folder: Path) -> Order:

        def look(connection: sa.Connection) -> tuple[dict[str, str], list[ledger.Row]]:
            return ledger.model_paths(connection, row["model_id"]), ledger.files(
                connection, row["id"], "input"
            )

        files, inputs = self._insist(look)
        request = row["request"]
        bindings = dict(request.get("bindings", {}))
        bindings["tensors"] = {f["name"]: str(self._blobs.path(f["sha256"])) for f in inputs}
        return Order(
            kind=row["kind"],
            model=str(self._blobs.path(files.pop(""))) if files else "",
            external={name: str(self._blobs.path(sha256)) for name, sha256 in files.items()},
            folder=str(folder.absolute()),
            kernels=str((self._settings.data / "kernels").absolute()),
            limits=Limits(**request["limits"]),
            turn=str(self._settings.benchmark_lock),
            target=request.get("target"),
            options=request.get("options", {}),
            bindings=bindings,
            operator=request.get("operator", {}),
        )

    def _kept(self, folder: Path, outcome: watch.Outcome) -> tuple[watch.Outcome, dict[str, Blob]]:
        """Keep what a job made that did what was asked; a failure when that cannot be done."""
        if outcome.code is not None or outcome.stopped:
            return outcome, {}
        try:
            return outcome, self._until_done(lambda: self._keep(folder))
        except StorageFullError as error:
            return watch.Outcome(code=error.code, detail=error.message), {}
        except (OSError, TooLargeError) as error:
            return watch.Outcome(code="artifact-unreadable", detail=str(error)), {}

    def _keep(self, folder: Path) -> dict[str, Blob]:
        limit = self._settings.max_artifact_bytes
        names = [name for name in ARTIFACTS if (folder / name).is_symlink() or (folder / name).exists()]
        return self._blobs.store_files({name: folder / name for name in names}, limit)


class _Following:
    """What the supervision of one job tells and asks the ledger."""

    def __init__(self, database: Database, row: ledger.Row, stopping: Stopping, drain_seconds: float) -> None:
        self._database = database
        self._row = row
        self._stopping = stopping
        self._drain_seconds = drain_seconds
        self._asked_to_stop: float | None = None
        self._told = ("", 0.0)
        self.cancelled = False

    def progress(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase == self._told[0] and now < self._told[1] + _PROGRESS_SECONDS and done < total:
            return
        self._told = (phase, now)
        try:
            with self._database.write() as connection:
                ledger.progress(connection, self._row, phase[:60], done, total)
        except OUTAGE:
            logger.warning("the database did not take the progress of job %s", self._row["id"])

    def should_stop(self) -> bool:
        try:
            with self._database.read() as connection:
                wanted = ledger.is_wanted(connection, self._row)
        except OUTAGE:
            wanted = True  # nobody says otherwise; what the job makes is kept when the database is back
        self.cancelled = wanted is False
        return wanted is not True or self._has_drained()

    def _has_drained(self) -> bool:
        """Whether the worker stops and the job has had its time to end."""
        if not self._stopping.is_set():
            return False
        now = time.monotonic()
        if self._asked_to_stop is None:
            self._asked_to_stop = now
        return self._stopping.at_once or now >= self._asked_to_stop + self._drain_seconds


def _note_inspection(connection: sa.Connection, model_id: str, outcome: watch.Outcome) -> None:
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
            watch.Outcome(code=row["code"], detail=row["detail"], pointer=row["pointer"]),
        )


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""
