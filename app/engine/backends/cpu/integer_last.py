"""Rows of integer convolutions over images whose channels lie last (NHWC), as they come and as they leave."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, size_operand
from app.engine.backends.cpu.integer import (
    CONVOLUTIONS,
    FORMS,
    Array,
    Form,
    Inputs,
    finish_of,
    rows,
    window_of,
    with_zero,
)
from app.engine.backends.cpu.integer_conv import bordered
from app.engine.backends.cpu.integer_pixels import (
    Extent,
    Pixels,
    Product,
    is_packed,
    joined_taps,
    product_calls,
    saturation,
    shapes_for,
    sizes_of,
    starts_of,
    steps_of,
    tiles_work,
)
from app.engine.backends.cpu.rows import group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Argument, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.conv_geometry import Window
from app.engine.types.layout import LAST, Layout
from app.kernels.cpu.integer_pixels import CHANNELS_LAST, BorderSizes

# Operations of float32 that take as long as copying a byte with a border, and ending a sum: with operands
# that are read pixel by pixel, and without.
COPYING, RUNNING, ENDING = 0.5, 12.0, 6.0


def images_of(group: Group) -> tuple[ir.Value, ...]:
    """Images of a group: what the convolution reads, what is read with its sums, and what leaves."""
    beside = (o.argument for o in finish_of(group).operands if o.place == "same")
    return (Inputs(group.anchor).a, *(v for v in beside if isinstance(v, ir.Value)), *group.outputs)


def layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
    """Channels last for all images."""
    return dict.fromkeys(images_of(group), LAST)


def images_rejection(group: Group) -> str | None:
    """Reason why the images of a group of integer products have no channels last."""
    for value in images_of(group):
        reason = nchwc.image_rejection(value, nchwc.LAST_TYPES)
        if reason is not None:
            return reason
        if graph.is_constant(value):
            return f"{value.name!r} is a constant, which is row-major"
    window = window_of(group)
    return "images of one pixel lie the same in all layouts" if window.pixels == 1 else None


@dataclass(frozen=True, slots=True)
class Merged:
    """Groups put together so that they fill a vector of output channels, weights between them zero.

    Attributes:
        window: of groups so put together; the last may have fewer channels than it says.
        factor: groups that are one.
    """

    window: Window
    factor: int


def _merged(window: Window, lanes: int) -> Merged:
    factor = max(min(lanes // max(window.outputs, 1), window.groups), 1)
    groups, channels, outputs = -(-window.groups // factor), window.channels, window.outputs
    whole = replace(window, groups=groups, channels=factor * channels, outputs=factor * outputs)
    return Merged(whole, factor)


def _merged_weights(weights: Array, window: Window, merged: Merged) -> Array:
    """Weights [groups * outputs, channels, taps] of groups put together."""
    whole, factor = merged.window, merged.factor
    own = weights.reshape(window.groups, window.outputs, window.channels, -1)
    if factor == 1:
        return own.reshape(-1, *own.shape[2:])
    taps = own.shape[-1]
    found = np.zeros((whole.groups, factor, window.outputs, factor, window.channels, taps), own.dtype)
    for group, each in enumerate(own):
        found[group // factor, group % factor, :, group % factor] = each
    return found.reshape(whole.groups * whole.outputs, whole.channels, taps)


def _pixels(window: Window, merged: Merged, form: Form) -> Pixels:
    """Pixels as they lie; taps that are neighbors follow one another where there is one group."""
    whole = merged.window
    before, size = bordered(window)
    itemsize, channels = 4 // form.together, window.groups * window.channels
    joined = joined_taps(window) if whole.groups == 1 else 1
    elements = all(n * itemsize % 4 == 0 for n in (channels, whole.channels))
    ragged = whole.groups * whole.channels != channels
    packed = is_packed(window) or ragged or not elements
    starts = starts_of(window, joined)
    return Pixels(before, size, whole.channels, channels, itemsize, joined, starts, packed)


def _is_copied(window: Window, form: Form, shift: int) -> bool:
    """True if the image needs a border, wider elements or another sign."""
    return form.together == 2 or shift != 0 or bordered(window)[1] != window.size


def _copy(of: Inputs, window: Window, pixels: Pixels, image: Workspace, form: Form, shift: int) -> KernelCall:
    """The call that copies the image with its border."""
    wide = form.together == 2
    sizes = BorderSizes(
        h=window.size[1],
        w=window.size[2],
        wide_h=pixels.whole[1],
        wide_w=pixels.whole[2],
        top=pixels.before[1],
        left=pixels.before[2],
        row=pixels.step,
        plane=pixels.plane // pixels.itemsize,
    )
    result: Operand = ("int16*" if wide else "uint8*", image)
    operands: Operands = (*with_zero(of.a, of.a_zero), 0 if wide else shift, result, size_operand(sizes))
    units = window.batch * pixels.whole[1]
    return kernel_call("app.kernels.cpu.integer_pixels:emit_border", operands, units, (wide,))


def _lower(group: Group, context: PlanningContext, form: Form) -> tuple[KernelCall, ...]:
    of, window = Inputs(group.anchor), window_of(group).flat()
    merged = _merged(window, context.target.vector_lanes)
    pixels = _pixels(window, merged, form)
    shift = 0 if form.together == 2 else form.shift(of.a, context)
    copied = _is_copied(window, form, shift)
    row = pixels.step * pixels.itemsize
    extent = Extent(
        total=window.groups * window.outputs,
        image=pixels.plane if copied else math.prod(window.size) * row,
        group=pixels.row * pixels.itemsize,
        row=row,
        readable=2**62 if copied or pixels.packed else window.batch * window.pixels,
    )
    sizes = sizes_of(merged.window, pixels, extent, form, context)
    image: Argument = of.a
    calls: tuple[KernelCall, ...] = ()
    if copied:
        # A whole tile reads pixels behind the last, and the last group channels that are not there.
        behind = shapes_for(merged.window, form, context)[context.target.vector_lanes][0] * row
        workspace = Workspace(window.batch * pixels.plane + behind + pixels.run)
        image, calls = workspace, (_copy(of, window, pixels, workspace, form, shift),)

    def steps() -> Array:
        return steps_of(_merged_weights(of.shifted, window, merged), merged.window, pixels, form)

    product = Product(merged.window, pixels, sizes, image, steps, CHANNELS_LAST)
    return *calls, *product_calls(group, product, form, context)


def _rejection(group: Group, context: PlanningContext, form: Form) -> str | None:
    """Reason why a form does not apply to images with channels last."""
    reason = form.rejection(group, context) or images_rejection(group)
    if reason is not None:
        return reason
    of, window = Inputs(group.anchor), window_of(group).flat()
    merged = _merged(window, context.target.vector_lanes)
    pixels = _pixels(window, merged, form)
    shift = 0 if form.together == 2 else form.shift(of.a, context)
    if merged.window.groups * merged.factor > window.groups and not _is_copied(window, form, shift):
        return (
            f"{window.groups} groups are not a multiple of {merged.factor}, and nothing lies behind the last"
        )
    if form.together == 2 or form.dot:
        return None
    return saturation(steps_of(_merged_weights(of.shifted, window, merged), merged.window, pixels, form))


def _cost(group: Group, context: PlanningContext, form: Form) -> float:
    """Seconds of whole tiles, of copies of windows and of what becomes of the sums."""
    of, window, finish = Inputs(group.anchor), window_of(group).flat(), finish_of(group)
    merged = _merged(window, context.target.vector_lanes)
    pixels = _pixels(window, merged, form)
    shift = 0 if form.together == 2 else form.shift(of.a, context)
    ending = RUNNING if any(o.place == "same" for o in finish.operands) else ENDING
    moved = ending * graph.elements(group.outputs[0])
    if _is_copied(window, form, shift):
        moved += COPYING * graph.elements(of.a) * (2 if form.together == 2 else 1)
    if pixels.packed:
        moved += window.batch * merged.window.groups * window.pixels * pixels.depth / 4
    computed = tiles_work(merged.window, pixels.depth, form, context)
    widened = graph.nbytes(of.b) if form.together == 2 else 0
    return group_roofline(group, context, computed + moved, 0.95, total_bytes(group) + widened)


IMPLEMENTATIONS = tuple(
    row
    for form in FORMS
    if not form.tiled
    for row in rows(
        CONVOLUTIONS,
        f"last_{form.name}",
        partial(_rejection, form=form),
        partial(_lower, form=form),
        partial(_cost, form=form),
        layouts=layouts,
        rank=2,
    )
)
