"""Deployed models."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Schema


class DeployRequest(Schema):
    """A name for what a job made."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "resnet50"}]})

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    instances: int = Field(default=1, ge=1, le=256, description="Inferences that it runs at once.")
    batch_sizes: list[Annotated[int, Field(ge=2, le=1024)]] = Field(
        default=[],
        max_length=8,
        description="Numbers of requests that are computed together.",
    )
    batch_delay_ms: float = Field(
        default=2.0, ge=0, le=10_000, description="That a request waits at most for others of its batch."
    )
    version: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Without one, the next after the latest of the name."
    )

    @property
    def serving(self) -> dict[str, Any]:
        """How its process runs it."""
        sizes = sorted(set(self.batch_sizes))
        delay = self.batch_delay_ms if sizes else 0.0
        return {"instances": self.instances, "batch_sizes": sizes, "batch_delay_ms": delay}


class DeploymentAnswer(Schema):
    """One version of a deployed model."""

    name: str
    version: str
    job: str
    model: str
    instances: int
    batch_sizes: list[int]
    batch_delay_ms: float
    owner: str
    created: float = Field(description="Seconds since the epoch.")
    state: Literal["starting", "loading", "ready", "failed"]
    detail: str | None = Field(description="Why it failed.")
    programs: int = Field(description="Input shapes that are compiled now.")
    url: str = Field(description="Where its metadata are; inferences go to `/infer` below.")


class DeploymentList(Schema):
    """All deployed models of the caller."""

    deployments: list[DeploymentAnswer]
