"""Rows of operators whose results have a size that their kernels find out.

A step is a call from Python, which gives the kernel the shapes of this run: results, and operands that are
results of such steps, are objects of the host. Scratch grows with the operands and is kept.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import HALVES, type_name
from app.engine.backends.cpu.rows import group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, HostCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, Lower, PlanningContext, Rejection
from app.kernels.cpu import radix, selection
from app.kernels.cpu.runtime.compiler import Request, with_numbers

Array: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Callable[[Sequence[object | None]], list[object]]
# A call, and the arrays whose addresses it holds.
Bound: TypeAlias = tuple[Callable[[], list[object]], Sequence[Array | None]]
Bind: TypeAlias = Callable[[Sequence[Array | None]], Bound]
Kernels: TypeAlias = Sequence[Callable[..., None]]
Requests: TypeAlias = Callable[[Group], tuple[Request, ...]]

SCRATCH = 2**16  # elements of results that are written without counting them first
CALL_SECONDS = 4e-6  # of a call from Python
KINDS = (
    *("float32", "float64", "bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
_MODULE = "app.kernels.cpu.selection"
# Types of what `suppress` is given the addresses of.
SUPPRESSED = ("float32", "float32", "int64", "float32", "float32", *("int64",) * 4, "float32")


def _request(kernel: str, pointers: tuple[str, ...], numbers: int, static: Any = None) -> Request:
    return f"{_MODULE}:{kernel}", (*(f"{p}*" for p in pointers), *["int64"] * numbers), static, False


def address(array: Array) -> int:
    """Address of the first element."""
    return int(array.__array_interface__["data"][0])


def bound(bind: Bind) -> Run:
    """A run that binds a call to its operands where they are others than in the run before.

    Operands in the memory of a program are the same arrays in every run; their elements change.
    """
    known: Sequence[object | None] = ()
    call: Callable[[], list[object]] | None = None
    kept: Sequence[Array | None] = ()

    def run(values: Sequence[object | None]) -> list[object]:
        nonlocal known, call, kept
        if call is None or (values is not known and any(a is not b for a, b in zip(values, known))):
            arrays = tuple(None if v is None else np.asarray(v, order="C") for v in values)
            call, kept = bind(arrays)
            if any(a is not v for a, v in zip(arrays, values, strict=True)):
                once, call = call, None  # a copy, which does not see the next run's elements
                return once()
            known = values
        return call()

    return run


def _rejection(*kinds: str) -> Rejection:
    """Rejection of what is not one node with a result of unknown size, and a first input of these types."""

    def rejection(group: Group, _context: PlanningContext) -> str | None:
        if len(group.nodes) > 1:
            return f"{group.op} takes no epilogue, the group has {len(group.nodes)} nodes"
        for value in (*group.inputs, *group.outputs):
            if not graph.is_tensor(value):
                return f"value {value.name!r} is no tensor of fixed-size elements"
        if all(graph.shape(v) is not None for v in group.outputs):
            return "all results have sizes that are known when it is planned"
        kind = type_name(graph.operand(group.anchor, 0))
        return None if kind in kinds else f"elements are {kind}; the kernel takes {', '.join(kinds)}"

    return rejection


def _lower(function: str, requests: Requests) -> Lower:
    def lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
        node = group.anchor
        named = tuple(v for v in node.outputs if v.name)
        return (HostCall(f"{__name__}:{function}", node, tuple(node.inputs), named, kernels=requests(group)),)

    return lower


def _cost(group: Group, context: PlanningContext) -> float:
    static = [graph.elements(v) for v in group.inputs if graph.shape(v) is not None]
    return CALL_SECONDS + group_roofline(group, context, 4.0 * sum(static), 0.02, 8.0 * sum(static))


def _present(array: Array | None) -> Array:
    if array is None:
        raise ValueError("an operand is left out that the operator needs")
    return array


def _nonzero_requests(group: Group) -> tuple[Request, ...]:
    kind = type_name(graph.operand(group.anchor, 0))
    return (
        _request("count_nonzero", (kind, "int64"), 1),
        _request("nonzero", (kind, "int64", "int64", "int64"), 4),
    )


def prepare_nonzero(_node: ir.Node, kernels: Kernels) -> Run:
    """NonZero; where there may be many places they are counted first."""
    count, write = kernels

    def bind(arrays: Sequence[Array | None]) -> Bound:
        x = _present(arrays[0])
        rank, found, place = max(x.ndim, 1), np.zeros(1, np.int64), address(x)
        shape = np.array(x.shape[:-1] or (1,), np.int64)
        columns = x.shape[-1] if x.ndim else 1
        rows = x.size // columns if columns else 0
        most = rank * x.size + 1
        scratch = np.empty(most if most <= SCRATCH else 0, np.int64)
        numbers = place, address(scratch), address(found), address(shape), rank, -1, rows, columns, 0, 1
        at_once = with_numbers(write, numbers)
        counted = with_numbers(count, (place, numbers[2], x.size, 0, 1))

        def few() -> list[object]:
            at_once()
            places = found.item()
            return [scratch[: x.ndim * places].reshape(x.ndim, places)]

        def many() -> list[object]:
            counted()
            places = found.item()
            y = np.empty(rank * places + 1, np.int64)
            write(place, address(y), *numbers[2:5], places, *numbers[6:])
            return [y[:-1].reshape(rank, places)]

        return (few if scratch.size else many), (x, scratch, found, shape)

    return bound(bind)


def _compress_requests(group: Group) -> tuple[Request, ...]:
    width = f"uint{8 * graph.element_type(graph.operand(group.anchor, 0)).itemsize}"
    return (
        _request("count_nonzero", ("uint8", "int64"), 1),
        _request("compress", (width, "uint8", width, "int64", "int64"), 4),
    )


def prepare_compress(node: ir.Node, kernels: Kernels) -> Run:
    """Compress along an axis, or of the flat elements."""
    count, write = kernels
    axis = graph.attribute(node, "axis", None)

    def bind(arrays: Sequence[Array | None]) -> Bound:
        x, condition = _present(arrays[0]), _present(arrays[1])
        found = np.zeros(1, np.int64)
        before, n, after = _around(x, axis)
        limit = min(condition.size, n)
        chosen, y = np.empty(limit + 1, np.int64), np.empty(0, x.dtype)
        outer, inner = math.prod(before), math.prod(after)
        numbers = address(chosen), address(found), limit, outer, n, inner, 0, 1
        counted = with_numbers(count, (address(condition), numbers[1], limit, 0, 1))
        take = counted
        slices, is_front = y, outer == 1 and not before

        def hold(taken: int) -> None:
            nonlocal y, slices, take
            y = np.empty(outer * taken * inner, x.dtype)
            slices = y.reshape(taken, *after) if is_front else y
            take = with_numbers(write, (address(x), address(condition), address(y), *numbers))

        def call() -> list[object]:
            if y.size < x.size:  # there may be more than there is memory for
                counted()
                if y.size < outer * found.item() * inner:
                    hold(found.item())
            take()
            taken = found.item()
            if is_front:
                return [slices[:taken]]
            return [y[: outer * taken * inner].reshape(*before, taken, *after)]

        hold(n if x.size <= SCRATCH else 0)
        return call, (x, condition, chosen, found)

    return bound(bind)


def _around(x: Array, axis: int | None) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Extents before an axis, along it and after it; of the flat elements without one."""
    if axis is None:
        return (), x.size, ()
    axis %= x.ndim
    return x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]


def _unique_requests(group: Group) -> tuple[Request, ...]:
    kind = graph.element_type(graph.operand(group.anchor, 0))
    bits = 8 * kind.itemsize
    static = kind.kind == "i", kind.kind == "f", bits
    pointers = (*(f"uint{bits}",) * 2, *("int64",) * 6)
    return (_request("unique", pointers, 4, static),)


def prepare_unique(node: ir.Node, kernels: Kernels) -> Run:
    """Unique of the flat elements, or of slices along an axis."""
    (write,) = kernels
    axis = graph.attribute(node, "axis", None)
    is_sorted = graph.attribute(node, "sorted", 1)
    named = [i for i, v in enumerate(node.outputs) if v.name]
    histogram, found = np.zeros(radix.BUCKETS, np.int64), np.zeros(1, np.int64)

    def bind(arrays: Sequence[Array | None]) -> Bound:
        x = _present(arrays[0])
        before, n, after = _around(x, axis)
        outer, inner = math.prod(before), math.prod(after)
        first, inverse, counts, spare = (np.empty(n, np.int64) for _ in range(4))
        slices = np.empty(x.size, x.dtype)
        scratch = (x, slices, first, inverse, counts, spare, histogram, found)
        sort = with_numbers(write, (*map(address, scratch), outer, n, inner, is_sorted, 0, 1))

        def call() -> list[object]:
            sort()
            groups = found.item()
            y = slices[: outer * groups * inner].reshape(*before, groups, *after)
            results = (y, first[:groups], inverse, counts[:groups])
            return [results[i] for i in named]

        return call, scratch

    return bound(bind)


def kept_floats(boxes: int) -> int:
    """Numbers of scratch for so many boxes that are compared with."""
    return -(-boxes // selection.GROUP) * selection.GROUP * 5


def _suppress_requests(_group: Group) -> tuple[Request, ...]:
    return (_request("suppress", SUPPRESSED, 6),)


def prepare_suppress(node: ir.Node, kernels: Kernels) -> Run:
    """NonMaxSuppression; nothing is chosen where the number of boxes is left out."""
    (write,) = kernels
    center = graph.attribute(node, "center_point_box", 0)
    zero = np.zeros(1, np.float32)

    def bind(arrays: Sequence[Array | None]) -> Bound:
        boxes, scores, most, *limits = (*arrays, None, None, None)[:5]
        boxes, scores = _present(boxes), _present(scores)
        most = np.zeros(1, np.int64) if most is None else most
        limit, least = (zero if v is None else v for v in limits)
        batch, classes, n = scores.shape
        found, heap, valid = np.zeros(1, np.int64), np.empty(n + 1, np.int64), np.full(1, n)
        head = [address(a) for a in (boxes, scores, most, limit, least, valid)]
        tail = int(limits[1] is not None), center, 0, 1
        cap, y, kept = -1, np.empty((0, 3), np.int64), np.empty(0, np.float32)
        suppress: Callable[[], None] = lambda: None  # noqa: E731  # until there is memory for boxes

        def take(boxes_: int) -> None:
            nonlocal cap, y, kept, suppress
            cap, y = boxes_, np.empty((batch * classes * boxes_, 3), np.int64)
            kept = np.empty(kept_floats(boxes_), np.float32)
            scratch = map(address, (y, found, heap, kept))
            suppress = with_numbers(write, (*head, *scratch, batch, classes, n, cap, *tail))

        def call() -> list[object]:
            if cap < n and cap < (allowed := min(max(most.item(), 0), n)):
                take(allowed)
            suppress()
            return [y[: found.item()]]

        take(n if batch * classes * n <= SCRATCH else 0)
        return call, (boxes, scores, most, limit, least, heap, valid)

    return bound(bind)


IMPLEMENTATIONS = tuple(
    Implementation(name, op, "numba-cpu", rejection, _lower(function, requests), _cost)
    for name, op, rejection, function, requests in (
        ("nonzero.places", "NonZero", _rejection(*KINDS), "prepare_nonzero", _nonzero_requests),
        ("compress.slices", "Compress", _rejection(*KINDS, *HALVES), "prepare_compress", _compress_requests),
        ("unique.radix_sort", "Unique", _rejection(*KINDS), "prepare_unique", _unique_requests),
        (
            "non_max_suppression.heap",
            "NonMaxSuppression",
            _rejection("float32"),
            "prepare_suppress",
            _suppress_requests,
        ),
    )
)
