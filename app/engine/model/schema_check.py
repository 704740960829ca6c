"""Nodes against the schemas of their operators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx.defs import OpSchema, SchemaError

from app.engine.model.proto_graphs import called
from app.engine.model.runtime_operators import spellings
from app.engine.model.tensor_data import check_tensor
from app.engine.types.errors import GraphError, UnknownOperatorError
from app.engine.types.limits import Limits

CanRun = Callable[[str, str], bool]  # (domain, operator) -> whether something here can handle it

_STANDARD = frozenset(schema.domain for schema in onnx.defs.get_all_schemas())
_SINGLE = OpSchema.FormalParameterOption.Single
# An attribute's type field was optional until IR version 2; a missing one reads as UNDEFINED.
_UNTYPED = onnx.AttributeProto.UNDEFINED


@dataclass(frozen=True, slots=True)
class Operators:
    """Operators and opsets that the nodes of a graph may have.

    Attributes:
        opsets: imported version by domain.
        functions: (domain, name) of the model's local functions.
        known: tells of operators that have no schema in the onnx package.
    """

    opsets: Mapping[str, int]
    functions: frozenset[tuple[str, str]]
    known: CanRun
    schemas: dict[tuple[str, str], OpSchema | None] = field(default_factory=dict, compare=False)


def domain_of(domain: str) -> str:
    """The domain's one spelling: the default domain is the empty string."""
    return "" if domain == "ai.onnx" else domain


def check_node(node: onnx.NodeProto, operators: Operators, limits: Limits) -> None:
    """Refuse a node that does not fit its operator's schema.

    Raises:
        UnknownOperatorError: there is no such operator in the imported version of its set.
        GraphError: too few or too many operands, or an attribute that does not fit.
    """
    schema = _schema(node, operators)
    title = f"{node.op_type} {called(node)!r}"
    if schema is not None:
        _check_arity(title, node, schema)
        _check_attributes(title, node, schema)
    for attribute in node.attribute:
        for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
            check_tensor(tensor, limits, f"{title}: attribute {attribute.name!r}")


def _schema(node: onnx.NodeProto, operators: Operators) -> OpSchema | None:
    """The schema of a node's operator; None for local functions and operators known only to us."""
    domain = domain_of(node.domain)
    if (domain, node.op_type) in operators.functions:
        return None
    key = (domain, node.op_type)
    if key in operators.schemas:
        return operators.schemas[key]
    named = domain or "ai.onnx"

    def unknown(reason: str) -> UnknownOperatorError:
        message = f"node {called(node)!r} uses {named}::{node.op_type}, {reason}"
        return UnknownOperatorError(message, pointer=f"node:{called(node)}")

    version = operators.opsets.get(domain)
    if version is None:
        raise unknown(f"but the model does not import operator set {named!r}")
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except SchemaError:
        elsewhere = domain in _STANDARD and node.op_type not in spellings()
        if elsewhere or not operators.known(domain, node.op_type):
            raise unknown(
                f"which is not in operator set {named!r} version {version}; "
                "give the model a local function of that name"
            ) from None
        schema = None
    if schema is not None and schema.deprecated:
        raise unknown(f"which operator set {named!r} version {version} no longer has")
    operators.schemas[key] = schema
    return schema


def _check_arity(title: str, node: onnx.NodeProto, schema: OpSchema) -> None:
    for side, found, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= found <= most:
            allowed = f"{least}" if least == most else f"{least} to {most}"
            raise GraphError(
                f"{title}: expected {allowed} {side}, found {found}", pointer=f"node:{called(node)}"
            )
    for index, formal in enumerate(schema.inputs):
        if index < len(node.input) and not node.input[index] and formal.option == _SINGLE:
            raise GraphError(
                f"{title}: input {index} ({formal.name!r}) must not be left out",
                pointer=f"node:{called(node)}",
            )


def _check_attributes(title: str, node: onnx.NodeProto, schema: OpSchema) -> None:
    pointer = f"node:{called(node)}"
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
        expected = int(formal.type)  # type: ignore[call-overload]  # an IntEnum, but for its stub
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
