"""What the table of elementwise operators says, against the reference evaluator and the generator."""

import numpy as np
import onnx
import pytest

from app.engine.core.registry import load
from app.engine.operators.tables.elementwise import OPERATORS
from tests.harness import context, group_of, implementation, model_of

REGISTRY = load()
ROW = implementation("elementwise.generated", REGISTRY)
# Types of the operands and of the result, where they are not one float and a float.
REAL = dict.fromkeys(
    ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Mean", "PRelu"], ("float", "float", "float")
)
COMPARED = dict.fromkeys(
    ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"], ("float", "float", "bool")
)
TRUTH = dict.fromkeys(["And", "Or", "Xor"], ("bool", "bool", "bool"))
BITS = dict.fromkeys(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"], ("uint8", "uint8", "uint8"))
SIGNATURES = {
    **REAL,
    **COMPARED,
    **TRUTH,
    **BITS,
    "Mod": ("int32", "int32", "int32"),
    "Not": ("bool", "bool"),
    "BitwiseNot": ("uint8", "uint8"),
    "IsNaN": ("float", "bool"),
    "IsInf": ("float", "bool"),
    "Where": ("bool", "float", "float", "float"),
    "Cast": ("float", "int32"),
    "CastLike": ("float", "int32", "int32"),
    "QuantizeLinear": ("float", "float", "uint8"),
    "DequantizeLinear": ("int8", "float", "float"),
}
ATTRIBUTES = {"BitShift": '<direction = "LEFT">', "Cast": "<to = 6>"}
NUMPY = {"float": np.float32, "bool": np.bool_, "uint8": np.uint8, "int32": np.int32, "int8": np.int8}


def graph_text(op: str) -> tuple[str, tuple[str, ...]]:
    """A graph of one node on tensors of three elements, and the types of its inputs."""
    *kinds, result = SIGNATURES.get(op, ("float", "float"))
    shapes = ["[3]", "" if op.endswith("antizeLinear") else "[3]", "[3]"]
    given = ", ".join(f"{kind}{shape} x{i}" for i, (kind, shape) in enumerate(zip(kinds, shapes)))
    names = ", ".join(f"x{i}" for i in range(len(kinds)))
    head = f'<ir_version: 10, opset_import: ["": {max(22, onnx.defs.get_schema(op).since_version)}]> g'
    return f"{head} ({given}) => ({result}[3] y) {{ y = {op}{ATTRIBUTES.get(op, '')}({names}) }}", tuple(
        kinds
    )


@pytest.mark.parametrize("op", [row.op for row in OPERATORS])
def test_every_elementwise_operator_is_generated(op: str) -> None:
    text, _ = graph_text(op)
    assert ROW.rejection(group_of(model_of(text), REGISTRY), context()) is None
