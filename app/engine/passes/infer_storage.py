"""Storage type of every value and dispatch mode of every node."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.cache import Cache
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.storage.bounds import Stored, after_mxnet
from app.engine.storage.casts import insert_casts, insert_dense
from app.engine.storage.choice import Sparse, chosen
from app.engine.storage.inference import StorageColumns, inferred, symbol_of
from app.engine.types.storage import DispatchMode, StorageKind, StorageType

_DENSE: StorageKind = "default"
_SHOWN = 20  # values that a note names


@dataclass(frozen=True)
class InferStorage:
    """How values are stored: as this project chooses, or as MXNet would (`options.semantics`).

    By itself the project stores values of a run dense, but for those that the job declares sparse and for
    gradients of gathered rows, where that saves time. Outputs are dense, but for those of them that the model
    declares sparse. The storage type of a constant is the choice of an implementation, by cost. A node that
    only the reference evaluator can run falls back.
    """

    fallback_backend: str = "reference"

    name: ClassVar[str] = "infer_storage"
    reads: ClassVar[tuple[str, ...]] = ("partition", "fusion")
    writes: ClassVar[tuple[str, ...]] = ("partition", "fusion", "storage", "dispatch")
    keeps: ClassVar[tuple[str, ...]] = ("passed_over",)

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the columns `storage` and `dispatch`; where MXNet casts, nodes that cast into the graph.

        Raises:
            GraphError: an operator takes no operands of the storage types that MXNet infers for it.
        """
        if compilation.options.semantics == "mxnet-1.9":
            return self._as_mxnet(compilation)
        storage = {value: storage_type(value, compilation.cache) for value in graph.values(compilation.graph)}
        outputs = returned(compilation)
        notes = _passed_over(compilation)
        found, told = chosen(compilation, declared(compilation), outputs)
        compilation = compilation.with_plan(storage={**storage, **found.storage})
        compilation = replace(compilation, notes=(*compilation.notes, *notes, *told))
        if found.storage:
            compilation = insert_dense(compilation, found.required, outputs, found.cast)
        return compilation.with_plan(dispatch=self._dispatch(compilation, _modes(found)))

    def _as_mxnet(self, compilation: Compilation) -> Compilation:
        stated = declared(compilation)
        kinds = {value: storage.kind for value, storage in stated.items()}
        found = inferred(compilation.graph, compilation.registry, _DENSE, kinds)
        # MXNet infers without shapes; here a buffer of csr is a matrix, and other values are stored dense.
        shapeless = [v for v, kind in found.kinds.items() if kind == "csr" and len(graph.shape(v) or ()) != 2]
        kinds = {**found.kinds, **dict.fromkeys(shapeless, _DENSE)}
        storage = {v: storage_type(v, compilation.cache, kinds[v]) for v in graph.values(compilation.graph)}
        storage |= stated
        for node in compilation.graph:
            symbol = symbol_of(node, compilation.registry)
            for value in node.outputs:
                if symbol is not None and storage[value].kind != _DENSE:
                    operands = [
                        Stored(storage[v], graph.static_shape(v)) for v in node.inputs if v is not None
                    ]
                    result = Stored(storage[value], graph.static_shape(value))
                    bound = after_mxnet(symbol.op, result, operands)
                    storage[value] = replace(
                        storage[value], density=bound / max(result.bound, 1), bound=bound
                    )
        notes = [f"storage types as MXNet 1.9 infers them, in {found.sweeps} sweeps: {_counted(found)}"]
        if shapeless:
            named = ", ".join(repr(v.name) for v in shapeless[:_SHOWN])
            notes.append(f"csr for MXNet, stored dense because they are no matrices: {named}")
        if compilation.symbol is not None:
            told = _counted(inferred(compilation.symbol, compilation.registry))
            notes.append(f"nodes of the symbol as MXNet 1.9 dispatches them: {told}")
        compilation = compilation.with_plan(storage=storage)
        compilation = replace(compilation, notes=(*compilation.notes, *notes))
        cast, modes = insert_casts(compilation, found.modes, PlanningContext.of(compilation, storage))
        return cast.with_plan(dispatch=self._dispatch(cast, modes))

    def _dispatch(
        self, compilation: Compilation, modes: Mapping[ir.Node, DispatchMode]
    ) -> dict[ir.Node, DispatchMode]:
        partition = compilation.plan.require("partition")

        def mode(node: ir.Node) -> DispatchMode:
            if partition[node].backend == self.fallback_backend:
                return DispatchMode.FALLBACK
            return modes.get(node, DispatchMode.COMPUTE)

        return {node: mode(node) for node in compilation.graph}


def _counted(columns: StorageColumns) -> str:
    counts = {m: sum(mode is m for mode in columns.modes.values()) for m in DispatchMode}
    return ", ".join(f"{n} {m.value}" for m, n in counts.items() if n)


def declared(compilation: Compilation) -> dict[ir.Value, StorageType]:
    """Storage types that the job declares for inputs that are tensors here and not returned as they are.

    And for other values that groups make, where the compilation is partitioned and fused.
    """
    bindings = compilation.bindings
    inputs = {v.name or "": v for v in compilation.graph.inputs if not v.is_graph_output()}
    made = {v.name or "": v for group in compilation.plan.groups for v in group.outputs}
    return {
        known[name]: told.stored(graph.element_type(known[name]).name, graph.static_shape(known[name]))
        for known, stated in ((inputs, bindings.storage), (made, bindings.value_storage))
        for name, told in stated.items()
        if name in known
    }


def _passed_over(compilation: Compilation) -> list[str]:
    """Notes on declared values that no group makes."""
    outputs = {v.name or "" for group in compilation.plan.groups for v in group.outputs}
    inside = {v.name or "": g for g in compilation.plan.groups for n in g.nodes for v in n.outputs}
    notes = []
    for name in compilation.bindings.value_storage:
        if name in outputs:
            continue
        group = inside.get(name)
        why = "the rewrites leave no value of this name"
        if group is not None:
            results = ", ".join(repr(v.name) for v in group.outputs)
            why = f"{group.op} {group.name!r} computes it on the way to {results}"
        notes.append(f"value {name!r} is dense: {why}")
    return notes


def returned(compilation: Compilation) -> dict[ir.Value, StorageKind]:
    """Storage types that the model declares for its outputs."""
    kinds = {v: compilation.bindings.returned.get(v.name or "", _DENSE) for v in compilation.graph.outputs}
    return {value: kind for value, kind in kinds.items() if kind != _DENSE}


def _modes(found: Sparse) -> dict[ir.Node, DispatchMode]:
    """Modes of the nodes that compute on sparse operands."""
    return {
        n: DispatchMode.COMPUTE_EX for group, kinds in found.required.items() if kinds for n in group.nodes
    }


def storage_type(value: ir.Value, cache: Cache, kind: StorageKind = "default") -> StorageType:
    """Storage type for the value's dtype; the density of a constant is measured."""
    dtype = graph.dtype(value)
    name = dtype.name if dtype is not None else str(value.dtype or value.type or "unknown").lower()
    fixed = dtype is not None and graph.is_constant(value)
    if not fixed:
        return StorageType(kind, name)
    measure = _row_density if kind == "row_sparse" else _density
    return StorageType(kind, name, graph.fact(value, measure.__name__, measure, cache))


def _density(array: np.ndarray[Any, Any]) -> float:
    return float(np.count_nonzero(array) / array.size) if array.size else 1.0


def _row_density(array: np.ndarray[Any, Any]) -> float:
    rows = array.reshape(array.shape[0], -1).any(axis=1)
    return float(np.count_nonzero(rows) / rows.size) if array.size else 1.0
