"""External libraries as backends: what every one of them needs to run a sub-graph as one step.

A library gets the sub-graph as an ONNX model and plans its own memory inside; this memory is counted
as one buffer of our plan. Values at the border are row-major, in our memory.
"""

import importlib.util
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, Protocol, TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Call, SubgraphCall
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.registry import Backend, Implementation, PlanningContext, Selector
from app.engine.cost import roofline
from app.engine.memory.greedy import solve
from app.engine.memory.problem import Buffer, Problem
from app.engine.types import map_type

Run: TypeAlias = Callable[[Sequence[object]], Sequence[object]]
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # operators that a library may know
LARGEST = 2**31 - 1  # byte; what one protobuf message can hold


class Prepare(Protocol):
    """Preparation of a sub-graph by a library, as `function` of its rows names it.

    The result takes the inputs and returns the outputs, in the order of the names. It may also have
    a method `bind(inputs, outputs)`, which takes the arrays that inputs are always read from and
    outputs written to, and returns what is called without arguments for each run.
    """

    def __call__(self, model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> Run:
        """Whatever it raises refuses the sub-graph: its text is the reason."""


def backend(
    name: str,
    package: str,
    function: str,
    *,
    node_rejection: Callable[[ir.Node, PlanningContext], str | None],
    call_seconds: float = 10e-6,
    extra: str = "",
) -> tuple[Backend, Implementation]:
    """The two rows of a library.

    Args:
        name: of the backend.
        package: whose installation and version it needs.
        function: `module:function`, see `Prepare`.
        node_rejection: why a node cannot be part of a sub-graph, or None.
        call_seconds: what one call costs beyond its work.
        extra: of this project, that installs the package.
    """

    def missing() -> str | None:
        if importlib.util.find_spec(package) is not None:
            return None
        return (
            f"the package {package!r} is not installed{f' (pip install stowplan[{extra}])' if extra else ''}"
        )

    def member_rejection(node: ir.Node, context: PlanningContext) -> str | None:
        return border(node) or node_rejection(node, context)

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        whole = original(group, context)
        return (
            SubgraphCall(
                function,
                name,
                lambda: model_bytes(group, whole),
                read(group),
                group.outputs,
                context.threads,
                arena_bytes(group, context),
            ),
        )

    def predicted(group: Group, context: PlanningContext) -> float:
        return call_seconds + roofline.predicted(group, context.target, threads=context.threads)

    def rejection(group: Group, context: PlanningContext) -> str | None:
        if original(group, context) is not None:
            return missing() or next(filter(None, map(empty_operand, group.nodes)), None)
        return missing() or next(filter(None, (member_rejection(n, context) for n in group.nodes)), None)

    selector = Selector(member_rejection, member_rejection, member_rejection)
    row = Backend(name, ("cpu",), selector=selector, missing=missing, call_seconds=call_seconds)
    return row, Implementation(
        name, SUBGRAPH, name, rejection, lower, cost=predicted, version=version_of(package)
    )


def version_of(package: str) -> str:
    """The installed version of a package; empty when there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def empty_operand(node: ir.Node) -> str | None:
    """Rejection of a node whose data operand has no elements; None for others.

    onnxruntime's reduction of an empty set of truth values fails, or leaves what its memory held.
    """
    data = next(iter(node.inputs), None)
    if data is None or graph.is_constant(data) or not graph.shape(data) or graph.elements(data):
        return None
    return f"operand {data.name!r} has no elements"


def border(node: ir.Node) -> str | None:
    """Rejection of a node whose values cannot be passed to a library, or None.

    Tensors of numbers and strings, and sequences of them, can.
    """
    if node.domain not in DOMAINS:
        return f"operator set {node.domain!r} is not standard ONNX"
    for value in (*graph.reads(node), *(v for v in node.outputs if v.name)):
        if isinstance(value.type, ir.OptionalType):
            return f"value {value.name!r} is optional"
        if value.dtype in (None, ir.DataType.UNDEFINED):
            return f"the type of value {value.name!r} is not known"
    return empty_operand(node)


def original(group: Group, context: PlanningContext) -> ir.Model | None:
    """The model as the file has it, where the group is all of its graph; None where it is a part.

    A library finds what it fuses in the operators of the file, and rounds as it does there.
    """
    source, owner = context.source, group.anchor.graph
    if source is None or owner is None or len(group.nodes) < len(owner):
        return None
    needed = {v.name for node in source.graph for v in graph.reads(node)}
    given, made = {v.name for v in read(group)}, {v.name for v in source.graph.outputs}
    asked = {v.name for v in source.graph.inputs if v.name in needed}
    return source if asked == given and made.issuperset(v.name for v in group.outputs) else None


def read(group: Group) -> tuple[ir.Value, ...]:
    """Values that a sub-graph reads and that are not constant."""
    return tuple(v for v in group.inputs if not graph.is_constant(v))


def model_of(group: Group, weights: Sequence[ir.Value] | None = None) -> ir.Model:
    """A sub-graph as a model of its own; all constants are its weights, or those given."""
    outer = graph.owner(group.anchor)
    constants = [v for v in group.inputs if graph.is_constant(v)] if weights is None else list(weights)
    view = ir.GraphView(
        [v for v in group.inputs if v not in constants],
        group.outputs,
        nodes=group.nodes,
        initializers=constants,
        opset_imports=outer.opset_imports,
        name=group.name,
    )
    return ir.Model(view.clone(), ir_version=10)


def model_bytes(group: Group, whole: ir.Model | None = None) -> bytes:
    """The ONNX model of a sub-graph; of a group that is all of a model, that model.

    Raises:
        ValueError: it does not fit into one message.
    """
    constants = group.inputs if whole is None else tuple(whole.graph.initializers.values())
    weights = sum(graph.nbytes(v) for v in constants if graph.is_constant(v) and not graph.is_dynamic(v))
    if weights > LARGEST:
        raise ValueError(f"{weights} byte of weights, one ONNX model holds {LARGEST}")
    model = model_of(group) if whole is None else whole
    proto: Any = ir.to_proto(model)
    map_type.declare(proto.graph, model.graph)
    if whole is not None:
        # Files may state shapes that their nodes do not give: a library that is given memory for a result
        # holds it against what is stated.
        for output in proto.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
    return proto.SerializeToString()  # type: ignore[no-any-return]  # protobuf


def arena_bytes(group: Group, context: PlanningContext) -> int:
    """Peak bytes of the values inside a sub-graph, each alive from its writer to its last reader.

    A library tells nobody what it allocates; this is what our own planner would, row-major.
    """
    step = {node: i for i, node in enumerate(group.nodes)}
    outside = {*group.inputs, *group.outputs}
    last = {v: step[node] for node in group.nodes for v in graph.reads(node) if v not in outside}
    alignment = context.target.memories[0].alignment
    buffers = tuple(
        Buffer(value.name or "", i, last.get(value, i) + 1, graph.nbytes(value), alignment)
        for node, i in step.items()
        for value in node.outputs
        if value.name and value not in outside and not graph.is_dynamic(value)
    )
    return solve(Problem(buffers)).peak if buffers else 0
