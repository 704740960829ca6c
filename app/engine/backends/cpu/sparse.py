"""Rows of matrix products with a constant operand that is stored sparse.

Each storage type has rows of its own; which of them computes a product, or whether a dense one does, is
a matter of measured time. Zeros are left out of the arithmetic, so where an operand is infinite or NaN
and the weight is zero, the product is taken to be zero.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import matmul
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.backends.cpu.elementwise import applied
from app.engine.backends.cpu.matmul import product_of
from app.engine.backends.cpu.rows import after
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Cost, Implementation, Lower, PlanningContext, Rejection
from app.engine.operators import matmul_geometry
from app.engine.operators.elementwise import recipe_of
from app.engine.types.storage import StorageKind
from app.kernels.cpu import sparse
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS, ROW_BIAS

Array = np.ndarray[Any, Any]

POINTER = "float32*"
FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Addends of the sums in a kernel, and the nodes that a pass over the result computes after it."""

    bias: Argument | None = None  # one element per column
    alpha: float = 1.0
    low: float | None = None
    high: float | None = None
    rest: tuple[ir.Node, ...] = ()

    @property
    def clamps(self) -> bool:
        """True if the kernel limits its sums."""
        return self.low is not None or self.high is not None

    @property
    def scalars(self) -> Constant:
        """[alpha, beta, low, high] as a tile reads them."""
        low = -math.inf if self.low is None else self.low
        return Constant(np.array([1, 1, low, math.inf if self.high is None else self.high], FLOAT))


@after(matmul.rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why no sparse product at all applies."""
    kind = graph.dtype(group.outputs[0])
    if kind != FLOAT:
        return f"elements are {kind}; sparse products are of float32"
    if not graph.elements(group.outputs[0]):
        return "the output has no elements"
    own = _own(group)
    if own.rows is not None or own.residual is not None:
        return "C of Gemm is not one element per column"
    return None


def _own(group: Group) -> matmul.Addends:
    """Addends of Gemm itself."""
    if group.anchor.op_type != "Gemm":
        return matmul.Addends()
    found = matmul.gemm_addends(group.anchor, product_of(group))
    assert not isinstance(found, str), found  # `matmul.rejection` tells
    return found


def _left(group: Group) -> ir.Value:
    return graph.operand(group.anchor, 0)


def right_of(group: Group) -> ir.Value:
    """Second operand of the product, whose zeros are left out."""
    return graph.operand(group.anchor, 1)


@of_group
def sums_of(group: Group) -> Sums:
    """Epilogue of the product: in the kernel if it is biases and limits alone, else after it."""
    added, epilogue = matmul.additions(group, product_of(group))
    if epilogue.residual is None and not epilogue.recipe:
        return Sums(added.columns, added.alpha, epilogue.low, epilogue.high)
    own = _own(group)
    return Sums(own.columns, own.alpha, rest=group.epilogue)


def followed(group: Group, rest: tuple[ir.Node, ...]) -> tuple[KernelCall, ...]:
    """The call that applies nodes to the product, which lies in the output's memory."""
    if not rest:
        return ()
    (y,) = group.outputs
    product = group.anchor.outputs[0]
    formula = recipe_of(rest, (y,), first=(product,))
    assert not isinstance(formula, str), formula
    memory = (*(y if o.value is product else o.value for o in formula.operands), y)
    return (applied(formula, memory, graph.static_shape(y), [o.shape for o in formula.operands]),)


def _rest_rejection(group: Group) -> str | None:
    rest = sums_of(group).rest
    if not rest:
        return None
    formula = recipe_of(rest, group.outputs, first=(group.anchor.outputs[0],))
    return formula if isinstance(formula, str) else None


@of_group
def weights_of(group: Group) -> Array:
    """The constant second operand as [k, n]."""
    product = product_of(group)
    array = graph.array(product.b)
    return matmul_geometry.matrices(product, array).reshape(product.k, product.n)


def _nonzero(value: ir.Value, context: PlanningContext) -> int:
    return graph.fact(value, "nonzero", lambda array: int(np.count_nonzero(array)), context.cache)


def _density(value: ir.Value, context: PlanningContext) -> str:
    """How full a constant is, to two digits: what the time of a sparse product depends on."""
    return f"{_nonzero(value, context) / max(graph.elements(value), 1):.2g}"


@after(_rejection)
def right_rejection(group: Group, context: PlanningContext) -> str | None:
    """Rejection if the second operand is not constant with zeros, or the product is no single one."""
    product, value = product_of(group), right_of(group)
    if not graph.is_constant(value):
        return f"{value.name!r} changes between runs"
    if len(product.offsets) > 1:
        return f"{len(product.offsets)} products; this one takes 1"
    if product.a_strides[1] != 1:
        return "the first operand is transposed"
    if _nonzero(value, context) == graph.elements(value):
        return f"{value.name!r} has no zeros"
    return _rest_rejection(group)


def bias_of(group: Group, n: int) -> Argument:
    """Bias of each of the `n` columns; zeros where there is none."""
    bias = sums_of(group).bias
    return Constant(np.zeros(n, FLOAT)) if bias is None else bias


def parts(make: Callable[[], object]) -> Callable[[str], Callable[[], Array]]:
    """Sources of constants by the name of a field of what `make` returns, which is called once at most."""
    made = cache(make)
    return lambda name: lambda: getattr(made(), name)


MOST_ELEMENTS = 2**31  # of the dense operand: where its lines start is an int32


def _line_rejection(count: int, each: int) -> str | None:
    if count * each < MOST_ELEMENTS:
        return None
    return f"{count} lines of {each} elements are more than an index of 32 bits tells apart"


# Sparse weights: y[m, n] = x[m, k] w[k, n]


@after(right_rejection)
def _csr_rejection(group: Group, context: PlanningContext) -> str | None:
    product = product_of(group)
    return _line_rejection(product.k, math.prod(_turned(product.m, context)))


def _lanes_for(columns: int, context: PlanningContext) -> int:
    """Elements of a vector for so many columns: a whole register, or the power of two that holds them."""
    return min(1 << max(columns - 1, 0).bit_length(), context.target.vector_lanes)


def _turned(m: int, context: PlanningContext) -> tuple[int, int, int]:
    """(lanes, vectors, chunks) for m samples side by side."""
    lanes = _lanes_for(m, context)
    vectors = -(-m // lanes)
    chunks = -(-vectors // sparse.MOST)
    return lanes, -(-vectors // chunks), chunks


def _lower_csr(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    """X is turned, so that the samples of one feature lie together; and so is the result."""
    product, sums = product_of(group), sums_of(group)
    m, n, k = product.m, product.n, product.k
    (y,) = group.outputs
    lanes, vectors, chunks = _turned(m, context)
    wide = lanes * vectors * chunks
    x: Argument = product.a
    result: Argument = y
    before: tuple[KernelCall, ...] = ()
    after: tuple[KernelCall, ...] = ()
    if m > 1:
        x, result = Workspace(4 * k * wide), Workspace(4 * n * wide)
        tile = context.target.vector_lanes, lanes
        before = (_turn(product.a, x, (m, k), product.a_strides[0], wide, tile, into=True),)
        after = (_turn(result, y, (n, m), wide, n, tile, into=False),)
    turned = Turned(
        lambda: np.ascontiguousarray(weights_of(group).T) * FLOAT.type(sums.alpha), n, product.b.name or ""
    )
    flags = ROW_BIAS * (sums.bias is not None) | CLAMP * sums.clamps
    bias = bias_of(group, n)
    columns = Columns(0, lanes * vectors, chunks)
    multiplied = turned.times(
        (x, result, bias, bias, sums.scalars), columns, lanes, flags, (wide, 0, wide, 0), 1, context
    )
    return (*before, multiplied, *after, *followed(group, sums.rest))


def _turn(
    x: Argument,
    y: Argument,
    sizes: tuple[int, int],
    x_row: int,
    y_row: int,
    tile: tuple[int, int],
    *,
    into: bool,
) -> KernelCall:
    """The call of y[j, i] = x[i, j] for i, j below the sizes."""
    operands: Operands = (*of_type(POINTER, x, y), *sizes, x_row, y_row)
    units = -(-sizes[0] // sparse.turned_rows(*tile, into))
    return kernel_call("app.kernels.cpu.sparse:emit_turn", operands, units, ("float32", *tile, into))


@dataclass(frozen=True, slots=True)
class Columns:
    """`count` times as many columns as `each` has, from `left` on."""

    left: int
    each: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Turned:
    """A constant matrix of some rows, cut into slices when it is first asked for."""

    matrix: Callable[[], Array]
    rows: int
    name: str

    def times(
        self,
        operands: tuple[Argument, ...],
        columns: Columns,
        lanes: int,
        flags: int,
        steps: tuple[int, int, int, int],
        batches: int,
        context: PlanningContext,
    ) -> KernelCall:
        """A call of `sparse.emit`; operands: b, y, biases of rows and columns, scalars."""
        together, vectors = sparse.shape_of(columns.each, lanes)
        part = parts(lambda: sparse.slices(self.matrix(), together, context.threads, steps[0]))
        slices = -(-self.rows // together)
        typed: Operands = (
            *of_type("int64*", Constant(part("starts")), Constant(part("rows"))),
            ("int32*", Constant(part("places"))),
            *of_type(POINTER, Constant(part("values"), self.name), *operands),
            *(slices, columns.left, columns.count, *steps[1:]),
        )
        static = ("float32", lanes, together, vectors, columns.each - (vectors - 1) * lanes, flags)
        return kernel_call("app.kernels.cpu.sparse:emit", typed, slices * columns.count * batches, static)


def _sliced_cycles(elements: float, rows: float, vectors: float) -> float:
    """Measured on Zen 5: loads of places, values and operands; and the ends of the rows."""
    return elements * (0.2 + vectors) + rows * (6 + 3 * vectors)


def _csr_cost(group: Group, context: PlanningContext) -> float:
    product = product_of(group)
    lanes, vectors, chunks = _turned(product.m, context)
    cycles = chunks * _sliced_cycles(_nonzero(product.b, context), product.n, vectors)
    # Measured on Zen 3, whole vectors, and on Zen 5, less than that.
    each = 1.5 if lanes == context.target.vector_lanes else 0.5
    turned = (product.m > 1) * each * product.m * (product.n + product.k)
    return seconds(cycles, turned, group, context)


def seconds(shared: float, alone: float, group: Group, context: PlanningContext) -> float:
    """Seconds of cycles that threads share, of others, and of the pass that follows."""
    rest = 0.5 * graph.elements(group.outputs[0]) * len(sums_of(group).rest)
    cycles = (shared + rest) / min(context.threads, context.target.cores) + alone
    return context.target.launch + cycles * 4 * context.target.vector_lanes / context.target.flops


# A sparse first operand: y[.., m, n] = a[m, k] x[.., k, n]


@after(_rejection)
def _left_rejection(group: Group, context: PlanningContext) -> str | None:
    value, right = _left(group), right_of(group)
    if not graph.is_constant(value):
        return f"{value.name!r} changes between runs"
    if len(graph.static_shape(value)) != 2 or len(graph.static_shape(right)) < 2:
        return "the operands are not a matrix and others"
    product = product_of(group)
    if product.b_strides[1] != 1 or product.a_strides[1] != 1:
        return "an operand is transposed"
    if _nonzero(value, context) == graph.elements(value):
        return f"{value.name!r} has no zeros"
    return _line_rejection(*graph.static_shape(right)[-2:]) or _rest_rejection(group)


def _columns(n: int, context: PlanningContext) -> tuple[int, tuple[Columns, ...]]:
    """Elements of a vector, and n columns as equal chunks and a last, narrower one."""
    lanes = _lanes_for(n, context)
    vectors = -(-n // lanes)
    each = -(-vectors // -(-vectors // sparse.MOST)) * lanes
    whole = n // each
    parts = (Columns(0, each, whole), Columns(whole * each, n - whole * each, 1))
    return lanes, tuple(c for c in parts if c.each and c.count)


def _lower_left(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    sums = sums_of(group)
    (y,) = group.outputs
    (m, k), n = graph.static_shape(_left(group)), graph.static_shape(y)[-1]
    array = graph.array(_left(group))
    turned = Turned(lambda: array * FLOAT.type(sums.alpha), m, _left(group).name or "")
    lanes, parts = _columns(n, context)
    flags = COLUMN_BIAS * (sums.bias is not None) | CLAMP * sums.clamps
    bias = bias_of(group, n)
    operands = (right_of(group), y, bias, bias, sums.scalars)
    steps = (n, k * n, n, m * n)
    batches = graph.elements(y) // (m * n)
    found = [turned.times(operands, part, lanes, flags, steps, batches, context) for part in parts]
    return (*found, *followed(group, sums.rest))


def _left_cost(group: Group, context: PlanningContext) -> float:
    m, n = graph.static_shape(group.anchor.outputs[0])[-2:]
    lanes, parts = _columns(n, context)
    batches = graph.elements(group.outputs[0]) // (m * n)
    value = _left(group)
    elements = _nonzero(value, context)
    cycles = sum(c.count * _sliced_cycles(elements, m, -(-c.each // lanes)) for c in parts)
    return seconds(batches * cycles, 0.0, group, context)


def weights_row(
    name: str,
    op: str,
    kind: StorageKind,
    rejection: Rejection,
    lower: Lower,
    cost: Cost,
    side: int = 1,
    rank: int = 0,
) -> Implementation:
    """Row of a product whose first (`side` 0) or second operand is stored as `kind`."""

    def operand(group: Group) -> ir.Value:
        return right_of(group) if side else _left(group)

    return Implementation(
        f"{op.lower()}.{name}",
        op,
        "numba-cpu",
        rejection,
        lower,
        cost=cost,
        storage=lambda group, _context: {operand(group): kind},
        detail=lambda group, context: f"{kind}={_density(operand(group), context)}",
        rank=rank,
    )


IMPLEMENTATIONS = tuple(
    row
    for op in ("MatMul", "Gemm")
    for row in (
        weights_row("csr_weights", op, "csr", _csr_rejection, _lower_csr, _csr_cost),
        weights_row("csr", op, "csr", _left_rejection, _lower_left, _left_cost, side=0),
    )
)
