"""Rows of convolutions."""

from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu import blocking, epilogues, windows
from app.engine.backends.numba_cpu.windows import Window
from app.engine.cost import flops, roofline
from app.engine.plan import Argument, Constant, Group, KernelCall, Workspace
from app.engine.registry import Implementation, Known
from app.kernels.cpu import tiles

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")
# Flags of a tile, as in app.kernels.cpu.generator, which planning does not import.
ROW_BIAS, RESIDUAL, CLAMP = 4, 16, 32


def _refusal(group: Group, _known: Known) -> str | None:
    """What no convolution of this backend computes."""
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
    kind = graph.dtype(group.anchor.outputs[0])
    assert kind is not None
    if kind.name not in DTYPES:
        return f"elements are {kind}; this one computes {', '.join(DTYPES)}"
    if any(graph.dtype(v) != kind for v in group.inputs):
        return "operands differ in type"
    rank = len(graph.static_shape(group.anchor.outputs[0])) - 2
    if not 1 <= rank <= 3:
        return f"{rank} spatial axes; this one has 1 to 3"
    epilogue = epilogues.read(group, 1)
    if isinstance(epilogue, str):
        return epilogue
    bias = graph.input_at(group.anchor, 2)
    if epilogue.biases and bias is not None and not graph.is_constant(bias):
        return f"two biases, of which {bias.name!r} changes between runs"
    return None


def _implicit_lower(group: Group, known: Known) -> tuple[KernelCall, ...]:
    node = group.anchor
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    x, weights = node.inputs[:2]
    assert x is not None
    assert weights is not None
    kind = graph.dtype(y)
    assert kind is not None
    dtype, lanes, item = kind.name, known.target.vector_lanes, kind.itemsize
    window = windows.of_conv(node)
    window = window.flat() if window.is_pointwise else window
    deep = window.channels * window.taps
    chunk = blocking.depth(deep, item)
    width = tiles.columns_of(dtype, lanes)
    images = window.batch * window.groups
    block_n = blocking.balanced(window.pixels, max(blocking.PACKED // (chunk * item), 7 * width), width)
    parts = _parts(window, block_n, images, deep, known.threads)
    block_m = blocking.rows_block(-(-window.outputs // parts), chunk, item, lanes)
    part_m = blocking.balanced(window.outputs, -(-window.outputs // parts) + block_m - 1, block_m)
    panel_row = blocking.panel_row(block_n, item)
    sums = part_m * block_n if deep > chunk else 0
    own = sums + (chunk + 1) * panel_row
    units = images * -(-window.pixels // block_n) * -(-window.outputs // part_m)

    array = graph.constant(weights)
    packed: Argument = weights
    if array is not None:
        matrices = array.reshape(window.groups, window.outputs, deep)
        panels = [tiles.pack_rows(matrix, block_m, lanes) for matrix in matrices]
        packed = Constant(np.concatenate(panels), weights.name or "")
    bias, residual, scalars, flags = _epilogue_arguments(group, window, kind)
    valid = np.zeros((1, 1), np.uint8)
    if window.is_same:
        valid = window.valid_pixels(window.pixels + 64)  # whole vectors are read
    pointer = f"{dtype}*"
    numbers = (
        array is not None, window.is_same, valid.shape[1], window.channels, *window.size, *window.out[1:], *window.stride, window.taps,
        window.groups, window.outputs, window.pixels, block_m, part_m, block_n, chunk, panel_row,
        sums, own, flags,
    )  # fmt: skip
    operands: tuple[tuple[str, Argument], ...] = (
        (pointer, x),
        (pointer, packed),
        (pointer, y),
        (pointer, bias),
        (pointer, residual),
        (pointer, scalars),
        ("int64*", Constant(window.tap_table())),
        ("uint8*", Constant(valid)),
        (pointer, Workspace(own * item, per_thread=True)),
        *(("int64", int(n)) for n in numbers),
    )
    return (
        KernelCall(
            "app.kernels.cpu.conv:emit_implicit",
            tuple(t for t, _ in operands),
            tuple(a for _, a in operands),
            units,
            static=(dtype, lanes),
            takes_thread=True,
        ),
    )


def _parts(window: Window, block_n: int, images: int, deep: int, threads: int) -> int:
    """Into how many parts the output channels go, each of which packs its pixels anew."""
    blocks = -(-window.pixels // block_n)
    again = 6.0 / window.outputs  # packing once over the product
    best, seconds = 1, blocking.longest_share(images * blocks, threads) * (1 + again)
    for parts in (threads, 2 * threads):
        if window.outputs >= 16 * parts:
            took = blocking.longest_share(images * blocks * parts, threads) * (1 + again * parts)
            if took < 0.98 * seconds:
                best, seconds = parts, took
    return best


def _epilogue_arguments(
    group: Group, window: Window, kind: np.dtype[Any]
) -> tuple[Argument, Argument, Argument, int]:
    """Bias, residual, scalars and flags of the tiles."""
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    nothing = Constant(np.zeros(1, kind))
    given = graph.input_at(group.anchor, 2)
    bias: Argument | None = given
    fixed = graph.constant(given)
    extra = epilogue.bias(window.groups * window.outputs, kind)
    if extra is not None:
        bias = Constant(extra if fixed is None else extra + fixed, epilogue.biases[0][0].name or "")
    limits = [
        -np.inf if epilogue.low is None else epilogue.low,
        np.inf if epilogue.high is None else epilogue.high,
    ]
    scalars = np.array([1, 1, *limits] if kind.kind == "f" else [1, 1, 0, 0], kind)
    flags = (
        ROW_BIAS * (bias is not None) | RESIDUAL * (epilogue.residual is not None) | CLAMP * epilogue.clamps
    )
    return bias or nothing, epilogue.residual or nothing, Constant(scalars), flags


def _implicit_cost(group: Group, known: Known) -> float:
    window = windows.of_conv(group.anchor)
    kind = graph.dtype(group.outputs[0])
    assert kind is not None
    lanes = known.target.vector_lanes
    vector = tiles.lanes_of(kind.name, lanes)
    rows = sum(max(size, 4) for _, size in tiles.row_groups(window.outputs, window.outputs, lanes))
    wasted = rows * -(-window.pixels // vector) * vector / max(window.outputs * window.pixels, 1)
    packing = 1.0 + 6.0 / max(window.outputs, 1)
    return roofline(
        known.target,
        flops=flops(group) * wasted * packing * kind.itemsize / 4,
        nbytes=sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)),
        efficiency=0.9,
        threads=known.threads,
    )


def _inplace(group: Group, _known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The residual, unless the convolution reads it too; a tile reads it before it stores there."""
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    residual = epilogue.residual
    if residual is None or graph.is_constant(residual) or residual in group.anchor.inputs:
        return ()
    return ((residual, group.outputs[0]),)


IMPLEMENTATIONS = (
    Implementation(
        "conv.implicit_gemm",
        "Conv",
        "numba-cpu",
        _refusal,
        _implicit_lower,
        cost=_implicit_cost,
        inplace=_inplace,
        rank=1,
    ),
)
