"""The rows of models and of described targets."""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict

import sqlalchemy as sa

from app.engine.errors import ExternalDataError
from app.engine.target import Target
from app.jobs import ledger
from app.jobs.blobs import BlobStore
from app.jobs.database import blobs, jobs, model_files, models, targets
from app.jobs.dispatch import INSPECT_QUEUE
from app.jobs.errors import BlobNotFoundError, ModelInUseError, ModelNotFoundError, TargetExistsError
from app.jobs.orders import target_of

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
    """The id of the model that consists of these files: the same files are the same model."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:32]


def add_model(
    connection: sa.Connection, files: Mapping[str, str], limits: Mapping[str, float]
) -> tuple[str, list[str]]:
    """Make a model of uploaded blobs; return its id, and the jobs that inspect it if it is new.

    Raises:
        BlobNotFoundError: a file was not uploaded.
        ExternalDataError: a name could leave the model's folder.
    """
    for name in files:
        if name:
            check_name(name)
    identifier = model_id(files)
    hashes = set(files.values())
    sizes = {
        row.sha256: row.size
        for row in connection.execute(
            sa.select(blobs.c.sha256, blobs.c.size).where(blobs.c.sha256.in_(hashes))
        )
    }
    for name, sha256 in files.items():
        if sha256 not in sizes:
            pointer = f"/external_data/{name}" if name else "/model"
            raise BlobNotFoundError(f"there is no blob {sha256}; upload it first", pointer=pointer)
    BlobStore.settle(connection, hashes)
    if connection.scalar(sa.select(models.c.id).where(models.c.id == identifier)) is not None:
        return identifier, []
    connection.execute(
        models.insert().values(
            id=identifier,
            size=sum(sizes[sha256] for sha256 in files.values()),
            state="inspecting",
            created=time.time(),
        )
    )
    for name, sha256 in files.items():
        connection.execute(model_files.insert().values(model_id=identifier, name=name, sha256=sha256))
    inspection = ledger.Draft("inspect", identifier, "host", INSPECT_QUEUE, {"limits": dict(limits)})
    return identifier, ledger.create(connection, [inspection])


def find_model(connection: sa.Connection, identifier: str) -> ledger.Row:
    """One model.

    Raises:
        ModelNotFoundError: there is none of that id.
    """
    row = connection.execute(sa.select(models).where(models.c.id == identifier)).mappings().first()
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
    unfinished = connection.scalars(
        sa.select(jobs.c.id).where(
            jobs.c.model_id == identifier, jobs.c.kind != "inspect", jobs.c.state.not_in(ledger.TERMINAL)
        )
    ).all()
    if unfinished:
        raise ModelInUseError(
            f"model {identifier!r} is needed by {len(unfinished)} unfinished jobs, "
            f"among them {unfinished[0]!r}; cancel them first"
        )
    connection.execute(jobs.delete().where(jobs.c.model_id == identifier, jobs.c.kind == "inspect"))
    connection.execute(models.delete().where(models.c.id == identifier))


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
