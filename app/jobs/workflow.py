"""One job in one worker: take it, let a child carry it out, keep what it made, end it."""

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app.jobs import fallbacks, ledger, watch
from app.jobs.blobs import Blob, BlobStore
from app.jobs.database import Database, jobs, models
from app.jobs.errors import TooLargeError
from app.jobs.nursery import Nursery
from app.jobs.orders import ARTIFACTS, Limits, Order
from app.settings import Settings

logger = logging.getLogger("stowplan.jobs")
_PROGRESS_SECONDS = 0.1  # between two progress events of the same phase


class GivenBackError(BaseException):
    """The worker stops, or lost the job to another: the queue must not see an end.

    Not an `Exception`, which the queue would record as the job's failure.
    """


class Runner:
    """Carries out jobs of one worker process."""

    def __init__(
        self, settings: Settings, database: Database, folder: Path, stopping: threading.Event
    ) -> None:
        self._settings = settings
        self._database = database
        self._folder = folder
        self._stopping = stopping
        self._blobs = BlobStore(settings.data / "blobs", database)
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
        with self._database.write() as connection:
            row = ledger.start(connection, job_id)
            _note_failed_inspection(connection, job_id)
        if row is None:
            return
        folder = self._folder / job_id
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        try:
            self._carry_out(row, folder)
        except Exception as error:
            logger.exception("job %s failed inside the worker", job_id)
            self._end(row, watch.Outcome(code="internal-error", detail=f"{type(error).__name__}: {error}"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self._nursery.replenish()

    def close(self) -> None:
        """End the children that wait."""
        self._nursery.close()

    def _carry_out(self, row: ledger.Row, folder: Path) -> None:
        job = _Following(self._database, row, self._stopping)
        outcome = watch.carry_out(
            self._nursery.take(), self._order(row, folder), job.progress, job.should_stop
        )
        if outcome.stopped and not job.cancelled:
            with self._database.write() as connection:
                ledger.give_back(connection, row)
            raise GivenBackError
        artifacts: dict[str, Blob] = {}
        if outcome.code is None and not outcome.stopped:
            try:
                artifacts = self._keep(folder)
            except (OSError, TooLargeError) as error:
                outcome = watch.Outcome(code="artifact-unreadable", detail=str(error))
        if outcome.code == "child-crashed":
            logger.warning("job %s: %s\n%s", row["id"], outcome.detail, _tail(folder / "log.txt"))
        self._told.note(outcome.result)
        self._end(row, outcome, artifacts)

    def _end(
        self, row: ledger.Row, outcome: watch.Outcome, artifacts: Mapping[str, Blob] | None = None
    ) -> None:
        state = "cancelled" if outcome.stopped else "succeeded" if outcome.code is None else "failed"
        with self._database.write() as connection:
            ended = ledger.finish(
                connection,
                row,
                state,
                summary=outcome.result,
                code=outcome.code,
                detail="cancelled on request" if outcome.stopped else outcome.detail,
                pointer=outcome.pointer,
                artifacts=artifacts,
            )
            if ended and row["kind"] == "inspect" and not outcome.stopped:
                _note_inspection(connection, row["model_id"], outcome)
        if not ended:
            raise GivenBackError

    def _order(self, row: ledger.Row, folder: Path) -> Order:
        with self._database.read() as connection:
            files = ledger.model_paths(connection, row["model_id"])
            inputs = ledger.files(connection, row["id"], "input")
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
            target=request.get("target"),
            options=request.get("options", {}),
            bindings=bindings,
            operator=request.get("operator", {}),
        )

    def _keep(self, folder: Path) -> dict[str, Blob]:
        limit = self._settings.max_artifact_bytes
        return {
            name: self._blobs.store_file(folder / name, limit)
            for name in ARTIFACTS
            if (folder / name).is_symlink() or (folder / name).exists()
        }


class _Following:
    """What the supervision of one job tells and asks the ledger."""

    def __init__(self, database: Database, row: ledger.Row, stopping: threading.Event) -> None:
        self._database = database
        self._row = row
        self._stopping = stopping
        self._told = ("", 0.0)
        self.cancelled = False

    def progress(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase == self._told[0] and now < self._told[1] + _PROGRESS_SECONDS and done < total:
            return
        self._told = (phase, now)
        with self._database.write() as connection:
            ledger.progress(connection, self._row, phase[:60], done, total)

    def should_stop(self) -> bool:
        with self._database.read() as connection:
            wanted = ledger.is_wanted(connection, self._row)
        self.cancelled = wanted is False
        return wanted is not True or self._stopping.is_set()


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
