"""Groups of jobs: option sets times targets, compared."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Schema, Size, State
from app.api.schemas.jobs import JobOptions, JobRequest
from app.jobs.comparison import Objective


class JobConstraints(Schema):
    """Constraints on the best job of a group; null where there is none."""

    seconds: float | None = Field(default=None, gt=0, description="Of one call, at most.")
    peak_bytes: Size | None = Field(default=None, description="Of activations, at most.")
    difference: float | None = Field(
        default=None, ge=0, description="From the original, as a fraction of an output's maximum, at most."
    )


class JobGroupRequest(JobRequest):
    """Optimizations of a model with each of several option sets, for each of several targets."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "9f86d081884c7d659a2feaa0c55ad015",
                    "targets": ["host"],
                    "input_shapes": {"x": [1, 3, 224, 224]},
                    "option_sets": [{"threads": 1}, {"threads": 2}, {"threads": 2, "prefer": "memory"}],
                    "objective": "latency",
                    "constraints": {"peak_bytes": 8000000},
                }
            ]
        }
    )

    option_sets: list[JobOptions] = Field(
        default_factory=lambda: [JobOptions()],
        min_length=1,
        max_length=256,
        description="What each combination sets of `options`; what it leaves out is as `options` says.",
    )
    objective: Objective = Field(default="latency", description="What the best job has least of.")
    constraints: JobConstraints = Field(default_factory=JobConstraints)


class ComparedJob(Schema):
    """One job of a group beside the others."""

    job: str
    target: str
    options: dict[str, Any] = Field(description="Those in which the jobs of the group differ.")
    state: State
    code: str | None
    detail: str | None
    seconds: float | None = Field(description="Median of one call of the optimized model.")
    timings: str | None = Field(description="`measured` or `predicted`.")
    peak_bytes: int | None = Field(description="Of activations.")
    beside: str | None = Field(
        description="The leading sentence of its comparison, such as its speed beside onnxruntime's."
    )
    difference: float | None = Field(
        description="The largest from the original, as a fraction of an output's maximum."
    )
    fallbacks: int | None = Field(description="Steps that the reference evaluator runs.")
    unmet: list[str] = Field(description="Why it cannot be the best: its failure, or constraints it breaks.")
    rank: int | None = Field(description="1 for the best; null for one that is not over or cannot be.")


class JobGroupAnswer(Schema):
    """A group of jobs, compared."""

    id: str
    state: Literal["running", "done"]
    model: str
    objective: Objective
    constraints: JobConstraints
    counts: dict[str, int] = Field(description="Jobs by state.")
    jobs: list[ComparedJob] = Field(description="In the order they were asked for.")
    best: str | None = Field(description="The best job so far; null when none keeps the constraints.")
    best_by_target: dict[str, str]
