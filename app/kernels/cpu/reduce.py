"""Reductions over any set of axes, generated per operation and element type.

Axes are collapsed to alternating kept and reduced groups first, so two loop orders are enough:
`rows` when the innermost group is reduced (each output reads contiguous runs) and `columns` when
it is kept (contiguous outputs accumulate side by side). float32 sums are collected in short
float32 runs on many accumulators, and the runs in float64. Runs of floats are folds (`sums`), whose
results are the same on every processor; sums of integers may be joined in any order, and are of a wider type.
"""

from dataclasses import dataclass

import numpy as np

RUN = 4096  # elements that one float32 partial sum spans: 128 for each of 32 accumulators
DEPTH = 128  # rows that a float32 column accumulates before it is added to its total


@dataclass(frozen=True, slots=True)
class Reduction:
    """One operation as Python expressions.

    `element` is what an input `v` contributes, `step` joins two partial results `a` and `b`,
    `finish` makes the output of the result `t` of `count` elements. `start` is the identity.
    """

    start: str
    element: str
    step: str
    finish: str = "t"
    adds: bool = True


# maximum(b, a), not (a, b): LLVM would turn the NaN of the stored `a` into a slow masked store.
REDUCTIONS = {
    "sum": Reduction("0", "v", "a + b"),
    "mean": Reduction("0", "v", "a + b", "t / count"),
    "l1": Reduction("0", "abs(v)", "a + b"),
    "l2": Reduction("0", "v * v", "a + b", "math.sqrt(t)"),
    "sum_square": Reduction("0", "v * v", "a + b"),
    "log_sum": Reduction("0", "v", "a + b", "math.log(t)"),
    "prod": Reduction("1", "v", "a * b"),
    "max": Reduction("lowest", "v", "maximum(b, a)", adds=False),
    "min": Reduction("highest", "v", "minimum(b, a)", adds=False),
}


def reduction_of(op: str) -> Reduction:
    """The operation of a name; `l3` and so on are norms of that order."""
    order = int(op[1:]) if op[0] == "l" and op[1:].isdecimal() else 0
    if order < 3:
        return REDUCTIONS[op]
    return Reduction("0", " * ".join(["abs(v)"] * order), "a + b", f"t ** {1 / order}")


_HEADER = """\
import math

from numba import float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from app.kernels.cpu.codegen.inner import njit

from app.kernels.cpu.extrema import maximum, minimum

"""

_FOLD = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.sums import fold, inlined


@inlined
def join(a, b):
    return {step}


@inlined
def element(a, v, _y, _p):
    b = {element}
    return {step}


fold_run = fold(element, join)


@njit
def run(x, start, stop):
    return fold_run(at(x, start), x, stop - start, {start}, 0)


"""

_LOOP = """\
@njit
def run(x, start, stop):
    a = {narrow}({start})
    for i in range(start, stop):
        v = {load}
        b = {element}
        a = {step}
    return a


"""

_ROWS = """\
def kernel(x, y, n, k1, k2, a0, a1, a2, r0, r1, b0, b1, begin, end):
    i2 = begin % k2
    i1 = begin // k2 % k1
    i0 = begin // k2 // k1
    count = n * r0 * r1
    for unit in range(begin, end):
        first = i0 * a0 + i1 * a1 + i2 * a2
        a = {wide}({start})
        for j0 in range(r0):
            for j1 in range(r1):
                at = first + j0 * b0 + j1 * b1
                for c in range(at, at + n, {RUN}):
                    b = {wide}(run(x, c, min(c + {RUN}, at + n)))
                    a = {step}
        t = a
        y[unit] = {dtype}({finish})
        i2 += 1
        if i2 == k2:
            i2 = 0
            i1 += 1
            if i1 == k1:
                i1 = 0
                i0 += 1
"""

_COLUMNS = """\
def kernel(
    x, y, total, partial, columns, m, blocks, repeat, k1, k2, a0, a1, a2, r0, r1, r2, b0, b1, b2,
    begin, end, thread
):
    s = thread * columns
    count = r0 * r1 * r2 * repeat
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = m * repeat if repeat > 1 else min(columns, m - low)
        kept = unit // blocks
        first = kept // k2 // k1 * a0 + kept // k2 % k1 * a1 + kept % k2 * a2 + low
        for j in range(s, s + width):
            total[j] = {start}
            partial[j] = {start}
        pending = 0
        for j0 in range(r0):
            for j1 in range(r1):
                for j2 in range(r2):
                    at = first + j0 * b0 + j1 * b1 + j2 * b2
                    for j in range(width):
                        v = {load_column}
                        b = {element}
                        a = partial[s + j]
                        partial[s + j] = {step}
                    pending += 1
                    if pending == {DEPTH}:
                        pending = 0
                        for j in range(s, s + width):
                            a = total[j]
                            b = {wide}(partial[j])
                            total[j] = {step}
                            partial[j] = {start}
        out = kept * m + low
        for j in range(s, s + width):
            a = total[j]
            b = {wide}(partial[j])
            total[j] = {step}
        for q in range(1, repeat):
            for j in range(s, s + m):
                a = total[j]
                b = total[j + q * m]
                total[j] = {step}
        for j in range(min(width, m)):
            t = total[s + j]
            y[out + j] = {dtype}({finish})
"""


def _names(op: str, dtype: str, wide: str, narrow: str) -> dict[str, object]:
    row = reduction_of(op)
    kind = np.dtype(dtype)
    finish = row.finish
    if kind.kind == "f":
        low, high = "-math.inf", "math.inf"
        load = "x[{}]"
    else:
        info = np.iinfo(kind) if kind.kind in "iu" else None
        low, high = (str(info.min), str(info.max)) if info else ("0", "1")
        load = f"{narrow}(x[{{}}])"
        if op == "mean":  # truncates towards zero, as ONNX Runtime and C do
            finish = "(t // count if t >= 0 else -(-t // count))"
    start = {"lowest": low, "highest": high}.get(row.start, row.start)
    return {
        "wide": wide,
        "narrow": narrow,
        "dtype": "uint8" if dtype == "bool" else dtype,
        "start": f"{wide}({start})" if row.adds else f"{narrow}({start})",
        "load": load.format("i"),
        "load_column": load.format("at + j"),
        "element": row.element,
        "step": row.step,
        "finish": finish,
        "RUN": RUN,
        "DEPTH": DEPTH,
    }


def rows(op: str, dtype: str, wide: str, narrow: str) -> str:
    """Source of a kernel that reduces contiguous runs, each in type `narrow`, all of them in `wide`.

    x: T, y: T[outputs]; an output with kept index (i0, i1, i2), whose last two extents are
    k1, k2, reads r0 x r1 runs of n contiguous elements at i0 a0 + i1 a1 + i2 a2 + j0 b0 + j1 b1
    (strides in elements). Units are outputs.
    """
    run = _FOLD if np.dtype(dtype).kind == "f" or not reduction_of(op).adds else _LOOP
    return _HEADER + (run + _ROWS).format(**_names(op, dtype, wide, narrow))


def columns(op: str, dtype: str, wide: str, narrow: str) -> str:
    """Source of a kernel that reduces whole rows into a row, up to `columns` outputs at a time.

    x: T, y: T[outer, m]; as in `rows`, but each kept index reads r0 x r1 x r2 rows of m elements.
    total: wide[threads, columns]; partial: narrow[threads, columns]. Units are outer * blocks,
    where a block is up to `columns` outputs of one row. So many rows as `repeat` lie one after the other
    and are read as one, whose parts are joined at the end.
    """
    return _HEADER + _COLUMNS.format(**_names(op, dtype, wide, narrow))
