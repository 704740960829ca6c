"""The functions of one row of a described accelerator: demands of its steps, rejections, seconds."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.backends.cost_only import costs, limits
from app.engine.backends.cost_only.operands import Bound, Demand, bound
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.patterns import Pattern
from app.engine.core.placement import Held
from app.engine.core.registry import Layouts, PlanningContext, all_plain
from app.engine.cost.roofline import roofline
from app.engine.types.accelerator import Accelerator, AcceleratorRow, Cost
from app.engine.types.layout import Layout

SCATTERED = 3.0  # times the bytes of a change of layout, where a device does not tell what it costs


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The functions of one row."""

    device: Accelerator
    row: AcceleratorRow
    pattern: Pattern | None

    def bound(self, group: Group) -> Bound | str:
        """The demands on the values of a group; the reason where it is no such step."""
        key = ("bound", self.row.name, self.pattern)
        return group.cache.result(key, lambda: bound(group, self.row, self.pattern))

    def demands(self, group: Group) -> tuple[Demand, ...]:
        """The demands on the values of a group that is such a step."""
        found = self.bound(group)
        return () if isinstance(found, str) else found.demands

    def rejection(self, group: Group, context: PlanningContext) -> str | None:
        """Reason why the group is no step of this row, or what must be in a memory is more than there is."""
        found = self.bound(group)
        if isinstance(found, str):
            return found
        reason = found.rejection() or limits.rejection(found, self.row.limits)
        if reason is not None:
            return reason
        held: Counter[str] = Counter()
        for demand in self.memories(group, context).values():
            held[demand.memory] += demand.nbytes
        for memory in context.target.memories:
            if held[memory.name] > memory.size:
                return (
                    f"its operands take {held[memory.name]} byte of {memory.name!r}, which has {memory.size}"
                )
        return None

    def layouts(self, group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
        """Layouts of values of the run that are not row-major."""
        return {
            demand.value: demand.layout
            for demand in self.demands(group)
            if demand.layout is not None and not demand.constant and not demand.layout.is_plain
        }

    def memories(self, group: Group, context: PlanningContext) -> Mapping[ir.Value, Held]:
        """Memories that operands must be in, and their bytes in pieces of its alignment."""
        aligned = {memory.name: memory.alignment for memory in context.target.memories}
        asked = {d.value: (d.operand.memory, d.nbytes) for d in self.demands(group) if d.operand.memory}
        return {v: Held(name, -(-n // aligned[name]) * aligned[name]) for v, (name, n) in asked.items()}

    def inplace(self, group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
        """Pairs of the row that the group has."""
        named = {demand.name: demand.value for demand in self.demands(group)}
        return tuple((named[a], named[b]) for a, b in self.row.inplace if a in named and b in named)

    def cost(self, group: Group, context: PlanningContext) -> float:
        """Predicted seconds, with those of constants that are brought to where they must be."""
        found = self.bound(group)
        if isinstance(found, str):
            return math.inf
        staged = {v: held for v, held in self.memories(group, context).items() if graph.is_constant(v)}
        cost = self.row.cost or self.device.cost
        taken = costs.seconds(found, cost, self.row.limits, context.target)
        return taken + costs.loading(staged, context.target)

    @property
    def required_layouts(self) -> Layouts:
        """`layouts`, or none where no operand has one."""
        return self.layouts if any(o.layouts for o in self.row.operands.values()) else all_plain

    def copying(self, nbytes: float, context: PlanningContext) -> float:
        """Seconds of reading and writing bytes that a view does not save; none where there are none."""
        return moving(self.row.cost or self.device.conversion, nbytes, context) if nbytes else 0.0


def moving(cost: Cost | None, nbytes: float, context: PlanningContext) -> float:
    """Seconds of a step that moves bytes in other order; without a cost by the roofline of the target."""
    if cost is not None:
        return costs.moving(cost, nbytes)
    return roofline(context.target, flops=0.0, nbytes=SCATTERED * nbytes, threads=context.threads)


def where_it_is(_group: Group, _context: PlanningContext) -> Mapping[ir.Value, Held]:
    """Operands are read and written wherever they live."""
    return {}
