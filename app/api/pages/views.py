"""Pages of what there is: models, jobs, targets, keys."""

import itertools
import time
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response

from app.api.pages.rows import options_of, row_of
from app.api.routes import models as models_api
from app.api.routes import operators as operators_api
from app.api.routes import targets as targets_api
from app.api.routes.jobs import Wanted, answer_of, find_optimization, optimizations, page_of
from app.api.schemas.jobs import JobOptions
from app.api.schemas.requests import known_targets
from app.api.service import Service, ServiceOf
from app.engine.types.backend_names import names as backend_names
from app.jobs.fingerprint import target_queue
from app.jobs.store import job_repository, keys, labels, model_repository
from app.jobs.store.auth_context import visible
from app.jobs.store.database import jobs, workers
from app.web.rendering import page

_ROWS = 25
_RECENT = 6
_EVENTS = 400  # of a job's log, the latest
# In the order in which a job goes through them; a test compares with `app.engine.entry.optimize.PHASES`.
PHASES = ("precision", "load", "canonicalize", "tune", "plan", "compile", "verify", "benchmark", "report")
ABOUT = {
    "optimized.onnx": "the model, canonical and folded, in plain operators",
    "optimized.onnx.data": "its weights, where they were to be external data",
    "optimized.functions.onnx": "the plan over blocked tensors, as functions",
    "optimized.inlined.onnx": "the same without functions",
    "plan.json": "every column of the plan",
    "plan.txt": "the plan as text, one line a step",
    "memory.json": "every buffer: offset, lifespan, reason",
    "memory.html": "the memory map as one page",
    "timings.json": "times of the whole and of each step",
    "trace.json": "the steps on a time line, for Perfetto",
    "decisions.json": "candidates, costs and rejections of each step",
    "graph.json": "the graph with a place for every step",
    "report.html": "the report as one page that needs nothing else",
    "outputs.npz": "what the model computed from the given inputs",
    "quantized.onnx": "the model in the precisions of its error budget, as plain ONNX",
    "precision.json": "precision of each product: seconds, errors, alternatives",
    "library.tar.gz": "the program as a shared library for C, with objects, a header and an example",
    "module.whl": "the program as a Python module that needs numpy alone",
    "operator.tar.gz": "the program as an operator of onnxruntime: a graph and the library that it registers",
    "static.tar.gz": "the program as one object for a device without an operating system",
    "model.onnx": "a model that was made of others",
    "model-symbol.json": "the same as a symbol of MXNet",
    "model-0000.params": "parameters of the symbol",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
def landing(request: Request, service: ServiceOf) -> Response:
    """Start page: the service, its state and its last jobs."""
    with service.database.read() as connection:
        recent, _ = page_of(connection, Wanted(), _RECENT, None)
        rows = [row_of(connection, row) for row in recent]
        counted = optimizations(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
        counts = {str(state): int(count) for state, count in connection.execute(counted)}
        alive = len(_workers(connection, service, alive=True))
        locked = keys.exist(connection)
    return page(
        request,
        "landing.html",
        jobs=rows,
        counts={state: counts.get(state, 0) for state in job_repository.STATES},
        workers=alive,
        locked=locked,
    )


@router.get("/models")
def list_models(
    request: Request, service: ServiceOf, q: str | None = None, cursor: str | None = None
) -> Response:
    """The place to drop a model, and those that were."""
    found = models_api.list_models(
        request, Response(), service, label=None, q=q or None, limit=_ROWS, cursor=cursor
    )
    limit = service.settings.max_model_bytes
    return page(
        request, "models.html", models=found.models, next=found.next, cursor=cursor, q=q or "", limit=limit
    )


@router.get("/models/{model_id}")
def show_model(request: Request, model_id: str, service: ServiceOf) -> Response:
    """Page of a model: its content, and the form that asks for its optimization."""
    with service.database.read() as connection:
        row = model_repository.find_model(connection, model_id)
        files = job_repository.model_paths(connection, model_id)
        told = labels.of(connection, [model_id]).get(model_id, {})
        found, _ = page_of(connection, Wanted(model=model_id), _ROWS, None)
        rows = [row_of(connection, job) for job in found]
    return page(
        request,
        "model.html",
        model=row,
        name=row["name"] or model_id[:12],
        labels=told,
        files=files,
        report=row["report"] or {},
        jobs=rows,
        targets=targets_api.list_targets(service).targets,
        backends=backend_names(),
        defaults=JobOptions(),
        choices=_choices(),
        limits=service.settings,
    )


def _choices() -> dict[str, list[str]]:
    """The values of options that are one of a few, as the API describes them."""
    found = JobOptions.model_json_schema()["properties"]
    return {name: row["enum"] for name, row in found.items() if "enum" in row}


@router.get("/jobs")
def list_jobs(
    request: Request,
    service: ServiceOf,
    state: str | None = None,
    target: str | None = None,
    label: str | None = None,
    group: str | None = None,
    cursor: str | None = Query(None, max_length=200),
) -> Response:
    """Jobs, latest first; rows change as the jobs do."""
    filters = {"state": state or "", "target": target or "", "label": label or "", "group": group or ""}
    given: dict[str, Any] = {name: value or None for name, value in filters.items()}
    wanted = Wanted(**given | {"label": [label] if label else None})
    with service.database.read() as connection:
        found, following = page_of(connection, wanted, _ROWS, cursor or None)
        rows = [row_of(connection, row) for row in found]
    return page(
        request,
        "jobs.html",
        jobs=rows,
        next=following,
        cursor=cursor,
        filters=filters,
        filtered=any(filters.values()),
        states=job_repository.STATES,
        targets=[t.name for t in targets_api.list_targets(service).targets],
    )


@router.get("/jobs/{job_id}")
def show_job(request: Request, job_id: str, service: ServiceOf) -> Response:
    """One job: how far it is, what it made, or why it failed."""
    with service.database.read() as connection:
        row = find_optimization(connection, job_id)
        answer = answer_of(connection, service, row)
        events = job_repository.events_after(connection, job_id, 0)
        siblings = connection.scalar(
            sa.select(sa.func.count()).select_from(jobs).where(jobs.c.group_id == row["group_id"])
        )
    return page(
        request,
        "job.html",
        job=answer,
        row=row_of_job(row),
        name=answer.model_name,
        siblings=siblings,
        phases=_phases(events, row),
        events=[dict(e) for e in events[-_EVENTS:]],
        last=events[-1]["id"] if events else 0,
        began=events[0]["created"] if events else row["created"],
        made={artifact.name for artifact in answer.artifacts},
        about=ABOUT,
    )


def row_of_job(row: job_repository.Row) -> dict[str, Any]:
    """Facts of a job that pages show and the API does not."""
    return {
        "options": options_of(row),
        "bindings": {k: v for k, v in (row["request"].get("bindings") or {}).items() if v},
        "limits": row["request"].get("limits") or {},
        "attempt": row["attempt"],
        "worker": row["worker"],
        "queue": row["queue"],
    }


def _phases(events: list[job_repository.Row], row: job_repository.Row) -> list[dict[str, Any]]:
    """Each phase with its state and how long it took, from the first event of it to that of the next."""
    begun: dict[str, float] = {}
    for event in events:
        phase = str(event["data"].get("phase")).partition(":")[0]  # what follows tells of it
        if phase in PHASES and event["kind"] == "progress":
            begun.setdefault(phase, event["created"])
    order = sorted(begun, key=begun.__getitem__)
    ends = {a: begun[b] for a, b in itertools.pairwise(order)}
    ended = row["finished"]
    found = []
    for phase in PHASES:
        state = "skipped" if ended else "ahead"
        if phase in begun:
            state = (
                "done" if phase in ends or row["state"] == "succeeded" else "now" if not ended else "stopped"
            )
        until = ends.get(phase, ended)
        seconds = until - begun[phase] if phase in begun and until else None
        found.append({"name": phase, "state": state, "seconds": seconds})
    return found


@router.get("/targets")
def list_targets(request: Request, service: ServiceOf) -> Response:
    """Machines that jobs may be for, and workers that run them."""
    with service.database.read() as connection:
        running = _workers(connection, service, alive=False)
        counted = (
            sa.select(jobs.c.target, sa.func.count())
            .where(jobs.c.state == "waiting_for_target", visible(jobs.c.owner))
            .group_by(jobs.c.target)
        )
        waiting = {str(target): int(count) for target, count in connection.execute(counted)}
        known = known_targets(connection)
    return page(
        request,
        "targets.html",
        targets=targets_api.list_targets(service).targets,
        measured={target_queue(target): name for name, target in reversed(known.items())},
        workers=running,
        waiting=waiting,
        dead=service.settings.dead_seconds,
    )


@router.get("/operators")
def list_operators(request: Request, service: ServiceOf, level: str = "") -> Response:
    """The core operators, of all levels or of one."""
    found = operators_api.list_operators(
        service, int(level) if level.isdecimal() and len(level) == 1 else None
    )
    return page(request, "operators.html", found=found, level=level)


@router.get("/operators/{name}")
def show_operator(request: Request, name: str, service: ServiceOf) -> Response:
    """Page of a core operator."""
    levels = {row["level"]: row["title"] for row in service.core_operators.document()["levels"]}
    found = operators_api.get_operator(name, service)
    return page(request, "operator.html", op=found, level=levels[found["level"]])


def _workers(connection: sa.Connection, service: Service, *, alive: bool) -> list[dict[str, Any]]:
    query = sa.select(workers).order_by(workers.c.id)
    if alive:
        query = query.where(workers.c.seen > time.time() - service.settings.dead_seconds)
    return [dict(row) for row in connection.execute(query).mappings()]


@router.get("/keys")
def list_keys(request: Request, service: ServiceOf) -> Response:
    """Keys, for administrators."""
    with service.database.read() as connection:
        found = [dict(row) for row in keys.listed(connection)]
    return page(request, "keys.html", keys=found)
