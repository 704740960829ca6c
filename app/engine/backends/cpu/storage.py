"""Rows of what is done with values that are stored sparse while a program runs.

CastStorage and SparseRetain (domain stowplan) are logically the identity and a mask of rows; other
operators are ONNX's own, on operands that are csr or row_sparse.
"""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import matmul
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_values
from app.engine.backends.cpu.matmul import Addends, product_of
from app.engine.backends.cpu.rows import after
from app.engine.backends.cpu.sparse import followed
from app.engine.backends.cpu.strided import whole_copy
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, Workspace
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.elementwise import Formula, recipe_of
from app.engine.operators.indexing import INDEX_TYPES, axis_of, bad_indices
from app.engine.operators.operands import data
from app.engine.types.sparse_array import packed
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
    source, to = (graph.attribute(group.anchor, name, "default") for name in ("source", "stype"))
    return source, to


def _cast(source: StorageKind, to: StorageKind, kernel: str) -> Implementation:
    kind: StorageKind = to if source == "default" else source

    def rejection(group: Group, context: PlanningContext) -> str | None:
        if _casts(group) != (source, to):
            return f"casts {' to '.join(_casts(group))}; this one {source} to {to}"
        return (_csr_rejection if kind == "csr" else _rejection)(group, context)

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        x, y = data(group.anchor), _y(group)
        sparse, form = _sparse(y if source == "default" else x, kind, context)
        by_rows, most = kernel == "dense_of_csr", [form.capacity] * (source == "default")
        sizes = (form.columns,) if by_rows else (form.rows, form.columns, *most)
        ends = (*of_values(x), *sparse) if source == "default" else (*sparse, *of_values(y))
        operands: Operands = (*ends, *sizes, form.places, form.values)
        return (kernel_call(f"app.kernels.cpu.storage:{kernel}", operands, form.rows if by_rows else 1),)

    return Implementation(
        f"cast_storage.{kernel}", "CastStorage", "numba-cpu", rejection, lower, cost=_bytes,
        domain="stowplan",
        storage=lambda group, _context: {_y(group) if source == "default" else data(group.anchor): kind},
    )  # fmt: skip


# Elementwise


def _formula(group: Group) -> Formula | str:
    """The recipe of a group, its sparse operand first."""
    first = _first(group)
    kept = _keeping_zero(group.nodes, first)
    return kept if isinstance(kept, str) else recipe_of(group.nodes, group.outputs, first=(first,))


def _keeping_zero(nodes: tuple[ir.Node, ...], first: ir.Value) -> set[ir.Value] | str:
    """Values that are zero where `first` is: what the nodes make; or why one of them is not."""
    made: set[ir.Value] = {first}
    for node in nodes:
        if node.op_type not in KEEPERS.split():
            return f"{node.op_type} does not keep zero"
        if not made.intersection(v for v in node.inputs if v is not None):
            return f"{node.op_type} {node.name!r} does not follow the sparse operand"
        if node.op_type == "Div" and (node.inputs[0] not in made or node.inputs[1] in made):
            return "divides by a sparse operand"
        made.update(node.outputs)
    return made


def _first(group: Group) -> ir.Value:
    """The sparse operand: the first one of the output's shape."""
    return next((v for v in group.inputs if graph.shape(v) == graph.shape(_y(group))), group.inputs[0])


def _cycles(cycles: float, context: PlanningContext, threads: int = 1) -> float:
    """Seconds of cycles of a core; those that threads share."""
    shared = min(threads, context.target.cores)
    return context.target.launch + cycles / shared * 4 * context.target.vector_lanes / context.target.flops


def _stored_elements(value: ir.Value, kind: StorageKind, context: PlanningContext) -> int:
    form = context.sparse(value, kind)
    return form.capacity * (form.columns if kind == "row_sparse" else 1)


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
            return f"the sparse operand is broadcast to {list(shape)}"
        if len(operand.shape) > 2:
            return f"operand {operand.value.name!r} has {len(operand.shape)} axes"
    if sum(o.value is _first(group) for o in formula.operands) != 1:
        return "the sparse operand is read in two ways"
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


def _map(kind: StorageKind, name: str) -> Implementation:
    """Row of elementwise nodes that keep zero, on a matrix of this storage type."""

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        formula, y = _formula(group), _y(group)
        assert not isinstance(formula, str), formula
        source, form = _sparse(_first(group), kind, context)
        target, into = _sparse(y, kind, context)
        others = formula.operands[1:]
        by_rows = kind == "csr"
        sizes = (form.rows, form.columns) if by_rows else (form.columns,)
        operands: Operands = (
            *source,
            *of_values(*(o.value for o in others)),
            *target,
            *(*sizes, form.places, form.values, into.places, into.values),
        )
        indices = tuple(_index(o.shape, form.rows, form.columns) for o in others)
        static = (formula.recipe, str(graph.dtype(y)), indices)
        emit = "app.kernels.cpu.storage:" + ("emit_map" if by_rows else "emit_rows")
        return (kernel_call(emit, operands, form.rows if by_rows else 1, static),)

    def cost(group: Group, context: PlanningContext) -> float:
        first = _first(group)
        elements, rows = _stored_elements(first, kind, context), graph.static_shape(first)[0]
        return _cycles(elements * (2 + len(group.nodes)) + rows * (kind == "csr"), context)

    return Implementation(
        name, ELEMENTWISE, "numba-cpu", _map_rejection, lower, cost=cost,
        storage=lambda group, _context: {_first(group): kind, _y(group): kind},
    )  # fmt: skip


def _updates(group: Group) -> dict[ir.Value, ir.Value]:
    """By the operand that may be row_sparse, the one that the output is where rows are not stored."""
    *chain, last = group.nodes
    found = {}
    shape = graph.shape(_y(group))
    for value in group.inputs:
        kept = _keeping_zero(tuple(chain), value)
        if isinstance(kept, str) or value.is_initializer() or graph.shape(value) != shape:
            continue
        ends = {"Add": (0, 1), "Sub": (0,)}.get(last.op_type, ())
        for i in ends:
            base, added = last.inputs[i], last.inputs[1 - i]
            if base is not None and base not in kept and added in kept and graph.shape(base) == shape:
                found[value] = base
    return found


def _updated(group: Group, context: PlanningContext) -> tuple[ir.Value, ir.Value]:
    """The row_sparse operand, and the one that the output is elsewhere."""
    found = _updates(group)
    stored = context.storage
    return next(
        ((v, base) for v, base in found.items() if v in stored and stored[v].kind == "row_sparse"),
        next(iter(found.items())),
    )


@after(_rejection)
def _update_rejection(group: Group, _context: PlanningContext) -> str | None:
    found = _updates(group)
    if not found or len(graph.static_shape(_y(group))) != 2:
        return "is not a matrix plus or minus what keeps zeros of one operand"
    formula = recipe_of(group.nodes, group.outputs, first=(next(iter(found)),))
    if isinstance(formula, str):
        return formula
    if any(len(o.shape) > 2 or graph.dtype(o.value) != graph.dtype(_y(group)) for o in formula.operands):
        return "operands differ in type, or have more than 2 axes"
    for value in found:
        if sum(o.value is value for o in formula.operands) != 1:
            return "the sparse operand is read in two ways"
    return None


def _update_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    y = _y(group)
    value, base = _updated(group, context)
    formula = recipe_of(group.nodes, group.outputs, first=(value,))
    assert not isinstance(formula, str), formula
    source, form = _sparse(value, "row_sparse", context)
    others = formula.operands[1:]
    sizes = form.columns, form.places, form.values
    operands: Operands = (*source, *of_values(*(o.value for o in others), y), *sizes)
    indices = tuple(_index(o.shape, form.rows, form.columns) for o in others)
    static = (formula.recipe, str(graph.dtype(y)), indices)
    update = kernel_call("app.kernels.cpu.storage:emit_update", operands, form.rows, static)
    return (*whole_copy(base, y), update)


def _update_cost(group: Group, context: PlanningContext) -> float:
    """A copy, then the rows that are stored."""
    value, base = _updated(group, context)
    copied = roofline(context.target, flops=0.0, nbytes=2 * graph.nbytes(base), threads=context.threads)
    elements = _stored_elements(value, "row_sparse", context)
    return copied + _cycles(elements * (1 + len(group.nodes)), context, context.threads)


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


def _merge_cost(group: Group, context: PlanningContext) -> float:
    return _cycles(2 * sum(_stored_elements(v, "row_sparse", context) for v in group.inputs), context)


# Products and rows


@after(_csr_rejection)
def _product_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    if any(len(graph.static_shape(v)) != 2 for v in (data(node), _second(group))):
        return "operands are no matrices"
    if graph.is_constant(data(node)):
        return "a constant matrix is stored for its kernel"
    if data(node) in group.inputs[1:] or sum(data(node) in n.inputs for n in group.nodes) > 1:
        return "the sparse operand is read in two ways"
    if node.op_type == "Gemm":
        return _gemm_rejection(group)
    return _rest_rejection(group)


def _gemm_rejection(group: Group) -> str | None:
    node = group.anchor
    if any(graph.attribute(node, name, 0) for name in ("transA", "transB")):
        return "an operand is transposed"
    own = matmul.gemm_addends(node, product_of(group))
    if isinstance(own, str):
        return own
    if own.rows is not None or own.residual is not None or own.alpha != 1.0:
        return "alpha is not 1, or C is not one element per column"
    return _rest_rejection(group)


def _rest_rejection(group: Group) -> str | None:
    """Reason why what follows the product is no pass over its result."""
    product = group.anchor.outputs[0]
    if graph.shape(product) != graph.shape(_y(group)):
        return "what follows the product broadcasts it"
    if not group.epilogue:
        return None
    formula = recipe_of(group.epilogue, group.outputs, first=(product,))
    return formula if isinstance(formula, str) else None


def _product_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    y, n = _y(group), graph.static_shape(_y(group))[1]
    sparse, form = _sparse(data(group.anchor), "csr", context)
    is_gemm = group.anchor.op_type == "Gemm"
    own = matmul.gemm_addends(group.anchor, product_of(group)) if is_gemm else Addends()
    assert not isinstance(own, str), own  # the rejection tells
    kind = graph.element_type(y)
    bias = Constant(np.zeros(n, kind)) if own.columns is None else own.columns
    (b,), (out,) = of_values(_second(group)), of_values(y)
    operands: Operands = (*sparse, b, (f"{kind.name}*", bias), out, n, form.places, form.values)
    product = kernel_call("app.kernels.cpu.storage:csr_product", operands, form.rows)
    return (product, *followed(group, group.epilogue))


def _product_cost(group: Group, context: PlanningContext) -> float:
    """Each stored element takes a row of the second operand, which a cache holds or not."""
    (m, n), second = graph.static_shape(_y(group)), _second(group)
    entries = context.sparse(data(group.anchor), "csr").capacity
    vectors = -(-n // context.target.vector_lanes)
    cycles = entries * (4 + 2 * vectors) + m * (6 + vectors * (2 + len(group.epilogue)))
    moved = graph.nbytes(_y(group)) + min(graph.nbytes(second), 4 * n * entries) + 8 * entries
    return max(
        _cycles(cycles, context, context.threads),
        roofline(context.target, flops=0.0, nbytes=moved, threads=context.threads),
    )


def _product(op: str) -> Implementation:
    return Implementation(
        f"{op.lower()}.csr_value", op, "numba-cpu", _product_rejection, _product_lower, cost=_product_cost,
        storage=lambda group, _context: {data(group.anchor): "csr"},
    )  # fmt: skip


@after(_rejection)
def _scatter_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    shape, indices = graph.static_shape(_y(group)), _second(group)
    if len(group.nodes) > 1 or graph.attribute(node, "reduction", "none") != "add":
        return "rows are added, without an epilogue"
    if not shape or graph.static_shape(indices)[-1:] != (1,) or not graph.elements(indices):
        return "indices are not of rows"
    array = graph.constant(data(node))
    if array is None or array.any():
        return "rows are added to a value that is not constant zeros"
    return bad_indices(node, shape[:1])


def _scatter_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    ids, updates = _second(group), graph.operand(group.anchor, 2)
    target, form = _sparse(_y(group), "row_sparse", context)
    count = graph.elements(ids)
    sizes = count, form.rows, form.columns, form.places, form.values
    operands: Operands = (*of_values(ids, updates), ("int64*", Workspace(8 * count)), *target, *sizes)
    return (kernel_call("app.kernels.cpu.storage:scattered_rows", operands, 1),)


def _scatter_cost(group: Group, context: PlanningContext) -> float:
    count, columns = graph.elements(_second(group)), math.prod(graph.static_shape(_y(group))[1:])
    return _cycles(count * (10 * math.log2(count + 1) + 2 * columns), context)


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
    _map("csr", "elementwise.csr"),
    _map("row_sparse", "elementwise.row_sparse_map"),
    Implementation(
        "elementwise.row_sparse_update", ELEMENTWISE, "numba-cpu", _update_rejection, _update_lower,
        cost=_update_cost, inplace=lambda group, context: ((_updated(group, context)[1], _y(group)),),
        storage=lambda group, context: {_updated(group, context)[0]: "row_sparse"},
    ),
    Implementation(
        "scatter_nd.row_sparse", "ScatterND", "numba-cpu", _scatter_rejection, _scatter_lower,
        cost=_scatter_cost, storage=lambda group, _context: {_y(group): "row_sparse"}, makes_sparse=True,
    ),
    Implementation(
        "elementwise.row_sparse", ELEMENTWISE, "numba-cpu", _merge_rejection, _merge_lower, cost=_merge_cost,
        storage=lambda group, _context: dict.fromkeys((*group.inputs, *group.outputs), "row_sparse"),
    ),
    _product("MatMul"),
    _product("Gemm"),
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
