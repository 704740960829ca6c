"""Outputs of a region whose size a run finds out: their wholes, which have formulas, and their counts.

A prefix (`app.engine.rewrites.bounded.prefix`) has no shape before it runs. Graphs of a region have its whole
and its count as outputs in its place; what runs a program takes the first elements off the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.rewrites.bounded.prefix import prefix_of
from app.engine.types.errors import RegionError


@dataclass(frozen=True, slots=True)
class BoundedOutput:
    """How many elements of an output a run finds.

    Attributes:
        axis: along which the output has its first elements only.
        count: name of the output int64[1] that holds their number.
    """

    axis: int
    count: str

    def taken(self, whole: np.ndarray, count: np.ndarray) -> np.ndarray:
        """The first `count` elements of the whole, as a view."""
        return whole[(*(slice(None),) * self.axis, slice(count.item()))]


def with_wholes(model: ir.Graph) -> Mapping[str, BoundedOutput]:
    """Replace the outputs of a graph that are prefixes by their wholes, under their names, and append counts.

    Raises:
        RegionError: a node reads such an output, and has no rule for prefixes.
    """
    found: dict[str, BoundedOutput] = {}
    counts: dict[ir.Value, str] = {}
    for at, value in enumerate(tuple(model.outputs)):
        node, prefix, name = value.producer(), prefix_of(value), value.name or ""
        if node is None or prefix is None:
            continue
        if reader := next((use.node for use in value.uses()), None):
            raise RegionError(
                f"{reader.op_type} {reader.name!r} reads {name!r}, whose size a run finds out",
                pointer=f"node:{reader.name}",
            )
        value.name = f"{name}.prefix"
        whole = _own(model, node, prefix.whole)
        whole.name = name
        model.outputs[at] = whole
        if prefix.count not in counts:
            count = _own(model, node, prefix.count)
            counts[prefix.count] = count.name = f"{name}.count"
            model.outputs.append(count)
        found[name] = BoundedOutput(prefix.axis, counts[prefix.count])
        model.remove(node, safe=False)
    return found


def _own(model: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
    """The value itself, or a copy where it is a constant, an input, or an output already."""
    if not (graph.is_constant(value) or value.is_graph_input() or value.is_graph_output()):
        return value
    node = ir.node("Identity", [value])
    node.name = f"{before.name}.{value.name}"
    node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
    model.insert_before(before, node)
    return node.outputs[0]
