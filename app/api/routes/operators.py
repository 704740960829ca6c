"""The core operators; one operator run alone, so that a kernel can be tried."""

import difflib
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from app.api.http import errors, long_poll
from app.api.schemas.operators import (
    CoreOperatorAnswer,
    CoreOperatorList,
    OperatorAnswer,
    OperatorRequest,
)
from app.api.schemas.requests import limits_of
from app.api.service import ServiceOf
from app.engine.types.errors import GraphError, InputError, TargetError
from app.jobs.errors import CoreOperatorNotFoundError, NoAnswerError, OperatorFailedError, TooLargeError
from app.jobs.queue.dispatch import INSPECT_QUEUE
from app.jobs.store import job_repository

router = APIRouter(prefix="/v1/operators", tags=["operators"])
_WAIT_MARGIN = 10.0  # seconds beyond the time limit of the process


@router.get(
    "", summary="List the core operators", response_model=CoreOperatorList, responses=errors.responses()
)
def list_operators(
    service: ServiceOf,
    level: Annotated[
        int | None, Query(ge=0, le=7, description="Only those of a level; 7 are internal ones.")
    ] = None,
) -> dict[str, Any]:
    """The small set of operators in which graphs are exchanged, and how all of ONNX and MXNet are said in it.

    After canonicalization a graph has no others, but for those that `outside_core` of its decisions names.
    """
    found = service.core_operators.document()
    rows = [row for row in found["operators"] if level is None or row["level"] == level]
    return {"levels": found["levels"], "operators": rows, "onnx": found["onnx"], "mxnet": found["mxnet"]}


@router.get(
    "/{name}",
    summary="Look at a core operator",
    response_model=CoreOperatorAnswer,
    responses=errors.responses(CoreOperatorNotFoundError),
)
def get_operator(
    name: Annotated[str, Path(max_length=255, examples=["conv"])], service: ServiceOf
) -> dict[str, Any]:
    """Formula, operands, attributes, behaviour, spellings, and the implementations that run it."""
    rows = {row["name"]: row for row in service.core_operators.document()["operators"]}
    if name not in rows:
        near = difflib.get_close_matches(name, rows, 3)
        hint = f"near it are {', '.join(near)}" if near else "`GET /v1/operators` lists them"
        raise CoreOperatorNotFoundError(f"there is no core operator {name!r}; {hint}")
    found: dict[str, Any] = rows[name]
    return found


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
