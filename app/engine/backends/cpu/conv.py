"""Rows of convolutions."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.nchwc import Ends
from app.engine.backends.cpu.rows import group_roofline
from app.engine.backends.cpu.strided import calls
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Cost, Implementation, Lower, PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry, epilogues
from app.engine.operators.conv_geometry import Phase, Window
from app.engine.operators.epilogues import Epilogue
from app.engine.operators.strides import StridedCopy, strides_of
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import CLAMP, RESIDUAL, ROW_BIAS
from app.kernels.cpu.conv import PLACES, ConvSizes

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")


def rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection of what no convolution of this backend computes."""
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
    kind = graph.element_type(group.anchor.outputs[0])
    if kind.name not in DTYPES:
        return f"elements are {kind}; this one computes {', '.join(DTYPES)}"
    if any(graph.dtype(v) != kind for v in group.inputs):
        return "operands differ in type"
    if kind.kind != "f" and group.epilogue:
        return "what follows is applied to floating point only"
    rank = len(graph.static_shape(group.anchor.outputs[0])) - 2
    if not 1 <= rank <= 3:
        return f"{rank} spatial axes; this one has 1 to 3"
    epilogue = epilogues.read(group, 1)
    if isinstance(epilogue, str):
        return epilogue
    strange = next((v for v, kind in epilogue.operands if kind not in PLACES), None)
    if strange is not None:
        return f"operand {strange.name!r} varies along other axes than the channels"
    bias = graph.input_at(group.anchor, 2)
    if epilogue.biases and bias is not None and not graph.is_constant(bias):
        return f"two biases, of which {bias.name!r} changes between runs"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One implicit product: a window, its weights, and where its pixels go in the output.

    `weights` is [groups, outputs, depth], or memory of that when it changes between runs, which the calls
    `before` fill.
    `base` and `steps`: distances in the output in elements; `steps` is None when pixels are contiguous.
    """

    window: Window
    weights: Array | ir.Value | Workspace
    name: str = ""  # of the weights
    base: int = 0
    steps: conv_geometry.Triple | None = None
    pixels: int = 0  # of the whole output, where the window makes a part of them
    before: tuple[KernelCall, ...] = ()


def _conv_parts(group: Group) -> tuple[Part, ...]:
    weights = graph.operand(group.anchor, 1)
    window = conv_geometry.of_conv(group)
    array = graph.constant(weights)
    if array is None:
        return (Part(window.flat(), weights),)
    matrices = array.reshape(window.groups, window.outputs, window.depth)
    return (Part(window.flat(), matrices, weights.name or ""),)


def _transpose_parts(group: Group) -> tuple[Part, ...]:
    weights = graph.operand(group.anchor, 1)
    name = weights.name or ""
    _, high, wide = (1, 1, *graph.static_shape(group.outputs[0])[2:])[-3:]
    parts = []
    for phase in conv_geometry.of_conv_transpose(group.anchor):
        window = phase.window
        own, before = _weights_of(phase, weights)
        if phase.step == (1, 1, 1):
            parts.append(Part(window.flat(), own, name, before=before))
            continue
        distances = (high * wide, wide, 1)
        base = sum(f * d for f, d in zip(phase.first, distances))
        steps = tuple(s * d for s, d in zip(phase.step, distances))
        pixels = math.prod(graph.static_shape(group.outputs[0])[2:])
        parts.append(Part(window, own, name, base, (steps[0], steps[1], steps[2]), pixels, before))
    return tuple(parts)


def _weights_of(phase: Phase, weights: ir.Value) -> tuple[Array | Workspace, tuple[KernelCall, ...]]:
    """Weights [groups, outputs, depth] of a phase; memory of those that change, and calls that sort them."""
    window, array = phase.window, graph.constant(weights)
    shape = graph.static_shape(weights)
    kernel = (1,) * (5 - len(shape)) + shape[2:]
    split = (window.groups, window.channels, shape[1], *kernel)
    if array is not None:
        taken = array.reshape(split)
        for axis, taps in enumerate(phase.taps):
            taken = taken.take(taps, axis + 3)
        return np.moveaxis(taken, 2, 1).reshape(window.groups, window.outputs, window.depth), ()
    group, channel, output, *steps = strides_of(split)
    counts = tuple(len(taps) for taps in phase.taps)  # which are evenly spaced
    spaces = [taps[1] - taps[0] if len(taps) > 1 else 0 for taps in phase.taps]
    first = sum(taps[0] * step for taps, step in zip(phase.taps, steps) if taps)
    sizes = (window.groups, window.outputs, window.channels, *counts)
    sx = (group, output, channel, *(space * step for space, step in zip(spaces, steps)))
    item = graph.element_type(weights).itemsize
    own = Workspace(math.prod(sizes) * item)
    return own, calls(StridedCopy(sizes, sx, strides_of(sizes), first), item, weights, own)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a part is cut."""

    turned: bool
    n: int
    k: int
    m: int
    part: int


@lru_cache(maxsize=256)
def _cut(window: Window, dtype: str, lanes: int, threads: int, *, constant: bool) -> Blocks:
    item, width = np.dtype(dtype).itemsize, tiles.columns_of(dtype, lanes)
    turned = constant and _turned_cost(window, dtype, lanes) < _plain_cost(window, dtype, lanes)
    k = blocking.depth(window.depth, item, blocking.TURNED_DEPTH if turned else blocking.DEPTH)
    row = tiles.SHAPES[lanes][0]
    n = blocking.balanced(
        window.pixels, max(blocking.PACKED // (k * item), 7 * width), row if turned else width
    )
    parts = _splits(window, n, threads)
    tile = width if turned else row
    m = blocking.balanced(-(-window.outputs // parts), max(blocking.WEIGHTS // (k * item), tile), tile)
    if window.depth <= k and not turned:
        m = row  # a whole row of pixels at a time: what is stored is what takes long
    return Blocks(turned, n, k, m, blocking.balanced(window.outputs, -(-window.outputs // parts) + m - 1, m))


def _plain_cost(window: Window, dtype: str, lanes: int) -> float:
    """Elements of tiles over useful ones; a narrow tile takes almost the time of a full one."""
    width, vector = tiles.columns_of(dtype, lanes), tiles.lanes_of(dtype, lanes)
    rest = window.pixels % width
    columns = window.pixels // width + (0.0 if rest == 0 else 0.9 if rest <= vector else 1.0)
    return columns * width * _tile_rows(window.outputs, lanes) / max(window.outputs * window.pixels, 1)


def _turned_cost(window: Window, dtype: str, lanes: int) -> float:
    """As `_plain_cost`; what is stored must be transposed, at the price of some steps of the reduction."""
    width = tiles.columns_of(dtype, lanes)
    columns = -(-window.outputs // width) * width
    wasted = columns * _tile_rows(window.pixels, lanes) / max(window.outputs * window.pixels, 1)
    return wasted * (1.05 + 48.0 / max(window.depth, 1))


def _tile_rows(rows: int, lanes: int) -> int:
    """Rows that tiles compute."""
    large, small = tiles.SHAPES[lanes][:2]
    return sum(large if size > small else small for _, size in tiles.row_groups(rows, max(rows, 1), lanes))


def _splits(window: Window, block_n: int, threads: int) -> int:
    """Into how many parts the output channels go, each of which packs its pixels anew."""
    units = window.batch * window.groups * -(-window.pixels // block_n)
    again = 6.0 / max(window.outputs, 1)  # packing once over the product
    best, seconds = 1, blocking.longest_share(units, threads) * (1 + again)
    for splits in (threads, 2 * threads):
        if window.outputs >= 16 * splits:
            took = blocking.longest_share(units * splits, threads) * (1 + again * splits)
            if took < 0.98 * seconds:
                best, seconds = splits, took
    return best


def _lower(parts: Callable[[Group], tuple[Part, ...]]) -> Lower:
    def lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
        if graph.elements(group.outputs[0]) == 0:
            return ()
        x, y = graph.operand(group.anchor, 0), group.outputs[0]
        kind = graph.element_type(y)
        ends, own = epilogue_arguments(group, kind), parts(group)
        joined = _interleaving(group, own, ends.epilogue)
        target, joins = (y, ()) if joined is None else joined
        if joins:
            own = _phases_apart(own, graph.static_shape(y))
        products = tuple(
            call
            for part in own
            for call in (*part.before, product_call(part, kind, x, target, ends, context))
        )
        return (*products, *(call for join in joins for call in calls(join, kind.itemsize, target, y)))

    return lower


def _interleaving(
    group: Group, parts: tuple[Part, ...], epilogue: Epilogue
) -> tuple[Workspace, tuple[StridedCopy, ...]] | None:
    """Memory of phases of a transposed convolution, each in one piece, and the copies that join them.

    Vectors of a copy are faster than stores of single elements, one phase after the other. Planes and rows of
    all phases lie as those of the first, the largest; there is one more copy along an axis whose last step
    is not whole. None where what follows reads something, for the phases lie otherwise than the output.
    """
    batch, channels, *spatial = graph.static_shape(group.outputs[0])
    reads = epilogue.residual is not None or any(place == "same" for _, place in epilogue.operands)
    if reads or not parts[0].steps:
        return None
    steps = conv_geometry.of_conv_transpose(group.anchor)[0].step
    if len(parts) < math.prod(steps):
        return None
    out, size = parts[0].window.out, (1, 1, *spatial)[-3:]
    planes, pixels = batch * channels, math.prod(out)
    phases = [planes * pixels * n for n in strides_of(steps)]
    joins = []
    for pieces in itertools.product(*(_steps(n, step) for n, step in zip(size, steps))):
        axes = [
            axis
            for (first, whole, rest), step, sx, phase, sy in zip(
                pieces, steps, strides_of(out), phases, strides_of(size)
            )
            for axis in ((first, whole, sx, step * sy), (0, rest, phase, sy))
        ]
        joins.append(
            StridedCopy(
                (planes, *(n for _, n, _, _ in axes)),
                (pixels, *(sx for _, _, sx, _ in axes)),
                (math.prod(size), *(sy for _, _, _, sy in axes)),
                sum(first * sx for first, _, sx, _ in axes),
                sum(first * sy for first, _, _, sy in axes),
            )
        )
    itemsize = graph.element_type(group.outputs[0]).itemsize
    return Workspace(len(parts) * planes * pixels * itemsize), tuple(joins)


def _phases_apart(parts: tuple[Part, ...], shape: tuple[int, ...]) -> tuple[Part, ...]:
    """The phases one behind the other: as large as the first but along the outermost axis."""
    largest = parts[0].window.out
    axis = next((a for a, n in enumerate(largest) if n > 1), 2)
    apart: list[Part] = []
    for part in parts:
        n = [*largest[:axis], part.window.out[axis], *largest[axis + 1 :]]
        window = replace(part.window, out=(n[0], n[1], n[2])).flat()
        base = len(apart) * math.prod(shape[:2]) * math.prod(largest)
        apart.append(replace(part, window=window, base=base, steps=None, pixels=math.prod(largest)))
    return tuple(apart)


def _steps(n: int, step: int) -> list[tuple[int, int, int]]:
    """(first step, steps, elements of each) of n elements: those of whole steps, and what is left of them."""
    whole, rest = divmod(n, step)
    return [(0, whole, step), *([(whole, 1, rest)] if rest else [])]


def product_call(
    part: Part, kind: np.dtype[Any], x: Argument, y: Argument, ends: Ends, context: PlanningContext
) -> KernelCall:
    """One implicit product of elements of this kind."""
    dtype, lanes = kind.name, context.target.vector_lanes
    window, constant = part.window, isinstance(part.weights, np.ndarray)
    blocks = _cut(window, dtype, lanes, context.threads, constant=constant)
    valid = np.zeros((1, 1), np.uint8)
    if window.is_same:
        valid = window.valid_pixels(window.pixels + 64)  # whole vectors are read
    sizes = _sizes(part, blocks, ends, kind, lanes, valid.shape[1])
    pointer = f"{dtype}*"
    operands: Operands = (
        *of_type(pointer, x, _packed(part, blocks, lanes), y, ends.bias, ends.residual, ends.scalars),
        ("int64*", Constant(window.tap_table())),
        ("uint8*", Constant(valid)),
        size_operand(sizes),
        (pointer, Workspace(sizes.work_step * kind.itemsize, per_thread=True)),
        *ends.operands,
    )
    units = window.batch * window.groups * -(-window.pixels // blocks.n) * -(-window.outputs // blocks.part)
    return typed_call(
        "app.kernels.cpu.conv:emit_implicit", operands, units, static=(dtype, lanes, *ends.epilogue.static)
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Workspace of a thread, in elements: sums of a block, a spare tile, panels of pixels and turned ones."""

    panel_row: int
    sums_row: int
    sums: int
    spare: int
    whole: int


def _work(window: Window, blocks: Blocks, kind: np.dtype[Any], lanes: int, *, staged: bool) -> Work:
    panel_row = blocking.panel_row(blocks.n, kind.itemsize)
    # Sums stay from chunk to chunk of the reduction; without chunks each block is stored at once.
    channels = blocks.part if window.depth > blocks.k else blocks.m
    sums_row = blocking.panel_row(channels if blocks.turned else blocks.n, kind.itemsize)
    sums = 0
    if staged or window.depth > blocks.k:
        sums = sums_row * (blocks.n if blocks.turned else channels)
    spare = tiles.spare(kind.name, lanes)
    whole = sums + spare + (blocks.k + 1) * panel_row + blocks.turned * blocks.k * blocks.n
    whole = blocking.balanced(whole, whole, blocking.LINE // kind.itemsize)
    return Work(panel_row, sums_row, sums, spare, whole)


def _sizes(
    part: Part, blocks: Blocks, ends: Ends, kind: np.dtype[Any], lanes: int, valid_row: int
) -> ConvSizes:
    window = part.window
    staged = blocks.turned or part.steps is not None or bool(ends.epilogue.recipe)
    work = _work(window, blocks, kind, lanes, staged=staged)
    return ConvSizes(
        packed=isinstance(part.weights, np.ndarray),
        turned=blocks.turned,
        staged=staged,
        same=window.is_same,
        scatter=part.steps is not None,
        valid_row=valid_row,
        channels=window.channels,
        **dict(zip(("d", "h", "w"), window.size)),
        **dict(zip(("rows", "columns"), window.out[1:])),
        **dict(zip(("stride_d", "stride_h", "stride_w"), window.stride)),
        tap_count=window.taps,
        groups=window.groups,
        outputs=window.outputs,
        pixels=window.pixels,
        block_m=blocks.m,
        part_m=blocks.part,
        block_n=blocks.n,
        block_k=blocks.k,
        panel_row=work.panel_row,
        sums_row=work.sums_row,
        sums_size=work.sums,
        spare_size=work.spare,
        work_step=work.whole,
        y_channel=part.pixels or window.pixels,
        y_base=part.base,
        **dict(zip(("y_d", "y_h", "y_w"), part.steps or (0, 0, 0))),
        flags=ends.flags,
    )


def _packed(part: Part, blocks: Blocks, lanes: int) -> Argument:
    """The weights as the tiles read them."""
    weights = part.weights
    if not isinstance(weights, np.ndarray):
        return weights
    if blocks.turned:
        width = tiles.columns_of(weights.dtype.name, lanes)
        return Constant(lambda: tiles.pack_columns(np.swapaxes(weights, 1, 2), width), part.name)
    rows = blocks.m
    return Constant(lambda: np.concatenate([tiles.pack_rows(w, rows, lanes) for w in weights]), part.name)


def epilogue_arguments(group: Group, kind: np.dtype[Any], bias_at: int = 2) -> Ends:
    """Bias, the input at that position, and epilogue of a group."""
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    nothing = Constant(np.zeros(1, kind))
    given = graph.input_at(group.anchor, bias_at)
    bias: Argument | None = given
    fixed = graph.constant(given)
    extra = epilogue.bias(graph.static_shape(group.outputs[0])[1], kind)
    if extra is not None:
        bias = Constant(extra if fixed is None else extra + fixed, epilogue.biases[0][0].name or "")
    flags = (
        ROW_BIAS * (bias is not None) | RESIDUAL * (epilogue.residual is not None) | CLAMP * epilogue.clamps
    )
    scalars = Constant(epilogue.scalars(kind))
    residual = epilogue.residual or nothing
    return Ends(bias or nothing, residual, scalars, flags, epilogue, epilogue.arguments)


def _cost(seen: Callable[[Group], tuple[Window, ...]]) -> Cost:
    def cost(group: Group, context: PlanningContext) -> float:
        kind = graph.element_type(group.outputs[0])
        lanes = context.target.vector_lanes
        work, computed = 1.0, 1.0
        for window in seen(group):
            own = window.pixels * window.depth * window.outputs
            waste = min(_plain_cost(window, kind.name, lanes), _turned_cost(window, kind.name, lanes))
            work += own
            # Packing costs as much as some channels more.
            computed += own * waste * (1.0 + 6.0 / max(window.outputs, 1))
        return group_roofline(group, context, flops(group) * computed / work * kind.itemsize / 4, 0.65)

    return cost


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    return epilogues.inplace(group, 1)


IMPLEMENTATIONS = (
    Implementation(
        "conv.implicit_gemm",
        "Conv",
        "numba-cpu",
        rejection,
        _lower(_conv_parts),
        cost=_cost(lambda group: (conv_geometry.of_conv(group).flat(),)),
        inplace=_inplace,
        rank=1,
    ),
    Implementation(
        "conv_transpose.residues",
        "ConvTranspose",
        "numba-cpu",
        rejection,
        _lower(_transpose_parts),
        cost=_cost(lambda group: tuple(p.window for p in conv_geometry.of_conv_transpose(group.anchor))),
        inplace=_inplace,
    ),
)
