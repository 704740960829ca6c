"""Storage types of all values and dispatch modes of all nodes, by sweeps to a fixed point.

Source: apache/mxnet src/executor/infer_graph_attr_pass.cc: sweeps forward and backward in turn while the
number of unknowns falls, then one in which nothing may stay unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.registry import Registry
from app.engine.types.errors import GraphError
from app.engine.types.storage import (
    DECLARED,
    MXNET,
    DispatchMode,
    Inferred,
    StorageKind,
    StorageRules,
    Symbol,
    dense,
    infer,
)


@dataclass(frozen=True, slots=True)
class StorageColumns:
    """Result of the sweeps."""

    kinds: Mapping[ir.Value, StorageKind]
    modes: Mapping[ir.Node, DispatchMode]
    sweeps: int


def declared(value: ir.Value) -> StorageKind | None:
    """The storage type that a model declares for an input, initializer or output.

    Raises:
        GraphError: it is none of default, row_sparse and csr.
    """
    name = value.metadata_props.get(DECLARED)
    if name is None:
        return None
    kinds: Mapping[str, StorageKind] = {
        **{k: k for k in ("default", "row_sparse", "csr")}, "0": "default", "1": "row_sparse", "2": "csr"
    }  # fmt: skip
    if name not in kinds:
        raise GraphError(
            f"value {value.name!r}: storage type must be default, row_sparse or csr, found {name!r}",
            pointer=f"value:{value.name}",
        )
    return kinds[name]


def inferred(
    model: ir.Graph,
    registry: Registry,
    undeclared: StorageKind | None = None,
    stated: Mapping[ir.Value, StorageKind] = MappingProxyType({}),
) -> StorageColumns:
    """The storage types that MXNet 1.9.1 infers for a graph.

    What is `stated` of an input precedes what the model declares. Inputs for which neither says anything are
    `undeclared`; None leaves them to the sweeps.

    Raises:
        GraphError: an operator takes no operands of the storage types that it gets.
    """
    kinds: dict[ir.Value, StorageKind] = {}
    for value in (*model.inputs, *model.initializers.values()):
        kind = stated.get(value) or declared(value) or ("default" if value.is_initializer() else undeclared)
        if kind is not None:
            kinds[value] = kind
    modes: dict[ir.Node, DispatchMode] = {}
    nodes = list(model)

    def visit(node: ir.Node, last: bool) -> None:
        if node in modes:
            return
        if last:
            kinds.update({v: "default" for v in _operands(node, registry) if v not in kinds})
        found = _infer(node, kinds, registry)
        slots = zip((*_operands(node, registry), *node.outputs), (*found.inputs, *found.outputs))
        kinds.update({value: kind for value, kind in slots if kind is not None})
        if found.mode is not None:
            modes[node] = found.mode

    sweeps = 0
    unknown = len(nodes) + 1
    while True:
        for node in nodes if sweeps % 2 == 0 else reversed(nodes):
            visit(node, last=False)
        sweeps += 1
        left = len(nodes) - len(modes) + sum(v not in kinds for v in graph.values(model))
        if left >= unknown:
            break
        unknown = left
    for node in nodes:
        visit(node, last=True)
    kinds.update({v: "default" for v in graph.values(model) if v not in kinds})
    return StorageColumns(kinds, modes, sweeps)


def symbol_of(node: ir.Node, registry: Registry) -> Symbol | None:
    """The operator of MXNet that a node is or stands for."""
    if node.domain == MXNET:
        texts = {name: str(a.value) for name, a in node.attributes.items()}
        return Symbol(node.op_type, texts)
    symbol = registry.symbols.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return None if symbol is None else symbol(node)


def _operands(node: ir.Node, registry: Registry) -> tuple[ir.Value, ...]:
    symbol = symbol_of(node, registry)
    given = node.inputs if symbol is None else node.inputs[: symbol.operands]
    return tuple(v for v in given if v is not None)


def _rules(node: ir.Node, registry: Registry) -> StorageRules:
    symbol = symbol_of(node, registry)
    rule = dense()
    attributes: Mapping[str, str] = {}
    if symbol is not None:
        row = registry.operators.get((MXNET, symbol.op))
        if row is not None and row.storage is not None:
            rule, attributes = row.storage, symbol.attributes
    try:
        return rule(attributes, len(_operands(node, registry)), len(node.outputs))
    except (KeyError, ValueError) as cause:
        raise GraphError(
            f"{node.op_type} {node.name!r}: its attributes do not tell storage types: {cause}",
            pointer=f"node:{node.name}",
        ) from cause


def _infer(node: ir.Node, kinds: Mapping[ir.Value, StorageKind], registry: Registry) -> Inferred:
    operands = _operands(node, registry)
    known = tuple(kinds.get(v) for v in operands)
    found = infer(_rules(node, registry), known, tuple(kinds.get(v) for v in node.outputs))
    if isinstance(found, str):
        raise GraphError(f"{node.op_type} {node.name!r} {found}", pointer=f"node:{node.name}")
    return found
