"""Attention of a few query rows, which reads keys and values once at the speed of memory.

A block has all query rows that share a head of keys, and a range of the keys; 16 bytes of a key are a
lane's. The ranges' results (maximum, sum, weighted values) meet in a second kernel.

Source: Dao et al., 2023, "Flash-Decoding for long-context inference".
"""

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.attention_problem import Attention
from app.kernels.cuda.geometry import NBYTES, indented
from app.kernels.cuda.kernel import WORKSPACE, Kernel, Launch, Launches, Ref
from app.kernels.cuda.rows import lanewise
from app.kernels.cuda.vectors import device

MOST_ROWS = 8  # of a block
WARPS = 4
LEAST_KEYS = 64  # of a range
MOST_RANGES = 64
# Of what has seen nothing all differences would be NaN.
SAFE = device("safe(m)", "return m if m > float32(-inf) else float32(0)")


def decode_rejection(a: Attention) -> str | None:
    """Rejection of an attention; None if this kernel computes it."""
    rows, per = a.rows * (a.heads // a.kv_heads), 16 // NBYTES[a.dtype]
    if rows > MOST_ROWS:
        return f"{rows} query rows share a head of keys, at most {MOST_ROWS} are supported"
    if a.depth != a.width:
        return f"keys of {a.depth} elements and values of {a.width}"
    lanes = a.depth // per
    if a.depth % per or lanes & (lanes - 1) or not 1 <= lanes <= 32:
        return f"depth {a.depth}: 16 bytes a lane do not fill a power of two of lanes"
    if any(n % per for o in (a.q, a.k, a.v, a.y) for n in (o.batch, o.head, o.row, o.start)):
        return "rows do not begin at multiples of 16 bytes"
    return None


def attention_decode(a: Attention, multiprocessors: int = 132) -> Launches:
    """The kernel for few query rows, that is rows · heads / kv_heads up to `MOST_ROWS`.

    y may be q where both lie alike. All in float32 but for the operands.

    Args:
        a: what is computed; roles are told there.
        multiprocessors: of the GPU, which the keys are split for.

    Raises:
        ValueError: `decode_rejection` tells why.
    """
    reason = decode_rejection(a)
    if reason is not None:
        raise ValueError(reason)
    if not a.batch * a.rows * a.width:
        return Launches(())
    heads = a.batch * a.kv_heads
    ranges = min(-(-2 * multiprocessors // heads), max(a.keys // LEAST_KEYS, 1), MOST_RANGES)
    per_range = -(-max(a.keys, 1) // ranges)
    ranges = -(-max(a.keys, 1) // per_range)
    rows = a.rows * (a.heads // a.kv_heads)
    first = _ranges(a, rows, ranges, per_range)
    if ranges == 1:
        return Launches((first,))
    return Launches((first, _merge(a, rows, ranges)), workspace=4 * heads * ranges * rows * (a.width + 2))


def _row(a: Attention, r: int) -> tuple[int, int]:
    """(query, head of the group) of a block's row."""
    return r // (a.heads // a.kv_heads), r % (a.heads // a.kv_heads)


def _per_lane(a: Attention) -> int:
    """Elements of a row that a lane has: 16 bytes."""
    return 16 // NBYTES[a.dtype]


def _ranges(a: Attention, rows: int, ranges: int, per_range: int) -> Launch:
    """A block a head of keys and a range of its keys."""
    body = [
        *_places(a, rows, ranges, per_range),
        *_walk(a, rows),
        *_meet_in_warp(a, rows),
        *_meet_in_block(a, rows),
    ]
    signature, pitch = a.operands, a.width + 2
    if ranges == 1:
        body += indented(_result(a, "uint32(r)", "uint32(d)"))
    else:
        signature["work"] = "float32*"
        body += [
            f"    p = uint32((block_x() * uint32({rows}) + r) * uint32({pitch}))",
            "    work[uint32(p + d)] = o",
            "    if d == 0:",
            f"        work[uint32(p + uint32({a.width}))] = m",
            f"        work[uint32(p + uint32({a.width + 1}))] = l",
        ]
    kernel = Kernel(
        f"attention_decode_{a.depth}",
        functions.source(_lane_functions(a), signature, body),
        tuple(signature.values()),
        32 * WARPS,
        shared_bytes=4 * WARPS * rows * pitch,
    )
    roles = tuple(Ref(WORKSPACE if name == "work" else name) for name in signature)
    return Launch(kernel, (ranges * a.batch * a.kv_heads, 1, 1), roles)


def _lane_functions(a: Attention) -> list[str]:
    """Functions of a lane's elements of queries, keys and values."""
    per = _per_lane(a)
    products = [f"a[{i}] * v[{i}]" for i in range(per)]
    while len(products) > 1:
        products = [f"({x} + {y})" for x, y in zip(products[::2], products[1::2])]
    return [
        *a.score_lines(),
        *vectors.load("load", a.dtype, per),
        *vectors.store("store", a.dtype, 1),
        *device("dot(a, v)", f"return {products[0]}"),
        *lanewise("moved", ("o", "e", "p", "v"), "o[{i}] * e + p * v[{i}]", per),
        *lanewise("joined", ("o", "e", "z", "f"), "o[{i}] * e + z[{i}] * f", per),
        *SAFE,
    ]


def _places(a: Attention, rows: int, ranges: int, per_range: int) -> list[str]:
    """Lines before the loop: the block's keys, this lane's elements of queries, and initial sums."""
    per, group = _per_lane(a), a.heads // a.kv_heads
    lanes = a.depth // per
    lines = [
        f"part = uint32(block_x() % uint32({ranges}))",
        f"bk = uint32(block_x() // uint32({ranges}))",
        f"kv = uint32(bk % uint32({a.kv_heads}))",
        f"b = uint32(bk // uint32({a.kv_heads}))",
        "shared = shared_f32(uint32(0))",
        f"seen = {a.seen}",
        f"begin = int32(part * uint32({per_range}))",
        f"end = min(seen, begin + int32({per_range}))",
        f"c = uint32(lane() % uint32({lanes}) * uint32({per}))",
        f"mine = uint32(warp() * uint32({32 // lanes}) + lane() // uint32({lanes}))",
        f"k0 = uint32({a.k.place('kv')} + c)",
        f"v0 = uint32({a.v.place('kv')} + c)",
    ]
    for r in range(rows):
        query, member = _row(a, r)
        lines += [
            f"h{r} = uint32(kv * uint32({group}) + uint32({member}))",
            f"q{r} = load(q, uint32({a.q.place(f'h{r}', f'uint32({query})')} + c))",
            f"lim{r} = int32({a.limit(str(query))})",
            f"m{r} = float32(-inf)",
            f"l{r} = float32(0)",
            f"o{r} = ({', '.join(['float32(0)'] * per)},)",
        ]
    return lines


def _walk(a: Attention, rows: int) -> list[str]:
    """Lines of the loop over keys, several under way at once to hide the latency of memory."""
    lanes, unroll = a.depth // _per_lane(a), 4 if rows <= 2 else 2
    step = WARPS * (32 // lanes)
    inner = []
    for i in range(unroll):
        inner += [
            f"n{i} = int32(int32(base) + int32(mine) + int32({i * step}))",
            f"ok{i} = n{i} < end",
            f"at{i} = uint32(n{i}) if ok{i} else uint32(0)",
            f"key{i} = load(k, uint32(k0 + at{i} * uint32({a.k.row})))",
            f"value{i} = load(v, uint32(v0 + at{i} * uint32({a.v.row})))",
        ]
    for r in range(rows):
        query, _ = _row(a, r)
        inner.append(f"most = m{r}")
        for i in range(unroll):
            inner.append(f"s{i} = dot(q{r}, key{i})")
            inner += [f"s{i} = s{i} + shfl_xor_f32(s{i}, uint32({m}))" for m in _reach(lanes // 2)]
            inner.append(f"s{i} = score(s{i})")
            if a.mask:
                at = a.mask.place(f"h{r}", f"uint32({query})", f"at{i}")
                inner += [
                    f"if at{i} < uint32({a.mask.length}):",
                    f"    s{i} = s{i} + bias(mask, {at})",
                ]
            inner += [
                f"s{i} = s{i} if ok{i} and n{i} < lim{r} else float32(-inf)",
                f"most = max(most, s{i})",
            ]
        inner += [f"e = exp2_approx(m{r} - safe(most))", f"m{r} = most", f"l{r} = l{r} * e"]
        for i in range(unroll):
            inner += [
                f"p = exp2_approx(s{i} - safe(most))",
                f"l{r} = l{r} + p",
                f"o{r} = moved(o{r}, {'e' if i == 0 else 'float32(1)'}, p, value{i})",
            ]
    inner.append("converged()")
    return [f"for base in range(begin, end, {step * unroll}):", *indented(inner)]


def _meet_in_warp(a: Attention, rows: int) -> list[str]:
    """Lines that join the results of groups of lanes of a warp, and write one of each warp."""
    per = _per_lane(a)
    lanes, lines = a.depth // per, []
    for r in range(rows):
        for m in _reach(16):
            if m < lanes:
                continue
            lines += [
                f"other = shfl_xor_f32(m{r}, uint32({m}))",
                f"t = shfl_xor_f32(l{r}, uint32({m}))",
                "u = (" + ", ".join(f"shfl_xor_f32(o{r}[{i}], uint32({m}))" for i in range(per)) + ",)",
                f"most = max(m{r}, other)",
                f"e = exp2_approx(m{r} - safe(most))",
                "f = exp2_approx(other - safe(most))",
                f"m{r} = most",
                f"l{r} = l{r} * e + t * f",
                f"o{r} = joined(o{r}, e, u, f)",
            ]
    for r in range(rows):  # after the last shuffle: here lanes part
        lines += [
            f"at = uint32((warp() * uint32({rows}) + uint32({r})) * uint32({a.width + 2}))",
            f"if lane() < {lanes}:",
            *(f"    shared[uint32(at + c + uint32({i}))] = o{r}[{i}]" for i in range(per)),
            "if lane() == 0:",
            f"    shared[uint32(at + uint32({a.width}))] = m{r}",
            f"    shared[uint32(at + uint32({a.width + 1}))] = l{r}",
        ]
    return lines


def _meet_in_block(a: Attention, rows: int) -> list[str]:
    """Lines that join the results of warps, a thread an element `d` of row `r`."""
    return [
        "sync()",
        f"for w in range(thread(), uint32({rows * a.width}), uint32({32 * WARPS})):",
        f"    r = uint32(uint32(w) // uint32({a.width}))",
        f"    d = uint32(uint32(w) % uint32({a.width}))",
        f"    at = uint32(r * uint32({a.width + 2}))",
        *indented(_joined(a, "shared", WARPS, rows)),
    ]


def _joined(a: Attention, memory: str, parts: int, rows: int) -> list[str]:
    """Lines of `m`, `l` and `o` of element `d` of the row at `at`, from parts that lie `rows` rows apart."""
    step = rows * (a.width + 2)
    return [
        "m = float32(-inf)",
        f"for i in range({parts}):",
        f"    m = max(m, {memory}[uint32(at + uint32(i) * uint32({step}) + uint32({a.width}))])",
        "l = float32(0)",
        "o = float32(0)",
        f"for i in range({parts}):",
        f"    p = uint32(at + uint32(i) * uint32({step}))",
        f"    e = exp2_approx({memory}[uint32(p + uint32({a.width}))] - safe(m))",
        f"    l = l + e * {memory}[uint32(p + uint32({a.width + 1}))]",
        f"    o = o + e * {memory}[uint32(p + d)]",
    ]


def _reach(most: int) -> list[int]:
    """most, most / 2, ... 1."""
    return [most >> i for i in range(most.bit_length())]


def _result(a: Attention, row: str, column: str) -> list[str]:
    """Lines that write `o` / `l` of one of a block's rows and columns, for `b` and `kv`."""
    group = a.heads // a.kv_heads
    return [
        f"head = uint32(kv * uint32({group}) + {row} % uint32({group}))",
        f"query = uint32({row} // uint32({group}))",
        f"o = o / l if l != float32(0) else {a.nothing}",
        f"store(y, uint32({a.y.place('head', 'query')} + {column}), (o,))",
    ]


def _merge(a: Attention, rows: int, ranges: int) -> Launch:
    """A thread an element of y."""
    units = a.batch * a.kv_heads * rows * a.width
    body = [
        "u = uint32(block_x() * uint32(128) + thread())",
        f"if u < uint32({units}):",
        f"    d = uint32(u % uint32({a.width}))",
        f"    r = uint32(u // uint32({a.width}) % uint32({rows}))",
        f"    bk = uint32(u // uint32({a.width * rows}))",
        f"    kv = uint32(bk % uint32({a.kv_heads}))",
        f"    b = uint32(bk // uint32({a.kv_heads}))",
        f"    at = uint32((bk * uint32({ranges * rows}) + r) * uint32({a.width + 2}))",
        *indented([*_joined(a, "work", ranges, rows), *_result(a, "r", "d")]),
    ]
    source = functions.source([*vectors.store("store", a.dtype, 1), *SAFE], ("work", "y"), body)
    kernel = Kernel("attention_merge", source, ("float32*", vectors.pointer(a.dtype)), 128)
    return Launch(kernel, (-(-units // 128), 1, 1), (Ref(WORKSPACE), Ref("y")))
