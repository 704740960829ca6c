"""Rows of the tables of gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.gradient.terms import FLOATS, Maker, Term

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Site:
    """A node of the forward graph with the gradients of its outputs.

    Attributes:
        maker: where new nodes go.
        node: the node, all shapes known.
        gradients: of each output; None where the loss does not depend on it.
    """

    maker: Maker
    node: ir.Node
    gradients: tuple[Term | None, ...]

    @property
    def dy(self) -> Term:
        """Gradient of the first output."""
        found = self.gradients[0]
        if found is None:
            raise ValueError(f"{self.node.op_type} {self.node.name!r}: the first output has no gradient")
        return found

    @property
    def y(self) -> Term:
        """The first output."""
        return Term(self.maker, self.node.outputs[0])

    @property
    def dy_shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.y.shape

    @property
    def x(self) -> Term:
        """The first operand."""
        return self[0]

    def __getitem__(self, index: int) -> Term:
        return Term(self.maker, graph.operand(self.node, index))

    def has(self, index: int) -> bool:
        """True if the operand is given."""
        return graph.input_at(self.node, index) is not None

    def attribute(self, name: str, default: T) -> T:
        """An attribute of the node."""
        return graph.attribute(self.node, name, default)

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute `axis`, counted from the front of the first operand's axes."""
        rank = len(self.x.shape) if rank is None else rank
        return self.attribute("axis", default) % max(rank, 1)

    def output(self, index: int, name: str, dtype: ir.DataType) -> Term:
        """An optional output of the first one's shape, which the node computes from now on."""
        if index >= len(self.node.outputs):
            self.node.resize_outputs(index + 1)
        found = self.node.outputs[index]
        if not found.name:
            found.name = f"{self.node.outputs[0].name}.{name}"
            found.type, found.shape = ir.TensorType(dtype), self.node.outputs[0].shape
        return Term(self.maker, found)

    @property
    def group(self) -> Group:
        """The node alone, as what knows its geometry takes it."""
        inputs = tuple(v for v in self.node.inputs if v is not None)
        return Group((self.node,), self.node, inputs, tuple(self.node.outputs), self.node.op_type)


Gradients: TypeAlias = Sequence[Term | None]
Product: TypeAlias = Callable[[Site], Gradients]


def no_rejection(_node: ir.Node) -> str | None:
    """None: the row holds for every form of its operator."""
    return None


@dataclass(frozen=True, slots=True)
class Rule:
    """Vector-Jacobian products of some operators.

    Attributes:
        ops: operators of the standard domain.
        product: the gradients of the operands, in order, None or absent where there is none; nodes for
            gradients that nobody asks for are dropped.
        outputs: leading outputs whose gradients are taken into account; others are refused.
        rejection: reason why a node has no gradient; None where it has.
        settings: operands that are no parameters by default, such as running statistics.
    """

    ops: tuple[str, ...]
    product: Product
    outputs: int = 1
    rejection: Callable[[ir.Node], str | None] = no_rejection
    settings: tuple[int, ...] = ()


def constants_required(*positions: int) -> Callable[[ir.Node], str | None]:
    """Rejection of nodes whose operands at these positions are computed when the graph runs."""

    def rejection(node: ir.Node) -> str | None:
        for index in positions:
            value = graph.input_at(node, index)
            if value is not None and graph.constant(value) is None:
                return f"operand {value.name!r} is computed at run time, expected a constant"
        return None

    return rejection


def allowed(name: str, default: Any, *expected: Any) -> Callable[[ir.Node], str | None]:
    """Rejection of nodes with other values of an attribute."""

    def rejection(node: ir.Node) -> str | None:
        found = graph.attribute(node, name, default)
        if found in expected:
            return None
        return f"{name} is {found!r}, expected {' or '.join(map(repr, expected))}"

    return rejection


def all_of(*checks: Callable[[ir.Node], str | None]) -> Callable[[ir.Node], str | None]:
    """The first rejection."""
    return lambda node: next((reason for check in checks if (reason := check(node))), None)


def is_float(value: ir.Value) -> bool:
    """True if the elements are of a type that derivatives exist in."""
    return graph.is_tensor(value) and value.dtype in FLOATS
