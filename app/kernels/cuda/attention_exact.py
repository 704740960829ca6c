"""Attention in float32 arithmetic: tiles of 64 by 64 scores, 16 by 16 threads with 4 by 4 scores each.

Queries and keys lie transposed in shared memory.
"""

import math

from app.kernels.cuda import vectors
from app.kernels.cuda.attention_problem import Attention
from app.kernels.cuda.geometry import indented
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.source import zeros
from app.kernels.cuda.vectors import device

SIDE = 64  # query rows and keys of a tile
PITCH = SIDE + 4
THREADS = 256
TURNED = f"uint32(d * uint32({PITCH}) + j)"  # place of a transposed element


def attention_exact(a: Attention) -> Launches:
    """The launch, for any type and alignment.

    Raises:
        ValueError: heads too wide for shared memory.
    """
    columns, inside = range(_columns(a)), f"int32(n) < seen and d < uint32({a.width})"
    loop = [
        f"n0 = uint32(uint32(tile) * uint32({SIDE}))",
        "sync()",
        *_tile("k", "k0", "n0", a.k.row, a.depth, "int32(n) < seen", f"ks[{TURNED}]"),
        *_tile("v", "v0", "n0", a.v.row, 64 * len(columns), inside, "vs[uint32(u)]"),
        "sync()",
        "s = zeros",
        f"for d in range({a.depth}):",
        f"    p = ld_f32x4(qs, uint32(uint32(d) * uint32({PITCH}) + ty * uint32(4)))",
        f"    s = outer_4x4(s, p[0], p[1], p[2], p[3],"
        f" ld_f32x4(ks, uint32(uint32(d) * uint32({PITCH}) + tx * uint32(4))))",
        *_scores(a),
        *_probabilities(),
        "sync()",
        *(f"o{n} = shrunk(o{n}, e0, e1, e2, e3)" for n in columns),
        f"for j in range({SIDE}):",
        f"    p = ld_f32x4(ps, uint32(uint32(j) * uint32({PITCH}) + ty * uint32(4)))",
        f"    at = uint32(uint32(j) * uint32({64 * len(columns)}) + tx * uint32(4))",
        *(
            f"    o{n} = outer_4x4(o{n}, p[0], p[1], p[2], p[3], ld_f32x4(vs, uint32(at + uint32({64 * n}))))"
            for n in columns
        ),
    ]
    body = [*_places(a), "for tile in range(tiles):", *indented(loop), *_results(a)]
    lines = [
        *a.score_lines(),
        *vectors.load("load", a.dtype, 1),
        *vectors.store("store", a.dtype, 1),
        *device("exp2(x)", f"return float32(exp(x * float32({math.log(2)!r})))"),
        *device("powers(t, z)", "return (exp2(t[0] - z), exp2(t[1] - z), exp2(t[2] - z), exp2(t[3] - z))"),
        *device(
            "shrunk(o, e0, e1, e2, e3)",
            "return (" + ", ".join(f"o[{i}] * e{i // 4}" for i in range(16)) + ")",
        ),
    ]
    shared_bytes, name = 4 * sum(_shared_words(a).values()), f"attention_exact_{a.depth}"
    return a.launches(name, lines, body, tile=SIDE, threads=THREADS, shared_bytes=shared_bytes)


def _columns(a: Attention) -> int:
    """Accumulators of a thread, of 4 rows and 4 columns each: one for each 64 columns of values."""
    return -(-a.width // 64)


def _shared_words(a: Attention) -> dict[str, int]:
    """Float32s in shared memory: queries, keys, values, probabilities."""
    return {
        "qs": a.depth * PITCH,
        "ks": a.depth * PITCH,
        "vs": SIDE * _columns(a) * 64,
        "ps": SIDE * PITCH,
    }


def _places(a: Attention) -> list[str]:
    """Lines before the loop: this thread's rows, the block's queries, and initial sums."""
    lines = [
        *a.block_lines(SIDE),
        "tx = uint32(thread() & uint32(15))",
        "ty = uint32(thread() >> uint32(4))",
    ]
    offset = 0
    for name, count in _shared_words(a).items():
        lines.append(f"{name} = shared_f32(uint32({offset}))")
        offset += 4 * count
    lines += [
        f"seen = {a.seen}",
        *_tile("q", a.q.place("h"), "m0", a.q.row, a.depth, f"int32(n) < int32({a.rows})", f"qs[{TURNED}]"),
        f"k0 = {a.k.place('kv')}",
        f"v0 = {a.v.place('kv')}",
        *a.tile_count(SIDE, SIDE),
    ]
    for i in range(4):
        lines += [
            f"r{i} = min(uint32(m0 + ty * uint32(4) + uint32({i})), uint32({a.rows - 1}))",
            f"lim{i} = {a.limit(f'r{i}')}",
            f"x{i} = float32(-inf)",
            f"l{i} = float32(0)",
        ]
    return [*lines, *zeros(16), *(f"o{n} = zeros" for n in range(_columns(a)))]


def _tile(name: str, base: str, first: str, step: int, width: int, inside: str, place: str) -> list[str]:
    """Lines that read 64 rows from row `first` on, zeros for what is not `inside`, to shared memory.

    `inside` and `place` may use row n, the tile's row j, column d, and the number u of an element.
    """
    return [
        f"for u in range(thread(), uint32({SIDE * width}), uint32({THREADS})):",
        f"    j = uint32(uint32(u) // uint32({width}))",
        f"    d = uint32(uint32(u) % uint32({width}))",
        f"    n = uint32({first} + j)",
        "    value = float32(0)",
        f"    if {inside}:",
        f"        value = load({name}, uint32({base} + n * uint32({step}) + d))[0]",
        f"    {place} = value",
    ]


def _scores(a: Attention) -> list[str]:
    """Lines of t0 ... t3, the scores of a row each: -inf where a key is not seen."""
    lines = ["key = uint32(n0 + tx * uint32(4))"]
    for i in range(4):
        parts = []
        for j in range(4):
            lines.append(f"s{j} = score(s[{4 * i + j}])")
            if a.mask:
                at = a.mask.place("h", f"r{i}", f"(key + uint32({j}))")
                lines.append(f"if key + uint32({j}) < uint32({a.mask.length}):")
                lines.append(f"    s{j} = s{j} + bias(mask, {at})")
            parts.append(f"s{j} if int32(key) + int32({j}) < lim{i} else float32(-inf)")
        lines.append(f"t{i} = ({', '.join(parts)})")
    return lines


def _probabilities() -> list[str]:
    """Lines that update maxima x and sums l, make powers of scores, and write them to shared memory."""
    lines = []
    for i in range(4):
        lines.append(f"y{i} = max(x{i}, max(max(t{i}[0], t{i}[1]), max(t{i}[2], t{i}[3])))")
        lines += [f"y{i} = max(y{i}, shfl_xor_f32(y{i}, uint32({m})))" for m in (1, 2, 4, 8)]
        lines += [
            f"z{i} = y{i} if y{i} > float32(-inf) else float32(0)",
            f"e{i} = exp2(x{i} - z{i})",
            f"x{i} = y{i}",
            f"t{i} = powers(t{i}, z{i})",
            f"l{i} = l{i} * e{i} + ((t{i}[0] + t{i}[1]) + (t{i}[2] + t{i}[3]))",
        ]
    return lines + [
        f"st_f32x4(ps, uint32((tx * uint32(4) + uint32({j})) * uint32({PITCH}) + ty * uint32(4)),"
        f" t0[{j}], t1[{j}], t2[{j}], t3[{j}])"
        for j in range(4)
    ]


def _results(a: Attention) -> list[str]:
    """Lines that divide o by the sums and write it."""
    lines = []
    for i in range(4):
        lines += [f"l{i} = l{i} + shfl_xor_f32(l{i}, uint32({m}))" for m in (1, 2, 4, 8)]
        lines += [
            f"f = float32(1) / l{i} if l{i} > float32(0) else {a.nothing}",
            f"f = f if l{i} == l{i} else float32(nan)",
            f"at = {a.y.place('h', f'r{i}')}",
            f"if m0 + ty * uint32(4) + uint32({i}) < uint32({a.rows}):",
        ]
        for n in range(_columns(a)):
            for j in range(4):
                column = f"tx * uint32(4) + uint32({64 * n + j})"
                put = f"store(y, uint32(at + {column}), (o{n}[{4 * i + j}] * f,))"
                inside = 64 * (n + 1) <= a.width
                lines += indented([put] if inside else [f"if {column} < uint32({a.width}):", f"    {put}"])
    return lines
