"""Deployed models."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Schema, Size


class DeployRequest(Schema):
    """A name for what a job made."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "resnet50"}]})

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    instances: int = Field(default=1, ge=1, le=256, description="Inferences that it runs at once.")
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Of each instance; without it those of the job. For others nothing is tuned.",
    )
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
        return {
            "instances": self.instances,
            "threads": self.threads,
            "batch_sizes": sizes,
            "batch_delay_ms": delay,
        }


class LatencyBound(Schema):
    """The latency that a share of the requests must not exceed."""

    percentile: float = Field(
        default=99.0, ge=50.0, le=99.9, description="Share of the requests, in percent."
    )
    seconds: float = Field(gt=0.0, le=60.0, description="From the request to the answer.")


class CapacityRequest(Schema):
    """Bounds on a deployment that is looked for."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"latency": {"percentile": 99, "seconds": 0.02}, "memory_bytes": 2**31}]
        }
    )

    latency: LatencyBound | None = Field(default=None, description="Without one, the highest throughput.")
    memory_bytes: Size | None = Field(default=None, description="Of the process of the deployment.")
    answer_seconds: float = Field(default=15.0, ge=5.0, le=60.0, description="Time to measure and answer in.")
    over_http: bool = Field(
        default=False,
        description="As a client on this machine sees it; else in the process of the model.",
    )


class Serving(Schema):
    """Fields of the request that deploys a model in one way."""

    instances: int
    threads: int
    batch_sizes: list[int]
    batch_delay_ms: float


class RatePoint(Schema):
    """Throughput and latency when requests come at random moments, so many a second."""

    rate: float
    throughput: float
    latency: dict[str, float] = Field(description="Seconds by percentile: `p50`, `p90`, `p95`, `p99`.")


class CapacityConfiguration(Serving):
    """One way to deploy a model, predicted."""

    run_times: Literal["measured", "estimated"] = Field(description="Whether all its runs were measured.")
    memory_bytes: int = Field(description="Predicted: process, one copy of weights, memory of all instances.")
    best: RatePoint | None = Field(description="Predicted, at the highest rate that meets the bound.")
    rejection: str = Field(description="Why it cannot be chosen; empty if it can.")
    is_chosen: bool


class CapacityCurve(Serving):
    """Predicted latency against throughput."""

    points: list[RatePoint]


class CapacityLoad(RatePoint):
    """A measured load on the chosen configuration."""

    requests: int
    met: bool = Field(description="Whether it kept the bound.")


class CapacityMemory(Schema):
    """Bytes of the process of the deployment; the sum is predicted, `measured_bytes` was seen under load."""

    process_bytes: int = Field(description="Measured: interpreter, compiler, graph.")
    weights_bytes: int = Field(description="Packed weights, one copy.")
    instances_bytes: int = Field(description="Arenas, inputs and outputs of all instances.")
    predicted_bytes: int
    measured_bytes: int


class CapacityChoice(Schema):
    """The configuration that answers most requests within the bounds."""

    deployment: Serving = Field(description="With a `name`, the body of `POST /v1/jobs/{id}/deploy`.")
    verified: bool = Field(description="Whether a load at `rate` kept the bound.")
    rate: float = Field(description="Requests per second of the last load.")
    predicted: RatePoint = Field(description="At that rate.")
    loads: list[CapacityLoad] = Field(description="Measured, the first at the highest predicted rate.")
    memory: CapacityMemory


class CapacityHttp(Schema):
    """Processor seconds of one request besides its run, measured once on this machine."""

    sent: float = Field(description="Of the client, for the request.")
    request: float = Field(description="Of the API, for the request.")
    executor: float = Field(description="Of the process of the model.")
    answer: float = Field(description="Of the API, for the answer.")
    received: float = Field(description="Of the client, for the answer.")


class CapacityAnswer(Schema):
    """How many requests this machine answers, and the deployment that does."""

    cores: int
    shapes: dict[str, list[int]] = Field(description="Of the inputs of every request.")
    configurations: list[CapacityConfiguration]
    curves: list[CapacityCurve]
    http: CapacityHttp | None = Field(
        default=None, description="Part of all latencies and rates; null where they are without HTTP."
    )
    chosen: CapacityChoice | None = Field(description="Null where no configuration meets the bounds.")
    notes: list[str] = Field(description="What was left out, and why.")
    seconds: float


class DeploymentAnswer(Schema):
    """One version of a deployed model."""

    name: str
    version: str
    job: str
    model: str
    instances: int
    threads: int | None = Field(description="Of each instance; null for those of the job.")
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
