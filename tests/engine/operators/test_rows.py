"""Every column of every operator row is read: another value gives another answer."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import onnx_ir as ir
import pytest

from app.engine.core.registry import Operator, Registry, load
from app.engine.passes.infer_types import check_attributes
from app.engine.passes.partition import single
from app.engine.rewrites.as_images.conv1d import readers
from app.engine.storage.inference import inferred
from app.engine.types.errors import GraphError
from app.engine.types.storage import MXNET, Attributes, StorageRules

REGISTRY = load()
ROWS = tuple(REGISTRY.operators.values())


def unsupported(_attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    raise NotImplementedError


def refused(_node: ir.Node) -> None:
    raise GraphError("attributes do not fit")


def mutated(row: Operator) -> Mapping[str, Any]:
    """By column, another value than the row has."""
    return {
        "op": f"{row.op}X",
        "domain": f"{row.domain}x",
        "elementwise": not row.elementwise,
        "per_axis": not row.per_axis,
        "storage": unsupported,
        "check": refused,
    }


def answers(row: Operator, op: str, domain: str) -> tuple[object, ...]:
    """What the planner makes of a node where the registry has this row alone."""
    registry = Registry({(row.domain, row.op): row}, {})
    x = ir.Value(name="x")
    node = ir.node(op, [x], {"stype": "default"}, domain=domain, name="n")
    graph = ir.Graph([x], node.outputs, nodes=[node], name="one")
    try:
        check_attributes(graph, registry)
        checked = ""
    except (GraphError, KeyError) as error:
        checked = str(error)
    try:
        kinds = tuple(inferred(graph, registry, "default").kinds.values()) if domain == MXNET else ()
    except (GraphError, NotImplementedError) as error:
        kinds = (str(error),)
    return registry.operator(node) is None, single(node, registry).op, tuple(readers([row])), kinds, checked


def test_every_operator_is_found_by_its_node() -> None:
    for row in ROWS:
        assert REGISTRY.operator(ir.node(row.op, [], domain=row.domain)) is row


@pytest.mark.parametrize("column", [f.name for f in fields(Operator)])
def test_every_column_of_every_row_is_read(column: str) -> None:
    for row in ROWS:
        if column == "per_axis" and not row.elementwise:
            continue  # says how elements depend on operands
        if column == "storage" and row.domain != MXNET:
            continue  # is of MXNet's operators
        other = replace(row, **{column: mutated(row)[column]})
        assert answers(other, row.op, row.domain) != answers(row, row.op, row.domain), row.op
