"""Give every node to a backend, in convex sub-graphs."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from app.engine import graph
from app.engine.errors import UnknownOperatorError
from app.engine.plan import ELEMENTWISE, Compilation, Group, Subgraph
from app.engine.registry import Implementation, Known, Registry


@dataclass(frozen=True)
class Partition:
    """Each node goes to the first allowed backend that has an implementation for it.

    Nodes of one backend at one level form a sub-graph; the level of a node is the largest number
    of backend changes on any path to it. Levels never fall along a path and rise where the backend
    changes, so every sub-graph is convex and the sub-graphs form no cycle.
    """

    name: ClassVar[str] = "partition"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ("partition",)
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the column `partition`."""
        known = Known.of(compilation)
        partition: dict[ir.Node, Subgraph] = {}
        index: dict[tuple[str, int], Subgraph] = {}
        level: dict[ir.Node, int] = {}
        likely: dict[str, Implementation] = {}  # what accepted the last node of an operator
        for node in compilation.graph:
            backend = choose_backend(node, compilation.registry, known, likely)
            before = [v.producer() for v in graph.reads(node)]
            level[node] = max(
                (level[p] + (partition[p].backend != backend) for p in before if p is not None), default=0
            )
            key = (backend, level[node])
            partition[node] = index.setdefault(key, Subgraph(len(index), backend))
        return compilation.with_plan(partition=partition)


def single(node: ir.Node, registry: Registry) -> Group:
    """A node as a group of its own, every named output kept."""
    row = registry.operator(node)
    op = ELEMENTWISE if row is not None and row.elementwise else node.op_type
    return graph.group((node,), node, op, lambda value: bool(value.name))


def choose_backend(node: ir.Node, registry: Registry, known: Known, likely: dict[str, Implementation]) -> str:
    """The first allowed backend that accepts the node; by operator, a row that is asked first.

    Raises:
        UnknownOperatorError: none does; the message holds every reason.
    """
    alone = single(node, registry)
    reasons = []
    first = likely.get(alone.op)
    if first is not None and first.backend == known.target.backends[0] and not first.refusal(alone, known):
        return first.backend
    for row in registry.candidates(alone.op, known.target.backends):
        # Operators of our own are for sparse values, whose storage is inferred later.
        reason = row.unless(alone, known) if node.domain else row.refusal(alone, known)
        if reason is None:
            likely[alone.op] = row
            return row.backend
        reasons.append(f"{row.name}: {reason}")
    told = "; ".join(reasons) or f"the backends {', '.join(known.target.backends)} have no row for it"
    raise UnknownOperatorError(
        f"{node.op_type} {node.name!r}: nothing on target {known.target.name!r} can run it ({told})",
        pointer=f"node:{node.name}",
    )
