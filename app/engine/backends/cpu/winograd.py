"""Rows of Winograd convolutions over channel-blocked images: F(4x4, 3x3), F(2x2, 3x3) and F(2x2, 5x5).

They multiply 4, 2.25 and 2.8 times less than the definition does, at the price of rounding errors that
are larger; a row applies where the error on the layer's own weights is small enough. An element
that is not finite makes whole tiles of the output NaN, not only the pixels next to it.

In bf16 the operands of these products are rounded, which F(2x2, 3x3) bears and F(4x4, 3x3) does not on most
weights (relative rms errors of 3e-3 and 2e-2): there the error decides, measured in the same way.

Few tiles are multiplied by many weights, 16 or 36 for the 9 of a filter, which threads together read from
memory more slowly than they multiply: in fixed point, see `fixed_point`, they take three quarters as much.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from app.engine.backends.cpu import bfloat, blocking, fixed_point, matmul, nchwc
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops, roofline
from app.engine.operators import conv_geometry
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu import winograd, winograd_transforms
from app.kernels.cpu.codegen.tiles import (
    FIXED_POINT,
    FIXED_STEPS,
    rounded_to_bfloat,
    rounded_to_fixed,
)
from app.kernels.cpu.winograd import WinogradSizes

Array = np.ndarray[Any, Any]

SHARE = 0.1  # of the tolerance that the relative rms error of one layer may take
BF16_ERROR = 5e-3  # that a layer whose products are bf16 may have
SAMPLED_TILES, SAMPLED_OUTPUTS = 4, 12  # whose error is measured
LARGEST = 1e30  # weights whose transforms are finite
# Byte that a block of tiles and its sums may take; up to half the second cache for images half as large.
HELD = 256 * 1024
LEAST = 16  # tiles of a block, below which reading the weights is what takes long
# Of weights in fixed point: bytes as float32, fewer of which stay in a cache near the core, and tiles, with
# more of which multiplying takes longer than reading however many threads read.
LEAST_BYTES, MOST_TILES = 1 << 20, 64
UNPACKING = 0.9  # of the rate of products is left by taking weights in fixed point apart

# Measured on Zen 4 (Zen 3: a fifth less): transforms take as long as this many operations of the products for
# every point and channel of the input and of the output, and starting a tile as some channels more.
INPUT, OUTPUT, START = 24.0, 15.0, 3


@dataclass(frozen=True, slots=True)
class Form:
    """Which of the rows it is: tiles of m x m outputs, products of float32 or of pairs of bfloat16.

    With `fixed` weights of float32 products lie in fixed point.
    """

    m: int
    taps: int = 3
    paired: bool = False
    fixed: bool = False

    @property
    def n(self) -> int:
        """Rows and columns of a tile of the input."""
        return self.m + self.taps - 1

    @property
    def name(self) -> str:
        """Attributes of the row."""
        size = f"_{self.taps}x{self.taps}" * (self.taps != 3)
        return f"conv.winograd_f{self.m}{size}{'_bf16' * self.paired}{'_fixed_point' * self.fixed}"

    def dtype(self, context: PlanningContext) -> str:
        """Type of the factors."""
        return bfloat.dtype(context) if self.paired else FIXED_POINT if self.fixed else "float32"

    @property
    def together(self) -> int:
        """Channels of a step of its products."""
        return 2 if self.paired else FIXED_STEPS if self.fixed else 1

    @property
    def nbytes(self) -> int:
        """Bytes of a transformed weight."""
        return 2 if self.paired else 3 if self.fixed else 4


def rejection(form: Form, group: Group, context: PlanningContext) -> str | None:
    """Reason why a form does not apply."""
    if not context.fast_algorithms:
        return "the job allows no algorithms with fewer multiplications"
    reason = bfloat.rejection(context) if form.paired else None
    reason = reason or nchwc.rejection(group, context) or _shape_rejection(group, form.taps, context)
    if reason is not None:
        return reason
    channels = conv_geometry.of_conv(group).channels
    if channels % form.together:
        return f"{channels} channels; this one multiplies multiples of {form.together}"
    reason = _fixed_rejection(form, group, context) if form.fixed else None
    if reason is not None:
        return reason
    found = error(form, group, context)
    limit, what = (
        (BF16_ERROR, "what a layer may have in bf16")
        if form.paired
        else (SHARE * context.tolerance, "a share of the tolerance")
    )
    if not found <= limit:
        return f"relative rms error {found:.1e} exceeds {limit:.1e}, {what}"
    return None


def _fixed_rejection(form: Form, group: Group, context: PlanningContext) -> str | None:
    """Reason why weights in fixed point would save nothing, or lose too much of a column."""
    window, weights = conv_geometry.of_conv(group), graph.operand(group.anchor, 1)
    nbytes, tiles = 4 * form.n**2 * window.channels * window.outputs, _tiles(window, form)
    if nbytes < LEAST_BYTES:
        return f"{nbytes} bytes of transformed weights stay in a cache; this one takes {LEAST_BYTES}"
    if tiles > MOST_TILES:
        return f"{tiles} tiles, more than {MOST_TILES}: weights are not what takes the time"
    found = graph.fact(weights, f"error of columns of {form}", partial(_column_error, form), context.cache)
    return matmul.error_rejection(found, context)


def _column_error(form: Form, array: Array) -> float:
    found = 0.0
    for first in range(0, len(array), 16):  # in pieces that stay in a cache
        tiles = winograd_transforms.tiles_of(array[first : first + 16].transpose(2, 3, 0, 1), form.m)
        found = max(found, fixed_point.column_error(tiles.reshape(-1, tiles.shape[-1]).T))
    return found


def _tiles(window: Window, form: Form) -> int:
    return window.batch * -(-window.out[1] // form.m) * -(-window.out[2] // form.m)


def _shape_rejection(group: Group, taps: int, context: PlanningContext) -> str | None:
    weights, bias = graph.input_at(group.anchor, 1), graph.input_at(group.anchor, 2)
    if weights is None or not graph.is_constant(weights):
        return "the weights change between runs; this one transforms them offline"
    if graph.dtype(weights) != np.float32:
        return f"weights are {graph.dtype(weights)}; this one computes float32"
    if bias is not None and not graph.is_constant(bias):
        return f"bias {bias.name!r} changes between runs"
    window = conv_geometry.of_conv(group)
    if window.groups != 1:
        return f"{window.groups} groups; this one takes 1"
    if window.stride != (1, 1, 1):
        return f"strides {window.stride[1:]}; this one takes 1"
    for offsets, size, out in list(zip(window.offsets, window.size, window.out))[1:]:
        before = -offsets[0]
        if offsets != tuple(range(-before, taps - before)):
            return f"taps at {offsets}; this one takes {taps} x {taps} without dilation"
        after = out + taps - 1 - size - before
        if not (0 <= before <= taps // 2 and 0 <= after <= taps // 2):
            return f"pads {before} and {after}; this one takes at most {taps // 2} at each side"
    if not graph.fact(weights, "largest", _largest, context.cache) < LARGEST:
        return f"weights {weights.name!r} are not all below {LARGEST:.0e}"
    return None


def _largest(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0))


def error(form: Form, group: Group, context: PlanningContext) -> float:
    """Relative rms error of a form on a layer's weights, for standard normal input.

    Measured against float64 on a sample of tiles and output channels.
    """
    weights = graph.operand(group.anchor, 1)
    return graph.fact(weights, f"error of {form}", partial(_sampled_error, form), context.cache)


def _sampled_error(form: Form, weights: Array) -> float:
    """As `error`, for weights[outputs, channels, taps, taps]."""
    m, count = form.m, weights.shape[-1]
    b, _, a = winograd_transforms.matrices(m, count)
    weights = weights[np.linspace(0, len(weights) - 1, min(SAMPLED_OUTPUTS, len(weights))).astype(int)]
    n, channels = len(b), weights.shape[1]
    x = np.random.default_rng(0).standard_normal((n, n, channels, SAMPLED_TILES), np.float32)

    def both_axes(matrix: Array, array: Array) -> Array:
        for _ in range(2):  # the two leading axes, one after the other
            array = np.tensordot(array, matrix.astype(np.float32), (0, 1))
            array = np.moveaxis(array, -1, 1)
        return array

    v = both_axes(b, x)
    u = winograd_transforms.transformed(weights, m).reshape(n, n, -1, channels)
    if form.paired:
        u, v = rounded_to_bfloat(u), rounded_to_bfloat(v)
    if form.fixed:
        u = rounded_to_fixed(u.reshape(-1, channels).T).T.reshape(u.shape)
    sums = np.zeros((n, n, len(weights), SAMPLED_TILES), np.float32)
    for c in range(channels):  # one after the other, as the kernel adds; partial sums of a BLAS err less
        sums += u[..., c, None] * v[..., c, None, :]
    found = both_axes(a, sums)
    exact = np.zeros(found.shape)
    wide, taps = x.astype(np.float64), weights.astype(np.float64)
    for i in range(count):
        for j in range(count):
            exact += np.matmul(taps[:, :, i, j], wide[i : i + m, j : j + m])
    scale = np.mean(np.square(exact))
    return float(np.sqrt(np.mean(np.square(found - exact)) / scale)) if scale != 0 else 0.0


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the tiles of a batch are cut into blocks, and where a block's sums lie (in elements)."""

    high: int
    wide: int
    tiles: int
    parts: int
    v_row: int
    v_plane: int
    v_size: int
    m_plane: int
    m_size: int


def tiling_of(window: Window, form: Form, context: PlanningContext) -> Tiling:
    """Blocks of tiles that fit the second cache and that threads share evenly."""
    lanes, points = context.target.vector_lanes, form.n**2
    tiles = _tiles(window, form)
    v_row = nchwc.blocks_of(window.channels, context) * (lanes // 2 if form.paired else lanes)
    vectors = max(winograd.groups_of(nchwc.blocks_of(window.outputs, context)))
    images = (
        4 * window.batch * (window.channels * math.prod(window.size) + window.outputs * math.prod(window.out))
    )
    held = max(HELD, min(blocking.second_cache(context.target) // 2, 2 * images))
    fitting = max(held // (4 * points * (v_row + vectors * lanes)), LEAST)
    parts = -(-tiles // fitting)
    groups = len(winograd.groups_of(nchwc.blocks_of(window.outputs, context)))
    if parts > 1 or blocking.longest_share(groups, context.threads) > 1.03:
        # Threads that share a block transform it each: better as many as threads, up to half as large again.
        parts = min(max(math.ceil(parts / context.threads - 0.5), 1) * context.threads, tiles)
    return cut_tiles(window, form, context, tiles, parts)


def cut_tiles(window: Window, form: Form, context: PlanningContext, tiles: int, parts: int) -> Tiling:
    """So many tiles in so many blocks."""
    lanes, points = context.target.vector_lanes, form.n**2
    high, wide = -(-window.out[1] // form.m), -(-window.out[2] // form.m)
    v_row = nchwc.blocks_of(window.channels, context) * (lanes // 2 if form.paired else lanes)
    vectors = max(winograd.groups_of(nchwc.blocks_of(window.outputs, context)))
    rows, broad = winograd.rows_of(form.dtype(context), lanes)
    beyond = max(*rows, broad)  # rows that the last register tile reads and writes beyond its block
    most = -(-tiles // parts)
    v_plane = blocking.panel_row(most * v_row, 4)
    m_plane = blocking.panel_row(most * vectors * lanes, 4)
    v_size = points * v_plane + beyond * v_row
    m_size = points * m_plane + beyond * vectors * lanes
    return Tiling(
        high, wide, tiles, parts, v_row, v_plane, v_size, m_plane, blocking.balanced(m_size, m_size, 16)
    )


def sizes_of(
    form: Form, window: Window, tiling: Tiling, work: int, flags: int, context: PlanningContext
) -> WinogradSizes:
    """Sizes of the kernel; `work` are elements of workspace per thread."""
    filters = nchwc.blocks_of(window.outputs, context)
    return WinogradSizes(
        channels=window.channels // form.together,
        blocks=nchwc.blocks_of(window.channels, context),
        filters=filters,
        h=window.size[1],
        w=window.size[2],
        rows=window.out[1],
        columns=window.out[2],
        top=-window.offsets[1][0],
        left=-window.offsets[2][0],
        high=tiling.high,
        wide=tiling.wide,
        tiles=tiling.tiles,
        parts=tiling.parts,
        groups=len(winograd.groups_of(filters)),
        v_row=tiling.v_row,
        v_plane=tiling.v_plane,
        m_plane=tiling.m_plane,
        m_size=tiling.m_size,
        work_step=work,
        flags=flags,
    )


def packed_weights(form: Form, group: Group, context: PlanningContext) -> Constant:
    """The transformed weights."""
    weights, lanes, dtype = graph.operand(group.anchor, 1), context.target.vector_lanes, form.dtype(context)
    array = graph.array(weights)
    return Constant(lambda: winograd.packed(array, form.m, lanes, dtype), weights.name or "")


def _lower(form: Form, group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    x = graph.operand(group.anchor, 0)
    m, lanes, n = form.m, context.target.vector_lanes, form.n
    window, ends = conv_geometry.of_conv(group), nchwc.ends(group, context)
    tiling, dtype = tiling_of(window, form, context), form.dtype(context)
    buffer = max(n * n * lanes, ends.buffer)
    work = tiling.m_size + n * lanes + buffer + tiling.v_size
    work = blocking.balanced(work, work, blocking.LINE // 4)
    sizes = sizes_of(form, window, tiling, work, ends.flags, context)
    operands: Operands = (
        *of_type("float32*", x, packed_weights(form, group, context), group.outputs[0]),
        *ends.with_bias(sizes.filters * lanes).addends,
        size_operand(sizes),
        ("float32*", Workspace(work * 4, per_thread=True)),
        *ends.operands,
    )
    places = tuple(place[:2] for place in ends.places)
    shape = lanes, m, form.taps, min(sizes.filters, 2), buffer
    static = (*shape, ends.epilogue.recipe, places, *((dtype,) if dtype != "float32" else ()))
    return (typed_call("app.kernels.cpu.winograd:emit", operands, tiling.parts * sizes.groups, static),)


def _cost(form: Form, group: Group, context: PlanningContext) -> float:
    window, lanes = conv_geometry.of_conv(group), context.target.vector_lanes
    tiling, points = tiling_of(window, form, context), form.n**2
    vectors = winograd.groups_of(nchwc.blocks_of(window.outputs, context))
    outputs = sum(vectors) * lanes
    # Threads that share a block of tiles transform it each.
    again = (tiling.parts + context.threads - 1) / tiling.parts
    rate = bfloat.rate(context) if form.paired else UNPACKING if form.fixed else 1.0
    channels = nchwc.blocks_of(window.channels, context) * lanes
    each = 2.0 * (window.channels / rate + START) * outputs + INPUT * channels * again + OUTPUT * outputs
    share = blocking.longest_share(tiling.parts * len(vectors), context.threads)
    # A register tile computes whole rows.
    least = winograd.rows_of(form.dtype(context), lanes)[0][0] * tiling.parts
    definition = 2.0 * window.batch * window.pixels * window.depth * window.outputs
    images = [v for v in (*group.inputs, *group.outputs) if v is not group.anchor.inputs[1]]
    return roofline(
        context.target,
        flops=max(tiling.tiles, least) * points * each * share + flops(group) - definition,
        nbytes=sum(graph.nbytes(v) for v in images),
        weights=form.nbytes * points * window.channels * outputs,
        efficiency=0.9,
        threads=context.threads,
    )


FORMS = (
    Form(4),
    Form(2),
    Form(2, taps=5),
    Form(4, paired=True),
    Form(2, paired=True),
    Form(4, fixed=True),
    Form(2, fixed=True),
)

IMPLEMENTATIONS = tuple(
    Implementation(
        form.name,
        "Conv",
        "numba-cpu",
        partial(rejection, form),
        partial(_lower, form),
        cost=partial(_cost, form),
        inplace=nchwc.inplace,
        layouts=nchwc.layouts,
        error=partial(error, form),
        precision="bf16" if form.paired else "f32",
    )
    for form in FORMS
)
