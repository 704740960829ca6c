"""Softmax and its logarithm over the last axis, or over one in the middle."""

from app.kernels.cuda import vectors
from app.kernels.cuda.geometry import NBYTES, WIDEST, check_size
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.rows import Rows, folded, lanewise
from app.kernels.cuda.units import per_unit

THREADS = 128


def row_width(n: int, *dtypes: str) -> int:
    """Elements of a tuple of contiguous rows of n: aligned in every row, 16 bytes of the narrowest type."""
    width = WIDEST // min(NBYTES[d] for d in dtypes)
    while n % width:
        width //= 2
    return width


def softmax(outer: int, n: int, inner: int, dtype: str, log: bool = False) -> Launches:
    """Softmax along the middle axis, or log softmax.

    Roles x, y: dtype[outer, n, inner] contiguous, y may be x. float32, float16 or bfloat16; computed
    in float32.
    """
    check_size("softmax", outer * n * inner)
    return _rows(outer, n, dtype, log) if inner == 1 else _columns(outer, n, inner, dtype, log)


def _rows(outer: int, n: int, dtype: str, log: bool) -> Launches:
    width = row_width(n, dtype)
    rows = Rows(n, width, "load(x, uint32(base + {c}))", f"uint32(row * uint32({n}))")
    rows.functions += vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    rows.functions += folded("most", "v[{i}]", "max({a}, {b})", width)
    rows.functions += lanewise("less", ("v", "m"), "v[{i}] - m", width)
    rows.begin()
    rows.body.append("m = float32(-inf)")
    rows.sweep("m = most(m, {v})")
    rows.join(("m",), ("m = max(m, m_)",))
    rows.body.append("s = float32(0)")
    if not log:
        rows.functions += lanewise("powers", ("v",), "exp32(v[{i}])", width)
    rows.functions += folded("sums", "exp32(v[{i}])" if log else "v[{i}]", "({a} + {b})", width)
    if not log:
        rows.functions += lanewise("times", ("v", "f"), "v[{i}] * f", width)
    rows.transform("less({v}, m)" if log else "powers(less({v}, m))")
    rows.sweep("s = sums(s, {v})")
    rows.join(("s",), ("s = s + s_",))
    rows.body.append("s = log32(s)" if log else "s = float32(1) / s")
    rows.sweep(f"store(y, uint32(base + {{c}}), {'less' if log else 'times'}({{v}}, s))")
    return rows.launch(
        "log_softmax" if log else "softmax", dict.fromkeys("xy", vectors.pointer(dtype)), outer
    )


def _columns(outer: int, n: int, inner: int, dtype: str, log: bool) -> Launches:
    """A thread a column (or some neighbours): maximum and sum in one sweep, as in flash attention."""
    width = min(row_width(inner, dtype), 4)
    groups = inner // width
    lines = vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    lines += lanewise("highest", ("m", "v"), "max(m[{i}], v[{i}])", width)
    # Of columns that begin with -inf nothing is summed up, and no difference of infinities is taken.
    grown = (
        "(s[{i}] * exp32(m[{i}] - h[{i}]) if s[{i}] > float32(0) else s[{i}])"
        " + (exp32(v[{i}] - h[{i}]) if v[{i}] != float32(-inf) else float32(0))"
    )
    lines += lanewise("added", ("s", "m", "v", "h"), grown, width)
    lines += lanewise("logs", ("s",), "log32(s[{i}])", width)
    lines += lanewise("inverses", ("s",), "float32(1) / s[{i}]", width)
    lines += lanewise("logarithm", ("v", "m", "s"), "v[{i}] - m[{i}] - s[{i}]", width)
    lines += lanewise("share", ("v", "m", "s"), "exp32(v[{i}] - m[{i}]) * s[{i}]", width)
    body = [
        f"at = uint32(u // uint32({groups}) * uint32({n} * {inner})"
        f" + u % uint32({groups}) * uint32({width}))",
        f"m = ({', '.join(['float32(-inf)'] * width)},)",
        f"s = ({', '.join(['float32(0)'] * width)},)",
        f"for k in range({n}):",
        f"    v = load(x, uint32(at + uint32(k) * uint32({inner})))",
        "    higher = highest(m, v)",
        "    s = added(s, m, v, higher)",
        "    m = higher",
        f"s = {'logs' if log else 'inverses'}(s)",
        f"for k in range({n}):",
        f"    p = uint32(at + uint32(k) * uint32({inner}))",
        "    v = load(x, p)",
        f"    store(y, p, {'logarithm' if log else 'share'}(v, m, s))",
    ]
    name, operands = "log_softmax" if log else "softmax", [("x", dtype), ("y", dtype)]
    return per_unit(name, lines, body, operands, outer * groups, threads=THREADS)
