"""Rows of images: pooling, resizing, padding by tables; row-major and with channels last."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import Made, streaming
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext, Rejection
from app.engine.operators.axes import first_input, first_output, output_at
from app.engine.operators.operands import data, fixed_inputs
from app.engine.operators.pad_geometry import pad_axes, pad_rejection
from app.engine.operators.pool_geometry import windows
from app.engine.operators.resize_geometry import (
    nearest_indices,
    nearest_rejection,
    resized_axes,
    taps_along,
    taps_rejection,
)
from app.engine.types.layout import Layout, channels_last
from app.kernels.cuda.resample import MOST_TAPS, blend, lookup
from app.kernels.cuda.windows import Axis, pool

_POOLS = {"MaxPool": "max", "AveragePool": "average"}


def _order(rank: int, last: bool) -> tuple[int, ...]:
    return channels_last(rank).order if last else tuple(range(rank))


# Pooling.


def _pool_rejection(group: Group, _context: PlanningContext) -> str | None:
    x = first_input(group)
    whole = ("int8", "uint8") if group.op == "MaxPool" else ()
    reason = tensor_views.group_rejection(group) or tensor_views.untyped(x, (*tensor_views.FLOATS, *whole))
    if reason is not None:
        return reason
    rank = len(graph.static_shape(x))
    if not 3 <= rank <= 5:
        return f"pools 1 to 3 spatial axes, the input has rank {rank}"
    if output_at(group, 1) is not None:
        return "the indices are read"
    if min(graph.attribute(group.anchor, "pads", (0,)), default=0) < 0:
        return "padding must not be negative"
    return "an operand is empty" if graph.elements(first_output(group)) == 0 else None


@of_group
def _pool(group: Group, last: bool) -> Made:
    x, y = first_input(group), first_output(group)
    found = windows(group.anchor)
    shape = graph.static_shape(x)
    by_axis = (found.size, found.kernel, found.out, found.strides, found.dilations)
    axes = [Axis(*numbers) for numbers in zip(*by_axis, found.before, found.after)][2 - len(shape) :]
    counts = bool(graph.attribute(group.anchor, "count_include_pad", 0))
    launches = pool(_POOLS[group.op], shape[0], shape[1], axes, element(x), last=last, counts_padding=counts)
    return launches, {"x": x, "y": y}


# Elements copied from where tables tell: nearest Resize, Pad.


def _table_roles(x: ir.Value, y: ir.Value, tables: list[np.ndarray]) -> dict[str, Argument]:
    named = {f"t{k}": Constant(t.astype(np.int32)) for k, t in enumerate(tables)}
    return {"x": x, "y": y, **named}


def _looked_up(group: Group, indices: list[np.ndarray], last: bool, fill: int) -> Made:
    x, y = data(group.anchor), first_output(group)
    order = _order(len(indices), last)
    sizes, shape = graph.static_shape(x), graph.static_shape(y)
    tables, moved = [], []
    for place, axis in enumerate(order):
        plain = np.arange(sizes[axis])
        if sizes[axis] != shape[axis] or not np.array_equal(indices[axis], plain):
            moved.append(place)
            tables.append(indices[axis])
    launches = lookup([shape[a] for a in order], [sizes[a] for a in order], moved, element(x), fill)
    return launches, _table_roles(x, y, tables)


def _nearest_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = tensor_views.group_rejection(group, (*tensor_views.MOVED, "float64")) or nearest_rejection(
        group, context
    )
    if reason is None and graph.elements(data(group.anchor)) == 0:
        return "the input is empty"
    return reason


@of_group
def _nearest(group: Group, last: bool) -> Made:
    node = group.anchor
    fill = _bits(data(node), graph.attribute(node, "extrapolation_value", 0.0))
    return _looked_up(group, list(nearest_indices(node)), last, fill)


def _bits(like: ir.Value, value: object) -> int:
    """A number of an element's type as an integer."""
    kind = graph.element_type(like)
    return int(np.array([value]).astype(kind).view(f"i{kind.itemsize}")[0])


def _pad_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = tensor_views.group_rejection(group) or pad_rejection(group, context)
    value = graph.input_at(group.anchor, 2)
    if reason is None and value is not None and not graph.is_constant(value):
        return f"{value.name!r} changes between runs"
    if reason is None and graph.elements(data(group.anchor)) == 0:
        return "the input is empty"
    return reason


@of_group
def _pad(group: Group, last: bool) -> Made:
    fixed = graph.constant(graph.input_at(group.anchor, 2))
    value = 0 if fixed is None else fixed.reshape(-1)[0]
    return _looked_up(group, list(pad_axes(group.anchor)), last, _bits(data(group.anchor), value))


# Linear and cubic Resize.


def _blend_rejection(group: Group, context: PlanningContext) -> str | None:
    x = data(group.anchor)
    reason = tensor_views.untyped(x, tensor_views.FLOATS) or _single(group)
    if reason is None:
        reason = taps_rejection(group, context) if element(x) == "float32" else _half_rejection(group)
    if reason is None and graph.elements(x) == 0:
        return "the input is empty"
    if reason is None and len(_blended(group)) == 0:
        return "no axis is resized"
    if reason is None and np.prod([t.shape[1] for _, t, _ in _blended(group)]) > MOST_TAPS:
        return f"a result is blended from more than {MOST_TAPS} elements"
    return reason


def _half_rejection(group: Group) -> str | None:
    """`taps_rejection` of 16-bit floats, which kernels of processors do not have."""
    if graph.attribute(group.anchor, "mode", "nearest") not in ("linear", "cubic"):
        return "copies the nearest element"
    return fixed_inputs(group.anchor, (1, 2, 3))


def _single(group: Group) -> str | None:
    return f"{group.op} takes no epilogue" if len(group.nodes) > 1 else None


@of_group
def _blended(group: Group) -> tuple[tuple[int, np.ndarray, np.ndarray], ...]:
    """(axis, indices, weights) of the axes that are resized."""
    found = []
    for number, axis in enumerate(resized_axes(group.anchor)):
        if axis.size == axis.target and axis.scale == 1.0:
            continue
        indices, weights = taps_along(group.anchor, axis)
        found.append((number, indices, weights))
    return tuple(found)


@of_group
def _blend(group: Group, last: bool) -> Made:
    x, y = data(group.anchor), first_output(group)
    order = _order(len(graph.static_shape(x)), last)
    sizes, shape = graph.static_shape(x), graph.static_shape(y)
    by_place = sorted((order.index(axis), t, w) for axis, t, w in _blended(group))
    roles: dict[str, Argument] = {"x": x, "y": y}
    for k, (_, t, w) in enumerate(by_place):
        roles[f"t{k}"] = Constant(np.ascontiguousarray(t, np.int32))
        roles[f"w{k}"] = Constant(np.ascontiguousarray(w, np.float32))
    fill = float(graph.attribute(group.anchor, "extrapolation_value", 0.0))
    moved = [(place, t.shape[1]) for place, t, _ in by_place]
    launches = blend([shape[a] for a in order], [sizes[a] for a in order], moved, element(x), fill)
    return launches, roles


def _rows(
    name: str, op: str, rejection: Rejection, made: Callable[[Group, bool], Made]
) -> tuple[Implementation, ...]:
    """The row over row-major tensors, and that over images with channels last."""

    def last_rejection(group: Group, context: PlanningContext) -> str | None:
        x, y = group.anchor.inputs[0], group.anchor.outputs[0]
        return tensor_views.not_image(x) or tensor_views.not_image(y) or rejection(group, context)

    def layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
        return tensor_views.lasts((data(group.anchor), group.anchor.outputs[0]))

    return (
        streaming(name, op, rejection, lambda group: made(group, False), 1.5, rank=1),
        streaming(f"{name}_last", op, last_rejection, lambda group: made(group, True), layouts=layouts),
    )


IMPLEMENTATIONS = (
    *(row for op in _POOLS for row in _rows(f"cuda.{op.lower()}", op, _pool_rejection, _pool)),
    *_rows("cuda.resize_nearest", "Resize", _nearest_rejection, _nearest),
    *_rows("cuda.resize_linear", "Resize", _blend_rejection, _blend),
    *_rows("cuda.pad", "Pad", _pad_rejection, _pad),
)
