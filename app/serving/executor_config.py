"""Configuration of an executor process: JSON, so that it needs neither the database nor the settings."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """One deployed model.

    Attributes:
        id: of the deployment.
        name: that callers use.
        version: of the name.
        data: folder of the service.
        engine: module with `ServedModel`.
        model: path of the graph.
        external: paths of the graph's external data by the names that it uses.
        options: fields of `Options`.
        bindings: fields of `Bindings`.
        kernels: folder of compiled kernels.
        weights: folder of packed weights.
        tune: whether programs of the job's shapes may be measured, see `ServedModel`.
        instances: of each program, which run at once on cores of their own.
        batches: numbers of requests that are computed together, ascending; none where each runs alone.
        batch_seconds: that a request waits at most for others of its batch.
        programs: shapes that are kept compiled at once.
        infer_seconds: that one run may take.
        build_seconds: that the program of one shape may take to come.
        memory_bytes: limit of the process.
        log: format and level.
    """

    id: str
    name: str
    version: str
    data: str
    engine: str
    model: str
    external: Mapping[str, str]
    options: Mapping[str, Any]
    bindings: Mapping[str, Any]
    kernels: str
    weights: str
    tune: bool
    instances: int
    batches: tuple[int, ...]
    batch_seconds: float
    programs: int
    infer_seconds: float
    build_seconds: float
    memory_bytes: int
    log: tuple[str, str]

    def to_json(self) -> str:
        """The config as the process reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The config that `to_json` wrote."""
        given: dict[str, Any] = json.loads(text)
        return cls(**given | {"log": tuple(given["log"]), "batches": tuple(given["batches"])})
