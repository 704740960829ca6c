"""Distances and similarities of rows to vectors, and decisions of support vector machines from them.

Vectors lie side by side: v[feature, vector]. So a loop over vectors is one over neighbors, which LLVM turns
into vector instructions without reordering any sum.
"""

BLOCK = 512  # vectors whose sums stay in the first cache

_SIMILAR = """\
import math

from numba import {number}
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.intrinsics import sqrt
from app.kernels.cpu.codegen.vectormath import exp32, tanh32


def kernel(x, v, y, parameters, features, vectors, begin, end):
    gamma = parameters[0]
    offset = parameters[1]
    degree = parameters[2]
    for row in range(begin, end):
        for first in range(0, vectors, {BLOCK}):
            count = min({BLOCK}, vectors - first)
            out = at(y, row * vectors + first)
            for j in range(count):
                out[j] = 0
            for i in range(features):
                a = {number}(x[row * features + i])
                line = at(v, i * vectors + first)
                for j in range(count):
                    d = {term}
                    out[j] += {step}
            for j in range(count):
                s = out[j]
                out[j] = {finish}
"""
_KINDS = {
    "sqeuclidean": ("a - line[j]", "d * d", "s"),
    "euclidean": ("a - line[j]", "d * d", "sqrt(s)"),
    "RBF": ("a - line[j]", "d * d", "{exp}(-gamma * s)"),
    "LINEAR": ("line[j]", "a * d", "s"),
    "POLY": ("line[j]", "a * d", "math.pow(gamma * s + offset, degree)"),
    "SIGMOID": ("line[j]", "a * d", "{tanh}(gamma * s + offset)"),
}
KINDS = tuple(_KINDS)


def similarities(number: str, kind: str) -> str:
    """Source of a kernel: y[row, j] is the distance or similarity of row and vector j.

    x: T[rows, features]; v: number[features, vectors]; y: number[rows, vectors]; parameters: number[3],
    gamma, offset and degree. `kind` is one of KINDS. Units are rows.
    """
    term, step, finish = _KINDS[kind]
    single = number == "float32"
    words = {"exp": "exp32" if single else "math.exp", "tanh": "tanh32" if single else "math.tanh"}
    return _SIMILAR.format(number=number, term=term, step=step, finish=finish.format(**words), BLOCK=BLOCK)


def transposed(x, y, rows, columns, begin, end):
    """y[j, i] = x[i, j]. x: T[rows, columns]. Units are columns."""
    for j in range(begin, end):
        for i in range(rows):
            y[j * rows + i] = x[i * columns + j]


def decisions(k, weights, rho, y, vectors, count, begin, end):
    """y[row, d] = sum of k[row, i] weights[d, i], plus rho[d], in float64.

    k: float32[rows, vectors]; weights, rho: float64; y: T[rows, count]. Units are rows.
    """
    for row in range(begin, end):
        for d in range(count):
            a = 0.0
            b = 0.0
            c = 0.0
            e = 0.0
            w = d * vectors
            s = row * vectors
            for i in range(0, vectors - 3, 4):
                a += k[s + i] * weights[w + i]
                b += k[s + i + 1] * weights[w + i + 1]
                c += k[s + i + 2] * weights[w + i + 2]
                e += k[s + i + 3] * weights[w + i + 3]
            for i in range(vectors - vectors % 4, vectors):
                a += k[s + i] * weights[w + i]
            y[row * count + d] = (a + b) + (c + e) + rho[d]


def one_class(sums, begin, end):
    """1 where a sum is above 0, else -1. sums: float64[rows]."""
    for row in range(begin, end):
        sums[row] = 1 if sums[row] > 0 else -1


def votes(sums, labels, chosen, counts, classes, begin, end, thread):
    """The label of the class that wins most of its pairs, the first of equals.

    sums: float64[rows, pairs], positive where the first class of a pair wins; labels: int64[classes];
    chosen: int64[rows]; counts: int64[threads, classes].
    """
    own = thread * classes
    pairs = classes * (classes - 1) // 2
    for row in range(begin, end):
        for i in range(classes):
            counts[own + i] = 0
        pair = row * pairs
        for i in range(classes):
            for j in range(i + 1, classes):
                counts[own + (i if sums[pair] > 0 else j)] += 1
                pair += 1
        best = 0
        for i in range(1, classes):
            if counts[own + i] > counts[own + best]:
                best = i
        chosen[row] = labels[best]


_COUPLED = """\
import math

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.libm import sigmoid64


def kernel(sums, a, b, y, scratch, classes, begin, end, thread):
    size = classes * classes
    q = at(scratch, thread * (2 * size + classes))
    wins = at(q, size)
    product = at(q, 2 * size)
    pairs = classes * (classes - 1) // 2
    for row in range(begin, end):
        pair = 0
        for i in range(classes):
            wins[i * classes + i] = 0.0
            for j in range(i + 1, classes):
                v = 1.0 - sigmoid64(sums[row * pairs + pair] * a[pair] + b[pair])
                v = min(max(v, {tiny}), 1.0 - {tiny})
                wins[i * classes + j] = v
                wins[j * classes + i] = 1.0 - v
                pair += 1
        p = at(y, row * classes)
        for i in range(classes):
            p[i] = 1.0 / classes
            total = 0.0
            for j in range(classes):
                q[i * classes + j] = -wins[j * classes + i] * wins[i * classes + j]
                total += wins[j * classes + i] * wins[j * classes + i]
            q[i * classes + i] = total
        for _ in range(max(100, classes)):
            energy = 0.0
            for i in range(classes):
                s = 0.0
                for j in range(classes):
                    s += q[i * classes + j] * p[j]
                product[i] = s
                energy += s * p[i]
            far = 0.0
            for i in range(classes):
                far = max(far, abs(product[i] - energy))
            if far < 0.005 / classes:
                break
            for t in range(classes):
                d = (energy - product[t]) / q[t * classes + t]
                p[t] += d
                e = energy + d * (d * q[t * classes + t] + 2.0 * product[t])
                energy = e / ((1.0 + d) * (1.0 + d))
                for j in range(classes):
                    product[j] = (product[j] + d * q[t * classes + j]) / (1.0 + d)
                    p[j] /= 1.0 + d
"""


def coupled() -> str:
    """Source of a kernel: probabilities of classes from sums of pairs, fitted by a and b.

    sums: float64[rows, pairs]; a, b: float64[pairs]; y: float64[rows, classes]; scratch: float64[threads,
    2 classes^2 + classes]. Units are rows.

    Source: Wu, Lin and Weng, 2004, "Probability estimates for multi-class classification by pairwise
    coupling", second method, with the stopping rule of libsvm.
    """
    return _COUPLED.format(tiny=1e-7)
