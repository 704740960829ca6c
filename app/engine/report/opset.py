"""A graph in another version of the standard operators, node by node.

A node whose operator did not change between the two versions stays as it is. Upwards the library's converter
respells the others. Downwards it has few rules, so spellings are tried: the node as it is, with constant
operands as the attributes that they once were, and what the converter makes. One is taken if the older schema
allows it, the types of its operands included, and if the converter, upwards, makes the given node of it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from app.engine.core import graph
from app.engine.types.errors import OpsetError

OLDEST = 7  # broadcasting became NumPy's there
NEWEST = onnx.defs.onnx_opset_version()
# The IR version that a version of the operators was released with, by the last such one; weights need not be
# inputs since 4. Source: Versioning.md of ONNX.
_IR_VERSIONS = (
    (9, 4), (10, 5), (11, 6), (14, 7), (18, 8), (20, 9), (22, 10), (23, 11), (24, 12), (27, 13), (28, 14),
)  # fmt: skip
# Control flow: since that version only more types were allowed. Source: Changelog.md of ONNX.
_WIDENED = {"If": 11, "Loop": 11, "Scan": 9}
_RENAMED = {("Pad", "constant_value"): "value"}  # operands that were attributes of another name
_SMALL = 1024  # byte; larger constants are no parameters of a node
_SHOWN = 20  # nodes that an error lists
_TYPES = onnx.defs.OpSchema.AttrType
_FIELDS: Mapping[Any, tuple[onnx.AttributeProto.AttributeType, str]] = {
    _TYPES.INT: (onnx.AttributeProto.INT, "i"),
    _TYPES.INTS: (onnx.AttributeProto.INTS, "ints"),
    _TYPES.FLOAT: (onnx.AttributeProto.FLOAT, "f"),
    _TYPES.FLOATS: (onnx.AttributeProto.FLOATS, "floats"),
}  # how constants become attributes
_SINGLE = ("i", "f")
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic

Array = np.ndarray[Any, Any]


def at_opset(model: ir.Model, version: int) -> ir.Model:
    """The same graph in that version of the standard operators; the model is left as it is.

    The types of its values must be known.

    Raises:
        OpsetError: there is no such version, or nodes that no spelling in it is known for; all are named.
    """
    if not OLDEST <= version <= NEWEST:
        raise OpsetError(
            f"opset {version}: graphs can be written in opset {OLDEST} to {NEWEST}", pointer="/options/opset"
        )
    current = model.opset_imports.get("", version)
    if current == version:
        return model
    meta, model = model.meta, model.clone()
    model.meta.update(meta)  # inputs that were bound to values
    if model.functions:
        model = InlinePass()(model).model
    refused = []
    for part in tuple(model.graphs()):
        pending = deque(part)
        while pending:
            node = pending.popleft()
            if node.domain or _schema(node.op_type, current) == _schema(node.op_type, version):
                continue
            if parts := _expanded(node, version):
                _replace(part, node, parts)
                pending.extendleft(reversed(parts))
                continue
            made = _respelled(_Subject.of(node, current), version)
            if made is None:
                refused.append(node)
            elif made:
                _replace(part, node, made)
        part.opset_imports[""] = version
    if refused:
        names = ", ".join(f"{n.op_type} {n.name!r}" for n in refused[:_SHOWN])
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise OpsetError(
            f"opset {version} has no known spelling of {len(refused)} nodes that are in opset {current}: "
            f"{names}{more}; choose a version nearer to {current}",
            pointer=f"node:{refused[0].name}",
        )
    model.opset_imports[""] = version
    model.ir_version = next(number for last, number in _IR_VERSIONS if version <= last)
    return model


@dataclass(frozen=True, slots=True)
class _Subject:
    """A node alone.

    Attributes:
        proto: its message.
        version: of the standard operators that it is spelled in.
        values: its operands and results by name.
        constants: those operands that are small and known.
        nested: whether it runs nested graphs.
    """

    proto: onnx.NodeProto
    version: int
    values: Mapping[str, ir.Value]
    constants: Mapping[str, Array]
    nested: bool

    @classmethod
    def of(cls, node: ir.Node, version: int) -> "_Subject":
        """A node of a graph."""
        values = {v.name or "": v for v in (*node.inputs, *node.outputs) if v is not None}
        found = ((v.name or "", ir.convenience.get_const_tensor(v)) for v in node.inputs if v is not None)
        small = {name: t.numpy() for name, t in found if t is not None and t.nbytes <= _SMALL}
        return cls(ir.to_proto(node), version, values, small, bool(graph.bodies(node)))

    def model(self, spelling: onnx.NodeProto, version: int) -> onnx.ModelProto:
        """A model of one node."""
        proto = onnx.ModelProto(ir_version=10)
        proto.opset_import.add(domain="", version=version)
        main = proto.graph
        main.name = "node"
        main.node.append(spelling)
        for name in dict.fromkeys(n for n in spelling.input if n):
            if name in self.constants:
                main.initializer.append(onnx.numpy_helper.from_array(self.constants[name], name))
            else:
                main.input.append(ir.to_proto(self.values[name]))
        main.output.extend(ir.to_proto(self.values[name]) for name in spelling.output if name)
        return proto

    def converted(self, spelling: onnx.NodeProto, begin: int, end: int) -> onnx.GraphProto | None:
        """Result of the library's converter for a spelling; None where it knows nothing."""
        try:
            return onnx.version_converter.convert_version(self.model(spelling, begin), end).graph
        except Exception:  # whatever its C++ code raises means the same
            return None


def _schema(op: str, version: int) -> int | None:
    """The version in which an operator last changed; None where there is none of it."""
    if not onnx.defs.has(op, version, ""):
        return None
    return int(onnx.defs.get_schema(op, version, "").since_version)


def _respelled(subject: _Subject, version: int) -> list[ir.Node] | None:
    """Nodes that take the place of a node; none where it can stay, None where no spelling is known."""
    op = subject.proto.op_type
    if not onnx.defs.has(op, version, ""):
        return None
    if subject.nested:
        return [] if min(version, subject.version) >= _WIDENED.get(op, NEWEST + 1) else None
    if any(value.name and value.type is None for value in subject.values.values()):
        return None
    if version > subject.version:
        made = subject.converted(subject.proto, subject.version, version)
        return None if made is None else _nodes(made, subject)
    schema = onnx.defs.get_schema(op, version, "")
    for spelling in _spellings(subject, schema, version):
        if _allows(schema, spelling, subject.values):
            back = subject.converted(spelling, version, subject.version)
            if back is not None and _is_same(subject, back):
                return _nodes(onnx.GraphProto(node=[spelling]), subject)
    return None


def _expanded(node: ir.Node, version: int) -> list[ir.Node]:
    """Nodes of the same version that compute what a node does where older ones mean something else; or none.

    The library's converter does not know that of Hardmax.
    """
    return _along_last(node) if node.op_type in _COERCING and version < _PER_AXIS else []


_COERCING = ("Softmax", "LogSoftmax", "Hardmax")
_PER_AXIS = 13  # before, these worked along all axes from the one that is given on


def _along_last(node: ir.Node) -> list[ir.Node]:
    """A softmax along the last axis, between transposes; none where it says that it is along that axis."""
    x, y = node.inputs[0], node.outputs[0]
    rank = 0 if x is None or x.shape is None else len(x.shape)
    axis = graph.attribute(node, "axis", -1)
    if x is None or x.shape is None or not -rank <= axis < rank:
        return []
    if axis % rank == rank - 1:
        if "axis" in node.attributes:
            return []
        made = ir.Value(name=y.name, type=y.type, shape=y.shape)
        told = ir.AttrInt64("axis", rank - 1)
        return [ir.Node("", node.op_type, [x], [told], outputs=[made], name=node.name)]
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    turned = ir.Shape([x.shape[a] for a in perm])
    nodes: list[ir.Node] = []
    steps = (("Transpose", ir.AttrInt64s("perm", perm)), (node.op_type, ir.AttrInt64("axis", rank - 1)))
    for op, attribute in (*steps, steps[0]):
        read = nodes[-1].outputs[0] if nodes else x
        last = len(nodes) == len(steps)
        name, shape = (y.name, y.shape) if last else (f"{y.name}.{op}", turned)
        made = ir.Value(name=name, type=y.type, shape=shape)
        title = node.name if op == node.op_type else f"{node.name}.{len(nodes)}"
        nodes.append(ir.Node("", op, [read], [attribute], outputs=[made], name=title))
    return nodes


def _spellings(subject: _Subject, schema: onnx.defs.OpSchema, version: int) -> Iterator[onnx.NodeProto]:
    """Candidates for the spelling of a node in an older schema."""
    yield _without_defaults(subject, subject.proto, schema)
    attributes = _with_attributes(subject, schema)
    if attributes is not None:
        yield _without_defaults(subject, attributes, schema)
    made = subject.converted(subject.proto, subject.version, version)
    if made is not None and len(made.node) == 1:
        yield made.node[0]


def _without_defaults(
    subject: _Subject, spelling: onnx.NodeProto, schema: onnx.defs.OpSchema
) -> onnx.NodeProto:
    """A spelling without those attributes that the older schema lacks and that say what holds anyway."""
    implied = _IMPLIED.get(spelling.op_type)
    newer = onnx.defs.get_schema(spelling.op_type, subject.version, "").attributes
    made = onnx.NodeProto()
    made.CopyFrom(spelling)
    del made.attribute[:]
    for attribute in spelling.attribute:
        default = newer[attribute.name].default_value if attribute.name in newer else None
        if attribute.name not in schema.attributes and (
            (default is not None and _told(attribute) == _told(default))
            or (implied is not None and attribute.name == implied[0] and implied[1](subject))
        ):
            continue
        made.attribute.append(attribute)
    return made


def _splits_evenly(subject: _Subject) -> bool:
    """True if a Split has parts of one known extent, which is what it meant before it told their number."""
    operand = subject.values[subject.proto.input[0]]
    axis = next((a.i for a in subject.proto.attribute if a.name == "axis"), 0)
    if len(_trimmed(subject.proto.input)) > 1 or operand.shape is None:
        return False
    rank = len(operand.shape)
    extent = operand.shape[axis] if -rank <= axis < rank else None
    return isinstance(extent, int) and extent % len(subject.proto.output) == 0


# Attributes by operator that older schemas lack, and when these mean the same without.
_IMPLIED: Mapping[str, tuple[str, Callable[[_Subject], bool]]] = {"Split": ("num_outputs", _splits_evenly)}


def _with_attributes(subject: _Subject, schema: onnx.defs.OpSchema) -> onnx.NodeProto | None:
    """A spelling with attributes for those constant operands that were attributes; None if none was."""
    op = subject.proto.op_type
    newer = onnx.defs.get_schema(op, subject.version, "")
    made = onnx.NodeProto()
    made.CopyFrom(subject.proto)
    old = {parameter.name for parameter in schema.inputs}
    kept = list(made.input)
    for place in reversed(range(min(len(newer.inputs), len(kept)))):
        name, operand = newer.inputs[place].name, kept[place]
        attribute = schema.attributes.get(_RENAMED.get((op, name), name))
        if (
            attribute is None
            or attribute.type not in _FIELDS
            or name in old
            or (operand and operand not in subject.constants)
        ):
            continue
        del kept[place]
        if operand:
            kind, field = _FIELDS[attribute.type]
            value = subject.constants[operand].reshape(-1).tolist()
            if field in _SINGLE and len(value) != 1:
                return None
            made.attribute.add(
                name=attribute.name, type=kind, **{field: value[0] if field in _SINGLE else value}
            )
    if len(kept) == len(made.input):
        return None
    del made.input[:]
    made.input.extend(kept)
    return made


def _allows(schema: onnx.defs.OpSchema, spelling: onnx.NodeProto, values: Mapping[str, ir.Value]) -> bool:
    """True if a schema has these attributes, and operands and results of these types."""
    if any(a.name not in schema.attributes for a in spelling.attribute):
        return False
    if any(
        a.required and name not in {x.name for x in spelling.attribute}
        for name, a in schema.attributes.items()
    ):
        return False
    given = (
        (spelling.input, schema.inputs, schema.min_input),
        (spelling.output, schema.outputs, schema.min_output),
    )
    return all(_fits(names, formal, least, values) for names, formal, least in given)


def _fits(
    names: Sequence[str],
    formal: Sequence[onnx.defs.OpSchema.FormalParameter],
    least: int,
    values: Mapping[str, ir.Value],
) -> bool:
    if len(names) < least:
        return False
    for place, name in enumerate(names):
        if place >= len(formal) and not (formal and formal[-1].option == _VARIADIC):
            return False
        allowed = formal[min(place, len(formal) - 1)].types
        if name and name in values and _spelled(values[name].type) not in allowed:
            return False
    return True


def _spelled(type_: ir.TypeProtocol | None) -> str:
    """A type as schemas spell it."""
    if isinstance(type_, ir.SequenceType):
        return f"seq({_spelled(type_.elem_type)})"
    if isinstance(type_, ir.OptionalType):
        return f"optional({_spelled(type_.elem_type)})"
    return "" if type_ is None else f"tensor({type_.dtype.name.lower()})"


def _is_same(subject: _Subject, made: onnx.GraphProto) -> bool:
    """True if a converted graph is one node, constants apart, that says what the given one says."""
    known = dict(subject.constants)
    known |= {t.name: onnx.numpy_helper.to_array(t) for t in made.initializer}
    nodes, wanted = list(made.node), subject.proto
    if len(nodes) > 1:
        for node in (n for n in nodes if n.op_type == "Constant"):
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if value is not None:
                known[node.output[0]] = onnx.numpy_helper.to_array(value)
        nodes = [n for n in nodes if n.output[0] not in known]
    if (
        len(nodes) != 1
        or nodes[0].op_type != wanted.op_type
        or _trimmed(nodes[0].output) != _trimmed(wanted.output)
    ):
        return False
    found = nodes[0]
    schema = onnx.defs.get_schema(wanted.op_type, subject.version, "")
    if _filled(_from_front(found, subject), schema) != _filled(_from_front(wanted, subject), schema):
        return False
    ours, theirs = _trimmed(wanted.input), _trimmed(found.input)
    return len(ours) == len(theirs) and all(_is_equal(a, b, known) for a, b in zip(ours, theirs))


def _from_front(node: onnx.NodeProto, subject: _Subject) -> onnx.NodeProto:
    """The node with its axis counted from the front, where it is of those that the converter counts anew."""
    operand = subject.values.get(subject.proto.input[0]) if node.op_type in _COERCING else None
    if operand is None or operand.shape is None:
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for attribute in made.attribute:
        if attribute.name == "axis" and attribute.i < 0:
            attribute.i += len(operand.shape)
    return made


def _trimmed(names: Sequence[str]) -> list[str]:
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found


def _is_equal(ours: str, theirs: str, known: Mapping[str, Array]) -> bool:
    if ours == theirs:
        return True
    if ours not in known or theirs not in known:
        return False
    a, b = known[ours], known[theirs]
    return a.dtype == b.dtype and a.size == b.size and bool(np.array_equal(a.reshape(-1), b.reshape(-1)))


def _filled(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> dict[str, bytes]:
    """Attributes with those that go without saying."""
    default = {k: _told(a.default_value) for k, a in schema.attributes.items() if a.default_value.name}
    return default | {a.name: _told(a) for a in node.attribute}


def _told(attribute: onnx.AttributeProto) -> bytes:
    """The value of an attribute, comparable."""
    plain = onnx.AttributeProto()
    plain.CopyFrom(attribute)
    plain.ClearField("doc_string")
    plain.ClearField("name")
    return bytes(plain.SerializeToString(deterministic=True))


def _nodes(made: onnx.GraphProto, subject: _Subject) -> list[ir.Node]:
    """Nodes of a graph on the values of the subject; what is between them is named after its first result."""
    values: dict[str, ir.Value] = {}
    first = subject.proto.output[0]
    for tensor in made.initializer:
        if tensor.name not in subject.values:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = f"{first}.{tensor.name}"
            constant: Any = ir.from_proto(copy)  # of a tensor, which its type does not tell
            values[tensor.name] = ir.Value(
                name=copy.name,
                type=ir.TensorType(constant.dtype),
                shape=constant.shape,
                const_value=constant,
            )
    nodes = []
    for place, proto in enumerate(made.node):
        inputs = [(values.get(n) or subject.values[n]) if n else None for n in proto.input]
        attributes = [ir.from_proto(a) for a in proto.attribute]
        name = subject.proto.name if place == len(made.node) - 1 else f"{subject.proto.name}.{place}"
        node = ir.Node("", proto.op_type, inputs, attributes, num_outputs=len(proto.output), name=name)
        for output, title in zip(node.outputs, proto.output):
            known = subject.values.get(title)
            output.name = title if known is not None or not title else f"{first}.{place}"
            if known is not None:
                output.type, output.shape = known.type, known.shape
            values[title] = output
        nodes.append(node)
    return nodes


def _replace(part: ir.Graph, node: ir.Node, made: Sequence[ir.Node]) -> None:
    """Put nodes in the place of one."""
    results = {output.name or "": output for n in made for output in n.outputs if output.name}
    for n in made:
        for value in n.inputs:
            if value is not None and value.const_value is not None and value.graph is None:
                part.register_initializer(value)
    part.insert_after(node, list(made))
    for old in (v for v in node.outputs if v.name):
        ir.convenience.replace_all_uses_with([old], [results[old.name or ""]], replace_graph_outputs=True)
    operands = [v for v in node.inputs if v is not None]
    part.remove(node, safe=True)
    for value in operands:
        _drop_unread(value)


def _drop_unread(constant: ir.Value) -> None:
    """Remove a constant that became an attribute of all nodes that read it."""
    owner, node = constant.graph, constant.producer()
    if owner is None or constant.uses() or constant.is_graph_output() or constant.is_graph_input():
        return
    if constant.is_initializer():
        del owner.initializers[constant.name or ""]
    elif node is not None and node.op_type == "Constant" and not node.domain:
        owner.remove(node, safe=True)
