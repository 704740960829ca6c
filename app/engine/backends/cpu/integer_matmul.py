"""Rows of integer matrix products."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.calls import Operands, kernel_call, of_values, size_operand, typed_call
from app.engine.backends.cpu.integer import (
    BYTES_FORM,
    DEPTH,
    FORMS,
    PAIRS_FORM,
    PRODUCTS,
    Array,
    Finish,
    Form,
    Inputs,
    corrections,
    cost,
    finish_of,
    rows,
    with_zero,
)
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators import matmul_geometry
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import LEFT_UNSIGNED, PAIRS
from app.kernels.cpu.integer_products import IntegerMatmulSizes
from app.kernels.expressions import stored

ROWS = 96
PANELS = 8
NOTHING = np.zeros(0, np.int32)


def _lower(group: Group, context: PlanningContext, form: Form) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    of, finish = Inputs(group.anchor), finish_of(group)
    product = matmul_geometry.product_of(of.a, of.b)
    width = tiles.columns_of(PAIRS, context.target.vector_lanes, form.shapes)
    n, k = product.n, form.steps(product.k)
    # Rows of tiles lie an odd number of cache lines apart, so that they spread over the sets of the caches.
    row = blocking.panel_row(k, 4) if form.tiled else k
    first, a = _left(of, product.k, row, form, context)
    second, b = _right(of, product, width, form)
    third, added = corrections(of, form, context)
    size = -(-n // width) * width * k
    offsets = [(i // max(product.k, 1) * row, j // max(product.k * n, 1) * size) for i, j in product.offsets]
    lacks = of.narrow[1] if of.fixed and form != PAIRS_FORM else NOTHING
    operands = Product(a, b, added, y, product.m, n, k, row, offsets, lacks)
    return *first, *second, *third, product_call(operands, finish, form, context)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """Operands of a product as the kernel reads them; k counts elements of several steps each."""

    a: Argument
    b: Argument
    corrections: Argument
    y: Argument
    m: int
    n: int
    k: int
    a_row: int  # from one row of a to the next
    offsets: Sequence[tuple[int, int]]  # elements, where a and b of each batch begin
    lacks: Array  # int32; what every number of b lacks: nothing, one number, or one a column


def product_call(of: Product, finish: Finish, form: Form, context: PlanningContext) -> KernelCall:
    """The call of `emit_matmul`."""
    lanes, shapes = context.target.vector_lanes, form.shapes
    width = tiles.columns_of(PAIRS, lanes, shapes)
    m, n, k, offsets = of.m, of.n, of.k, of.offsets
    block_m = blocking.balanced(m, ROWS, shapes[lanes][0])
    panels = blocking.Panels(n, width, width)
    block_n = panels.block(PANELS, context.threads, blocking.lengths(m, block_m, 1), len(offsets))
    multiple = tiles.TILE if form.tiled else 1
    block_k = max(k, 1) if m <= shapes[lanes][0] else blocking.balanced(k, DEPTH, multiple)
    sums = block_m * block_n if k > block_k or finish.recipe or of.lacks.size > 1 else 0
    spare = form.spare(lanes)
    sizes = IntegerMatmulSizes(
        m=m,
        n=n,
        k=k,
        a_row=of.a_row,
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        sums_size=sums,
        spare_size=spare,
        work_step=sums + spare + block_m,
        lack_count=of.lacks.size,
    )
    operands: Operands = (
        ("int32*", of.a),
        (f"{tiles.right_element(form.dtype(LEFT_UNSIGNED, context))}*", of.b),
        ("int32*", of.corrections),
        (f"{stored(finish.result)}*", of.y),
        ("int64*", Constant(np.array(offsets, np.int64))),
        ("int32*", Constant(of.lacks if of.lacks.size else np.zeros(1, np.int32))),
        size_operand(sizes),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        *finish.arguments,
    )
    return typed_call(
        "app.kernels.cpu.integer_products:emit_matmul",
        operands,
        len(offsets) * -(-m // block_m) * -(-n // block_n),
        static=(form.dtype(LEFT_UNSIGNED, context), lanes, *finish.static),
    )


def _left(
    of: Inputs, k: int, row: int, form: Form, context: PlanningContext
) -> tuple[tuple[KernelCall, ...], Argument]:
    """The first operand with several steps in one element, `row` of them a row; bytes may be that already."""
    shift = form.shift(of.a, context)
    if form.together == 4 and shift == 0 and k == 4 * row:
        return (), of.a
    count = graph.elements(of.a) // max(k, 1)
    behind = form.shapes[tiles.TILE][0] if form.tiled else 0  # rows of a tile that are read
    y = Workspace(max((count + behind) * row, 1) * 4)
    if form.together == 4:
        grouped: Operands = (*of_values(of.a), shift, ("uint8*", y), k, 4 * row)
        return (kernel_call("app.kernels.cpu.pairs:group_rows", grouped, count),), y
    widened: Operands = (*with_zero(of.a, of.a_zero), ("int16*", y), k)
    return (kernel_call("app.kernels.cpu.pairs:widen_rows", widened, count),), y


def _right(
    of: Inputs, product: matmul_geometry.Product, width: int, form: Form
) -> tuple[tuple[KernelCall, ...], Argument]:
    """The second operand as panels of columns, and the call that packs one that changes between runs."""
    if of.fixed:
        numbers = of.shifted if form == PAIRS_FORM else of.narrow[0]
        steps = tiles.pack_steps(matmul_geometry.matrices(product, numbers), form.together)
        behind = [(0, 0)] * (steps.ndim - 2) + [(0, form.steps(product.k) - steps.shape[-2]), (0, 0)]
        steps = np.pad(steps, behind)
        packed = tiles.pack_columns(steps, width)
        return (), Constant(tiles.narrowed(packed) if form.narrow else packed, of.b.name or "")
    batches = max(graph.elements(of.b) // max(product.k * product.n, 1), 1)
    panels = batches * -(-product.n // width)
    y = Workspace(max(panels * width * -(-product.k // 2), 1) * 4)
    many = of.b_zero is not None and graph.elements(of.b_zero) > 1
    operands: Operands = (*with_zero(of.b, of.b_zero), int(many), ("int16*", y), product.k, product.n, width)
    return (kernel_call("app.kernels.cpu.pairs:widen_panels", operands, panels),), y


IMPLEMENTATIONS = tuple(
    row
    for form in (*FORMS, BYTES_FORM)
    for row in rows(PRODUCTS, form.name, form.rejection, partial(_lower, form=form), partial(cost, form=form))
)
