"""Tensors of a plan as kernels for GPUs see them: element types, strides in a layout, reasons why not."""

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.types.layout import Layout, channels_last
from app.kernels.cuda.geometry import LIMIT, NBYTES, Strided, broadcast, contiguous

FLOATS = ("float32", "float16", "bfloat16")
VECTOR = 16  # byte of an asynchronous copy
MOVED = tuple(NBYTES)  # what can be copied; float64 is not computed with


def aligned(count: int, dtype: str) -> int:
    """Elements filled up to a multiple of 16 bytes, what one copy moves."""
    vector = VECTOR // NBYTES[dtype]
    return -(-count // vector) * vector


def element(value: ir.Value) -> str:
    """Name of a value's element type."""
    return graph.element_type(value).name


def group_rejection(group: Group, dtypes: Sequence[str] = MOVED, *, single: bool = True) -> str | None:
    """Rejection of a group by kernels for static tensors of these types, or None."""
    if single and len(group.nodes) > 1:
        return f"{group.op} takes no epilogue, the group has {len(group.nodes)} nodes"
    return next(filter(None, (untyped(v, dtypes) for v in (*group.inputs, *group.outputs))), None)


def empty(group: Group) -> str | None:
    """Rejection of a group with an operand that has no elements, or None."""
    found = any(graph.elements(v) == 0 for v in (*group.inputs, *group.outputs))
    return "an operand is empty" if found else None


def untyped(value: ir.Value, dtypes: Sequence[str]) -> str | None:
    """Rejection of a value that is no static tensor of one of these types, or None."""
    if not graph.is_tensor(value):
        return f"value {value.name!r} is no tensor of numbers"
    if graph.is_dynamic(value):
        return f"value {value.name!r} has the dynamic shape {value.shape}"
    if element(value) not in dtypes:
        return f"value {value.name!r} is {element(value)}; this one takes {', '.join(dtypes)}"
    if graph.elements(value) >= LIMIT:
        return f"value {value.name!r} has {graph.elements(value)} elements, indices reach {LIMIT - 1}"
    return None


def not_floats(group: Group, *values: ir.Value | None) -> str | None:
    """Rejection of values, or all of a group's, that are not of one floating-point type, or None."""
    given = [v for v in values if v is not None] or [*group.inputs, *group.outputs]
    for value in given:
        reason = untyped(value, FLOATS)
        if reason is not None:
            return reason
        if element(value) != element(given[0]):
            return f"{value.name!r} is {element(value)}, {given[0].name!r} is {element(given[0])}"
    return None


def is_image(value: ir.Value) -> bool:
    """True if a value has batch, channels, and a width, which may have a height before it."""
    found = graph.shape(value)
    return found is not None and len(found) in (3, 4)


def not_image(value: ir.Value | None) -> str | None:
    """Rejection of a value that is no image of floating point, or None."""
    if value is None:
        return "an operand is omitted"
    reason = untyped(value, FLOATS)
    if reason is None and not is_image(value):
        reason = f"{value.name!r} has {len(graph.static_shape(value))} axes; images have 3 or 4"
    return reason


def last_of(value: ir.Value) -> Layout:
    """The layout of an image with its channels last."""
    return channels_last(len(graph.static_shape(value)))


def lasts(values: Iterable[ir.Value]) -> dict[ir.Value, Layout]:
    """Images, all with their channels last."""
    return {v: last_of(v) for v in values}


def last_strides(shape: Sequence[int], pitch: int = 0) -> tuple[int, ...]:
    """Elements from one index to the next of batch, channel and place, where channels lie last.

    `pitch` is from one pixel to the next, by default the channels.
    """
    n, c, *places = shape
    batch, *rest = (s * (pitch or c) for s in contiguous((n, *places)))
    return (batch, 1, *rest)


def strided(value: ir.Value, *, last: bool = False, start: int = 0) -> Strided:
    """A value by its logical axes, row-major or with its channels last."""
    shape = graph.static_shape(value)
    return Strided(element(value), last_strides(shape) if last else contiguous(shape), start)


def read_as(value: ir.Value, shape: Sequence[int], to: Sequence[int], *, last: bool = False) -> Strided:
    """A value of `shape`, which may have fewer axes, as it is broadcast to another shape."""
    if not last:
        return Strided(element(value), broadcast(shape, to))
    own = last_strides(shape)
    return Strided(element(value), tuple(0 if n == 1 else s for n, s in zip(shape, own)))


def in_memory_order(tensor: Strided, layout: Layout) -> Strided:
    """The axes in the order in which they lie in a layout."""
    return Strided(tensor.dtype, tuple(tensor.strides[a] for a in layout.order), tensor.start)


def lie_alike(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """True if strides lead to the same elements; along an axis of one, none counts."""
    return all(n == 1 or x == y for n, x, y in zip(shape, a, b))
