"""Values of which only a run tells the size, as the first elements of values of static shape.

A prefix is what a node `Prefix` of domain `stowplan` takes of its operand along one axis: the first `count`.
Elements of the whole behind them mean nothing. Of a count that was made here it is known that it lies between
0 and its bound, which stands in the metadata of the value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import constant

DOMAIN, PREFIX = "stowplan", "Prefix"
COMPRESS, SUPPRESS = "BoundedCompress", "BoundedNonMaxSuppression"
LARGEST = 2**24  # byte of a whole; what may be larger stays a value of unknown size
WIDEST = 2**27  # byte of one that is computed of prefixes
BOUND = "stowplan.bound"
DEEPEST = 16  # nodes that are followed to bound a number

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first elements of a value along one axis.

    Attributes:
        whole: of static shape.
        axis: counted from the front.
        count: int64[1], from 0 to the extent of the whole.
    """

    whole: ir.Value
    axis: int
    count: ir.Value

    @property
    def shape(self) -> Shape:
        """Shape of the whole."""
        return graph.static_shape(self.whole)

    @property
    def bound(self) -> int:
        """Extent of the whole along the axis."""
        return self.shape[self.axis]


def prefix_of(value: ir.Value | None) -> Prefix | None:
    """The prefix that a value is; None of others."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != PREFIX or node.domain != DOMAIN:
        return None
    return Prefix(graph.operand(node, 0), graph.attribute(node, "axis", 0), graph.operand(node, 1))


class Nodes:
    """New nodes in the place of one, in order, with the types of their results."""

    def __init__(self, node: ir.Node, suffix: str = "") -> None:
        self.made: list[ir.Node] = []
        self._name = (next((v.name for v in node.outputs if v.name), node.name) or node.op_type) + suffix

    def __call__(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType | None,
        shape: Shape,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """The result of a new node."""
        (result,) = self.several(op, inputs, [(dtype, shape)], domain, attributes)
        return result

    def several(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        results: Sequence[tuple[ir.DataType | None, Shape]],
        domain: str = "",
        attributes: dict[str, Any] | None = None,
    ) -> list[ir.Value]:
        """The results of a new node, of these types and shapes."""
        node = ir.node(op, list(inputs), attributes or {}, domain=domain, num_outputs=len(results))
        self.made.append(node)
        for i, (value, (dtype, shape)) in enumerate(zip(node.outputs, results)):
            value.name = f"{self._name}.{len(self.made)}.{i}"
            value.shape = ir.Shape(shape)
            value.type = None if dtype is None else ir.TensorType(dtype)
        return list(node.outputs)

    def like(
        self, node: ir.Node, inputs: Sequence[ir.Value | None], shapes: Sequence[Shape]
    ) -> list[ir.Value]:
        """The results of a node with other operands; its outputs have these shapes."""
        results = [(v.dtype, shape) for v, shape in zip(node.outputs, shapes, strict=True)]
        copy = ir.Node(node.domain, node.op_type, list(inputs), list(node.attributes.values()),
                       num_outputs=len(results))  # fmt: skip
        self.made.append(copy)
        for i, (old, value, (dtype, shape)) in enumerate(zip(node.outputs, copy.outputs, results)):
            value.name = f"{self._name}.{len(self.made)}.{i}" if old.name else ""
            value.shape = ir.Shape(shape)
            value.type = None if dtype is None else ir.TensorType(dtype)
        return list(copy.outputs)

    def prefix(self, of: Prefix) -> ir.Value:
        """A value of unknown size; what it replaces tells its shape."""
        node = ir.node(PREFIX, [of.whole, of.count], {"axis": of.axis}, domain=DOMAIN)
        self.made.append(node)
        node.outputs[0].type = of.whole.type
        return node.outputs[0]

    def state(self, name: str, dtype: ir.DataType | None, shape: Shape) -> ir.Value:
        """An input of a body."""
        kind = None if dtype is None else ir.TensorType(dtype)
        return ir.Value(name=f"{self._name}.{name}", type=kind, shape=ir.Shape(shape))

    def constant(self, array: Any, dtype: Any = np.int64) -> ir.Value:
        """A constant."""
        return constant(np.asarray(array, dtype), f"{self._name}.constant")

    def repeated(self, number: Any, shape: Shape) -> ir.Value:
        """A number in every element of a value, which is no constant where it is large."""
        one = np.asarray(number)
        if math.prod(shape) * one.itemsize <= LARGEST:
            return self.constant(np.full(shape, one), one.dtype)
        given = self.constant(one, one.dtype)
        return self("Expand", [given, self.constant(shape)], given.dtype, shape)

    def number(self, op: str, *inputs: ir.Value) -> ir.Value:
        """An int64[1] of int64[1]."""
        return self(op, inputs, ir.DataType.INT64, (1,))

    def reshaped(self, value: ir.Value, shape: Shape) -> ir.Value:
        """A value in another shape, none of whose extents is 0."""
        if graph.static_shape(value) == shape:
            return value
        return self("Reshape", [value, self.constant(shape)], value.dtype, shape)

    def counted(self, value: ir.Value, bound: int) -> ir.Value:
        """A number between 0 and a bound as a count."""
        value.meta[BOUND] = bound
        return value

    def clamped(self, value: ir.Value, bound: int) -> ir.Value:
        """An int64[1] that a run computes as a count."""
        known = value.meta.get(BOUND)
        if known is not None and known <= bound:
            return value
        least = value if known is not None else self.number("Max", value, self.constant([0]))
        return self.counted(self.number("Min", least, self.constant([bound])), bound)

    def shortened(self, of: Prefix, bound: int) -> Prefix:
        """The same prefix of a shorter whole."""
        if of.bound <= bound:
            return of
        shape = (*of.shape[: of.axis], bound, *of.shape[of.axis + 1 :])
        limits = [self.constant([n]) for n in (0, bound, of.axis)]
        whole = self("Slice", [of.whole, *limits], of.whole.dtype, shape)
        return Prefix(whole, of.axis, of.count)

    def mask(self, bound: int, count: ir.Value, rank: int = 1, axis: int = 0) -> ir.Value:
        """bool[1, .., bound, .., 1]: true at the first elements."""
        shape = tuple(bound if a == axis else 1 for a in range(rank))
        places = self.constant(np.arange(bound).reshape(shape))
        return self("Less", [places, count], ir.DataType.BOOL, shape)

    def filled(self, of: Prefix, fill: Any) -> ir.Value:
        """The whole with a number in the place of elements that mean nothing."""
        other = self.constant(fill, graph.element_type(of.whole))
        mask = self.mask(of.bound, of.count, len(of.shape), of.axis)
        return self("Where", [mask, of.whole, other], of.whole.dtype, of.shape)


def fits(shape: Shape, dtype: np.dtype[Any] | None, largest: int = LARGEST) -> bool:
    """True if a value of this shape is not too large, and not empty, for a whole."""
    return dtype is not None and 0 < math.prod(shape) * dtype.itemsize <= largest


def upper_bound(value: ir.Value | None, depth: int = DEEPEST) -> int | None:
    """A number that no element of an int64 value exceeds; None where none is known."""
    if value is None or depth == 0:
        return None
    if BOUND in value.meta:
        return int(value.meta[BOUND])
    fixed = graph.constant(value)
    if fixed is not None:
        return int(fixed.max()) if fixed.size and fixed.dtype.kind in "iu" else None
    node = value.producer()
    if node is None or node.domain:
        return None
    rule = _BOUNDS.get(node.op_type)
    if rule is None:
        return None
    operands, combine = rule
    inputs = node.inputs[:operands]
    if combine is min:  # one that is known bounds the least of several
        known = [upper_bound(v, depth - 1) for v in _numbers(node)]
        return min((k for k in known if k is not None), default=None)
    found = [upper_bound(v, depth - 1) for v in inputs]
    return None if not found or None in found else max(int(f) for f in found if f is not None)


def _numbers(node: ir.Node) -> Sequence[ir.Value | None]:
    """Values of which Min or a ReduceMin to one number gives the least."""
    if node.op_type == "Min":
        return node.inputs
    value = graph.operand(node, 0)
    parts = value.producer()
    if graph.shape(node.outputs[0]) not in ((), (1,)):
        return ()
    return parts.inputs if parts is not None and parts.op_type == "Concat" else (value,)


# Operands that count, and what bounds the result.
_BOUNDS: dict[str, tuple[int | None, Callable[..., int]]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Identity", "Gather", "Slice", "Expand"), (1, max)),
    **dict.fromkeys(("Cast", "ReduceMax"), (1, max)),
    **dict.fromkeys(("Concat", "Max"), (None, max)),
    **dict.fromkeys(("Min", "ReduceMin"), (None, min)),
}
