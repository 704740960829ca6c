"""Core operators; single operators: tensors in JSON, requests, answers."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from app.api.schemas.fields import Dimension, Name, Schema
from app.api.schemas.jobs import JobLimits, JobOptions

Element = StrictBool | Annotated[StrictInt, Field(ge=-(2**63), le=2**64 - 1)] | StrictFloat | str


class TensorSpec(Schema):
    """A tensor in JSON."""

    dtype: Annotated[str, Field(max_length=30)] = Field(description="As NumPy calls it, or `string`.")
    shape: list[Dimension] = Field(max_length=64)
    data: list[Element] = Field(
        description="Elements, row-major; `NaN`, `Infinity` and `-Infinity` for what is not finite."
    )


class OperandSpec(TensorSpec):
    """An input of an operator."""

    constant: bool = Field(default=False, description="Whether it is a weight, which may be packed ahead.")


class NamedTensor(TensorSpec):
    """An output of an operator."""

    name: str


class OperatorRequest(Schema):
    """An operator and what it is run on."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "op": "Add",
                    "inputs": [
                        {"dtype": "float32", "shape": [2], "data": [1.0, 2.0]},
                        {"dtype": "float32", "shape": [2], "data": [10.0, 20.0]},
                    ],
                    "options": {"backends": ["onnxruntime"]},
                }
            ]
        }
    )

    op: Name
    domain: Annotated[str, Field(max_length=255)] = ""
    opset: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="Of the domain; null takes that which models are raised to."
    )
    attributes: dict[Name, Any] = Field(
        default_factory=dict, max_length=256, description="Numbers, strings, lists of them, or a tensor."
    )
    inputs: list[OperandSpec | None] = Field(
        max_length=1024, description="In order; null for one that is left out."
    )
    outputs: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="How many; null takes the fewest that the operator allows."
    )
    implementation: Name | None = Field(
        default=None, description="A row by name, such as `conv.implicit_gemm`; null lets it be chosen."
    )
    options: JobOptions = Field(default_factory=JobOptions)
    limits: JobLimits = Field(default_factory=JobLimits)


class OperatorAnswer(Schema):
    """Outputs of an operator, and how they were computed."""

    outputs: list[NamedTensor]
    seconds: float = Field(description="Of one run, inputs and outputs in place: the least of several.")
    difference: float | None = Field(
        description="From the reference evaluator, as a fraction of the largest element; null if unknown."
    )
    decisions: list[dict[str, Any]]
    notes: list[str]


class CoreLevel(Schema):
    """A level of core operators; what has a low one is to be supported first."""

    level: int
    title: str


class CoreValue(Schema):
    """An operand or result."""

    name: str
    optional: bool
    variadic: bool
    dtypes: list[str]


class CoreAttribute(Schema):
    """An attribute."""

    name: str
    type: str
    required: bool
    default: Any = Field(description="Null where there is none.")
    meaning: str


class Spelling(Schema):
    """An operator of ONNX in core operators."""

    op: str
    how: Literal["direct", "alias", "rule", "body", "outside"] = Field(
        description="It is one; is one with other operands or attributes; is several; is what its function "
        "body in ONNX is; is not expressed."
    )
    core: list[str]
    formula: str = Field(description="In core operators; empty where it is one, or its body is the rule.")
    reason: str | None = Field(description="Why it is not expressed.")


class MxnetSpelling(Schema):
    """An operator of MXNet, with the attribute that decides; what it is read as."""

    op: str
    operators: list[str]
    core: list[str]


class StorageRule(Schema):
    """Storage types that MXNet infers: `dc>d:X` is operands default and csr, result default, COMPUTE_EX."""

    operators: list[str]
    rules: list[str]


class LanesContract(Schema):
    """Contract of an implementation about padded lanes."""

    reads: str
    leaves: str


class CoreImplementation(Schema):
    """A registered implementation, and which behaviours it states for itself."""

    name: str
    op: str = Field(description="Of its group's anchor; `Elementwise` of groups, `*` of any.")
    backend: str
    precision: str
    layouts: bool
    storage: bool
    in_place: bool
    views: bool
    padding: LanesContract


class CoreOperatorAnswer(Schema):
    """A core operator: a specification, and what is known of it everywhere."""

    name: str
    level: int
    formula: str
    shape: str = Field(description="How the shape of the first result follows.")
    broadcasts: bool
    operands: list[CoreValue]
    results: list[CoreValue]
    attributes: list[CoreAttribute]
    layout: list[str]
    storage: list[StorageRule]
    reference: dict[str, str | None] = Field(description="What evaluates it as the reference, by operator.")
    onnx: list[Spelling]
    used_by: list[str] = Field(description="Other operators of ONNX that are said with it.")
    mxnet: list[str]
    implementations: list[CoreImplementation]


class CoreOperatorList(Schema):
    """The core operators, all operators of ONNX in them, and those of MXNet that symbols may have."""

    levels: list[CoreLevel]
    operators: list[CoreOperatorAnswer]
    onnx: list[Spelling]
    mxnet: list[MxnetSpelling]
