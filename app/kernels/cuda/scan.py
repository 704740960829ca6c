"""Running sums, and the k largest of a row."""

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import FLOATS, check_size, indented
from app.kernels.cuda.kernel import Kernel, Launches
from app.kernels.cuda.units import per_unit
from app.kernels.cuda.vectors import device

WARPS = 4
THREADS = 256  # of a row of top_k


def cumulative_sum(
    outer: int, n: int, inner: int, dtype: str, *, exclusive: bool = False, reverse: bool = False
) -> Launches:
    """Sums of all elements up to each one along the middle axis.

    Roles x, y: dtype[outer, n, inner] contiguous, y may be x. float32, float16, bfloat16 (summed up in
    float32), int32 and int64.

    Args:
        outer: extent before the axis.
        n: of the axis.
        inner: after it.
        dtype: of x and y.
        exclusive: whether an element's own value is left out.
        reverse: whether sums begin at the end.
    """
    check_size("cumulative_sum", outer * n * inner)
    kind = "float32" if dtype in FLOATS else dtype
    lines = vectors.load("load", dtype, 1) + vectors.store("store", dtype, 1)
    if inner == 1 and kind in ("float32", "int32"):
        return _warps(lines, outer, n, dtype, kind, exclusive, reverse)
    order = f"uint32({n - 1}) - uint32(k)" if reverse else "uint32(k)"
    body = [
        f"at = uint32(u // uint32({inner}) * uint32({n * inner}) + u % uint32({inner}))",
        f"t = {kind}(0)",
        f"for k in range({n}):",
        f"    p = uint32(at + ({order}) * uint32({inner}))",
        "    s = t",
        f"    t = {kind}(t + load(x, p)[0])",
        f"    store(y, p, ({'s' if exclusive else 't'},))",
    ]
    return per_unit("cumulative_sum", lines, body, [("x", dtype), ("y", dtype)], outer * inner)


def _warps(
    lines: list[str], outer: int, n: int, dtype: str, kind: str, exclusive: bool, reverse: bool
) -> Launches:
    """A warp a row, 32 elements at a time."""
    word = "f32" if kind == "float32" else "i32"
    body = [
        f"row = uint32(block_x() * uint32({WARPS}) + warp())",
        f"carry = {kind}(0)",
        f"for k in range(0, {n}, 32):",
        "    i = uint32(uint32(k) + lane())",
        f"    ok = i < uint32({n}) and row < rows",
        f"    at = uint32(row * uint32({n}) + {f'(uint32({n - 1}) - i)' if reverse else 'i'})",
        f"    v = {kind}(0)",
        "    if ok:",
        "        v = load(x, at)[0]",
    ]
    for reach in (1, 2, 4, 8, 16):
        body += [
            f"    s = shfl_up_{word}(v, uint32({reach}))",
            f"    v = {kind}(v + s) if lane() >= {reach} else v",
        ]
    result = f"{kind}(carry + v)"
    if exclusive:  # of the neighbour before, not by subtraction: infinities would not cancel
        body += [f"    s = shfl_up_{word}(v, uint32(1))", f"    s = s if lane() > 0 else {kind}(0)"]
        result = f"{kind}(carry + s)"
    body += [
        "    if ok:",
        f"        store(y, at, ({result},))",
        f"    carry = {kind}(carry + shfl_{word}(v, uint32(31)))",
        "    converged()",
    ]
    source = "\n".join([*lines, "def kernel(x, y, rows):", *indented(body), ""])
    pointer = vectors.pointer(dtype)
    kernel = Kernel("cumulative_sum", source, (pointer, pointer, "uint32"), 32 * WARPS)
    return Launches.of(kernel, -(-outer // WARPS) if n else 0, "xy", outer)


def top_k(outer: int, n: int, inner: int, k: int, dtype: str, *, largest: bool = True) -> Launches:
    """The k largest (or smallest) elements along the middle axis, in order, and where they are.

    Roles x, y, index: x: dtype[outer, n, inner]; y: dtype[outer, k, inner], index: int64[outer, k, inner]
    contiguous. No aliasing. Of equal elements the first comes first; a NaN is beyond all. float32,
    float16, bfloat16, int32, int64, int8, uint8.

    A block has a row and goes over it k times, each time for the best of those behind the last one
    found: O(k n), from cache.

    Raises:
        ValueError: k is larger than n.
    """
    if k > n:
        raise ValueError(f"the {k} largest of {n} elements")
    check_size("top_k", outer * n * inner)
    lines = [*vectors.load("load", dtype, 1), *_order(inner, largest)]
    pointer, roles = vectors.pointer(dtype), ("x", "y", "index")
    source = functions.source(lines, roles, _selections(n, inner, k))
    kernel = Kernel("top_k", source, (pointer, pointer, "int64*"), THREADS, shared_bytes=4 * (THREADS // 32))
    return Launches.of(kernel, outer * inner if k else 0, roles)


def _order(inner: int, largest: bool) -> list[str]:
    """Functions: does element j, of value b, come before i, of value a; the better of two places, -1 none."""
    sign = ">" if largest else "<"
    return [
        *device(
            "before(b, j, a, i)",
            f"return b {sign} a or (b != b and a == a) or ((b == a or (b != b and a != a)) and j < i)",
        ),
        *device(
            "better(x, base, i, j)",
            "if j < 0:",
            "    return i",
            "if i < 0:",
            "    return j",
            f"a = load(x, uint32(base + uint32(i) * uint32({inner})))[0]",
            f"b = load(x, uint32(base + uint32(j) * uint32({inner})))[0]",
            "return j if before(b, j, a, i) else i",
        ),
    ]


def _selections(n: int, inner: int, k: int) -> list[str]:
    """Lines of a block: k times the best element behind the last one found."""
    return [
        f"o = uint32(block_x() // uint32({inner}))",
        f"c = uint32(block_x() % uint32({inner}))",
        f"base = uint32(o * uint32({n * inner}) + c)",
        "found = shared_i32(uint32(0))",
        "last = int32(-1)",
        f"for rank in range({k}):",
        "    i = int32(-1)",
        f"    limit = load(x, uint32(base + uint32(max(last, int32(0))) * uint32({inner})))[0]",
        "    a = limit",
        f"    for m in range(thread(), uint32({n}), uint32({THREADS})):",
        "        j = int32(m)",
        f"        b = load(x, uint32(base + uint32(m) * uint32({inner})))[0]",
        "        if last < 0 or before(limit, last, b, j):",
        "            if i < 0 or before(b, j, a, i):",
        "                a = b",
        "                i = j",
        *(f"    i = better(x, base, i, shfl_xor_i32(i, uint32({reach})))" for reach in (16, 8, 4, 2, 1)),
        "    if lane() == 0:",
        "        found[warp()] = i",
        "    sync()",
        "    i = found[0]",
        f"    for w in range(1, {THREADS // 32}):",
        "        i = better(x, base, i, found[uint32(w)])",
        "    sync()",
        "    last = i",
        "    if thread() == 0:",
        f"        p = uint32((o * uint32({k}) + uint32(rank)) * uint32({inner}) + c)",
        f"        y[p] = x[uint32(base + uint32(i) * uint32({inner}))]",
        "        index[p] = int64(i)",
    ]
