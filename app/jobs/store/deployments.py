"""The rows of deployed models: a name, its versions, and what an executor needs of the job."""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from app.engine.types.target import host, is_host
from app.jobs.errors import (
    DeploymentExistsError,
    DeploymentNotFoundError,
    JobNotFinishedError,
    JobNotFoundError,
    NotDeployableError,
    TooManyError,
)
from app.jobs.store import job_repository, model_repository
from app.jobs.store.auth_context import current, visible
from app.jobs.store.blobs import BlobStore
from app.jobs.store.database import deployment_files, deployments
from app.jobs.worker.child_request import QUANTIZED, options_of, target_of

Row = sa.RowMapping
# How a deployment is served where nothing else is said: one inference at a time.
ALONE: dict[str, Any] = {"instances": 1, "threads": None, "batch_sizes": [], "batch_delay_ms": 0.0}


def create(
    connection: sa.Connection,
    job_id: str,
    name: str,
    version: int | None = None,
    *,
    serving: Mapping[str, Any] = MappingProxyType(ALONE),
    most: int | None = None,
    most_of_all: int | None = None,
) -> tuple[Row, bool]:
    """Deploy the result of a job; False when it is deployed as that version already.

    Without a version it is one more than the latest of the name. `serving` is how its process runs it.
    `most` versions of all names may belong to the caller, `most_of_all` to all callers.

    Raises:
        JobNotFoundError: there is no such job.
        JobNotFinishedError: it has not ended.
        NotDeployableError: it has no result, or one for another machine.
        ModelNotFoundError: its model was deleted.
        DeploymentExistsError: another job has that version of the name, or it is served in another way.
        TooManyError: the caller, or all together, have as many deployments as they may have.
    """
    job = deployable(connection, job_id)
    serving = _of_job(job, serving)
    versions = _versions(connection, name)
    if version is None:
        version = max(versions, default=0) + 1
    if (there := versions.get(version)) is not None:
        if there["job_id"] == job_id and serving_of(there) == serving:
            return there, False
        raise DeploymentExistsError(
            f"version {version} of {name!r} is job {there['job_id']!r} with {dict(serving_of(there))}; "
            "delete it first, or deploy another version",
            pointer="/version",
        )
    _check_number(connection, most, most_of_all)
    model_repository.find_model(connection, job["model_id"])
    _insert(connection, job, name, version, serving)
    return _versions(connection, name)[version], True


def _insert(connection: sa.Connection, job: Row, name: str, version: int, serving: Mapping[str, Any]) -> None:
    """Write the rows of a deployment; its files stay as long as it does."""
    identifier = job_repository.new_id()
    connection.execute(
        deployments.insert().values(
            id=identifier,
            owner=current().owner,
            name=name,
            version=version,
            job_id=job["id"],
            model_id=job["model_id"],
            request={
                "options": resolved_options(job),
                "bindings": resolved_bindings(job),
                "serving": dict(serving),
            },
            created=time.time(),
        )
    )
    planned = quantized(connection, job)
    files = {"": planned} if planned else job_repository.model_paths(connection, job["model_id"])
    rows = [{"deployment_id": identifier, "name": place, "sha256": sha256} for place, sha256 in files.items()]
    connection.execute(deployment_files.insert(), rows)
    BlobStore.settle(connection, files.values())


def _of_job(job: Row, serving: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same way to run a job, which has no number of threads where it is that of the job."""
    own = options_of(job["request"]["options"]).threads
    return {**serving, "threads": None if serving["threads"] == own else serving["threads"]}


def quantized(connection: sa.Connection, job: Row) -> str | None:
    """Hash of the model that an error budget made of a job's own, which the job planned; None without one."""
    made = job_repository.files(connection, job["id"], "artifact")
    return next((str(file["sha256"]) for file in made if file["name"] == QUANTIZED), None)


def serving_of(row: Row) -> Mapping[str, Any]:
    """How the process of a deployment runs it; deployments of earlier releases have one instance."""
    given: dict[str, Any] = row["request"].get("serving", {})
    return ALONE | given


def _versions(connection: sa.Connection, name: str) -> dict[int, Row]:
    """The caller's deployments of a name, by version."""
    query = sa.select(deployments).where(deployments.c.owner == current().owner, deployments.c.name == name)
    return {row["version"]: row for row in connection.execute(query).mappings()}


def _check_number(connection: sa.Connection, most: int | None, most_of_all: int | None) -> None:
    every = sa.select(sa.func.count()).select_from(deployments)
    own = every.where(deployments.c.owner == current().owner)
    for query, bound, where in ((own, most, ""), (every, most_of_all, " on this machine")):
        count = connection.scalar(query) or 0
        if bound is not None and count >= bound:
            raise TooManyError(f"{count} models are deployed{where}, {bound} are allowed: delete one first")


def resolved_options(job: Row) -> dict[str, Any]:
    """Options of a job as it resolved them: it gave up what rounds more where outputs differed."""
    resolved = (job["summary"] or {}).get("precision") or {}
    settled = {
        "precision": resolved.get("used"),
        "exact": resolved.get("exact"),
        "direct": resolved.get("direct"),
        "int16": resolved.get("int16"),
        "fast_algorithms": resolved.get("fast_algorithms"),
    }
    return dict(job["request"]["options"]) | {k: v for k, v in settled.items() if v is not None}


def resolved_bindings(job: Row) -> dict[str, Any]:
    """Bindings of a job with the pieces of its region, which are not looked for again."""
    pieces = ((job["summary"] or {}).get("region") or {}).get("pieces", ())
    kept = [{"symbols": piece["symbols"], "anchor": piece["anchor"]} for piece in pieces]
    return dict(job["request"]["bindings"]) | ({"pieces": kept} if kept else {})


def deployable(connection: sa.Connection, job_id: str) -> Row:
    """A job whose result can be deployed on this machine.

    Raises:
        JobNotFoundError: there is no such job.
        JobNotFinishedError: it has not ended.
        NotDeployableError: it has no result, or one for another machine.
    """
    job = job_repository.find(connection, job_id)
    if job["kind"] != "optimize":
        raise JobNotFoundError(f"there is no job {job_id!r}")
    if job["state"] not in job_repository.TERMINAL:
        raise JobNotFinishedError(f"job {job_id!r} is {job['state']}; wait for its end")
    if job["state"] != "succeeded":
        raise NotDeployableError(f"job {job_id!r} is {job['state']}: there is nothing to deploy")
    target = job["request"]["target"]
    if target is not None and not is_host(target_of(target), host()):
        raise NotDeployableError(
            f"job {job_id!r} is for target {job['target']!r}, which this machine is not; "
            "deploy one for 'host'"
        )
    return job


def listed(connection: sa.Connection) -> Sequence[Row]:
    """The caller's deployments, by name and version."""
    query = sa.select(deployments).where(visible(deployments.c.owner))
    ordered = query.order_by(deployments.c.name, deployments.c.owner, deployments.c.version)
    return connection.execute(ordered).mappings().all()


def files_of(connection: sa.Connection, identifier: str) -> dict[str, str]:
    """Hashes of a deployment's files by name; the graph itself has the empty name."""
    query = sa.select(deployment_files).where(deployment_files.c.deployment_id == identifier)
    return {row["name"]: row["sha256"] for row in connection.execute(query).mappings()}


def delete(connection: sa.Connection, name: str, version: int | None = None) -> None:
    """Forget a version of a name, or all of them.

    An administrator deletes his own first, and those of others where he has none of that name.

    Raises:
        DeploymentNotFoundError: there is none.
    """
    rows = [row for row in listed(connection) if row["name"] == name and version in (None, row["version"])]
    owners, own = {row["owner"] for row in rows}, current().owner
    owner = own if own in owners else min(owners, default=own)
    ids = [row["id"] for row in rows if row["owner"] == owner]
    if not ids:
        which = "" if version is None else f" version {version} of"
        raise DeploymentNotFoundError(f"there is no{which} deployment {name!r}")
    connection.execute(deployments.delete().where(deployments.c.id.in_(ids)))
