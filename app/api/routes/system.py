"""Is the service alive, is it ready, and what do its problem codes mean."""

import time
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Path

from app.api.http import errors
from app.api.http.errors import NotReadyError, RouteNotFoundError
from app.api.schemas.problems import ProblemKindAnswer
from app.api.schemas.system import Health, Readiness
from app.api.service import ServiceOf
from app.jobs.errors import StorageFullError, StoreOutageError
from app.jobs.store.database import is_current, jobs, workers

router = APIRouter(tags=["system"])


@router.get("/healthz", summary="Is it alive?")
async def get_health() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", summary="Is it ready?", responses=errors.responses(NotReadyError))
def get_readiness(service: ServiceOf) -> Readiness:
    """The database answers and has the tables of this version, and uploads can be kept.

    A lack of workers is a warning: jobs wait.
    """
    if service.stopping.is_set():
        raise NotReadyError("the service is stopping")
    seen = workers.c.seen > time.time() - service.settings.dead_seconds
    try:
        with service.database.read() as connection:
            current = is_current(connection)
            alive = connection.scalars(sa.select(workers.c.queues).where(seen)).all()
            waiting = connection.scalars(
                sa.select(jobs.c.queue).where(jobs.c.state == "waiting_for_target").distinct()
            ).all()
    except sa.exc.SQLAlchemyError as error:
        raise NotReadyError(f"the database does not answer: {type(error).__name__}") from error
    if not current:
        raise NotReadyError("the tables are of another version of the service")
    try:
        service.blobs.check()
    except OSError as error:
        raise NotReadyError(f"the folder of blobs cannot be written: {error.strerror}") from error
    except (StorageFullError, StoreOutageError) as error:
        raise NotReadyError(error.message) from error
    served = {queue for queues in alive for queue in queues}
    warnings = [] if alive else ["no worker is running: jobs will wait"]
    warnings += [
        f"jobs wait for {queue!r}, which no worker serves" for queue in waiting if queue not in served
    ]
    return Readiness(workers=len(alive), warnings=warnings)


@router.get("/v1/problems", summary="List problem codes")
def list_problems() -> list[ProblemKindAnswer]:
    """All codes of failed requests and failed jobs."""
    return errors.problem_kinds()


@router.get(
    "/v1/problems/{code}", summary="Look at a problem code", responses=errors.responses(RouteNotFoundError)
)
def get_problem(
    code: Annotated[str, Path(max_length=100, examples=["input-invalid"])],
) -> ProblemKindAnswer:
    """Meaning of an error code; the `type` of a problem leads here."""
    for kind in errors.problem_kinds():
        if kind.code == code:
            return kind
    raise RouteNotFoundError(f"there is no problem code {code!r}")
