"""Rows of integer convolutions over images whose channels lie last (NHWC), as they come and as they leave."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking, nchwc
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_type, size_operand, typed_call
from app.engine.backends.cpu.integer import (
    CONVOLUTIONS,
    FORMS,
    Array,
    Form,
    Inputs,
    corrections,
    finish_of,
    rows,
    window_of,
    with_zero,
)
from app.engine.backends.cpu.integer_conv import bordered
from app.engine.backends.cpu.integer_pixels import joined_taps, saturation, starts_of
from app.engine.backends.cpu.rows import group_roofline, total_bytes
from app.engine.backends.cpu.window_tiles import Reduction, Sharing, Tiling, tiling, work
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.conv_geometry import Window
from app.engine.types.layout import LAST, Layout
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import LEFT_UNSIGNED
from app.kernels.cpu.integer_windows import SHAPES, UNROLLED, BorderSizes, IntegerWindowsSizes
from app.kernels.expressions import stored

# Operations of float32 that take as long as copying a byte with a border, and ending a sum: with a residual,
# and without (7.5 and 2.4 cycles for 16 of them on Zen 5).
COPYING, RUNNING, ENDING = 0.5, 30.0, 10.0


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


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows lie in an image, with the border that it has.

    Attributes:
        before: lines and columns of the border before the input.
        whole: those of the image with its border.
        step: elements from one pixel to the next.
        itemsize: bytes of an element.
        length: elements of a stretch.
        starts: where stretches begin in a window, bytes.
        copied: whether the image needs a border, wider elements or another sign, or room to read behind it.
        reduction: stretches by lines of the output.
    """

    before: tuple[int, int]
    whole: tuple[int, int]
    step: int
    itemsize: int
    length: int
    starts: tuple[int, ...]
    copied: bool
    reduction: Reduction

    @property
    def row(self) -> int:
        """Bytes from one pixel to the next."""
        return self.step * self.itemsize

    @property
    def plane(self) -> int:
        """Bytes of an image, whole cache lines where it is a copy."""
        size = math.prod(self.whole) * self.row
        return size + (-size % blocking.LINE if self.copied else 0)


def _windows(group: Group, merged: Merged, form: Form, context: PlanningContext) -> Windows:
    """Windows as they lie; taps that are neighbors follow one another where there is one group."""
    of, window = Inputs(group.anchor), window_of(group).flat()
    (_, top, left), (_, *whole) = bordered(window)
    itemsize, channels = 4 // form.together, window.groups * window.channels
    joined = joined_taps(window) if merged.window.groups == 1 else 1
    length = joined * merged.window.channels
    shift = 0 if form.together == 2 else form.shift(of.a, context)
    ragged = merged.window.groups * merged.factor > window.groups or length % form.together > 0
    copied = form.together == 2 or shift != 0 or bordered(window)[1] != window.size or ragged
    starts = tuple(start * channels * itemsize for start in starts_of(window, joined))
    zero = graph.constant(of.a_zero)
    blank = of.a_zero is None or (zero is not None and (int(zero.reshape(-1)[0]) + shift) % 256 == 0)
    lines = _reach(window, len(starts), skips=form.together == 2 or blank)
    steps = -(-length // form.together)
    reduction = Reduction(steps, lines, window.out[2])
    return Windows((top, left), (whole[0], whole[1]), channels, itemsize, length, starts, copied, reduction)


def _reach(window: Window, stretches: int, *, skips: bool) -> tuple[tuple[int, int], ...]:
    """The first stretch that each line of the output reads inside the image and the one behind the last.

    All of them unless `skips`.
    """
    across = window.offsets[1]
    each = stretches // len(across)
    found = []
    for line in range(window.out[1]):
        inside = [i for i, o in enumerate(across) if 0 <= line * window.stride[1] + o < window.size[1]]
        bounds = (min(inside), max(inside) + 1) if skips and inside else (0, len(across))
        found.append((bounds[0] * each, bounds[1] * each))
    return tuple(found)


def _copy(
    of: Inputs, window: Window, windows: Windows, image: Workspace, form: Form, shift: int
) -> KernelCall:
    """The call that copies the image with its border."""
    wide = form.together == 2
    sizes = BorderSizes(
        h=window.size[1],
        w=window.size[2],
        wide_h=windows.whole[0],
        wide_w=windows.whole[1],
        top=windows.before[0],
        left=windows.before[1],
        row=windows.step,
        plane=windows.plane // windows.itemsize,
    )
    result: Operand = ("int16*" if wide else "uint8*", image)
    operands: Operands = (*with_zero(of.a, of.a_zero), 0 if wide else shift, result, size_operand(sizes))
    units = window.batch * windows.whole[0]
    return kernel_call("app.kernels.cpu.integer_windows:emit_border", operands, units, (wide,))


def _steps(weights: Array, window: Window, windows: Windows, form: Form) -> Array:
    """Weights [groups * outputs, channels, taps] as steps of the reduction, stretch by stretch."""
    runs = len(windows.starts)
    taps = weights.reshape(window.groups, window.outputs, window.channels, runs, -1)
    taps = np.moveaxis(taps, 2, -1).reshape(window.groups, window.outputs, runs, -1)
    taps = np.pad(taps, [(0, 0)] * 3 + [(0, -taps.shape[-1] % form.together)])
    return tiles.pack_steps(taps.reshape(window.groups, window.outputs, -1).swapaxes(1, 2), form.together)


def _tiling(group: Group, merged: Merged, windows: Windows, context: PlanningContext) -> Tiling:
    window, lanes = merged.window, context.target.vector_lanes
    far = _is_far(Inputs(group.anchor), context)
    sharing = Sharing(window.batch * window.groups, context.threads, far)
    return tiling(SHAPES[lanes], -(-window.outputs // lanes), lanes, windows.reduction, sharing)


def _is_far(of: Inputs, context: PlanningContext) -> bool:
    """True if the weights are more than the second cache keeps beside images."""
    return graph.nbytes(of.b) > blocking.second_cache(context.target) // 2


def _sizes(window: Window, own: Window, windows: Windows, found: Tiling, share: float) -> IntegerWindowsSizes:
    """Sizes of a convolution, of groups that are put together as `own`."""
    rows_, width = found.shape[0], found.width
    steps, tall = windows.reduction.steps, found.block_m + rows_
    return IntegerWindowsSizes(
        groups=own.groups,
        outputs=own.outputs,
        total=window.groups * window.outputs,
        pixels=own.pixels,
        columns=own.out[2],
        step_h=window.stride[1] * windows.whole[1] * windows.row,
        step_w=window.stride[2] * windows.row,
        image_step=windows.plane,
        group_step=own.channels * windows.itemsize,
        steps=steps,
        depth=steps * len(windows.starts),
        block_m=found.block_m,
        block_n=found.block_n,
        ahead_step=math.ceil(width * 4 * share),
        work_step=tall * found.block_n,
        windows_step=tall + 2 * -(-found.block_m // rows_),
    )


def _lower(group: Group, context: PlanningContext, form: Form) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    of, window, finish = Inputs(group.anchor), window_of(group).flat(), finish_of(group)
    lanes = context.target.vector_lanes
    merged = _merged(window, lanes)
    windows, own = _windows(group, merged, form, context), merged.window
    found, steps = _tiling(group, merged, windows, context), windows.reduction.steps
    image: Argument = of.a
    calls: tuple[KernelCall, ...] = ()
    if windows.copied:
        # The last stretch may read elements behind it, and the last group channels that are not there.
        behind = windows.length * windows.itemsize + blocking.LINE
        workspace = Workspace(window.batch * windows.plane + behind)
        shift = 0 if form.together == 2 else form.shift(of.a, context)
        image, calls = workspace, (_copy(of, window, windows, workspace, form, shift),)
    # Tiles of a panel ask for the next one, each for its part.
    share = min(found.shape[0] / min(found.block_m, own.pixels), 1.0)
    sizes = _sizes(window, own, windows, found, share)
    correcting, added = corrections(of, form, context, found.width)

    def panels() -> Array:
        weights = _steps(_merged_weights(of.shifted, window, merged), own, windows, form)
        return tiles.pack_columns(weights, found.width)

    operands: Operands = (
        ("uint8*", image),
        *of_type("int32*", Constant(panels, of.b.name or ""), added),
        (f"{stored(finish.result)}*", y),
        *of_type("int64*", Constant(np.array(windows.starts)), Constant(np.array(windows.reduction.reach))),
        size_operand(sizes),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        ("int64*", Workspace(sizes.windows_step * 8, per_thread=True)),
        *finish.arguments,
    )
    blocks = -(-own.pixels // found.block_m) * -(-own.outputs // found.block_n)
    static = (
        form.dtype(LEFT_UNSIGNED, context),
        lanes,
        found.shape,
        -(-own.outputs // lanes) % found.shape[1],
        steps if steps <= UNROLLED else 0,
        math.ceil(found.shape[1] * share) if _is_far(of, context) else 0,
        *finish.static,
    )
    units = window.batch * own.groups * blocks
    return *calls, *correcting, typed_call("app.kernels.cpu.integer_windows:emit", operands, units, static)


def _rejection(group: Group, context: PlanningContext, form: Form) -> str | None:
    """Reason why a form does not apply to images with channels last."""
    reason = form.rejection(group, context) or images_rejection(group)
    if reason is not None or form.together == 2 or form.dot:
        return reason
    of, window = Inputs(group.anchor), window_of(group).flat()
    merged = _merged(window, context.target.vector_lanes)
    weights = _merged_weights(of.shifted, window, merged)
    return saturation(_steps(weights, merged.window, _windows(group, merged, form, context), form))


def _cost(group: Group, context: PlanningContext, form: Form) -> float:
    """Seconds of whole tiles, of copies of images and of what becomes of the sums."""
    of, window, finish = Inputs(group.anchor), window_of(group).flat(), finish_of(group)
    lanes = context.target.vector_lanes
    merged = _merged(window, lanes)
    windows = _windows(group, merged, form, context)
    own = merged.window
    found = work(_tiling(group, merged, windows, context).shape, -(-own.outputs // lanes), windows.reduction)
    ending = RUNNING if any(o.place == "same" for o in finish.operands) else ENDING
    moved = ending * graph.elements(group.outputs[0])
    if windows.copied:
        moved += COPYING * graph.elements(of.a) * (2 if form.together == 2 else 1)
    rate = 4.0 if form.dot else 2.0 if form.together == 2 else 2.4
    computed = 2.0 * form.together * lanes * own.batch * own.groups * found / rate
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
