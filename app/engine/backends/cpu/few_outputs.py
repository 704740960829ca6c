"""Rows of convolutions to few channels, over row-major images: networks that make images or masks end so."""

from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking, conv
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry, epilogues
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.few_outputs import FewOutputsSizes

DTYPES = ("float32", "float64")
REGISTERS = {4: 16, 8: 16, 16: 32}  # by float32 lanes: sums, a vector of each column, and one of weights
VECTORS = 8  # of columns of a tile, at most
PANEL = 2 / 3  # of the first cache, that the rows of a strip which a tile reads may take
# Costs beside those of products, measured on Sapphire Rapids with registers of 8 and 16 float32:
EFFICIENCY = 0.65
TILE = 40.0  # steps of the reduction, as long as a tile takes to end and begin again for each tap
COPY = 16.0  # operations, as long as an element of the input takes


@after(conv.rejection)
def _rejection(group: Group, context: PlanningContext) -> str | None:
    weights, kind = graph.operand(group.anchor, 1), graph.element_type(group.outputs[0])
    if not graph.is_constant(weights):
        return f"weights {weights.name!r} change between runs; this one packs them offline"
    if kind.name not in DTYPES:
        return f"elements are {kind}; this one computes {', '.join(DTYPES)}"
    window = conv_geometry.of_conv(group)
    largest = context.target.vector_lanes // 2
    if window.groups > 1 or window.outputs > largest:
        found = f"{window.groups} x {window.outputs} channels of the output"
        return f"{found}; this one computes 1 x {largest} at most"
    if window.offsets[0] != (0,) or window.size[0] != 1:
        return "three spatial axes; this one takes one or two"
    if window.taps == 1:
        return "one tap; nothing is read twice"
    across = window.offsets[1]
    if window.stride[2] != 1 or across != tuple(range(across[0], across[0] + len(across))):
        return "strides along the width, or taps that lie apart down the height"
    nbytes = len(across) * _line(window, kind, context) * kind.itemsize
    if nbytes > blocking.second_cache(context.target):
        return f"{nbytes} byte of lines of the input for one of the output; the second cache has less"
    return None


def _vectors(window: Window, kind: np.dtype[Any], lanes: int) -> int:
    """Vectors of columns of a tile: equal parts of a row of the output."""
    most = min((REGISTERS[lanes] - 1) // (window.outputs + 1), VECTORS)
    return blocking.balanced(-(-window.out[2] // tiles.lanes_of(kind.name, lanes)), most, 1)


def _line(window: Window, kind: np.dtype[Any], context: PlanningContext) -> int:
    """Elements of a line of all channels in a strip; tiles read whole vectors, and copies write them."""
    lanes, along = tiles.lanes_of(kind.name, context.target.vector_lanes), window.offsets[2]
    columns = _vectors(window, kind, context.target.vector_lanes) * lanes
    whole = -(-window.out[2] // columns) * columns
    return window.channels * blocking.panel_row(whole + along[-1] - along[0] + lanes, kind.itemsize)


def _sizes(
    window: Window, kind: np.dtype[Any], vectors: int, flags: int, context: PlanningContext
) -> FewOutputsSizes:
    """Strips that half the second cache holds, and as many as threads share evenly."""
    lanes = context.target.vector_lanes
    columns = vectors * tiles.lanes_of(kind.name, lanes)
    _, across, along = window.offsets
    line = _line(window, kind, context)
    lines = blocking.second_cache(context.target) // (2 * line * kind.itemsize)
    rows = max((lines - len(across)) // window.stride[1] + 1, 1)
    shares = -(-context.threads * 4 // window.batch) if context.threads > 1 else 1
    rows = blocking.balanced(window.out[1], min(rows, -(-window.out[1] // shares)), 1)
    strip = ((rows - 1) * window.stride[1] + len(across)) * line
    sums = window.outputs * columns
    spare = max(sums, 256)
    return FewOutputsSizes(
        channels=window.channels,
        h=window.size[1],
        w=window.size[2],
        outputs=window.outputs,
        rows=window.out[1],
        columns=window.out[2],
        stride=window.stride[1],
        high=len(across),
        wide=len(along),
        top=across[0],
        left=along[0],
        strip_rows=rows,
        strip_row=line // window.channels,
        strip_size=strip,
        sums_size=sums,
        depth=_depth(window, kind, columns, context),
        work_step=blocking.balanced(
            strip + sums + spare, strip + sums + spare, blocking.LINE // kind.itemsize
        ),
        flags=flags,
    )


def _depth(window: Window, kind: np.dtype[Any], columns: int, context: PlanningContext) -> int:
    """Steps of the reduction at once, over taps down the height and channels."""
    most = int(PANEL * context.target.caches[0]) // (columns * kind.itemsize)
    return blocking.balanced(len(window.offsets[1]) * window.channels, max(most, 1), 1)


def _packed(weights: ir.Value) -> Constant:
    """Weights [outputs, channels, high, wide] as [wide, high * channels, outputs]."""
    array = graph.array(weights)

    def panels() -> np.ndarray[Any, Any]:
        whole = array.reshape(*array.shape[:2], *(1,) * (4 - array.ndim), *array.shape[2:])
        return np.ascontiguousarray(whole.transpose(3, 2, 1, 0))

    return Constant(panels, weights.name or "")


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    x, y = graph.operand(group.anchor, 0), group.outputs[0]
    if graph.elements(y) == 0:
        return ()
    kind, lanes = graph.element_type(y), context.target.vector_lanes
    window, ends = conv_geometry.of_conv(group), conv.epilogue_arguments(group, kind)
    vectors = _vectors(window, kind, lanes)
    sizes = _sizes(window, kind, vectors, ends.flags, context)
    pointer, weights = f"{kind.name}*", _packed(graph.operand(group.anchor, 1))
    operands: Operands = (
        *of_type(pointer, x, weights, y, ends.bias, ends.residual, ends.scalars),
        ("int64*", Constant(np.array(window.offsets[2], np.int64))),
        size_operand(sizes),
        (pointer, Workspace(sizes.work_step * kind.itemsize, per_thread=True)),
        *ends.operands,
    )
    units = window.batch * -(-sizes.rows // sizes.strip_rows)
    static = kind.name, lanes, (window.outputs, vectors), *ends.epilogue.static
    return (typed_call("app.kernels.cpu.few_outputs:emit", operands, units, static=static),)


def _cost(group: Group, context: PlanningContext) -> float:
    window, kind = conv_geometry.of_conv(group), graph.element_type(group.outputs[0])
    lanes = context.target.vector_lanes
    vectors = _vectors(window, kind, lanes)
    columns = vectors * tiles.lanes_of(kind.name, lanes)
    computed = flops(group) * -(-window.out[2] // columns) * columns / max(window.out[2], 1)
    # Two loads in the time of two products; vectors lie across cache lines, which takes another load.
    split = min(tiles.lanes_of(kind.name, lanes) * kind.itemsize / blocking.LINE, 1.0)
    computed *= max((vectors * (1 + split) + window.outputs + 1) / (vectors * window.outputs), 1.0)
    computed *= 1 + TILE / _depth(window, kind, columns, context)
    copied = COPY * window.batch * window.channels * window.size[1] * window.size[2]
    return group_roofline(group, context, (computed + copied) * kind.itemsize / 4, EFFICIENCY)


IMPLEMENTATIONS = (
    Implementation(
        "conv.few_outputs",
        "Conv",
        "numba-cpu",
        _rejection,
        _lower,
        cost=_cost,
        inplace=lambda group, _context: epilogues.inplace(group, 1),
        rank=1,
    ),
)
