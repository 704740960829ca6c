"""Labels and scores of samples from the sums of a classifier or a regressor.

Source: ONNX operator specifications of ai.onnx.ml; where they leave it open, onnxruntime 1.31.
"""

_HEADER = """\
import math

from numba import {number}, int64
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.libm import sigmoid64
from app.kernels.cpu.codegen.vectormath import exp32, sigmoid32


def kernel(sums, there, labels, chosen, y, width, begin, end):
    for row in range(begin, end):
        s = row * width
"""
_CHOICES = {
    "largest": """\
        best = -1
        for i in range(width):
            if {met}(best < 0 or sums[s + i] > sums[s + best]):
                best = i
        chosen[row] = labels[max(best, 0)]
""",
    "second": "        chosen[row] = labels[1 if sums[s + 1] > {limit} else 0]\n",
    "single": "        chosen[row] = labels[1 if sums[s] > {limit} else 0]\n",
    "none": "",
}
_TRANSFORMS = {
    "NONE": """\
        for i in range(width):
            y[s + i] = sums[s + i]
""",
    "LOGISTIC": """\
        for i in range(width):
            y[s + i] = {sigmoid}(sums[s + i])
""",
    "PROBIT": """\
        for i in range(width):
            w = {t}(2) * sums[s + i] - {t}(1)
            l = math.log(({t}(1) - w) * ({t}(1) + w))
            h = {t}(2 / (math.pi * 0.147)) + {t}(0.5) * l
            y[s + i] = math.copysign(math.sqrt(2.0), w) * math.sqrt(-h + math.sqrt(h * h - l / {t}(0.147)))
""",
    "SOFTMAX": """\
        m = sums[s]
        for i in range(1, width):
            m = max(m, sums[s + i])
        total = {t}(0)
        for i in range(width):
            e = {exp}(sums[s + i] - m)
            sums[s + i] = e
            total += e
        for i in range(width):
            y[s + i] = sums[s + i] / total
""",
    "SOFTMAX_ZERO": """\
        m = sums[s]
        for i in range(1, width):
            m = max(m, sums[s + i])
        small = {exp}(-m)
        total = {t}(0)
        for i in range(width):
            v = sums[s + i]
            if abs(v) > {t}(1e-7):
                v = {exp}(v - m)
                total += v
            else:
                v *= small
            sums[s + i] = v
        for i in range(width):
            y[s + i] = sums[s + i] / total
""",
}
_PAIRS = {
    "complement": "        y[2 * row] = {t}(1) - sums[s]\n        y[2 * row + 1] = sums[s]\n",
    "negative": "        y[2 * row] = -sums[s]\n        y[2 * row + 1] = sums[s]\n",
    "logistic": "        y[2 * row] = {sigmoid}(-sums[s])\n        y[2 * row + 1] = {sigmoid}(sums[s])\n",
}
TRANSFORMS, PAIRS = tuple(_TRANSFORMS), tuple(_PAIRS)


def scores(number: str, choice: str, limit: float, transform: str, met: bool) -> str:
    """Source of a kernel that chooses a label for each row and transforms its sums.

    sums: number[rows, width], which is written over; there: uint8 like it, 0 where a sum is none, read if
    `met`; labels: int64; chosen: int64[rows]; y: T[rows, width], or of two classes where the transform is
    one of PAIRS, from one sum a row. `choice` is that of the label: the largest sum, whether the second or
    the single one is above `limit`, or none. Units are rows.
    """
    if choice == "largest" and met:
        chosen = _CHOICES[choice].format(met="there[s + i] != 0 and ")
    else:
        chosen = _CHOICES[choice].format(met="", limit=f"{number}({limit})")
    end = "32" if number == "float32" else "64"
    words = {"t": number, "exp": "exp32" if end == "32" else "math.exp", "sigmoid": f"sigmoid{end}"}
    return _HEADER.format(number=number) + chosen + (_TRANSFORMS | _PAIRS)[transform].format(**words)
