"""The end of a tile of a matrix product of which less is asked for than was computed."""

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.tiles import (
    ACCUMULATE,
    ALPHA,
    BETA,
    CLAMP,
    COLUMN_BIAS,
    HIGH,
    LOW,
    RESIDUAL,
    ROW_BIAS,
    SCALE,
)


@njit(error_model="numpy", boundscheck=False)
def finish(x, x_row, y, y_row, m, n, sums, sums_row, rows, rows_step, columns, residual, residual_row,
           scalars, flags):  # fmt: skip
    """Take m rows of n elements of x through the epilogue of `generator.tile`, into y."""
    for i in range(m):
        v, to = at(x, i * x_row), at(y, i * y_row)
        old, add = at(sums, i * sums_row), at(residual, i * residual_row)
        if flags & ACCUMULATE:
            for j in range(n):
                v[j] += old[j]
        if flags & SCALE:
            for j in range(n):
                v[j] *= scalars[ALPHA]
        if flags & ROW_BIAS:
            bias = rows[i * rows_step]
            for j in range(n):
                v[j] += bias
        if flags & COLUMN_BIAS:
            for j in range(n):
                v[j] += columns[j]
        if flags & RESIDUAL:
            beta = scalars[BETA]
            for j in range(n):
                v[j] += beta * add[j]
        if flags & CLAMP:
            low, high = scalars[LOW], scalars[HIGH]
            for j in range(n):
                w = low if v[j] < low else v[j]
                v[j] = high if w > high else w
        for j in range(n):
            to[j] = v[j]
