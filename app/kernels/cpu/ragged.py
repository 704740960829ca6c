"""The end of a tile of a matrix product of which less is asked for than was computed."""

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
from app.kernels.cpu.codegen.vectors import load, load_first, splat, store, store_first
from app.kernels.cpu.extrema import maximum, minimum

LANES = 8  # elements at a time; rows of x are whole vectors, and what is behind their end is in x too


@njit(error_model="numpy", boundscheck=False)
def finish(x, x_row, y, y_row, m, n, sums, sums_row, rows, rows_step, columns, residual, residual_row,
           scalars, flags):  # fmt: skip
    """Take m rows of n elements of x through the epilogue of `generator.tile`, into y."""
    for i in range(m):
        for j in range(0, n, LANES):
            count = min(LANES, n - j)
            v = load(x, i * x_row + j, LANES)
            if flags & ACCUMULATE:
                v = v + load_first(sums, i * sums_row + j, count, v)
            if flags & SCALE:
                v = v * splat(scalars[ALPHA], LANES)
            if flags & ROW_BIAS:
                v = v + splat(rows[i * rows_step], LANES)
            if flags & COLUMN_BIAS:
                v = v + load_first(columns, j, count, v)
            if flags & RESIDUAL:
                v = v + load_first(residual, i * residual_row + j, count, v) * splat(scalars[BETA], LANES)
            if flags & CLAMP:
                v = minimum(maximum(v, splat(scalars[LOW], LANES)), splat(scalars[HIGH], LANES))
            if count == LANES:
                store(y, i * y_row + j, v)
            else:
                store_first(y, i * y_row + j, count, v)
