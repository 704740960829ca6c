"""Any chain of elementwise nodes as one generated kernel, row-major or on images with channels last.

A thread reads the elements of an index before it writes them, so operands that lie as the result does may
be overwritten. In channels last, an operand that is broadcast or constant is read where it is, by strides.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import Made, numbered, streaming
from app.engine.core import graph
from app.engine.core.group import ELEMENTWISE, Group, of_group
from app.engine.core.registry import Implementation, PlanningContext, Rejection
from app.engine.operators.elementwise import Formula, Operand, formula_of, recipe_of
from app.engine.types.layout import Layout, plain
from app.kernels.cuda import functions
from app.kernels.cuda.elementwise import elementwise
from app.kernels.cuda.geometry import LIMIT, Strided

MOST = 40  # operands; a launch carries 4 KiB of arguments, but registers run out first


@of_group
def _group_rejection(group: Group) -> str | None:
    formula = formula_of(group)
    if isinstance(formula, str):
        return formula
    shape = graph.static_shape(group.outputs[0])
    if math.prod(shape) >= LIMIT:
        return f"the output has {math.prod(shape)} elements, indices reach {LIMIT - 1}"
    count = len(formula.operands) + len(formula.results)
    if count > MOST:
        return f"{count} operands, a kernel takes {MOST}"
    return functions.unsupported(formula.recipe, formula.dtypes)


def _formula(group: Group) -> Formula:
    formula = recipe_of(group.nodes, group.outputs)
    assert not isinstance(formula, str), formula
    return formula


def _follows(operand: Operand) -> bool:
    """True if an operand lies with channels last beside results that do."""
    value = operand.value
    return (
        not graph.is_constant(value)
        and tensor_views.is_image(value)
        and operand.shape == graph.static_shape(value)
    )


def _last_rejection(group: Group, _context: PlanningContext) -> str | None:
    for output in group.outputs:
        if not tensor_views.is_image(output):
            return f"{output.name!r} is no image; channels lie last in images"
    reason = _group_rejection(group)
    if reason is None and not any(_follows(o) for o in _formula(group).operands):
        reason = "no operand is an image"
    return reason


def _operands(group: Group, layout: Layout) -> tuple[Strided, ...]:
    """Operands of the kernel, by the axes of the results as they lie in memory."""
    shape = graph.static_shape(group.outputs[0])
    last = not layout.is_plain
    return tuple(
        tensor_views.in_memory_order(
            tensor_views.read_as(o.value, o.shape, shape, last=last and _follows(o)), layout
        )
        for o in _formula(group).operands
    )


def _outputs(group: Group, layout: Layout) -> list[Strided]:
    last = not layout.is_plain
    return [tensor_views.in_memory_order(tensor_views.strided(v, last=last), layout) for v in group.outputs]


@of_group
def _made(group: Group, layout: Layout) -> Made:
    formula, outputs = _formula(group), _outputs(group, layout)
    shape = layout.physical_shape(graph.static_shape(group.outputs[0]))
    results = [(number, y) for (number, _), y in zip(formula.results, outputs)]
    launches = elementwise(formula.recipe, shape, _operands(group, layout), results)
    return launches, numbered([o.value for o in formula.operands], group.outputs)


def _inplace(group: Group, layout: Layout) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Inputs that are read at the very element that is written, and at no other."""
    found: dict[ir.Value, set[tuple[int, ...]]] = {}
    for operand, read in zip(_formula(group).operands, _operands(group, layout)):
        found.setdefault(operand.value, set()).add(read.strides)
    pairs = []
    for output, own in zip(group.outputs, _outputs(group, layout)):
        shape = layout.physical_shape(graph.static_shape(output))
        for source, strides in found.items():
            same = all(tensor_views.lie_alike(shape, s, own.strides) for s in strides)
            size = graph.nbytes(source) == graph.nbytes(output)
            if same and size and not graph.is_constant(source):
                pairs.append((source, output))
    return tuple(pairs)


def _last_layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
    images = [o.value for o in _formula(group).operands if _follows(o)]
    return tensor_views.lasts((*images, *group.outputs))


def _row(
    name: str, rejection: Rejection, layout_of: Callable[[Group], Layout], **more: Any
) -> Implementation:
    def inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
        return _inplace(group, layout_of(group))

    return streaming(
        name, ELEMENTWISE, rejection, lambda group: _made(group, layout_of(group)), inplace=inplace, **more
    )


def _plain_of(group: Group) -> Layout:
    return plain(len(graph.static_shape(group.outputs[0])))


def _last_of(group: Group) -> Layout:
    return tensor_views.last_of(group.outputs[0])


IMPLEMENTATIONS = (
    _row("cuda.elementwise", lambda group, _context: _group_rejection(group), _plain_of),
    _row("cuda.elementwise_last", _last_rejection, _last_of, layouts=_last_layouts, rank=1),
)
