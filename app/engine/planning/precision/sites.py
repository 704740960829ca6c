"""Sites: the products of a graph whose precision is chosen, each with constant float32 weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import sole_reader
from app.engine.planning.precision.candidates import PRODUCTS, Candidate

Array = np.ndarray[Any, Any]

LIMITS = ("Relu", "Clip")  # runtimes compute them in the rounding of a product


@dataclass(frozen=True, slots=True)
class Taps:
    """Places of the inputs of a convolution; pads as ONNX orders them."""

    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    groups: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A Conv, MatMul or Gemm of the main graph.

    Attributes:
        name: of the node.
        op: its operator.
        activation: name of the first operand.
        weight: name of the constant second operand.
        array: the weights, float32.
        axis: of output channels in the weights.
        shared: whether the activation has readers that are no sites, or is an output of the graph.
        taps: where inputs of a convolution lie; None where its padding follows from the shapes.
        result: name of what a convolution, and Relu or Clip behind it, make; None where the graph returns it.
    """

    name: str
    op: str
    activation: str
    weight: str
    array: Array
    axis: int
    shared: bool
    taps: Taps | None = None
    result: str | None = None

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return int(self.array.shape[self.axis])

    @property
    def groups(self) -> int:
        """Groups of channels of a convolution."""
        return self.taps.groups if self.taps else 1

    @property
    def reduction(self) -> int:
        """Number of inputs of an output channel."""
        return self.array.size // self.channels

    def rejection(self, row: Candidate) -> str | None:
        """Reason why a precision does not apply, or None."""
        if self.op not in row.ops:
            return f"{row.name} is for {', '.join(row.ops)}"
        if row.block and self.array.ndim != 2:
            return f"{row.name} needs a matrix of weights, these have {self.array.ndim} axes"
        reduction = self.array.shape[1 - self.axis] if row.block else 0
        if row.block and reduction % row.block:
            return f"{row.name} needs a reduction that is a multiple of {row.block}, this one is {reduction}"
        if row.activation == "static" and row.beside and not self.shared:
            return f"nothing else reads {self.activation!r}, so {row.name} would be int8"
        return None


def sites(model: ir.Model) -> tuple[Site, ...]:
    """The sites of the main graph, in its order."""
    nodes = [node for node in model.graph if rejection(node) is None]
    members = set(nodes)
    return tuple(_site(node, members) for node in nodes)


def rejected(model: ir.Model) -> dict[str, str]:
    """Reasons why products of the model, bodies included, are no sites, by name."""
    found = {}
    for node in model.graph.all_nodes():
        if node.op_type in PRODUCTS and node.domain in ("", "ai.onnx"):
            reason = rejection(node) if node.graph is model.graph else "it is in the body of another node"
            if reason is not None:
                found[node.name or ""] = reason
    return found


def rejection(node: ir.Node) -> str | None:
    """Reason why a node is no site, or None."""
    if node.op_type not in PRODUCTS or node.domain not in ("", "ai.onnx"):
        return f"{node.op_type} is no product"
    x, w = graph.operand(node, 0), graph.operand(node, 1)
    weights = graph.constant(w)
    if weights is None:
        return f"its second operand {w.name!r} changes between runs"
    if x.dtype != ir.DataType.FLOAT or weights.dtype != np.float32:
        return f"its operands are {graph.dtype(x)} and {weights.dtype}, not float32"
    if graph.is_constant(x) or graph.shape(x) is None or not graph.elements(x):
        return f"its first operand {x.name!r} is constant, empty or of unknown shape"
    if weights.ndim < 2 or len(graph.static_shape(x)) < 2:
        return "one of its operands is a vector"
    if node.op_type == "MatMul" and weights.ndim != 2:
        return f"its weights have {weights.ndim} axes"
    attributes = (("transA", 0), ("alpha", 1.0), ("beta", 1.0))
    changed = [name for name, plain in attributes if graph.attribute(node, name, plain) != plain]
    if changed:
        return f"it has {', '.join(changed)}"
    if not np.all(np.isfinite(weights)):
        return "its weights are not all finite"
    return None


def _site(node: ir.Node, members: set[ir.Node]) -> Site:
    x, w = graph.operand(node, 0), graph.operand(node, 1)
    first = node.op_type == "Conv" or bool(graph.attribute(node, "transB", 0))
    shared = x.is_graph_output() or any(use.node not in members for use in x.uses())
    return Site(
        node.name or "",
        node.op_type,
        x.name or "",
        w.name or "",
        graph.array(w),
        0 if first else 1,
        shared,
        _taps(node, graph.array(w).ndim - 2),
        _result(node),
    )


def _result(node: ir.Node) -> str | None:
    value, limit = node.outputs[0], sole_reader(node.outputs[0])
    if limit is not None and limit.op_type in LIMITS:
        (value,) = limit.outputs
    return None if node.op_type != "Conv" or value.is_graph_output() else value.name


def _taps(node: ir.Node, spatial: int) -> Taps | None:
    if node.op_type != "Conv":
        return Taps()
    if graph.attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None

    def along(name: str, count: int, default: int) -> tuple[int, ...]:
        return tuple(graph.attribute(node, name, (default,) * count))

    return Taps(
        along("strides", spatial, 1),
        along("dilations", spatial, 1),
        along("pads", 2 * spatial, 0),
        int(graph.attribute(node, "group", 1)),
    )


def activations(found: Sequence[Site]) -> tuple[str, ...]:
    """Names of the first operands, each once."""
    return tuple(dict.fromkeys(site.activation for site in found))


def results(found: Sequence[Site]) -> tuple[str, ...]:
    """Names of results of convolutions that are no first operands."""
    read = activations(found)
    return tuple(site.result for site in found if site.result is not None and site.result not in read)
