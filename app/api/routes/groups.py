"""Job groups: option sets times targets in one request, compared in one table."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api.http import errors, long_poll
from app.api.http.idempotency import IdempotencyKey, accept, once
from app.api.schemas.groups import ComparedJob, JobConstraints, JobGroupAnswer, JobGroupRequest
from app.api.schemas.jobs import JobOptions
from app.api.schemas.requests import drafts_of
from app.api.service import ServiceOf
from app.engine.types.errors import UnknownTargetError
from app.jobs.comparison import Constraints, best_by_target, compare
from app.jobs.errors import (
    BlobNotFoundError,
    IdempotencyKeyReusedError,
    InvalidModelError,
    JobGroupNotFoundError,
    ModelNotFoundError,
    RequestError,
    TooLargeError,
)
from app.jobs.store import groups, job_repository

router = APIRouter(prefix="/v1/job-groups", tags=["job groups"])
MOST_JOBS = 256  # of one group
GroupId = Annotated[str, Path(max_length=64, examples=["0193b0c4f5a26f1d0c5b9a2e4c3791aa"])]


def _answer_of(group: groups.Group) -> JobGroupAnswer:
    entries = compare([dict(job) for job in group.jobs], group.objective, group.constraints)
    return JobGroupAnswer(
        id=group.id,
        state="done" if group.is_over else "running",
        model=group.jobs[0]["model_id"],
        objective=group.objective,
        constraints=JobConstraints(**asdict(group.constraints)),
        counts=dict(Counter(entry.state for entry in entries)),
        jobs=[ComparedJob.model_validate(asdict(entry)) for entry in entries],
        best=next((entry.job for entry in entries if entry.rank == 1), None),
        best_by_target=best_by_target(entries),
    )


@router.post(
    "",
    summary="Optimize a model in several ways",
    status_code=202,
    responses=errors.responses(
        ModelNotFoundError,
        BlobNotFoundError,
        InvalidModelError,
        UnknownTargetError,
        IdempotencyKeyReusedError,
        RequestError,
        TooLargeError,
    ),
)
def create_job_group(
    body: JobGroupRequest, response: Response, service: ServiceOf, idempotency_key: IdempotencyKey = None
) -> JobGroupAnswer:
    """Queue a job for each option set on each target. One that fails leaves the others alone."""
    count = len(body.option_sets) * len(body.targets)
    if count > MOST_JOBS:
        raise RequestError(
            f"{len(body.option_sets)} option sets on {len(body.targets)} targets are {count} jobs, "
            f"at most {MOST_JOBS} are allowed",
            pointer="/option_sets",
        )
    with service.database.write() as connection:

        def drafts() -> list[job_repository.Draft]:
            common = (connection, service.settings, "optimize", body.model, body.targets)
            return [draft for each in _combined(body) for draft in drafts_of(*common, each)]

        group_id, fresh = once(connection, idempotency_key, body, drafts)
        if fresh:
            constraints = Constraints(**body.constraints.model_dump())
            groups.note(connection, group_id, body.objective, constraints)
        answer = _answer_of(groups.find(connection, group_id))
    accept(service, response, f"/v1/job-groups/{group_id}", fresh)
    return answer


def _combined(body: JobGroupRequest) -> list[JobGroupRequest]:
    """The request of each option set: what it sets, and the rest of the common options."""
    common = body.options.model_dump(exclude_unset=True)
    options = [JobOptions(**common | each.model_dump(exclude_unset=True)) for each in body.option_sets]
    return [body.model_copy(update={"options": each}) for each in options]


@router.get(
    "/{group_id}",
    summary="Compare the jobs of a group",
    response_model=JobGroupAnswer,
    responses=errors.responses(JobGroupNotFoundError, also=long_poll.UNCHANGED),
)
async def get_job_group(
    group_id: GroupId,
    response: Response,
    service: ServiceOf,
    wait: long_poll.Wait = None,
    if_none_match: long_poll.IfNoneMatch = None,
) -> JobGroupAnswer | Response:
    """Every job beside the others, with the best so far; with `wait`, once all have ended.

    Jobs of several targets that `createJob` made are a group too, compared by latency.
    """

    def look() -> tuple[JobGroupAnswer, bool]:
        with service.database.read() as connection:
            answer = _answer_of(groups.find(connection, group_id))
        return answer, answer.state == "done"

    return await long_poll.tagged(service, response, look, wait, if_none_match)


@router.post(
    "/{group_id}/cancel",
    summary="Cancel the jobs of a group",
    status_code=202,
    responses=errors.responses(JobGroupNotFoundError),
)
def cancel_job_group(group_id: GroupId, service: ServiceOf) -> JobGroupAnswer:
    """End all its jobs that have not ended."""
    with service.database.write() as connection:
        jobs = groups.find(connection, group_id).jobs
        for job in jobs:
            job_repository.cancel(connection, job["id"])
        answer = _answer_of(groups.find(connection, group_id))
    for job in jobs:
        if job["state"] in job_repository.WAITING:
            service.dispatcher.withdraw(job["id"])
    return answer
