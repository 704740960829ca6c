"""Contents of a model file without planning it: signature, operators, weights."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from app.engine.model.proto_graphs import nodes_of
from app.engine.model.schema_check import domain_of
from app.engine.model.tensor_data import raw_nbytes

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "Integer", "QLinear", "DynamicQuantize", "MatMulNBits")


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as the file declares it.

    Attributes:
        dtype: NumPy name of the elements, or `string`; `sequence(...)`, `optional(...)` and `map(..., ...)`
            around it.
        shape: a number where fixed, a name where free, None where free and unnamed; None as a
            whole where the rank is unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """Contents of a model file.

    Attributes:
        operators: nodes by operator, nested graphs and functions included, most frequent first;
            operators of other domains as `domain::operator`.
        nodes: all nodes, likewise.
        parameters: elements of all initializers and constants.
        parameter_bytes: what they take, external data included.
        control_flow: operators that run nested graphs.
        quantized: operators that work on quantized values.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: Mapping[str, int]
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    name: str
    nodes: int
    parameters: int
    parameter_bytes: int
    control_flow: tuple[str, ...]
    quantized: tuple[str, ...]
    functions: tuple[str, ...]


def inspection(proto: onnx.ModelProto, nodes: int) -> Inspection:
    """The contents of a checked message of so many nodes."""
    histogram = Counter(_title(n) for n in nodes_of(proto))
    operators = dict(sorted(histogram.items(), key=lambda item: (-item[1], item[0])))
    tensors = tuple(_weights(proto))
    weights = {t.name for t in proto.graph.initializer}
    return Inspection(
        inputs=tuple(Port(v.name, *_type(v.type)) for v in proto.graph.input if v.name not in weights),
        outputs=tuple(Port(v.name, *_type(v.type)) for v in proto.graph.output),
        operators=operators,
        opsets={e.domain or "ai.onnx": e.version for e in proto.opset_import},
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        name=proto.graph.name,
        nodes=nodes,
        parameters=sum(math.prod(t.dims) for t in tensors),
        parameter_bytes=sum(_nbytes(t) for t in tensors),
        control_flow=tuple(op for op in operators if op in CONTROL_FLOW),
        quantized=tuple(op for op in operators if any(word in op for word in QUANTIZED)),
        functions=tuple(f.name for f in proto.functions),
    )


def _weights(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from proto.graph.initializer
    for node in nodes_of(proto):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield attribute.t
            yield from attribute.g.initializer


def _nbytes(tensor: onnx.TensorProto) -> int:
    kind = ir.DataType(tensor.data_type)
    if kind == ir.DataType.STRING:
        return sum(len(s) for s in tensor.string_data)
    return raw_nbytes(tensor.dims, kind)


def _title(node: onnx.NodeProto) -> str:
    domain = domain_of(node.domain)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def _type(type_: onnx.TypeProto) -> tuple[str, tuple[int | str | None, ...] | None]:
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        inner, shape = _type(getattr(type_, kind).elem_type)
        return f"{kind.removesuffix('_type')}({inner})", shape
    if kind == "map_type":
        inner, _ = _type(type_.map_type.value_type)
        return f"map({ir.DataType(type_.map_type.key_type).name.lower()}, {inner})", None
    if kind != "tensor_type":
        return "unknown", None
    element = ir.DataType(type_.tensor_type.elem_type)
    dtype = "string" if element == ir.DataType.STRING else _dtype(element)
    if not type_.tensor_type.HasField("shape"):
        return dtype, None
    return dtype, tuple(_dimension(d) for d in type_.tensor_type.shape.dim)


def _dtype(element: ir.DataType) -> str:
    return "unknown" if element == ir.DataType.UNDEFINED else element.numpy().name


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Exporters write -1, and some 0, for a free dimension without a name."""
    if dimension.HasField("dim_value"):
        return dimension.dim_value if dimension.dim_value >= 0 else None
    return dimension.dim_param or None
