"""Operators of onnxruntime that have no schema in the onnx package: `com.microsoft`, and own spellings.

Its optimizer and its model builder write some into the default domain (SimplifiedLayerNormalization).
What their outputs are is asked of onnxruntime itself: a model of the one node, never run.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext

from app.engine.core import graph

MICROSOFT = "com.microsoft"
BLOCKED = "com.microsoft.nchwc"  # its optimizer's for images of blocked channels
SHIPPED = 65536  # byte: larger constants are told by their type alone, unless that is not enough
_COPIES = frozenset({"MemcpyFromHost", "MemcpyToHost"})  # that onnxruntime puts in itself
_TYPES = {
    f"tensor({name})": ir.DataType[name.upper()]
    for name in (
        *("float", "double", "float16", "bfloat16", "uint8", "uint16", "uint32", "uint64"),
        *("int8", "int16", "int32", "int64", "bool", "string"),
    )
}


@functools.cache
def operators() -> tuple[tuple[str, str], ...]:
    """Domain and name of each that the CPU provider has a kernel for."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    standard = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    found = {
        (row.domain, row.op_name)
        for row in state.get_all_opkernel_def()
        if row.provider == "CPUExecutionProvider" and row.domain in ("", MICROSOFT, BLOCKED)
    }
    return tuple(sorted(key for key in found - standard if key[1] not in _COPIES))


@functools.cache
def spellings() -> frozenset[str]:
    """Names of those in the default domain."""
    return frozenset(name for domain, name in operators() if not domain)


@functools.cache
def block_of_channels() -> int:
    """Channels of a block of onnxruntime's images on this machine, as wide as its registers.

    A file tells the machine by nothing but the order of weights: it says that it is for machines like that
    which it was optimized on.
    """
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 4, 1, 1]))
    blocked = ir.node("ReorderInput", [x], domain=BLOCKED)
    blocked.outputs[0].name = "y"
    found = _session(ir.Graph([x], blocked.outputs, nodes=[blocked], opset_imports={"": 21, BLOCKED: 1}))
    (y,) = found.run(None, {"x": np.zeros((1, 4, 1, 1), np.float32)})
    return int(y.shape[1])


def infer(context: ShapeInferenceContext, node: ir.Node) -> None:
    """A shape rule: shapes and types of the outputs as onnxruntime infers them; unknown where it refuses."""
    values = [v for v in dict.fromkeys(node.inputs) if v is not None]
    if any(not graph.is_tensor(v) and v.dtype != ir.DataType.STRING for v in values):
        return
    constants = [v for v in values if graph.is_constant(v)]
    small = [v for v in constants if v.const_value is not None and v.const_value.nbytes <= SHIPPED]
    told = _told(node, values, small) or (_told(node, values, constants) if small != constants else None)
    for output in node.outputs:
        if told is None or not output.name or output.name not in told:
            continue
        kind, shape = told[output.name]
        if kind in _TYPES:
            context.set_dtype(output, _TYPES[kind])
            if shape:  # it tells an unknown shape as that of a number
                context.set_shape(output, ir.Shape([_dimension(context, d) for d in shape]))


def group_query_attention(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The shape rule of GroupQueryAttention: a cache that is long enough already does not grow.

    Onnxruntime infers it longer by the new rows, and computes it as long as the total or the past.
    """
    infer(context, node)
    past, total = graph.input_at(node, 3), graph.constant(graph.input_at(node, 6))
    known = None if past is None else graph.shape(past)
    if known is None or total is None or total.size != 1:
        return
    for output in node.outputs[1:3]:
        if output.name:
            context.set_shape(output, ir.Shape([*known[:2], max(known[2], int(total.item())), known[3]]))


def _dimension(context: ShapeInferenceContext, told: int | str | None) -> int | ir.SymbolicDim:
    """An extent, the symbol of one, or a new symbol."""
    if told is None:
        unknown: ir.SymbolicDim = context.new_symbolic_dim()
        return unknown
    return told if isinstance(told, int) else ir.SymbolicDim(told)


def _told(
    node: ir.Node, values: Iterable[ir.Value], constants: Iterable[ir.Value]
) -> Mapping[str, tuple[str, list[int | str | None]]] | None:
    """Type and shape by output in a session of a model of the node, with these inputs as constants."""
    held = set(constants)
    copies = {
        v: ir.Value(name=v.name, type=v.type, shape=v.shape, const_value=v.const_value if v in held else None)
        for v in values
    }
    alone = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else copies[v] for v in node.inputs],
        tuple(node.attributes.values()),
        outputs=[ir.Value(name=v.name) for v in node.outputs],
    )
    opsets = dict(node.graph.opset_imports) if node.graph is not None else {}
    single = ir.Graph(
        [c for v, c in copies.items() if v not in held],
        [v for v in alone.outputs if v.name],
        nodes=[alone],
        initializers=[copies[v] for v in copies if v in held],
        opset_imports={"": 21, **opsets},
    )
    try:
        session = _session(single)
    except Exception:  # it raises many types; that the type cannot be told is said where it is needed
        return None
    return {o.name: (o.type, o.shape) for o in session.get_outputs()}


def _session(single: ir.Graph) -> Any:
    """A graph in onnxruntime, as it is.

    Raises:
        Exception: whatever onnxruntime raises for one that it does not support.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    single.name = "node"
    text = ir.to_proto(ir.Model(single, ir_version=10)).SerializeToString()
    return onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
