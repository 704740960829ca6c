"""Types of operands against the type constraints of the operators' schemas.

Source: ONNX IR specification, "Graphs" (types of operands); schemas of the onnx package.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema, SchemaError

from app.engine.model.schema_check import domain_of
from app.engine.types.errors import GraphError
from app.engine.types.map_type import MapType

_VARIADIC = OpSchema.FormalParameterOption.Variadic
_NAMES = {ir.DataType.FLOAT: "float", ir.DataType.DOUBLE: "double"}


def check(model: ir.Model) -> None:
    """Refuse a node whose operands have types that its operator does not take, nested graphs included.

    Operands that share a type variable of the schema must have one type. Operators without a schema,
    and operands whose types nobody could infer, are left out.

    Raises:
        GraphError: an operand has a type that does not fit; node, operand and types are named.
    """
    for node in model.graph.all_nodes():
        _check_node(node, model.opset_imports)


def result_follows(node: ir.Node, opsets: Mapping[str, int], dtypes: Collection[ir.DataType]) -> bool:
    """True if the outputs that have one of these types have it from inputs, not from an attribute alone.

    False for an operator without a schema.
    """
    domain = domain_of(node.domain)
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 0), domain)
    except SchemaError:
        return False
    read = {f.type_str for f in schema.inputs}
    for index, value in enumerate(node.outputs):
        formal = schema.outputs[min(index, len(schema.outputs) - 1)]
        if value.name and value.dtype in dtypes and formal.type_str not in read:
            if not _CHOSEN.get(node.op_type, frozenset()) & node.attributes.keys():
                return node.op_type in _CHOSEN
            return False
    return True


# Attributes that choose the type of a result, which is that of an operand where they are left out.
_CHOSEN: Mapping[str, frozenset[str]] = {
    "Bernoulli": frozenset({"dtype"}),
    "DequantizeLinear": frozenset({"output_dtype"}),
    "EyeLike": frozenset({"dtype"}),
    "RandomNormalLike": frozenset({"dtype"}),
    "RandomUniformLike": frozenset({"dtype"}),
}


@dataclass(frozen=True, slots=True)
class _Formal:
    """An input as a schema has it; `variable` names its type, None where each operand has its own."""

    name: str
    types: frozenset[str]
    variable: str | None


def _check_node(node: ir.Node, opsets: Mapping[str, int]) -> None:
    domain = domain_of(node.domain)
    formals, variadic = _formals(node.op_type, opsets.get(domain, 0), domain)
    bound: dict[str, tuple[str, str]] = {}  # by type variable: the type, and the operand that has it
    for index, value in enumerate(node.inputs if variadic else node.inputs[: len(formals)]):
        found = None if value is None else title(value.type)
        if value is None or found is None:
            continue
        formal = formals[min(index, len(formals) - 1)]
        expected: Collection[str] = formal.types
        because = ""
        if formal.variable in bound:
            shared, other = bound[formal.variable]
            expected, because = (shared,), f", the type of {other}"
        if found not in expected:
            raise GraphError(
                f"{node.op_type} {node.name!r}: input {index} ({formal.name!r}, value {value.name!r}) is "
                f"{found}, expected {' or '.join(sorted(expected))}{because}; "
                "cast it to a type that the operator takes",
                pointer=f"node:{node.name}",
            )
        if formal.variable is not None:
            bound.setdefault(formal.variable, (found, f"input {index} ({formal.name!r})"))


@cache
def _formals(op: str, version: int, domain: str) -> tuple[tuple[_Formal, ...], bool]:
    """The inputs of an operator, and whether the last one repeats; none for operators without a schema."""
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except SchemaError:
        return (), False
    formals = tuple(
        _Formal(f.name, frozenset(f.types), f.type_str if f.is_homogeneous else None) for f in schema.inputs
    )
    return formals, bool(formals) and schema.inputs[-1].option == _VARIADIC


def title(type_: ir.TypeProtocol | None) -> str | None:
    """A type as schemas write it, such as `seq(tensor(float))`; None where a part is unknown."""
    match type_:
        case MapType():
            return f"map({_name(type_.key)},tensor({_name(type_.value)}))"
        case ir.TensorType():
            return None if type_.dtype == ir.DataType.UNDEFINED else f"tensor({_name(type_.dtype)})"
        case ir.SequenceType() | ir.OptionalType():
            inner = title(type_.elem_type)
            outer = "seq" if isinstance(type_, ir.SequenceType) else "optional"
            return None if inner is None else f"{outer}({inner})"
    return None


def _name(kind: ir.DataType) -> str:
    return _NAMES.get(kind, kind.name.lower())
