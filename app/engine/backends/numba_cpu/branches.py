"""The row of If: branches are planned ahead, and the one that the condition names is run.

A branch becomes a program of its own, with an arena of its own; what it captures from the graph
around it becomes its input, or its weight where that is constant. The choice itself is Python.
A branch that cannot be planned, because it does not fit the shapes of this plan more often than
not, is left to the reference evaluator.
"""

from collections.abc import Callable, Sequence

import onnx_ir as ir

from app.engine import graph, session
from app.engine.backends import reference
from app.engine.errors import EngineError
from app.engine.load import Loaded
from app.engine.options import Bindings, Options
from app.engine.plan import Body, Call, Group, HostCall
from app.engine.program import Program
from app.engine.registry import Implementation, Known
from app.engine.registry import load as load_registry

BRANCHES = ("then_branch", "else_branch")
SECONDS = 5e-6  # of the choice and the copies into a branch and out of it
PLANNED = "stowplan.branches"  # key of node.meta: what was planned, for which target and options

Run = Callable[[Sequence[object | None]], list[object]]


def prepare(node: ir.Node, bodies: Sequence[Run | None]) -> Run:
    """A function that chooses: its argument holds the condition, then what the branches capture."""
    fallback = None if all(bodies) else reference.prepare(node)
    then, otherwise = (body or fallback for body in bodies)
    assert then is not None
    assert otherwise is not None

    def run(values: Sequence[object | None]) -> list[object]:
        return (then if values[0] else otherwise)(values)

    return run


def _unless(group: Group, known: Known) -> str | None:
    node = group.anchor
    for value in _captured(node):
        if graph.is_dynamic(value):
            return f"captured value {value.name!r} has no fixed shape"
    planned = _planned(node, known)
    refused = [p for p in planned if isinstance(p, str)]
    return f"no branch can be planned: {'; '.join(refused)}" if len(refused) == len(planned) else None


def _unlike(program: Program, node: ir.Node) -> str | None:
    """Which output has another type than the node's, if one has."""
    for inner, outer in zip(program.compilation.graph.outputs, node.outputs, strict=True):
        types = [(graph.shape(v), graph.dtype(v)) for v in (inner, outer)]
        if outer.name and not graph.is_dynamic(outer) and types[0] != types[1]:
            return f"{inner.name!r} has not the type of {outer.name!r}"
    return None


def _captured(node: ir.Node) -> tuple[ir.Value, ...]:
    """What the branches read from outside and is not constant."""
    return tuple(v for v in graph.captures(node) if not graph.is_constant(v))


def _planned(node: ir.Node, known: Known) -> tuple[Program | str, ...]:
    """For each branch its program, planned once for a node, or why it cannot be planned."""
    options = Options(threads=known.threads, fast_algorithms=known.fast_algorithms, tolerance=known.tolerance)
    key = (known.target, options)
    stored: tuple[object, tuple[Program | str, ...]] | None = node.meta.get(PLANNED)
    if stored is None or stored[0] != key:
        stored = key, tuple(_program(node, name, known, options) for name in BRANCHES)
        node.meta[PLANNED] = stored
    return stored[1]


def _program(node: ir.Node, name: str, known: Known, options: Options) -> Program | str:
    branch = node.attributes[name].as_graph()
    outer = node.graph
    assert outer is not None
    constants = (v for v in graph.captures(node) if graph.is_constant(v))
    view = ir.GraphView(
        _captured(node),
        branch.outputs,
        nodes=tuple(branch),
        initializers=(*branch.initializers.values(), *constants),
        opset_imports=outer.opset_imports,
        name=branch.name,
    )
    loaded = Loaded(ir.Model(view.clone(), ir_version=10), (), len(branch))
    try:
        compilation = session.canonical(loaded, known.target, options, Bindings(), load_registry())
        program = session.planned(compilation, options)
    except EngineError as cause:
        return f"{name}: {cause}"
    unlike = _unlike(program, node)
    return f"{name}: {unlike}" if unlike else program


def _lower(group: Group, known: Known) -> tuple[Call, ...]:
    node = group.anchor
    named = tuple(i for i, v in enumerate(node.outputs) if v.name)
    inputs = (node.inputs[0], *graph.captures(node))
    captured = _captured(node)
    reads = tuple(i for i, v in enumerate(inputs) if i and v in captured)
    bodies = tuple(None if isinstance(p, str) else Body(p, reads, named) for p in _planned(node, known))
    return (HostCall(f"{__name__}:prepare", node, inputs, tuple(node.outputs[i] for i in named), bodies),)


def _cost(group: Group, known: Known) -> float:
    """That of the slower branch."""
    programs = [p for p in _planned(group.anchor, known) if not isinstance(p, str)]
    return SECONDS + max(sum(s.choice.seconds for s in p.steps) for p in programs)


IMPLEMENTATIONS = (Implementation("if.branches", "If", "numba-cpu", _unless, _lower, cost=_cost),)
