"""16-bit floats of a graph, computed in float32.

CPUs convert float16 and bfloat16 as they load and store, and compute in float32. So every value that a node
computes becomes a float32, and 16 bits stay where elements only move: inputs and outputs of the graph,
caches, tables that are gathered from. A value is rounded where the graph gives it out, or says so with a
Cast; in between it is not, which is what onnxruntime does too, but for the operators that it has in 16 bits.

Converters put casts around operators that they leave in float32, such as Resize, and models around their
norms: 16 bits, float32, the same 16 bits. These are operators in 16 bits too, and are not rounded either.
"""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan_editor import replace_inputs
from app.engine.model.operand_types import result_follows

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
WIDE = ir.DataType.FLOAT
# Key of `meta` of nodes whose kernels convert 16-bit floats as they load and store; operators of ONNX do not.
CONVERTS = "stowplan.converts"
RULE = "compute_in_float32"

# Operators that move elements and look at none of them.
MOVING = frozenset(
    {"CenterCropPad", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"}
    | {"GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Shape"}
    | {"Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu"}
    | {"Unsqueeze"}
)
# Operators whose result depends on the bits of an element.
BITWISE = frozenset({"BitCast"})
# Attributes that state a type, which 16-bit operands give if it is left out.
STATED = ("output_dtype", "dtype", "softmax_precision")


def widen(model: ir.Model) -> Counter[str]:
    """Let the nodes of the main graph compute in float32; how many do that did not.

    Bodies of control flow keep their types: they are planned as graphs of their own. Types must be inferred.
    """
    return _Widening(model).widen()


class _Widening:
    """A graph whose values change type.

    `_stated` are the types that widened values had. `_origins` are, of values in float32, the 16-bit types
    from which alone, and from constants, nodes of the graph compute them.
    """

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._opsets: Mapping[str, int] = model.opset_imports
        self._stated: dict[ir.Value, ir.DataType] = {}
        self._origins: dict[ir.Value, ir.DataType] = {}
        self._cast: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def widen(self) -> Counter[str]:
        count = 0
        for node in tuple(self._graph):
            if node.op_type in ("Cast", "CastLike") and not node.domain:
                self._keep_rounding(node)
            elif self._computes(node):
                count += self._change(node)
            else:
                self._follow_origin(node)
                self._restore(node)
        for value in dict.fromkeys(self._graph.outputs):
            if value in self._stated:
                self._give_out(value)
        return Counter({RULE: count} if count else {})

    def _computes(self, node: ir.Node) -> bool:
        """True if a node computes in float32 once its operands are."""
        found = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
        if graph.bodies(node) or node.op_type in BITWISE or not all(map(_is_typed, found)):
            return False
        halves = [v for v in node.inputs if v is not None and self._is_half(v)]
        if not halves or not result_follows(node, self._opsets, HALVES):
            return False
        if node.op_type not in MOVING or node.domain:
            return True
        sizes = {True: 0, False: 0}  # elements of operands, widened and not
        for value in halves:
            if not graph.is_constant(value):
                sizes[value in self._stated] += _elements(value)
        return sizes[True] > sizes[False]

    def _is_half(self, value: ir.Value) -> bool:
        return value in self._stated or (_is_typed(value) and value.dtype in HALVES)

    def _change(self, node: ir.Node) -> bool:
        """Let a node read and make float32 where it did 16 bits; whether it did."""
        halves = [(v, v.dtype) for v in node.outputs if v.dtype in HALVES]
        changed = bool(halves)
        for i, value in enumerate(node.inputs):
            if value is not None and value.dtype in HALVES:
                node.replace_input_with(i, self._as(value, WIDE))
                changed = True
        for made, kind in halves:
            self._state(made, kind)
        for name in STATED:
            if graph.attribute(node, name, 0) in HALVES:
                node.attributes[name] = ir.AttrInt64(name, int(WIDE))
        return changed

    def _state(self, value: ir.Value, kind: ir.DataType) -> None:
        self._stated[value] = kind
        value.type = ir.TensorType(WIDE)  # clones share the type: it must not change

    def _restore(self, node: ir.Node) -> None:
        """Let a node that does not compute in float32, and its bodies, read values as they were."""
        reads = {v: self._as(v, self._stated[v]) for v in graph.reads(node) if v in self._stated}
        replace_inputs(node, reads)

    def _follow_origin(self, node: ir.Node) -> None:
        """Note the results in float32 that a node computes from values of one origin."""
        read = [v for v in node.inputs if v is not None and not graph.is_constant(v) and _is_wide(v)]
        kinds = {self._origins.get(v) for v in read}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None and not graph.bodies(node):
            self._origins.update((v, kind) for v in node.outputs if v.name and _is_wide(v))

    def _keep_rounding(self, node: ir.Node) -> None:
        """Leave a cast to 16 bits as it is, unless its operand has, or is computed from, that type."""
        value, made = graph.operand(node, 0), node.outputs[0]
        kind = made.dtype
        if kind not in HALVES:
            origin = self._stated.get(value, value.dtype) if _is_typed(value) else None
            origin = self._origins.get(value, origin)
            if origin in HALVES and _is_wide(made):
                self._origins[made] = origin
            return
        if node.op_type == "CastLike":
            node.resize_inputs(1)
            node.op_type = "Cast"
        same = self._stated.get(value) == kind or (
            self._origins.get(value) == kind and self._is_computed_with(made)
        )
        if same:
            self._state(made, kind)
        node.attributes["to"] = ir.AttrInt64("to", int(WIDE if same else kind))

    def _is_computed_with(self, value: ir.Value) -> bool:
        """True if a node computes with a value of 16 bits, moved or not."""
        seen = {value}
        pending = [value]
        while pending:
            for reader in pending.pop().consumers():
                if (
                    reader.op_type in ("Cast", "CastLike")
                    or reader.op_type in BITWISE
                    or graph.bodies(reader)
                ):
                    continue
                moved = [v for v in reader.outputs if _is_typed(v) and v.dtype in HALVES]
                if reader.op_type not in MOVING or reader.domain:
                    if result_follows(reader, self._opsets, HALVES):
                        return True
                else:
                    pending += [v for v in moved if v not in seen]
                    seen.update(moved)
        return False

    def _give_out(self, value: ir.Value) -> None:
        """Return a widened value in its type, under its name."""
        made = self._as(value, self._stated[value])
        value.name, made.name = made.name, value.name
        for i, output in enumerate(self._graph.outputs):
            if output is value:
                self._graph.outputs[i] = made

    def _as(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """A value in another type: a constant of its own, or a cast that all readers share."""
        if (value, kind) in self._cast:
            return self._cast[value, kind]
        name = f"{value.name}:{kind.short_name()}"
        made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(kind))
        array = graph.constant(value)
        if array is not None:
            made.const_value = ir.tensor(np.asarray(array.astype(kind.numpy())), dtype=kind, name=name)
            self._graph.register_initializer(made)
        else:
            to = [ir.AttrInt64("to", int(kind))]
            node = ir.Node("", "Cast", [value], to, outputs=[made], name=f"{name}:cast")
            producer = value.producer()
            if producer is None:
                self._graph.insert_before(self._graph[0], node)
            else:
                self._graph.insert_after(producer, node)
        self._cast[value, kind] = made
        return made


def _is_typed(value: ir.Value) -> bool:
    """True of a tensor of known type."""
    return not graph.is_composite(value) and value.dtype not in (None, ir.DataType.UNDEFINED)


def _is_wide(value: ir.Value) -> bool:
    return _is_typed(value) and value.dtype == WIDE


def _elements(value: ir.Value) -> int:
    shape = graph.shape(value)
    return 1 if shape is None else math.prod(shape)
