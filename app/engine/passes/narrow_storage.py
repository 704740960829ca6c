"""Store the float32 values of a graph in 16 bits, where the job asks for it and kernels compute on them.

Sums, statistics and functions stay float32 inside of kernels; what is written to memory is rounded. Inputs
and outputs of the graph stay as they are, casts stand next to them and around what has no such kernel.

On CPUs a graph of 16-bit floats computes in float32 between casts (`app.engine.rewrites.float_widening`).
Kernels that convert what they load and store take the place of these casts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.plan_editor import PlanEditor
from app.engine.core.registry import PlanningContext
from app.engine.operators.attention_pattern import is_widening
from app.engine.passes.partition import single
from app.engine.passes.rewrite_operators import WIDENING
from app.engine.rewrites.float_widening import CONVERTS
from app.engine.types.precision import resolve

HALVES: Mapping[str, ir.DataType] = {"bf16": ir.DataType.BFLOAT16, "fp16": ir.DataType.FLOAT16}
# Inputs that are float32 whatever the data is.
FIXED: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2), "Upsample": (1,)}
# Operators whose kernels for CPUs convert 16-bit floats as they load and store them.
CONVERTING = frozenset(
    {"Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "GroupNormalization"}
    | {"InstanceNormalization", "BatchNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization"}
    | {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"}
    | {"ReduceLogSum", "ReduceSumSquare", "ReduceLogSumExp", "GlobalAveragePool", "GlobalMaxPool"}
    | {"GlobalLpPool", "MaxPool", "AveragePool", "LpPool", "Resize", "Upsample"}
    | {"ArgMax", "ArgMin", "CumProd", "CumSum", "Hardmax", "TopK", "RotaryEmbedding"}
)
ROUNDS = 4  # of leaving out what no kernel takes


@dataclass(frozen=True)
class NarrowStorage:
    """Where kernels read and write 16-bit floats: all values on GPUs, those that are cast on CPUs."""

    name: ClassVar[str] = "narrow_storage"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """The graph with other element types, and a note."""
        if WIDENING in compilation.target.backends:
            return _without_casts(compilation)
        used = resolve(compilation.options, compilation.target).used
        if compilation.target.device != "cuda" or used not in HALVES:
            return compilation
        if any(graph.bodies(node) for node in compilation.graph):
            note = f"precision: values stay float32, the graph has control flow; products are not {used}"
            return replace(compilation, notes=(*compilation.notes, note))
        kept: frozenset[str] = frozenset()
        for _ in range(ROUNDS):
            narrowed = replace(compilation, model=compilation.model.clone())
            _Narrowing(narrowed, HALVES[used], kept).narrow()
            refused = _refused(narrowed)
            if refused <= kept:
                break
            kept |= refused
        names = f"; {len(kept)} nodes stay float32" if kept else ""
        return replace(narrowed, notes=(*narrowed.notes, f"precision: values are stored in {used}{names}"))


def _refused(compilation: Compilation) -> frozenset[str]:
    """Nodes that compute on 16-bit floats and that no kernel takes."""
    context, backends = PlanningContext.of(compilation), compilation.target.backends
    refused = set()
    for node in compilation.graph:
        if not any(v is not None and v.dtype in HALVES.values() for v in (*node.inputs, *node.outputs)):
            continue
        group = single(node, compilation.registry)
        rows = compilation.registry.candidates(group.op, backends)
        if not any(row.op != "*" and row.rejection_reason(group, context) is None for row in rows):
            refused.add(node.name or "")
    return frozenset(refused)


def _without_casts(compilation: Compilation) -> Compilation:
    """The graph without the casts that kernels of CONVERTING make needless; it is changed in place.

    Libraries take nodes of one type only: what they are given stays as it is.
    """
    for node in tuple(compilation.graph):
        if node.op_type not in CONVERTING or node.domain or not _is_own(node, compilation):
            continue
        for index, value in enumerate(node.inputs):
            cast = None if value is None else value.producer()
            if cast is not None and _widens(cast):
                node.replace_input_with(index, cast.inputs[0])
                if not _accepted(node, compilation):
                    node.replace_input_with(index, value)
                    continue
                node.meta[CONVERTS] = True
                if not cast.outputs[0].uses():
                    compilation.graph.remove(cast, safe=True)
        for value in node.outputs:
            uses = value.uses()
            cast = next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None
            if cast is not None and _narrows(cast) and _is_own(cast, compilation):
                kind, value.type = value.type, cast.outputs[0].type
                if not _accepted(node, compilation):
                    value.type = kind
                    continue
                node.meta[CONVERTS] = True
                name = cast.outputs[0].name
                cast.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
                compilation.graph.remove(cast, safe=True)
                value.name = name
    return compilation


def _is_own(node: ir.Node, compilation: Compilation) -> bool:
    """True if no library is given the node, by measurement or by the order of the backends."""
    if compilation.assignment:
        return compilation.assignment.get(node.name or "", "").partition("#")[0] == WIDENING
    first = compilation.target.backends[: compilation.target.backends.index(WIDENING)]
    return not compilation.registry.libraries(first)


def _widens(node: ir.Node) -> bool:
    """True of a Cast from 16-bit floats to float32."""
    return node.op_type == "Cast" and not node.domain and is_widening(node)


def _narrows(node: ir.Node) -> bool:
    """True of a Cast from float32 to 16-bit floats."""
    value = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
    return value is not None and value.dtype == ir.DataType.FLOAT and node.outputs[0].dtype in HALVES.values()


def _accepted(node: ir.Node, compilation: Compilation) -> bool:
    """True if a kernel takes a node alone with the types that its values have."""
    group = single(node, compilation.registry)
    context = PlanningContext.of(compilation)
    rows = compilation.registry.candidates(group.op, (WIDENING,))
    return any(row.op != "*" and row.rejection_reason(group, context) is None for row in rows)


class _Narrowing:
    """A graph whose values change type."""

    def __init__(self, compilation: Compilation, half: ir.DataType, kept: frozenset[str]) -> None:
        self._editor = PlanEditor(compilation)
        self._graph = compilation.graph
        self._half = half
        self._kept = kept
        self._cast: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def narrow(self) -> None:
        """Change the graph."""
        for node in tuple(self._graph):
            wanted = ir.DataType.FLOAT if (node.name or "") in self._kept else self._half
            fixed = FIXED.get(node.op_type, ())
            for i, value in enumerate(node.inputs):
                if value is None or value.dtype not in (ir.DataType.FLOAT, self._half):
                    continue
                kind = ir.DataType.FLOAT if i in fixed else wanted
                if value.dtype != kind:
                    node.replace_input_with(i, self._as(value, kind))
            if wanted == self._half:
                self._change(node)
        for value in dict.fromkeys(self._graph.outputs):
            if value.dtype == self._half:
                made = ir.Value(name=value.name, shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
                self._editor.insert_between(value, _node(value, made, ir.DataType.FLOAT))
                self._editor.return_instead(value, made, self._half.short_name())

    def _change(self, node: ir.Node) -> None:
        """Let a node make 16-bit floats where it made float32."""
        for value in node.outputs:
            if value.dtype == ir.DataType.FLOAT:
                value.type = ir.TensorType(self._half)  # clones share the type: it must not change
                if node.op_type == "Cast":
                    node.attributes["to"] = ir.AttrInt64("to", int(self._half))
                if node.op_type in ("ConstantOfShape", "Range", "RandomNormal", "RandomUniform"):
                    value.type = ir.TensorType(ir.DataType.FLOAT)  # theirs is told otherwise

    def _as(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """The value in another type: a constant of its own, or a cast that all readers share."""
        if (value, kind) in self._cast:
            return self._cast[value, kind]
        name = f"{value.name}:{kind.short_name()}"
        array = graph.constant(value)
        if array is not None:
            tensor = ir.tensor(_rounded(array, kind), dtype=kind, name=name)
            made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(kind), const_value=tensor)
            self._graph.register_initializer(made)
        else:
            made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(kind))
            self._editor.insert_between(value, _node(value, made, kind))
        self._cast[value, kind] = made
        return made


def _node(value: ir.Value, made: ir.Value, kind: ir.DataType) -> ir.Node:
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(kind))], outputs=[made])
    cast.name = f"{made.name}:cast"
    return cast


def _rounded(array: np.ndarray, kind: ir.DataType) -> np.ndarray:
    """Elements in another type; what is finite stays finite, as a mask of the lowest number must."""
    dtype = kind.numpy()
    most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # theirs
    clipped = np.where(np.isfinite(array), np.clip(array, -most, most), array)
    return np.ascontiguousarray(clipped.astype(dtype)).reshape(array.shape)
