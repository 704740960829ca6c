"""Losses of class scores, and the determinant."""

import math

from app.kernels.cpu.codegen.inner import njit


@njit
def _term(x, target, weight, classes, inner, weighted, ignored, ignore_index, unit):
    """(loss, weight) of one element; NaN where the target names no class."""
    label = target[unit]
    if ignored and label == ignore_index:
        return 0.0, 0.0
    if label < 0 or label >= classes:
        return math.nan, 1.0
    w = float(weight[label]) if weighted else 1.0
    score = x[(unit // inner * classes + label) * inner + unit % inner]
    return -w * score, w


def likelihood(x, target, weight, y, classes, inner, weighted, ignored, ignore_index, begin, end):
    """Y = -weight[target] * x[target] per element.

    x: T[batch, classes, inner]; target: integers [batch, inner]; weight: T[classes], read where
    `weighted`; y: T[batch, inner]. Units are batch * inner.
    """
    for unit in range(begin, end):
        y[unit] = _term(x, target, weight, classes, inner, weighted, ignored, ignore_index, unit)[0]


def total_likelihood(
    x, target, weight, y, classes, inner, weighted, ignored, ignore_index, count, is_mean, begin, end
):
    """Sum of what `likelihood` gives for `count` elements, or their weighted mean: y: T[1]; one unit."""
    for _ in range(begin, end):
        loss = 0.0
        weights = 0.0
        for unit in range(count):
            term, w = _term(x, target, weight, classes, inner, weighted, ignored, ignore_index, unit)
            loss += term
            weights += w
        y[0] = loss / weights if is_mean else loss


def determinant(x, y, scratch, n, begin, end, thread):
    """Determinants by Gaussian elimination with partial pivoting.

    x: T[batch, n, n]; y: T[batch]; scratch: float64[threads, n, n]. Units are matrices.
    """
    s = thread * n * n
    for unit in range(begin, end):
        for i in range(n * n):
            scratch[s + i] = x[unit * n * n + i]
        result = 1.0
        for c in range(n):
            pivot = c
            for r in range(c + 1, n):
                if abs(scratch[s + r * n + c]) > abs(scratch[s + pivot * n + c]):
                    pivot = r
            if pivot != c:
                result = -result
                for i in range(c, n):
                    kept = scratch[s + c * n + i]
                    scratch[s + c * n + i] = scratch[s + pivot * n + i]
                    scratch[s + pivot * n + i] = kept
            diagonal = scratch[s + c * n + c]
            result *= diagonal
            if diagonal == 0:
                break
            for r in range(c + 1, n):
                factor = scratch[s + r * n + c] / diagonal
                for i in range(c + 1, n):
                    scratch[s + r * n + i] -= factor * scratch[s + c * n + i]
        y[unit] = result
