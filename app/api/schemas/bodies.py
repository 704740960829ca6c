"""Bodies of requests and answers. Unknown fields are refused."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from app.engine.memory.csv_table import LARGEST
from app.engine.types import backend_names
from app.engine.types.options import Choose, Options, Policy, Preference, Semantics, Timings
from app.engine.types.target import Device, Memory, Precision, Target
from app.jobs.comparison import Objective

_PLAIN: Precision = "f32"
Sha256 = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 in lower-case hexadecimal digits.",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=255)]
_MAX_INTEGER = 2**63 - 1
# The greedy placement is quadratic: about two seconds for so many.
MOST_BUFFERS = 30_000
Size = Annotated[int, Field(ge=1, le=_MAX_INTEGER)]
Dimension = Annotated[int, Field(ge=0, le=_MAX_INTEGER)]
Integer = Annotated[int, Field(ge=-(2**63), le=_MAX_INTEGER)]
Scalar = StrictBool | Annotated[StrictInt, Field(ge=-(2**63), le=_MAX_INTEGER)] | StrictFloat
Scope = Literal["read", "submit", "admin"]
State = Literal["queued", "waiting_for_target", "running", "succeeded", "failed", "cancelled"]


Label = Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
Labels = Annotated[
    dict[Label, Annotated[str, Field(max_length=255, pattern=r"^[^\x00]*$")]], Field(max_length=32)
]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ProblemDetail(_Schema):
    """One thing that is wrong, and where."""

    pointer: str = Field(description="JSON pointer into the body, or `query:name`, `path:name`, `node:name`.")
    message: str


class DeployRequest(_Schema):
    """A name for what a job made."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "resnet50"}]})

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    version: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Without one, the next after the latest of the name."
    )


class DeploymentAnswer(_Schema):
    """One version of a deployed model."""

    name: str
    version: str
    job: str
    model: str
    owner: str
    created: float = Field(description="Seconds since the epoch.")
    state: Literal["starting", "loading", "ready", "failed"]
    detail: str | None = Field(description="Why it failed.")
    programs: int = Field(description="Input shapes that are compiled now.")
    url: str = Field(description="Where its metadata are; inferences go to `/infer` below.")


class DeploymentList(_Schema):
    """All deployed models of the caller."""

    deployments: list[DeploymentAnswer]


class Problem(_Schema):
    """A failure, as RFC 9457 has it."""

    type: str = Field(description="Address of the description of `code`.")
    title: str
    status: int
    detail: str
    instance: str
    code: str = Field(description="Stable name of the failure, for programs.")
    errors: list[ProblemDetail]
    request_id: str


class ProblemKindAnswer(_Schema):
    """A stable code and what it means."""

    code: str
    title: str
    status: int | None = Field(description="Status of answers with this code; null where only jobs have it.")


class MemorySpec(_Schema):
    """One address space of a target."""

    name: Name
    size: Size = Field(description="Bytes.")
    alignment: Size = Field(default=64, description="Bytes; a power of two.")
    bandwidth: float = Field(default=20e9, gt=0, description="Bytes per second.")


class TargetSpec(_Schema):
    """A described machine; `memories[0]` is where activations live."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "small-board",
                    "device": "cpu",
                    "isa": ["avx2", "fma"],
                    "vector_lanes": 8,
                    "cores": 2,
                    "caches": [32768, 524288],
                    "memories": [{"name": "dram", "size": 268435456, "bandwidth": 8e9}],
                    "backends": ["numba-cpu", "reference"],
                    "precisions": ["f32"],
                    "memory_budget": 67108864,
                }
            ]
        }
    )

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    device: Device = "cpu"
    isa: list[Name] = Field(default_factory=list, max_length=64)
    vector_lanes: int = Field(default=8, ge=1, le=4096, description="float32 elements in a register.")
    cores: int = Field(default=1, ge=1, le=1_000_000)
    caches: list[Size] = Field(
        default_factory=lambda: [32 * 1024, 1024 * 1024, 32 * 1024 * 1024],
        max_length=8,
        description="Bytes; first level first.",
    )
    memories: list[MemorySpec] = Field(
        default_factory=lambda: [MemorySpec(name="dram", size=8 * 2**30)], min_length=1, max_length=16
    )
    backends: list[Name] = Field(
        default_factory=lambda: ["numba-cpu", "reference"], min_length=1, max_length=16
    )
    precisions: list[Precision] = Field(default_factory=lambda: [_PLAIN], min_length=1, max_length=8)
    memory_budget: Size | None = Field(default=None, description="Bytes; null means the first memory's size.")
    flops: float = Field(default=50e9, gt=0, description="Operations per second of one core, f32.")
    launch: float = Field(default=1e-7, ge=0, description="Seconds to start one kernel.")

    def to_target(self) -> Target:
        """The engine's target.

        Raises:
            TargetError: the description contradicts itself, or names a backend that there is not.
        """
        backend_names.check(self.backends, backend_names.names(), "/backends")
        return Target(
            name=self.name,
            device=self.device,
            isa=tuple(self.isa),
            vector_lanes=self.vector_lanes,
            cores=self.cores,
            caches=tuple(self.caches),
            memories=tuple(Memory(m.name, m.size, m.alignment, m.bandwidth) for m in self.memories),
            backends=tuple(self.backends),
            precisions=tuple(self.precisions),
            memory_budget=self.memory_budget,
            flops=self.flops,
            launch=self.launch,
        )


class TargetAnswer(TargetSpec):
    """A target that jobs may name."""

    origin: Literal["probed", "preset", "described"]
    cpu_model: str = ""

    @classmethod
    def of(cls, target: Target, origin: Literal["probed", "preset", "described"]) -> "TargetAnswer":
        """The answer for an engine's target."""
        return cls.model_validate(asdict(target) | {"origin": origin})


class TargetList(_Schema):
    """All targets: built in first, then described ones by name."""

    targets: list[TargetAnswer]


_DEFAULTS = Options()


class JobOptions(_Schema):
    """Options of an optimization."""

    timings: Timings = Field(
        default=_DEFAULTS.timings,
        description="`measured` runs on the target, `predicted` never does, `auto` measures when it can.",
    )
    memory_budget: Size | None = Field(
        default=_DEFAULTS.memory_budget, description="Bytes for activations; null takes the target's."
    )
    prefer: Preference = Field(
        default=_DEFAULTS.prefer,
        description="`latency`: the fastest plan that fits the budget; `memory`: the smallest arena found, "
        "with a proved bound.",
    )
    pareto: bool = Field(
        default=_DEFAULTS.pareto,
        description="Whether to report the plans found of which none is both smaller and faster.",
    )
    fuse: bool = Field(default=_DEFAULTS.fuse, description="Whether operators may share a kernel.")
    inplace: bool = Field(
        default=_DEFAULTS.inplace, description="Whether results may take the bytes of a dead operand."
    )
    verify: bool = Field(default=_DEFAULTS.verify, description="Whether to compare with the original.")
    tolerance: float = Field(
        default=_DEFAULTS.tolerance, gt=0, le=1, description="As a fraction of an output's maximum."
    )
    seed: int = Field(default=_DEFAULTS.seed, ge=0, le=2**32 - 1, description="Of random inputs.")
    threads: int = Field(default=_DEFAULTS.threads, ge=1, le=1024)
    fast_algorithms: bool = Field(
        default=_DEFAULTS.fast_algorithms,
        description="Whether Winograd's and Strassen's algorithms and weights in 24 bits of fixed point "
        "may be used, far inside the tolerance.",
    )
    precision: Policy = Field(
        default=_DEFAULTS.precision,
        description="Of arithmetic on float32 models; what the target lacks is reported as not applicable.",
    )
    autotune: bool = Field(
        default=_DEFAULTS.autotune,
        description="Whether implementations are measured before they are chosen, where the target is here.",
    )
    backends: list[Name] = Field(
        default_factory=list,
        max_length=16,
        description="In order of preference; empty takes the target's. `reference` always comes last.",
        examples=[["numba-cpu", "onnxruntime", "openvino"]],
    )
    choose: Choose = Field(
        default=_DEFAULTS.choose,
        description="`first`: every node to the first backend that can run it. `auto`: so, unless a library "
        "runs the whole model faster, by measurement on the service's machine. `measured`: sub-graphs to the "
        "backend that is fastest there, conversions included.",
    )
    benchmark_seconds: float = Field(default=_DEFAULTS.benchmark_seconds, ge=0, le=600)
    semantics: Semantics = Field(
        default=_DEFAULTS.semantics,
        description="How storage types are inferred: by shape, type, density and cost (`stowplan`), or as "
        "MXNet 1.9.1 does, casts included (`mxnet-1.9`).",
    )

    def to_options(self) -> Options:
        """The engine's options.

        Raises:
            UnknownBackendError: a backend is asked for that there is not.
        """
        backend_names.check(self.backends, backend_names.names())
        return Options(**self.model_dump() | {"backends": tuple(self.backends)})


class JobLimits(_Schema):
    """Limits of the job's process; null stands for what the service allows, which is the maximum."""

    seconds: float | None = Field(default=None, gt=0)
    memory_bytes: Size | None = None


class BindingsRequest(_Schema):
    """Known shapes, values and ranges of a model's inputs."""

    input_shapes: dict[Name, list[Dimension]] = Field(
        default_factory=dict, description="Dimensions by input name.", max_length=4096
    )
    input_values: dict[Name, Scalar] = Field(
        default_factory=dict, description="Scalars by input name; they become constants.", max_length=4096
    )
    input_ranges: dict[Name, tuple[Integer, Integer]] = Field(
        default_factory=dict,
        description="Half-open ranges from which random values of integer inputs are drawn.",
        max_length=4096,
    )
    inputs: dict[Name, Sha256] = Field(
        default_factory=dict,
        description="Tensors by input name: blobs of `.npy` files. They bind the shapes of their inputs. "
        "Outputs come back as `outputs.npz`.",
        max_length=4096,
    )
    options: JobOptions = Field(default_factory=JobOptions)
    limits: JobLimits = Field(default_factory=JobLimits)


class JobRequest(BindingsRequest):
    """An optimization of a model for one target, or for several: then a group of jobs, one each."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "9f86d081884c7d659a2feaa0c55ad015",
                    "targets": ["host"],
                    "input_shapes": {"x": [1, 3, 224, 224]},
                    "options": {"threads": 1},
                }
            ]
        }
    )

    model: Name
    targets: list[Name] = Field(min_length=1, max_length=64)
    labels: Labels = Field(default_factory=dict, description="Values by name, to find the job again.")
    reuse: bool = Field(
        default=True,
        description="Whether the result of an equal job may be the answer, at once: `cached_from` says so.",
    )


class JobConstraints(_Schema):
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


class ValidateRequest(BindingsRequest):
    """The same question as a job, without running it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"target": "host", "input_shapes": {"x": [1, 3, 224, 224]}}]}
    )

    target: Name = "host"


class Finding(_Schema):
    """Something that would stop an optimization."""

    code: str
    detail: str
    pointer: str


class ValidateAnswer(_Schema):
    """Problems that would stop an optimization; none when `problems` is empty."""

    model: str
    target: str
    valid: bool
    problems: list[Finding]


ModelName = Annotated[
    str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$", examples=["squeezenet.onnx"])
]


class ModelRequest(_Schema):
    """Changeable fields of a model."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "squeezenet 1.1"}]})

    name: ModelName


class ModelManifest(_Schema):
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
        "or its last part.",
        max_length=4096,
    )


class ModelAnswer(_Schema):
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


class ModelList(_Schema):
    """Models, latest first."""

    models: list[ModelAnswer]
    next: str | None = Field(description="Cursor of the next page; null on the last.")


class LabelsRequest(_Schema):
    """All labels of a model or a job; those that it had before go."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"labels": {"team": "vision", "keep": "yes"}}]})

    labels: Labels


class BlobAnswer(_Schema):
    """Bytes that the service holds."""

    sha256: str
    size: int


class Progress(_Schema):
    """How far a job is."""

    phase: str
    done: int
    total: int


class Artifact(_Schema):
    """A file that a job made."""

    name: str
    url: str
    size: int = Field(description="Bytes.")
    sha256: str
    media_type: str


class JobAnswer(_Schema):
    """A job. `code`, `detail` and `pointer` tell why it failed, or what it waits for."""

    id: str
    group: str
    state: State
    model: str
    model_name: str = Field(description="What its model is called now; the start of its id without a name.")
    target: str
    progress: Progress
    artifacts: list[Artifact]
    summary: dict[str, Any] | None
    code: str | None
    detail: str | None
    pointer: str | None
    created: float = Field(description="Seconds since the epoch.")
    started: float | None
    finished: float | None
    owner: str = Field(description="Whom it belongs to; empty where there are no keys.")
    labels: dict[str, str]
    cached_from: str | None = Field(
        description="The job whose result this one shares, where one had it already."
    )


class Alternative(_Schema):
    """An implementation that a step might have had."""

    name: str
    backend: str
    seconds: float | None = Field(description="What it would take; null where its predicate refuses.")
    measured: bool = Field(description="Whether that time was measured on the target.")
    bytes: int | None = Field(default=None, description="Operands in its layouts, and its workspace.")
    layouts: dict[str, str] = Field(default={}, description="Values that it has other than row-major.")
    reason: str | None = Field(description="Why it was not taken; null where another costs less.")


class Padding(_Schema):
    """The contract of a step about padded lanes, and what those of its values hold."""

    reads: str
    leaves: str
    values: dict[str, str | None]


class DecisionAnswer(_Schema):
    """Reasons for the choice of a step, and its alternatives."""

    subject: str = Field(description="Its name; of a step in a body the path, `loop/body/add`.")
    parent: str | None = Field(default=None, description="The step that runs the body that it is in.")
    op: str
    nodes: list[str]
    chosen: str
    backend: str
    precision: str = Field(default="f32", description="Of its products of float32.")
    seconds: float | None
    bytes: int | None = None
    reason: str
    measured: bool
    error: float | None
    fallback: bool
    why_not_blocked: str | None = Field(
        default=None, description="Null where the step reads or writes blocked values."
    )
    alternatives: list[Alternative]
    storage: dict[str, dict[str, Any] | None]
    layout: dict[str, dict[str, Any] | None]
    padding: Padding | None = None
    dispatch: dict[str, str]


class DecisionList(_Schema):
    """Steps in order of execution."""

    decisions: list[DecisionAnswer]


class GroupAnswer(_Schema):
    """The jobs of one request for several targets, in its order."""

    id: str
    jobs: list[JobAnswer]


class ComparedJob(_Schema):
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


class JobGroupAnswer(_Schema):
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


class JobList(_Schema):
    """Jobs, latest first."""

    jobs: list[JobAnswer]
    next: str | None = Field(description="Cursor of the next page; null on the last.")


Element = StrictBool | Annotated[StrictInt, Field(ge=-(2**63), le=2**64 - 1)] | StrictFloat | str


class TensorSpec(_Schema):
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


class OperatorRequest(_Schema):
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


class OperatorAnswer(_Schema):
    """Outputs of an operator, and how they were computed."""

    outputs: list[NamedTensor]
    seconds: float = Field(description="Of one run, inputs and outputs in place: the least of several.")
    difference: float | None = Field(
        description="From the reference evaluator, as a fraction of the largest element; null if unknown."
    )
    decisions: list[dict[str, Any]]
    notes: list[str]


class KeyRequest(_Schema):
    """A key to be made."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "scope": "submit"}]})

    name: Name = Field(description="What it is for, for people.")
    scope: Scope
    owner: Name | None = Field(
        default=None,
        description="Whom models and jobs belong to that are made with it: the key itself unless given.",
    )
    require_keys: bool = Field(
        default=False,
        description="Needed for the first key: everybody without a key is locked out from then on.",
    )


class KeyAnswer(_Schema):
    """A key, without its text."""

    id: str
    name: str
    owner: str
    scope: Scope
    created: float = Field(description="Seconds since the epoch.")
    used: float | None = Field(description="When it was last seen, to the minute.")
    revoked: float | None


class NewKeyAnswer(KeyAnswer):
    """A key that was just made."""

    key: str = Field(description="What to send as `Authorization: Bearer …`; it is told this once.")


class KeyList(_Schema):
    """All keys, oldest first."""

    keys: list[KeyAnswer]


class Health(_Schema):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(_Schema):
    """The service can take work; `warnings` tells what it lacks to finish it."""

    status: Literal["ready"] = "ready"
    workers: int
    warnings: list[str]


Step = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
Nbytes = Annotated[StrictInt, Field(ge=0, le=LARGEST)]


class BufferSpec(_Schema):
    """Bytes that must stay together while they live, in the half-open steps [lower, upper)."""

    id: Name
    lower: Step
    upper: Step
    size: Nbytes
    alignment: Annotated[StrictInt, Field(ge=1, le=LARGEST)] = 1


class MemoryPlanRequest(_Schema):
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


class MemoryPlanAnswer(_Schema):
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
