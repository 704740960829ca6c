"""Plans made by hand: ONNX text, one group a node unless told otherwise, implementations as rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.cache import Cache
from app.engine.core.calls import Call, View, Workspace
from app.engine.core.calls import KernelCall as Kernel
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.plan import Choice, Compilation, Plan
from app.engine.core.registry import Implementation, PlanningContext, Registry
from app.engine.passes.infer_storage import storage_type
from app.engine.passes.order import ordered
from app.engine.types.layout import plain
from app.engine.types.options import Options
from app.engine.types.target import Memory, Target
from tests.harness import model_of

TARGET = Target("test", memories=(Memory("dram", 2**30, alignment=64),), backends=("test",))

UNARY_AND_BINARY = ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Neg", "Cast", "Add", "Mul")


@dataclass(frozen=True)
class Row:
    """What the chosen implementation of a group offers, by value names."""

    name: str = "fake"
    inplace: tuple[tuple[str, str], ...] = ()
    views: tuple[tuple[str, str] | tuple[str, str, int], ...] = ()  # source, view, byte
    workspace: tuple[Workspace, ...] = ()  # arguments of one call each
    touches: tuple[str, ...] = ()  # values inside the group that the call names


def values_of(model: ir.Model) -> dict[str, ir.Value]:
    return {v.name or "": v for v in graph.values(model.graph)}


def groups_of(model: ir.Model, fused: Sequence[Sequence[int]] = ()) -> tuple[Group, ...]:
    """One group a node; `fused` lists positions of nodes that form one, its anchor first."""
    nodes = list(model.graph)
    readers = graph.readers(model.graph)

    def escapes(value: ir.Value, members: tuple[ir.Node, ...]) -> bool:
        if len(members) == 1:  # what nobody reads is still written
            return True
        return value.is_graph_output() or any(r not in members for r in readers.get(value, ()))

    lead = {i: tuple(part) for part in fused for i in part}
    groups = []
    for i in range(len(nodes)):
        part = lead.get(i, (i,))
        if i != max(part):  # a group stands where its last node does
            continue
        members = tuple(nodes[j] for j in sorted(part))
        anchor = nodes[part[0]]
        op = ELEMENTWISE if all(n.op_type in UNARY_AND_BINARY for n in members) else anchor.op_type
        groups.append(graph.group(members, anchor, op, lambda v, part=members: escapes(v, part)))
    return tuple(groups)


def compilation_of(
    text: str | ir.Model,
    rows: Mapping[str, Row] | None = None,
    *,
    options: Options | None = None,
    fused: Sequence[Sequence[int]] = (),
    target: Target = TARGET,
    registry: Registry | None = None,
) -> Compilation:
    """A plan in graph order; `rows` are named by the last value of the group they are chosen for."""
    model = model_of(text) if isinstance(text, str) else text
    for i, node in enumerate(model.graph):
        node.name = node.name or f"{node.op_type}_{i}"
    values = values_of(model)
    groups = groups_of(model, fused)
    chosen = {}
    for group in groups:
        row = (rows or {}).get(group.nodes[-1].outputs[0].name or "", Row())
        calls: list[Call] = [
            Kernel("test:kernel", ("uint8*",) * (len(row.touches) + 1), (*inside, w), 1)
            for w in row.workspace
            for inside in [tuple(values[t] for t in row.touches)]
        ]
        chosen[group] = Choice(
            _implementation(row.name, group.op),
            tuple(calls),
            tuple((values[a], values[b]) for a, b in row.inplace),
            0.0,
            tuple(View(values[a], values[b], *at) for a, b, *at in row.views),
        )
    every = graph.values(model.graph)
    plan = Plan(
        fusion={n: g for g in groups for n in g.nodes},
        storage={v: storage_type(v, Cache()) for v in every},
        layout={v: plain(0 if v.shape is None else len(v.shape)) for v in every},
        implementation=chosen,
        order=groups,
    )
    return Compilation(model, target, registry or Registry({}, {}), options or Options(), plan=plan)


def with_buffers(compilation: Compilation) -> Compilation:
    """The compilation with buffers in the order that it has."""
    return ordered(compilation, compilation.plan.require("order"))


def _implementation(name: str, op: str) -> Implementation:
    def lower(_group: Group, _context: PlanningContext) -> tuple[Call, ...]:
        return ()

    return Implementation(name, op, "test", lambda _group, _context: None, lower)
