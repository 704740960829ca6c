"""Downloads of what jobs made, and answers out of them."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import FileResponse

from app.api.http import errors
from app.api.routes.jobs import JobId
from app.api.schemas.decisions import DecisionList
from app.api.schemas.memory_plans import PeakAnswer, PeakRequest
from app.api.service import Service, ServiceOf
from app.engine.memory.region_peak import peak_at, region_part
from app.engine.types.errors import InputError
from app.jobs.errors import ArtifactNotFoundError, JobNotFoundError, NodeNotFoundError, RequestError
from app.jobs.store import job_repository
from app.jobs.worker.child_request import ARTIFACTS

router = APIRouter(prefix="/v1/jobs", tags=["artifacts"])
_KEPT_NBYTES = 32 << 20  # of a decisions.json that stays in memory between two questions
# A report is made from a stranger's model: it may draw, but reach nothing of ours and nothing outside.
_SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


@router.get(
    "/{job_id}/artifacts/{name}",
    summary="Download an artifact",
    response_class=FileResponse,
    responses=errors.responses(
        JobNotFoundError,
        ArtifactNotFoundError,
        also={
            200: {
                "description": "The file. It never changes.",
                "content": {
                    media_type.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}}
                    for media_type in dict.fromkeys(ARTIFACTS.values())  # bytes first: clients take the first
                },
            },
            304: {"description": "The file is the one that the `If-None-Match` tag names."},
        },
    ),
)
def get_artifact(
    job_id: JobId,
    name: Annotated[str, Path(max_length=255, examples=["plan.json"])],
    service: ServiceOf,
    if_none_match: Annotated[str | None, Header(max_length=255)] = None,
) -> Response:
    """One file of a job, as a whole or, with `Range`, in parts."""
    sha256, filename = _file(service, job_id, name)
    headers = {
        "etag": f'"sha256-{sha256}"',
        "cache-control": "private, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
        "content-security-policy": _SANDBOX,
    }
    if if_none_match == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return FileResponse(
        service.blobs.path(sha256),
        media_type=ARTIFACTS[name],
        headers=headers,
        filename=filename,
        content_disposition_type="inline" if name.endswith((".html", ".json")) else "attachment",
    )


def _file(service: Service, job_id: str, name: str) -> tuple[str, str]:
    """Where the bytes of an artifact are, and the name to keep them under.

    Raises:
        ArtifactNotFoundError: the job has none of that name, or not yet.
    """
    with service.database.read() as connection:
        job = job_repository.find(connection, job_id)
        files = {f["name"]: f for f in job_repository.files(connection, job_id, "artifact")}
    if name not in files:
        have = ", ".join(files) or "none"
        raise ArtifactNotFoundError(
            f"job {job_id!r} ({job['state']}) has no artifact {name!r}; it has {have}"
        )
    exports = (job["summary"] or {}).get("exports", {})
    return str(files[name]["sha256"]), str(exports.get(name, {}).get("filename", name))


@router.get(
    "/{job_id}/decisions",
    summary="Ask why a node runs as it does",
    response_model=DecisionList,
    responses=errors.responses(JobNotFoundError, ArtifactNotFoundError, NodeNotFoundError),
)
def list_decisions(
    job_id: JobId,
    service: ServiceOf,
    node: Annotated[
        str | None, Query(max_length=4096, description="Only the step that computes this node.")
    ] = None,
) -> dict[str, object]:
    """The choice for each step of the plan: cost, bytes and layouts, and each alternative with its own.

    An alternative that was refused says why, and so does a step that is not blocked.
    """
    path = service.blobs.path(_file(service, job_id, "decisions.json")[0])
    if node is None:
        told = json.loads(path.read_bytes())
        return {"outside_core": told.get("outside_core", []), "decisions": told["decisions"]}
    decisions = (_kept_decisions if path.stat().st_size <= _KEPT_NBYTES else Decisions.read)(path)
    kept = decisions.about(node)
    if not kept:
        near = difflib.get_close_matches(node, decisions.names, 3)
        hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
        raise NodeNotFoundError(
            f"no step of job {job_id!r} computes a node {node!r}: it may have been folded away, "
            f"see the notes of plan.json{hint}",
            pointer="query:node",
        )
    return {"decisions": kept}


@router.post(
    "/{job_id}/peak",
    summary="Ask what a shape takes before it runs",
    responses=errors.responses(JobNotFoundError, ArtifactNotFoundError, RequestError),
)
def ask_peak(job_id: JobId, body: PeakRequest, service: ServiceOf) -> PeakAnswer:
    """Bytes of the arena at shapes of the region of a job, by the formulas of its memory.json."""
    memory = json.loads(service.blobs.path(_file(service, job_id, "memory.json")[0]).read_bytes())
    try:
        region = region_part(memory)
        found = peak_at(region, {name: tuple(dims) for name, dims in body.input_shapes.items()})
    except InputError as error:
        raise RequestError(error.message, pointer=error.pointer) from None
    return PeakAnswer(
        peak_bytes=found.nbytes, exact=found.exact, worst_bytes=region["worst_bytes"], proof=region["proof"]
    )


@dataclass(frozen=True, slots=True)
class Decisions:
    """The rows of one decisions.json as text, and which of them are about a node."""

    rows: tuple[bytes, ...]
    where: Mapping[str, tuple[int, ...]]  # by the row's subject, and by each node that it computes

    @classmethod
    def read(cls, path: FilePath) -> "Decisions":
        """Those of a file."""
        rows = json.loads(path.read_bytes())["decisions"]
        where: dict[str, tuple[int, ...]] = {}
        for number, row in enumerate(rows):
            for name in dict.fromkeys((row["subject"], *row["nodes"])):
                where[name] = (*where.get(name, ()), number)
        return cls(tuple(json.dumps(row).encode() for row in rows), where)

    def about(self, node: str) -> list[dict[str, object]]:
        """The rows about a node."""
        return [json.loads(self.rows[number]) for number in self.where.get(node, ())]

    @property
    def names(self) -> list[str]:
        """Every node that can be asked for."""
        return list(self.where)


@lru_cache(maxsize=4)
def _kept_decisions(path: FilePath) -> Decisions:
    """Those of a blob, which never changes: who looks at a report asks again and again."""
    return Decisions.read(path)
