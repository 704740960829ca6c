"""From the bytes of an uploaded file to a checked graph at a recent opset.

Everything here treats the file as hostile: it is called inside the limited child process only,
names of external data are looked up in a mapping that the service made, and nothing is unpickled.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx.inliner
import onnx.version_converter
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from app.engine.errors import (
    CyclicGraphError,
    DtypeError,
    ExternalDataError,
    GraphError,
    ModelTooLargeError,
    NotOnnxError,
    OpsetError,
    UnknownOperatorError,
)

OPSET_FLOOR = 21  # every model is converted up to at least this
NO_FILES: Mapping[str, Path] = {}
_STANDARD = ("", "ai.onnx")
_KEYS = frozenset({"location", "offset", "length", "checksum"})  # of external data; others are refused
_UNSUPPORTED = frozenset({"UNDEFINED", "COMPLEX64", "COMPLEX128"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model may at most be."""

    nbytes: int = 2**31 - 1  # of the file: one protobuf message
    nodes: int = 200_000  # nested graphs included
    depth: int = 32  # of nested graphs
    external_nbytes: int = 16 * 2**30


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked model. `notes` tell what was changed on the way."""

    model: ir.Model
    notes: tuple[str, ...]
    original_nodes: int  # in the file, nested graphs included


@dataclass(frozen=True, slots=True)
class Signature:
    """An input or output; a free dimension is its name, or None where it has none."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a model file."""

    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    operators: Mapping[str, int]  # most frequent first, nested graphs included
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    nodes: int
    parameters: int
    parameter_bytes: int
    control_flow: Mapping[str, int] = field(default_factory=dict)
    quantized: Mapping[str, int] = field(default_factory=dict)


def load(path: Path, *, external: Mapping[str, Path] = NO_FILES, limits: Limits = Limits()) -> Loaded:
    """A model ready for type inference.

    Args:
        path: the file.
        external: files of external data by the name that the model gives them.
        limits: sizes beyond which the model is refused.

    Raises:
        GraphError: the model cannot be used; the subclass says why.
    """
    proto = parse(path, limits)
    notes: list[str] = []
    _check(proto, limits, notes)
    _attach_external(proto, external, limits)
    _check_tensors(proto)
    nodes = sum(1 for _ in _nodes(proto.graph))
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    proto = _converted(proto, notes)
    try:
        model = ir.from_proto(proto)
    except Exception as cause:  # a damaged field that no check above names
        raise NotOnnxError(f"the model cannot be read: {cause}") from cause
    RemoveInitializersFromInputsPass()(model)
    return Loaded(model, tuple(notes), nodes)


def inspect(path: Path, *, external: Mapping[str, Path] = NO_FILES, limits: Limits = Limits()) -> Inspection:
    """Inputs, outputs and operators of a model.

    Raises:
        GraphError: the model cannot be used.
    """
    proto = parse(path, limits)
    _check(proto, limits, [])
    _attach_external(proto, external, limits)
    _check_tensors(proto)
    graph = proto.graph
    weights = {t.name for t in graph.initializer}
    operators: dict[str, int] = {}
    for node in _nodes(graph):
        name = node.op_type if node.domain in _STANDARD else f"{node.domain}::{node.op_type}"
        operators[name] = operators.get(name, 0) + 1
    ranked = dict(sorted(operators.items(), key=lambda item: (-item[1], item[0])))
    tensors = [ir.from_proto(t) for t in graph.initializer]
    return Inspection(
        inputs=tuple(_signature(v) for v in graph.input if v.name not in weights),
        outputs=tuple(_signature(v) for v in graph.output),
        operators=ranked,
        opsets={o.domain or "ai.onnx": o.version for o in proto.opset_import},
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        nodes=sum(ranked.values()),
        parameters=sum(t.size for t in tensors),
        parameter_bytes=sum(t.nbytes for t in tensors),
        control_flow={k: n for k, n in ranked.items() if k in ("If", "Loop", "Scan", "SequenceMap")},
        quantized={
            k: n
            for k, n in ranked.items()
            if "Quantize" in k or k.endswith("Integer") or k.startswith("QLinear")
        },
    )


def parse(path: Path, limits: Limits) -> onnx.ModelProto:
    """The protobuf message of a file.

    Raises:
        NotOnnxError: the file is no ONNX model or is cut short.
        ModelTooLargeError: it is larger than `limits.nbytes`.
    """
    nbytes = path.stat().st_size
    if nbytes > limits.nbytes:
        raise ModelTooLargeError(
            f"the model has {nbytes} byte, the limit is {limits.nbytes}; "
            "move its weights to external data, named in the manifest"
        )
    try:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as cause:
        raise NotOnnxError(f"the file of {nbytes} byte is no ONNX model, or it is cut short") from cause
    if not proto.HasField("graph") or not proto.opset_import:
        raise NotOnnxError(
            f"the file of {nbytes} byte holds no graph or no opset: no ONNX model, or cut short"
        )
    return proto


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of all graphs in it."""
    for node in graph.node:
        yield node
        for body in _bodies(node):
            yield from _nodes(body)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check(proto: onnx.ModelProto, limits: Limits, notes: list[str]) -> None:
    """Versions, size, operators, names, order and types."""
    opsets = {"" if o.domain in _STANDARD else o.domain: o.version for o in proto.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if opsets.get("", 0) > newest:
        raise OpsetError(
            f"the model needs opset {opsets['']}; the newest supported is {newest}", pointer="/opset_import"
        )
    if proto.ir_version > onnx.IR_VERSION:
        raise OpsetError(
            f"the model has IR version {proto.ir_version}; the newest supported is {onnx.IR_VERSION}"
        )
    functions = {(f.domain, f.name) for f in proto.functions}
    _check_depth(proto.graph, limits.depth)
    for count, node in enumerate(_nodes(proto.graph), start=1):
        if count > limits.nodes:
            raise ModelTooLargeError(f"the model has more than {limits.nodes} nodes")
        _check_operator(node, opsets, functions)
    for value in (*proto.graph.input, *proto.graph.output):
        _check_type(value)
    _check_wiring(proto.graph, frozenset(), notes)


def _check_depth(graph: onnx.GraphProto, left: int) -> None:
    if left <= 0:
        raise ModelTooLargeError("graphs are nested too deeply")
    for node in graph.node:
        for body in _bodies(node):
            _check_depth(body, left - 1)


def _check_operator(node: onnx.NodeProto, opsets: Mapping[str, int], functions: set[tuple[str, str]]) -> None:
    domain = "" if node.domain in _STANDARD else node.domain
    if (node.domain, node.op_type) in functions:
        return
    if domain not in opsets:
        raise UnknownOperatorError(
            f"{node.op_type} {node.name!r}: the model imports no opset of domain {domain or 'ai.onnx'!r}",
            pointer=f"node:{node.name}",
        )
    if domain.startswith("ai.onnx") or not domain:
        if onnx.defs.has(node.op_type, opsets[domain], domain):
            return
        raise UnknownOperatorError(
            f"{node.op_type} {node.name!r}: no such operator in opset {opsets[domain]} of domain "
            f"{domain or 'ai.onnx'!r}",
            pointer=f"node:{node.name}",
        )
    # Operators of other domains: whether some backend has a row is asked by `partition`.


def _check_type(value: onnx.ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    if kind is None:
        return  # an output's type may be left to inference; an input's is checked where it is bound
    if kind == "tensor_type":
        name = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        if name in _UNSUPPORTED:
            raise DtypeError(
                f"value {value.name!r} has element type {name}, which is not supported",
                pointer=f"value:{value.name}",
            )
    if kind in ("map_type", "sparse_tensor_type"):
        raise DtypeError(
            f"value {value.name!r} is a {kind.removesuffix('_type')}, which is not supported",
            pointer=f"value:{value.name}",
        )


def _check_wiring(graph: onnx.GraphProto, outer: frozenset[str], notes: list[str]) -> None:
    """Every name is made once and before it is read; nodes out of order are sorted."""
    given = [v.name for v in graph.input]
    weights = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    known = set(given) | set(weights)
    if len(set(given)) != len(given):
        raise GraphError(f"graph {graph.name!r} has two inputs of one name")
    maker: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.output:
            if name and (name in maker or name in known):
                raise GraphError(
                    f"{node.op_type} {node.name!r}: value {name!r} is made twice", pointer=f"value:{name}"
                )
            if name:
                maker[name] = node
    visible = outer | known | set(maker)
    for node in graph.node:
        for name in _reads(node):
            if name not in visible:
                raise GraphError(
                    f"{node.op_type} {node.name!r} reads {name!r}, which nothing makes",
                    pointer=f"node:{node.name}",
                )
    for output in graph.output:
        if output.name not in visible:
            raise GraphError(f"output {output.name!r} is made by nothing", pointer=f"value:{output.name}")
    order = _sorted(graph, maker)
    if [id(n) for n in order] != [id(n) for n in graph.node]:
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in order]
        del graph.node[:]
        graph.node.extend(copies)
        notes.append(f"graph {graph.name!r}: nodes were not in topological order and have been sorted")
    for node in graph.node:
        for body in _bodies(node):
            _check_wiring(body, frozenset(visible), notes)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node depends on; what its bodies read from outside included."""
    yield from (name for name in node.input if name)
    for body in _bodies(node):
        inner = {v.name for v in body.input} | {t.name for t in body.initializer}
        inner |= {t.values.name for t in body.sparse_initializer}
        inner |= {name for n in body.node for name in n.output}
        for member in body.node:
            yield from (name for name in _reads(member) if name not in inner)
        yield from (v.name for v in body.output if v.name not in inner)


def _sorted(graph: onnx.GraphProto, maker: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes in topological order, as in the file where that is one.

    Raises:
        CyclicGraphError: there is none.
    """
    index = {id(n): i for i, n in enumerate(graph.node)}
    before = [{index[id(maker[r])] for r in _reads(n) if r in maker} for n in graph.node]
    if all(not b or max(b) < i for i, b in enumerate(before)):
        return list(graph.node)
    after: dict[int, list[int]] = {}
    for i, needed in enumerate(before):
        for j in needed:
            after.setdefault(j, []).append(i)
    waiting = [len(b) for b in before]
    ready = [i for i, n in enumerate(waiting) if n == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(graph.node[i])
        for j in after.get(i, ()):
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    if len(order) < len(graph.node):
        node = next(n for n, left in zip(graph.node, waiting) if left)
        raise CyclicGraphError(
            f"{node.op_type} {node.name!r} depends on its own output", pointer=f"node:{node.name}"
        )
    return order


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in _bodies(node):
            yield from _tensors(body)


def _attach_external(proto: onnx.ModelProto, external: Mapping[str, Path], limits: Limits) -> None:
    """Read external data into the tensors; a name only ever selects from `external`."""
    total = 0
    for tensor in _tensors(proto.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        keys = {e.key: e.value for e in tensor.external_data}
        if set(keys) - _KEYS:
            raise ExternalDataError(
                f"tensor {tensor.name!r}: unknown key {min(set(keys) - _KEYS)!r} of external data"
            )
        location = keys.get("location", "")
        _check_location(tensor.name, location)
        if location not in external:
            named = ", ".join(sorted(external)) or "none"
            raise ExternalDataError(
                f"tensor {tensor.name!r} lies in {location!r}, which was not uploaded; "
                f"the manifest names {named}",
                pointer=f"value:{tensor.name}",
            )
        data = _slice(tensor.name, external[location], keys)
        total += len(data)
        if total > limits.external_nbytes:
            raise ModelTooLargeError(f"external data exceeds {limits.external_nbytes} byte")
        tensor.raw_data = data
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _check_location(tensor: str, location: str) -> None:
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if (
        not location
        or posix.is_absolute()
        or windows.drive
        or windows.root
        or ".." in (*posix.parts, *windows.parts)
    ):
        raise ExternalDataError(
            f"tensor {tensor!r} names external data {location!r}; it must be a relative path that stays inside "
            "the model's folder",
            pointer=f"value:{tensor}",
        )


def _slice(tensor: str, path: Path, keys: Mapping[str, str]) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise ExternalDataError(
            f"tensor {tensor!r}: the external data is no plain file", pointer=f"value:{tensor}"
        )
    nbytes = path.stat().st_size
    try:
        offset = int(keys.get("offset", "0"))
        length = int(keys.get("length", str(nbytes - offset)))
    except ValueError as cause:
        raise ExternalDataError(f"tensor {tensor!r}: offset or length is no number") from cause
    if offset < 0 or length < 0 or offset + length > nbytes:
        raise ExternalDataError(
            f"tensor {tensor!r}: bytes {offset}..{offset + length} of a file of {nbytes} byte",
            pointer=f"value:{tensor}",
        )
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _check_tensors(proto: onnx.ModelProto) -> None:
    """Every dense tensor holds as many bytes as its shape needs."""
    for tensor in _tensors(proto.graph):
        name = onnx.TensorProto.DataType.Name(tensor.data_type)
        if name in _UNSUPPORTED:
            raise DtypeError(f"tensor {tensor.name!r} has element type {name}, which is not supported")
        if any(d < 0 for d in tensor.dims):
            raise NotOnnxError(f"tensor {tensor.name!r} has a negative dimension: {list(tensor.dims)}")
        if not tensor.HasField("raw_data"):
            continue
        elements = 1
        for d in tensor.dims:
            elements *= d
        needed = -(-elements * ir.DataType(tensor.data_type).bitwidth // 8)
        if len(tensor.raw_data) != needed:
            raise NotOnnxError(
                f"tensor {tensor.name!r} holds {len(tensor.raw_data)} byte, "
                f"its shape {list(tensor.dims)} of {name} needs {needed}: the file is damaged or cut short",
                pointer=f"value:{tensor.name}",
            )


def _converted(proto: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """The model at opset OPSET_FLOOR or above; where the converter refuses, as it is, with a note."""
    version = max((o.version for o in proto.opset_import if o.domain in _STANDARD), default=OPSET_FLOOR)
    if version >= OPSET_FLOOR:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, OPSET_FLOOR)
    except Exception as cause:  # the converter raises plain RuntimeErrors from C++
        reason = str(cause).strip().splitlines()[0][:200]
        notes.append(f"opset {version} is kept: the converter to {OPSET_FLOOR} refuses ({reason})")
        return proto


def _signature(value: onnx.ValueInfoProto) -> Signature:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Signature(value.name, (kind or "unknown").removesuffix("_type"), None)
    tensor = value.type.tensor_type
    dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    if not tensor.HasField("shape"):
        return Signature(value.name, dtype, None)
    # A dimension that is not positive means that it is unknown; exporters write -1.
    dims = tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else d.dim_param or None
        for d in tensor.shape.dim
    )
    return Signature(value.name, dtype, dims)
