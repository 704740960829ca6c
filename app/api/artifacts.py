"""Downloads of what jobs made."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import FileResponse

from app.api import errors
from app.api.jobs import JobId
from app.api.service import ServiceOf
from app.jobs import ledger
from app.jobs.errors import ArtifactNotFoundError, JobNotFoundError
from app.jobs.orders import ARTIFACTS

router = APIRouter(prefix="/v1/jobs", tags=["artifacts"])
# A report is made from a stranger's model: it may draw, but reach nothing of ours and nothing outside.
_SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


@router.get(
    "/{job_id}/artifacts/{name}",
    operation_id="getArtifact",
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
                    for media_type in sorted(set(ARTIFACTS.values()))
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
    with service.database.read() as connection:
        job = ledger.find(connection, job_id)
        files = {f["name"]: f for f in ledger.files(connection, job_id, "artifact")}
    if name not in files:
        have = ", ".join(files) or "none"
        raise ArtifactNotFoundError(
            f"job {job_id!r} ({job['state']}) has no artifact {name!r}; it has {have}"
        )
    sha256 = files[name]["sha256"]
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
        filename=name,
        content_disposition_type="inline" if name.endswith((".html", ".json")) else "attachment",
    )
