"""Any chain of elementwise nodes as one generated kernel, on row-major and on channel-blocked tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu import blocked
from app.engine.backends.numba_cpu.recipes import Formula, Operand, recipe_of
from app.engine.cost import roofline
from app.engine.layout import Layout, to_physical
from app.engine.plan import ELEMENTWISE, Argument, Call, Constant, Group, KernelCall, Workspace
from app.engine.registry import LANEWISE, Implementation, Known
from app.kernels.cpu.elementwise import PART, collapsed
from app.kernels.cpu.expressions import flops, stored

MOST_ARGUMENTS = 48  # addresses and extents that a kernel can take
EFFICIENCY = 0.3  # of the peak, with the rough counts of operations in `expressions`


def _unless(group: Group, _known: Known) -> str | None:
    formula = recipe_of(group.nodes, group.outputs)
    if isinstance(formula, str):
        return formula
    shape = graph.static_shape(group.outputs[0])
    for value in group.outputs:
        if graph.static_shape(value) != shape:
            return f"outputs {group.outputs[0].name!r} and {value.name!r} differ in shape"
    try:
        broadcast = np.broadcast_shapes(*(operand.shape for operand in formula.operands))
    except ValueError as mismatch:
        return f"operands do not broadcast: {mismatch}"
    if broadcast != shape:
        return f"operands broadcast to {list(broadcast)}, the output is {list(shape)}"
    count = len(_arguments(group, formula))
    return f"{count} arguments, a kernel takes {MOST_ARGUMENTS}" if count > MOST_ARGUMENTS else None


def _formula(group: Group) -> Formula:
    formula = recipe_of(group.nodes, group.outputs)
    assert not isinstance(formula, str), formula
    return formula


def _arguments(group: Group, formula: Formula) -> tuple[Argument, ...]:
    shape = graph.static_shape(group.outputs[0])
    extents, _ = collapsed(shape, [operand.shape for operand in formula.operands])
    return (*(operand.value for operand in formula.operands), *group.outputs, *extents)


def _lower(group: Group, _known: Known) -> tuple[Call, ...]:
    formula = _formula(group)
    shape = graph.static_shape(group.outputs[0])
    extents, patterns = collapsed(shape, [operand.shape for operand in formula.operands])
    dtypes = (*formula.dtypes, *(dtype for _, dtype in formula.results))
    call = KernelCall(
        "app.kernels.cpu.elementwise:emit",
        (*(f"{stored(dtype)}*" for dtype in dtypes), *["int64"] * len(extents)),
        _arguments(group, formula),
        units=math.prod(shape),
        static=(formula.recipe, formula.dtypes, patterns, formula.results),
    )
    return (call,)


def _cost(group: Group, known: Known) -> float:
    return roofline(
        known.target,
        flops=flops(_formula(group).recipe) * graph.elements(group.outputs[0]),
        nbytes=sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)),
        efficiency=EFFICIENCY,
        threads=known.threads,
    )


def _inplace(group: Group, _known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Inputs that are read at the very index that is written, and at no other.

    An iteration reads all its operands before it writes any result, so any of these pairs may
    hold, or several at once.
    """
    aligned: dict[ir.Value, set[tuple[int, ...]]] = {}
    for operand in _formula(group).operands:
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
    """An operand as it lies in memory beside blocked results.

    Attributes:
        argument: its memory.
        shape: [batch, blocks, height, width, lanes] of it, with 1 where it does not vary.
        place: how it is read, see `app.kernels.cpu.elementwise.emit_lanes`; `other` if in another way.
        is_blocked: whether it is a value whose layout is blocked.
    """

    argument: Argument
    shape: tuple[int, ...]
    place: str
    is_blocked: bool = False


def _physical(operand: Operand, shape: tuple[int, ...], known: Known) -> Physical | str:
    """The operand of an image of this shape; or why it cannot be read beside blocked results."""
    value, layout = operand.value, blocked.layout_of(known)
    wide = (1,) * (4 - len(operand.shape)) + operand.shape
    if math.prod(wide) == 1:
        return Physical(value, (1,) * 5, "scalar")
    if wide[1] == 1 != shape[1]:
        return Physical(value, (*wide, 1), "other")
    if graph.dtype(value) != np.float32:
        return f"operand {value.name!r} is {graph.dtype(value)}; blocked layouts are for float32"
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
    return Physical(value, layout.physical_shape(wide), place, is_blocked=True)


def _physicals(group: Group, known: Known) -> tuple[Physical, ...] | str:
    shape = graph.static_shape(group.outputs[0])
    found = []
    for operand in _formula(group).operands:
        physical = _physical(operand, shape, known)
        if isinstance(physical, str):
            return physical
        found.append(physical)
    return tuple(found)


def _read_physicals(group: Group, known: Known) -> tuple[Physical, ...]:
    physicals = _physicals(group, known)
    assert not isinstance(physicals, str), physicals
    return physicals


def _blocked_unless(group: Group, known: Known) -> str | None:
    for output in group.outputs:
        reason = blocked.image_refusal(output)
        if reason is not None:
            return reason
    reason = _unless(group, known)
    if reason is not None:
        return reason
    if graph.elements(group.outputs[0]) == 0:
        return "the output has no elements"
    physicals = _physicals(group, known)
    if isinstance(physicals, str):
        return physicals
    if not any(p.is_blocked for p in physicals):
        return "no operand is an image of all channels"
    count = len(physicals) + len(group.outputs) + 5
    return f"{count} arguments, a kernel takes {MOST_ARGUMENTS}" if count > MOST_ARGUMENTS else None


def _blocked_lower(group: Group, known: Known) -> tuple[Call, ...]:
    formula, physicals = _formula(group), _read_physicals(group, known)
    shape = blocked.layout_of(known).physical_shape(graph.static_shape(group.outputs[0]))
    dtypes = (*formula.dtypes, *(dtype for _, dtype in formula.results))
    pointers = tuple(f"{stored(dtype)}*" for dtype in dtypes)
    memory = (*(p.argument for p in physicals), *group.outputs)
    places = tuple(p.place for p in physicals)
    by_lane = sum(place in ("channel", "plane") for place in places)
    if by_lane and "other" not in places:
        batch, blocks, *run = shape
        call = KernelCall(
            "app.kernels.cpu.elementwise:emit_lanes",
            (*pointers, "float32*", "int64", "int64"),
            (*memory, Workspace(by_lane * PART * 4, per_thread=True), blocks, math.prod(run)),
            units=batch * blocks * -(-math.prod(run) // PART),
            static=(known.target.vector_lanes, formula.recipe, formula.dtypes, places, formula.results),
            takes_thread=True,
        )
        return (call,)
    extents, patterns = collapsed(shape, [p.shape for p in physicals])
    call = KernelCall(
        "app.kernels.cpu.elementwise:emit",
        (*pointers, *["int64"] * len(extents)),
        (*memory, *extents),
        units=math.prod(shape),
        static=(formula.recipe, formula.dtypes, patterns, formula.results),
    )
    return (call,)


def _blocked_layouts(group: Group, known: Known) -> Mapping[ir.Value, Layout]:
    images = [p.argument for p in _read_physicals(group, known) if p.is_blocked]
    return {v: blocked.layout_of(known) for v in (*images, *group.outputs) if isinstance(v, ir.Value)}


def _blocked_cost(group: Group, known: Known) -> float:
    shape = graph.static_shape(group.outputs[0])
    wide = blocked.layout_of(known).elements(shape) / max(math.prod(shape), 1)
    return roofline(
        known.target,
        flops=flops(_formula(group).recipe) * math.prod(shape) * wide,
        nbytes=wide * sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)),
        efficiency=EFFICIENCY,
        threads=known.threads,
    )


def _blocked_inplace(group: Group, known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Images of the results' shape that are read in no other way."""
    places: dict[ir.Value, set[str]] = {}
    for operand, physical in zip(_formula(group).operands, _read_physicals(group, known)):
        if physical.is_blocked:
            places.setdefault(operand.value, set()).add(physical.place)
    return tuple(
        (source, output) for output in group.outputs for source, found in places.items() if found == {"same"}
    )


IMPLEMENTATIONS = (
    Implementation("elementwise.generated", ELEMENTWISE, "numba-cpu", _unless, _lower, _cost, _inplace),
    Implementation(
        "elementwise.blocked",
        ELEMENTWISE,
        "numba-cpu",
        _blocked_unless,
        _blocked_lower,
        _blocked_cost,
        _blocked_inplace,
        layouts=_blocked_layouts,
        padding=LANEWISE,
    ),
)
