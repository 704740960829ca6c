"""Attention on tensor cores: a block has 64 query rows, whose fragments stay in registers.

Keys and values come in tiles of 64. While a tile's products with keys are computed its values are under
way, and while its probabilities are multiplied with values the next keys are.
"""

from app.kernels.cuda.attention_problem import LOG2E, Attention, Mask
from app.kernels.cuda.geometry import indented
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.source import zeros
from app.kernels.cuda.vectors import HALVES, device

DEPTHS = range(8, 161, 8)  # elements of a head that the fragments in registers hold
MASKED = 128  # widest head that leaves registers for a mask
ROWS, KEYS, WARPS = 64, 64, 4  # of a block's tile: 16 query rows a warp


def has_tensor_cores(a: Attention) -> bool:
    """True if types, sizes and alignment suit this kernel."""
    aligned = all(o.is_aligned for o in (a.q, a.k, a.v, a.y))
    fits = a.depth in DEPTHS and a.width in DEPTHS and (a.mask is None or max(a.depth, a.width) <= MASKED)
    return aligned and fits and a.dtype in HALVES


def attention_mma(a: Attention) -> Launches:
    """The launch, for what `has_tensor_cores`."""
    short = HALVES[a.dtype]
    loop = [
        *_products(a, short),
        "sync()",
        f"n1 = uint32(n0 + uint32({KEYS}))",
        "if uint32(tile) + uint32(1) < tiles:",
        *indented(_tile("ks", "k", "k0", "n1", a.k.row, a.depth)),
        "cp_commit()",
        *_scores(a),
        *_probabilities(a),
        "cp_wait(1)",
        "sync()",
        *_weighted_values(a, short),
    ]
    body = [
        *_places(a),
        "if tiles > 0:",
        *indented(_tile("ks", "k", "k0", "uint32(0)", a.k.row, a.depth)),
        "cp_commit()",
        "for tile in range(tiles):",
        f"    n0 = uint32(uint32(tile) * uint32({KEYS}))",
        "    sync()",
        *indented(_tile("vs", "v", "v0", "n0", a.v.row, a.width)),
        "    cp_commit()",
        *indented(_mask_tile(a.mask) if a.mask else []),
        "    cp_wait(1)",
        "    sync()",
        *indented(loop),
        *_results(a, short),
    ]
    lines = [*a.score_lines(), *_fragment_functions(a, short)]
    lines += _mask_functions(a, a.mask) if a.mask else []
    shared_bytes = 2 * KEYS * (_pitch(a.depth) + _pitch(a.width))
    name = f"attention_{short}_{a.depth}"
    return a.launches(name, lines, body, tile=ROWS, threads=32 * WARPS, shared_bytes=shared_bytes)


def _pitch(width: int) -> int:
    """Elements from a row of a tile to the next, which begins 16 bytes further around the banks."""
    return -(-width // 16) * 16 + 8


def _is_folded(a: Attention) -> bool:
    """True if the scale is multiplied in with the subtraction of the maximum: nothing comes between."""
    return a.mask is None and not a.softcap and a.scale > 0


def _places(a: Attention) -> list[str]:
    """Lines before the loop: this thread's rows, their queries, and initial sums."""
    return [
        *a.block_lines(ROWS),
        "ks = shared_u16(uint32(0))",
        f"vs = shared_u16(uint32({2 * KEYS * _pitch(a.depth)}))",
        "t = lane()",
        "w = warp()",
        f"seen = {a.seen}",
        # This thread's rows of the accumulators: r0 and r1; those beyond the last repeat it.
        "r0 = uint32(m0 + w * uint32(16) + (t >> uint32(2)))",
        "r1 = uint32(r0 + uint32(8))",
        f"i0 = min(r0, uint32({a.rows - 1}))",
        f"i1 = min(r1, uint32({a.rows - 1}))",
        "c2 = uint32((t & uint32(3)) * uint32(2))",
        f"q0 = {a.q.place('h', 'i0')}",
        f"q1 = {a.q.place('h', 'i1')}",
        *(
            f"qf{c // 16} = {'query' if c + 16 <= a.depth else 'half_query'}"
            f"(q, uint32(q0 + c2 + uint32({c})), uint32(q1 + c2 + uint32({c})))"
            for c in range(0, a.depth, 16)
        ),
        f"k0 = {a.k.place('kv')}",
        f"v0 = {a.v.place('kv')}",
        f"lim0 = {a.limit('i0')}",
        f"lim1 = {a.limit('i1')}",
        f"sure = {a.limit('m0')}",  # keys that all rows of the block see
        *a.tile_count(ROWS, KEYS),
        "x0 = float32(-inf)",
        "x1 = float32(-inf)",
        "l0 = float32(0)",
        "l1 = float32(0)",
        *zeros(4),
        *(f"o{j} = zeros" for j in range(a.width // 8)),
        # Lanes' rows for ldmatrix: of keys as they are, of values transposed.
        f"ka = uint32((((t >> uint32(4)) << uint32(3)) + (t & uint32(7))) * uint32({_pitch(a.depth)})"
        " + ((t >> uint32(3)) & uint32(1)) * uint32(8))",
        f"va = uint32((((t >> uint32(3)) & uint32(1)) * uint32(8) + (t & uint32(7)))"
        f" * uint32({_pitch(a.width)}) + (t >> uint32(4)) * uint32(8))",
    ]


def _tile(memory: str, name: str, base: str, first: str, row: int, width: int) -> list[str]:
    """Lines that start copies of 64 rows, filled up with zeros to 64 and to a multiple of 16 columns."""
    chunks, threads = -(-width // 16) * 2, 32 * WARPS
    lines = []
    for n in range(KEYS * chunks // threads):
        lines += [
            f"u = uint32(thread() + uint32({n * threads}))",
            f"j = uint32(u // uint32({chunks}))",
            f"c = uint32(u % uint32({chunks}) * uint32(8))",
            f"n = uint32({first} + j)",
            "ok = int32(n) < seen" + (f" and c < uint32({width})" if width % 16 else ""),
            "n = n if ok else uint32(0)",
            f"cp_async16_if({memory}, uint32(j * uint32({_pitch(width)}) + c), {name},"
            f" uint32({base} + n * uint32({row}) + c), int32(ok))",
        ]
    return lines


def _mask_rows(mask: Mask) -> tuple[tuple[str, str], ...]:
    """(prefix, query row) of the mask's values in registers; one if all query rows share them."""
    return (("b", "i0"), ("d", "i1")) if mask.strides[2] else (("b", "i0"),)


def _mask_tile(mask: Mask) -> list[str]:
    """Lines that load the mask of a tile, under way while keys are waited for and multiplied."""
    lines = []
    for name, row in _mask_rows(mask):
        lines.append(f"at = {mask.place('h', row, 'n0')}")
        lines += [f"{name}{j} = pair(mask, at, n0, uint32(c2 + uint32({8 * j})))" for j in range(KEYS // 8)]
    return lines


def _products(a: Attention, short: str) -> list[str]:
    """Lines of s0 ... s7, the products of queries with a tile's keys."""
    lines = [f"s{j} = zeros" for j in range(KEYS // 8)]
    for kk in range(-(-a.depth // 16)):
        for j in range(0, KEYS // 8, 2):
            lines += [
                f"f = ldmatrix_x4(ks, uint32(ka + uint32({8 * j * _pitch(a.depth) + 16 * kk})))",
                f"s{j} = mma_{short}(s{j}, qf{kk}, (f[0], f[1]))",
                f"s{j + 1} = mma_{short}(s{j + 1}, qf{kk}, (f[2], f[3]))",
            ]
    return lines


def _scores(a: Attention) -> list[str]:
    """Lines that make scores of products: scale and mask, and -inf where a key is not seen."""
    lines = []
    if a.mask:
        other = _mask_rows(a.mask)[-1][0]
        lines = [f"s{j} = biased(s{j}, b{j}, {other}{j})" for j in range(KEYS // 8)]
    elif not _is_folded(a):
        lines = [f"s{j} = scores(s{j})" for j in range(KEYS // 8)]
    return [
        *lines,
        f"if int32(n0) + int32({KEYS}) > sure:",
        *(f"    s{j} = hidden(s{j}, int32(n0 + c2) + int32({8 * j}), lim0, lim1)" for j in range(KEYS // 8)),
    ]


def _probabilities(a: Attention) -> list[str]:
    """Lines that update maxima x and sums l of both rows, make powers of scores, and rescale o."""
    lines = ["y0 = x0", "y1 = x1"]
    for j in range(KEYS // 8):
        lines += [f"y0 = max(y0, max(s{j}[0], s{j}[1]))", f"y1 = max(y1, max(s{j}[2], s{j}[3]))"]
    folded, factor = _is_folded(a), a.scale * LOG2E
    for i in (0, 1):
        difference = f"(x{i} - z{i}) * float32({factor!r})" if folded else f"x{i} - z{i}"
        lines += [
            f"y{i} = max(y{i}, shfl_xor_f32(y{i}, uint32(1)))",
            f"y{i} = max(y{i}, shfl_xor_f32(y{i}, uint32(2)))",
            # Of a row that has seen nothing all differences would be NaN.
            f"z{i} = y{i} if y{i} > float32(-inf) else float32(0)",
            f"e{i} = exp2_approx({difference})",
            f"x{i} = y{i}",
            f"l{i} = l{i} * e{i}",
            *([f"z{i} = z{i} * float32({factor!r})"] if folded else []),
        ]
    for j in range(KEYS // 8):
        lines += [
            f"s{j} = powers(s{j}, z0, z1)",
            f"l0 = l0 + (s{j}[0] + s{j}[1])",
            f"l1 = l1 + (s{j}[2] + s{j}[3])",
        ]
    return [*lines, *(f"o{j} = shrunk(o{j}, e0, e1)" for j in range(a.width // 8))]


def _weighted_values(a: Attention, short: str) -> list[str]:
    """Lines that add the products of probabilities with a tile's values to o."""
    lines = []
    for kk in range(KEYS // 16):
        lines.append(f"p = fragment(s{2 * kk}, s{2 * kk + 1})")
        for j in range(0, a.width // 8, 2):
            lines += [
                f"f = ldmatrix_x4_trans(vs, uint32(va + uint32({16 * kk * _pitch(a.width) + 8 * j})))",
                f"o{j} = mma_{short}(o{j}, p, (f[0], f[1]))",
            ]
            if j + 1 < a.width // 8:
                lines.append(f"o{j + 1} = mma_{short}(o{j + 1}, p, (f[2], f[3]))")
    return lines


def _results(a: Attention, short: str) -> list[str]:
    """Lines that divide o by the sums and write it."""
    lines = []
    for i in (0, 1):
        lines += [
            f"l{i} = l{i} + shfl_xor_f32(l{i}, uint32(1))",
            f"l{i} = l{i} + shfl_xor_f32(l{i}, uint32(2))",
            f"f{i} = rcp_approx(l{i}) if l{i} > float32(0) else {a.nothing}",
            f"f{i} = f{i} if l{i} == l{i} else float32(nan)",
        ]
    lines += [f"d0 = {a.y.place('h', 'i0')}", f"d1 = {a.y.place('h', 'i1')}"]
    for i in (0, 1):
        lines.append(f"if r{i} < uint32({a.rows}):")
        lines += [
            f"    st_u32x1(y, uint32(d{i} + c2 + uint32({8 * j})),"
            f" f32_{short}x2(o{j}[{2 * i}] * f{i}, o{j}[{2 * i + 1}] * f{i}))"
            for j in range(a.width // 8)
        ]
    return lines


def _fragment_functions(a: Attention, short: str) -> list[str]:
    """Functions of fragments: four elements of a thread, two of each of its rows."""
    power = "exp2_approx(s[{}] - z{})"
    if _is_folded(a):
        power = f"exp2_approx(fma(s[{{}}], float32({a.scale * LOG2E!r}), -z{{}}))"
    powers = [power.format(i, i // 2) for i in range(4)]
    return [
        *device(
            "query(q, at0, at1)",  # the fragment of 16 rows and 16 columns
            "return (ld_u32x1(q, at0), ld_u32x1(q, at1), ld_u32x1(q, uint32(at0 + uint32(8))),"
            " ld_u32x1(q, uint32(at1 + uint32(8))))",
        ),
        *device(
            "half_query(q, at0, at1)",  # of 8 columns, the others zero
            "return (ld_u32x1(q, at0), ld_u32x1(q, at1), uint32(0), uint32(0))",
        ),
        *device("scores(s)", "return (score(s[0]), score(s[1]), score(s[2]), score(s[3]))"),
        *device(
            "hidden(s, key, lim0, lim1)",
            "lost = float32(-inf)",
            "return (s[0] if key < lim0 else lost, s[1] if key + 1 < lim0 else lost,"
            " s[2] if key < lim1 else lost, s[3] if key + 1 < lim1 else lost)",
        ),
        *device("powers(s, z0, z1)", f"return ({', '.join(powers)})"),
        *device("shrunk(o, e0, e1)", "return (o[0] * e0, o[1] * e0, o[2] * e1, o[3] * e1)"),
        *device(
            "fragment(s, r)",  # accumulators of 16 keys are the left operand of the next product
            f"return (f32_{short}x2(s[0], s[1]), f32_{short}x2(s[2], s[3]), f32_{short}x2(r[0], r[1]),"
            f" f32_{short}x2(r[2], r[3]))",
        ),
    ]


def _mask_functions(a: Attention, mask: Mask) -> list[str]:
    """Functions that load the mask of two neighboring keys, 0 beyond the last, and add it."""
    step, length = mask.strides[3], mask.length
    score = "score({s}) + {b}" if a.softcap else f"fma({{s}}, float32({a.scale * LOG2E!r}), {{b}})"
    parts = [score.format(s=f"s[{i}]", b=f"{'pq'[i // 2]}[{i % 2}]") for i in range(4)]
    keys = [
        f"bias(mask, uint32(at + {key} * uint32({step}))) if n0 + {key} < uint32({length}) else float32(0)"
        for key in ("column", "(column + uint32(1))")
    ]
    return [
        *device("pair(mask, at, n0, column)", f"return ({keys[0]},", f"    {keys[1]})"),
        *device("biased(s, p, q)", f"return ({', '.join(parts)})"),
    ]
