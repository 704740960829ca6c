"""The rows of jobs: made, started, told about, ended.

A job reaches a terminal state exactly once: every change names the states it may come from, and
a start raises `attempt`, so that a worker which lost its job to another can change it no more.
"""

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from app.jobs.errors import (
    BlobNotFoundError,
    InvalidModelError,
    JobNotFinishedError,
    JobNotFoundError,
    ModelNotFoundError,
    TooManyError,
)
from app.jobs.store import counters, labels, results
from app.jobs.store.auth_context import current, visible_row
from app.jobs.store.blobs import Blob, BlobStore, sizes
from app.jobs.store.database import Database, job_events, job_files, jobs, model_files, models
from app.telemetry import tracing

WAITING = ("queued", "waiting_for_target")
TERMINAL = ("succeeded", "failed", "cancelled")
STATES = (*WAITING, "running", *TERMINAL)
Row = sa.RowMapping


@dataclass(frozen=True, slots=True)
class Draft:
    """A job to be made.

    Attributes:
        kind: optimize, validate, inspect, operator, derive or capacity.
        model_id: the model it works on; empty for an operator.
        target: name of the target.
        queue: queue of workers that may take it.
        request: target, options, bindings and limits, as JSON.
        inputs: blobs of given tensors by input name.
        state: the first state, one of `WAITING`.
        detail: why it waits, for `waiting_for_target`.
        labels: values by name, to find it again.
        cache_key: equal for jobs that must have the same result; None for one that shares none.
        cached_from: a job that ended, whose result is this one's too.
    """

    kind: str
    model_id: str
    target: str
    queue: str
    request: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    state: str = "queued"
    detail: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    cache_key: str | None = None
    cached_from: str | None = None


_latest = 0  # the number of the identifier that this process made last
_making = threading.Lock()


def new_id() -> str:
    """An identifier of 32 hexadecimal digits; later ones of a process sort after earlier ones."""
    global _latest
    with _making:
        number = (time.time_ns() // 1_000_000 << 80) + secrets.randbits(80)
        if number <= _latest:  # in the same millisecond, or the clock was set back
            number = _latest + 1 + secrets.randbits(64)
        _latest = number
    return f"{number:032x}"


def create(connection: sa.Connection, drafts: Sequence[Draft], group: str | None = None) -> list[str]:
    """Make jobs of one group, a new one unless it is given, for the caller, and return their ids.

    Raises:
        ModelNotFoundError: there is no such model.
        InvalidModelError: the model was found invalid before.
        BlobNotFoundError: an input tensor was not uploaded.
        TooManyError: the caller has too many unfinished jobs.
    """
    _check_number(connection, len(drafts))
    group, ids = group or new_id(), []
    for draft in drafts:
        if draft.kind != "operator":
            check_model(connection, draft.model_id, invalid_too=draft.kind == "inspect")
        now, job_id = time.time(), new_id()
        connection.execute(
            jobs.insert().values(
                id=job_id,
                kind=draft.kind,
                group_id=group,
                state=draft.state,
                model_id=draft.model_id,
                target=draft.target,
                request=dict(draft.request),
                queue=draft.queue,
                detail=draft.detail,
                created=now,
                owner=current().owner,
                cache_key=draft.cache_key,
                trace=tracing.traceparent(),
            )
        )
        labels.put(connection, job_id, draft.labels)
        _refer(connection, job_id, draft)
        tell(connection, job_id, "state", {"state": draft.state})
        if draft.cached_from is not None:
            _answer(connection, job_id, draft.cached_from)
        ids.append(job_id)
    return ids


def _refer(connection: sa.Connection, job_id: str, draft: Draft) -> None:
    """Note the blobs that a job reads: given tensors, samples, and a model in the place of the uploaded.

    Raises:
        BlobNotFoundError: one was not uploaded.
    """
    samples = draft.request.get("bindings", {}).get("samples")
    given = [("input", name, sha256, f"/inputs/{name}") for name, sha256 in draft.inputs.items()]
    given += [("samples", "", samples, "/samples")] if samples else []
    given += [("model", "", model, "/model")] if (model := draft.request.get("model")) else []
    held = sizes(connection, [sha256 for _, _, sha256, _ in given])
    for role, name, sha256, pointer in given:
        size = held.get(sha256)
        if size is None:
            what = f"{role} {name!r}" if name else role
            raise BlobNotFoundError(f"{what}: there is no blob {sha256}; upload it first", pointer=pointer)
        connection.execute(
            job_files.insert().values(job_id=job_id, role=role, name=name, sha256=sha256, size=size)
        )
    BlobStore.settle(connection, [sha256 for _, _, sha256, _ in given])


def _answer(connection: sa.Connection, job_id: str, source: str) -> None:
    """End a job at once with the result of another."""
    summary = find(connection, source)["summary"]
    values = {"state": "succeeded", "summary": summary, "cached_from": source, "finished": time.time()}
    connection.execute(jobs.update().where(jobs.c.id == job_id).values(**values, enqueued=True, detail=None))
    results.share(connection, job_id, source)
    tell(connection, job_id, "state", {"state": "succeeded", "cached_from": source})
    counters.note_cached(connection, "optimize")


def _check_number(connection: sa.Connection, more: int) -> None:
    caller = current()
    if caller.max_jobs is None:
        return
    unfinished = connection.scalar(
        sa.select(sa.func.count())
        .select_from(jobs)
        .where(jobs.c.owner == caller.owner, jobs.c.state.not_in(TERMINAL))
    )
    if (unfinished or 0) + more > caller.max_jobs:
        raise TooManyError(
            f"{unfinished} jobs are unfinished and {more} would be added, {caller.max_jobs} are allowed"
        )


def check_model(connection: sa.Connection, identifier: str, *, invalid_too: bool = False) -> None:
    """Make sure that a job can work on a model, and note that one does.

    Raises:
        ModelNotFoundError: there is none of that id that the caller may see.
        InvalidModelError: it was found invalid when it was inspected; not with `invalid_too`.
    """
    model = visible_row(connection, models, identifier)
    if model is None:
        raise ModelNotFoundError(f"there is no model {identifier!r}", pointer="/model")
    if model["state"] == "invalid" and not invalid_too:
        raise InvalidModelError(model["detail"], code=model["code"], pointer=model["pointer"] or "/model")
    connection.execute(models.update().where(models.c.id == identifier).values(used=time.time()))


def tell(connection: sa.Connection, job_id: str, kind: str, data: Mapping[str, Any]) -> None:
    """Append an event that followers of the job see."""
    connection.execute(
        job_events.insert().values(job_id=job_id, kind=kind, data=dict(data), created=time.time())
    )


def mark_enqueued(database: Database, ids: Sequence[str]) -> None:
    """Note that the queue knows the jobs."""
    if ids:
        with database.write() as connection:
            sent = {"enqueued": True, "sent": jobs.c.sent + 1}
            connection.execute(jobs.update().where(jobs.c.id.in_(ids)).values(**sent))


def find(connection: sa.Connection, job_id: str) -> Row:
    """One job that the caller may see.

    Raises:
        JobNotFoundError: there is none of that id.
    """
    row = visible_row(connection, jobs, job_id)
    if row is None:
        raise JobNotFoundError(f"there is no job {job_id!r}")
    return row


def start(connection: sa.Connection, job_id: str, *, worker: str | None = None, most: int = 10) -> Row | None:
    """Take a job for a worker; None when there is nothing left to do.

    A job whose workers died `most` times fails, one that was to be cancelled is.
    """
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).mappings().first()
    if row is None or row["state"] in TERMINAL:
        return None
    if row["cancel_requested"]:
        finish(connection, row, CANCELLED)
        return None
    if row["attempt"] >= most:
        died = f"the worker died {row['attempt']} times while it ran this job"
        finish(connection, row, Ending("failed", code="worker-crashed", detail=died))
        return None
    values = {"state": "running", "attempt": row["attempt"] + 1, "detail": None, "phase": "starting"}
    values |= {"done": 0, "total": 0, "started": row["started"] or time.time(), "worker": worker}
    mine = (jobs.c.id == job_id, jobs.c.attempt == row["attempt"])
    taken = connection.execute(jobs.update().where(*mine).values(**values).returning(*jobs.c))
    started = taken.mappings().first()
    if started is not None:
        tell(connection, job_id, "state", {"state": "running"})
    return started


def is_wanted(connection: sa.Connection, row: Row) -> bool | None:
    """True if the job should go on; None if it belongs to a later attempt now, or is gone."""
    cancelled = connection.scalar(sa.select(jobs.c.cancel_requested).where(*_is_running(row)))
    return None if cancelled is None else not cancelled


def _is_running(row: Row) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions that a job runs, and as the attempt that the row is of."""
    return (jobs.c.id == row["id"], jobs.c.attempt == row["attempt"], jobs.c.state == "running")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job was at a time."""

    phase: str
    done: int
    total: int
    at: float = field(default_factory=time.time)


def progress(connection: sa.Connection, row: Row, steps: Sequence[Progress]) -> None:
    """Note how far a running job is: all steps for those who follow it, the last for those who look."""
    if not steps:
        return
    last = {"phase": steps[-1].phase, "done": steps[-1].done, "total": steps[-1].total}
    changed = connection.execute(jobs.update().where(*_is_running(row)).values(**last))
    if changed.rowcount:
        told = {"job_id": row["id"], "kind": "progress"}
        connection.execute(
            job_events.insert(),
            [
                told | {"data": {"phase": s.phase, "done": s.done, "total": s.total}, "created": s.at}
                for s in steps
            ],
        )


def give_back(connection: sa.Connection, row: Row) -> None:
    """Return a running job to the queue: its worker stops. The start does not count."""
    waiting = {"state": "queued", "attempt": row["attempt"] - 1, "phase": "", "done": 0, "total": 0}
    changed = connection.execute(jobs.update().where(*_is_running(row)).values(**waiting))
    if changed.rowcount:
        tell(connection, row["id"], "state", {"state": "queued"})


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a job.

    Attributes:
        state: a terminal state.
        summary: result of a job that succeeded.
        code: failure of one that did not, as `detail` and `pointer` describe it.
        cache_key: key under which later jobs find the result; None if they do not.
    """

    state: str
    summary: Any = None
    code: str | None = None
    detail: str | None = None
    pointer: str | None = None
    cache_key: str | None = None


CANCELLED = Ending("cancelled", detail="cancelled on request")


def finish(
    connection: sa.Connection, row: Row, ending: Ending, artifacts: Mapping[str, Blob] | None = None
) -> bool:
    """Move a job to a terminal state, with its artifacts; False when it was no longer ours to end.

    The artifacts are blobs that were entered in this transaction, or are claimed.
    """
    now = time.time()
    ended = connection.execute(
        jobs.update()
        .where(jobs.c.id == row["id"], jobs.c.attempt == row["attempt"], jobs.c.state.not_in(TERMINAL))
        .values(**asdict(ending), finished=now)
    )
    if ended.rowcount != 1:
        return False
    made = {"job_id": row["id"], "role": "artifact"}
    if artifacts:
        rows = [made | {"name": n, "sha256": b.sha256, "size": b.size} for n, b in artifacts.items()]
        connection.execute(job_files.insert(), rows)
    end = {"state": ending.state, "code": ending.code, "detail": ending.detail}
    tell(connection, row["id"], "state", {k: v for k, v in end.items() if v is not None})
    counters.note_end(connection, {**row, "state": ending.state, "code": ending.code, "finished": now})
    return True


def cancel(connection: sa.Connection, job_id: str) -> Row:
    """Cancel a job that waits, ask for the end of one that runs; one that ended stays as it is."""
    row = find(connection, job_id)
    if row["state"] in WAITING:
        finish(connection, row, CANCELLED)
    elif row["state"] == "running":
        connection.execute(jobs.update().where(jobs.c.id == job_id).values(cancel_requested=True))
    return find(connection, job_id)


def delete(connection: sa.Connection, job_id: str) -> None:
    """Forget a job that ended.

    Raises:
        JobNotFinishedError: it did not end yet.
    """
    row = find(connection, job_id)
    if row["state"] not in TERMINAL:
        raise JobNotFinishedError(f"job {job_id!r} is {row['state']}; cancel it first")
    labels.forget(connection, [job_id])
    connection.execute(jobs.delete().where(jobs.c.id == job_id))


def model_paths(connection: sa.Connection, model_id: str) -> dict[str, str]:
    """Hashes of a model's files by name; the graph itself has the empty name."""
    query = sa.select(model_files.c.name, model_files.c.sha256).where(model_files.c.model_id == model_id)
    return {row.name: row.sha256 for row in connection.execute(query)}


def files(connection: sa.Connection, job_id: str, role: str) -> list[Row]:
    """Inputs or artifacts of a job, by name."""
    query = (
        sa.select(job_files)
        .where(job_files.c.job_id == job_id, job_files.c.role == role)
        .order_by(job_files.c.name)
    )
    return list(connection.execute(query).mappings())


def events_after(connection: sa.Connection, job_id: str, last: int) -> list[Row]:
    """Events of a job later than the one with that id, oldest first."""
    query = (
        sa.select(job_events)
        .where(job_events.c.job_id == job_id, job_events.c.id > last)
        .order_by(job_events.c.id)
    )
    return list(connection.execute(query).mappings())
