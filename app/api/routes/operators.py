"""One operator run alone, so that a kernel can be tried."""

from dataclasses import asdict

from fastapi import APIRouter

from app.api.http import errors, long_poll
from app.api.schemas.operators import OperatorAnswer, OperatorRequest
from app.api.schemas.requests import limits_of
from app.api.service import ServiceOf
from app.engine.types.errors import GraphError, InputError, TargetError
from app.jobs.errors import NoAnswerError, OperatorFailedError, TooLargeError
from app.jobs.queue.dispatch import INSPECT_QUEUE
from app.jobs.store import job_repository

router = APIRouter(prefix="/v1/operators", tags=["operators"])
_WAIT_MARGIN = 10.0  # seconds beyond the time limit of the process


@router.post(
    "/run",
    summary="Run one operator",
    responses=errors.responses(
        OperatorFailedError, NoAnswerError, InputError, GraphError, TargetError, TooLargeError
    ),
)
async def run_operator(body: OperatorRequest, service: ServiceOf) -> OperatorAnswer:
    """Run an operator on given tensors, in a limited process; outputs come in the default layout.

    The answer tells which implementation computed them, how long it takes, every alternative with the
    reason why it was not taken, and how far the outputs are from the reference evaluator's.
    """
    options = body.options.to_options()

    draft = job_repository.Draft(
        kind="operator",
        model_id="",
        target="host",
        queue=INSPECT_QUEUE,
        request={
            "operator": body.model_dump(exclude={"options", "limits"}),
            "options": asdict(options),
            "limits": asdict(limits_of(service.settings, "operator", body.limits)),
        },
    )
    row = await long_poll.ended(service, lambda _: [draft], service.settings.inspect_seconds + _WAIT_MARGIN)
    if row["state"] != "succeeded":
        code = row["code"] or "cancelled"
        raise OperatorFailedError(row["detail"] or code, code=code, pointer=row["pointer"] or "")
    return OperatorAnswer.model_validate(row["summary"])
