"""Values that could be computed a second time, so that they need not live through the fullest step."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.program import Program
from app.engine.rewrites.constant_folding import NONDETERMINISTIC
from app.engine.types.options import Again

DEEPEST = 4  # groups that are computed again for one value


@dataclass(frozen=True, slots=True)
class _Found:
    again: Again
    nbytes: int  # that need not live
    seconds: float


def candidates(program: Program, step: int) -> list[Again]:
    """Values to compute again for readers after `step`, through which they wait unread; the best first.

    Most bytes come first, of equal ones what takes the least time. What is computed from values that are
    gone by then brings these along, up to four groups.
    """
    lives = Lives(program)
    found: dict[Again, _Found] = {}
    for buffer in program.placement.buffers:
        for part in buffer.slices:
            if not part.first < step < part.last or (value := lives.values.get(part.value)) is None:
                continue
            if (candidate := lives.candidate(value, step, part.nbytes)) is not None:
                found.setdefault(candidate.again, candidate)
    ranked = sorted(found.values(), key=lambda c: (-c.nbytes, c.seconds, c.again.nodes))
    return [candidate.again for candidate in ranked]


class Lives:
    """Who makes and reads the values of a program, and until when they live.

    Attributes:
        maker: step that makes a value.
        at: step that computes a node.
        last: last step at which a value lives, by its name.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.main = program.compilation.graph
        self.values = {v.name or "": v for v in program.placement.values}
        self.maker = {v: s.index for s in program.steps for n in s.group.nodes for v in n.outputs}
        self.at = {node: s.index for s in program.steps for node in s.group.nodes}
        self.last: dict[str, int] = {}
        for buffer in program.placement.buffers:
            for part in buffer.slices:
                self.last[part.value] = max(part.last, self.last.get(part.value, -1))

    def candidate(self, value: ir.Value, step: int, nbytes: int) -> _Found | None:
        """The value for its readers after the step; None where it is read at it, or cannot be copied."""
        value = origin(value)
        readers = self.readers(value)
        if readers is None or value not in self.maker:
            return None
        late = [node for node in readers if self.at[node] > step]
        if not late or any(self.at[node] == step for node in readers):
            return None
        groups = self._groups(value, min(self.at[node] for node in late))
        if groups is None or not self._stays(groups, late):
            return None
        nodes = tuple(node.name or "" for group in groups for node in own_nodes(group.nodes))
        spent = sum(self.program.steps[self.at[group.anchor]].choice.seconds for group in groups)
        return _Found(Again(nodes, tuple(sorted(n.name or "" for n in late))), nbytes, spent)

    def _groups(self, value: ir.Value, until: int) -> list[Group] | None:
        """The groups that make a value from what lives until a step, in order; None if they are too many."""
        needed: dict[int, Group] = {}
        waiting = [value]
        while waiting:
            index = self.maker[waiting.pop()]
            group = self.program.steps[index].group
            if index in needed:
                continue
            if len(needed) == DEEPEST or not all(map(is_repeatable, group.nodes)):
                return None
            needed[index] = group
            read = map(origin, group.inputs)
            waiting += [v for v in read if v in self.maker and self.last.get(v.name or "", -1) < until]
        return [needed[index] for index in sorted(needed)]

    def _stays(self, groups: Iterable[Group], late: Iterable[ir.Node]) -> bool:
        """True if anything else needs what the groups make; else a copy is the same steps run later."""
        known = {*late, *(node for group in groups for node in group.nodes)}
        made = (v for group in groups for node in own_nodes(group.nodes) for v in node.outputs)
        return any(readers is None or not known.issuperset(readers) for readers in map(self.readers, made))

    def readers(self, value: ir.Value) -> list[ir.Node] | None:
        """Nodes of the model that read a value, through conversions; None where others do."""
        if value.is_graph_output():
            return None
        found: list[ir.Node] = []
        for node in dict.fromkeys(use.node for use in value.uses()):
            if is_conversion(node):
                behind = [self.readers(v) for v in node.outputs]
                if None in behind:
                    return None
                found += [n for nodes in behind for n in nodes or ()]
            elif node.graph is not self.main:
                return None
            else:
                found.append(node)
        return found


def own_nodes(nodes: Iterable[ir.Node]) -> Iterable[ir.Node]:
    """Nodes of the model among those of a group, without conversions of the planner's own."""
    return (node for node in nodes if not is_conversion(node))


def origin(value: ir.Value) -> ir.Value:
    """The value that conversions of the planner's own made this one of."""
    producer = value.producer()
    while producer is not None and is_conversion(producer):
        value = producer.inputs[0]  # type: ignore[assignment]  # a conversion has an input
        producer = value.producer()
    return value


def is_conversion(node: ir.Node) -> bool:
    """True if a node holds its input in other bytes: an operator of the planner's own."""
    return node.domain == "stowplan" and len(node.inputs) == 1 and len(node.outputs) == 1


def is_repeatable(node: ir.Node) -> bool:
    """True if a node computes the same each time and has no bodies."""
    return node.op_type not in NONDETERMINISTIC and not graph.bodies(node)
