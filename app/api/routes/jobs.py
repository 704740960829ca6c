"""Jobs: ask for them, follow them, cancel them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.http import errors, long_poll, paging
from app.api.http.idempotency import IdempotencyKey, accept, once
from app.api.routes.events import stream
from app.api.schemas.fields import State
from app.api.schemas.jobs import (
    Artifact,
    ExportRequest,
    GroupAnswer,
    JobAnswer,
    JobList,
    JobRequest,
    Progress,
)
from app.api.schemas.models import LabelsRequest
from app.api.schemas.requests import draft_again, drafts_of
from app.api.service import Service, ServiceOf
from app.engine.types.errors import UnknownTargetError
from app.jobs.errors import (
    BlobNotFoundError,
    IdempotencyKeyReusedError,
    InvalidModelError,
    JobNotFinishedError,
    JobNotFoundError,
    ModelNotFoundError,
    RequestError,
    TooLargeError,
)
from app.jobs.store import job_repository, labels, model_repository
from app.jobs.store.auth_context import visible
from app.jobs.store.database import jobs, models
from app.jobs.worker.child_request import ARTIFACTS

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
JobId = Annotated[str, Path(max_length=64, examples=["0193b0c4f5a26f1d0c5b9a2e4c3791aa"])]


def answer_of(connection: sa.Connection, service: Service, row: job_repository.Row) -> JobAnswer:
    """A job as the API tells it."""
    job_id, model_id = row["id"], row["model_id"]
    address = service.address(f"/v1/jobs/{job_id}/artifacts")
    return JobAnswer.of(
        row,
        group=row["group_id"],
        model=model_id,
        model_name=model_repository.names_of(connection, [model_id])[model_id],
        progress=Progress.of(row),
        artifacts=[
            Artifact.of(f, url=f"{address}/{f['name']}", media_type=ARTIFACTS[f["name"]])
            for f in job_repository.files(connection, job_id, "artifact")
        ],
        labels=labels.of(connection, [job_id]).get(job_id, {}),
    )


def optimizations(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Query of those jobs of the caller that the API and the pages list: these columns, or all."""
    query = sa.select(*columns) if columns else sa.select(jobs)
    return query.where(jobs.c.kind == "optimize", visible(jobs.c.owner))


def find_optimization(connection: sa.Connection, job_id: str) -> job_repository.Row:
    """One job that the API and the pages show.

    Raises:
        JobNotFoundError: there is none of that id.
    """
    row = job_repository.find(connection, job_id)
    if row["kind"] != "optimize":
        raise JobNotFoundError(f"there is no job {job_id!r}")
    return row


def _find(service: Service, job_id: str) -> JobAnswer:
    with service.database.read() as connection:
        return answer_of(connection, service, find_optimization(connection, job_id))


@router.post(
    "",
    summary="Optimize a model",
    status_code=202,
    responses=errors.responses(
        ModelNotFoundError,
        BlobNotFoundError,
        InvalidModelError,
        UnknownTargetError,
        IdempotencyKeyReusedError,
        TooLargeError,
    ),
)
def create_job(
    body: JobRequest, response: Response, service: ServiceOf, idempotency_key: IdempotencyKey = None
) -> JobAnswer | GroupAnswer:
    """Queue an optimization for each target: a job for one, a group of jobs for several.

    A job that has the same model, target, options, engine and timings as one that succeeded has its
    result at once: it is `succeeded` in this answer, and `cached_from` names the other.
    """
    with service.database.write() as connection:
        group, fresh = once(
            connection,
            idempotency_key,
            body,
            lambda: drafts_of(connection, service.settings, "optimize", body.model, body.targets, body),
        )
        rows = connection.execute(sa.select(jobs).where(jobs.c.group_id == group).order_by(jobs.c.id))
        answers = [answer_of(connection, service, row) for row in rows.mappings().all()]
    if len(answers) == 1:
        accept(service, response, f"/v1/jobs/{answers[0].id}", fresh)
        return answers[0]
    accept(service, response, f"/v1/job-groups/{group}", fresh)
    return GroupAnswer(id=group, jobs=answers)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Query parameters of a list of jobs."""

    state: State | None = None
    target: Annotated[str | None, Query(max_length=255)] = None
    model: Annotated[str | None, Query(max_length=64)] = None
    group: Annotated[str | None, Query(max_length=64)] = None
    label: paging.LabelQuery = None
    q: paging.TextQuery = None

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        """Conditions on rows of jobs."""
        called = models.c.name.icontains(self.q or "", autoescape=True)
        named = sa.exists().where(models.c.id == jobs.c.model_id, called)
        yield from labels.matching(jobs.c.id, self.label or (), self.q, named)
        for column, value in (
            (jobs.c.state, self.state),
            (jobs.c.target, self.target),
            (jobs.c.model_id, self.model),
            (jobs.c.group_id, self.group),
        ):
            if value is not None:
                yield column == value


def page_of(
    connection: sa.Connection, wanted: Wanted, limit: int, cursor: str | None
) -> tuple[Sequence[job_repository.Row], str | None]:
    """Rows of one page of a list of jobs, latest first, and the cursor of the next page."""
    query = optimizations().where(*wanted.conditions()).order_by(jobs.c.id.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(jobs.c.id < paging.decode_cursor(cursor))
    rows = connection.execute(query).mappings().all()
    return rows[:limit], paging.encode_cursor(rows[limit - 1]["id"]) if len(rows) > limit else None


@router.get("", summary="List jobs", responses=errors.responses(RequestError))
def list_jobs(
    request: Request,
    response: Response,
    service: ServiceOf,
    wanted: Annotated[Wanted, Depends()],
    limit: paging.Limit = 50,
    cursor: paging.Cursor = None,
) -> JobList:
    """Jobs, latest first, in pages."""
    with service.database.read() as connection:
        rows, following = page_of(connection, wanted, limit, cursor)
        answers = [answer_of(connection, service, row) for row in rows]
    paging.link_next(response, service, "/v1/jobs", request, following)
    return JobList(jobs=answers, next=following)


@router.get(
    "/{job_id}",
    summary="Look at a job",
    response_model=JobAnswer,
    responses=errors.responses(JobNotFoundError, also=long_poll.UNCHANGED),
)
async def get_job(
    job_id: JobId,
    response: Response,
    service: ServiceOf,
    wait: long_poll.Wait = None,
    if_none_match: long_poll.IfNoneMatch = None,
) -> JobAnswer | Response:
    """Its state, progress, and in the end its artifacts, or the code of its failure."""

    def look() -> tuple[JobAnswer, bool]:
        answer = _find(service, job_id)
        return answer, answer.state in job_repository.TERMINAL

    return await long_poll.tagged(service, response, look, wait, if_none_match)


@router.get(
    "/{job_id}/events",
    summary="Follow a job",
    response_class=Response,
    responses=errors.responses(
        JobNotFoundError,
        also={
            200: {
                "description": "Server-sent events `state` and `progress`; the stream ends with the job.",
                "content": {
                    "text/event-stream": {
                        "schema": {"type": "string"},
                        "example": 'id: 7\nevent: progress\ndata: {"phase": "fuse", "done": 1}\n\n',
                    }
                },
            },
            204: {"description": "The job has ended and no event is left."},
        },
    ),
)
async def stream_job_events(
    job_id: JobId,
    service: ServiceOf,
    last_event_id: Annotated[
        int, Header(ge=0, le=2**63 - 1, description="Events up to this id are left out.")
    ] = 0,
) -> Response:
    """Events from the first on, or from the one after `Last-Event-ID`, as they happen."""
    await run_in_threadpool(_find, service, job_id)
    return await stream(service, job_id, last_event_id)


@router.post(
    "/{job_id}/cancel", summary="Cancel a job", status_code=202, responses=errors.responses(JobNotFoundError)
)
def cancel_job(job_id: JobId, service: ServiceOf) -> JobAnswer:
    """End a job: one that waits at once, one that runs within seconds. One that ended stays as it is."""
    before = _find(service, job_id)
    with service.database.write() as connection:
        answer = answer_of(connection, service, job_repository.cancel(connection, job_id))
    if before.state in job_repository.WAITING and answer.state == "cancelled":
        service.dispatcher.withdraw(job_id)
    return answer


@router.post(
    "/{job_id}/retry",
    summary="Run a job again",
    status_code=202,
    responses=errors.responses(JobNotFoundError, JobNotFinishedError, ModelNotFoundError, BlobNotFoundError),
)
def retry_job(job_id: JobId, response: Response, service: ServiceOf) -> JobAnswer:
    """Ask again what a job asked that has ended: a new job, in the same group."""
    return _asked_again(job_id, response, service, {})


@router.post(
    "/{job_id}/export",
    summary="Export what a job planned",
    status_code=202,
    responses=errors.responses(JobNotFoundError, JobNotFinishedError, ModelNotFoundError, BlobNotFoundError),
)
def export_job(job_id: JobId, body: ExportRequest, response: Response, service: ServiceOf) -> JobAnswer:
    """Ask again what a job asked that has ended, with libraries: a new job, in the same group.

    Where an equal one succeeded already, the answer has its result at once. A job that named no backends is
    planned with `numba-cpu` alone, whose kernels can leave.
    """
    changed = {"export": list(dict.fromkeys(body.formats)), "export_name": body.name}
    return _asked_again(job_id, response, service, changed)


def _asked_again(job_id: str, response: Response, service: Service, changed: Mapping[str, Any]) -> JobAnswer:
    """A new job that asks what an ended one asked, with changed options."""
    _find(service, job_id)
    with service.database.write() as connection:
        job = job_repository.find(connection, job_id)
        draft = draft_again(connection, service.settings, job, changed)
        fresh = job_repository.create(connection, [draft], group=job["group_id"])
        answer = answer_of(connection, service, job_repository.find(connection, fresh[0]))
    accept(service, response, f"/v1/jobs/{answer.id}", fresh)
    return answer


@router.delete(
    "/{job_id}",
    summary="Delete a job",
    status_code=204,
    responses=errors.responses(JobNotFoundError, JobNotFinishedError),
)
def delete_job(job_id: JobId, service: ServiceOf) -> None:
    """Forget a job that ended, and free its artifacts."""
    _find(service, job_id)
    with service.database.write() as connection:
        job_repository.delete(connection, job_id)
    service.blobs.free()


@router.put("/{job_id}/labels", summary="Label a job", responses=errors.responses(JobNotFoundError))
def label_job(job_id: JobId, body: LabelsRequest, service: ServiceOf) -> JobAnswer:
    """Replace its labels, by which it can be found."""
    _find(service, job_id)
    with service.database.write() as connection:
        labels.put(connection, job_id, body.labels)
    return _find(service, job_id)
