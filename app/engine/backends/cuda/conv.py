"""Rows of convolutions of images whose channels lie last: products of patches, and depthwise ones.

Images have one or two axes of places; one is seen as the second of two. Pixels must begin at multiples of
16 bytes. Where they do not (three channels of a photograph), the image is copied with a wider pitch first,
out of either layout; where groups do not, the kernel's launches copy it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from app.engine.backends.cuda import dispatch, epilogue, tensor_views
from app.engine.backends.cuda.epilogue import Ending
from app.engine.backends.cuda.epilogue import roles as epilogue_roles
from app.engine.backends.cuda.launch_calls import BACKEND, Array, calls, product_seconds, repacked, seconds
from app.engine.backends.cuda.matmul import precision_rejection
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, LaunchCall, Workspace
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators import conv_geometry
from app.engine.operators.axes import first_input
from app.engine.types.layout import Layout
from app.engine.types.target import Target
from app.kernels.cuda.conv import Conv, conv, packed_weights
from app.kernels.cuda.elementwise import copy
from app.kernels.cuda.gemv import MOST, gemv
from app.kernels.cuda.geometry import Strided
from app.kernels.cuda.product import Product
from app.kernels.cuda.windows import Axis, depthwise
from app.kernels.expressions import Instruction, Recipe

CHANNELS = 1  # the axis of an image


@of_group
def shape_of(group: Group) -> Conv:
    """The convolution that the anchor is; padding as its output's shape tells."""
    window = conv_geometry.of_conv(group)
    (_, h, w), (_, ho, wo) = window.size, window.out
    taps = [len(o) for o in window.offsets[1:]]
    dilations = [(o[1] - o[0]) if len(o) > 1 else 1 for o in window.offsets[1:]]
    before = [-o[0] for o in window.offsets[1:]]
    reach = [
        (out - 1) * s + d * (k - 1) + 1 - size - b
        for out, s, d, k, size, b in zip((ho, wo), window.stride[1:], dilations, taps, (h, w), before)
    ]
    # What lies beyond the last window is no padding.
    after = [max(n, 0) for n in reach]
    return Conv(
        window.batch,
        h,
        w,
        window.groups * window.channels,
        window.groups * window.outputs,
        (taps[0], taps[1]),
        (window.stride[1], window.stride[2]),
        (before[0], before[1], after[0], after[1]),
        (dilations[0], dilations[1]),
        window.groups,
    )


def ending_of(group: Group) -> Ending:
    """The epilogue of a group that `group_rejection` accepts."""
    found = epilogue.read(group, CHANNELS)
    assert not isinstance(found, str)
    return found


def group_rejection(group: Group) -> str | None:
    """Rejection of a convolution of images; None if kernels compute it."""
    reason = tensor_views.not_image(first_input(group)) or tensor_views.not_floats(group)
    if reason is not None:
        return reason
    for value in (group.anchor.inputs[1], graph.input_at(group.anchor, 2)):
        if value is not None and not graph.is_constant(value):
            return f"{value.name!r} changes between runs; this one packs it offline"
    found = tensor_views.empty(group) or epilogue.read(group, CHANNELS)
    return found if isinstance(found, str) else None


def _is_depthwise(shape: Conv) -> bool:
    return shape.groups == shape.ci > 1


def _bias(group: Group) -> Array | None:
    own = graph.constant(graph.input_at(group.anchor, 2))
    return ending_of(group).bias(shape_of(group).co, own)


@dataclass(frozen=True, slots=True)
class Way:
    """One row: a precision, and whether the image is copied first."""

    precision: str
    copied: bool = False
    plain: bool = False  # whether that copy reads a row-major image

    @property
    def name(self) -> str:
        """Name of the implementation."""
        return f"cuda.conv_{self.precision}" + (
            "_of_plain" if self.plain else "_widened" if self.copied else ""
        )


def _needs_pitch(shape: Conv, dtype: str) -> bool:
    """True unless pixels begin at multiples of 16 bytes."""
    return shape.groups == 1 and tensor_views.aligned(shape.ci, dtype) != shape.ci


def _way_rejection(group: Group, context: PlanningContext, way: Way) -> str | None:
    reason = group_rejection(group) or precision_rejection(way.precision, group, context)
    if reason is not None:
        return reason
    shape = shape_of(group)
    needs_pitch = _needs_pitch(shape, element(group.outputs[0]))
    if _is_depthwise(shape):
        return "every channel is a group of its own, which this one would fill up to 16 bytes"
    if needs_pitch and not way.copied:
        return f"{shape.ci} channels, which are no multiple of 16 bytes; one that copies is needed"
    if not needs_pitch and way.copied:
        return "the pixels begin at multiples of 16 bytes as they are, or belong to groups"
    return None


def _cut(group: Group, precision: str, target: Target) -> dispatch.Cut:
    shape = shape_of(group)
    ho, wo = shape.out
    ci, co, pixels = shape.ci // shape.groups, shape.co // shape.groups, shape.n * ho * wo
    tiles, depth = dispatch.offered(precision, ci, target.isa), shape.kernel[0] * shape.kernel[1] * ci
    return dispatch.cut(precision, tiles, pixels, co, depth, shape.groups, target)


def pair(values: Sequence[int], fill: int) -> tuple[int, int]:
    """Numbers of one axis or of two as those of two."""
    first, second = (fill, *values)[-2:]
    return first, second


def _in_rows(weights: Array) -> Array:
    """Weights [a, b, kh, kw] of one axis or of two."""
    a, b, *kernel = weights.shape
    return weights.reshape(a, b, *pair(kernel, 1))


def weights_of(group: Group, pack: Callable[[Array], Array]) -> Constant:
    """The weights that the anchor reads, as `pack` orders float32 ones [a, b, kh, kw]."""
    weights = graph.operand(group.anchor, 1)
    return repacked(weights, lambda w: pack(_in_rows(w).astype(np.float32)).astype(w.dtype))


def widened(group: Group, pixel: int, *, plain: bool) -> tuple[Argument, tuple[LaunchCall, ...]]:
    """The image with a wider pitch from pixel to pixel, and the copy that makes it."""
    x, dtype = first_input(group), element(first_input(group))
    shape, last = graph.static_shape(x), tensor_views.last_of(x)
    source = tensor_views.in_memory_order(tensor_views.strided(x, last=not plain), last)
    target = tensor_views.in_memory_order(Strided(dtype, tensor_views.last_strides(shape, pixel)), last)
    held = Workspace(graph.nbytes(x) // shape[1] * pixel)
    return held, calls(copy(last.physical_shape(shape), source, target, "widen"), {"x0": x, "y0": held})


@of_group
def _lowered(group: Group, way: Way, target: Target) -> tuple[LaunchCall, ...]:
    shape, ending, (y,) = shape_of(group), ending_of(group), group.outputs
    argument: Argument = first_input(group)
    before: tuple[LaunchCall, ...] = ()
    if way.copied:
        pixel = tensor_views.aligned(shape.ci, element(y))
        argument, before = widened(group, pixel, plain=way.plain)
        shape = replace(shape, x_pixel=pixel)
    bias, cut = _bias(group), _cut(group, way.precision, target)
    epilogue = ending.epilogue(element(y), bias=bias is not None)
    launches = conv(shape, way.precision, epilogue, cut.tile, cut.splits)
    weights = weights_of(group, lambda w: packed_weights(w, shape.groups, way.precision))
    roles = {"x": argument, "w": weights, "y": y, **epilogue_roles(ending.residual, bias)}
    return (*before, *calls(launches, roles))


def _seconds(group: Group, context: PlanningContext, way: Way) -> float:
    shape, target = shape_of(group), context.target
    cut = _cut(group, way.precision, target)
    tile = dispatch.offered(way.precision, shape.ci // shape.groups, target.isa)[cut.tile]
    ho, wo = shape.out
    m, n = shape.n * ho * wo, shape.co // shape.groups
    wasted, rate = dispatch.wasted(tile, m, n), dispatch.rate(way.precision, cut.tile)
    time = product_seconds(group, context, cut.blocks, rate, wasted)
    each = shape.ci // shape.groups
    if way.copied or tensor_views.aligned(each, element(first_input(group))) != each:
        time += seconds(context, nbytes=2 * graph.nbytes(first_input(group)) * (2 if way.plain else 1))
    return time + (target.launch if cut.splits > 1 else 0.0)


def layouts_of(plain: bool) -> Callable[[Group, PlanningContext], Mapping[ir.Value, Layout]]:
    """Channels last for what is read pixel by pixel and for what is written."""

    def layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
        values = [v for v in (ending_of(group).residual, *group.outputs) if v is not None]
        image = first_input(group)
        if not plain or image in values:
            values.append(image)
        return tensor_views.lasts(values)

    return layouts


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    return epilogue.over_residual(group, ending_of(group).residual, group.anchor.inputs)


def _row(way: Way) -> Implementation:
    return Implementation(
        way.name,
        "Conv",
        BACKEND,
        lambda group, context: _way_rejection(group, context, way),
        lambda group, context: _lowered(group, way, context.target),
        lambda group, context: _seconds(group, context, way),
        _inplace,
        layouts=layouts_of(way.plain),
        precision=dispatch.TOLD[way.precision],
        rank=dispatch.PRECISIONS.index(way.precision),
    )


# Depthwise: every channel with windows of its own.


def _depthwise_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = group_rejection(group)
    if reason is not None:
        return reason
    shape = shape_of(group)
    if not _is_depthwise(shape):
        return f"{shape.groups} groups of {shape.ci} channels; this one has a group for each"
    return None


def _after(ending: Ending) -> Recipe:
    """Recipe of a result from the sum (0) and the residual (1), where there is one."""
    steps: list[Instruction] = []
    inputs = 1 + (ending.residual is not None)
    value = 0
    if ending.place == "before":
        steps.append(("Add", (0, 1), ()))
        value = inputs
    name, *parameters = ending.activation
    if name:
        op = "Clamp" if name == "clip" else epilogue.FUNCTIONS[str(name)]
        steps.append((op, (value,), tuple(float(p) for p in parameters)))
        value = inputs + len(steps) - 1
    if ending.place == "after":
        steps.append(("Add", (value, 1), ()))
    return tuple(steps)


@of_group
def _depthwise(group: Group) -> tuple[LaunchCall, ...]:
    shape, ending, (y,) = shape_of(group), ending_of(group), group.outputs
    ho, wo = shape.out
    by_axis = ((shape.h, shape.w), shape.kernel, (ho, wo), shape.strides, shape.dilations)
    axes = [Axis(*numbers) for numbers in zip(*by_axis, shape.pads, shape.pads[2:])]
    bias, after = _bias(group), _after(ending)
    launches = depthwise(
        shape.n,
        shape.ci,
        axes,
        element(y),
        multiplier=shape.co // shape.ci,
        bias=bias is not None,
        residual=ending.residual is not None,
        after=after,
    )
    weights = graph.operand(group.anchor, 1)
    roles = {
        "x": first_input(group),
        "w": repacked(weights, lambda w: np.ascontiguousarray(_in_rows(w)[:, 0].transpose(1, 2, 0))),
        "y": y,
        **epilogue_roles(ending.residual, bias),
    }
    if "residual" in roles:
        roles["r"] = roles.pop("residual")
    return calls(launches, roles)


def _depthwise_seconds(group: Group, context: PlanningContext) -> float:
    return product_seconds(group, context, sum(call.units for call in _depthwise(group)))


# Of so few pixels that the weights are all that is read: squeeze and excite.


def _few_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = group_rejection(group)
    if reason is not None:
        return reason
    shape = shape_of(group)
    ho, wo = shape.out
    if not shape.is_product or shape.groups > 1:
        return "is no product of pixels"
    if shape.n * ho * wo > MOST:
        return f"{shape.n * ho * wo} pixels, at most {MOST} are a matter of bandwidth"
    if _needs_pitch(shape, element(group.outputs[0])):
        return f"{shape.ci} channels, which are no multiple of 16 bytes"
    return None


@of_group
def _few(group: Group, processors: int) -> tuple[LaunchCall, ...]:
    shape, ending, (y,) = shape_of(group), ending_of(group), group.outputs
    bias, rows, weights = _bias(group), shape.n * shape.h * shape.w, graph.operand(group.anchor, 1)
    wide = shape.co if ending.residual is not None else 0
    product = Product(rows, shape.co, shape.ci, shape.ci, shape.ci, shape.co, wide)
    epilogue = ending.epilogue(element(y), bias=bias is not None)
    launches = gemv(product, element(y), epilogue, dispatch.WARPS * processors)
    roles = {"a": first_input(group), "b": weights, "y": y, **epilogue_roles(ending.residual, bias)}
    return calls(launches, roles)


def _few_seconds(group: Group, context: PlanningContext) -> float:
    (call,) = _few(group, context.target.cores)
    return product_seconds(group, context, call.units)


IMPLEMENTATIONS = (
    Implementation(
        "cuda.conv_of_few_pixels",
        "Conv",
        BACKEND,
        _few_rejection,
        lambda group, context: _few(group, context.target.cores),
        _few_seconds,
        _inplace,
        layouts=layouts_of(False),
    ),
    *(_row(Way(p)) for p in dispatch.PRECISIONS),
    *(_row(Way(p, copied=True)) for p in dispatch.PRECISIONS),
    *(_row(Way(p, copied=True, plain=True)) for p in dispatch.PRECISIONS),
    Implementation(
        "cuda.conv_depthwise",
        "Conv",
        BACKEND,
        _depthwise_rejection,
        lambda group, _context: _depthwise(group),
        _depthwise_seconds,
        _inplace,
        layouts=layouts_of(False),
    ),
)
