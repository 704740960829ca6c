"""Any chain of elementwise nodes as one generated kernel, row-major or on images in other layouts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.backends.cpu import nchwc, strips
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, typed_call
from app.engine.backends.cpu.rows import group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall, Workspace
from app.engine.core.group import ELEMENTWISE, Group, of_group
from app.engine.core.registry import LANEWISE, Implementation, PlanningContext
from app.engine.core.streams.strips import CallOf, RowsPlace, Strip, StripRow
from app.engine.memory.rows.geometry import ROW
from app.engine.operators.elementwise import Formula, Operand, formula_of, recipe_of
from app.engine.types.layout import Layout, to_physical
from app.kernels.cpu.elementwise import PART, Pattern, collapsed
from app.kernels.expressions import flops, stored

MOST_ARGUMENTS = 48  # addresses and extents that a kernel can take
EFFICIENCY = 0.3  # of the peak, with the rough counts of operations in `expressions`


@of_group
def _plain_rejection(group: Group) -> str | None:
    formula = formula_of(group)
    if isinstance(formula, str):
        return formula
    count = len(_arguments(group, formula))
    return f"{count} arguments, a kernel takes {MOST_ARGUMENTS}" if count > MOST_ARGUMENTS else None


@of_group
def formula_in(group: Group) -> Formula:
    """The formula of a group that was not rejected."""
    formula = recipe_of(group.nodes, group.outputs)
    assert not isinstance(formula, str), formula
    return formula


def _arguments(group: Group, formula: Formula) -> tuple[Argument, ...]:
    shape = graph.static_shape(group.outputs[0])
    extents, _ = collapsed(shape, [operand.shape for operand in formula.operands])
    return (*(operand.value for operand in formula.operands), *group.outputs, *extents)


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    formula = formula_in(group)
    shape = graph.static_shape(group.outputs[0])
    memory = (*(operand.value for operand in formula.operands), *group.outputs)
    return (applied(formula, memory, shape, [operand.shape for operand in formula.operands]),)


def applied(
    formula: Formula, memory: Sequence[Argument], shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]]
) -> KernelCall:
    """The call that applies a formula to operands of these `shapes`; `memory` is theirs, then of results."""
    extents, patterns = collapsed(shape, shapes)
    return mapped(formula, memory, extents, patterns)


def mapped(
    formula: Formula, memory: Sequence[Argument], extents: tuple[int, ...], patterns: tuple[Pattern, ...]
) -> KernelCall:
    """The call that applies a formula along axes of these extents, each operand in its pattern."""
    operands: Operands = (*zip(_pointers(formula), memory, strict=True), *extents)
    static = (formula.recipe, formula.dtypes, patterns, formula.results)
    return kernel_call("app.kernels.cpu.elementwise:emit", operands, math.prod(extents), static)


def _pointers(formula: Formula) -> tuple[str, ...]:
    dtypes = (*formula.dtypes, *(dtype for _, dtype in formula.results))
    return tuple(f"{stored(dtype)}*" for dtype in dtypes)


def _cost(group: Group, context: PlanningContext) -> float:
    computed = flops(formula_in(group).recipe) * graph.elements(group.outputs[0])
    return group_roofline(group, context, computed, EFFICIENCY)


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Inputs that are read at the very index that is written, and at no other.

    An iteration reads all its operands before it writes any result, so any of these pairs may
    hold, or several at once.
    """
    aligned: dict[ir.Value, set[tuple[int, ...]]] = {}
    for operand in formula_in(group).operands:
        aligned.setdefault(operand.value, set()).add(operand.shape)
    return tuple(
        (source, output)
        for output in group.outputs
        for source, shapes in aligned.items()
        if not graph.is_constant(source)
        and all(math.prod(shape) == graph.elements(output) for shape in shapes)
        and graph.nbytes(source) == graph.nbytes(output)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Physical:
    """An operand as it lies in memory beside results in a layout of their own.

    Attributes:
        argument: its memory.
        shape: of it in memory, with 1 where it does not vary.
        place: how it is read, see `app.kernels.cpu.elementwise.emit_lanes`; `other` if in another way.
        follows: whether it is a value that lies as the results do.
    """

    argument: Argument
    shape: tuple[int, ...]
    place: str
    follows: bool = False


def _physical(operand: Operand, shape: tuple[int, ...], layout: Layout) -> Physical | str:
    """The operand of an image of this shape; or why it cannot be read beside results in this layout."""
    value = operand.value
    wide = (1,) * (4 - len(operand.shape)) + operand.shape
    if math.prod(wide) == 1:
        return Physical(value, (1,), "scalar")
    if wide[1] == 1 != shape[1]:  # channels lie outermost or innermost, where there is one
        return Physical(value, (*(wide[axis] for axis in layout.order), *(1 for _ in layout.blocks)), "other")
    reason = nchwc.type_rejection(value, nchwc.types_of(layout))
    if reason is not None:
        return reason
    place = "other"
    if wide == shape:
        place = "same"
    elif wide[2:] == (1, 1):
        place = "channel" if wide[0] == 1 else "plane"
    array = graph.constant(value)
    if array is not None:
        packed = Constant(to_physical(array.reshape(wide), layout), value.name or "")
        return Physical(packed, layout.physical_shape(wide), place)
    if graph.static_shape(value) != wide:
        return f"operand {value.name!r} of shape {list(operand.shape)} is no image and changes between runs"
    return Physical(value, layout.physical_shape(wide), place, follows=True)


@of_group
def _physicals(group: Group, layout: Layout) -> tuple[Physical, ...] | str:
    shape = graph.static_shape(group.outputs[0])
    found = []
    for operand in formula_in(group).operands:
        physical = _physical(operand, shape, layout)
        if isinstance(physical, str):
            return physical
        found.append(physical)
    return tuple(found)


def _read_physicals(group: Group, layout: Layout) -> tuple[Physical, ...]:
    physicals = _physicals(group, layout)
    assert not isinstance(physicals, str), physicals
    return physicals


def _image_rejection(group: Group, layout: Layout) -> str | None:
    for output in group.outputs:
        reason = nchwc.image_rejection(output, nchwc.types_of(layout))
        if reason is not None:
            return reason
    reason = _plain_rejection(group)
    if reason is not None:
        return reason
    if graph.elements(group.outputs[0]) == 0:
        return "the output has no elements"
    physicals = _physicals(group, layout)
    if isinstance(physicals, str):
        return physicals
    if not any(p.follows for p in physicals):
        return "no operand is an image of all channels"
    count = len(physicals) + len(group.outputs) + 5
    return f"{count} arguments, a kernel takes {MOST_ARGUMENTS}" if count > MOST_ARGUMENTS else None


def _image_lower(group: Group, context: PlanningContext, layout: Layout) -> tuple[Call, ...]:
    formula, physicals = formula_in(group), _read_physicals(group, layout)
    shape = layout.physical_shape(graph.static_shape(group.outputs[0]))
    memory = (*(p.argument for p in physicals), *group.outputs)
    places = tuple(p.place for p in physicals)
    by_lane = sum(place in ("channel", "plane") for place in places)
    if layout.blocks and by_lane and "other" not in places:
        batch, blocks, *run = shape
        scratch = "float32*", Workspace(by_lane * PART * 4, per_thread=True)
        operands: Operands = (
            *zip(_pointers(formula), memory, strict=True),
            *(scratch, blocks, math.prod(run)),
        )
        units = batch * blocks * -(-math.prod(run) // PART)
        static = (context.target.vector_lanes, formula.recipe, formula.dtypes, places, formula.results)
        return (typed_call("app.kernels.cpu.elementwise:emit_lanes", operands, units, static),)
    return (applied(formula, memory, shape, [p.shape for p in physicals]),)


def _strip_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a chain on blocked images is not computed in strips."""
    if (reason := strips.batch_rejection(group, context)) is not None:
        return reason
    if len(group.outputs) > 1:
        return f"{len(group.outputs)} results; a strip writes one"
    physicals = _read_physicals(group, nchwc.layout_of(context))
    images = [p for p in physicals if p.place == "same"]
    if any(p.place == "other" for p in physicals) or any(not p.follows for p in images):
        return "an operand varies along rows or columns and is no image"
    return f"{len(images)} images; a strip reads one or two" if len(images) not in (1, 2) else None


def _strip_images(group: Group, context: PlanningContext) -> list[ir.Value]:
    physicals = _read_physicals(group, nchwc.layout_of(context))
    return [p.argument for p in physicals if p.place == "same" and isinstance(p.argument, ir.Value)]


def _strip_scratch(group: Group, context: PlanningContext, _rows: int) -> int:
    by_lane = sum(p.place in ("channel", "plane") for p in _read_physicals(group, nchwc.layout_of(context)))
    return by_lane * PART * 4 * context.threads


def _strip_lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    formula, physicals = formula_in(group), _read_physicals(group, nchwc.layout_of(context))
    (output,), images = group.outputs, _strip_images(group, context)
    _, channels, rows, columns = graph.static_shape(output)
    lanes, nothing = context.target.vector_lanes, RowsPlace(output, 0, rows, False, 0, 0)
    x, *second = (strip.places[v] for v in images)
    rings = strips.rings_of(strip, x, strip.places[output], *(second or [nothing]))
    pointers = zip(_pointers(formula), physicals)  # the last pointer is that of the result
    before: Operands = (
        *of_type("float32*", x.argument, strip.places[output].argument),
        *((pointer, p.argument) for pointer, p in pointers if p.place != "same"),
        *(nchwc.blocks_of(channels, context), rows, columns * lanes),
    )
    after = of_type("float32*", strip.memory, *(place.argument for place in second))
    places = tuple(p.place for p in physicals)
    static = (lanes, formula.recipe, formula.dtypes, places, formula.results)
    return strips.calls_of("app.kernels.cpu.elementwise:emit_strip", before, strip, rings, after, static)


def _image_layouts(group: Group, layout: Layout) -> Mapping[ir.Value, Layout]:
    images = [p.argument for p in _read_physicals(group, layout) if p.follows]
    return {v: layout for v in (*images, *group.outputs) if isinstance(v, ir.Value)}


def _image_cost(group: Group, context: PlanningContext, layout: Layout) -> float:
    shape = graph.static_shape(group.outputs[0])
    wide = layout.elements(shape) / max(math.prod(shape), 1)
    computed = flops(formula_in(group).recipe) * math.prod(shape) * wide
    return group_roofline(group, context, computed, EFFICIENCY, wide * total_bytes(group))


def _image_inplace(group: Group, layout: Layout) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Images of the results' shape, and elements of their size, that are read in no other way."""
    places: dict[ir.Value, set[str]] = {}
    for operand, physical in zip(formula_in(group).operands, _read_physicals(group, layout)):
        if physical.follows:
            places.setdefault(operand.value, set()).add(physical.place)
    return tuple(
        (source, output)
        for output in group.outputs
        for source, found in places.items()
        if found == {"same"} and graph.nbytes(source) == graph.nbytes(output)
    )


def _of_images(name: str, layout_of: nchwc.LayoutOf, rank: int) -> Implementation:
    """The row over images in a layout."""
    return Implementation(
        name,
        ELEMENTWISE,
        "numba-cpu",
        lambda group, context: _image_rejection(group, layout_of(context)),
        lambda group, context: _image_lower(group, context, layout_of(context)),
        lambda group, context: _image_cost(group, context, layout_of(context)),
        lambda group, context: _image_inplace(group, layout_of(context)),
        layouts=lambda group, context: _image_layouts(group, layout_of(context)),
        padding=LANEWISE,
        rank=rank,
    )


STRIP_ROWS = (
    StripRow(
        "elementwise.blocked",
        _strip_rejection,
        lambda group, context: tuple((v, ROW) for v in _strip_images(group, context)),
        _strip_scratch,
        _strip_lower,
        shared=True,
    ),
)

IMPLEMENTATIONS = (
    Implementation(
        "elementwise.generated",
        ELEMENTWISE,
        "numba-cpu",
        lambda group, _context: _plain_rejection(group),
        _lower,
        _cost,
        _inplace,
    ),
    _of_images("elementwise.blocked", nchwc.layout_of, 0),
    _of_images("elementwise.last", nchwc.last_of, 2),
)
