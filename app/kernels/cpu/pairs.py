"""8-bit operands of integer products, widened to pairs of int16 (`tiles.PAIRS`) or by fours as they are.

An 8-bit number minus its zero point always fits int16, so nothing is lost. Neighbours along the
reduction become one pair; an odd end gets a zero.
"""

import numpy as np


def widen_rows(x, zero, y, k, begin, end):
    """y[i, p] = x[i, p] - zero[0]. x, zero: 8-bit T[m, k] and T[1]; y: int16[m, 2 ceil(k / 2)].

    Units are rows.
    """
    offset = np.int32(zero[0])
    row = (k + 1) // 2 * 2
    for i in range(begin, end):
        for p in range(k):
            y[i * row + p] = np.int16(np.int32(x[i * k + p]) - offset)
        if k % 2 == 1:
            y[i * row + k] = 0


def widen_panels(b, zero, zero_step, y, k, n, columns, begin, end):
    """Panels of columns as a product reads them: PAIRS[batch, ceil(n / columns), ceil(k / 2), columns].

    b: 8-bit T[batch, k, n]; zero: T, one per column (zero_step 1) or a single one (0); y: int16.
    Units are panels. Absent columns are zeros.
    """
    panels = (n + columns - 1) // columns
    pairs = (k + 1) // 2
    for unit in range(begin, end):
        batch = unit // panels
        first = unit % panels * columns
        width = min(columns, n - first)
        for p in range(pairs):
            to = (unit * pairs + p) * columns * 2
            low = (batch * k + 2 * p) * n + first
            for j in range(2 * columns):
                y[to + j] = 0
            for j in range(width):
                y[to + 2 * j] = np.int16(np.int32(b[low + j]) - np.int32(zero[(first + j) * zero_step]))
            if 2 * p + 1 < k:
                for j in range(width):
                    offset = np.int32(zero[(first + j) * zero_step])
                    y[to + 2 * j + 1] = np.int16(np.int32(b[low + n + j]) - offset)


def widen_planes(x, zero, y, sizes, begin, end):
    """Pairs of channels with a border of zeros: PAIRS[images * groups, ceil(channels / 2), plane].

    x: 8-bit T[images, groups * channels, d, h, w]; zero: T[1]; y: int16.
    sizes: int64: channels of a group, d, h, w, padded d, h, w, where the image begins in them (three),
    plane (elements from one to the next). Units are planes.
    """
    channels, d, h, w = sizes[0], sizes[1], sizes[2], sizes[3]
    wide_d, wide_h, wide_w = sizes[4], sizes[5], sizes[6]
    front, top, left = sizes[7], sizes[8], sizes[9]
    plane = sizes[10]
    offset = np.int32(zero[0])
    pairs = (channels + 1) // 2
    for unit in range(begin, end):
        image, channel = unit // pairs, unit % pairs * 2
        both = channel + 1 < channels
        for row in range(wide_d * wide_h):
            z, line = row // wide_h - front, row % wide_h - top
            to = (unit * plane + row * wide_w) * 2
            if z < 0 or z >= d or line < 0 or line >= h:
                for j in range(2 * wide_w):
                    y[to + j] = 0
                continue
            for j in range(2 * left):
                y[to + j] = 0
            to += 2 * left
            low = ((image * channels + channel) * d + z) * h * w + line * w
            high = low + d * h * w
            if both:
                for j in range(w):
                    y[to + 2 * j] = np.int16(np.int32(x[low + j]) - offset)
                    y[to + 2 * j + 1] = np.int16(np.int32(x[high + j]) - offset)
            else:
                for j in range(w):
                    y[to + 2 * j] = np.int16(np.int32(x[low + j]) - offset)
                    y[to + 2 * j + 1] = 0
            to += 2 * w
            for j in range(2 * (wide_w - left - w)):
                y[to + j] = 0


def group_rows(x, shift, y, k, row, begin, end):
    """y[i, p] = x[i, p] + shift as uint8, then zeros. x: 8-bit T[m, k]; y: uint8[m, row]; units are rows."""
    for i in range(begin, end):
        for p in range(k):
            y[i * row + p] = np.uint8(np.int32(x[i * k + p]) + shift)
        for p in range(k, row):
            y[i * row + p] = 0


def corrections(zero, shift, weights, y, begin, end):
    """y[j] = -(zero[0] + shift) * weights[j]: what a zero point adds to sums, taken back.

    zero: 8-bit T[1]; weights: int32, sums of the weights of each output.
    """
    origin = np.int32(zero[0]) + shift
    for j in range(begin, end):
        y[j] = -origin * weights[j]


def group_planes(x, zero, shift, y, sizes, begin, end):
    """Fours of channels with a border of zero points: uint8[images * groups, ceil(channels / 4), plane, 4].

    As `widen_planes`, with shift added to x and zero.
    """
    channels, d, h, w = sizes[0], sizes[1], sizes[2], sizes[3]
    wide_d, wide_h, wide_w = sizes[4], sizes[5], sizes[6]
    front, top, left = sizes[7], sizes[8], sizes[9]
    plane = sizes[10]
    blank = np.uint8(np.int32(zero[0]) + shift)
    quads = (channels + 3) // 4
    step = d * h * w
    for unit in range(begin, end):
        image, channel = unit // quads, unit % quads * 4
        count = min(channels - channel, 4)
        for row in range(wide_d * wide_h):
            z, line = row // wide_h - front, row % wide_h - top
            to = (unit * plane + row * wide_w) * 4
            if z < 0 or z >= d or line < 0 or line >= h:
                for j in range(4 * wide_w):
                    y[to + j] = blank
                continue
            for j in range(4 * left):
                y[to + j] = blank
            to += 4 * left
            first = ((image * channels + channel) * d + z) * h * w + line * w
            if count == 4:
                for j in range(w):
                    y[to + 4 * j] = np.uint8(np.int32(x[first + j]) + shift)
                    y[to + 4 * j + 1] = np.uint8(np.int32(x[first + step + j]) + shift)
                    y[to + 4 * j + 2] = np.uint8(np.int32(x[first + 2 * step + j]) + shift)
                    y[to + 4 * j + 3] = np.uint8(np.int32(x[first + 3 * step + j]) + shift)
            else:
                for j in range(4 * w):
                    y[to + j] = blank
                for c in range(count):
                    for j in range(w):
                        y[to + 4 * j + c] = np.uint8(np.int32(x[first + c * step + j]) + shift)
            to += 4 * w
            for j in range(4 * (wide_w - left - w)):
                y[to + j] = blank
