"""Models, the blobs they are made of, their validation, their values, and models made of them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Dimension, Labels, Name, Scalar, Schema, Sha256
from app.api.schemas.jobs import BindingsRequest

ModelName = Annotated[
    str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$", examples=["squeezenet.onnx"])
]


class ModelRequest(Schema):
    """Changeable fields of a model."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "squeezenet 1.1"}]})

    name: ModelName


class ModelManifest(Schema):
    """A model of several files, each uploaded as a blob before."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                    "external_data": {
                        "weights.bin": "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"
                    },
                }
            ]
        }
    )

    name: ModelName | None = Field(default=None, description="What to call it, such as its file's name.")
    model: Sha256
    external_data: dict[Name, Sha256] = Field(
        default_factory=dict,
        description="Blobs by the location that the graph names: a relative path without `..`, "
        "or its last part. For a symbol of MXNet, its parameters, by any name.",
        max_length=4096,
    )


class ModelAnswer(Schema):
    """A model; `report` and the fields of a failure come with the inspection."""

    id: str
    name: str = Field(description="That of its file, or what it was changed to; empty if none was given.")
    state: Literal["inspecting", "ready", "invalid"]
    size: int = Field(description="Bytes of all its files.")
    files: dict[str, str] = Field(description="SHA-256 by name; the graph itself has the empty name.")
    report: dict[str, Any] | None = Field(
        description="Inputs, outputs, operators, opsets, nodes, parameters."
    )
    code: str | None
    detail: str | None
    pointer: str | None
    created: float = Field(description="Seconds since the epoch.")
    owner: str = Field(description="Whom it belongs to; empty where there are no keys.")
    labels: dict[str, str]
    origin: dict[str, Any] | None = Field(
        description="Operation, ids of the models and request that it was made of here; null for an upload."
    )


class ModelList(Schema):
    """Models, latest first."""

    models: list[ModelAnswer]
    next: str | None = Field(description="Cursor of the next page; null on the last.")


class LabelsRequest(Schema):
    """All labels of a model or a job; those that it had before go."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"labels": {"team": "vision", "keep": "yes"}}]})

    labels: Labels


class BlobAnswer(Schema):
    """Bytes that the service holds."""

    sha256: str
    size: int


class ValidateRequest(BindingsRequest):
    """The same question as a job, without running it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"target": "host", "input_shapes": {"x": [1, 3, 224, 224]}}]}
    )

    target: Name = "host"


class Finding(Schema):
    """Something that would stop an optimization."""

    code: str
    detail: str
    pointer: str


class ValidateAnswer(Schema):
    """Problems that would stop an optimization; none when `problems` is empty."""

    model: str
    target: str
    valid: bool
    problems: list[Finding]


ValueName = Annotated[str, Field(min_length=1, max_length=1024)]
ValueRole = Literal["input", "output", "weight", "internal"]
_ID = "9f86d081884c7d659a2feaa0c55ad015"


class ValueAnswer(Schema):
    """A value of a model's main graph."""

    name: str
    roles: list[ValueRole] = Field(description="An output may be an input or a weight too.")
    dtype: str = Field(description="As NumPy calls it; empty where it is unknown.")
    shape: list[int | str | None] | None = Field(
        description="A number where fixed, a name where free; null as a whole where the rank is unknown."
    )
    operator: str = Field(description="That makes it; empty for inputs and weights.")
    node: str


class ValueList(Schema):
    """Values in the order of the graph: inputs, weights, what nodes make."""

    model: str
    total: int = Field(description="Of the role asked for, on all pages.")
    values: list[ValueAnswer]
    next: str | None = Field(description="Cursor of the next page; null on the last.")


class ExtractRequest(Schema):
    """The part of a model that computes some values from others."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"outputs": ["pool5"], "name": "features of squeezenet"}]}
    )

    inputs: list[ValueName] = Field(
        default_factory=list,
        max_length=4096,
        description="Values that become inputs, in this order, weights among them; none: those inputs of the "
        "model that the outputs need.",
    )
    outputs: list[ValueName] = Field(min_length=1, max_length=4096, description="In this order.")
    name: ModelName | None = Field(default=None, description="Of the new model.")


class GradientRequest(Schema):
    """A loss to differentiate, and by what."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"loss": "loss", "input_shapes": {"x": [8, 3, 224, 224]}},
                {"loss": "logits", "wrt": ["x", "conv1.weight"]},
                {"loss": "loss", "wrt": ["table"], "row_sparse": ["table"]},
            ]
        }
    )

    loss: ValueName = Field(description="A value of the graph; the sum of its elements is differentiated.")
    wrt: Annotated[list[ValueName], Field(min_length=1, max_length=65536)] | None = Field(
        default=None,
        description="Inputs and initializers; null takes all float initializers that the loss depends on.",
    )
    row_sparse: list[ValueName] = Field(
        default_factory=list,
        max_length=65536,
        description="Tables whose gradients are row_sparse outputs: read by lookups of rows alone.",
    )
    input_shapes: dict[ValueName, list[Dimension]] = Field(
        default_factory=dict, description="Dimensions by input name.", max_length=4096
    )
    input_values: dict[ValueName, Scalar] = Field(
        default_factory=dict, description="Scalars by input name; they become constants.", max_length=4096
    )
    name: ModelName | None = Field(default=None, description="Of the training graph.")


class SymbolRequest(Schema):
    """Shapes and values that inputs are bound to before a model is written as a symbol."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"input_shapes": {"x": [1, 3, 224, 224]}, "name": "resnet-symbol.json"}]
        }
    )

    input_shapes: dict[ValueName, list[Dimension]] = Field(
        default_factory=dict,
        description="Dimensions by input name; none: free dimensions stay free.",
        max_length=4096,
    )
    input_values: dict[ValueName, Scalar] = Field(
        default_factory=dict, description="Scalars by input name; they become constants.", max_length=4096
    )
    name: ModelName | None = Field(default=None, description="Of the new model.")


class ComposeRequest(Schema):
    """Two models as one: the second reads what the first computes."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"first": _ID, "second": _ID, "connect": {"image": "scaled"}}]}
    )

    first: Annotated[str, Field(max_length=64)]
    second: Annotated[str, Field(max_length=64)]
    connect: dict[ValueName, ValueName] = Field(
        default_factory=dict,
        max_length=4096,
        description="The output of the first model by the input of the second that reads it; none: all that "
        "have the same name.",
    )
    prefix: Annotated[str, Field(max_length=255)] = Field(
        default="second.", description="Of names of the second model that the first has too."
    )
    name: ModelName | None = Field(default=None, description="Of the new model.")


class Origin(Schema):
    """Origin of a model: the operation and the models it was made of."""

    operation: str
    models: list[str]
    request: dict[str, Any]
