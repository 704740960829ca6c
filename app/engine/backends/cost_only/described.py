"""Implementations of the rows that a target describes as its accelerator; they have costs and no kernels.

What a row demands is data (`app.engine.types.accelerator`); the functions here are the same for every device.
A plan tells what fits, what is converted and what it would cost. It cannot be run: its times are predicted.
"""

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from app.engine.backends.control_flow import branches, loops
from app.engine.backends.cost_only import views
from app.engine.backends.cost_only.operands import ELEMENTWISE_OPS
from app.engine.backends.cost_only.steps import Step, moving, where_it_is
from app.engine.core import graph
from app.engine.core.calls import View
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.patterns import Pattern
from app.engine.core.registry import (
    UNDEFINED,
    ZERO_WRITER,
    Backend,
    Described,
    Implementation,
    Layouts,
    Padding,
    PlanningContext,
    Rejection,
)
from app.engine.core.rewriter import RewriteRule
from app.engine.cost.roofline import PRODUCTS
from app.engine.layouts.conversions import DOMAIN, OP
from app.engine.operators.movement import no_calls
from app.engine.rewrites.quantization import integer_rows, zero_point_apart
from app.engine.types.accelerator import BACKEND, Accelerator, AcceleratorRow, PatternNode
from app.engine.types.layout import Layout
from app.engine.types.target import Target

BACKENDS = (Backend(BACKEND, devices=("model",), runs_here=False),)

# The integer product that dequantized operands of an operator are multiplied by.
_PRODUCTS: Mapping[str, str] = {"Conv": "ConvInteger", "MatMul": "MatMulInteger", "Gemm": "MatMulInteger"}


def describe(target: Target) -> Described:
    """The rows of a target's accelerator, and the rules that bring operators into those that it has."""
    device = target.accelerator
    if device is None:
        return (), ()
    found = rows(device, BACKEND)
    if device.control_flow:
        found += (*branches.rows(BACKEND, f"{BACKEND}."), *loops.rows(BACKEND, f"{BACKEND}."))
    return found, _rewrites(device)


DESCRIBERS = (describe,)


def rows(device: Accelerator, backend: str) -> tuple[Implementation, ...]:
    """The implementations of a description: one for each operator of a row, and changes of its layouts."""
    steps = (
        implementation
        for rank, row in enumerate(device.rows)
        for implementation in _steps(device, row, rank, backend)
    )
    changes = (c for layout in device.layouts for c in _changes(device, layout, backend))
    return (*steps, *changes)


def _rewrites(device: Accelerator) -> tuple[RewriteRule, ...]:
    """Rules for the integer products that a device has, and for those that take no zero points."""
    products = {op for row in device.rows for op in row.operators} & set(_PRODUCTS.values())
    apart = tuple(
        op
        for op in sorted(products)
        if all(not row.limits.zero_points for row in device.rows if op in row.operators)
    )
    rules = [
        rule
        for rule in integer_rows(BACKEND)
        if products and all(_PRODUCTS.get(op, min(products)) in products for op in rule.ops)
    ]
    if apart:
        rules.append(RewriteRule(zero_point_apart, apart, nested=False, backends=(BACKEND,)))
    return tuple(rules)


def _steps(device: Accelerator, row: AcceleratorRow, rank: int, backend: str) -> Iterator[Implementation]:
    """The implementations of a row, one for each operator that its steps are named after."""
    ops: Sequence[str] = [ELEMENTWISE if op in ELEMENTWISE_OPS else op for op in row.ops]
    pattern = None
    if row.pattern:
        anchor = _anchor(row.pattern)
        pattern = Pattern(row.pattern, anchor)
        ops = [ELEMENTWISE if op in ELEMENTWISE_OPS else op for op in row.pattern[anchor].ops]
    step = Step(device, row, pattern)
    ops = tuple(dict.fromkeys(ops))
    for op in ops:
        name = f"{backend}.{row.name}" + (f".{op.lower()}" if len(ops) > 1 else "")
        if row.views is not None:
            yield from views.rows(step, row.views, op, name, rank, backend)
            continue
        yield Implementation(
            name, op, backend, step.rejection, no_calls, step.cost, step.inplace,
            layouts=step.required_layouts, memories=step.memories, padding=Padding(row.reads, row.leaves),
            pattern=pattern, rank=rank,
        )  # fmt: skip


def _anchor(pattern: Sequence[PatternNode]) -> int:
    """The place of the first product, else of the first operator that is not elementwise, else the last."""
    for heavy in (PRODUCTS, None):
        for index, node in enumerate(pattern):
            if any((op in heavy) if heavy else (op not in ELEMENTWISE_OPS) for op in node.ops):
                return index
    return len(pattern) - 1


def _changes(device: Accelerator, layout: Layout, backend: str) -> Iterator[Implementation]:
    """Rows that convert to a layout and back, as views where the bytes are the same, and zero its lanes."""

    def ends(group: Group) -> tuple[ir.Value, ir.Value]:
        return graph.operand(group.anchor, 0), group.anchor.outputs[0]

    def rejection(same: bool) -> Rejection:
        def reason(group: Group, _context: PlanningContext) -> str | None:
            x, y = ends(group)
            if graph.is_dynamic(x) or graph.is_dynamic(y):
                return f"value {x.name!r} has no static shape"
            shape = graph.static_shape(x)
            if len(shape) != len(layout.order):
                return f"value {x.name!r} has {len(shape)} axes, {layout} {len(layout.order)}"
            return "the bytes of both differ" if same and not layout.is_same_bytes(shape) else None

        return reason

    def cost(group: Group, context: PlanningContext) -> float:
        x, _ = ends(group)
        moved = graph.nbytes(x) + layout.nbytes(graph.static_shape(x), graph.element_type(x).itemsize)
        return moving(device.conversion, moved, context)

    def view(group: Group, _context: PlanningContext) -> tuple[View, ...]:
        return (View(*ends(group)),)

    def has(*sides: int) -> Layouts:
        return lambda group, _context: {ends(group)[side]: layout for side in sides}

    for word, side in (("from", 0), ("to", 1)):
        name, padding = f"{backend}.{word}.{layout}", ZERO_WRITER if side else UNDEFINED
        yield Implementation(
            name, OP, backend, rejection(False), no_calls, cost,
            layouts=has(side), memories=where_it_is, padding=padding, domain=DOMAIN,
        )  # fmt: skip
        yield Implementation(
            f"{name}.same", OP, backend, rejection(True), no_calls, views=view,
            layouts=has(side), memories=where_it_is, padding=padding, domain=DOMAIN,
        )  # fmt: skip
    yield Implementation(
        f"{backend}.zero.{layout}", "ZeroLanes", backend, rejection(False), no_calls, cost,
        lambda group, _context: (ends(group),), layouts=has(0, 1), memories=where_it_is,
        padding=ZERO_WRITER, domain=DOMAIN,
    )  # fmt: skip
