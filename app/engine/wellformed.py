"""What must hold of a model file before anything else reads it.

Every check works on the protobuf message, where names are still names: a cycle or an undefined
value cannot even be represented in the graph that the engine works on.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema, SchemaError

from app.engine.errors import (
    CyclicGraphError,
    DtypeError,
    GraphError,
    ModelTooLargeError,
    OpsetError,
    UnknownOperatorError,
)

NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.defs.onnx_ml_opset_version(),
}
UNSUPPORTED = frozenset({ir.DataType.COMPLEX64, ir.DataType.COMPLEX128})
# An attribute's type field was optional until IR version 2; a missing one reads as UNDEFINED.
_UNTYPED = onnx.AttributeProto.UNDEFINED
# Which field of a TensorProto holds the elements of a type when it is not raw_data.
_FIELDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("float_data", frozenset({"FLOAT"})),
    ("double_data", frozenset({"DOUBLE"})),
    ("int64_data", frozenset({"INT64"})),
    ("uint64_data", frozenset({"UINT32", "UINT64"})),
    ("string_data", frozenset({"STRING"})),
)

Known = Callable[[str, str], bool]  # (domain, operator) -> whether something here can handle it


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a model may be.

    Attributes:
        nbytes: of the file and its external data together.
        nodes: nested graphs and functions included.
        depth: of graphs nested in attributes.
        elements: of one tensor.
    """

    nbytes: int = 2**31 - 1
    nodes: int = 100_000
    depth: int = 16
    elements: int = 2**31 - 1


@dataclass(slots=True)
class _Checker:
    limits: Limits
    known: Known
    opsets: dict[str, int]
    functions: frozenset[tuple[str, str]]
    nodes: int = 0
    schemas: dict[tuple[str, str], OpSchema | None] = field(default_factory=dict)


def domain_of(domain: str) -> str:
    """The domain's one spelling: the default domain is the empty string."""
    return "" if domain == "ai.onnx" else domain


def check(model: onnx.ModelProto, limits: Limits, known: Known) -> int:
    """Refuse a model that is not well formed; put its nodes in topological order; count them.

    `known` tells of operators that have no schema in the onnx package.

    Raises:
        GraphError: or the child that names the defect.
    """
    if model.ir_version > onnx.IR_VERSION:
        raise OpsetError(
            f"the model has IR version {model.ir_version}; the newest known is {onnx.IR_VERSION}"
        )
    functions = frozenset((domain_of(f.domain), f.name) for f in model.functions)
    opsets = _opsets(model.opset_import, "the model")
    checker = _Checker(limits, known, opsets, functions)
    _check_calls(model)
    _check_graph(model.graph, checker, frozenset(), 0)
    for function in model.functions:
        inner = _Checker(
            limits, known, {**opsets, **_opsets(function.opset_import, function.name)}, functions
        )
        inner.nodes = checker.nodes
        scope = frozenset(function.input)
        _check_duplicates(function.input, f"function {function.name!r}")
        _check_nodes(function.node, scope, function.output, inner, 0, f"function {function.name!r}", scope)
        checker.nodes = inner.nodes
    return checker.nodes


def _opsets(imports: Iterable[onnx.OperatorSetIdProto], owner: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in imports:
        domain = domain_of(entry.domain)
        if found.get(domain, entry.version) != entry.version:
            raise OpsetError(
                f"{owner} imports operator set {domain or 'ai.onnx'!r} as version {found[domain]} "
                f"and as version {entry.version}"
            )
        newest = NEWEST.get(domain)
        if entry.version < 1 or (newest is not None and entry.version > newest):
            raise OpsetError(
                f"{owner} imports version {entry.version} of operator set {domain or 'ai.onnx'!r}; "
                f"known are 1 to {newest or 'any'}"
            )
        found[domain] = entry.version
    return found


def _check_calls(model: onnx.ModelProto) -> None:
    """Refuse functions that call themselves, directly or not: inlining them would not end."""
    bodies = {(domain_of(f.domain), f.name): f for f in model.functions}
    if len(bodies) < len(model.functions):
        raise GraphError("two local functions of the model have the same domain and name")
    callees = {
        key: {c for n in _all_nodes(f.node) if (c := (domain_of(n.domain), n.op_type)) in bodies}
        for key, f in bodies.items()
    }
    while leaves := [key for key, called in callees.items() if not called]:
        for key in leaves:
            del callees[key]
        for called in callees.values():
            called.difference_update(leaves)
    if callees:
        name = next(iter(callees))[1]
        raise CyclicGraphError(f"local function {name!r} calls itself, directly or through others")


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for body in _bodies(node):
            yield from _all_nodes(body.node)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_graph(graph: onnx.GraphProto, checker: _Checker, outer: frozenset[str], depth: int) -> None:
    title = f"graph {graph.name!r}"
    if depth > checker.limits.depth:
        raise ModelTooLargeError(f"{title}: nested {depth} deep, allowed are {checker.limits.depth}")
    _check_duplicates((v.name for v in graph.input), title)
    tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    _check_duplicates((t.name for t in tensors), title)
    for tensor in graph.initializer:
        check_tensor(tensor, checker.limits, f"initializer {tensor.name!r}")
    for value in graph.input:
        if depth == 0:  # a body's inputs may leave their types to inference
            _check_type(value.type, value.name)
    local = frozenset((*(v.name for v in graph.input), *(t.name for t in tensors)))
    _check_nodes(graph.node, outer | local, [v.name for v in graph.output], checker, depth, title, local)


def _check_duplicates(names: Iterable[str], title: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise GraphError(f"{title}: an input or initializer has no name")
        if name in seen:
            raise GraphError(f"{title}: value {name!r} is defined twice", pointer=f"value:{name}")
        seen.add(name)


def _check_nodes(
    nodes: "onnx.RepeatedCompositeContainer",  # type: ignore[name-defined]  # protobuf has no such type
    outer: frozenset[str],
    outputs: Iterable[str],
    checker: _Checker,
    depth: int,
    title: str,
    local: frozenset[str],
) -> None:
    """Check the nodes of one graph or function and put them in topological order.

    `outer` are the names defined before the nodes, `local` those of them that belong to this graph.
    """
    checker.nodes += len(nodes)
    if checker.nodes > checker.limits.nodes:
        raise ModelTooLargeError(f"the model has more than {checker.limits.nodes} nodes")
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in makers or name in local:
                raise GraphError(
                    f"{title}: value {name!r} is defined twice, the second time by "
                    f"{node.op_type} {node.name!r}",
                    pointer=f"value:{name}",
                )
            makers[name] = index
    visible = outer | makers.keys()
    reads = [frozenset(n for n in node.input if n) | _free(node) for node in nodes]
    for node, names in zip(nodes, reads, strict=True):
        absent = sorted(names - visible)
        if absent:
            raise GraphError(
                f"{node.op_type} {node.name!r} reads {absent[0]!r}, which nothing defines",
                pointer=f"node:{node.name}",
            )
    for name in outputs:
        if name not in visible:
            raise GraphError(f"{title}: output {name!r} is not computed", pointer=f"value:{name}")
    _sort(nodes, reads, makers)
    for node in nodes:
        _check_node(node, checker)
        for body in _bodies(node):
            _check_graph(body, checker, frozenset(visible), depth + 1)


def _free(node: onnx.NodeProto) -> frozenset[str]:
    """Names that the bodies of a node read from the graphs around them."""
    found: set[str] = set()
    for body in _bodies(node):
        inner = {v.name for v in body.input} | {t.name for t in body.initializer}
        inner |= {s.values.name for s in body.sparse_initializer}
        inner |= {name for n in body.node for name in n.output}
        read = {name for n in body.node for name in n.input if name}
        read |= {v.name for v in body.output}
        for nested in body.node:
            read |= _free(nested)
        found |= read - inner
    return frozenset(found)


def _sort(nodes: object, reads: list[frozenset[str]], makers: dict[str, int]) -> None:
    """Topological order, the file's own where that is one.

    Raises:
        CyclicGraphError: there is none.
    """
    sequence: list[onnx.NodeProto] = list(nodes)  # type: ignore[call-overload]  # a protobuf container
    waiting = [{makers[name] for name in names if name in makers} for names in reads]
    if all(max(before, default=-1) < index for index, before in enumerate(waiting)):
        return
    after: list[list[int]] = [[] for _ in sequence]
    for index, before in enumerate(waiting):
        for maker in before:
            after[maker].append(index)
    ready = [index for index, before in enumerate(waiting) if not before]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in after[index]:
            waiting[follower].discard(index)
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(sequence):
        node = sequence[min(set(range(len(sequence))) - set(order))]
        raise CyclicGraphError(
            f"{node.op_type} {node.name!r} depends on its own output {', '.join(node.output)!r}",
            pointer=f"node:{node.name}",
        )
    copies = [onnx.NodeProto.FromString(sequence[index].SerializeToString()) for index in order]
    del nodes[:]  # type: ignore[attr-defined]
    nodes.extend(copies)  # type: ignore[attr-defined]


def _check_node(node: onnx.NodeProto, checker: _Checker) -> None:
    schema = _schema(node, checker)
    title = f"{node.op_type} {node.name!r}"
    if schema is not None:
        _check_arity(title, node, schema)
        _check_attributes(title, node, schema)
    for attribute in node.attribute:
        for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
            check_tensor(tensor, checker.limits, f"{title}: attribute {attribute.name!r}")


def _schema(node: onnx.NodeProto, checker: _Checker) -> OpSchema | None:
    """The schema of a node's operator; None for local functions and operators known only to us."""
    domain = domain_of(node.domain)
    if (domain, node.op_type) in checker.functions:
        return None
    key = (domain, node.op_type)
    if key in checker.schemas:
        return checker.schemas[key]
    operator = f"{domain or 'ai.onnx'}::{node.op_type}"
    pointer = f"node:{node.name}"
    version = checker.opsets.get(domain)
    if version is None:
        raise UnknownOperatorError(
            f"node {node.name!r} uses {operator}, but the model does not import operator set "
            f"{domain or 'ai.onnx'!r}",
            pointer=pointer,
        )
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except SchemaError:
        if not checker.known(domain, node.op_type):
            raise UnknownOperatorError(
                f"node {node.name!r} uses {operator}, which is not in operator set "
                f"{domain or 'ai.onnx'!r} version {version}; give the model a local function of that name",
                pointer=pointer,
            ) from None
        schema = None
    if schema is not None and schema.deprecated:
        raise UnknownOperatorError(
            f"node {node.name!r} uses {operator}, which operator set {domain or 'ai.onnx'!r} version "
            f"{version} no longer has",
            pointer=pointer,
        )
    checker.schemas[key] = schema
    return schema


def _check_arity(title: str, node: onnx.NodeProto, schema: OpSchema) -> None:
    for side, found, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= found <= most:
            allowed = f"{least}" if least == most else f"{least} to {most}"
            raise GraphError(
                f"{title}: expected {allowed} {side}, found {found}", pointer=f"node:{node.name}"
            )
    for index, formal in enumerate(schema.inputs):
        if index < len(node.input) and not node.input[index] and formal.option == _SINGLE:
            raise GraphError(
                f"{title}: input {index} ({formal.name!r}) must not be left out", pointer=f"node:{node.name}"
            )


_SINGLE = OpSchema.FormalParameterOption.Single


def _check_attributes(title: str, node: onnx.NodeProto, schema: OpSchema) -> None:
    pointer = f"node:{node.name}"
    given = {a.name: a for a in node.attribute}
    if len(given) < len(node.attribute):
        raise GraphError(f"{title}: an attribute is given twice", pointer=pointer)
    for name, attribute in given.items():
        formal = schema.attributes.get(name)
        if formal is None:
            raise GraphError(
                f"{title}: unknown attribute {name!r}; {schema.name} of opset {schema.since_version} has "
                f"{', '.join(sorted(schema.attributes)) or 'none'}",
                pointer=pointer,
            )
        expected = int(formal.type.value)
        if attribute.type not in (expected, _UNTYPED):
            kinds = onnx.AttributeProto.AttributeType
            raise GraphError(
                f"{title}: attribute {name!r} must be of type {kinds.Name(expected)}, "
                f"found {kinds.Name(attribute.type)}",
                pointer=pointer,
            )
    for name, formal in schema.attributes.items():
        if formal.required and name not in given:
            raise GraphError(f"{title}: attribute {name!r} is required", pointer=pointer)


def _check_type(type_: onnx.TypeProto, name: str) -> None:
    pointer = f"value:{name}"
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        data_type(type_.tensor_type.elem_type, f"input {name!r}", pointer)
    elif kind == "sequence_type":
        _check_type(type_.sequence_type.elem_type, name)
    elif kind == "optional_type":
        _check_type(type_.optional_type.elem_type, name)
    else:
        raise DtypeError(
            f"input {name!r}: expected a tensor, a sequence or an optional, found {kind or 'no type'}",
            pointer=pointer,
        )


def data_type(code: int, title: str, pointer: str = "") -> ir.DataType:
    """The element type behind a number of the file.

    Raises:
        DtypeError: there is none of that number, or nothing here computes with it.
    """
    try:
        found = ir.DataType(code)
    except ValueError:
        found = ir.DataType.UNDEFINED
    if found == ir.DataType.UNDEFINED:
        raise DtypeError(f"{title}: unknown element type {code}", pointer=pointer)
    if found in UNSUPPORTED:
        raise DtypeError(f"{title}: element type {found.name} is not supported", pointer=pointer)
    return found


def check_tensor(tensor: onnx.TensorProto, limits: Limits, title: str) -> None:
    """Refuse a tensor whose data do not fit its type and dimensions."""
    pointer = f"value:{tensor.name}"
    kind = data_type(tensor.data_type, title, pointer)
    if any(d < 0 for d in tensor.dims):
        raise GraphError(f"{title}: negative dimension in {list(tensor.dims)}", pointer=pointer)
    count = math.prod(tensor.dims)
    if count > limits.elements:
        raise ModelTooLargeError(f"{title}: {count} elements, allowed are {limits.elements}", pointer=pointer)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    if tensor.HasField("segment"):
        raise GraphError(f"{title}: tensors in segments are not supported", pointer=pointer)
    if tensor.HasField("raw_data"):
        if kind == ir.DataType.STRING:
            raise GraphError(f"{title}: strings must not be raw data", pointer=pointer)
        expected, found, unit = -(-count * kind.bitwidth // 8), len(tensor.raw_data), "byte"
    else:
        field_ = next((f for f, kinds in _FIELDS if kind.name in kinds), "int32_data")
        packed = 8 // kind.bitwidth if kind != ir.DataType.STRING and kind.bitwidth < 8 else 1
        expected = -(-count // packed)
        found, unit = len(getattr(tensor, field_)), f"entries in {field_}"
    if found != expected:
        raise GraphError(
            f"{title}: {kind.name}{list(tensor.dims)} needs {expected} {unit}, found {found}",
            pointer=pointer,
        )
