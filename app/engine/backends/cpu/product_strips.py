"""Strips of rows of matrix products with constant weights, in float32, on any number of threads.

Threads share the columns. Tiles begin at the rows where those of all rows at once begin, and sums have
their order: results are equal bit by bit to those of `matmul.blocked`.
"""

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import matmul
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.strips import ELEMENT, in_places, rings_of
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.strips import MATRIX, CallOf, RowMaps, RowsPlace, Strip, StripRow
from app.engine.memory.rows.geometry import ROW
from app.engine.operators.matmul_geometry import Product
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.strip_products import StripProductSizes

STEP = 24  # rows: a multiple of those of tiles, whose sums are the same wherever they begin


def _rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a product is not computed in strips of rows."""
    product = matmul.product_of(group)
    kind = graph.dtype(group.outputs[0])
    if kind != np.float32:
        return f"elements are {kind}; strips are of float32"
    if not graph.is_constant(product.b):
        return f"{product.b.name!r} changes between runs; strips read packed panels"
    if len(product.offsets) > 1 or product.a_strides != (product.k, 1):
        return "its rows are those of several matrices, or lie apart"
    if product.m <= STEP:
        return f"{product.m} rows; a strip has {STEP}"
    if product.m % STEP == 1:
        return "the last strip has one row, which is summed in another order alone"
    rows = matmul.tiling(product, "float32", context, packed=True).rows
    if STEP % rows:
        return f"tiles have {rows} rows, of which strips of {STEP} are no multiple"
    return _addend_rejection(group, product)


def _addend_rejection(group: Group, product: Product) -> str | None:
    added, epilogue = matmul.additions(group, product)
    if added.rows is not None:
        return "its bias differs by rows"
    beside = _beside(group)
    if isinstance(added.residual, ir.Value) and not beside and not graph.is_constant(added.residual):
        return "one row that changes between runs is added to all"
    if product.a in beside:
        return "the input is read at the place of the output too"
    strange = next(
        (v for v, place in epilogue.operands if place == "same" and not graph.is_constant(v)), None
    )
    return (
        None if strange is None else f"{strange.name!r} is read beside the sums; a strip reads the residual"
    )


def _beside(group: Group) -> tuple[ir.Value, ...]:
    """The residual, if it has rows of its own and changes between runs."""
    added, _ = matmul.additions(group, matmul.product_of(group))
    residual = added.residual
    own = isinstance(residual, ir.Value) and added.residual_row and not graph.is_constant(residual)
    return (residual,) if own and isinstance(residual, ir.Value) else ()


def _reads(group: Group, _context: PlanningContext) -> RowMaps:
    return ((matmul.product_of(group).a, ROW), *((v, ROW) for v in _beside(group)))


def _sizes(group: Group, context: PlanningContext, rows: int) -> StripProductSizes:
    """Sizes of strips of so many rows."""
    product = matmul.product_of(group)
    added, epilogue = matmul.additions(group, product)
    tiling = matmul.tiling(product, "float32", context, packed=True)
    kept = rows * tiling.width if product.k > tiling.k or epilogue.recipe else 0
    return StripProductSizes(
        rows=product.m,
        n=product.n,
        k=product.k,
        residual_row=added.residual_row,
        block_n=tiling.width,
        block_k=tiling.k,
        sums_size=kept,
        work_step=kept + tiles.spare("float32", tiling.lanes, tiling.shapes),
        flags=matmul.flags_of(added, epilogue),
    )


def _scratch(group: Group, context: PlanningContext, rows: int) -> int:
    return _sizes(group, context, rows).work_step * ELEMENT * context.threads


def _lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    product, (y,) = matmul.product_of(group), group.outputs
    added, epilogue = matmul.additions(group, product)
    sizes = _sizes(group, context, strip.rows)
    tiling = matmul.tiling(product, "float32", context, packed=True)
    images = _beside(group)
    beside = strip.places[images[0]] if images else RowsPlace(y, 0, product.m, False, 0, 0)
    places = strip.places[product.a], strip.places[y], beside
    nothing = Constant(np.zeros(1, np.float32))
    residual = beside.argument if images else added.residual or nothing
    before: Operands = (
        *of_type(
            "float32*",
            places[0].argument,
            matmul.panels(product, tiling),
            places[1].argument,
            added.columns or nothing,
            residual,
            Constant(epilogue.scalars(np.dtype(np.float32), added.alpha, added.beta)),
        ),
        size_operand(sizes),
        size_operand(rings_of(strip, *places)),
        ("int64*", strip.cursors),
    )
    after: Operands = (("float32*", strip.memory), *in_places(epilogue.arguments, strip))
    static = (tiling.lanes, *epilogue.static, tiling.shapes[tiling.lanes][2])
    units = -(-product.n // sizes.block_n)

    def of(rows: int) -> KernelCall:
        return typed_call("app.kernels.cpu.strip_products:emit", (*before, rows, *after), units, static)

    return of


STRIP_ROWS = tuple(
    StripRow(f"{op}.blocked", _rejection, _reads, _scratch, _lower, step=STEP, axis=MATRIX, shared=True)
    for op in ("matmul", "gemm")
)
