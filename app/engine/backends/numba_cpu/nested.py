"""Graphs in a node's attributes, planned as programs of their own ahead of the run.

What a body captures from the graphs around it becomes its input, or its weight where that is constant. Its
arena lies in that of the program it belongs to, while the step runs.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from app.engine import graph, session
from app.engine.errors import EngineError
from app.engine.load import Loaded
from app.engine.options import Bindings, Options
from app.engine.program import Program
from app.engine.registry import Known
from app.engine.registry import load as load_registry

PLANNED = "stowplan.bodies"  # key of node.meta: what was planned, for which target and options


def captured(node: ir.Node) -> tuple[ir.Value, ...]:
    """What the bodies read from outside and is not constant."""
    return tuple(v for v in graph.captures(node) if not graph.is_constant(v))


def dynamic_capture(node: ir.Node) -> str | None:
    """Why the bodies cannot be planned ahead: which captured value has no fixed shape, if one has none."""
    found = next((v for v in captured(node) if graph.is_dynamic(v)), None)
    return None if found is None else f"captured value {found.name!r} has no fixed shape"


def programs(node: ir.Node, names: Sequence[str], known: Known) -> tuple[Program | str, ...]:
    """For each body its program, planned once for a node, or why it cannot be planned.

    The inputs of a program are those of the body, then what the bodies of the node capture.
    """
    options = Options(
        threads=known.threads,
        fast_algorithms=known.fast_algorithms,
        tolerance=known.tolerance,
        choose="first",
    )
    key = (known.target, options, tuple(known.failures))
    stored: tuple[object, tuple[Program | str, ...]] | None = node.meta.get(PLANNED)
    if stored is None or stored[0] != key:
        stored = key, tuple(_program(node, name, known, options) for name in names)
        node.meta[PLANNED] = stored
    return stored[1]


def _program(node: ir.Node, name: str, known: Known, options: Options) -> Program | str:
    body = node.attributes[name].as_graph()
    outer = node.graph
    assert outer is not None
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
        compilation = session.canonical(loaded, known.target, options, Bindings(), load_registry())
        return session.planned(replace(compilation, failures=known.failures), options)
    except EngineError as cause:
        return f"{name}: {cause}"
