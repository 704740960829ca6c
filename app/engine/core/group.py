"""Groups: the nodes that one implementation computes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

import onnx_ir as ir

from app.engine.core.cache import Cache

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_NAME = 60  # characters of a name that `repr` shows

ELEMENTWISE = "Elementwise"  # the operator of a group made of elementwise nodes only
SUBGRAPH = "Subgraph"  # the operator of a group that a library runs whole
ATTENTION = "Attention"  # and of one made of two products with a Softmax between


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Nodes that one implementation computes in one go: the unit of dispatch and of execution.

    Attributes:
        nodes: in execution order; a convex connected part of the graph.
        anchor: the node whose arithmetic dominates; its operator names the group.
        inputs: values read from outside, in order of first use, each once; initializers included.
        outputs: values that something outside reads, or graph outputs.
        cache: results of functions `of_group`, and of implementations; nodes do not change while they are
            in a group.
    """

    nodes: tuple[ir.Node, ...]
    anchor: ir.Node
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    op: str  # operator of the anchor, or ELEMENTWISE, or ATTENTION
    cache: Cache = field(default_factory=Cache, init=False, repr=False)

    @property
    def name(self) -> str:
        """The anchor's name, which is unique in the graph."""
        return self.anchor.name or ""

    @property
    def epilogue(self) -> tuple[ir.Node, ...]:
        """The nodes that follow the anchor."""
        return tuple(n for n in self.nodes if n is not self.anchor)

    def __repr__(self) -> str:
        """Operator, name and size."""
        return f"Group({self.op} {shortened(self.name)!r}, {len(self.nodes)} nodes)"


def shortened(name: str | None) -> str:
    """Name for `repr`: a long one ends with an ellipsis."""
    name = name or ""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def of_group(function: Callable[Concatenate[Group, P], T]) -> Callable[Concatenate[Group, P], T]:
    """A decorator: a pure function of a group and hashable arguments, computed once for each."""

    @wraps(function)
    def found(group: Group, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, args, *kwargs.items())
        return group.cache.result(key, lambda: function(group, *args, **kwargs))

    return cast("Callable[Concatenate[Group, P], T]", found)
