"""Jobs: options, requests, answers."""

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from app.api.schemas.fields import (
    Dimension,
    Integer,
    Labels,
    Name,
    Scalar,
    Schema,
    Sha256,
    ShapeDimension,
    Size,
    State,
)
from app.engine.types import backend_names
from app.engine.types.errors import InputError
from app.engine.types.options import (
    Choose,
    ErrorMetric,
    Export,
    Options,
    Policy,
    Preference,
    Semantics,
    Timings,
)
from app.engine.types.regions.region import region_of, weighted_points
from app.engine.types.storage import DeclaredStorage

_DEFAULTS = Options()


class JobOptions(Schema):
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
    error_budget: float | None = Field(
        default=_DEFAULTS.error_budget,
        gt=0,
        le=1,
        description="What outputs may differ by from those in float32, as `error_metric` has it. Each "
        "product with constant weights takes the precision that is fastest by measurement within it: 8 and 4 "
        "bits among them. `quantized.onnx` is that model, `precision.json` the choice.",
        examples=[0.01],
    )
    error_metric: ErrorMetric = Field(
        default=_DEFAULTS.error_metric,
        description="`max`: largest difference as a fraction of the output's maximum. `cosine`: 1 less the "
        "cosine of both. `top1`: fraction of rows whose largest element is another.",
    )
    autotune: bool = Field(
        default=_DEFAULTS.autotune,
        description="Whether implementations are measured before they are chosen, where the target is here.",
    )
    quick: bool = Field(
        default=_DEFAULTS.quick,
        description="Whether nothing is measured: the plan by predicted times alone, and no benchmark.",
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
    opset: int | None = Field(
        default=_DEFAULTS.opset,
        ge=7,
        le=1000,
        description="Of `optimized.onnx`; null takes that which the graph is planned in. A node without a "
        "spelling in it fails the job, which names all such nodes.",
    )
    external_data: bool = Field(
        default=_DEFAULTS.external_data,
        description="Whether large weights of `optimized.onnx` are in `optimized.onnx.data` beside it.",
    )
    export: list[Export] = Field(
        default=list(_DEFAULTS.export),
        max_length=4,
        description="Libraries of the program for its target: a CPU of x86-64 or 64-bit ARM. `c`: "
        "`library.tar.gz` with a shared library, objects, a header and an example. `wheel`: `module.whl`, a "
        "Python module that needs numpy alone. `ort`: `operator.tar.gz`, a graph of one operator and the "
        "library that a session of onnxruntime registers. `static`: `static.tar.gz`, one object for a device "
        "without an operating system; needs `threads` 1. A program that needs more than compiled kernels "
        "fails the job, which names the nodes.",
        examples=[["c", "wheel", "ort"]],
    )
    export_name: str = Field(
        default=_DEFAULTS.export_name,
        max_length=100,
        description="Of the Python module and the archive; empty takes the name of the graph.",
        examples=["resnet50"],
    )

    def to_options(self) -> Options:
        """The engine's options.

        Raises:
            UnknownBackendError: a backend is asked for that there is not.
        """
        backend_names.check(self.backends, backend_names.names())
        return Options(**self.model_dump() | {"backends": tuple(self.backends), "export": tuple(self.export)})


class ExportRequest(Schema):
    """Libraries of a program that a job planned."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"formats": ["c", "ort"], "name": "resnet50"}]})

    formats: list[Export] = Field(
        min_length=1, max_length=4, description="As the option `export` has them.", examples=[["c", "wheel"]]
    )
    name: str = Field(default="", max_length=100, description="As the option `export_name`.")


class JobLimits(Schema):
    """Limits of the job's process; null stands for what the service allows, which is the maximum."""

    seconds: float | None = Field(default=None, gt=0)
    memory_bytes: Size | None = None


class InputStorage(Schema):
    """Sparse storage type of an input or another value, and the most that it holds: a number, or a share."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"storage": "csr", "nnz": 5000}]})

    storage: Literal["csr", "row_sparse"] = Field(
        description="`csr`: a matrix of which elements are stored. `row_sparse`: rows are."
    )
    nnz: Dimension | None = Field(default=None, description="Most elements that a csr value stores.")
    rows: Dimension | None = Field(default=None, description="Most rows that a row_sparse value stores.")
    density: float | None = Field(default=None, gt=0, le=1, description="The same as a share of all.")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        own, other = ("nnz", "rows") if self.storage == "csr" else ("rows", "nnz")
        if getattr(self, other) is not None:
            raise ValueError(f"{self.storage} takes {own!r} or 'density', not {other!r}")
        if (getattr(self, own) is None) == (self.density is None):
            raise ValueError(f"state either {own!r} or 'density'")
        return self

    def to_declared(self) -> DeclaredStorage:
        """As the engine has it."""
        return DeclaredStorage(self.storage, self.nnz if self.storage == "csr" else self.rows, self.density)


class ExpectedShape(Schema):
    """A shape of a region of shapes, and how often it is expected relative to others."""

    sizes: dict[Name, Dimension] = Field(description="Sizes by symbol: all of them.", max_length=64)
    weight: float = Field(gt=0, allow_inf_nan=False, description="Relative to the others; of any unit.")


class BindingsRequest(Schema):
    """Shapes, values and ranges of a model's inputs."""

    input_shapes: dict[Name, list[ShapeDimension]] = Field(
        default_factory=dict,
        description="Dimensions by input name: numbers, or symbols whose sizes one program serves: `N<=8` (1 "
        "to 8), `H:32..640%32` (multiples of 32), `N` (the same size as where its bounds are spelled), "
        "`P+1` or `2*N` (sums of sizes).",
        max_length=4096,
    )
    shape_histogram: list[ExpectedShape] = Field(
        default_factory=list,
        description="Shapes that are expected, where `input_shapes` has symbols: plans are compared by their "
        "mean time there. Without any, corners and middle of the region count equally.",
        max_length=16,
        examples=[
            [{"sizes": {"N": 1, "L": 128}, "weight": 0.9}, {"sizes": {"N": 8, "L": 64}, "weight": 0.1}]
        ],
    )
    input_values: dict[Name, Scalar] = Field(
        default_factory=dict, description="Scalars by input name; they become constants.", max_length=4096
    )
    input_ranges: dict[Name, tuple[Integer, Integer]] = Field(
        default_factory=dict,
        description="Half-open ranges from which random values of integer inputs are drawn.",
        max_length=4096,
    )
    input_storage: dict[Name, InputStorage] = Field(
        default_factory=dict,
        description="Sparse storage types by input name. Runs whose inputs hold more are refused.",
        max_length=4096,
    )
    value_storage: dict[Name, InputStorage] = Field(
        default_factory=dict,
        description="The same by name of a value that a node makes. Runs are refused in which one that is "
        "stored sparse holds more.",
        max_length=4096,
    )
    inputs: dict[Name, Sha256] = Field(
        default_factory=dict,
        description="Tensors by input name: blobs of `.npy` files, or of `.npz` files with the parts of a "
        "csr matrix, as `scipy.sparse.save_npz` writes them. They bind the shapes of their inputs. "
        "Outputs come back as `outputs.npz`.",
        max_length=4096,
    )
    samples: Sha256 | None = Field(
        default=None,
        description="Samples that precisions are calibrated and checked on under an `error_budget`: blob of "
        "an `.npz` file with an array `[samples, ...shape]` for each input. Every second one is held back "
        "for the error. Without any, random ones are drawn, and the result says so.",
    )
    options: JobOptions = Field(default_factory=JobOptions)
    limits: JobLimits = Field(default_factory=JobLimits)

    @field_validator("input_shapes")
    @classmethod
    def _symbols(cls, shapes: dict[str, list[int | str]]) -> dict[str, list[int | str]]:
        try:
            region_of(shapes)
        except InputError as error:
            raise ValueError(error.message) from None
        return shapes

    @model_validator(mode="after")
    def _expected(self) -> Self:
        try:
            weighted_points(region_of(self.input_shapes), [e.model_dump() for e in self.shape_histogram])
        except InputError as error:
            raise ValueError(error.message) from None
        return self


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


class Progress(Schema):
    """How far a job is."""

    phase: str
    done: int
    total: int


class Artifact(Schema):
    """A file that a job made."""

    name: str
    url: str
    size: int = Field(description="Bytes.")
    sha256: str
    media_type: str


class JobAnswer(Schema):
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


class GroupAnswer(Schema):
    """The jobs of one request for several targets, in its order."""

    id: str
    jobs: list[JobAnswer]


class JobList(Schema):
    """Jobs, latest first."""

    jobs: list[JobAnswer]
    next: str | None = Field(description="Cursor of the next page; null on the last.")
