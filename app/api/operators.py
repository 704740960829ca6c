"""One operator run alone, so that a kernel can be tried."""

from dataclasses import asdict

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from app.api import errors, waiting
from app.api.requests import limits_of
from app.api.schemas import OperatorAnswer, OperatorRequest
from app.api.service import ServiceOf
from app.engine.errors import GraphError, InputError, TargetError
from app.jobs import ledger
from app.jobs.dispatch import INSPECT_QUEUE
from app.jobs.errors import NoAnswerError, OperatorFailedError, TooLargeError

router = APIRouter(prefix="/v1/operators", tags=["operators"])
_WAIT_MARGIN = 10.0  # seconds beyond the time limit of the process


@router.post(
    "/run",
    operation_id="runOperator",
    summary="Run one operator",
    response_model=OperatorAnswer,
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

    def send() -> str:
        draft = ledger.Draft(
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
        with service.database.write() as connection:
            (job_id,) = ledger.create(connection, [draft])
        service.dispatcher.try_send([job_id])
        return job_id

    job_id = await run_in_threadpool(send)

    def look() -> tuple[ledger.Row, bool]:
        with service.database.read() as connection:
            row = ledger.find(connection, job_id)
        return row, row["state"] in ledger.TERMINAL

    seconds = service.settings.inspect_seconds + _WAIT_MARGIN
    row = await waiting.until_done(service, look, seconds)
    if row["state"] not in ledger.TERMINAL:
        with service.database.write() as connection:
            ledger.cancel(connection, job_id)
        raise NoAnswerError(f"no worker answered within {seconds:g} s")
    if row["state"] != "succeeded":
        code = row["code"] or "cancelled"
        raise OperatorFailedError(row["detail"] or code, code=code, pointer=row["pointer"] or "")
    return OperatorAnswer.model_validate(row["summary"])
