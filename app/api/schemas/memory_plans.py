"""Memory plans: buffers in, offsets out."""

from typing import Annotated

from pydantic import ConfigDict, Field, StrictInt

from app.api.schemas.fields import Dimension, Name, Schema
from app.engine.memory.csv_table import LARGEST

# The greedy placement is quadratic: about two seconds for so many.
MOST_BUFFERS = 30_000
Step = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
Nbytes = Annotated[StrictInt, Field(ge=0, le=LARGEST)]


class BufferSpec(Schema):
    """Bytes that must stay together while they live, in the half-open steps [lower, upper)."""

    id: Name
    lower: Step
    upper: Step
    size: Nbytes
    alignment: Annotated[StrictInt, Field(ge=1, le=LARGEST)] = 1


class MemoryPlanRequest(Schema):
    """Buffers to be placed in one arena."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "buffers": [
                        {"id": "b1", "lower": 0, "upper": 3, "size": 4},
                        {"id": "b2", "lower": 3, "upper": 9, "size": 4},
                        {"id": "b3", "lower": 0, "upper": 9, "size": 4},
                    ],
                    "capacity": 12,
                }
            ]
        }
    )

    buffers: Annotated[list[BufferSpec], Field(max_length=MOST_BUFFERS)]
    capacity: Nbytes | None = Field(
        None, description="Bytes of the arena; without it the peak is minimized.", examples=[12]
    )


class MemoryPlanAnswer(Schema):
    """Offsets, and how good they are."""

    fits: bool = Field(description="Whether `offsets` are within the capacity.")
    reason: str | None = Field(
        description="Why nothing fits, or was found to: with the proof, if there is one."
    )
    offsets: dict[str, int] | None = Field(description="By id, in bytes; null where none fit.")
    peak_bytes: int = Field(description="Of the best placement found, also where it does not fit.")
    lower_bound: int = Field(description="Bytes below which no peak can be: proved.")
    gap: float = Field(description="peak_bytes / lower_bound - 1.")
    proved: bool = Field(description="Whether no smaller peak exists.")
    method: str
    nodes: int = Field(description="Of search trees.")
    seconds: float = Field(description="Of solving, without loading.")
    load_seconds: float = Field(
        description="Of loading compiled code before; 0 where it was there or not needed."
    )


class PeakRequest(Schema):
    """Shapes of the inputs of a job that have a symbol."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input_shapes": {"x": [1, 3, 320, 320]}}]})

    input_shapes: dict[Name, list[Dimension]] = Field(
        description="Dimensions by input name; inputs without symbols may be left out.", max_length=4096
    )


class PeakAnswer(Schema):
    """Memory of one shape of a region."""

    peak_bytes: int = Field(description="Of the arena: values and workspaces, without weights.")
    exact: bool = Field(description="Whether the program takes just this; else it takes no more.")
    worst_bytes: int = Field(description="Of the shape of the region that takes most.")
    proof: str = Field(
        description="Proof that no shape takes more than the worst; empty where there is none beside samples."
    )
