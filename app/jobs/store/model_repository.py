"""The rows of models and of described targets."""

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from app.engine.types.errors import ExternalDataError
from app.engine.types.target import Target
from app.jobs.errors import BlobNotFoundError, ModelInUseError, ModelNotFoundError, TargetExistsError
from app.jobs.queue.dispatch import INSPECT_QUEUE
from app.jobs.store import job_repository, labels
from app.jobs.store.auth_context import current, visible_row
from app.jobs.store.blobs import BlobStore, sizes
from app.jobs.store.database import jobs, model_files, models, targets
from app.jobs.worker.child_request import target_of

_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.@+ -]*")


def check_name(name: str) -> None:
    """Refuse a name of external data that could leave the model's folder.

    Raises:
        ExternalDataError: it is absolute, has `..`, or characters that are no part of a plain name.
    """
    if len(name) > 255 or not all(_SEGMENT.fullmatch(part) for part in name.split("/")):
        raise ExternalDataError(
            f"external data {name!r}: expected a relative path of plain names "
            "(letters, digits, '_', '-', '.', '@', '+', blanks), none beginning with '.'",
            pointer="/external_data",
        )


def model_id(files: Mapping[str, str]) -> str:
    """The id of the caller's model that consists of these files: the same files are the same model."""
    owner = [current().owner] if current().owner else []
    return hashlib.sha256(json.dumps(sorted(files.items()) + owner).encode()).hexdigest()[:32]


def add_model(
    connection: sa.Connection,
    files: Mapping[str, str],
    limits: Mapping[str, float],
    name: str = "",
    origin: Mapping[str, Any] | None = None,
) -> tuple[str, list[str]]:
    """Make a model of uploaded blobs; return its id, and the jobs that inspect it if it is new.

    One that is there already keeps its name if it has one, and its origin.

    Raises:
        BlobNotFoundError: a file was not uploaded.
        ExternalDataError: a name could leave the model's folder.
    """
    for location in files:
        if location:
            check_name(location)
    identifier = model_id(files)
    hashes = set(files.values())
    held = sizes(connection, hashes)
    for location, sha256 in files.items():
        if sha256 not in held:
            pointer = f"/external_data/{location}" if location else "/model"
            raise BlobNotFoundError(f"there is no blob {sha256}; upload it first", pointer=pointer)
    BlobStore.settle(connection, hashes)
    known = models.update().where(models.c.id == identifier).values(used=time.time())
    if connection.execute(known).rowcount:
        unnamed = (models.c.id == identifier, models.c.name == "")
        connection.execute(models.update().where(*unnamed).values(name=name))
        return identifier, []
    connection.execute(
        models.insert().values(
            id=identifier,
            name=name,
            size=sum(held[sha256] for sha256 in files.values()),
            state="inspecting",
            created=time.time(),
            owner=current().owner,
            used=time.time(),
            origin=None if origin is None else dict(origin),
        )
    )
    for location, sha256 in files.items():
        connection.execute(model_files.insert().values(model_id=identifier, name=location, sha256=sha256))
    inspection = job_repository.Draft("inspect", identifier, "host", INSPECT_QUEUE, {"limits": dict(limits)})
    return identifier, job_repository.create(connection, [inspection])


def located(files: Mapping[str, str], locations: Sequence[str]) -> dict[str, str]:
    """Files of a model by the locations that its tensors name.

    One that is given under the last part of a location, which no other location has, is that of the location.
    """
    found = dict(files)
    lasts = Counter(location.rpartition("/")[2] for location in locations)
    for location in locations:
        last = location.rpartition("/")[2]
        if lasts[last] == 1 and location not in found and last in found:
            found[location] = found.pop(last)
    return found


def rename_model(connection: sa.Connection, identifier: str, name: str) -> None:
    """Give a model another name.

    Raises:
        ModelNotFoundError: there is none of that id.
    """
    find_model(connection, identifier)
    connection.execute(models.update().where(models.c.id == identifier).values(name=name))


def names_of(connection: sa.Connection, identifiers: Iterable[str]) -> dict[str, str]:
    """Display names of models: their names, or the first characters of the ids of those without one."""
    known = list(identifiers)
    rows = connection.execute(sa.select(models.c.id, models.c.name).where(models.c.id.in_(known)))
    named = {row.id: row.name for row in rows}
    return {identifier: named.get(identifier) or identifier[:12] for identifier in known}


def find_model(connection: sa.Connection, identifier: str) -> job_repository.Row:
    """One model that the caller may see.

    Raises:
        ModelNotFoundError: there is none of that id.
    """
    row = visible_row(connection, models, identifier)
    if row is None:
        raise ModelNotFoundError(f"there is no model {identifier!r}")
    return row


def delete_model(connection: sa.Connection, identifier: str) -> None:
    """Forget a model and its inspection; jobs that ended keep their results.

    Raises:
        ModelNotFoundError: there is none of that id.
        ModelInUseError: jobs that have not ended need it.
    """
    find_model(connection, identifier)
    unfinished = connection.scalars(sa.select(jobs.c.id).where(*needed(identifier))).all()
    if unfinished:
        raise ModelInUseError(
            f"model {identifier!r} is needed by {len(unfinished)} unfinished jobs, "
            f"among them {unfinished[0]!r}; cancel them first"
        )
    connection.execute(jobs.delete().where(jobs.c.model_id == identifier, jobs.c.kind == "inspect"))
    labels.forget(connection, [identifier])
    connection.execute(models.delete().where(models.c.id == identifier))


def needed(identifier: str | sa.Column[str]) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions that a job needs a model: it has not ended, and is more than the model's inspection."""
    unfinished = jobs.c.state.not_in(job_repository.TERMINAL)
    return (jobs.c.model_id == identifier, jobs.c.kind != "inspect", unfinished)


def described_targets(connection: sa.Connection) -> dict[str, Target]:
    """Targets that users described, by name."""
    rows = connection.execute(sa.select(targets).order_by(targets.c.name))
    return {row.name: target_of(row.spec) for row in rows}


def add_target(connection: sa.Connection, target: Target) -> bool:
    """Keep a description; False when the same is kept already.

    Raises:
        TargetExistsError: another description has the name.
    """
    known = described_targets(connection).get(target.name)
    if known is None:
        connection.execute(
            targets.insert().values(name=target.name, spec=asdict(target), created=time.time())
        )
        return True
    if known != target:
        raise TargetExistsError(
            f"target {target.name!r} is described already, in another way; choose another name",
            pointer="/name",
        )
    return False
