"""Normalization by mean and variance, by norm, and by neighbouring channels; row-major tensors.

Statistics are taken in two passes over a row (mean, then squared deviations), which stays exact
where the mean is large against the deviation. A row is read whole before it is written.
"""

import math

from numba import float64

from app.kernels.cpu.access import read, write
from app.kernels.cpu.extrema import like
from app.kernels.cpu.sums import total, total_magnitudes, total_squares


def layer_norm(
    x, scale, bias, epsilon, y, mean, deviation, n, scales, biases, wants_mean, wants_deviation, begin, end
):
    """Rows of y = (x - mean) / sqrt(variance + epsilon) * scale + bias.

    x, y: T[rows, n], y may be x; scale: T[scales], bias: T[biases], lengths that divide n, 0 for
    no bias; epsilon: float64[1]; mean, deviation (1 / standard deviation): T[rows], written where
    wanted. Units are rows.
    """
    for row in range(begin, end):
        start = row * n
        stop = start + n
        center = total(x, start, stop) / n
        # The squares are around the rounded mean: the second term removes what rounding shifted.
        middle = like(x[0], center)
        variance = total_squares(x, start, stop, middle) / n - (center - middle) ** 2
        inverse = 1.0 / math.sqrt(variance + epsilon[0])
        if wants_mean:
            mean[row] = center
        if wants_deviation:
            deviation[row] = inverse
        factor = like(x[0], inverse)
        if biases == scales:
            for c in range(start, stop, scales):
                for i in range(scales):
                    write(y, c + i, (read(x, c + i) - middle) * factor * read(scale, i) + read(bias, i))
            continue
        for c in range(start, stop, scales):
            for i in range(scales):
                write(y, c + i, (read(x, c + i) - middle) * factor * read(scale, i))
        if biases:
            for c in range(start, stop, biases):
                for i in range(biases):
                    y[c + i] += bias[i]


def rms_norm(x, scale, epsilon, y, n, scales, begin, end):
    """Rows of y = x / sqrt(mean(x^2) + epsilon) * scale.

    x, y: T[rows, n], y may be x; scale: T[scales], whose length divides n; epsilon: float64[1].
    Units are rows.
    """
    for row in range(begin, end):
        start = row * n
        square = total_squares(x, start, start + n, like(x[0], 0)) / n
        factor = like(x[0], 1.0 / math.sqrt(square + epsilon[0]))
        for c in range(start, start + n, scales):
            for i in range(scales):
                write(y, c + i, read(x, c + i) * factor * read(scale, i))


def group_norm(x, scale, bias, epsilon, y, groups, channels, n, begin, end):
    """Groups of channels to mean 0 and variance 1, then y = z * scale + bias per channel.

    x, y: T[batch, groups, channels, n], y may be x; scale, bias: T[groups * channels];
    epsilon: float64[1]. Units are batch * groups.
    """
    for unit in range(begin, end):
        start = unit * channels * n
        stop = start + channels * n
        center = total(x, start, stop) / (channels * n)
        middle = like(x[0], center)
        variance = total_squares(x, start, stop, middle) / (channels * n) - (center - middle) ** 2
        inverse = like(x[0], 1.0 / math.sqrt(variance + epsilon[0]))
        for c in range(channels):
            channel = unit % groups * channels + c
            factor = inverse * scale[channel]
            shift = bias[channel]
            at = start + c * n
            for i in range(at, at + n):
                write(y, i, (read(x, i) - middle) * factor + shift)


def batch_norm(x, scale, bias, mean, variance, epsilon, y, channels, n, begin, end):
    """Y = (x - mean) / sqrt(variance + epsilon) * scale + bias per channel.

    x, y: T[batch, channels, n], y may be x; scale, bias, mean, variance: [channels];
    epsilon: float64[1]. Units are batch * channels.
    """
    for unit in range(begin, end):
        channel = unit % channels
        factor = like(x[0], scale[channel] / math.sqrt(variance[channel] + epsilon[0]))
        middle = like(x[0], mean[channel])
        shift = like(x[0], bias[channel])
        at = unit * n
        for i in range(at, at + n):
            write(y, i, (read(x, i) - middle) * factor + shift)


def batch_norm_rows(x, scale, bias, mean, variance, epsilon, y, channels, begin, end):
    """As `batch_norm` with n = 1: channels are innermost. Units are rows of channels."""
    constant = like(variance[0], epsilon[0])
    for row in range(begin, end):
        at = row * channels
        for c in range(channels):
            factor = read(scale, c) / math.sqrt(read(variance, c) + constant)
            write(y, at + c, (read(x, at + c) - read(mean, c)) * factor + read(bias, c))


def lp_norm_rows(x, y, n, p, begin, end):
    """Rows of y = x / |x|_p, zero for a row of zeros. x, y: T[rows, n], y may be x; p is 1 or 2."""
    for row in range(begin, end):
        start = row * n
        stop = start + n
        if p == 1:
            norm = total_magnitudes(x, start, stop)
        else:
            norm = math.sqrt(total_squares(x, start, stop, like(x[0], 0)))
        divisor = like(x[0], norm if norm != 0 else 1.0)
        for i in range(start, stop):
            write(y, i, read(x, i) / divisor)


def lp_norm_columns(x, y, norms, columns, n, inner, blocks, p, begin, end, thread):
    """Y = x / |x|_p along the middle axis, zero for zeros. x, y: T[outer, n, inner], y may be x.

    norms: float64[threads, columns]; p is 1 or 2. Units are outer * blocks, where a block is up
    to `columns` neighbours on the innermost axis.
    """
    s = thread * columns
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = min(columns, inner - low)
        at = unit // blocks * n * inner + low
        for j in range(s, s + width):
            norms[j] = 0.0
        for i in range(n):
            line = at + i * inner
            for j in range(width):
                v = float64(x[line + j])
                norms[s + j] += abs(v) if p == 1 else v * v
        for j in range(s, s + width):
            norm = norms[j] if p == 1 else math.sqrt(norms[j])
            norms[j] = norm if norm != 0 else 1.0
        for i in range(n):
            line = at + i * inner
            for j in range(width):
                write(y, line + j, read(x, line + j) / read(norms, s + j))


def mean_variance(x, y, epsilon, n, k1, k2, a0, a1, a2, r0, r1, b0, b1, begin, end):
    """Y = (x - mean) / (standard deviation + epsilon) over any set of axes; y may be x.

    x, y: T; a kept index (i0, i1, i2), whose last two extents are k1, k2, owns r0 x r1 runs of n
    contiguous elements at i0 a0 + i1 a1 + i2 a2 + j0 b0 + j1 b1. Units are kept indices.
    """
    count = n * r0 * r1
    for unit in range(begin, end):
        first = unit // k2 // k1 * a0 + unit // k2 % k1 * a1 + unit % k2 * a2
        center = 0.0
        for j0 in range(r0):
            for j1 in range(r1):
                at = first + j0 * b0 + j1 * b1
                center += total(x, at, at + n)
        center /= count
        middle = like(x[0], center)
        variance = 0.0
        for j0 in range(r0):
            for j1 in range(r1):
                at = first + j0 * b0 + j1 * b1
                variance += total_squares(x, at, at + n, middle)
        variance = variance / count - (center - middle) ** 2
        factor = like(x[0], 1.0 / (math.sqrt(max(variance, 0.0)) + epsilon[0]))
        for j0 in range(r0):
            for j1 in range(r1):
                at = first + j0 * b0 + j1 * b1
                for i in range(at, at + n):
                    write(y, i, (read(x, i) - middle) * factor)


def response_norm(x, y, powers, columns, channels, n, blocks, before, after, factors, begin, end, thread):
    """Y = x / (bias + alpha / size * sum of squares of neighbouring channels) ^ beta.

    x, y: T[batch, channels, n], y apart from x; a channel's neighbours are the `before` channels
    before it and the `after` after it; powers: T[threads, columns]; factors:
    float64[3] = bias, alpha / size, beta. Units are batch * channels * blocks, where a block is
    up to `columns` elements of a channel.
    """
    s = thread * columns
    offset, weight, beta = factors[0], factors[1], factors[2]
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = min(columns, n - low)
        plane = unit // blocks
        channel = plane % channels
        for j in range(s, s + width):
            powers[j] = like(x[0], 0)
        for c in range(max(0, channel - before), min(channels, channel + after + 1)):
            at = (plane - channel + c) * n + low
            for j in range(width):
                v = x[at + j]
                powers[s + j] += v * v
        at = plane * n + low
        if beta == 0.75:  # the usual exponent: two square roots instead of a logarithm
            for j in range(width):
                root = math.sqrt(like(x[0], offset) + like(x[0], weight) * powers[s + j])
                y[at + j] = x[at + j] / (root * math.sqrt(root))
        else:
            for j in range(width):
                y[at + j] = x[at + j] * math.exp(-beta * math.log(offset + weight * powers[s + j]))
