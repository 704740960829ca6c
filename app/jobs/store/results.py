"""Results that answer later jobs: the same question has the same answer.

A question is the model's bytes, the target, the options, what is known of the inputs, and the
version of the engine. A plan that was measured depends on the timings table too; the table grows
while a model is measured for the first time, so an answer is filed under the table as the job left it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app.engine.types.target import host
from app.jobs.store.auth_context import current
from app.jobs.store.database import job_files, jobs, model_files

_KERNELS = "app.kernels"


def question(
    connection: sa.Connection,
    engine: str,
    model_id: str,
    request: Mapping[str, Any],
    inputs: Mapping[str, str],
) -> str:
    """A hash of all that a result depends on, but the timings table."""
    files = connection.execute(
        sa.select(model_files.c.name, model_files.c.sha256).where(model_files.c.model_id == model_id)
    )
    asked = {
        "files": sorted(map(tuple, files)),
        "target": request["target"] or asdict(host()),
        "measures": request["target"] is None and request["options"]["timings"] != "predicted",
        "options": request["options"],
        "bindings": request["bindings"],
        "inputs": dict(inputs),
        "engine": version(engine),
    }
    return _hash(json.dumps(asked, sort_keys=True))


def filed(key: str, request: Mapping[str, Any], kernels: Path) -> str:
    """Where the answer to a question is filed, with the timings table as it is now."""
    measures = request["target"] is None and request["options"]["timings"] != "predicted"
    table = kernels / "timings.json"
    found = hashlib.sha256(table.read_bytes()).hexdigest() if measures and table.exists() else ""
    return _hash(key + found)


def known(connection: sa.Connection, key: str) -> str | None:
    """The caller's latest job that holds the answer which is filed there."""
    return connection.scalar(
        sa.select(jobs.c.id)
        .where(jobs.c.cache_key == key, jobs.c.state == "succeeded", jobs.c.owner == current().owner)
        .order_by(jobs.c.id.desc())
        .limit(1)
    )


def share(connection: sa.Connection, job_id: str, source: str) -> None:
    """Give a job the artifacts of another."""
    columns = (job_files.c.role, job_files.c.name, job_files.c.sha256, job_files.c.size)
    rows = sa.select(sa.literal(job_id), *columns).where(
        job_files.c.job_id == source, job_files.c.role == "artifact"
    )
    connection.execute(job_files.insert().from_select(["job_id", *(c.name for c in columns)], rows))


@cache
def version(engine: str) -> str:
    """A hash of the engine's source: what another version would have planned is no answer."""
    digest = hashlib.sha256()
    for path in (*_sources(engine), *_sources(_KERNELS)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _sources(module: str) -> list[Path]:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return []
    origin = Path(spec.origin)
    return sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
