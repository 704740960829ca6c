"""Rows of what is done with values that are stored sparse while a program runs.

CastStorage (domain stowplan) is logically the identity; other
operators are ONNX's own, on operands that are csr or row_sparse.
"""

from dataclasses import replace
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
from app.engine.core.calls import Argument, Call, Constant, Excess, Workspace
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline, storing_seconds
from app.engine.operators.elementwise import Formula, recipe_of
from app.engine.operators.operands import data
from app.engine.types.sparse_array import packed
from app.engine.types.storage import SparseFormat, StorageKind

Array = np.ndarray[Any, Any]

RESULTS = {"Add": 0, "Sub": 1, "Mul": 2}  # of rows that are merged
KEEPERS = (
    "Abs Neg Sign Floor Ceil Round Sqrt Sin Tan Asin Atan Sinh Asinh Atanh Tanh Erf Relu LeakyRelu Mul Div"
)


def second(group: Group) -> ir.Value:
    """The second operand of the anchor."""
    return graph.operand(group.anchor, 1)


def result(group: Group) -> ir.Value:
    """The only value that leaves the group."""
    return group.outputs[0]


def sparse_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why no value of the group can be sparse."""
    if len(group.outputs) != 1:
        return f"{len(group.outputs)} values leave the group; this one stores one"
    for value in (*group.inputs, *group.outputs):
        shape, kind = graph.shape(value), graph.dtype(value)
        if shape is None or kind is None:
            return f"value {value.name!r} has no static shape"
    kind = graph.dtype(result(group))
    if kind not in (np.float32, np.float64):
        return f"elements are {kind}; sparse values are float32 or float64"
    return None if graph.elements(result(group)) else "the output has no elements"


@after(sparse_rejection)
def _csr_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why the output cannot be csr."""
    rank = len(graph.static_shape(result(group)))
    return None if rank == 2 else f"the output has {rank} axes, csr has 2"


def sparse_parts(
    value: ir.Value, kind: StorageKind, context: PlanningContext
) -> tuple[tuple[Operand, ...], SparseFormat]:
    """The three pointers to a sparse value, and its format; a constant is packed."""
    form = context.sparse(value, kind)
    array = graph.constant(value)
    held: Argument = value if array is None else Constant(lambda: packed(array, form), value.name or "")
    return _pointers(held, value), form


def _pointers(held: Argument, like: ir.Value) -> tuple[Operand, ...]:
    """The pointers to the parts of a sparse value of this element type."""
    return ("int64*", held), ("int32*", held), (f"{graph.dtype(like)}*", held)


def moving_seconds(group: Group, context: PlanningContext) -> float:
    """Seconds to move all operands; the density of those is not known."""
    moved = 2 * sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
    return roofline(context.target, flops=2.0 * graph.elements(result(group)), nbytes=moved, threads=1)


# Casts


def _casts(group: Group) -> tuple[str, str]:
    source, to = (graph.attribute(group.anchor, name, "default") for name in ("source", "stype"))
    return source, to


def _excess(value: ir.Value, cast: ir.Node, form: SparseFormat) -> Excess:
    """Number of entries above the bound of a cast to sparse: an error where the job declares the bound."""
    declared = graph.attribute(cast, "declared", "")
    if not declared:
        return Excess()
    unit = "rows" if form.kind == "row_sparse" else "elements"
    return Excess(
        f"value {value.name!r} stores ",
        f" {unit} in this run; the job declares {declared}, at most {form.capacity} of shape "
        f"{list(graph.static_shape(value))}: declare more, or leave the declaration out",
        f"/value_storage/{value.name}",
    )


def _cast(source: StorageKind, to: StorageKind, kernel: str) -> Implementation:
    kind: StorageKind = to if source == "default" else source

    def rejection(group: Group, context: PlanningContext) -> str | None:
        if _casts(group) != (source, to):
            return f"casts {' to '.join(_casts(group))}; this one {source} to {to}"
        return (_csr_rejection if kind == "csr" else sparse_rejection)(group, context)

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        x, y = data(group.anchor), result(group)
        sparse, form = sparse_parts(y if source == "default" else x, kind, context)
        by_rows = kernel == "dense_of_csr"
        sizes: tuple[int, ...] = (form.columns,) if by_rows else (form.rows, form.columns)
        ends = (*sparse, *of_values(y))
        if source == "default":
            sizes = (*sizes, form.capacity)
            ends = (*of_values(x), *sparse, ("int64*", _excess(x, group.anchor, form)))
        operands: Operands = (*ends, *sizes, form.places, form.values)
        return (kernel_call(f"app.kernels.cpu.storage:{kernel}", operands, form.rows if by_rows else 1),)

    def cost(group: Group, context: PlanningContext) -> float:
        moved, y = moving_seconds(group, context), result(group)
        if source != "default":
            return moved
        entries = context.sparse(y, kind).capacity
        return max(moved, storing_seconds(context.target, graph.elements(y), entries))

    return Implementation(
        f"cast_storage.{kernel}", "CastStorage", "numba-cpu", rejection, lower, cost=cost,
        domain="stowplan",
        storage=lambda group, _context: {result(group) if source == "default" else data(group.anchor): kind},
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
    return next((v for v in group.inputs if graph.shape(v) == graph.shape(result(group))), group.inputs[0])


def cycle_seconds(cycles: float, context: PlanningContext, threads: int = 1) -> float:
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
    shape = graph.static_shape(result(group))
    kind = graph.dtype(result(group))
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
        formula, y = _formula(group), result(group)
        assert not isinstance(formula, str), formula
        source, form = sparse_parts(_first(group), kind, context)
        target, into = sparse_parts(y, kind, context)
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
        return cycle_seconds(elements * (2 + len(group.nodes)) + rows * (kind == "csr"), context)

    return Implementation(
        name, ELEMENTWISE, "numba-cpu", _map_rejection, lower, cost=cost,
        storage=lambda group, _context: {_first(group): kind, result(group): kind},
    )  # fmt: skip


def _updates(group: Group) -> dict[ir.Value, ir.Value]:
    """By the operand that may be row_sparse, the one that the output is where rows are not stored."""
    *chain, last = group.nodes
    found = {}
    shape = graph.shape(result(group))
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


@after(sparse_rejection)
def _update_rejection(group: Group, _context: PlanningContext) -> str | None:
    found = _updates(group)
    if not found or len(graph.static_shape(result(group))) != 2:
        return "is not a matrix plus or minus what keeps zeros of one operand"
    formula = recipe_of(group.nodes, group.outputs, first=(next(iter(found)),))
    if isinstance(formula, str):
        return formula
    if any(len(o.shape) > 2 or graph.dtype(o.value) != graph.dtype(result(group)) for o in formula.operands):
        return "operands differ in type, or have more than 2 axes"
    for value in found:
        if sum(o.value is value for o in formula.operands) != 1:
            return "the sparse operand is read in two ways"
    return None


def _update_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    y = result(group)
    value, base = _updated(group, context)
    formula = recipe_of(group.nodes, group.outputs, first=(value,))
    assert not isinstance(formula, str), formula
    source, form = sparse_parts(value, "row_sparse", context)
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
    return copied + cycle_seconds(elements * (1 + len(group.nodes)), context, context.threads)


@after(sparse_rejection)
def _merge_rejection(group: Group, _context: PlanningContext) -> str | None:
    types = {node.op_type for node in group.nodes}
    if types != {"Add"} and (len(group.nodes) > 1 or not types.issubset(RESULTS)):
        return f"rows are merged by one of {', '.join(RESULTS)}, or by several Add"
    shapes = {graph.static_shape(v) for v in (*group.inputs, *group.outputs)}
    if len(shapes) > 1 or len(group.inputs) != len(group.nodes) + 1:
        return "operands are not of one shape, or one is read in two ways"
    if len(graph.static_shape(result(group))) < 1:
        return "operands have no rows"
    return None


def _merge_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    """Operand by operand; sums on the way, with room for the rows of all so far, are workspaces."""
    given = group.inputs if len(group.nodes) > 1 else graph.operands(group.anchor)
    total, *others = (sparse_parts(v, "row_sparse", context) for v in given)
    end = sparse_parts(result(group), "row_sparse", context)
    calls = []
    for index, other in enumerate(others):
        capacity = min(total[1].capacity + other[1].capacity, end[1].rows)
        form = replace(end[1], capacity=capacity)
        merged = end if index == len(others) - 1 else (_pointers(Workspace(form.nbytes), result(group)), form)
        trio = total, other, merged
        operands: Operands = (
            *(pointer for pointers, _ in trio for pointer in pointers),
            *(RESULTS[group.anchor.op_type], end[1].columns),
            *(n for _, f in trio for n in (f.places, f.values)),
        )
        calls.append(kernel_call("app.kernels.cpu.storage:merged_rows", operands, 1))
        total = merged
    return tuple(calls)


def _merge_cost(group: Group, context: PlanningContext) -> float:
    return cycle_seconds(2 * sum(_stored_elements(v, "row_sparse", context) for v in group.inputs), context)


# Products and rows


@after(_csr_rejection)
def _product_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    if any(len(graph.static_shape(v)) != 2 for v in (data(node), second(group))):
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
    if graph.shape(product) != graph.shape(result(group)):
        return "what follows the product broadcasts it"
    if not group.epilogue:
        return None
    formula = recipe_of(group.epilogue, group.outputs, first=(product,))
    return formula if isinstance(formula, str) else None


def _product_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    y, n = result(group), graph.static_shape(result(group))[1]
    sparse, form = sparse_parts(data(group.anchor), "csr", context)
    is_gemm = group.anchor.op_type == "Gemm"
    own = matmul.gemm_addends(group.anchor, product_of(group)) if is_gemm else Addends()
    assert not isinstance(own, str), own  # the rejection tells
    kind = graph.element_type(y)
    bias = Constant(np.zeros(n, kind)) if own.columns is None else own.columns
    (b,), (out,) = of_values(second(group)), of_values(y)
    operands: Operands = (*sparse, b, (f"{kind.name}*", bias), out, n, form.places, form.values)
    product = kernel_call("app.kernels.cpu.storage:csr_product", operands, form.rows)
    return (product, *followed(group, group.epilogue))


def _product_cost(group: Group, context: PlanningContext) -> float:
    """Each stored element takes a row of the second operand, which a cache holds or not."""
    (m, n), right = graph.static_shape(result(group)), second(group)
    entries = context.sparse(data(group.anchor), "csr").capacity
    vectors = -(-n // context.target.vector_lanes)
    cycles = entries * (4 + 2 * vectors) + m * (6 + vectors * (2 + len(group.epilogue)))
    moved = graph.nbytes(result(group)) + min(graph.nbytes(right), 4 * n * entries) + 8 * entries
    return max(
        cycle_seconds(cycles, context, context.threads),
        roofline(context.target, flops=0.0, nbytes=moved, threads=context.threads),
    )


def _product(op: str) -> Implementation:
    return Implementation(
        f"{op.lower()}.csr_value", op, "numba-cpu", _product_rejection, _product_lower, cost=_product_cost,
        storage=lambda group, _context: {data(group.anchor): "csr"},
    )  # fmt: skip


IMPLEMENTATIONS = (
    _cast("default", "csr", "csr_of_dense"),
    _cast("csr", "default", "dense_of_csr"),
    _cast("default", "row_sparse", "rows_of_dense"),
    _cast("row_sparse", "default", "dense_of_rows"),
    _map("csr", "elementwise.csr"),
    _map("row_sparse", "elementwise.row_sparse_map"),
    Implementation(
        "elementwise.row_sparse_update", ELEMENTWISE, "numba-cpu", _update_rejection, _update_lower,
        cost=_update_cost, inplace=lambda group, context: ((_updated(group, context)[1], result(group)),),
        storage=lambda group, context: {_updated(group, context)[0]: "row_sparse"},
    ),
    Implementation(
        "elementwise.row_sparse", ELEMENTWISE, "numba-cpu", _merge_rejection, _merge_lower, cost=_merge_cost,
        storage=lambda group, _context: dict.fromkeys((*group.inputs, *group.outputs), "row_sparse"),
    ),
    _product("MatMul"),
    _product("Gemm"),
)  # fmt: skip
