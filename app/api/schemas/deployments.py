"""Deployed models."""

from typing import Literal

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Schema


class DeployRequest(Schema):
    """A name for what a job made."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "resnet50"}]})

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    instances: int = Field(default=1, ge=1, le=256, description="Inferences that it runs at once.")
    version: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Without one, the next after the latest of the name."
    )


class DeploymentAnswer(Schema):
    """One version of a deployed model."""

    name: str
    version: str
    job: str
    model: str
    instances: int
    owner: str
    created: float = Field(description="Seconds since the epoch.")
    state: Literal["starting", "loading", "ready", "failed"]
    detail: str | None = Field(description="Why it failed.")
    programs: int = Field(description="Input shapes that are compiled now.")
    url: str = Field(description="Where its metadata are; inferences go to `/infer` below.")


class DeploymentList(Schema):
    """All deployed models of the caller."""

    deployments: list[DeploymentAnswer]
