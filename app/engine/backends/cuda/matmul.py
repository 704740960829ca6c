"""Rows of matrix products: on tensor cores, exact in float32, and of few rows.

Tensor cores want rows of the right operand along the reduction, so weights are packed that way offline; an
activation that lies otherwise, or whose rows are no multiple of 16 bytes, is copied first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from app.engine.backends.cuda import dispatch, epilogue, tensor_views
from app.engine.backends.cuda.epilogue import Ending
from app.engine.backends.cuda.launch_calls import BACKEND, Array, calls, product_seconds, repacked
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Argument, LaunchCall, Workspace
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.matmul_geometry import PRODUCTS, matrices
from app.engine.operators.matmul_geometry import Product as Operands
from app.engine.types.target import Target
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.gemm import gemm
from app.kernels.cuda.gemv import MOST, gemv
from app.kernels.cuda.geometry import NBYTES, Strided
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.product import Product
from app.kernels.cuda.tiles import Tile
from app.kernels.cuda.transpose import moved


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """Operands that a Gemm and the nodes after it add to the sums."""

    ending: Ending
    alpha: float = 1.0
    columns: Array | None = None  # of C, one element each
    matrix: ir.Value | None = None  # C of the output's shape

    @property
    def residual(self) -> ir.Value | None:
        """Operand added element by element."""
        return self.matrix or self.ending.residual

    def bias(self, n: int) -> Array | None:
        """One float32 a column."""
        wide = None if self.columns is None else np.broadcast_to(self.columns.reshape(-1), (n,))
        return self.ending.bias(n, wide)

    def epilogue(self, dtype: str, n: int) -> Epilogue:
        """Epilogue as the kernel's generator takes it."""
        found = self.ending.epilogue(dtype, bias=self.bias(n) is not None, alpha=self.alpha)
        return found if self.matrix is None else replace(found, residual="before")


def operands(group: Group) -> Operands:
    """The product that the anchor is."""
    return PRODUCTS[group.anchor.op_type](group.anchor)


@of_group
def added(group: Group) -> Added | str:
    """Operands added to the sums, or the rejection."""
    ending = epilogue.read(group, -1)
    if isinstance(ending, str):
        return ending
    node = group.anchor
    if node.op_type != "Gemm":
        return Added(ending)
    product = operands(group)
    found = Added(ending, float(graph.attribute(node, "alpha", 1.0)))
    c, beta = graph.input_at(node, 2), float(graph.attribute(node, "beta", 1.0))
    if c is None or beta == 0.0:
        return found
    array, shape = graph.constant(c), graph.static_shape(c)
    wide = (1,) * (2 - len(shape)) + shape
    if array is not None and wide[0] == 1:
        return replace(found, columns=array.astype(np.float64) * beta)
    if wide == (product.m, product.n) and beta == 1.0 and ending.residual is None:
        return replace(found, matrix=c)
    return f"C {c.name!r} of shape {list(shape)} is neither a constant per column nor a plain residual"


def _batch_strides(product: Operands) -> tuple[int, int]:
    """Elements from one batch of a and b to the next, where they are all as far apart."""
    return product.offsets[1] if len(product.offsets) > 1 else (0, 0)


def _is_regular(product: Operands) -> bool:
    a, b = _batch_strides(product)
    return all(offset == (i * a, i * b) for i, offset in enumerate(product.offsets))


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An operand as a kernel reads it: rows `row` elements apart, batches `batch`; and the copy before."""

    argument: Argument
    row: int
    batch: int
    copying: Launches | None = None
    source: ir.Value | None = None

    def calls(self) -> tuple[LaunchCall, ...]:
        """The copy."""
        if self.copying is None or self.source is None:
            return ()
        return calls(self.copying, {"x0": self.source, "y0": self.argument})


def placed(
    value: ir.Value, rows: int, columns: int, strides: tuple[int, int], batch: int, batches: int
) -> Placed:
    """An activation as `rows` of `columns`, which lie `strides` apart; copied where that does not suit."""
    dtype = element(value)
    suits = strides[1] == 1 or columns == 1
    if suits and not any(n % (tensor_views.VECTOR // NBYTES[dtype]) for n in (strides[0], batch)):
        return Placed(value, strides[0], batch)
    row, count = tensor_views.aligned(columns, dtype), batches if batch else 1
    copying = moved(
        (count, rows, columns),
        Strided(dtype, (batch, *strides)),
        Strided(dtype, (rows * row, row, 1)),
    )
    whole = rows * row
    held = Workspace(count * whole * NBYTES[dtype])
    return Placed(held, row, whole if batch else 0, copying, value)


def _left(product: Operands) -> Placed:
    batch = _batch_strides(product)[0]
    return placed(product.a, product.m, product.k, product.a_strides, batch, len(product.offsets))


def packed(product: Operands, *, by_column: bool) -> Placed:
    """The right operand; a constant is packed offline, as [n, k] `by_column` or as [k, n]."""
    dtype, batch = element(product.b), _batch_strides(product)[1]
    rows, columns = (product.n, product.k) if by_column else (product.k, product.n)
    if not graph.is_constant(product.b):
        k_stride, n_stride = product.b_strides
        steps = (n_stride, k_stride) if by_column else (k_stride, n_stride)
        return placed(product.b, rows, columns, steps, batch, len(product.offsets))
    row = tensor_views.aligned(columns, dtype)

    def pack(array: Array) -> Array:
        found = matrices(product, array).reshape(-1, product.k, product.n)
        found = found.swapaxes(1, 2) if by_column else found
        return np.pad(found, ((0, 0), (0, 0), (0, row - columns)))

    return Placed(repacked(product.b, pack), row, rows * row if batch else 0)


def _has_columns(product: Operands, precision: str) -> bool:
    """True if a kernel reads the right operand as [k, n]: exact ones always, others what lies so."""
    if precision == "f32":
        return True
    return not graph.is_constant(product.b) and product.b_strides[1] == 1


def rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection of a product; None if kernels compute it."""
    reason = tensor_views.not_floats(group) or tensor_views.empty(group)
    if reason is not None:
        return reason
    found = added(group)
    if isinstance(found, str):
        return found
    product = operands(group)
    if not _is_regular(product):
        return f"batches of {product.a.name!r} and {product.b.name!r} are broadcast in turns"
    if group.epilogue and len(graph.static_shape(graph.operand(group.anchor, 1))) < 2:
        return "the second operand is a vector, so the output has no columns to speak of"
    return None


def _sizes(group: Group, a: Placed, b: Placed, *, residual: bool) -> Product:
    """The product as kernels see it."""
    product = operands(group)
    m, n, batch = product.m, product.n, len(product.offsets)
    step = m * n if batch > 1 else 0
    rows, batches = (a.row, b.row, n, n * residual), (a.batch, b.batch, step, 0, step * residual)
    return Product(m, n, product.k, *rows, batch, *batches)


def _tiles(group: Group, target: Target, precision: str) -> Mapping[str, Tile]:
    product = operands(group)
    isa = () if _has_columns(product, precision) else target.isa
    return dispatch.offered(precision, product.k, isa)


def _cut(group: Group, target: Target, precision: str) -> dispatch.Cut:
    product, tiles = operands(group), _tiles(group, target, precision)
    return dispatch.cut(precision, tiles, product.m, product.n, product.k, len(product.offsets), target)


def _calls(
    group: Group, columns: bool, made: Callable[[Product, Epilogue], Launches]
) -> tuple[LaunchCall, ...]:
    """The calls of a product's launches, after those that copy operands; `columns`: b is [k, n]."""
    found, product, (y,) = added(group), operands(group), group.outputs
    assert not isinstance(found, str)
    a, b = _left(product), packed(product, by_column=not columns)
    sizes = _sizes(group, a, b, residual=found.residual is not None)
    launches = made(sizes, found.epilogue(element(y), product.n))
    roles: dict[str, Argument] = {"a": a.argument, "b": b.argument, "y": y}
    roles |= epilogue.roles(found.residual, found.bias(product.n))
    return (*a.calls(), *b.calls(), *calls(launches, roles))


@of_group
def _lowered(group: Group, target: Target, precision: str) -> tuple[LaunchCall, ...]:
    columns, way = _has_columns(operands(group), precision), _cut(group, target, precision)

    def made(sizes: Product, after: Epilogue) -> Launches:
        return gemm(sizes, precision, after, way.tile, way.splits, columns=columns)

    return _calls(group, columns, made)


def _seconds(group: Group, context: PlanningContext, precision: str) -> float:
    way, product = _cut(group, context.target, precision), operands(group)
    tile = _tiles(group, context.target, precision)[way.tile]
    wasted, rate = dispatch.wasted(tile, product.m, product.n), dispatch.rate(precision, way.tile)
    lowered = _lowered(group, context.target, precision)
    return product_seconds(group, context, way.blocks, rate, wasted, len(lowered))


def inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The output over the residual."""
    found = added(group)
    assert not isinstance(found, str)
    return epilogue.over_residual(group, found.residual, group.anchor.inputs[:2])


def precision_rejection(precision: str, group: Group, context: PlanningContext) -> str | None:
    """Rejection of a precision for the elements of a product, or for the job."""
    dtype = element(group.outputs[0])
    if (dtype == "float32") == (precision in dispatch.HALVES.values()):
        return f"elements are {dtype}; this one multiplies {precision}"
    if dtype != "float32":
        wanted = dispatch.HALVES[dtype]
        return None if precision == wanted else f"elements are {dtype}; this one multiplies {precision}"
    if precision == "tf32" and context.precision != "tf32":
        return f"the job computes in {context.precision}"
    if precision == "3xtf32" and not context.fast_algorithms:
        return "fast_algorithms is off; the parts of products that this one leaves out are about 2^-22"
    return None


def _row(op: str, precision: str) -> Implementation:
    def rejected(group: Group, context: PlanningContext) -> str | None:
        return rejection(group, context) or precision_rejection(precision, group, context)

    return Implementation(
        f"cuda.{op.lower()}_{precision}",
        op,
        BACKEND,
        rejected,
        lambda group, context: _lowered(group, context.target, precision),
        lambda group, context: _seconds(group, context, precision),
        inplace,
        precision=dispatch.TOLD[precision],
        rank=dispatch.PRECISIONS.index(precision),
    )


# Few rows: the right operand streams by, each of its rows summed up by a part of a warp or by several.


def _skinny_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = rejection(group, context)
    if reason is None and operands(group).m > MOST:
        return f"{operands(group).m} rows, at most {MOST} are a matter of bandwidth"
    return reason


@of_group
def _skinny(group: Group, processors: int) -> tuple[LaunchCall, ...]:
    dtype, warps = element(operands(group).a), dispatch.WARPS * processors
    return _calls(group, False, lambda sizes, after: gemv(sizes, dtype, after, warps))


def _skinny_seconds(group: Group, context: PlanningContext) -> float:
    lowered = _skinny(group, context.target.cores)
    return product_seconds(group, context, lowered[-1].units, launches=len(lowered))


IMPLEMENTATIONS = tuple(
    Implementation(
        f"cuda.{op.lower()}_of_few_rows",
        op,
        BACKEND,
        _skinny_rejection,
        lambda group, context: _skinny(group, context.target.cores),
        _skinny_seconds,
        inplace,
    )
    for op in ("MatMul", "Gemm")
) + tuple(_row(op, precision) for op in ("MatMul", "Gemm") for precision in dispatch.PRECISIONS)
