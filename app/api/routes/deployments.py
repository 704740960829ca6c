"""Deployed models: made of jobs, listed, deleted; the best way to deploy one.

Requests to them are `app.api.routes.inference`'s.
"""

import subprocess
from dataclasses import asdict
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Response
from starlette.concurrency import run_in_threadpool

from app.api import http_costs
from app.api.http import errors, long_poll
from app.api.routes.jobs import JobId
from app.api.schemas.deployments import (
    CapacityAnswer,
    CapacityRequest,
    DeploymentAnswer,
    DeploymentList,
    DeployRequest,
)
from app.api.schemas.jobs import JobLimits
from app.api.schemas.requests import limits_of
from app.api.service import Service, ServiceOf
from app.jobs.errors import (
    DeploymentExistsError,
    DeploymentNotFoundError,
    JobNotFinishedError,
    JobNotFoundError,
    ModelNotFoundError,
    NoAnswerError,
    NotDeployableError,
    OperationFailedError,
    TooManyError,
)
from app.jobs.queue.dispatch import CPU_QUEUE
from app.jobs.store import deployments, job_repository

router = APIRouter(prefix="/v1", tags=["serving"])
_LOCK = 2  # key of the lock held while versions are given
_WAIT_MARGIN = 30.0  # seconds for a job to find a free worker


def _answer_of(service: Service, row: deployments.Row) -> DeploymentAnswer:
    known = service.deployed_models.get(row["id"])
    client = None if known is None else known.client
    return DeploymentAnswer.of(
        row,
        version=str(row["version"]),
        job=row["job_id"],
        model=row["model_id"],
        **deployments.serving_of(row),
        state="starting" if client is None or client.state == "deleted" else client.state,
        detail=None if client is None else client.detail or None,
        programs=0 if client is None else client.programs,
        url=service.address(f"/v2/models/{row['name']}/versions/{row['version']}"),
    )


@router.post(
    "/jobs/{job_id}/deploy",
    summary="Deploy what a job made",
    status_code=201,
    responses=errors.responses(
        JobNotFoundError,
        JobNotFinishedError,
        NotDeployableError,
        ModelNotFoundError,
        DeploymentExistsError,
        TooManyError,
        also={200: {"model": DeploymentAnswer, "description": "The job was deployed so already."}},
    ),
)
async def deploy_job(
    job_id: JobId, body: DeployRequest, response: Response, service: ServiceOf
) -> DeploymentAnswer:
    """Let the model answer inferences under a name, in a process of its own, also after a restart.

    Each of its `instances` runs one inference at a time with the threads of the job, on cores of its own
    if there are several; they share weights and a queue. With `batch_sizes` requests of the same shapes are
    computed together, where that is proved to give each what it gets alone; else the model is `failed`. It
    is `starting` at first. It needs the job no more, and stays until it is deleted.
    """
    settings = service.settings

    def deploy() -> tuple[deployments.Row, bool]:
        with service.database.write() as connection:
            service.database.lock(connection, _LOCK)
            most, most_of_all = settings.max_deployments_per_key, settings.max_deployments
            return deployments.create(
                *(connection, job_id, body.name, body.version),
                serving=body.serving,
                most=most,
                most_of_all=most_of_all,
            )

    row, is_new = await run_in_threadpool(deploy)
    await service.deployed_models.refresh()
    response.status_code = 201 if is_new else 200
    answer = _answer_of(service, row)
    response.headers["location"] = answer.url
    return answer


@router.post(
    "/jobs/{job_id}/capacity",
    summary="Find the best deployment of what a job made",
    responses=errors.responses(
        JobNotFoundError,
        JobNotFinishedError,
        NotDeployableError,
        ModelNotFoundError,
        OperationFailedError,
        NoAnswerError,
    ),
)
async def find_capacity(job_id: JobId, body: CapacityRequest, service: ServiceOf) -> CapacityAnswer:
    """Find instances, threads and batches that answer most requests within bounds, in a limited process.

    A few configurations are measured under load, latencies under random arrivals of these and of the others
    are predicted, and the chosen one is verified by such a load, on cores that nothing else should use
    meanwhile. With `over_http` threads use the processor as a client and the API would: what a request costs
    them is measured when it is needed first on a machine, which takes some seconds more.
    """
    http = await _http_costs(service) if body.over_http else None

    def drafted(connection: sa.Connection) -> list[job_repository.Draft]:
        job = deployments.deployable(connection, job_id)
        latency = body.latency
        asked = {
            "percentile": None if latency is None else latency.percentile,
            "seconds": None if latency is None else latency.seconds,
            "memory_bytes": body.memory_bytes,
            "answer_seconds": body.answer_seconds,
            "http": http,
        }
        request = {
            "options": deployments.resolved_options(job),
            "bindings": deployments.resolved_bindings(job),
            "limits": asdict(limits_of(service.settings, "capacity", JobLimits())),
            "capacity": asked,
            "model": deployments.quantized(connection, job),
        }
        given = {f["name"]: f["sha256"] for f in job_repository.files(connection, job_id, "input")}
        draft = job_repository.Draft("capacity", job["model_id"], "host", CPU_QUEUE, request, inputs=given)
        return [draft]

    row = await long_poll.ended(service, drafted, service.settings.inspect_seconds + _WAIT_MARGIN)
    if row["state"] != "succeeded":
        code = row["code"] or "cancelled"
        raise OperationFailedError(row["detail"] or code, code=code, pointer=row["pointer"] or "")
    return CapacityAnswer.model_validate(row["summary"])


async def _http_costs(service: Service) -> list[http_costs.Row]:
    try:
        return await run_in_threadpool(http_costs.costs, service.settings)
    except subprocess.SubprocessError as error:
        detail = f"what requests over HTTP cost could not be measured: {error}"
        raise OperationFailedError(detail, code="internal-error") from error


@router.get("/deployments", summary="List deployed models")
def list_deployments(service: ServiceOf) -> DeploymentList:
    """All versions of all names, and how their processes are."""
    with service.database.read() as connection:
        rows = deployments.listed(connection)
    return DeploymentList(deployments=[_answer_of(service, row) for row in rows])


@router.delete(
    "/deployments/{name}",
    summary="Delete a deployed model",
    status_code=204,
    responses=errors.responses(DeploymentNotFoundError),
)
async def delete_deployment(
    name: Annotated[str, Path(max_length=63, examples=["resnet50"])],
    service: ServiceOf,
    version: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only this one.")] = None,
) -> None:
    """End the processes of a name, or of one version. The jobs stay."""

    def delete() -> None:
        with service.database.write() as connection:
            deployments.delete(connection, name, version)
        service.blobs.free()

    await run_in_threadpool(delete)
    await service.deployed_models.refresh()
