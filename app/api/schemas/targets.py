"""Targets: described machines."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.api.schemas.fields import Name, Schema, Size
from app.engine.types import backend_names
from app.engine.types.accelerator import BACKEND
from app.engine.types.errors import TargetError
from app.engine.types.target import Device, Precision, Target
from app.jobs.worker.child_request import target_of

_PLAIN: Precision = "f32"


class MemorySpec(Schema):
    """One address space of a target."""

    name: Name
    size: Size = Field(description="Bytes.")
    alignment: Size = Field(default=64, description="Bytes; a power of two.")
    bandwidth: float = Field(default=20e9, gt=0, description="Bytes per second.")


_Short = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
_Ops = Annotated[list[_Short], Field(max_length=128)]
_Dtypes = Annotated[list[Annotated[str, Field(max_length=16)]], Field(max_length=16)]
_Value = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,62}\??$")]
_Bound = Annotated[int, Field(ge=0, le=2**53)]
_Rate = Annotated[float, Field(ge=1.0, le=1e18)]
_Microseconds = Annotated[float, Field(ge=0.0, le=1e9)]
_Pair = Field(min_length=2, max_length=2)
_Point = Annotated[list[Annotated[float, Field(ge=0.0, le=1e18)]], _Pair]


class CostSpec(Schema):
    """Time of one dispatch: `fixed_us` and the longer of computing and moving."""

    macs_per_second: _Rate | None = Field(
        default=None,
        description="Multiply-accumulates, padding included; an elementwise operation is half of one.",
    )
    bytes_per_second: _Rate | None = Field(
        default=None, description="Operands and results, padding included."
    )
    fixed_us: _Microseconds = Field(default=0.0, description="Microseconds of every dispatch.")
    points: list[_Point] = Field(
        default_factory=list,
        max_length=256,
        description="In place of `macs_per_second`: (multiply-accumulates, microseconds), rising.",
    )


class StepOperandSpec(Schema):
    """Demands of a row on an operand."""

    layouts: list[Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9]+$")]] = Field(
        default_factory=list,
        max_length=8,
        description="`NHWC`, `NCHW16c`, `AB16b`: one for each number of axes; none: row-major.",
    )
    multiple: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Of the channels: padded where these lie innermost, else required.",
    )
    memory: str = Field(default="", max_length=255, description="A memory of the target; empty: where it is.")
    dtypes: _Dtypes = Field(default_factory=list, description="In place of those of the row.")
    constant: bool = Field(default=False, description="Whether it must be one.")


class PatternNodeSpec(Schema):
    """An operator of a fused pattern; values are named as one likes."""

    op: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,62}(\|[A-Za-z][A-Za-z0-9_]{0,62}){0,15}$",
        description="One operator, or several with `|` between.",
    )
    inputs: list[_Value] = Field(max_length=16, description="One that ends with `?` may be absent.")
    outputs: list[_Value] = Field(min_length=1, max_length=16)


class LimitsSpec(Schema):
    """Bounds of one step; null and empty: none."""

    rank: _Bound | None = Field(default=None, description="Axes of any operand.")
    kernel: _Bound | None = Field(default=None, description="Of a window along each axis.")
    stride: _Bound | None = None
    dilation: _Bound | None = None
    channels: _Bound | None = Field(default=None, description="Of the first operand and of the result.")
    nbytes: _Bound | None = Field(default=None, description="Of all operands and results of a step.")
    tile: list[Annotated[int, Field(ge=1, le=2**53)]] = Field(
        default_factory=list,
        max_length=8,
        description="Largest result of one dispatch along its last axes; a larger step takes several.",
    )
    dispatches: _Bound | None = Field(default=None, description="Of one step.")
    attributes: dict[
        _Short, Annotated[list[Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | Name], Field(max_length=64)]
    ] = Field(
        default_factory=dict,
        max_length=16,
        description="Values that attributes may have where a node states them.",
    )
    depthwise: bool | None = Field(
        default=None, description="True: depthwise convolutions only; false: none of them."
    )
    zero_points: bool = Field(
        default=True,
        description="False: integer products without zero points; those of activations are moved out.",
    )


class ViewsSpec(Schema):
    """Rule of a row whose results are no copies of operands but their bytes."""

    alignment: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Bytes: a part begins at a multiple in the whole; others are copied.",
    )


class AcceleratorRowSpec(Schema):
    """A step that the device computes: one of `ops`, or all operators of `pattern` at once."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    ops: _Ops = Field(
        default_factory=list, description="Operators of ONNX; `Elementwise` is any elementwise one."
    )
    pattern: list[PatternNodeSpec] = Field(
        default_factory=list,
        max_length=16,
        description="Nodes in the order of their wiring; one value leaves, through the last.",
    )
    epilogue: _Ops = Field(
        default_factory=list, description="Elementwise operators that may follow in the same step."
    )
    dtypes: _Dtypes = Field(default_factory=lambda: ["float32"], min_length=1)
    operands: dict[Annotated[str, Field(max_length=64)], StepOperandSpec] = Field(
        default_factory=dict,
        max_length=32,
        description="By name: values of the pattern, else `in0`, `out0` and so on; `weights` are constants, "
        "`in` and `out` all others that are not named.",
    )
    inplace: list[Annotated[list[_Value], _Pair]] = Field(
        default_factory=list, max_length=16, description="(operand, result) that may be the same bytes."
    )
    reads: Literal["any", "zero"] = Field(
        default="zero", description="What it needs in padded channels of its operands."
    )
    leaves: Literal["undefined", "zero", "f(0)"] = Field(
        default="undefined", description="What it leaves in padded channels of its results."
    )
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    views: ViewsSpec | None = Field(
        default=None,
        description="Of Concat, Flatten, Gather, Identity, Reshape, Slice, Split, Squeeze, Transpose and "
        "Unsqueeze: results are bytes of the operand, or operands bytes of the result, where they can be.",
    )
    cost: CostSpec | None = Field(default=None, description="Of a step; of a row of views, of copying.")


class AcceleratorSpec(Schema):
    """A device as its data sheet tells: the backend `accelerator` of the target. See docs/accelerators.md."""

    rows: list[AcceleratorRowSpec] = Field(
        min_length=1, max_length=256, description="Patterns are matched in this order."
    )
    cost: CostSpec | None = Field(
        default=None, description="Of rows without one; null: from the target's `flops` and bandwidth."
    )
    conversion: CostSpec | None = Field(
        default=None, description="Of changes of layout; null: from the bandwidth of the first memory."
    )
    control_flow: bool = Field(
        default=False, description="Whether it runs the bodies of If, Loop and Scan; the host chooses which."
    )


_EXAMPLE: JsonDict = {
    "name": "acme-npu",
    "device": "model",
    "memories": [
        {"name": "dram", "size": 2**30, "bandwidth": 8e9},
        {"name": "sram", "size": 2**20, "alignment": 32, "bandwidth": 64e9},
    ],
    "backends": ["accelerator", "numba-cpu", "reference"],
    "accelerator": {
        "cost": {"macs_per_second": 1e12, "bytes_per_second": 8e9, "fixed_us": 3},
        "rows": [
            {
                "name": "conv",
                "ops": ["Conv"],
                "epilogue": ["Relu"],
                "operands": {
                    "in": {"layouts": ["NHWC"], "multiple": 32},
                    "out": {"layouts": ["NHWC"], "multiple": 32},
                    "weights": {"memory": "sram"},
                },
                "leaves": "zero",
                "limits": {"kernel": 7, "tile": [64, 128, 128]},
            }
        ],
    },
}


class TargetSpec(Schema):
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
                },
                _EXAMPLE,
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
    accelerator: AcceleratorSpec | None = Field(
        default=None,
        description="Describes the backend `accelerator`; times of it are predicted, not measured.",
    )

    def to_target(self) -> Target:
        """The engine's target.

        Raises:
            TargetError: the description contradicts itself, or names a backend that there is not.
        """
        backend_names.check(self.backends, backend_names.names(), "/backends")
        if self.accelerator is not None and BACKEND not in self.backends:
            raise TargetError(
                f"target {self.name!r} describes an accelerator, its backends lack it; add {BACKEND!r}",
                pointer="/backends",
            )
        return target_of(self.model_dump())


class TargetAnswer(TargetSpec):
    """A target that jobs may name."""

    origin: Literal["probed", "preset", "described"]
    cpu_model: str = ""


class TargetList(Schema):
    """All targets: built in first, then described ones by name."""

    targets: list[TargetAnswer]
