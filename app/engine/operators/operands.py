"""Operands of kernels of one node: rejections, element sizes, bytes moved."""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.cost.roofline import roofline

MOVABLE = (1, 2, 4, 8)  # byte; sizes of elements that data movement kernels exist for


def group_rejection(group: Group, nodes: int = 1) -> str | None:
    """Reason why a kernel of so many nodes at most, on static tensors, cannot take the group, or None."""
    if len(group.nodes) > nodes:
        return f"{group.op} takes no epilogue, the group has {len(group.nodes)} nodes"
    for value in (*group.inputs, *group.outputs):
        if not graph.is_tensor(value):
            return f"value {value.name!r} is no tensor of fixed-size elements"
        if graph.shape(value) is None:
            return f"value {value.name!r} has the dynamic shape {value.shape}"
        if itemsize(value) not in MOVABLE:
            return f"value {value.name!r} has elements of {itemsize(value)} byte, at most 8 are supported"
    return None


def fixed_inputs(node: ir.Node, positions: tuple[int, ...]) -> str | None:
    """Rejection if one of these inputs is present and not known at compile time."""
    for position in positions:
        value = graph.input_at(node, position)
        if value is not None and not graph.is_constant(value):
            return f"input {position} of {node.op_type}, {value.name!r}, must be constant"
    return None


def data(node: ir.Node) -> ir.Value:
    """The first input, which is never omitted."""
    return graph.operand(node, 0)


def itemsize(value: ir.Value) -> int:
    """Bytes of an element."""
    kind = graph.element_type(value)
    return kind.itemsize


def moved_seconds(group: Group, context: PlanningContext) -> float:
    """Predicted time of a group that only moves bytes: every output is written and read for once."""
    nbytes = 2 * sum(graph.nbytes(v) for v in group.outputs)
    return roofline(context.target, flops=0.0, nbytes=nbytes, threads=context.threads)
