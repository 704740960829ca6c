"""Give every node to a backend, in convex sub-graphs.

Backends come in the order of the target. Where a backend chooses node by node, it takes each node
that it has an implementation for. A library takes sub-graphs: its selector finds connected nodes that
it accepts, and of these `app.engine.partition.convex` keeps what is convex, free of cycles and of most value,
conversions at the borders paid. Nodes are numbered by depth and name, not by their place in the file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from app.engine.core import graph, patterns
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.plan import Compilation, Subgraph
from app.engine.core.registry import Backend, PlanningContext, Registry, Selector
from app.engine.cost import roofline
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.partition.convex import Crossing, Dag, separated
from app.engine.types.errors import UnknownOperatorError
from app.engine.types.storage import MXNET

SECOND = 1e12  # gains and costs are picoseconds
PREFERENCE = 1000  # times the work of a node outweighs a conversion, where the order of backends decides


@dataclass(frozen=True)
class Partition:
    """Sub-graphs of libraries as they are assigned by measurement, else by the order of the backends.

    Nodes that are chosen one by one form a sub-graph with those of the same backend and level; the
    level of a node is the largest number of changes on any path to it. Levels never fall along a path
    and rise where the sub-graph changes, so all sub-graphs are convex and form no cycle.
    """

    name: ClassVar[str] = "partition"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ("partition", "passed_over")
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the columns `partition` and `passed_over`.

        Raises:
            UnknownOperatorError: no backend runs a node; the message holds every reason.
        """
        work = _Work(compilation)
        backends = [(name, compilation.registry.backends.get(name)) for name in compilation.target.backends]
        libraries = [
            backend for _, backend in backends if backend is not None and backend.selector is not None
        ]
        if compilation.assignment:  # what is measured knows no order
            backends = [(b.name, b) for b in libraries] + [(n, b) for n, b in backends if b not in libraries]
        for name, backend in backends:
            if backend is not None and backend.selector is not None:
                work.take_sub_graphs(backend, backend.selector)
            else:
                work.take_nodes(name)
        work.refuse_rest()
        notes = tuple(dict.fromkeys(work.notes))
        told = {n.name or "": reasons for n, reasons in work.reasons.items() if reasons}
        result = replace(compilation, notes=(*compilation.notes, *notes))
        return result.with_plan(partition=work.column(), passed_over=told)


def single(node: ir.Node, registry: Registry) -> Group:
    """A node as a group of its own, every named output kept."""
    row = registry.operator(node)
    op = ELEMENTWISE if row is not None and row.elementwise else node.op_type
    return graph.group((node,), node, op, lambda value: bool(value.name))


class _Work:
    """A graph whose nodes are given away, numbered so that edges lead to larger numbers."""

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation
        self.context = PlanningContext.of(compilation)
        self.notes: list[str] = []
        given = tuple(compilation.graph)
        read = {node: graph.reads(node) for node in given}
        depth: dict[ir.Node, int] = {}
        for node in given:
            before = (v.producer() for v in read[node])
            depth[node] = max((depth[p] + 1 for p in before if p in depth), default=0)
        self.nodes = sorted(given, key=lambda n: (depth[n], _name(n)))
        self.number = {node: i for i, node in enumerate(self.nodes)}
        self.read = [read[node] for node in self.nodes]
        self.successors: list[list[int]] = [[] for _ in self.nodes]
        self.readers: dict[ir.Value, list[int]] = {}
        for i, values in enumerate(self.read):
            for value in values:
                self.readers.setdefault(value, []).append(i)
            makers = (v.producer() for v in values)
            for p in dict.fromkeys(p for p in makers if p in self.number):
                self.successors[self.number[p]].append(i)
        self.backend: dict[int, str] = {}
        self.part: dict[int, int] = {}  # of nodes in sub-graphs of libraries
        self.parts: list[frozenset[int]] = []
        self.reasons: dict[ir.Node, dict[str, str]] = {node: {} for node in self.nodes}

    def take_nodes(self, name: str) -> None:
        """Give a backend what is left and what it has an implementation for, alone or in a pattern."""
        free = lambda node: self.number[node] not in self.backend  # noqa: E731  # it changes meanwhile
        for group in patterns.groups(self.compilation, name, self.context, free):
            self.backend.update({self.number[node]: name for node in group.nodes})
        for i, node in enumerate(self.nodes):
            if self.backend.get(i) == name:
                continue
            if i in self.backend:
                self.reasons[node].setdefault(name, self._before(i))
                continue
            verdict = self._verdict(node, name)
            if verdict is None:
                self.backend[i] = name
            else:
                self.reasons[node][name] = verdict

    def _verdict(self, node: ir.Node, name: str) -> str | None:
        """Reason why a backend has no implementation for a node, or None."""
        registry = self.compilation.registry
        alone = single(node, registry)
        refusals = []
        for row in registry.candidates(alone.op, (name,)):
            if node.domain in (MICROSOFT, MXNET) and row.op != "*" and row.domain != node.domain:
                refusals.append(f"{row.name}: it computes the operator of ONNX with that name")
                continue
            # Operators of our own are for sparse values, whose storage is inferred later.
            reason = (row.rejection if node.domain else row.rejection_reason)(alone, self.context)
            if reason is None:
                return None
            refusals.append(f"{row.name}: {reason}")
        return "; ".join(refusals) or f"it has no row for {node.op_type}"

    def take_sub_graphs(self, backend: Backend, selector: Selector) -> None:
        """Give a library the sub-graphs that are worth it, of what is left and it accepts."""
        reason = backend.missing()
        if reason is not None:
            self.notes.append(f"backend {backend.name!r} is passed over: {reason}")
        accepted: list[int] = []
        whole = self._whole(backend.name)
        for i, node in enumerate(self.nodes):
            refused = reason or (None if whole else self._rejection(i, backend))
            if refused is None:
                accepted.append(i)
            else:
                self.reasons[node][backend.name] = refused
        candidates = self._candidates(accepted, backend, selector)
        taken = self._separated(candidates)
        for part in taken:
            self.part.update(dict.fromkeys(part, len(self.parts)))
            self.parts.append(part)
            self.backend.update(dict.fromkeys(part, backend.name))
        for i in accepted:
            if i not in self.backend:
                told = "the sub-graphs that hold it are not convex, or not worth their conversions"
                self.reasons[self.nodes[i]][backend.name] = told

    def _whole(self, backend: str) -> bool:
        """True if a library runs the model as the file has it, whatever became of its nodes here."""
        assignment, failures = self.compilation.assignment, self.compilation.failures
        return self.compilation.source is not None and all(
            assignment.get(_name_of(n)) == whole_label(backend) and (_name_of(n), backend) not in failures
            for n in self.nodes
        )

    def _rejection(self, i: int, backend: Backend) -> str | None:
        """Reason why a node is not given to a library, or None."""
        node = self.nodes[i]
        if i in self.backend:
            return self._before(i)
        failure = self.compilation.failures.get((node.name or "", backend.name))
        if failure is not None:
            return failure
        assignment = self.compilation.assignment
        if assignment and _library(assignment.get(node.name or "")) != backend.name:
            return "another backend is faster, or no slower, by measurement"
        return None

    def _before(self, i: int) -> str:
        """Reason why a node that has a backend is not given to the next one."""
        told = "is faster by measurement" if self.compilation.assignment else "comes first"
        return f"{self.backend[i]} runs it, which {told}"

    def _candidates(
        self, accepted: Iterable[int], backend: Backend, selector: Selector
    ) -> list[frozenset[int]]:
        """Connected nodes that a library's selector finds, or those that are assigned together."""
        assignment = self.compilation.assignment
        if assignment:
            joined: dict[str, set[int]] = {}
            for i in accepted:
                joined.setdefault(assignment[self.nodes[i].name or ""], set()).add(i)
            return [frozenset(candidate) for candidate in joined.values()]
        free = set(accepted)
        candidates: list[frozenset[int]] = []
        for start in accepted:
            if start not in free:
                continue
            refused = selector.start(self.nodes[start], self.context)
            if refused is not None:
                self.reasons[self.nodes[start]][backend.name] = refused
                continue
            found = self._grown(start, free, backend, selector)
            free -= found
            nodes = tuple(self.nodes[i] for i in sorted(found))
            kept = frozenset(self.number[n] for n in selector.keep(nodes, self.context))
            candidates += _connected(kept, self.successors) if kept != found else [found]
        return candidates

    def _grown(self, start: int, free: set[int], backend: Backend, selector: Selector) -> frozenset[int]:
        """Nodes that a selector reaches from a node."""
        found, stack = {start}, [start]
        while stack:
            i = stack.pop()
            makers = (v.producer() for v in self.read[i])
            inputs = [self.number[p] for p in makers if p is not None and p in self.number]
            sides = ((inputs, selector.to_input), (self.successors[i], selector.to_output))
            for others, grow in sides:
                for other in others:
                    if other not in free or other in found:
                        continue
                    refused = grow(self.nodes[other], self.context)
                    if refused is None:
                        found.add(other)
                        stack.append(other)
                    else:
                        self.reasons[self.nodes[other]].setdefault(backend.name, refused)
        return frozenset(found)

    def _separated(self, candidates: Sequence[frozenset[int]]) -> list[frozenset[int]]:
        """The parts of candidates that can be taken, sub-graphs taken before being one vertex each."""
        if not candidates:
            return []
        if not self.parts:
            return separated(self._dag(candidates), candidates)
        count = len(self.nodes)
        whole = {i: self.part[i] + count if i in self.part else i for i in range(count)}
        edges: dict[int, set[int]] = {w: set() for w in whole.values()}
        for i, after in enumerate(self.successors):
            edges[whole[i]].update(whole[s] for s in after if whole[s] != whole[i])
        order = _ordered(edges)
        place = {w: n for n, w in enumerate(order)}
        inner = self._dag(candidates)
        dag = Dag(
            [sorted(place[s] for s in edges[w]) for w in order],
            [inner.gains[w] if w < count else 0 for w in order],
            [
                Crossing(_at(c.writer, whole, place), tuple(_at(r, whole, place) for r in c.readers), c.cost)
                for c in inner.crossings
            ],
        )
        parts = separated(dag, [frozenset(place[whole[i]] for i in candidate) for candidate in candidates])
        return [frozenset(order[n] for n in part) for part in parts]

    def _dag(self, candidates: Sequence[frozenset[int]]) -> Dag:
        """Gain of sub-graphs: the work they run, less conversions at their borders.

        Where parts are assigned by measurement, that has counted both.
        """
        gains = [0] * len(self.nodes)
        if self.compilation.assignment:
            for i in (i for candidate in candidates for i in candidate):
                gains[i] = 1
            return Dag(self.successors, gains)
        target, threads = self.context.target, self.context.threads
        sizes: dict[ir.Value, int] = {}

        def nbytes(value: ir.Value) -> int:
            if value not in sizes:
                sizes[value] = 0 if graph.is_dynamic(value) else graph.nbytes(value)
            return sizes[value]

        ends = set(self.compilation.graph.outputs)
        crossings = []
        members = {i for candidate in candidates for i in candidate}
        for i in sorted(members):
            moved = float(sum(map(nbytes, (*self.read[i], *self.nodes[i].outputs))))
            work = roofline.arithmetic(self.nodes[i])
            seconds = roofline.roofline(target, flops=work, nbytes=moved, threads=threads)
            gains[i] = PREFERENCE * max(round(seconds * SECOND), 1)
        values = {v for i in members for v in (*self.read[i], *self.nodes[i].outputs)}
        for value in sorted(values, key=lambda v: v.name or ""):
            producer = value.producer()
            readers = self.readers.get(value, [])
            if producer is None or not nbytes(value):
                continue
            seconds = roofline.roofline(target, flops=0.0, nbytes=2.0 * nbytes(value), threads=threads)
            outside = [-1] * (value in ends)
            writer = self.number.get(producer, -1)
            crossings.append(Crossing(writer, (*readers, *outside), round(seconds * SECOND)))
        return Dag(self.successors, gains, crossings)

    def refuse_rest(self) -> None:
        """Check that every node has a backend."""
        backends, target = self.compilation.target.backends, self.context.target.name
        for i, node in enumerate(self.nodes):
            if i in self.backend:
                continue
            reasons = "; ".join(f"{b}: {r}" for b, r in self.reasons[node].items())
            told = reasons or f"the backends {', '.join(backends)} have no row for it"
            raise UnknownOperatorError(
                f"{node.op_type} {node.name!r}: nothing on target {target!r} can run it ({told})",
                pointer=f"node:{node.name}",
            )

    def column(self) -> dict[ir.Node, Subgraph]:
        """The sub-graph of every node, in graph order."""
        count = len(self.nodes)
        whole = {i: self.part[i] + count if i in self.part else i for i in range(count)}
        edges: dict[int, set[int]] = {w: set() for w in whole.values()}
        for i, after in enumerate(self.successors):
            edges[whole[i]].update(whole[s] for s in after if whole[s] != whole[i])
        backend = {w: self.backend[i] for i, w in whole.items()}
        level = dict.fromkeys(edges, 0)
        found: dict[int, Subgraph] = {}
        index: dict[object, Subgraph] = {}
        for w in _ordered(edges) if self.parts else range(count):
            key = w if w >= count else (backend[w], level[w])
            found[w] = index.setdefault(key, Subgraph(len(index), backend[w]))
            for s in edges[w]:
                changes = max(w, s) >= count or backend[s] != backend[w]
                level[s] = max(level[s], level[w] + changes)
        return {node: found[whole[self.number[node]]] for node in self.compilation.graph}


def _at(vertex: int, whole: Mapping[int, int], place: Mapping[int, int]) -> int:
    return -1 if vertex < 0 else place[whole[vertex]]


def whole_label(backend: str) -> str:
    """The label of every node where a library is assigned the whole model."""
    return f"{backend}#0"


def _name_of(node: ir.Node) -> str:
    return node.name or ""


def _library(label: str | None) -> str:
    """The backend of a label `backend#part`; empty where there is none."""
    return (label or "").partition("#")[0]


def _name(node: ir.Node) -> str:
    """Name of a node that does not depend on the order of the file: its first named output, else its own."""
    return next((v.name for v in node.outputs if v.name), node.name or "")


def _ordered(edges: Mapping[int, Iterable[int]]) -> list[int]:
    """Vertices so that edges lead forward; of those that may come, the one that was free first."""
    waiting = dict.fromkeys(edges, 0)
    for after in edges.values():
        for s in after:
            waiting[s] += 1
    order = [v for v in sorted(edges) if not waiting[v]]
    for v in order:
        for s in sorted(edges[v]):
            waiting[s] -= 1
            if not waiting[s]:
                order.append(s)
    assert len(order) == len(waiting), "sub-graphs form a cycle"
    return order


def _connected(nodes: frozenset[int], successors: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """The connected pieces of some nodes."""
    beside: dict[int, list[int]] = {i: [] for i in nodes}
    for i in nodes:
        for s in successors[i]:
            if s in nodes:
                beside[i].append(s)
                beside[s].append(i)
    left, pieces = set(nodes), []
    for start in sorted(nodes):
        if start not in left:
            continue
        left.discard(start)
        piece, stack = {start}, [start]
        while stack:
            for other in beside[stack.pop()]:
                if other in left:
                    left.discard(other)
                    piece.add(other)
                    stack.append(other)
        pieces.append(frozenset(piece))
    return pieces
