"""Gradients that are row_sparse: sums of rows at the indices of lookups.

Outputs that are such gradients declare it as MXNet declares storage types of variables.
"""

from collections.abc import Iterable

import onnx_ir as ir

from app.engine.core import graph
from app.engine.types.errors import GraphError
from app.engine.types.storage import DECLARED, SPARSE_GRADIENT

_SUMS = ("Identity", "Add", "Sum")


def mark(lookup: ir.Node, scatter: ir.Node) -> None:
    """Note on what adds up the rows of a lookup's gradient whether the lookup asks for a row_sparse one."""
    if lookup.metadata_props.get(SPARSE_GRADIENT) == "1":
        scatter.metadata_props[SPARSE_GRADIENT] = "1"


def declare(outputs: Iterable[ir.Value]) -> None:
    """Declare outputs row_sparse of which all lookups ask for that.

    Raises:
        GraphError: one that is declared so already is no sum of looked-up rows.
    """
    for value in outputs:
        if value.metadata_props.get(DECLARED) == "row_sparse":
            if (other := _other_summand(value, asked=False)) is not None:
                raise GraphError(
                    f"the gradient {value.name!r} is not row_sparse: {other} makes a part of it; expected "
                    "lookups of whole rows alone (Gather along axis 0)",
                    pointer=f"value:{value.name}",
                )
        elif _other_summand(value, asked=True) is None:
            value.metadata_props[DECLARED] = "row_sparse"


def _other_summand(gradient: ir.Value, *, asked: bool) -> str | None:
    """A summand that is not made of rows at indices, or, if it must be, not asked for; None without one."""
    waiting = [gradient]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if node is None:
            return repr(value.name)
        if node.op_type in _SUMS and not node.domain:
            waiting += graph.operands(node)
        elif not _adds_rows(node) or (asked and SPARSE_GRADIENT not in node.metadata_props):
            return f"{node.op_type} {node.name!r}"
    return None


def _adds_rows(node: ir.Node) -> bool:
    """True for a ScatterND that adds rows to zeros, as the gradient of a lookup does."""
    if node.op_type != "ScatterND" or graph.attribute(node, "reduction", "none") != "add":
        return False
    zeros, indices = (graph.operand(node, i).producer() for i in (0, 1))
    if zeros is None or zeros.op_type != "Expand" or indices is None or indices.op_type != "Reshape":
        return False
    start, shape = graph.constant(graph.operand(zeros, 0)), graph.constant(graph.operand(indices, 1))
    return start is not None and not start.any() and shape is not None and shape[-1] == 1
