"""Rows of views of a described accelerator: results that are bytes of operands, and copies of others."""

from collections.abc import Iterator

import onnx_ir as ir

from app.engine.backends.cost_only.steps import Step, where_it_is
from app.engine.core import graph
from app.engine.core.calls import View
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, UNDEFINED, Implementation, PlanningContext
from app.engine.operators.movement import PARTS, Part, is_view, no_calls, part_view, permutation
from app.engine.operators.operands import data, fixed_inputs
from app.engine.types.accelerator import Views
from app.engine.types.layout import Layout

_PARTS = {op: (parts, constants) for op, parts, constants in PARTS}
_LANES = ("Concat", "Identity")  # operators that leave in padded lanes what their operands hold there


def rows(step: Step, rule: Views, op: str, name: str, rank: int, backend: str) -> Iterator[Implementation]:
    """The implementation by views, of which memory planning may refuse some, and the one by copies."""
    parts, constants = _PARTS.get(op, (None, ()))

    def found(group: Group) -> tuple[View | str, ...]:
        """Every view of the group, or the reason why it is none."""
        layout = {d.value: d.layout for d in step.demands(group) if d.layout is not None}
        if parts is None:
            reason = _whole_rejection(group.anchor, layout[data(group.anchor)], layout[group.outputs[0]])
            return (reason or View(data(group.anchor), group.outputs[0]),)
        return tuple(
            _part_view(p, layout.get(p.whole), layout.get(p.part), rule, group) for p in parts(group.anchor)
        )

    def group_rejection(group: Group, context: PlanningContext) -> str | None:
        return step.rejection(group, context) or fixed_inputs(group.anchor, constants)

    def view_rejection(group: Group, context: PlanningContext) -> str | None:
        if (reason := group_rejection(group, context)) is not None:
            return reason
        views = found(group)
        if any(isinstance(view, View) for view in views):
            return None
        return next(map(str, views), f"{op} takes no range")

    def copy_rejection(group: Group, context: PlanningContext) -> str | None:
        if (reason := group_rejection(group, context)) is not None:
            return reason
        return next((v for v in found(group) if isinstance(v, str)), None) if parts is None else None

    def views(group: Group, _context: PlanningContext) -> tuple[View, ...]:
        return tuple(view for view in found(group) if isinstance(view, View))

    def view_cost(group: Group, context: PlanningContext) -> float:
        granted = frozenset(views(group, context)) if context.granted is None else context.granted
        kept = {view.view for view in views(group, context) if view in granted}
        return step.copying(_copied(group, kept), context)

    def copy_cost(group: Group, context: PlanningContext) -> float:
        return step.copying(_copied(group, set()), context)

    def _copied(group: Group, kept: set[ir.Value]) -> float:
        every = (p.part for p in parts(group.anchor)) if parts is not None else group.outputs
        return 2.0 * sum(graph.nbytes(v) for v in every if v not in kept and v.name)

    partial = op in ("Concat", "Split")  # the others have one part
    padding = LANEWISE if op in _LANES else UNDEFINED
    yield Implementation(
        name, op, backend, view_rejection, no_calls, view_cost, views=views, partial=partial,
        layouts=step.required_layouts, memories=where_it_is, padding=padding, rank=rank,
    )  # fmt: skip
    yield Implementation(
        f"{name}.copy", op, backend, copy_rejection, no_calls, copy_cost,
        layouts=step.required_layouts, memories=where_it_is, padding=padding, rank=rank,
    )  # fmt: skip


def _whole_rejection(node: ir.Node, source: Layout, result: Layout) -> str | None:
    """Reason why the first output of a node is no view of its first input in these layouts; or None."""
    x, y = graph.static_shape(data(node)), graph.static_shape(node.outputs[0])
    moves = node.op_type == "Transpose" and not is_view(node)
    if not moves and source.is_same_bytes(x) and result.is_same_bytes(y):
        return None
    if node.op_type == "Transpose":
        if _same_order(permutation(node), source, result, x):
            return None
        return f"Transpose {permutation(node)} of {list(x)} moves elements"
    if x == y and source == result:
        return None
    return f"{node.op_type} of {list(x)} in {source} to {list(y)} in {result} moves elements"


def _same_order(perm: tuple[int, ...], source: Layout, result: Layout, shape: tuple[int, ...]) -> bool:
    """True if a Transpose renames the axes of a value that lies as its result: NHWC to row-major, or back."""
    if source.blocks or result.blocks:
        return False
    after = tuple(perm[axis] for axis in result.order)
    return [a for a in source.order if shape[a] > 1] == [a for a in after if shape[a] > 1]


def _part_view(part: Part, whole: Layout | None, own: Layout | None, rule: Views, group: Group) -> View | str:
    """A part as a view whose place the device takes, or the reason why it is none."""
    if whole is None or whole != own:
        return f"{part.part.name!r} lies in {own}, {part.whole.name!r} in {whole}"
    view = part_view(part, whole, group)
    if isinstance(view, View) and view.offset % rule.alignment:
        name = part.whole.name
        return f"{part.part.name!r} begins at byte {view.offset} of {name!r}, no multiple of {rule.alignment}"
    return view
