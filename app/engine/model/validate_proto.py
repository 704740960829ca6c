"""Checks of a model file before anything else reads it.

Every check works on the protobuf message, where names are still names: a cycle or an undefined
value cannot even be represented in the graph that the engine works on.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from app.engine.model.proto_graphs import all_nodes, bodies, called
from app.engine.model.schema_check import CanRun, Operators, check_node, domain_of
from app.engine.model.tensor_data import check_tensor, data_type
from app.engine.types.errors import CyclicGraphError, DtypeError, GraphError, ModelTooLargeError, OpsetError
from app.engine.types.limits import Limits

NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.defs.onnx_ml_opset_version(),
}
_CODES = frozenset(int(kind) for kind in ir.DataType)


@dataclass(slots=True)
class _Checker:
    """The limits, the operators in scope, and the nodes seen so far."""

    limits: Limits
    operators: Operators
    nodes: int = 0
    detached: Collection[str] = ()


def check(model: onnx.ModelProto, limits: Limits, known: CanRun, detached: Collection[str] = ()) -> int:
    """Refuse a model that is not well formed; put its nodes in topological order; count them.

    `known` tells of operators that have no schema in the onnx package. The data of the main graph's
    initializers that are `detached` lie elsewhere.

    Raises:
        GraphError: or the child that names the defect.
    """
    _check_texts(model)
    if model.ir_version > onnx.IR_VERSION:
        raise OpsetError(
            f"the model has IR version {model.ir_version}; the newest known is {onnx.IR_VERSION}"
        )
    functions = frozenset((domain_of(f.domain), f.name) for f in model.functions)
    opsets = _opsets(model.opset_import, "the model")
    checker = _Checker(limits, Operators(opsets, functions, known), detached=detached)
    _check_calls(model, limits)
    _check_graph(model.graph, checker, frozenset(), 0)
    for function in model.functions:
        imported = {**opsets, **_opsets(function.opset_import, f"function {function.name!r}")}
        inner = _Checker(limits, Operators(imported, functions, known), checker.nodes)
        scope = frozenset(function.input)
        _check_duplicates(function.input, f"function {function.name!r}")
        _check_nodes(function.node, scope, function.output, inner, 0, f"function {function.name!r}", scope)
        checker.nodes = inner.nodes
    return checker.nodes


def _check_texts(message: Message) -> None:
    """Refuse text that is not UTF-8: protobuf hands it out as bytes, which no name may be."""
    if isinstance(message, onnx.TensorProto):  # its data, which are large, are looked at elsewhere
        _check_each_text((message.name, message.doc_string), message.DESCRIPTOR.full_name)
        for entry in message.external_data:
            _check_texts(entry)
        return
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            _check_each_text((value,) if isinstance(value, (str, bytes)) else value, field.full_name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in (value,) if isinstance(value, Message) else value:
                _check_texts(part)


def _check_each_text(texts: Iterable[object], field: str) -> None:
    for text in texts:
        if isinstance(text, bytes):
            raise GraphError(f"{field}: expected UTF-8 text, found {text[:40]!r}; save it as UTF-8")


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


def _check_calls(model: onnx.ModelProto, limits: Limits) -> None:
    """Refuse functions that call themselves, directly or not, and those that are too much once inlined.

    A function counts as often as it is called: ten calls in each of twenty nested ones are 10^20 nodes.
    """
    if not model.functions:
        return
    functions = {(domain_of(f.domain), f.name): f for f in model.functions}
    if len(functions) < len(model.functions):
        raise GraphError("two local functions of the model have the same domain and name")
    callees = {
        key: {c for n in all_nodes(f.node) if (c := _callee(n)) in functions} for key, f in functions.items()
    }
    try:
        callees_first = tuple(TopologicalSorter(callees).static_order())
    except CycleError as error:
        name = error.args[1][0][1]
        raise CyclicGraphError(f"local function {name!r} calls itself, directly or through others") from error
    sizes: dict[tuple[str, str], tuple[int, int]] = {}  # nodes and bytes of each function, inlined
    for key in callees_first:
        sizes[key] = _inlined(functions[key].node, sizes, limits)
    _inlined(model.graph.node, sizes, limits)


def _callee(node: onnx.NodeProto) -> tuple[str, str]:
    return domain_of(node.domain), node.op_type


def _inlined(
    nodes: Sequence[onnx.NodeProto], sizes: Mapping[tuple[str, str], tuple[int, int]], limits: Limits
) -> tuple[int, int]:
    """Number and bytes of nodes with the functions in their place that they call."""
    found = [sizes.get(_callee(node), (1, 0)) for node in all_nodes(nodes)]
    count = sum(n for n, _ in found)
    nbytes = sum(node.ByteSize() for node in nodes) + sum(b for _, b in found)
    for number, most, what in ((count, limits.nodes, "nodes"), (nbytes, limits.nbytes, "byte of nodes")):
        if number > most:
            raise ModelTooLargeError(
                f"the model has {number} {what} or more once its local functions are inlined, "
                f"allowed are {most}"
            )
    return count, nbytes


def _check_graph(graph: onnx.GraphProto, checker: _Checker, outer: frozenset[str], depth: int) -> None:
    title = f"graph {graph.name!r}"
    if depth > checker.limits.depth:
        raise ModelTooLargeError(f"{title}: nested {depth} deep, allowed are {checker.limits.depth}")
    _check_duplicates((v.name for v in graph.input), title)
    tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    _check_duplicates((t.name for t in tensors), title)
    for tensor in graph.initializer:
        if depth or tensor.name not in checker.detached:
            check_tensor(tensor, checker.limits, f"initializer {tensor.name!r}")
    # A body's inputs may leave their types to inference.
    for values, is_given in ((graph.input, depth == 0), (graph.output, False), (graph.value_info, False)):
        for value in values:
            kind = "input" if is_given else "value"
            _check_type(value.type, f"{kind} {value.name!r}", f"value:{value.name}", is_given=is_given)
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
                    f"{node.op_type} {called(node)!r}",
                    pointer=f"value:{name}",
                )
            makers[name] = index
    visible = outer | makers.keys()
    reads = [frozenset(n for n in node.input if n) | _free(node) for node in nodes]
    for node, names in zip(nodes, reads, strict=True):
        absent = sorted(names - visible)
        if absent:
            raise GraphError(
                f"{node.op_type} {called(node)!r} reads {absent[0]!r}, which nothing defines",
                pointer=f"node:{called(node)}",
            )
    for name in outputs:  # those of a body are its own: what it reads from outside is none
        if name not in local and name not in makers:
            raise GraphError(f"{title}: output {name!r} is not computed", pointer=f"value:{name}")
    _sort(nodes, reads, makers)
    for node in nodes:
        check_node(node, checker.operators, checker.limits)
        for body in bodies(node):
            _check_graph(body, checker, frozenset(visible), depth + 1)


def _free(node: onnx.NodeProto) -> frozenset[str]:
    """Names that the bodies of a node read from the graphs around them."""
    found: set[str] = set()
    for body in bodies(node):
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
    sorter = TopologicalSorter(dict(enumerate(waiting)))
    try:
        sorter.prepare()
    except CycleError as error:
        node = sequence[min(error.args[1])]
        raise CyclicGraphError(
            f"{node.op_type} {called(node)!r} depends on its own output {', '.join(node.output)!r}",
            pointer=f"node:{called(node)}",
        ) from error
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    copies = [onnx.NodeProto.FromString(sequence[index].SerializeToString()) for index in order]
    del nodes[:]  # type: ignore[attr-defined]
    nodes.extend(copies)  # type: ignore[attr-defined]


def _check_type(type_: onnx.TypeProto, title: str, pointer: str, *, is_given: bool) -> None:
    """Refuse numbers that are no element types.

    A type that is left open is for inference to tell, but for that of an input, which must be one that
    something here can hold.
    """
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        _check_type(getattr(type_, kind).elem_type, title, pointer, is_given=is_given)
    elif kind == "map_type":
        _check_code(type_.map_type.key_type, title, pointer, is_given=is_given)
        _check_type(type_.map_type.value_type, title, pointer, is_given=is_given)
    elif kind == "tensor_type" or (kind == "sparse_tensor_type" and not is_given):
        _check_code(getattr(type_, kind).elem_type, title, pointer, is_given=is_given)
    elif is_given:
        raise DtypeError(
            f"{title}: expected a tensor, a sequence, an optional or a map, found {kind or 'no type'}",
            pointer=pointer,
        )


def _check_code(code: int, title: str, pointer: str, *, is_given: bool) -> None:
    if is_given or code not in _CODES:
        data_type(code, title, pointer)
