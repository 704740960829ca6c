"""Graphs in a node's attributes, planned as programs of their own ahead of the run.

What a body captures from the graphs around it becomes its input, or its weight where that is constant. Its
arena lies in that of the program it belongs to, while the step runs.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from app.engine.backends.control_flow.driver_calls import FIRST
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.program import Program
from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.model.load import Loaded
from app.engine.planning import session
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings, MemoryConcessions, Options


def captured(node: ir.Node) -> tuple[ir.Value, ...]:
    """Values that the bodies read from outside, constants excepted."""
    return tuple(v for v in graph.captures(node) if not graph.is_constant(v))


def opset(node: ir.Node) -> int:
    """The version of the default operator set that a node is of."""
    return graph.owner(node).opset_imports.get("", 1)


def rejection(group: Group) -> str | None:
    """Reason why the bodies of a group's node cannot be planned ahead, whatever is in them."""
    if len(group.nodes) != 1:
        return f"runs single nodes, the group has {len(group.nodes)}"
    found = next((v for v in captured(group.anchor) if graph.is_dynamic(v)), None)
    return None if found is None else f"captured value {found.name!r} has no fixed shape"


def programs(node: ir.Node, names: Sequence[str], context: PlanningContext) -> tuple[Program | str, ...]:
    """For each body its program, planned once for a node, or why it cannot be planned.

    The inputs of a program are those of the body, then what the bodies of the node capture.
    """
    fast = context.fast_algorithms and node.name not in context.direct
    options = Options(
        threads=context.threads, fast_algorithms=fast, tolerance=context.tolerance, choose="first"
    )
    # Whether all fits is seen where the step of the node is placed.
    concessions = replace(
        context.concessions, unfused=frozenset(), recompute=(), spill=False, unbounded=True, peak_limit=None
    )
    return context.cache.result(
        (node, context.key, concessions, fast, tuple(context.failures)),
        lambda: tuple(_program(node, name, context, options, concessions) for name in names),
    )


def _carried(node: ir.Node) -> tuple[tuple[int, int], ...]:
    """Positions of the states of a body, among its inputs and its outputs."""
    if node.op_type == "Loop":
        return tuple((FIRST + k, 1 + k) for k in range(len(node.inputs) - FIRST))
    states = len(node.inputs) - int(graph.attribute(node, "num_scan_inputs", 0))
    return tuple((k, k) for k in range(states)) if node.op_type == "Scan" else ()


def _program(
    node: ir.Node, name: str, context: PlanningContext, options: Options, concessions: MemoryConcessions
) -> Program | str:
    body = node.attributes[name].as_graph()
    outer = graph.owner(node)
    constants = (v for v in graph.captures(node) if graph.is_constant(v))
    view = ir.GraphView(
        (*body.inputs, *captured(node)),
        body.outputs,
        nodes=tuple(body),
        initializers=(*body.initializers.values(), *constants),
        opset_imports=outer.opset_imports,
        name=body.name,
    )
    loaded = Loaded(ir.Model(view.clone(), ir_version=10), (), len(body))
    try:
        # The tables are read once for all bodies.
        registry = context.cache.result(load_registry, load_registry)
        compilation = session.canonical(loaded, context.target, options, Bindings(), registry)
        compilation = replace(compilation, failures=context.failures, carried=_carried(node))
        return session.builder(compilation, options)(concessions)
    except EngineError as cause:
        return f"{name}: {cause}"
