"""Requests to a child process and its answers: JSON both ways, never objects."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from app.engine.types.accelerator import accelerator_of
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import bound, piece_of, weighted_points
from app.engine.types.storage import DeclaredStorage
from app.engine.types.target import Memory, Target

Kind = Literal["prepare", "optimize", "validate", "inspect", "operator", "derive", "capacity"]

QUANTIZED = "quantized.onnx"  # the model that a job with an error budget planned
# The files that an optimization may leave in its folder; any other name is ignored.
ARTIFACTS: Mapping[str, str] = {
    "optimized.onnx": "application/octet-stream",
    "optimized.onnx.data": "application/octet-stream",
    "optimized.functions.onnx": "application/octet-stream",
    "optimized.inlined.onnx": "application/octet-stream",
    "plan.json": "application/json",
    "plan.txt": "text/plain; charset=utf-8",
    "memory.json": "application/json",
    "memory.html": "text/html; charset=utf-8",
    "timings.json": "application/json",
    "trace.json": "application/json",
    "decisions.json": "application/json",
    "graph.json": "application/json",
    "report.html": "text/html; charset=utf-8",
    "outputs.npz": "application/octet-stream",
    QUANTIZED: "application/octet-stream",
    "precision.json": "application/json",
    "library.tar.gz": "application/gzip",
    "module.whl": "application/zip",
    "operator.tar.gz": "application/gzip",
    "static.tar.gz": "application/gzip",
    "model.onnx": "application/octet-stream",
    "model-symbol.json": "application/json",
    "model-0000.params": "application/octet-stream",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one child process."""

    seconds: float
    memory_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """One call of the engine.

    Attributes:
        kind: which of the engine's functions.
        folder: where artifacts go.
        kernels: folder of compiled kernels, kept from job to job.
        limits: what the child may use.
        benchmark_lock: path of the machine's lock on benchmarks.
        model: path of the graph; empty for an operator, and to prepare.
        external: paths of the graph's external data by the names that it uses.
        private: the service's data folder, of which the child may read what is named here only.
        target: description of the machine; None for this one and for an inspection.
        options: fields of `Options` that are not the default.
        bindings: fields of `Bindings`; tensors by path.
        operator: what to run, see `app.engine.entry.run_operator`.
        operation: what to do with models, see `app.engine.entry.derive`; those beside the first are tensors
            of the bindings.
        capacity: bounds on a deployment, see `app.engine.entry.capacity`.
    """

    kind: Kind
    folder: str
    kernels: str
    limits: Limits
    benchmark_lock: str
    model: str = ""
    external: Mapping[str, str] = field(default_factory=dict)
    private: str = ""
    target: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    bindings: Mapping[str, Any] = field(default_factory=dict)
    operator: Mapping[str, Any] = field(default_factory=dict)
    operation: Mapping[str, Any] = field(default_factory=dict)
    capacity: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The request as a child reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """The request that `to_json` wrote."""
        given = json.loads(text)
        return cls(**given | {"limits": Limits(**given["limits"])})

    @property
    def external_paths(self) -> dict[str, Path]:
        """Paths of external data, as the engine takes them."""
        return {name: Path(path) for name, path in self.external.items()}


def target_of(spec: Mapping[str, Any]) -> Target:
    """The target that `dataclasses.asdict` took apart, after a trip through JSON.

    Raises:
        TargetError: the description contradicts itself.
    """
    accelerator = spec.get("accelerator")  # absent from descriptions kept by earlier versions
    return Target(
        **_with_tuples(spec)
        | {
            "memories": tuple(Memory(**m) for m in spec["memories"]),
            "accelerator": None if accelerator is None else accelerator_of(accelerator),
        }
    )


def options_of(spec: Mapping[str, Any]) -> Options:
    """The options of a request."""
    return Options(**_with_tuples(spec))


def bindings_of(spec: Mapping[str, Any]) -> Bindings:
    """The bindings of a request; shapes with symbols are a region.

    Raises:
        InputError: a symbol is spelled wrongly, see `region.region_of`, or an expected shape lies outside.
    """
    shapes, region = bound(spec.get("shapes", {}))
    return Bindings(
        shapes=shapes,
        region=region,
        shape_histogram=weighted_points(region, spec.get("shape_histogram", ())),
        pieces=tuple(map(piece_of, spec.get("pieces", ()))),
        values=dict(spec.get("values", {})),
        tensors=dict(spec.get("tensors", {})),
        samples=spec.get("samples", ""),
        ranges={k: (v[0], v[1]) for k, v in spec.get("ranges", {}).items()},
        storage={k: DeclaredStorage(**v) for k, v in spec.get("storage", {}).items()},
        value_storage={k: DeclaredStorage(**v) for k, v in spec.get("value_storage", {}).items()},
    )


def _with_tuples(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items()}
