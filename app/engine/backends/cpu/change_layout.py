"""Rows that convert images between row-major memory and blocks or channels last, or fill padded lanes.

ChangeLayout (domain stowplan) keeps the axes, ZeroLanes the blocks. A Transpose to or from channels last
can read or write blocks itself, and moves no element within a block; to or from channels last it is a
view.
"""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from app.engine.backends.cpu import nchwc, strips
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, of_values
from app.engine.backends.cpu.strided import calls, whole_copy
from app.engine.core import graph
from app.engine.core.calls import Call, View
from app.engine.core.group import Group
from app.engine.core.registry import (
    UNDEFINED,
    ZERO_WRITER,
    Cost,
    Implementation,
    Layouts,
    Lower,
    PlanningContext,
    Rejection,
)
from app.engine.core.streams.strips import CallOf, RowMaps, Strip, StripRow
from app.engine.cost.roofline import roofline
from app.engine.memory.rows.geometry import ROW
from app.engine.operators.movement import no_calls, permutation
from app.engine.operators.operands import group_rejection
from app.engine.operators.strides import StridedCopy, strides_of
from app.engine.types.layout import LAST, Layout

PART = 8 * 1024  # byte of a channel that are copied at once; two threads share a single block so
FEWEST = 16  # pixels of channels last that are copied at once: whole cache lines of each block


def _ends(group: Group) -> tuple[ir.Value, ir.Value]:
    x = graph.operand(group.anchor, 0)
    return x, group.anchor.outputs[0]


def _rejection(same: bool, layout_of: nchwc.LayoutOf = nchwc.layout_of) -> Rejection:
    def rejection(group: Group, context: PlanningContext) -> str | None:
        x, y = _ends(group)
        types = nchwc.types_of(layout_of(context))
        reason = nchwc.image_rejection(x, types) or nchwc.image_rejection(y, types)
        if reason is None and graph.shape(x) != graph.shape(y):
            reason = f"changes the shape {graph.shape(x)} to {graph.shape(y)}"
        if reason is None and same and not layout_of(context).is_same_bytes(graph.static_shape(x)):
            reason = f"the layouts of {list(graph.static_shape(x))} differ; a view is the same bytes"
        return reason

    return rejection


def _layouts(index: int, layout_of: nchwc.LayoutOf = nchwc.layout_of) -> Layouts:
    def layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
        return {_ends(group)[index]: layout_of(context)}

    return layouts


def _lower(kernel: str) -> Lower:
    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        x, y = _ends(group)
        batch, channels, height, width = graph.static_shape(x)
        if graph.elements(x) == 0:
            return ()
        lanes, blocks = context.target.vector_lanes, nchwc.blocks_of(channels, context)
        pixels, part = height * width, PART // 4 // lanes * lanes
        operands: Operands = (*of_values(x, y), blocks, channels, pixels, part)
        return (kernel_call(kernel, operands, batch * blocks * -(-pixels // part), (lanes,)),)

    return lower


def _strip_reads(group: Group, _context: PlanningContext) -> RowMaps:
    return ((_ends(group)[0], ROW),)


def _strip_lower(kernel: str) -> Callable[[Group, PlanningContext, Strip], CallOf]:
    def lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
        _, channels, height, width = graph.static_shape(_ends(group)[0])
        x, y, beside = strips.places_of(group, strip, height)
        sizes: Operands = (nchwc.blocks_of(channels, context), channels, height, width)
        before: Operands = (*of_type("float32*", x.argument, y.argument), *sizes)
        rings = strips.rings_of(strip, x, y, beside)
        return strips.calls_of(kernel, before, strip, rings, (), (context.target.vector_lanes,))

    return lower


def _last_lower(side: int) -> Lower:
    """A copy between row-major and channels last; the image that lies so is the input (side 0) or output."""

    def lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
        x, y = _ends(group)
        shape = graph.static_shape(x)
        plain, last = strides_of(shape), strides_of(LAST.physical_shape(shape))
        there = tuple(last[LAST.order.index(axis)] for axis in range(4))
        strides = (there, plain) if side == 0 else (plain, there)
        return calls(StridedCopy(shape, *strides), graph.element_type(x).itemsize, x, y)

    return lower


def _cost(side: int, layout_of: nchwc.LayoutOf = nchwc.layout_of) -> Cost:
    def cost(group: Group, context: PlanningContext) -> float:
        image = _ends(group)[side]
        width = graph.element_type(image).itemsize
        wide = layout_of(context).nbytes(graph.static_shape(image), width)
        return roofline(context.target, flops=0.0, nbytes=graph.nbytes(image) + wide, threads=context.threads)

    return cost


def _view(group: Group, _context: PlanningContext) -> tuple[View, ...]:
    return (View(*_ends(group)),)


def _transpose_rejection(side: int, perm: tuple[int, ...]) -> Rejection:
    def rejection(group: Group, _context: PlanningContext) -> str | None:
        image = _ends(group)[side]
        reason = group_rejection(group) or nchwc.image_rejection(image)
        if reason is None and permutation(group.anchor) != perm:
            reason = (
                f"permutes axes by {permutation(group.anchor)}; blocks and channels last differ by {perm}"
            )
        if reason is None and graph.elements(image) == 0:
            reason = "the image has no elements"
        return reason

    return rejection


def _lower_transpose(side: int, kernel: str) -> Lower:
    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        ends = _ends(group)
        batch, channels, height, width = graph.static_shape(ends[side])
        pixels, part = height * width, max(PART // (4 * channels), FEWEST)
        operands: Operands = (*of_values(*ends), nchwc.blocks_of(channels, context), channels, pixels, part)
        units, lanes = batch * -(-pixels // part), context.target.vector_lanes
        return (kernel_call(kernel, operands, units, (lanes,)),)

    return lower


def _transpose(name: str, kernel: str, side: int, perm: tuple[int, ...]) -> Implementation:
    """The row of a Transpose whose image, its input (side 0) or output, is blocked."""
    return Implementation(
        name, "Transpose", "numba-cpu", _transpose_rejection(side, perm), _lower_transpose(side, kernel),
        cost=_cost(side), layouts=_layouts(side), padding=ZERO_WRITER if side else UNDEFINED,
    )  # fmt: skip


def _transpose_view(name: str, side: int, perm: tuple[int, ...]) -> Implementation:
    """The row of a Transpose whose image, its input (side 0) or output, has channels last."""
    return Implementation(
        name, "Transpose", "numba-cpu", _transpose_rejection(side, perm), no_calls, views=_view,
        layouts=_layouts(side, nchwc.last_of), rank=2,
    )  # fmt: skip


def _transpose_copy(name: str, side: int, perm: tuple[int, ...]) -> Implementation:
    """The same where both ends have memory of their own."""
    return Implementation(
        name, "Transpose", "numba-cpu", _transpose_rejection(side, perm),
        lambda group, _context: whole_copy(*_ends(group)),
        cost=_cost(side, nchwc.last_of), layouts=_layouts(side, nchwc.last_of), rank=3,
    )  # fmt: skip


def _rows(
    name: str, lower: Lower, side: int, layout_of: nchwc.LayoutOf = nchwc.layout_of
) -> tuple[Implementation, Implementation]:
    def row(name: str, same: bool, lower: Lower, **more: Callable[..., object]) -> Implementation:
        return Implementation(
            name, "ChangeLayout", "numba-cpu", _rejection(same, layout_of), lower,
            layouts=_layouts(side, layout_of), padding=ZERO_WRITER if side else UNDEFINED, domain="stowplan",
            **more,  # type: ignore[arg-type]  # cost or views
        )  # fmt: skip

    return (
        row(name, False, lower, cost=_cost(side, layout_of)),
        row(f"{name}.same", True, no_calls, views=_view),
    )


def _zero_rejection(group: Group, context: PlanningContext) -> str | None:
    x, y = _ends(group)
    reason = nchwc.image_rejection(x) or nchwc.image_rejection(y)
    if reason is None and graph.static_shape(x)[1] % context.target.vector_lanes == 0:
        reason = f"{x.name!r} has no padded lanes"
    return reason


def _zero_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = _ends(group)
    batch, channels, height, width = graph.static_shape(x)
    lanes, blocks = context.target.vector_lanes, nchwc.blocks_of(channels, context)
    sizes = (blocks, height * width, lanes, channels % lanes)
    operands: Operands = (*of_values(x, y), ("int64", x), ("int64", y), *sizes)
    return (kernel_call("app.kernels.cpu.nchwc_copy:zero_lanes", operands, batch * blocks),)


def _zero_cost(group: Group, context: PlanningContext) -> float:
    """Zero the padded lanes of the last block of each image, in place."""
    batch, _, height, width = graph.static_shape(_ends(group)[0])
    nbytes = 8.0 * batch * height * width * context.target.vector_lanes
    return roofline(context.target, flops=0.0, nbytes=nbytes, threads=context.threads)


STRIP_ROWS = tuple(
    StripRow(
        f"layout.{name}", strips.batch_rejection, _strip_reads, strips.no_scratch,
        _strip_lower(f"app.kernels.cpu.nchwc_copy:emit_{name}_strip"), shared=True,
    )
    for name in ("block", "unblock")
)  # fmt: skip


IMPLEMENTATIONS = (
    Implementation(
        "layout.zero_lanes", "ZeroLanes", "numba-cpu", _zero_rejection, _zero_lower, _zero_cost,
        lambda group, _context: (_ends(group),),
        layouts=lambda group, context: dict.fromkeys(_ends(group), nchwc.layout_of(context)),
        padding=ZERO_WRITER, domain="stowplan",
    ),
    _transpose("transpose.unblock", "app.kernels.cpu.nchwc_copy:emit_unblock_last", 0, (0, 2, 3, 1)),
    _transpose("transpose.block", "app.kernels.cpu.nchwc_copy:emit_block_last", 1, (0, 3, 1, 2)),
    _transpose_view("transpose.from_last", 0, (0, 2, 3, 1)),
    _transpose_view("transpose.to_last", 1, (0, 3, 1, 2)),
    _transpose_copy("transpose.from_last.copied", 0, (0, 2, 3, 1)),
    _transpose_copy("transpose.to_last.copied", 1, (0, 3, 1, 2)),
    *_rows("layout.block", _lower("app.kernels.cpu.nchwc_copy:emit_block"), 1),
    *_rows("layout.unblock", _lower("app.kernels.cpu.nchwc_copy:emit_unblock"), 0),
    *_rows("layout.to_last", _last_lower(1), 1, nchwc.last_of),
    *_rows("layout.from_last", _last_lower(0), 0, nchwc.last_of),
)  # fmt: skip
