"""Targets: described machines."""

from typing import Literal

from pydantic import ConfigDict, Field

from app.api.schemas.fields import Name, Schema, Size
from app.engine.types import backend_names
from app.engine.types.target import Device, Precision, Target
from app.jobs.worker.child_request import target_of

_PLAIN: Precision = "f32"


class MemorySpec(Schema):
    """One address space of a target."""

    name: Name
    size: Size = Field(description="Bytes.")
    alignment: Size = Field(default=64, description="Bytes; a power of two.")
    bandwidth: float = Field(default=20e9, gt=0, description="Bytes per second.")


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
        return target_of(self.model_dump())


class TargetAnswer(TargetSpec):
    """A target that jobs may name."""

    origin: Literal["probed", "preset", "described"]
    cpu_model: str = ""


class TargetList(Schema):
    """All targets: built in first, then described ones by name."""

    targets: list[TargetAnswer]
