"""The fallback backend: any valid ONNX node, run by corrected operator classes of the reference evaluator.

A step of this backend is one node and one `HostCall`. Its function is `prepare`, which builds the
node's evaluator once; the callable that it returns is called for every inference. Slow, and
right where nothing faster exists. It parses attributes of uploaded models, so it belongs in the
limited child process.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Call, HostCall
from app.engine.core.group import Group
from app.engine.core.registry import Backend, Implementation, PlanningContext
from app.engine.reference import evaluator
from app.engine.types.errors import KernelError, OperandError

Run: TypeAlias = Callable[[Sequence[object | None]], list[object]]

CALL_SECONDS = 40e-6  # of one numpy-based operator on a small tensor, measured
ELEMENT_SECONDS = 10e-9  # per element read or written; convolutions and pools are far slower


def prepare(node: ir.Node) -> Run:
    """A function that computes one node.

    Its argument has one entry per input of the node, None where an optional input is omitted or
    an optional value is empty, then one per value of `graph.captures(node)`. Tensors are arrays
    (strings as object arrays, 4-bit and 8-bit floats as `ml_dtypes`), sequences are lists, an
    optional value is None or what it holds. Its result has one entry per named output of the
    node, of the declared dtype, that shares no memory with any array of the argument. Inputs
    are not written to.

    Raises:
        KernelError: the evaluator has no such operator, or an attribute does not fit it. The
            returned function raises OperandError when the computation fails or gives another shape
            than inference said.
    """
    title = f"{node.op_type} {node.name!r}"
    try:
        compute = evaluator.build(node, _opsets(node))
    # The evaluator is foreign code that raises whatever the attributes of the model provoke.
    except Exception as cause:
        raise KernelError(f"{title}: no evaluator: {cause}", pointer=f"node:{node.name}") from cause
    conforming = tuple((i, _conformer(v, title)) for i, v in enumerate(node.outputs) if v.name)

    def run(values: Sequence[object | None]) -> list[object]:
        read = [_read_only(v) if isinstance(v, np.ndarray) else v for v in values]
        try:
            with np.errstate(all="ignore"):
                results = compute(read)
        except Exception as cause:
            raise OperandError(
                f"{title}: {type(cause).__name__}: {cause}", pointer=f"node:{node.name}"
            ) from cause
        if len(results) <= max((i for i, _ in conforming), default=-1):
            raise KernelError(f"{title}: {len(results)} results for {len(node.outputs)} outputs")
        arrays = [v for v in read if isinstance(v, np.ndarray)]
        return [_own(conform(results[i]), arrays) for i, conform in conforming]

    return run


def first_result(node: ir.Node, values: Sequence[object | None]) -> object:
    """First output of a node for these inputs, of any shapes; its bodies capture nothing."""
    with np.errstate(all="ignore"):
        return evaluator.build(node, _opsets(node))(values)[0]


def _opsets(node: ir.Node) -> dict[str, int]:
    owner = node.graph
    if owner is None or not owner.opset_imports:
        raise KernelError(f"{node.op_type} {node.name!r}: its graph imports no operator set")
    opsets = {"" if domain == "ai.onnx" else domain: v for domain, v in owner.opset_imports.items()}
    return {"": evaluator.NEWEST_OPSET, **opsets}


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _own(result: object, arrays: list[np.ndarray[Any, Any]]) -> object:
    """The result, copied where it is memory of an input: the arena will be written over."""
    if isinstance(result, np.ndarray):
        return result.copy() if any(np.may_share_memory(result, a) for a in arrays) else result
    if isinstance(result, list):
        return [_own(element, arrays) for element in result]
    return result


def _conformer(value: ir.Value, title: str) -> Callable[[object], object]:
    """Turns what the evaluator returned into exactly what the value declares."""
    shape = graph.shape(value)

    def conform(result: object, type_: object = value.type) -> object:
        if result is None or isinstance(result, dict) or hasattr(result, "todense"):
            return result
        if isinstance(type_, ir.OptionalType):
            return conform(result, type_.elem_type)
        if isinstance(result, list | tuple):
            inner = type_.elem_type if isinstance(type_, ir.SequenceType) else None
            return [conform(element, inner) for element in result]
        array = np.asarray(result)
        dtype = _numpy_dtype(type_, array)
        if array.dtype != dtype:
            array = array.astype(dtype)
        return array

    def conform_tensor(result: object) -> object:
        array = conform(result)
        if isinstance(array, np.ndarray) and array.shape != shape:
            raise OperandError(f"{title}: {value.name!r} has shape {array.shape}, expected {shape}")
        return array

    return conform if shape is None or not isinstance(value.type, ir.TensorType) else conform_tensor


def _numpy_dtype(type_: object, found: np.ndarray[Any, Any]) -> np.dtype[Any]:
    """The declared dtype, else the one found; strings are Python objects."""
    if isinstance(type_, ir.TensorType) and type_.dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return type_.dtype.numpy()
    return np.dtype(object) if found.dtype.kind in "US" else found.dtype


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    if len(group.nodes) != 1:
        return f"runs single nodes, the group has {len(group.nodes)}"
    opsets = _opsets(group.anchor)
    for node in (group.anchor, *_inner(group.anchor)):
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = opsets.get(domain)
        if version is None:
            return f"operator set {domain!r} of {node.op_type} is not imported"
        reason = evaluator.missing(domain, node.op_type, version)
        if reason is not None:
            return reason
    return None


def _inner(node: ir.Node) -> list[ir.Node]:
    return [n for body in graph.bodies(node) for member in body for n in (member, *_inner(member))]


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    named = tuple(v for v in node.outputs if v.name)
    inputs = (*node.inputs, *graph.captures(node))
    return (HostCall(f"{__name__}:prepare", node, inputs, named, evaluated=evaluated(node)),)


def evaluated(node: ir.Node, names: Sequence[str] = ()) -> tuple[tuple[str, int], ...]:
    """The bodies of a node, or those of these names, and the bytes that the evaluator surely holds for each.

    It keeps every value until the end of the graph; temporary arrays, stacks and dynamic values come on top.
    """
    return tuple(
        (name, _held(a.as_graph()))
        for name, a in node.attributes.items()
        if a.type == ir.AttributeType.GRAPH and (not names or name in names)
    )


def _held(body: ir.Graph) -> int:
    made = [v for member in body for v in member.outputs if v.name and not graph.is_dynamic(v)]
    nested = (_held(inner) for member in body for inner in graph.bodies(member))
    return sum(graph.nbytes(v) for v in made) + max(nested, default=0)


def _cost(group: Group, _context: PlanningContext) -> float:
    sizes = [graph.elements(v) for v in (*group.inputs, *group.outputs) if graph.shape(v) is not None]
    return CALL_SECONDS + ELEMENT_SECONDS * sum(sizes)


BACKENDS = (Backend("reference", ("cpu", "cuda", "model")),)

IMPLEMENTATIONS = (
    Implementation("reference", "*", "reference", rejection=_rejection, lower=_lower, cost=_cost, rank=100),
)
