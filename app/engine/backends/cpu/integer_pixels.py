"""Rows of integer convolutions as products of pixels and weights; inputs and outputs lie in planes."""

import itertools
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_type, size_operand, typed_call
from app.engine.backends.cpu.integer import (
    CONVOLUTIONS,
    DEPTH,
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
from app.engine.backends.cpu.rows import group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu.byte_transposes import TILE
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import LEFT_UNSIGNED, PAIRS
from app.kernels.cpu.integer_pixels import (
    ONE_PIXEL,
    PLANES,
    GatherSizes,
    IntegerPixelsSizes,
    goes_along_channels,
    shapes_of,
)
from app.kernels.expressions import stored

ROWS = 96  # pixels of a block, whose sums stay in the second cache
PANELS = 8  # of output channels of a block
PART = 256  # pixels that are gathered at once
FEW = 4  # channels below which those of neighboring pixels follow one another without a gap
# Operations of float32 that take as long as gathering a byte and ending a sum, as a byte or turned before.
GATHERING, ENDING, TURNING = 4.0, 8.0, 20.0


@dataclass(frozen=True, slots=True)
class Pixels:
    """The gathered input, and the stretches of it that a window reads.

    Attributes:
        before: elements of the border before the input, along its three axes.
        whole: pixels of an image with its border, along its axes.
        row: elements of a pixel, those beyond its channels of no account.
        itemsize: bytes of an element.
        joined: taps of a stretch.
        starts: where stretches begin in a window, pixels.
        packed: True if windows are copied; else pixels are rows of the product as they lie.
    """

    before: tuple[int, ...]
    whole: tuple[int, ...]
    row: int
    itemsize: int
    joined: int
    starts: tuple[int, ...]
    packed: bool

    @property
    def run(self) -> int:
        """Bytes of a stretch."""
        return self.joined * self.row * self.itemsize

    @property
    def depth(self) -> int:
        """Elements of the reduction, in which stretches follow one another."""
        return -(-len(self.starts) * self.run // 4)

    @property
    def plane(self) -> int:
        """Bytes of an image, whole cache lines."""
        size = math.prod(self.whole) * self.row * self.itemsize
        return size + -size % blocking.LINE


def joined_taps(window: Window) -> int:
    """Taps of a stretch: those of a line, where they are neighbors."""
    along = window.offsets[2]
    return len(along) if along == tuple(range(along[0], along[0] + len(along))) else 1


def starts_of(window: Window, joined: int) -> tuple[int, ...]:
    """Where stretches of `joined` taps begin in a window, in pixels of the image with its border."""
    before, whole = bordered(window)
    inside = [[o + p for o in offsets] for offsets, p in zip(window.offsets, before)]
    return tuple(
        (d * whole[1] + h) * whole[2] + w
        for d, h, w in itertools.product(*inside[:2], inside[2][:1] if joined > 1 else inside[2])
    )


def is_packed(window: Window) -> bool:
    """True if windows are copied; else pixels are rows of the product as they lie."""
    return window.taps > 1 or window.stride != (1, 1, 1) or bordered(window)[1] != window.out


def _pixels(window: Window, form: Form) -> Pixels:
    before, whole = bordered(window)
    packed, joined = is_packed(window), joined_taps(window)
    row = -(-window.channels // form.together) * form.together
    if (
        window.channels < FEW
        and packed
        and -(-joined * window.channels // form.together) < joined * row // form.together
    ):
        row = window.channels  # pixels without a gap, where that makes a stretch shorter
    starts = starts_of(window, joined)
    return Pixels(before, whole, row, 4 // form.together, joined, starts, packed)


def _shapes(window: Window, form: Form, context: PlanningContext) -> tiles.Shapes:
    """Shapes of register tiles."""
    return shapes_of(form.dtype(LEFT_UNSIGNED, context), context.target.vector_lanes, window.outputs)


def _gather(
    of: Inputs, window: Window, pixels: Pixels, image: Workspace, form: Form, shift: int
) -> KernelCall:
    """The call that puts the channels of each pixel side by side."""
    kind = graph.element_type(of.a).name
    wide = form.together == 2
    rest = (window.channels - 1) % TILE + 1
    planes = window.batch * window.groups
    sizes = GatherSizes(
        channels=window.channels,
        d=window.size[0],
        h=window.size[1],
        w=window.size[2],
        wide_d=pixels.whole[0],
        wide_h=pixels.whole[1],
        wide_w=pixels.whole[2],
        front=pixels.before[0],
        top=pixels.before[1],
        left=pixels.before[2],
        row=pixels.row,
        plane=pixels.plane // pixels.itemsize,
        elements=planes * window.channels * math.prod(window.size),
        part=PART,
    )
    result: Operand = ("int16*" if wide else "uint8*", image)
    operands: Operands = (*with_zero(of.a, of.a_zero), 0 if wide else shift, result, size_operand(sizes))
    units = planes * math.prod(pixels.whole[:2]) * -(-window.size[2] // PART)
    static = (kind, rest, pixels.row - (window.channels - rest), wide)
    return kernel_call("app.kernels.cpu.integer_pixels:emit_gather", operands, units, static)


def _steps(weights: Array, window: Window, pixels: Pixels, form: Form) -> Array:
    """Weights [groups * outputs, channels, ...] as steps of the reduction, as windows are copied."""
    shifted = weights.reshape(window.groups, window.outputs, window.channels, len(pixels.starts), -1)
    taps = np.moveaxis(shifted, 2, -1)  # [groups, outputs, stretches, taps of one, channels]
    taps = np.pad(taps, [(0, 0)] * 4 + [(0, pixels.row - window.channels)])
    return tiles.pack_steps(taps.reshape(window.groups, window.outputs, -1).swapaxes(1, 2), form.together)


def _sizes(window: Window, pixels: Pixels, form: Form, context: PlanningContext) -> IntegerPixelsSizes:
    """Sizes of a convolution, among them the workspaces of a thread: `work_step` and `panel_step`."""
    lanes, shapes = context.target.vector_lanes, _shapes(window, form, context)
    width, full = tiles.columns_of(PAIRS, lanes, shapes), shapes[lanes][0]
    block_m = min(blocking.balanced(window.pixels, ROWS, TILE), -(-window.pixels // full) * full)
    block_n = blocking.balanced(window.outputs, PANELS * width, width)
    images = window.batch * window.groups * -(-window.pixels // block_m)
    while block_n > width and images * -(-window.outputs // block_n) < 4 * context.threads > 4:
        block_n -= width
    depth = pixels.depth
    block_k = depth if window.pixels <= full else blocking.balanced(depth, DEPTH, 1)
    row = pixels.row * pixels.itemsize
    a_row = blocking.panel_row(depth, 4) if pixels.packed else row // 4
    tall = -(-block_m // TILE) * TILE + full
    step = window.stride
    turned_row = -(-tall // lanes) * lanes
    spare = tiles.spare(PAIRS, lanes, shapes)
    sums = tall * block_n
    return IntegerPixelsSizes(
        packed=pixels.packed,
        groups=window.groups,
        outputs=window.outputs,
        pixels=window.pixels,
        rows=window.out[1],
        columns=window.out[2],
        step_d=step[0] * pixels.whole[1] * pixels.whole[2] * row,
        step_h=step[1] * pixels.whole[2] * row,
        step_w=step[2] * row,
        runs=len(pixels.starts),
        run=pixels.run,
        image_step=window.groups * pixels.plane,
        group_step=pixels.plane,
        depth=depth,
        a_row=a_row,
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        sums_size=sums,
        spare_size=spare,
        turned_row=turned_row,
        work_step=sums + spare + lanes * turned_row,
        panel_step=(tall * a_row * 4 if pixels.packed else 0) + blocking.LINE,
    )


def _lower(group: Group, context: PlanningContext, form: Form) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    of, finish, window = Inputs(group.anchor), finish_of(group), window_of(group).flat()
    pixels = _pixels(window, form)
    sizes = _sizes(window, pixels, form, context)
    lanes, shapes = context.target.vector_lanes, _shapes(window, form, context)
    width = tiles.columns_of(PAIRS, lanes, shapes)
    # A whole tile reads pixels behind the last.
    behind = 4 * shapes[lanes][0] * sizes.a_row
    image = Workspace(window.batch * window.groups * pixels.plane + behind)
    shift = 0 if form.together == 2 else form.shift(of.a, context)
    correcting, added = corrections(of, form, context, width)
    panel = Workspace(sizes.panel_step, per_thread=True)
    ends = ONE_PIXEL if window.pixels == 1 else PLANES
    places = tuple(o.place for o in finish.operands)
    own: Operands = ()
    if ends == PLANES and goes_along_channels(places, finish.result, finish.recipe):
        step = (sizes.block_m + TILE) * sizes.block_n + TILE
        own = ((f"{finish.result}*", Workspace(step, per_thread=True)), step)

    def panels() -> Array:
        return tiles.pack_columns(_steps(of.shifted, window, pixels, form), width)

    operands: Operands = (
        ("uint8*", image),
        ("int32*", image),
        *of_type("int32*", Constant(panels, of.b.name or ""), added),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(pixels.starts, np.int64) * (pixels.row * pixels.itemsize))),
        size_operand(sizes),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        ("uint8*", panel),
        ("int32*", panel),
        *own,
        *finish.arguments,
    )
    blocks = -(-window.pixels // sizes.block_m) * -(-window.outputs // sizes.block_n)
    call = typed_call(
        "app.kernels.cpu.integer_pixels:emit",
        operands,
        window.batch * window.groups * blocks,
        (form.dtype(LEFT_UNSIGNED, context), lanes, shapes[lanes][2], ends, *finish.static),
    )
    return _gather(of, window, pixels, image, form, shift), *correcting, call


def _rejection(group: Group, context: PlanningContext, form: Form) -> str | None:
    """Reason of a form, or that neighbors in a window saturate."""
    reason = form.rejection(group, context)
    if reason is not None or form.together == 2 or form.dot:
        return reason
    window = window_of(group).flat()
    return saturation(_steps(Inputs(group.anchor).shifted, window, _pixels(window, form), form))


def saturation(steps: Array) -> str | None:
    """Reason why neighbors among the steps of a reduction may leave 16 bits."""
    return None if tiles.quads_fit(steps) else "two products in a window may add up to more than 16 bits"


def _tiles_work(window: Window, depth: int, form: Form, context: PlanningContext) -> float:
    """Operations of float32 that take as long as the products of whole tiles."""
    lanes = context.target.vector_lanes
    shapes = _shapes(window, form, context)
    rows, small = shapes[lanes][:2]
    width = tiles.columns_of(PAIRS, lanes, shapes)
    left = window.pixels % rows
    tall = window.pixels - left + (left if left <= 1 else small if left <= small else rows)
    wide = -(-window.outputs // width) * width
    steps = window.batch * window.groups * tall * wide * depth
    rate = 4.0 if form.dot else 2.0 if form.together == 2 else 2.4
    return 2.0 * form.together * steps / rate


def _cost(group: Group, context: PlanningContext, form: Form) -> float:
    """Seconds of whole tiles, of gathering the input and of what becomes of the sums."""
    of, window = Inputs(group.anchor), window_of(group)
    pixels = _pixels(window.flat(), form)
    outputs = window.batch * window.groups * window.pixels * window.outputs
    computed = _tiles_work(window, pixels.depth, form, context)
    finish = finish_of(group)
    along = goes_along_channels(tuple(o.place for o in finish.operands), finish.result, finish.recipe)
    moved = (ENDING if along else TURNING) * outputs + GATHERING * graph.elements(of.a)
    if pixels.packed:
        moved += window.batch * window.groups * window.pixels * pixels.depth / 4
    widened = graph.nbytes(of.b) if form.together == 2 else 0
    work = max(computed + moved, flops(group) / 8)
    return group_roofline(group, context, work, 0.95, total_bytes(group) + widened)


IMPLEMENTATIONS = tuple(
    row
    for form in FORMS
    if not form.tiled
    for row in rows(
        CONVOLUTIONS,
        f"pixels_{form.name}",
        partial(_rejection, form=form),
        partial(_lower, form=form),
        partial(_cost, form=form),
    )
)
