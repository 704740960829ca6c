"""Pages of results: the report of a job, the capacity of its deployment, and jobs side by side."""

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from app.api.pages.rows import options_of
from app.api.routes.jobs import answer_of, find_optimization, optimizations
from app.api.schemas.jobs import JobAnswer
from app.api.service import Service, ServiceOf
from app.jobs.errors import JobNotFinishedError, RequestError
from app.jobs.store import job_repository
from app.jobs.store.database import jobs
from app.web.rendering import page

_COLUMNS = 8  # jobs side by side
_OPERATORS = 12  # rows of the comparison
_SLOWEST = 30  # bars

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Column:
    """A job beside others; `operators` has seconds by operator, `options` what is not as by default.

    `comparison` is that of the summary with its peers by name.
    """

    job: JobAnswer
    summary: dict[str, Any]
    comparison: dict[str, Any]
    operators: dict[str, float]
    options: dict[str, Any]


def _column(service: Service, job: JobAnswer, options: dict[str, Any]) -> Column:
    summary = job.summary or {}
    compared = summary.get("comparison") or {}
    peers = {peer["name"]: peer for peer in compared.get("peers", ())}
    operators = dict(_by_operator(_read(service, job, "timings.json").get("operators", [])))
    return Column(job, summary, compared | {"peers": peers}, operators, options)


@router.get("/jobs/{job_id}/report")
def show_report(request: Request, job_id: str, service: ServiceOf) -> Response:
    """The plan of a job that succeeded: its graph, memory, times, and why."""
    job = _find(service, [job_id])[0]
    if job.state != "succeeded":
        raise JobNotFinishedError(f"job {job_id!r} is {job.state}: it has no report")
    with service.database.read() as connection:
        same_model = (jobs.c.model_id == job.model, jobs.c.state == "succeeded")
        others = connection.scalar(optimizations(sa.func.count()).where(*same_model))
    timings = _read(service, job, "timings.json")
    operators = timings.get("operators", [])
    return page(
        request,
        "report.html",
        job=job,
        name=job.model_name,
        others=(others or 1) - 1,
        summary=job.summary or {},
        timings=timings,
        memory=_read(service, job, "memory.json", but=("buffers", "steps", "outside")),
        operators=operators[:_SLOWEST],
        slowest=max((o["seconds"] for o in operators), default=0.0),
        hidden=max(len(operators) - _SLOWEST, 0),
        kinds=_by_operator(operators),
        made={artifact.name for artifact in job.artifacts},
    )


@router.get("/jobs/{job_id}/capacity")
def show_capacity(request: Request, job_id: str, service: ServiceOf) -> Response:
    """The page that asks for the best deployment of a job that succeeded."""
    job = _find(service, [job_id])[0]
    if job.state != "succeeded":
        raise JobNotFinishedError(f"job {job_id!r} is {job.state}: there is nothing to deploy")
    return page(request, "capacity.html", job=job, name=job.model_name)


@router.get("/compare")
def compare(
    request: Request, service: ServiceOf, jobs: str = "", model: str = "", group: str = ""
) -> Response:
    """Jobs of one model side by side: those that are named, of a group, or the latest of each target."""
    found = _asked(service, jobs, model, group)
    if len({job.model for job in found}) > 1:
        raise RequestError("jobs: expected jobs of one model", pointer="query:jobs")
    with service.database.read() as connection:
        asked = {job.id: options_of(job_repository.find(connection, job.id)) for job in found[:_COLUMNS]}
    columns = [_column(service, job, asked[job.id]) for job in found[:_COLUMNS]]
    total: dict[str, float] = defaultdict(float)
    for op, seconds in itertools.chain(*(c.operators.items() for c in columns)):
        total[op] += seconds
    heaviest = sorted(total, key=lambda op: (-total[op], op))[:_OPERATORS]
    return page(
        request,
        "compare.html",
        name=found[0].model_name if found else "",
        columns=columns,
        heaviest=heaviest,
        peers=list(dict.fromkeys(name for c in columns for name in c.comparison["peers"])),
        most=max((c.operators.get(op, 0.0) for c in columns for op in heaviest), default=0.0),
        left_out=max(len(found) - _COLUMNS, 0),
    )


def _asked(service: Service, named: str, model: str, group: str) -> list[JobAnswer]:
    if named:
        return [job for job in _find(service, named.split(",")[:_COLUMNS]) if job.state == "succeeded"]
    if not model and not group:
        return []
    column, value = (jobs.c.group_id, group) if group else (jobs.c.model_id, model)
    query = optimizations().where(column == value, jobs.c.state == "succeeded")
    with service.database.read() as connection:
        rows = connection.execute(query.order_by(jobs.c.id.desc()).limit(200)).mappings().all()
        answers = [answer_of(connection, service, row) for row in rows]
    if group:
        return answers[::-1]
    latest = {job.target: job for job in answers[::-1]}
    return sorted(latest.values(), key=lambda job: job.created)


def _find(service: Service, ids: list[str]) -> list[JobAnswer]:
    with service.database.read() as connection:
        rows = [find_optimization(connection, job_id) for job_id in ids]
        return [answer_of(connection, service, row) for row in rows]


def _read(service: Service, job: JobAnswer, name: str, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """A document that a job made, without some of its parts; nothing where it made none."""
    for artifact in job.artifacts:
        if artifact.name == name:
            document: dict[str, Any] = json.loads(service.blobs.path(artifact.sha256).read_bytes())
            return {key: value for key, value in document.items() if key not in but}
    return {}


def _by_operator(operators: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Seconds by operator, most first; a fused step counts for its first operator."""
    seconds: dict[str, float] = defaultdict(float)
    for row in operators:
        seconds[row["op"].partition("+")[0]] += row["seconds"]
    return sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
