"""From the bytes of a model file to a graph that the passes can work on.

Everything about the file that can be wrong is found here and named. Parsing belongs in a limited
process: the message is foreign data, and so is what the opset converter makes of it.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes.common import RemoveInitializersFromInputsPass
from onnx_ir.serde import SerdeError

from app.engine.model import external_data, inspection, validate_proto
from app.engine.model.inspection import Inspection
from app.engine.model.mxnet import convert as symbols
from app.engine.model.mxnet import symbol_file
from app.engine.model.mxnet.operator_graph import operator_graph
from app.engine.model.proto_graphs import all_graphs, all_nodes, nodes_of
from app.engine.model.runtime_operators import BLOCKED, MICROSOFT, spellings
from app.engine.model.schema_check import domain_of
from app.engine.model.shape_inference import inference, tensor_rules
from app.engine.model.spool import Spool
from app.engine.model.tensor_data import check_tensor
from app.engine.types import map_type
from app.engine.types.errors import GraphError, ModelTooLargeError, NotOnnxError, OpsetError
from app.engine.types.limits import Limits
from app.engine.types.storage import DECLARED, is_note

FLOOR = 21  # opset that every graph is raised to
CONTRIB_FLOOR = 23  # of graphs with operators of onnxruntime, which are said in those of this opset
IR_VERSION = 10  # of files with opset FLOOR; weights need not be inputs since 4
_SHIPPED = 1024  # byte: larger weights do not travel through the converter
_RESHAPES, _PER_AXIS = 5, 13  # opsets in which Reshape got an operand for its shape, and Hardmax one axis
# Operators that no rows compute, but those of their bodies.
_WRITTEN_OUT = frozenset(
    {("", "CausalConvWithState"), ("", "LinearAttention"), ("ai.onnx.preview", "FlexAttention")}
)
ASIDE = "stowplan.aside"  # where the converter leaves operators alone


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready for the passes.

    Attributes:
        model: opset FLOOR or newer unless a note says otherwise; functions inlined; nodes in
            topological order; no initializer is an input.
        notes: what was done to the file, or could not be.
        original_nodes: of the file, nested graphs included.
        symbol: the nodes of a symbol of MXNet as it spells them.
    """

    model: ir.Model
    notes: tuple[str, ...]
    original_nodes: int
    symbol: ir.Graph | None = None


def load(
    path: Path,
    *,
    external: Mapping[str, Path] | None = None,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    spool: Spool | None = None,
    floor: int = FLOOR,
) -> Loaded:
    """A model file as a graph: of ONNX, or a symbol of MXNet in JSON.

    Args:
        path: the file.
        external: files of external data by the name the model gives them, or a symbol's parameters by any
            name; nothing else is read.
        limits: what is too large.
        spool: where large weights are written and mapped from; None keeps them in memory.
        floor: opset that the graph is raised to.

    Raises:
        NotOnnxError: empty, cut short, or something else than a model.
        ModelTooLargeError: beyond a limit.
        CyclicGraphError, UnknownOperatorError, OpsetError, DtypeError, ExternalDataError: as named.
        GraphError: any other defect: a value defined twice or never, an attribute that does not fit.
    """
    proto, nodes = parse(path, external or {}, limits)
    kept_notes = {
        v.name: {p.key: p.value for p in v.metadata_props if is_note(p.key)}
        for v in (*proto.graph.initializer, *proto.graph.output)
        if v.metadata_props
    }
    notes: list[str] = []
    kept = _detach(proto, spool)
    proto = _apart(proto)
    if any(n.domain in (MICROSOFT, BLOCKED) or n.op_type in spellings() for n in all_nodes(proto.graph.node)):
        floor = max(floor, CONTRIB_FLOOR)
    proto = _converted(proto, limits, notes, kept.keys(), floor)
    model = _represented(proto)
    for name, value in model.graph.initializers.items():
        if name in kept:
            value.const_value = kept[name]
        elif (
            (data := value.const_value) is not None
            and data.dtype != ir.DataType.STRING
            and data.nbytes > _SHIPPED
        ):
            # Typed fields of a message are decoded here, once, not at each look at the elements.
            value.const_value = ir.Tensor(data.numpy(), data.dtype, name=name, doc_string=data.doc_string)
    demoted = sum(1 for v in model.graph.inputs if v.is_initializer())
    if demoted and proto.ir_version >= 4:
        notes.append(f"{demoted} inputs with default values are fixed to these values")
    RemoveInitializersFromInputsPass()(model)
    inference.forget_shapes(model, keep=model.graph.outputs)
    for value in (*model.graph.initializers.values(), *model.graph.outputs):
        # The converter drops what tensors and outputs say of themselves.
        value.metadata_props.update(kept_notes.get(value.name or "", {}))
    model.ir_version = max(proto.ir_version, IR_VERSION)
    model.opset_imports.setdefault("", floor)
    symbol = operator_graph(symbol_file.read(path, limits)) if symbol_file.is_symbol(path) else None
    return Loaded(model, tuple(notes), nodes, symbol)


def read(path: Path, external: Mapping[str, Path] | None = None, limits: Limits = Limits()) -> ir.Model:  # noqa: B008  # frozen
    """A model file as it spells its nodes: nothing is converted, inlined or inferred.

    Raises:
        GraphError: as `load` does.
    """
    return _represented(parse(path, external or {}, limits)[0])


def _represented(proto: onnx.ModelProto) -> ir.Model:
    """A checked message as a graph.

    Raises:
        GraphError: the message says what no graph can hold.
    """
    maps = map_type.detach(all_graphs(proto.graph))
    try:
        model = ir.from_proto(proto)
    except (ValueError, TypeError, KeyError, NotImplementedError, SerdeError) as cause:
        reason = _first_line(_root(cause))
        raise GraphError(f"the model cannot be represented: {reason}") from cause
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in maps:
            value.type = maps[value.name]
    return model


def inspect(path: Path, external: Mapping[str, Path] | None = None, limits: Limits = Limits()) -> Inspection:  # noqa: B008  # frozen
    """Contents of a model file as the file states them: nothing is converted or inferred.

    Raises:
        GraphError: as `load` does.
    """
    proto, nodes = parse(path, external or {}, limits)
    return inspection.inspection(proto, nodes)


def parse(path: Path, external: Mapping[str, Path], limits: Limits) -> tuple[onnx.ModelProto, int]:
    """A checked message with all its data inside, and the number of its nodes."""
    size = path.stat().st_size
    if size > limits.nbytes:
        raise ModelTooLargeError(f"the file has {size} byte, allowed are {limits.nbytes}")
    if size == 0:
        raise NotOnnxError("the file is empty")
    proto = symbols.read(path, external, limits) if symbol_file.is_symbol(path) else _message(path)
    if not proto.graph.output:
        raise GraphError("the graph has no outputs")
    if not proto.opset_import:
        if proto.ir_version >= 3:
            raise OpsetError(
                "the model imports no operator set; expected `opset_import` with a version of 'ai.onnx'"
            )
        proto.opset_import.add(domain="", version=1)
    _normalize_domains(proto)
    nodes = validate_proto.check(proto, limits, tensor_rules.has_rule)
    external_data.inline(proto, external, limits, size)
    for graph in all_graphs(proto.graph):
        _densify(graph, limits)
    return proto, nodes


def _message(path: Path) -> onnx.ModelProto:
    """The message in an ONNX file."""
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as cause:
        raise NotOnnxError("the file is no ONNX model, or was cut short") from cause
    if proto.ir_version < 1 or not proto.HasField("graph"):
        raise NotOnnxError("the file is no ONNX model: it has no graph or no IR version")
    return proto


def _normalize_domains(proto: onnx.ModelProto) -> None:
    """One spelling of the default domain, the empty string."""
    for owner in (proto, *proto.functions):
        for entry in owner.opset_import:
            entry.domain = domain_of(entry.domain)
    for node in nodes_of(proto):
        node.domain = domain_of(node.domain)


def _densify(graph: onnx.GraphProto, limits: Limits) -> None:
    """Write sparse initializers out, matrices marked as csr; the planner sees their density in the data.

    Indices are either one per value into the flattened tensor or one per value and axis.
    """
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        dims = tuple(sparse.dims)
        if any(d < 0 for d in dims) or math.prod(dims) > limits.elements:
            raise ModelTooLargeError(
                f"sparse initializer {name!r}: {list(dims)} exceeds {limits.elements} elements",
                pointer=f"value:{name}",
            )
        for tensor in (sparse.values, sparse.indices):
            check_tensor(tensor, limits, f"sparse initializer {name!r}")
        values: np.ndarray[Any, Any] = onnx.numpy_helper.to_array(sparse.values)
        indices = onnx.numpy_helper.to_array(sparse.indices)
        flat = indices if indices.ndim == 1 else indices @ _strides(dims)
        if len(flat) != values.size or np.any(flat < 0) or np.any(flat >= math.prod(dims)):
            raise GraphError(
                f"sparse initializer {name!r}: indices do not fit {list(dims)}", pointer=f"value:{name}"
            )
        dense = np.zeros(math.prod(dims), values.dtype)
        dense[flat] = values.reshape(-1)
        tensor = onnx.numpy_helper.from_array(dense.reshape(dims), name)
        if len(dims) == 2:
            tensor.metadata_props.add(key=DECLARED, value="csr")
        graph.initializer.append(tensor)
    graph.ClearField("sparse_initializer")


def _strides(dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.array([math.prod(dims[i + 1 :]) for i in range(len(dims))], np.int64)


def _converted(
    proto: onnx.ModelProto, limits: Limits, notes: list[str], detached: Collection[str], floor: int
) -> onnx.ModelProto:
    """The model with local functions inlined and its opset raised to the floor, if that works.

    Types declared for inner values are dropped where the converter ran: it leaves wrong ones.
    """
    version = next((e.version for e in proto.opset_import if not e.domain), None)
    raises = version is not None and version < floor
    if proto.functions:
        try:
            inlined = onnx.inliner.inline_local_functions(proto, convert_version=True)
        except Exception as cause:  # the inliner raises whatever its C++ code throws
            raise GraphError(f"the model's local functions cannot be inlined: {cause}") from cause
        proto = inlined
    proto = _written_out(proto, notes)
    if raises:
        if version is not None and _RESHAPES <= version < _PER_AXIS:
            for graph in all_graphs(proto.graph):
                _flatten(graph, ("Hardmax",))
        try:
            with _set_aside(proto):
                candidate = onnx.version_converter.convert_version(proto, floor)
            _put_back(candidate)
            validate_proto.check(candidate, limits, tensor_rules.has_rule, detached)
            _check_signature(proto, candidate)
        except Exception as cause:  # as above; any failure means the same
            notes.append(f"opset stays {version}: the conversion to {floor} failed: {_first_line(cause)}")
            if version is not None and _RESHAPES <= version < _PER_AXIS:
                for graph in all_graphs(proto.graph):
                    _flatten(graph, ("Softmax", "LogSoftmax"))
        else:
            _restore_signature(proto, candidate)
            return candidate
    return proto


def _written_out(proto: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """The model with the bodies that the specification has of operators in `_WRITTEN_OUT`."""
    found = {(node.domain, node.op_type) for node in all_nodes(proto.graph.node)} & _WRITTEN_OUT
    if not found:
        return proto
    try:
        return onnx.inliner.inline_selected_functions(proto, sorted(found), inline_schema_functions=True)
    except Exception as cause:  # whatever its C++ code throws, where an operand is left out among others
        names = ", ".join(name for _, name in sorted(found))
        notes.append(f"{names} stays one operator: its body cannot be inlined: {_first_line(cause)}")
        return proto


def _flatten(graph: onnx.GraphProto, operators: Collection[str]) -> None:
    """Say of each such operator below opset 13 that it takes all axes from one on for one."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type not in operators or node.domain:
            graph.node.append(node)
            continue
        x, y = node.input[0], node.output[0]
        shape, matrix, found = (_untaken(f"{y}.{part}", taken) for part in ("shape", "matrix", "found"))
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        graph.node.add(op_type="Shape", input=[x], output=[shape])
        graph.node.add(op_type="Flatten", input=[x], output=[matrix]).attribute.add(
            name="axis", type=onnx.AttributeProto.INT, i=axis
        )
        graph.node.add(op_type=node.op_type, name=node.name, input=[matrix], output=[found]).attribute.add(
            name="axis", type=onnx.AttributeProto.INT, i=1
        )
        graph.node.add(op_type="Reshape", input=[found, shape], output=[y])


def _untaken(name: str, taken: set[str]) -> str:
    """The name, longer where it is taken; it is then."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


@contextmanager
def _set_aside(proto: onnx.ModelProto) -> Iterator[None]:
    """Operators of onnxruntime in the default domain, which the converter does not know, are in another."""
    for node in all_nodes(proto.graph.node):
        if not node.domain and node.op_type in spellings():
            node.domain = ASIDE
    proto.opset_import.add(domain=ASIDE, version=1)
    try:
        yield
    finally:
        _put_back(proto)


def _put_back(proto: onnx.ModelProto) -> None:
    for node in all_nodes(proto.graph.node):
        if node.domain == ASIDE:
            node.domain = ""
    kept = [e for e in proto.opset_import if e.domain != ASIDE]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def _detach(proto: onnx.ModelProto, spool: Spool | None) -> dict[str, ir.TensorProtocol]:
    """Take large weights out of the message, which gives out a copy each time, also to the converter."""
    data: dict[str, np.ndarray[Any, Any]] = {}
    kinds: dict[str, tuple[ir.DataType, tuple[int, ...], str | None]] = {}
    for tensor in proto.graph.initializer:
        if not tensor.HasField("raw_data"):
            continue
        kind, raw = ir.DataType(tensor.data_type), tensor.raw_data
        if len(raw) > _SHIPPED and kind.bitwidth >= 8:  # smaller elements share bytes
            if spool is None:
                data[tensor.name] = np.frombuffer(raw, np.uint8)
            else:
                spool.write(tensor.name, raw)
            kinds[tensor.name] = kind, tuple(tensor.dims), tensor.doc_string or None
            tensor.ClearField("raw_data")
    kept: dict[str, ir.TensorProtocol] = {}
    for name, (kind, dims, doc) in kinds.items():
        array = (data[name] if spool is None else spool.bytes_of(name)).view(kind.numpy()).reshape(dims)
        kept[name] = ir.Tensor(array, kind, name=name, doc_string=doc)
    return kept


def _apart(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a message: small tensors of the graph refer to theirs, which holds what was cleared of it."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    return found


def _signatures(original: onnx.ModelProto, converted: onnx.ModelProto) -> tuple[tuple[Any, Any], ...]:
    return (
        (original.graph.input, converted.graph.input),
        (original.graph.output, converted.graph.output),
    )


def _check_signature(original: onnx.ModelProto, converted: onnx.ModelProto) -> None:
    """Refuse a conversion that changes what the model takes or gives; that of Scan-8 drops the batch.

    A rank that the file does not declare is what is inferred, of what the file says; one that cannot be
    inferred may become any.
    """
    if not all(v.type.tensor_type.HasField("shape") for v in original.graph.output):
        original = onnx.shape_inference.infer_shapes(original)
    for ours, theirs in _signatures(original, converted):
        if [v.name for v in ours] != [v.name for v in theirs]:
            raise GraphError("the converter changes the inputs or outputs")
        for a, b in zip(ours, theirs):
            known, found = a.type.tensor_type, b.type.tensor_type.shape.dim
            if known.HasField("shape") and len(known.shape.dim) != len(found):
                raise GraphError(f"the converter changes the rank of {a.name!r}")


def _restore_signature(original: onnx.ModelProto, converted: onnx.ModelProto) -> None:
    """Declare inputs and outputs as the file does."""
    for ours, theirs in _signatures(original, converted):
        del theirs[:]
        theirs.extend(ours)
    for graph in all_graphs(converted.graph):
        del graph.value_info[:]


def _root(cause: BaseException) -> BaseException:
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return cause


def _first_line(cause: BaseException) -> str:
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:200]
