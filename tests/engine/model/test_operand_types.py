"""Types of operands against the schemas: refused with node, operand, expected and found type."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from app.engine.model import operand_types
from app.engine.types.errors import GraphError
from app.engine.types.map_type import MapType
from tests.engine.canonical import canonical, saved

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
CONV = f"""
    g (float[1,2,5,5] x) => (float[1,3,3,3] y)
    <double[3,2,3,3] w = {{{", ".join(["0.5"] * 54)}}}>
    {{ y = Conv (x, w) }}"""
BODY = """
    g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] a) { wide = Cast <to = 11> (x) a = Add (x, wide) },
            else_branch = e () => (float[2] b) { b = Identity (x) }
        >
    }"""
LOOP = """
    g (float[2] x, int64 n, bool c) => (float[2] y) {
        y = Loop (n, c, x) <
            body = b (int64 i, bool go, float[2] s) => (bool go2, float[2] s2)
            { go2 = Identity (go) k = Cast <to = 7> (s) s2 = Sqrt (k) }
        >
    }"""
FUNCTION = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[2] x, int64[2] i) => (float[2] y) { y = own.F (x, i) }
    <domain: "own", opset_import: ["": 21]> F (a, b) => (c) { c = Mul (a, b) }"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEADER + CONV,
            r"Conv .*: input 1 \('W', value 'w'\) is tensor\(double\), expected tensor\(float\), "
            r"the type of input 0 \('X'\)",
        ),
        (
            HEADER + BODY,
            r"Add .*: input 1 \('B', value 'wide'\) is tensor\(double\), expected tensor\(float\)",
        ),
        (
            HEADER + LOOP,
            r"Sqrt .*: input 0 \('X', value 'k'\) is tensor\(int64\), expected tensor\(bfloat16\) or",
        ),
        (FUNCTION, r"Mul .*: input 1 \('B', value 'i'\) is tensor\(int64\), expected tensor\(float\)"),
    ],
    ids=["main", "branch", "loop", "function"],
)
def test_operands_of_types_that_the_schema_forbids_are_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        canonical(saved(text, tmp_path))
    assert caught.value.pointer.startswith("node:")


def test_a_branch_that_is_never_taken_is_checked_too(tmp_path: Path) -> None:
    text = BODY.replace(", bool c)", ")").replace("y = If", "c = Constant <value = bool {0}> () y = If")
    with pytest.raises(GraphError, match=r"value 'wide'\) is tensor\(double\)"):
        canonical(saved(HEADER + text, tmp_path))


KINDS = {operand_types.title(ir.TensorType(kind)): ir.TensorType(kind) for kind in ir.DataType if kind}


def type_of(text: str) -> Any:
    """The type that a schema writes so."""
    for outer, make in (("seq(", ir.SequenceType), ("optional(", ir.OptionalType)):
        if text.startswith(outer):
            return make(type_of(text[len(outer) : -1]))
    if text.startswith("map("):
        key, _, value = text[4:-1].partition(",")
        return MapType(type_of(f"tensor({key})").dtype, type_of(value).dtype)
    return KINDS[text]


def model_of(schema: Any, types: Sequence[str]) -> ir.Model:
    """One node with inputs of these types."""
    values = [ir.Value(name=f"x{i}", type=type_of(text)) for i, text in enumerate(types)]
    node = ir.Node(schema.domain, schema.name, values, num_outputs=1, name="n")
    opsets = {schema.domain: schema.since_version}
    return ir.Model(ir.Graph(values, node.outputs, nodes=[node], opset_imports=opsets), ir_version=10)


def fitting(schema: Any) -> list[str]:
    """A type for each input, the same for all that share a variable."""
    chosen: dict[str, str] = {}
    return [chosen.setdefault(formal.type_str, min(formal.types)) for formal in schema.inputs]


SCHEMAS = [s for s in onnx.defs.get_all_schemas_with_history() if s.inputs and not s.deprecated]


def test_every_operator_of_every_version_takes_the_types_of_its_schema() -> None:
    for schema in SCHEMAS:
        operand_types.check(model_of(schema, fitting(schema)))


def test_every_operator_refuses_a_type_that_its_schema_has_not() -> None:
    texts = {t for s in SCHEMAS for formal in s.inputs for t in formal.types}
    tried = 0
    for schema in SCHEMAS:
        for index, formal in enumerate(schema.inputs):
            types = fitting(schema)
            for wrong in sorted(texts - set(formal.types))[:1]:
                types[index] = wrong
                with pytest.raises(GraphError, match="expected"):
                    operand_types.check(model_of(schema, types))
                tried += 1
    assert tried > 1000


def test_every_operator_refuses_two_types_where_its_schema_wants_one() -> None:
    tried = 0
    for schema in SCHEMAS:
        types = fitting(schema)
        for index, formal in enumerate(schema.inputs):
            earlier = [f.type_str for f in schema.inputs[:index]]
            others = sorted(set(formal.types) - {types[index]})
            if formal.type_str in earlier and formal.is_homogeneous and others:
                mixed = [*types[:index], others[0], *types[index + 1 :]]
                with pytest.raises(GraphError, match=f"input {index}.*the type of input"):
                    operand_types.check(model_of(schema, mixed))
                tried += 1
    assert tried > 200
