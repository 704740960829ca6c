"""Normalization by mean and variance, by norm, and by neighbouring channels; row-major tensors.

Statistics are taken in two passes over a row (mean, then squared deviations), which stays exact
where the mean is large against the deviation. A row is read whole before it is written.
"""

import math

from app.kernels.cpu.extrema import like
from app.kernels.cpu.sums import total, total_squares


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
                    y[c + i] = (x[c + i] - middle) * factor * scale[i] + bias[i]
            continue
        for c in range(start, stop, scales):
            for i in range(scales):
                y[c + i] = (x[c + i] - middle) * factor * scale[i]
        if biases:
            for c in range(start, stop, biases):
                for i in range(biases):
                    y[c + i] += bias[i]
