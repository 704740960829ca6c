"""Rows of what is done with values that are stored sparse while a program runs.

CastStorage and SparseRetain (domain stowplan) are logically the identity and a mask of rows; other
operators are ONNX's own, on operands that are csr or row_sparse.
"""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import after
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.elementwise import Formula, recipe_of
from app.engine.operators.indexing import INDEX_TYPES, axis_of
from app.engine.operators.operands import data
from app.engine.types.storage import SparseFormat, StorageKind

Array = np.ndarray[Any, Any]

RESULTS = {"Add": 0, "Sub": 1, "Mul": 2}  # of rows that are merged
KEEPERS = (
    "Abs Neg Sign Floor Ceil Round Sqrt Sin Tan Asin Atan Sinh Asinh Atanh Tanh Erf Relu LeakyRelu Mul Div"
)


def _second(group: Group) -> ir.Value:
    return graph.operand(group.anchor, 1)


def _y(group: Group) -> ir.Value:
    return group.outputs[0]


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why no value of the group can be sparse."""
    if len(group.outputs) != 1:
        return f"{len(group.outputs)} values leave the group; this one stores one"
    for value in (*group.inputs, *group.outputs):
        shape, kind = graph.shape(value), graph.dtype(value)
        if shape is None or kind is None:
            return f"value {value.name!r} has no static shape"
    kind = graph.dtype(_y(group))
    if kind not in (np.float32, np.float64):
        return f"elements are {kind}; sparse values are float32 or float64"
    return None if graph.elements(_y(group)) else "the output has no elements"


@after(_rejection)
def _csr_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why the output cannot be csr."""
    rank = len(graph.static_shape(_y(group)))
    return None if rank == 2 else f"the output has {rank} axes, csr has 2"


def packed(array: Array, form: SparseFormat) -> Array:
    """A dense array in the one buffer of its format, as bytes."""
    flat = array.reshape(form.rows, form.columns)
    buffer = np.zeros(form.nbytes, np.uint8)
    heads = buffer[: 4 * form.places].view(np.int64)
    places = buffer[4 * form.places :][: 4 * form.capacity].view(np.int32)
    values = buffer[form.values * form.itemsize :].view(array.dtype)
    if form.kind == "csr":
        rows, columns = np.nonzero(flat)
        heads[:] = np.searchsorted(rows, np.arange(form.rows + 1))
        places[: len(columns)] = columns
        values[: len(columns)] = flat[rows, columns]
    else:
        (kept,) = np.nonzero(flat.any(axis=1))
        heads[0] = len(kept)
        places[: len(kept)] = kept
        values[: len(kept) * form.columns] = flat[kept].reshape(-1)
    return buffer


def _sparse(
    value: ir.Value, kind: StorageKind, context: PlanningContext
) -> tuple[tuple[Operand, ...], SparseFormat]:
    """The three pointers to a sparse value, and its format; a constant is packed."""
    form = context.sparse(value, kind)
    array = graph.constant(value)
    held: Argument = value if array is None else Constant(lambda: packed(array, form), value.name or "")
    return (("int64*", held), ("int32*", held), (f"{graph.dtype(value)}*", held)), form


def _bytes(group: Group, context: PlanningContext) -> float:
    """Seconds to move all operands; the density of those is not known."""
    moved = 2 * sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
    return roofline(context.target, flops=2.0 * graph.elements(_y(group)), nbytes=moved, threads=1)


# Casts


def _casts(group: Group) -> tuple[str, str]:
    return graph.attribute(group.anchor, "source", "default"), graph.attribute(
        group.anchor, "stype", "default"
    )


def _cast(source: StorageKind, to: StorageKind, kernel: str) -> Implementation:
    kind: StorageKind = to if source == "default" else source

    def rejection(group: Group, context: PlanningContext) -> str | None:
        if _casts(group) != (source, to):
            return f"casts {' to '.join(_casts(group))}; this one {source} to {to}"
        return (_csr_rejection if kind == "csr" else _rejection)(group, context)

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        x, y = data(group.anchor), _y(group)
        sparse, form = _sparse(y if source == "default" else x, kind, context)
        by_rows = kernel == "dense_of_csr"
        sizes = (form.columns,) if by_rows else (form.rows, form.columns)
        ends = (*of_values(x), *sparse) if source == "default" else (*sparse, *of_values(y))
        operands: Operands = (*ends, *sizes, form.places, form.values)
        return (kernel_call(f"app.kernels.cpu.storage:{kernel}", operands, form.rows if by_rows else 1),)

    return Implementation(
        f"cast_storage.{kernel}",
        "CastStorage",
        "numba-cpu",
        rejection,
        lower,
        cost=_bytes,
        storage=lambda group, _context: {_y(group) if source == "default" else data(group.anchor): kind},
        domain="stowplan",
    )


# Elementwise


def _formula(group: Group) -> Formula | str:
    """The recipe of a group, its csr operand first."""
    strange = [n.op_type for n in group.nodes if n.op_type not in KEEPERS.split()]
    if strange:
        return f"{strange[0]} does not keep zero"
    first = _first(group)
    made: set[ir.Value] = {first}
    for node in group.nodes:
        if not made.intersection(v for v in node.inputs if v is not None):
            return f"{node.op_type} {node.name!r} does not follow the csr operand"
        if node.op_type == "Div" and node.inputs[0] not in made:
            return "divides by a sparse operand"
        made.update(node.outputs)
    return recipe_of(group.nodes, group.outputs, first=(first,))


def _first(group: Group) -> ir.Value:
    return group.inputs[0]


@after(_csr_rejection)
def _map_rejection(group: Group, _context: PlanningContext) -> str | None:
    formula = _formula(group)
    if isinstance(formula, str):
        return formula
    shape = graph.static_shape(_y(group))
    kind = graph.dtype(_y(group))
    for operand in formula.operands:
        if graph.dtype(operand.value) != kind:
            return "operands differ in type"
        if operand.value is _first(group) and operand.shape != shape:
            return f"the csr operand is broadcast to {list(shape)}"
        if len(operand.shape) > 2:
            return f"operand {operand.value.name!r} has {len(operand.shape)} axes"
    if sum(o.value is _first(group) for o in formula.operands) != 1:
        return "the csr operand is read in two ways"
    return None


def _index(shape: tuple[int, ...], rows: int, columns: int) -> str:
    """Where an operand of this shape is read at row i and `column`."""
    wide = (1,) * (2 - len(shape)) + shape
    return {
        (True, True): "i * n + column",
        (True, False): "i",
        (False, True): "column",
        (False, False): "0",
    }[wide[0] == rows != 1, wide[1] == columns != 1]


def _map_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    formula, y = _formula(group), _y(group)
    assert not isinstance(formula, str), formula
    source, form = _sparse(_first(group), "csr", context)
    target, into = _sparse(y, "csr", context)
    others = formula.operands[1:]
    operands: Operands = (
        *source,
        *of_values(*(o.value for o in others)),
        *target,
        *(form.rows, form.columns, form.places, form.values, into.places, into.values),
    )
    indices = tuple(_index(o.shape, form.rows, form.columns) for o in others)
    static = (formula.recipe, str(graph.dtype(y)), indices)
    return (kernel_call("app.kernels.cpu.storage:emit_map", operands, form.rows, static),)


@after(_rejection)
def _merge_rejection(group: Group, _context: PlanningContext) -> str | None:
    if len(group.nodes) > 1 or group.anchor.op_type not in RESULTS:
        return f"rows are merged by one of {', '.join(RESULTS)}"
    shapes = {graph.static_shape(v) for v in (*group.inputs, *group.outputs)}
    if len(shapes) > 1 or len(group.inputs) != 2:
        return "operands are not two of one shape"
    if len(graph.static_shape(_y(group))) < 1:
        return "operands have no rows"
    return None


def _merge_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    found = [_sparse(v, "row_sparse", context) for v in (*group.anchor.inputs, _y(group)) if v is not None]
    forms = [form for _, form in found]
    largest = max(forms, key=lambda f: f.capacity)
    operands: Operands = (
        *(pointer for pointers, _ in found for pointer in pointers),
        *(RESULTS[group.anchor.op_type], largest.columns),
        *(n for f in forms for n in (f.places, f.values)),
    )
    return (kernel_call("app.kernels.cpu.storage:merged_rows", operands, 1),)


# Products and rows


@after(_csr_rejection)
def _product_rejection(group: Group, _context: PlanningContext) -> str | None:
    if len(group.nodes) > 1:
        return f"takes no epilogue, the group has {len(group.nodes)} nodes"
    if any(len(graph.static_shape(v)) != 2 for v in group.inputs):
        return "operands are no matrices"
    if graph.is_constant(data(group.anchor)):
        return "a constant matrix is stored for its kernel"
    return None


def _product_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    y = _y(group)
    sparse, form = _sparse(data(group.anchor), "csr", context)
    sizes = graph.static_shape(y)[1], form.places, form.values
    operands: Operands = (*sparse, *of_values(_second(group), y), *sizes)
    return (kernel_call("app.kernels.cpu.storage:csr_product", operands, form.rows),)


@after(_rejection)
def _retain_rejection(group: Group, _context: PlanningContext) -> str | None:
    kind = str(graph.dtype(_second(group)))
    return None if kind in INDEX_TYPES else f"indices of dtype {kind}, expected int32 or int64"


def _retain_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    ids = _second(group)
    source, form = _sparse(data(group.anchor), "row_sparse", context)
    target, into = _sparse(_y(group), "row_sparse", context)
    operands: Operands = (
        *source,
        *of_values(ids),
        *target,
        *(graph.elements(ids), form.columns, form.places, form.values, into.places, into.values),
    )
    return (kernel_call("app.kernels.cpu.storage:retained", operands, 1),)


@after(_rejection)
def _gather_rejection(group: Group, context: PlanningContext) -> str | None:
    if len(group.nodes) > 1 or axis_of(group.anchor) != 0:
        return "rows are gathered along axis 0, without an epilogue"
    if str(graph.dtype(_second(group))) not in INDEX_TYPES:
        return f"indices of dtype {graph.dtype(_second(group))}, expected int32 or int64"
    table = data(group.anchor)
    if graph.is_constant(table) and _empty_rows(table, context) == 0:
        return f"no row of {table.name!r} is all zeros"
    return None


def _empty_rows(value: ir.Value, context: PlanningContext) -> int:
    def count(array: Array) -> int:
        return int(np.count_nonzero(~array.reshape(array.shape[0], -1).any(axis=1)))

    return graph.fact(value, "empty rows", count, context.cache) if graph.static_shape(value) else 0


def _gather_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    ids = _second(group)
    sparse, form = _sparse(data(group.anchor), "row_sparse", context)
    sizes = form.rows, form.columns, form.places, form.values
    operands: Operands = (*sparse, *of_values(ids, _y(group)), *sizes)
    return (kernel_call("app.kernels.cpu.storage:gathered_rows", operands, graph.elements(ids)),)


def _gather_cost(group: Group, context: PlanningContext) -> float:
    """A search for each row, then the row; a table that is left out of the caches costs its misses."""
    rows = graph.static_shape(data(group.anchor))[0]
    searched = graph.elements(_second(group)) * math.log2(max(rows, 2)) * 1.5e-9
    return searched + roofline(
        context.target, flops=0.0, nbytes=2 * graph.nbytes(_y(group)), threads=context.threads
    )


IMPLEMENTATIONS = (
    _cast("default", "csr", "csr_of_dense"),
    _cast("csr", "default", "dense_of_csr"),
    _cast("default", "row_sparse", "rows_of_dense"),
    _cast("row_sparse", "default", "dense_of_rows"),
    Implementation(
        "elementwise.csr",
        ELEMENTWISE,
        "numba-cpu",
        _map_rejection,
        _map_lower,
        cost=_bytes,
        storage=lambda group, _context: {_first(group): "csr", _y(group): "csr"},
    ),
    Implementation(
        "elementwise.row_sparse", ELEMENTWISE, "numba-cpu", _merge_rejection, _merge_lower, cost=_bytes,
        storage=lambda group, _context: dict.fromkeys((*group.inputs, *group.outputs), "row_sparse"),
    ),
    Implementation(
        "matmul.csr_value", "MatMul", "numba-cpu", _product_rejection, _product_lower, cost=_bytes,
        storage=lambda group, _context: {data(group.anchor): "csr"},
    ),
    Implementation(
        "sparse_retain.rows", "SparseRetain", "numba-cpu", _retain_rejection, _retain_lower, cost=_bytes,
        storage=lambda group, _context: {data(group.anchor): "row_sparse", _y(group): "row_sparse"},
        domain="stowplan",
    ),
    Implementation(
        "gather.row_sparse", "Gather", "numba-cpu", _gather_rejection, _gather_lower, cost=_gather_cost,
        storage=lambda group, _context: {data(group.anchor): "row_sparse"},
    ),
)  # fmt: skip
