"""Values of a group with the demands that the row of a described accelerator makes on them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.patterns import Pattern, match
from app.engine.operators.tables import elementwise
from app.engine.types.accelerator import ANY_ELEMENTWISE, AcceleratorRow, Operand
from app.engine.types.layout import Layout, plain

NO_DEMAND = Operand()
DOMAINS = ("", "ai.onnx")
ELEMENTWISE_OPS = frozenset(row.op for row in elementwise.OPERATORS if row.elementwise)


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """A value of a group and what is asked of it.

    Attributes:
        layout: None where the row has none for so many axes.
        axis: whose extent must be a multiple.
        parameter: a constant that says how an operator works, which the device does not read.
    """

    value: ir.Value
    name: str
    operand: Operand
    layout: Layout | None
    axis: int
    constant: bool
    parameter: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical extents."""
        return graph.static_shape(self.value)

    @property
    def padded(self) -> tuple[int, ...]:
        """Extents with padding."""
        return self.shape if self.layout is None else self.layout.padded_shape(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the layout."""
        return math.prod(self.padded) * graph.element_type(self.value).itemsize

    def rejection(self, dtypes: tuple[str, ...]) -> str | None:
        """Reason why the value is not as it is asked for; `dtypes` are those of the row."""
        if self.parameter:
            return None
        kind = graph.element_type(self.value).name
        known = self.operand.dtypes or dtypes
        title = f"value {self.value.name!r}"
        if kind not in known:
            return f"{title} is {kind}; the row takes {', '.join(known)}"
        if self.operand.constant and not self.constant:
            return f"{title} must be a constant"
        if self.layout is None:
            return f"{title} has {len(self.shape)} axes; the row takes {', '.join(self.operand.layouts)}"
        if not self.constant and self.shape and self.padded[self.axis] % self.operand.multiple:
            return (
                f"{title} has {self.shape[self.axis]} channels, no multiple of {self.operand.multiple}, and "
                f"{self.layout if self.operand.layouts else 'row-major memory'} does not pad them"
            )
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A group that is wired as a row asks for."""

    group: Group
    row: AcceleratorRow
    demands: tuple[Demand, ...]

    def rejection(self) -> str | None:
        """Reason why a value is not as it is asked for."""
        return next((reason for d in self.demands if (reason := d.rejection(self.row.dtypes))), None)

    @property
    def result(self) -> Demand | None:
        """The first value that the group writes."""
        return next((d for d in self.demands if d.value in self.group.outputs), None)

    @property
    def operand(self) -> Demand | None:
        """The first operand of the anchor that the group reads."""
        first = self.group.anchor.inputs[0] if self.group.anchor.inputs else None
        return next((d for d in self.demands if d.value is first), None)


def bound(group: Group, row: AcceleratorRow, pattern: Pattern | None) -> Bound | str:
    """The values of a group with their demands; the reason why it is no step of the row."""
    names = _matched(group, row, pattern) if pattern is not None else _positions(group, row)
    if isinstance(names, str):
        return names
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
    return Bound(group, row, tuple(_demands(group, row, names)))


def _matched(group: Group, row: AcceleratorRow, pattern: Pattern) -> dict[ir.Value, str] | str:
    """Names of the values of a group that is a pattern, the first of several."""
    found = match(pattern, group.nodes[-1])
    if found is None or set(found.nodes.values()) != set(group.nodes):
        return f"it computes {pattern} together, and nothing else"
    return _named(found.values.items(), row)


def _positions(group: Group, row: AcceleratorRow) -> dict[ir.Value, str] | str:
    """Names of the values of an operator and what follows it."""
    for node in group.nodes:
        taken = row.ops if node is group.anchor else row.epilogue
        if node.domain not in DOMAINS:
            return f"{node.op_type} is an operator of domain {node.domain!r}"
        if node.op_type not in taken and not (ANY_ELEMENTWISE in taken and node.op_type in ELEMENTWISE_OPS):
            return f"it takes no {node.op_type}" + ("" if node is group.anchor else " in one step with it")
    found = _named(((f"in{i}", v) for i, v in enumerate(group.anchor.inputs)), row)
    return found if isinstance(found, str) else found | {v: f"out{i}" for i, v in enumerate(group.outputs)}


def _named(values: Iterable[tuple[str, ir.Value | None]], row: AcceleratorRow) -> dict[ir.Value, str] | str:
    """The first name of each value; the reason where the row asks for two things of one value."""
    names: dict[ir.Value, str] = {}
    for name, value in values:
        if value is None:
            continue
        first = names.setdefault(value, name)
        if row.operands.get(first) != row.operands.get(name):
            return f"value {value.name!r} is {first!r} and {name!r}, of which it asks for different things"
    return names


def _demands(group: Group, row: AcceleratorRow, names: dict[ir.Value, str]) -> Iterator[Demand]:
    for value in (*group.inputs, *group.outputs):
        constant, written = graph.is_constant(value), value in group.outputs
        shape, name = graph.static_shape(value), names.get(value, "")
        general = "weights" if constant else "out" if written else "in"
        operand = row.operands.get(name) or row.operands.get(general) or NO_DEMAND
        parameter = (
            constant and name not in row.operands and len(shape) <= 1 and value.dtype == ir.DataType.INT64
        )
        found = None if parameter else operand.layout(len(shape))
        layout, axis = found or (plain(len(shape)) if constant else None, 0)
        yield Demand(value, name, NO_DEMAND if parameter else operand, layout, axis, constant, parameter)
