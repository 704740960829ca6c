"""Health of the service."""

from typing import Literal

from app.api.schemas.fields import Schema


class Health(Schema):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Schema):
    """The service can take work; `warnings` tells what it lacks to finish it."""

    status: Literal["ready"] = "ready"
    workers: int
    warnings: list[str]
