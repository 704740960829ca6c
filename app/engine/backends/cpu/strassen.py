"""Rows of matrix products by one level of Strassen's algorithm: 7 products of blocks instead of 8.

The factors of a constant second operand are made offline and take 7/4 of its memory. Rounding
errors are larger than the definition's, so a row applies where the error on the very weights is
small enough.
"""

from typing import Any

import numpy as np

from app.engine.backends.cpu import blocking, matmul
from app.engine.backends.cpu.calls import kernel_call, of_type, size_operand, typed_call
from app.engine.backends.cpu.rows import after
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import matmul_geometry
from app.kernels.cpu import strassen
from app.kernels.cpu.codegen import tiles

Array = np.ndarray[Any, Any]

LEAST_ROWS = 16  # below, the products read more weights than they compute on
LEAST_DEPTH = 96  # of a block: below, the sums that are read again cost what is saved
BLOCK_ROWS = 112  # of the sums of three buffers, which stay in the second cache
BLOCK_PANELS = 4
DEPTH = 512  # float32 steps of the reduction at a time
SAMPLE = 16  # rows and columns of the product whose error is measured


@after(matmul.prepared_rejection)
def _rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why the algorithm does not apply."""
    product = matmul.product_of(group)
    width = tiles.columns_of("float32", context.target.vector_lanes, tiles.WIDE)
    if product.k % 2 or product.k < 2 * LEAST_DEPTH:
        return f"the reduction of {product.k} is odd or shorter than {2 * LEAST_DEPTH}"
    if product.n % (2 * width) or not product.n:
        return f"half of the {product.n} columns are not whole tiles of {width}"
    if product.m < LEAST_ROWS:
        return f"{product.m} rows, fewer than {LEAST_ROWS}"
    added, _ = matmul.additions(group, product)
    if added.rows is not None:
        return "C of Gemm is added by rows"
    return matmul.error_rejection(error(product, context), context)


def error(product: matmul_geometry.Product, context: PlanningContext) -> float:
    """Relative rms error of the worst column on a product's weights, for standard normal input.

    Measured against float64 on a sample of rows and of pairs of columns, which are independent.
    """
    name = f"error of Strassen {product.b_strides} {product.k}x{product.n}"
    return graph.fact(product.b, name, lambda array: _sampled_error(product, array), context.cache)


def _sampled_error(product: matmul_geometry.Product, array: Array) -> float:
    half = product.n // 2
    taken = np.linspace(0, half - 1, min(SAMPLE, half)).astype(np.int64)
    b = matmul_geometry.matrices(product, array).reshape(product.k, product.n)[
        :, np.concatenate([taken, taken + half])
    ]
    a = np.random.default_rng(0).standard_normal((SAMPLE, product.k)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    wrong = np.sqrt(np.mean((strassen.multiply(a, b) - exact) ** 2, axis=0))
    size = np.sqrt(np.mean(exact**2, axis=0))
    return float(np.max(wrong / np.where(wrong == 0, 1, size)))


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    product = matmul.product_of(group)
    (y,) = group.outputs
    added, epilogue = matmul.additions(group, product)
    lanes = context.target.vector_lanes
    width, tile_rows = tiles.columns_of("float32", lanes, tiles.WIDE), tiles.WIDE[lanes][0]
    h, k, columns, odd = product.m // 2, product.k // 2, product.n // 2, product.m % 2
    block_k = blocking.depth(k, 4, DEPTH)
    block_m = blocking.balanced(h, BLOCK_ROWS, tile_rows)
    panels = matmul.panels_of(columns, "float32", lanes, tiles.WIDE)
    block_n = panels.block(BLOCK_PANELS, context.threads, blocking.lengths(h, block_m, 1))
    spare = tiles.spare("float32", lanes, tiles.WIDE)
    work = strassen.BUFFERS * block_m * block_n + spare
    array = graph.array(product.b)
    matrix = matmul_geometry.matrices(product, array).reshape(product.k, product.n)
    zeros = Constant(np.zeros(block_m * block_n, np.float32))
    sizes = strassen.StrassenSizes(
        h=h,
        columns=columns,
        k=k,
        odd=odd,
        residual_row=added.residual_row,
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        spare_size=spare,
        work_step=work,
        flags=matmul.flags_of(added, epilogue),
    )
    pointer = "float32*"
    sums = Workspace(4 * 4 * (h + odd) * k)
    packed = Constant(lambda: strassen.pack(matrix, width, block_n, block_k), product.b.name or "")
    scalars = Constant(epilogue.scalars(np.dtype(np.float32), added.alpha, added.beta))
    odd_rows = Constant(np.array([row[:2] for row in strassen.ODD], np.int64))
    operands = (
        *of_type(pointer, product.a, sums, packed, y),
        *of_type(pointer, zeros, added.columns or zeros, added.residual or zeros, scalars),
        *of_type("int64*", Constant(strassen.schedule(h, k)), odd_rows),
        size_operand(sizes),
        (pointer, Workspace(4 * work, per_thread=True)),
        *epilogue.arguments,
    )
    combined = kernel_call(
        "app.kernels.cpu.strassen:combine", (*of_type(pointer, product.a, sums), h, k, odd), h + odd
    )
    multiplied = typed_call(
        "app.kernels.cpu.strassen:emit",
        operands,
        -(-h // block_m) * -(-columns // block_n),
        static=("float32", lanes, *epilogue.static),
    )
    return combined, multiplied


def _cost(group: Group, context: PlanningContext) -> float:
    """7/8 of the arithmetic; the sums of blocks of A and of C are written and read from a cache."""
    product = matmul.product_of(group)
    plain = matmul.predicted(group, context)
    arithmetic = flops(group) / (context.target.flops * min(context.threads, context.target.cores) * 0.9)
    bandwidth = context.target.memories[0].bandwidth
    passes = 4 * (2 * product.m * product.k + 3 * product.m * product.n) / (4 * bandwidth)
    weights = 7 / 4 * graph.nbytes(product.b) / bandwidth
    return max(plain - arithmetic / 8 + passes / context.threads, weights)


def _error(group: Group, context: PlanningContext) -> float:
    return error(matmul.product_of(group), context)


IMPLEMENTATIONS = matmul.rows("strassen", _rejection, _lower, _cost, _error)
