"""Groups of a single node: what every implementation without an epilogue asks first."""

from collections.abc import Sequence

import onnx_ir as ir

from app.engine import graph
from app.engine.plan import Group

FLOATS = ("float32", "float64")


def refusal(group: Group, dtypes: Sequence[str]) -> str | None:
    """Why a kernel of one node and static tensors does not apply; None when it may.

    `dtypes` are the element types of the first input that the kernel is written for.
    """
    node = group.anchor
    if len(group.nodes) != 1:
        return f"computes {node.op_type} alone; the group has {len(group.nodes)} nodes"
    for value in (*(v for v in node.inputs if v is not None), *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape and element type"
    source = node.inputs[0]
    assert source is not None
    found = type_name(source)
    if found not in dtypes:
        return f"input {source.name!r} is {found}; the kernel takes {', '.join(dtypes)}"
    if output_at(group, 0) is None:
        return "nothing reads the first output"
    return None


def type_name(value: ir.Value) -> str:
    """NumPy's name of the element type of a tensor."""
    dtype = graph.dtype(value)
    assert dtype is not None, f"value {value.name!r} has no dtype"
    return str(dtype.name)


def pointer(value: ir.Value) -> str:
    """The kernel argument type of a tensor's address."""
    return f"{type_name(value)}*"


def first_input(group: Group) -> ir.Value:
    """The anchor's first input, which is there."""
    value = group.anchor.inputs[0]
    assert value is not None
    return value


def output_at(group: Group, index: int) -> ir.Value | None:
    """An output of the anchor that something reads; None for others, which have no memory."""
    outputs = group.anchor.outputs
    return outputs[index] if index < len(outputs) and outputs[index] in group.outputs else None


def first_output(group: Group) -> ir.Value:
    """The anchor's first output, which something reads."""
    return group.anchor.outputs[0]


def axis_of(node: ir.Node, rank: int, default: int = -1) -> int:
    """The attribute `axis`, counted from the front."""
    axis = graph.attribute(node, "axis", default)
    return axis % rank if rank else 0


def total_bytes(group: Group) -> int:
    """Bytes that the group reads and writes, each value once."""
    return sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
