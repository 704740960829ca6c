"""Strips of attention: one head at a time, from the columns of its projections to those of the result.

Rows are heads; tokens are the planes of a value in which its heads lie side by side. Results are equal bit by
bit to those of all heads at once.
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import attention, matmul
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.strips import ELEMENT
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.strips import HEADS, CallOf, RowMaps, Strip, StripRow
from app.engine.memory.rows.geometry import ROW, only
from app.engine.operators import attention as operators
from app.engine.operators.attention_pattern import Operand
from app.engine.operators.matmul_geometry import Product
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.strip_heads import HeadProductSizes

# Queries of a block of scores: what it takes counts, and each block reads keys from the second cache.
ROWS = 24
VECTORS = 2  # of a tile's columns: heads are 32, 64 or 128 wide more often than not


def _rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why attention is not computed head by head."""
    core, joined = operators.prepared(group)
    batch, heads, _, depth = core.q.shape
    if batch != 1 or heads < 2 or any(joined):
        return "strips are heads, of a batch of one and without a cache"
    for operand in (core.q, core.k, core.v, core.y):
        if not _is_heads(operand, heads, depth):
            return "heads are not all columns of a value, side by side"
    if len({core.q.value, core.k.value, core.v.value}) < 3:
        return "a value holds more than queries, keys, or values"
    if core.mask is not None and core.mask.strides[1]:
        return "heads have masks of their own"
    width = tiles.columns_of("float32", context.target.vector_lanes, tiles.NARROW[VECTORS])
    return f"{depth} columns of a head are no multiple of the {width} of a tile" if depth % width else None


def _heads(group: Group) -> int:
    return operators.prepared(group)[0].q.shape[1]


def _is_heads(operand: Operand, heads: int, depth: int) -> bool:
    """True if rows of float32 are all heads, one after the other."""
    if not isinstance(operand.value, ir.Value) or graph.dtype(operand.value) != np.float32:
        return False
    same = operand.start == 0 and operand.shape[1] == heads and operand.shape[3] == depth
    return same and operand.strides[1:] == (depth, heads * depth, 1)


def _reads(group: Group, _context: PlanningContext) -> RowMaps:
    core, _ = operators.prepared(group)
    heads = [(o.value, ROW) for o in (core.q, core.k, core.v) if isinstance(o.value, ir.Value)]
    mask = None if core.mask is None else core.mask.value
    whole = isinstance(mask, ir.Value) and not graph.is_constant(mask)
    return (*heads, *(((mask, only(0)),) if whole and isinstance(mask, ir.Value) else ()))


def _no_scratch(_group: Group, _context: PlanningContext, _rows: int) -> int:
    return 0


def _lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    core, _ = operators.prepared(group)

    def of_head(operand: Operand) -> Operand:
        assert isinstance(operand.value, ir.Value)
        place = strip.places[operand.value]
        batch, _, rows, depth = operand.shape
        own = place.argument is strip.memory
        assert not own or place.rows == 1, "heads that are read are those of one turn"
        strides = (0, 0 if own else depth, place.plane, 1)
        return Operand(place.argument, place.offset // ELEMENT, (batch, 1, rows, depth), strides)

    q, k, v, y = (of_head(o) for o in (core.q, core.k, core.v, core.y))
    cursor = attention.Cursor(strip.cursors, strip.operator, ROWS)
    call = attention.blocks_call(
        replace(core, q=q, k=k, v=v, y=y), "float32*", context, attention.Seen(), cursor=cursor
    )
    return lambda _rows: call


def _product_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a projection is not computed by columns of heads."""
    product = matmul.product_of(group)
    if graph.dtype(group.outputs[0]) != np.float32:
        return f"elements are {graph.dtype(group.outputs[0])}; strips are of float32"
    if not graph.is_constant(product.b):
        return f"{product.b.name!r} changes between runs; strips read packed panels"
    if len(product.offsets) > 1 or product.a_strides != (product.k, 1):
        return "its rows are those of several matrices, or lie apart"
    added, epilogue = matmul.additions(group, product)
    if added.rows is not None or added.residual is not None or epilogue.recipe:
        return "more than a bias of columns is added"
    own = matmul.tiling(product, "float32", context, packed=True)
    cuts = (own.m, own.shapes), (_share(product, context), _shapes())
    lanes = context.target.vector_lanes
    alone = any(
        size == 1 for block, shapes in cuts for _, size in tiles.row_groups(product.m, block, lanes, shapes)
    )
    return "a row alone is summed in another order" if alone else None


def _shapes() -> tiles.Shapes:
    return tiles.NARROW[VECTORS]


def _share(product: Product, context: PlanningContext) -> int:
    """Rows of a thread: whole tiles."""
    rows = _shapes()[context.target.vector_lanes][0]
    return -(-product.m // (context.threads * rows)) * rows


def _product_reads(group: Group, _context: PlanningContext) -> RowMaps:
    return ((matmul.product_of(group).a, only(0)),)


def _product_sizes(group: Group, context: PlanningContext, head: int) -> HeadProductSizes:
    product, lanes = matmul.product_of(group), context.target.vector_lanes
    added, epilogue = matmul.additions(group, product)
    depth = matmul.tiling(product, "float32", context, packed=True).k
    width = tiles.columns_of("float32", lanes, _shapes())
    share = _share(product, context)
    return HeadProductSizes(
        operator=0,
        m=product.m,
        k=product.k,
        head=head,
        y_at=0,
        y_ring=1,
        y_row=head,
        share=share,
        block_n=width,
        block_k=depth,
        work_at=0,
        work_step=tiles.spare("float32", lanes, _shapes()),
        flags=matmul.flags_of(added, epilogue),
    )


def _product_scratch(group: Group, context: PlanningContext, _rows: int) -> int:
    return _product_sizes(group, context, 1).work_step * ELEMENT * context.threads


def _product_lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    product, lanes, (y,) = matmul.product_of(group), context.target.vector_lanes, group.outputs
    added, epilogue = matmul.additions(group, product)
    place = strip.places[y]
    head = place.plane // place.rows
    sizes = replace(
        _product_sizes(group, context, head),
        operator=strip.operator,
        y_at=place.offset // ELEMENT,
        y_ring=place.rows,
        y_row=place.plane,
        work_at=strip.scratch // ELEMENT,
    )
    tiling = replace(matmul.tiling(product, "float32", context, packed=True), shapes=_shapes())
    operands: Operands = (
        *of_type(
            "float32*",
            strip.places[product.a].argument,
            matmul.panels(product, tiling),
            place.argument,
            added.columns or Constant(np.zeros(1, np.float32)),
            Constant(epilogue.scalars(np.dtype(np.float32), added.alpha, added.beta)),
        ),
        size_operand(sizes),
        ("int64*", strip.cursors),
        ("float32*", strip.memory),
    )
    units = -(-sizes.m // sizes.share)
    call = typed_call("app.kernels.cpu.strip_heads:emit", operands, units, (lanes, VECTORS))

    def of(_rows: int) -> KernelCall:
        return call

    return of


HEAD_STRIP_ROWS = (
    StripRow(
        "attention.blocks", _rejection, _reads, _no_scratch, _lower, axis=HEADS, shared=True, heads=_heads
    ),
    *(
        StripRow(
            f"{op}.blocked",
            _product_rejection,
            _product_reads,
            _product_scratch,
            _product_lower,
            axis=HEADS,
            shared=True,
        )
        for op in ("matmul", "gemm")
    ),
)
