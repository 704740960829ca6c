"""Targets: the built-in ones, this machine, and those that users describe."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api.http import errors
from app.api.schemas.requests import known_targets
from app.api.schemas.targets import TargetAnswer, TargetList, TargetSpec
from app.api.service import ServiceOf
from app.engine.types.errors import TargetError
from app.engine.types.target import Target, presets
from app.jobs.errors import TargetExistsError, TargetNotFoundError, TooLargeError
from app.jobs.store import model_repository

router = APIRouter(prefix="/v1/targets", tags=["targets"])


def _answer(target: Target) -> TargetAnswer:
    origin = "probed" if target.name == "host" else "preset" if target.name in presets() else "described"
    return TargetAnswer.of(asdict(target), origin=origin)


@router.get("", summary="List targets")
def list_targets(service: ServiceOf) -> TargetList:
    """All targets that jobs may name: `host` is this machine."""
    with service.database.read() as connection:
        described = model_repository.described_targets(connection)
    return TargetList(targets=[_answer(t) for t in (*presets().values(), *described.values())])


@router.get("/{name}", summary="Look at a target", responses=errors.responses(TargetNotFoundError))
def get_target(
    name: Annotated[str, Path(max_length=255, examples=["host"])], service: ServiceOf
) -> TargetAnswer:
    """One target's description."""
    with service.database.read() as connection:
        known = known_targets(connection)
    if name not in known:
        raise TargetNotFoundError(f"there is no target {name!r}; known are {', '.join(known)}")
    return _answer(known[name])


@router.post(
    "",
    summary="Describe a machine",
    status_code=201,
    responses=errors.responses(
        TargetExistsError,
        TargetError,
        TooLargeError,
        also={200: {"model": TargetAnswer, "description": "The same description was there already."}},
    ),
)
def create_target(body: TargetSpec, response: Response, service: ServiceOf) -> TargetAnswer:
    """Keep a description, for jobs to name. Jobs for it are planned and predicted, not measured."""
    target = body.to_target()
    if target.name in presets():
        raise TargetExistsError(f"target {target.name!r} is built in; choose another name", pointer="/name")
    with service.database.write() as connection:
        created = model_repository.add_target(connection, target)
    response.status_code = 201 if created else 200
    response.headers["location"] = service.address(f"/v1/targets/{target.name}")
    return _answer(target)
