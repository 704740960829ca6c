"""Convolutions over row-major activations: implicit matrix products and direct depthwise loops.

The product is weights [channels, taps] times the image-to-column matrix [taps, pixels], of which
only a block is ever written: a chunk of the reduction times a block of output pixels, per thread.
"""

from app.kernels.cpu.gemm import product_source

TAP = 5  # numbers a tap: offsets in depth, height, width; first and last valid output column

_HEAD = """\
from app.kernels.cpu.generator import ACCUMULATE
"""

_PACK = """
copy1 = copier("{dtype}", VECTOR, 1)
copy2 = copier("{dtype}", VECTOR, 2)
select = selector("{dtype}", VECTOR)


@njit(error_model="numpy", boundscheck=False)
def strided_row(y, x, stride, low, high, n):
    low = min(max(low, 0), n)
    high = max(min(high, n), low)
    for i in range(low):
        y[i] = 0
    for i in range(low, high):
        y[i] = x[i * stride]
    for i in range(high, n):
        y[i] = 0


@njit(error_model="numpy", boundscheck=False)
def pack_same(x, taps, valid, valid_row, tap_count, first, count, size, w, start, n, out, out_row):
    # `pack` where a tap is a fixed distance in the input, and `valid` tells what is padding.
    channel, tap = first // tap_count, first % tap_count
    for k in range(count):
        place = channel * size + taps[tap * 5 + 1] * w + taps[tap * 5 + 2] + start
        select(at(out, k * out_row), at(x, place), at(valid, tap * valid_row + start), n, 4 * size)
        tap += 1
        if tap == tap_count:
            tap = 0
            channel += 1


@njit(error_model="numpy", boundscheck=False)
def pack(x, taps, tap_count, first, count, d, h, w, rows, columns, stride_d, stride_h, stride_w,
         start, n, out, out_row):
    # Rows first..first+count of the image-to-column matrix, for n output pixels from `start`.
    channel, tap = first // tap_count, first % tap_count
    row0, column0 = start // columns, start % columns
    z0, y0 = row0 // rows, row0 % rows
    for k in range(count):
        down, across, along = taps[tap * 5], taps[tap * 5 + 1], taps[tap * 5 + 2]
        low, high = taps[tap * 5 + 3], taps[tap * 5 + 4]
        target = at(out, k * out_row)
        z, y, column, done = z0, y0, column0, 0
        while done < n:
            run = min(columns - column, n - done)
            iz, iy = z * stride_d + down, y * stride_h + across
            to = at(target, done)
            if 0 <= iz < d and 0 <= iy < h:
                source = at(x, ((channel * d + iz) * h + iy) * w + column * stride_w + along)
                if stride_w == 1:
                    copy1(to, source, low - column, high - column, run)
                elif stride_w == 2:
                    copy2(to, source, low - column, high - column, run)
                else:
                    strided_row(to, source, stride_w, low - column, high - column, run)
            else:
                for i in range(run):
                    to[i] = 0
            done += run
            column = 0
            y += 1
            if y == rows:
                y = 0
                z += 1
        tap += 1
        if tap == tap_count:
            tap = 0
            channel += 1
"""

_IMPLICIT = """
def kernel(x, weights, y, bias, residual, scalars, taps, valid, work,
           packed, same, valid_row, channels, d, h, w, rows, columns, stride_d, stride_h, stride_w, tap_count,
           groups, outputs, pixels, block_m, part_m, block_n, block_k, panel_row, sums_size, work_step,
           flags, begin, end, thread):
    depth = channels * tap_count
    parts = (outputs + part_m - 1) // part_m
    blocks = (pixels + block_n - 1) // block_n
    chunks = max((depth + block_k - 1) // block_k, 1)
    sums = at(work, thread * work_step)
    panels = at(sums, sums_size)
    before = -1
    for unit in range(begin, end):
        part, image = unit % parts, unit // parts
        start = image % blocks * block_n
        image //= blocks  # of groups and batch
        group = image % groups
        n = min(block_n, pixels - start)
        m0 = part * part_m
        source = at(x, image * channels * d * h * w)
        for chunk in range(chunks):
            k0 = chunk * block_k
            k = min(block_k, depth - k0)
            if chunks > 1 or unit // parts != before:
                if same:
                    pack_same(source, taps, valid, valid_row, tap_count, k0, k, h * w, w, start, n,
                              panels, panel_row)
                else:
                    pack(source, taps, tap_count, k0, k, d, h, w, rows, columns,
                         stride_d, stride_h, stride_w, start, n, panels, panel_row)
                before = unit // parts
            last = chunk == chunks - 1
            f = (flags if last else 0) | (ACCUMULATE if chunk > 0 else 0)
            for i in range(m0, min(m0 + part_m, outputs), block_m):
                m = min(block_m, min(m0 + part_m, outputs) - i)
                row = group * outputs + i
                place = (image * outputs + i) * pixels + start
                mine = at(sums, (i - m0) * block_n)
                to, step = (at(y, place), pixels) if last else (mine, block_n)
                product(at(weights, row * depth), packed, depth, 1, k0, panels, panel_row, COLUMNS, k,
                        to, step, m, n, mine, block_n, at(bias, row), 1, bias,
                        at(residual, place), pixels, scalars, f)
"""


def emit_implicit(dtype: str, lanes: int) -> str:
    """The module of a convolution as an implicit matrix product.

    x: T[batch, groups * channels, d, h, w]; y, residual: T[batch, groups * outputs, pixels] with
    pixels = depth x `rows` x `columns`; weights: `tiles.pack_rows` of every group when packed, else
    T[groups * outputs, channels * tap_count]; bias: T[groups * outputs].
    Units are parts of `part_m` output channels (fastest), blocks of `block_n` pixels, groups, batch.
    """
    return _HEAD + product_source(dtype, lanes) + _PACK.format(dtype=dtype) + _IMPLICIT
