"""Is the service alive, is it ready, and what do its problem codes mean."""

import os
import time
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Path

from app.api import errors
from app.api.errors import NotReadyError, RouteNotFoundError
from app.api.schemas import Health, ProblemKindAnswer, Readiness
from app.api.service import ServiceOf
from app.jobs.database import workers

router = APIRouter(tags=["system"])


@router.get("/healthz", operation_id="getHealth", summary="Is it alive?", response_model=Health)
async def get_health() -> Health:
    """The process answers."""
    return Health()


@router.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Is it ready?",
    response_model=Readiness,
    responses=errors.responses(NotReadyError),
)
def get_readiness(service: ServiceOf) -> Readiness:
    """The database answers and blobs can be written. A lack of workers is a warning."""
    try:
        with service.database.read() as connection:
            alive = connection.scalar(
                sa.select(sa.func.count())
                .select_from(workers)
                .where(workers.c.seen > time.time() - service.settings.dead_seconds)
            )
    except sa.exc.SQLAlchemyError as error:
        raise NotReadyError(f"the database does not answer: {type(error).__name__}") from error
    if not os.access(service.blobs.incoming, os.W_OK):
        raise NotReadyError("the folder of blobs cannot be written")
    warnings = [] if alive else ["no worker is running: jobs will wait"]
    return Readiness(workers=alive or 0, warnings=warnings)


@router.get(
    "/v1/problems",
    operation_id="listProblems",
    summary="List problem codes",
    response_model=list[ProblemKindAnswer],
)
def list_problems() -> list[ProblemKindAnswer]:
    """All codes of failed requests and failed jobs."""
    return [ProblemKindAnswer(code=k.code, title=k.title, status=k.status) for k in errors.problem_kinds()]


@router.get(
    "/v1/problems/{code}",
    operation_id="getProblem",
    summary="Look at a problem code",
    response_model=ProblemKindAnswer,
    responses=errors.responses(RouteNotFoundError),
)
def get_problem(
    code: Annotated[str, Path(max_length=100, examples=["input-invalid"])],
) -> ProblemKindAnswer:
    """What a code means; the `type` of a problem leads here."""
    for kind in errors.problem_kinds():
        if kind.code == code:
            return ProblemKindAnswer(code=kind.code, title=kind.title, status=kind.status)
    raise RouteNotFoundError(f"there is no problem code {code!r}")
