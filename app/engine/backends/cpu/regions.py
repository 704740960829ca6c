"""Rows of RoiAlign and MaxRoiPool, which read regions of images."""

import numpy as np

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.axis_kernels import takes_floats
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_type, of_values, typed_call
from app.engine.backends.cpu.nchwc import LayoutOf
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Implementation, Layouts, Lower, PlanningContext
from app.engine.operators.operands import data


@after(takes_floats)
def _image_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    if len(graph.static_shape(data(node))) != 4:
        return f"regions of images of rank 4, the input has rank {len(graph.static_shape(data(node)))}"
    if graph.dtype(graph.operand(node, 1)) != graph.dtype(data(node)):
        return f"regions of {graph.dtype(graph.operand(node, 1))} in images of {graph.dtype(data(node))}"
    return "the image is empty" if 0 in graph.static_shape(data(node)) else None


@after(_image_rejection)
def _align_rejection(group: Group, _context: PlanningContext) -> str | None:
    images = graph.operand(group.anchor, 2)
    if str(graph.dtype(images)) != "int64":
        return f"batch_indices of {graph.dtype(images)}, expected int64"
    mode = graph.attribute(group.anchor, "mode", "avg").lower()
    return None if mode in ("avg", "max") else f"mode {mode!r} is unknown"


def _is_max(group: Group) -> bool:
    return bool(graph.attribute(group.anchor, "mode", "avg").lower() == "max")


def _align_operands(group: Group) -> tuple[tuple[Operand, ...], tuple[int, ...]]:
    """Values with scales, and the numbers that come last."""
    node = group.anchor
    x, y = data(node), node.outputs[0]
    batch, channels, h, w = graph.static_shape(x)
    # Before version 16 there was no attribute, and no half pixel.
    is_old = graph.owner(node).opset_imports.get("", 22) < 16
    default = "output_half_pixel" if is_old else "half_pixel"
    place = graph.attribute(node, "coordinate_transformation_mode", default)
    offset = 0.5 if place.lower() == "half_pixel" else 0.0
    scales = np.array([graph.attribute(node, "spatial_scale", 1.0), offset], graph.element_type(x))
    numbers = (batch, channels, h, w, *graph.static_shape(y)[2:], graph.attribute(node, "sampling_ratio", 0))
    values = of_values(x, graph.operand(node, 1), graph.operand(node, 2), y)
    return (*values, (f"{scales.dtype}*", Constant(scales))), numbers


def _align_scratch(group: Group) -> tuple[Operand, ...]:
    kind = graph.element_type(data(group.anchor))
    h, w = graph.static_shape(data(group.anchor))[2:]
    oh, ow = graph.static_shape(group.anchor.outputs[0])[2:]
    return (
        ("int64*", Workspace(16 * (oh + ow), per_thread=True)),
        (f"{kind}*", Workspace((oh * h + ow * w) * kind.itemsize, per_thread=True)),
    )


def _align_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    y = group.anchor.outputs[0]
    if graph.elements(y) == 0:
        return ()
    values, numbers = _align_operands(group)
    regions = graph.static_shape(y)[0]
    if _is_max(group):
        return (kernel_call("app.kernels.cpu.regions:roi_align_max", (*values, *numbers), regions),)
    operands: Operands = (*values, *_align_scratch(group), *numbers)
    return (typed_call("app.kernels.cpu.regions:roi_align", operands, regions),)


@after(_align_rejection)
def _vectors_rejection(group: Group, _context: PlanningContext) -> str | None:
    return nchwc.images_rejection(group, data(group.anchor), group.anchor.outputs[0])


@after(_vectors_rejection)
def _last_rejection(group: Group, context: PlanningContext) -> str | None:
    return nchwc.narrow_rejection(data(group.anchor), context)


def _vectors_lower(layout_of: LayoutOf) -> Lower:
    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        x, y = data(group.anchor), group.anchor.outputs[0]
        values, (batch, _, *numbers) = _align_operands(group)
        images = nchwc.vectors(graph.static_shape(x), graph.static_shape(y), layout_of, context)
        kernel, scratch = "roi_align", _align_scratch(group)
        if _is_max(group):
            kernel, scratch = "roi_align_largest", ()
        operands: Operands = (
            *(*values, *scratch, images.table),
            *(*images.extents, images.step, batch, images.count, *numbers),
        )
        static, address = (context.target.vector_lanes,), f"app.kernels.cpu.regions:{kernel}"
        regions = graph.static_shape(y)[0]
        if _is_max(group):
            return (kernel_call(address, operands, regions, static),)
        return (typed_call(address, operands, regions, static),)

    return lower


def _align_work(group: Group) -> float:
    ratio = graph.attribute(group.anchor, "sampling_ratio", 0) or 2
    return 2.0 * graph.elements(group.anchor.outputs[0]) * (ratio + 1) ** 2


def _align_cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, _align_work(group), 0.02)


def _vectors_cost(group: Group, context: PlanningContext) -> float:
    """Seconds of whole vectors of channels."""
    channels = graph.static_shape(data(group.anchor))[1]
    vectors = -(-channels // context.target.vector_lanes)
    wasted = vectors * context.target.vector_lanes / max(channels, 1)
    return group_roofline(group, context, _align_work(group) * wasted, 0.13 if _is_max(group) else 0.2)


def _images(layout: LayoutOf) -> Layouts:
    """The image and the regions in this layout."""
    return lambda group, context: dict.fromkeys((data(group.anchor), group.outputs[0]), layout(context))


def _pool_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, rois, y = data(node), graph.operand(node, 1), node.outputs[0]
    kind = graph.element_type(x)
    batch, channels, h, w = graph.static_shape(x)
    regions, _, oh, ow = graph.static_shape(y)
    scale = Constant(np.array([graph.attribute(node, "spatial_scale", 1.0)], kind))
    operands: Operands = (
        *of_values(x, rois, y),
        *of_type(f"{kind}*", scale, Workspace(w * kind.itemsize, per_thread=True)),
        ("int64*", Workspace(8 * 2 * (oh + ow), per_thread=True)),
        *(batch, channels, h, w, oh, ow),
    )
    units = regions * channels if oh * ow else 0
    return (kernel_call("app.kernels.cpu.regions:max_roi_pool", operands, units, takes_thread=True),)


def _pool_cost(group: Group, context: PlanningContext) -> float:
    plane = graph.static_shape(data(group.anchor))
    regions, channels = graph.static_shape(group.anchor.outputs[0])[:2]
    return group_roofline(group, context, regions * channels * plane[2] * plane[3] / 4.0, 0.02)


IMPLEMENTATIONS = (
    Implementation(
        "roi_align.spans", "RoiAlign", "numba-cpu", _align_rejection, _align_lower, _align_cost
    ),
    *(
        Implementation(
            name, "RoiAlign", "numba-cpu", rejection, _vectors_lower(layout), _vectors_cost,
            layouts=_images(layout), padding=LANEWISE,
        )
        for name, rejection, layout in (
            ("roi_align.blocked", _vectors_rejection, nchwc.layout_of),
            ("roi_align.last", _last_rejection, nchwc.last_of),
        )
    ),
    Implementation("max_roi_pool.bins", "MaxRoiPool", "numba-cpu", _image_rejection, _pool_lower, _pool_cost),
)  # fmt: skip
