"""Storage type of every value and dispatch mode of every node."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.plan import Compilation
from app.engine.storage import DispatchMode, StorageType


@dataclass(frozen=True)
class InferStorage:
    """Values are dense; a node that only the reference evaluator can run falls back."""

    fallback_backend: str = "reference"

    name: ClassVar[str] = "infer_storage"
    reads: ClassVar[tuple[str, ...]] = ("partition", "fusion")
    writes: ClassVar[tuple[str, ...]] = ("storage", "dispatch")
    keeps: ClassVar[tuple[str, ...]] = ("partition", "fusion", "layout")

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the columns `storage` and `dispatch`."""
        partition = compilation.plan.partition
        assert partition is not None
        storage = {value: storage_type(value) for value in graph.values(compilation.graph)}
        dispatch = {
            node: DispatchMode.FALLBACK
            if partition[node].backend == self.fallback_backend
            else DispatchMode.COMPUTE
            for node in compilation.graph
        }
        return compilation.with_plan(storage=storage, dispatch=dispatch)


def storage_type(value: ir.Value) -> StorageType:
    """Dense, of the value's dtype; the density of a constant is measured."""
    kind = graph.dtype(value)
    name = kind.name if kind is not None else str(value.dtype or value.type or "unknown").lower()
    fixed = kind is not None and graph.constant(value) is not None
    return StorageType("default", name, graph.fact(value, "density", _density) if fixed else 1.0)


def _density(array: np.ndarray[Any, Any]) -> float:
    return float(np.count_nonzero(array) / array.size) if array.size else 1.0
