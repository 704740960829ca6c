"""From the body of a request to the jobs it asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from app.api.schemas.jobs import BindingsRequest, JobLimits, JobOptions, JobRequest
from app.engine.types.errors import UnknownTargetError
from app.engine.types.target import Target, host, is_host, presets
from app.jobs.errors import JobNotFinishedError, RequestError
from app.jobs.fingerprint import target_queue
from app.jobs.queue.dispatch import CPU_QUEUE, INSPECT_QUEUE
from app.jobs.store import job_repository, labels, model_repository, results
from app.jobs.store.job_repository import Draft
from app.jobs.worker.child_request import Limits
from app.settings import Settings


def known_targets(connection: sa.Connection) -> dict[str, Target]:
    """All targets by name; a built-in one cannot be described anew."""
    return model_repository.described_targets(connection) | dict(presets())


def asked(options: JobOptions) -> dict[str, Any]:
    """Engine options of a request.

    Raises:
        UnknownBackendError: a backend is asked for that there is not.
    """
    return {k: v for k, v in asdict(options.to_options()).items() if k in JobOptions.model_fields}


def drafts_of(
    connection: sa.Connection,
    settings: Settings,
    kind: str,
    model_id: str,
    targets: Sequence[str],
    body: BindingsRequest,
) -> list[Draft]:
    """One job for each target.

    Raises:
        UnknownTargetError: no target has that name.
        RequestError: a limit asked for exceeds that of the service.
    """
    known = known_targets(connection)
    limits = limits_of(settings, kind, body.limits)
    drafts = []
    for i, name in enumerate(targets):
        if name not in known:
            pointer = "/target" if kind == "validate" else f"/targets/{i}"
            raise UnknownTargetError(
                f"unknown target {name!r}; known are {', '.join(known)}", pointer=pointer
            )
        target = known[name]
        waits = body.options.timings == "measured" and not is_host(target, host())
        queue = INSPECT_QUEUE if kind == "validate" else target_queue(target) if waits else CPU_QUEUE
        request = {
            # This machine is described where the job runs, all others where it is asked for.
            "target": None if name == "host" else asdict(target),
            "options": asked(body.options),
            "bindings": {
                "shapes": body.input_shapes,
                **_optional_bindings(body),
                "values": body.input_values,
                "ranges": {k: list(v) for k, v in body.input_ranges.items()},
                **storage_of(body),
            },
            "limits": asdict(limits),
        }
        key, source = None, None
        if kind == "optimize":
            key = results.question(connection, settings.engine, model_id, request, body.inputs)
            if isinstance(body, JobRequest) and body.reuse:
                source = results.known(connection, results.filed(key, request, settings.data / "kernels"))
        drafts.append(
            Draft(
                kind=kind,
                model_id=model_id,
                target=name,
                queue=queue,
                request=request,
                labels=body.labels if isinstance(body, JobRequest) else {},
                cache_key=key,
                cached_from=source,
                inputs=body.inputs,
                state="waiting_for_target" if waits and kind == "optimize" else "queued",
                detail=_waiting_for(name) if waits else None,
            )
        )
    return drafts


def _optional_bindings(body: BindingsRequest) -> dict[str, Any]:
    """The fields `shape_histogram` and `samples` of bindings, where a request has them."""
    entries = [entry.model_dump() for entry in body.shape_histogram]
    given = {"shape_histogram": entries, "samples": body.samples}
    return {name: value for name, value in given.items() if value}


def draft_again(
    connection: sa.Connection,
    settings: Settings,
    job: job_repository.Row,
    changed: Mapping[str, Any] | None = None,
) -> Draft:
    """A job that asks what another one asked, which has ended.

    With `changed` options it may be one whose result is known.

    Raises:
        JobNotFinishedError: it did not end yet.
    """
    if job["state"] not in job_repository.TERMINAL:
        raise JobNotFinishedError(f"job {job['id']!r} is {job['state']}; it needs no other try yet")
    inputs = {file["name"]: file["sha256"] for file in job_repository.files(connection, job["id"], "input")}
    waits = job["queue"] not in (CPU_QUEUE, INSPECT_QUEUE)
    request = {**job["request"], "options": {**(job["request"].get("options") or {}), **(changed or {})}}
    key = results.question(connection, settings.engine, job["model_id"], request, inputs)
    source = None
    if changed:
        source = results.known(connection, results.filed(key, request, settings.data / "kernels"))
    return Draft(
        kind=job["kind"],
        model_id=job["model_id"],
        target=job["target"],
        queue=job["queue"],
        request=request,
        inputs=inputs,
        state="waiting_for_target" if waits else "queued",
        detail=_waiting_for(job["target"]) if waits else None,
        labels=labels.of(connection, [job["id"]]).get(job["id"], {}),
        cache_key=key,
        cached_from=source,
    )


def _waiting_for(target: str) -> str:
    return f"waits for a worker that is target {target!r}"


def limits_of(settings: Settings, kind: str, asked: JobLimits) -> Limits:
    """Limits of a process: those that are requested, at most what the service allows.

    Raises:
        RequestError: more is asked for.
    """
    seconds = settings.job_seconds if kind == "optimize" else settings.inspect_seconds
    rows = (
        ("seconds", asked.seconds, seconds, "s"),
        ("memory_bytes", asked.memory_bytes, settings.job_memory_bytes, "byte"),
    )
    for name, value, most, unit in rows:
        if value is not None and value > most:
            raise RequestError(
                f"{name}: at most {most:g} {unit} are allowed here, found {value:g} {unit}",
                pointer=f"/limits/{name}",
            )
    return Limits(
        asked.seconds or seconds,
        asked.memory_bytes or settings.job_memory_bytes,
        settings.max_artifact_bytes,
    )


def storage_of(body: BindingsRequest) -> dict[str, Any]:
    """The fields `storage` and `value_storage` of bindings, where a request declares storage types."""
    stated = {"storage": body.input_storage, "value_storage": body.value_storage}
    return {
        field: {k: asdict(v.to_declared()) for k, v in found.items()}
        for field, found in stated.items()
        if found
    }
