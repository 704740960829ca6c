"""Attention that never writes its scores: softmax(scale · q k' + mask) v by online softmax.

Three kernels share one description: tensor cores for 16-bit floats (`mma`), float32 arithmetic for
all else (`exact`), and for a few query rows a bandwidth kernel that splits the keys (`attention_decode`).

Source: Milakov and Gimelshein, 2018, arXiv:1805.02867 (online softmax); Dao, 2023, arXiv:2307.08691
(FlashAttention-2: loop order, deferred division); Dao et al., 2023, Flash-Decoding (split keys).
"""

import math
from dataclasses import dataclass

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import check_size, indented, place
from app.kernels.cuda.kernel import LIMITS, Kernel, Launch, Launches, Ref
from app.kernels.cuda.vectors import HALVES

LOG2E = math.log2(math.e)
DEPTHS = range(8, 161, 8)  # of heads that tensor cores take
MASKED = 128  # the widest that leave registers for a mask


@dataclass(frozen=True, slots=True)
class Heads:
    """Where a matrix [rows, width] of every head lies: strides in elements, rows contiguous."""

    batch: int
    head: int
    row: int
    start: int = 0

    @property
    def is_aligned(self) -> bool:
        """Whether every row begins at a multiple of 8 elements."""
        return not any(n % 8 for n in (self.batch, self.head, self.row, self.start))


@dataclass(frozen=True, slots=True)
class Mask:
    """What is added to scores, or, of bool, where keys are seen: [batch, heads, rows, keys] by strides.

    Attributes:
        dtype: float32, float16, bfloat16 or bool.
        strides: in elements, 0 along broadcast axes.
        start: element of index 0.
        length: keys that it tells of; the others are hidden.
    """

    dtype: str
    strides: tuple[int, int, int, int]
    length: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention.

    Roles: q, k, v, y, [mask], [lengths]: q[batch, heads, rows, depth], k[batch, kv_heads, keys, depth],
    v[batch, kv_heads, keys, width], y[batch, heads, rows, width] of dtype where `q` ... `y` say;
    lengths: int64[batch], keys that a batch has.

    Attributes:
        batch: ...
        heads: of queries; a multiple of kv_heads.
        kv_heads: of keys and values.
        rows: queries.
        keys: of them all, past ones too.
        depth: of a query and a key.
        width: of a value.
        dtype: float32, float16 or bfloat16.
        scale: of products.
        mask: or None.
        causal: whether query i sees keys up to i + past only.
        past: keys before the first query.
        zero: whether a row that sees no key is zero; else NaN.
        softcap: scores s become softcap · tanh(s / softcap); 0 for none.
        lengths: whether there is that operand.
    """

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    depth: int
    width: int
    dtype: str
    q: Heads
    k: Heads
    v: Heads
    y: Heads
    scale: float
    mask: Mask | None = None
    causal: bool = False
    past: int = 0
    zero: bool = False
    softcap: float = 0.0
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads of queries share {self.kv_heads} heads of keys unevenly")
        for name, rows, heads in (("q", self.rows, self.heads), ("k", self.keys, self.kv_heads)):
            o: Heads = getattr(self, name)
            check_size(name, o.start + self.batch * o.batch + heads * o.head + rows * o.row)


def attention_rejection(a: Attention) -> str | None:
    """Why `attention` has no kernel; None if it has one."""
    if _uses_tensor_cores(a):
        return None
    needed = 4 * sum(_exact_words(a).values())
    if needed > LIMITS["shared_bytes"]:
        return (
            f"heads of {a.depth} and {a.width} elements need {needed} byte of shared memory, at most "
            + str(LIMITS["shared_bytes"])
        )
    return None


def _uses_tensor_cores(a: Attention) -> bool:
    aligned = all(o.is_aligned for o in (a.q, a.k, a.v, a.y))
    fits = a.depth in DEPTHS and a.width in DEPTHS and (a.mask is None or max(a.depth, a.width) <= MASKED)
    return aligned and fits and a.dtype in HALVES


def attention(a: Attention, *, exact: bool = False) -> Launches:
    """The kernel for many query rows.

    y may be q where both lie alike: a block reads its query rows before it writes them, and no other
    block does. Tensor cores multiply float16 and bfloat16 of rows at multiples of 16 bytes, of a depth
    and width that is a multiple of 8 up to 160, with a mask up to 128; scores and sums are float32,
    probabilities are rounded to dtype. All else, and all with `exact`, is computed in float32.

    Raises:
        ValueError: heads too wide for shared memory, see `attention_rejection`.
    """
    if not a.batch * a.rows * a.width:
        return Launches(())
    return _mma(a) if not exact and _uses_tensor_cores(a) else _exact(a)


def operands_of(a: Attention) -> list[tuple[str, str]]:
    """(role, type of its address)."""
    kind = vectors.pointer(a.dtype)
    operands = [(name, kind) for name in "qkvy"]
    operands += [("mask", vectors.pointer(a.mask.dtype))] if a.mask else []
    return [*operands, *([("lengths", "int64*")] if a.lengths else [])]


def place_of(o: Heads, head: str, row: str = "") -> str:
    """Source of where a head's matrix, or one of its rows, begins."""
    names, strides = ["b", head], [o.batch, o.head]
    return place([*names, row] if row else names, [*strides, o.row] if row else strides, o.start)


def limit_of(a: Attention, row: str) -> str:
    """Source of how many keys a query row sees, as far as its place tells."""
    text = "seen"
    return f"min({text}, int32(int32({row}) + int32({a.past + 1})))" if a.causal else text


def keys_of(a: Attention) -> str:
    """Source of how many keys a batch has that any row may see."""
    most = min(a.keys, a.mask.length) if a.mask else a.keys
    return f"min(int32({most}), int32(lengths[b]))" if a.lengths else f"int32({most})"


def score_lines(a: Attention) -> list[str]:
    """Lines of `score(s)`, of a product in the domain of exp2, and of `bias(mask, at)`, what is added."""
    if a.softcap:
        cap, inner = a.softcap * LOG2E, a.scale / a.softcap
        value = f"float32({cap!r}) * float32(tanh(s * float32({inner!r})))"
    else:
        value = f"s * float32({a.scale * LOG2E!r})"
    lines = ["@device", "def score(s):", f"    return {value}", ""]
    if a.mask is None:
        return lines
    if a.mask.dtype == "bool":
        added = ["return float32(0) if mask[at] != 0 else float32(-inf)"]
    else:
        added = [
            f"x = {vectors.scalar(a.mask.dtype, 'mask[at]')}",
            f"y = x * float32({LOG2E!r})",
            # The lowest number stays one: a row that has only such ones is a mean, not NaN.
            "return float32(-3e38) if y < float32(-3e38) and x > float32(-inf) else y",
        ]
    return [*lines, "@device", "def bias(mask, at):", *indented(added), ""]


def mask_place(a: Attention, head: str, row: str, key: str) -> str:
    assert a.mask is not None
    return place(["b", head, row, key], a.mask.strides, a.mask.start)


# --- tensor cores -------------------------------------------------------------------------------------

ROWS, KEYS, WARPS = 64, 64, 4  # of a block's tile: 16 query rows a warp


def _mma(a: Attention) -> Launches:
    """A block has 64 query rows, whose fragments stay in registers; keys and values come in tiles of 64.

    While a tile's products with keys are computed its values are under way, and while its probabilities
    are multiplied with values the next keys are.
    """
    short = HALVES[a.dtype]
    width, steps = a.width, -(-a.depth // 16)
    # A row of a tile begins 16 bytes further around the banks than the row before.
    pitch_k, pitch_v = 16 * steps + 8, -(-width // 16) * 16 + 8
    folded, factor = _is_folded(a), a.scale * LOG2E
    lines = [*score_lines(a), *_mma_functions(a, short)]
    blocks = -(-a.rows // ROWS)
    body = [
        f"block = uint32(block_x() % uint32({blocks}))",
        f"bh = uint32(block_x() // uint32({blocks}))",
        f"h = uint32(bh % uint32({a.heads}))",
        f"b = uint32(bh // uint32({a.heads}))",
        f"kv = uint32(h // uint32({a.heads // a.kv_heads}))",
        # The last rows of a causal mask see most keys: they begin first.
        f"m0 = uint32((uint32({blocks - 1}) - block) * uint32({ROWS}))",
        "ks = shared_u16(uint32(0))",
        f"vs = shared_u16(uint32({2 * KEYS * pitch_k}))",
        "t = lane()",
        "w = warp()",
        f"seen = {keys_of(a)}",
        # This thread's rows of the accumulators: r0 and r1; those beyond the last repeat it.
        "r0 = uint32(m0 + w * uint32(16) + (t >> uint32(2)))",
        "r1 = uint32(r0 + uint32(8))",
        f"i0 = min(r0, uint32({a.rows - 1}))",
        f"i1 = min(r1, uint32({a.rows - 1}))",
        "c2 = uint32((t & uint32(3)) * uint32(2))",
        f"q0 = {place_of(a.q, 'h', 'i0')}",
        f"q1 = {place_of(a.q, 'h', 'i1')}",
    ]
    for kk in range(steps):
        name = "query" if 16 * (kk + 1) <= a.depth else "half_query"
        body.append(
            f"qf{kk} = {name}(q, uint32(q0 + c2 + uint32({16 * kk})), uint32(q1 + c2 + uint32({16 * kk})))"
        )
    body += [
        f"k0 = {place_of(a.k, 'kv')}",
        f"v0 = {place_of(a.v, 'kv')}",
        f"lim0 = {limit_of(a, 'i0')}",
        f"lim1 = {limit_of(a, 'i1')}",
        # Keys that all rows of the block see, and those that any sees.
        f"sure = {limit_of(a, 'm0')}",
        f"last = {limit_of(a, f'min(uint32(m0 + uint32({ROWS - 1})), uint32({a.rows - 1}))')}",
        f"tiles = uint32((max(last, int32(0)) + int32({KEYS - 1})) // int32({KEYS}))",
        "x0 = float32(-inf)",
        "x1 = float32(-inf)",
        "l0 = float32(0)",
        "l1 = float32(0)",
        *(f"o{j} = (float32(0), float32(0), float32(0), float32(0))" for j in range(width // 8)),
        # Lanes' rows for ldmatrix: of keys as they are, of values transposed.
        f"ka = uint32((((t >> uint32(4)) << uint32(3)) + (t & uint32(7))) * uint32({pitch_k})"
        " + ((t >> uint32(3)) & uint32(1)) * uint32(8))",
        f"va = uint32((((t >> uint32(3)) & uint32(1)) * uint32(8) + (t & uint32(7))) * uint32({pitch_v})"
        " + (t >> uint32(4)) * uint32(8))",
        "if tiles > 0:",
        *indented(_tile("ks", "k", "k0", "uint32(0)", a.k.row, a.depth, pitch_k)),
        "cp_commit()",
        "for tile in range(tiles):",
        f"    n0 = uint32(uint32(tile) * uint32({KEYS}))",
        "    sync()",
        *indented(_tile("vs", "v", "v0", "n0", a.v.row, width, pitch_v)),
        "    cp_commit()",
    ]
    shared_mask = a.mask is not None and not a.mask.strides[2]  # by all query rows
    loop = []
    for name, row in (("b", "i0"), ("d", "i1")) if a.mask else ():
        if name == "b" or not shared_mask:  # under way while keys are waited for and multiplied
            loop.append(f"at = {mask_place(a, 'h', row, 'n0')}")
            loop += [
                f"{name}{j} = pair(mask, at, n0, uint32(c2 + uint32({8 * j})))" for j in range(KEYS // 8)
            ]
    body += indented(loop)
    body += ["    cp_wait(1)", "    sync()"]
    loop = [f"s{j} = (float32(0), float32(0), float32(0), float32(0))" for j in range(KEYS // 8)]
    for kk in range(steps):
        for j in range(0, KEYS // 8, 2):
            loop += [
                f"f = ldmatrix_x4(ks, uint32(ka + uint32({8 * j * pitch_k + 16 * kk})))",
                f"s{j} = mma_{short}(s{j}, qf{kk}, (f[0], f[1]))",
                f"s{j + 1} = mma_{short}(s{j + 1}, qf{kk}, (f[2], f[3]))",
            ]
    loop += [
        "sync()",
        f"n1 = uint32(n0 + uint32({KEYS}))",
        "if uint32(tile) + uint32(1) < tiles:",
        *indented(_tile("ks", "k", "k0", "n1", a.k.row, a.depth, pitch_k)),
        "cp_commit()",
    ]
    if a.mask:
        loop += [f"s{j} = biased(s{j}, b{j}, {'b' if shared_mask else 'd'}{j})" for j in range(KEYS // 8)]
    elif not folded:
        loop += [f"s{j} = scores(s{j})" for j in range(KEYS // 8)]
    loop += [
        f"if int32(n0) + int32({KEYS}) > sure:",
        *(f"    s{j} = hidden(s{j}, int32(n0 + c2) + int32({8 * j}), lim0, lim1)" for j in range(KEYS // 8)),
        "y0 = x0",
        "y1 = x1",
    ]
    for j in range(KEYS // 8):
        loop += [f"y0 = max(y0, max(s{j}[0], s{j}[1]))", f"y1 = max(y1, max(s{j}[2], s{j}[3]))"]
    difference = f"(x{{i}} - z{{i}}) * float32({factor!r})" if folded else "x{i} - z{i}"
    for i in (0, 1):
        loop += [
            f"y{i} = max(y{i}, shfl_xor_f32(y{i}, uint32(1)))",
            f"y{i} = max(y{i}, shfl_xor_f32(y{i}, uint32(2)))",
            # Of a row that has seen nothing all differences would be NaN.
            f"z{i} = y{i} if y{i} > float32(-inf) else float32(0)",
            f"e{i} = exp2_approx({difference.format(i=i)})",
            f"x{i} = y{i}",
            f"l{i} = l{i} * e{i}",
            *([f"z{i} = z{i} * float32({factor!r})"] if folded else []),
        ]
    for j in range(KEYS // 8):
        loop += [
            f"s{j} = powers(s{j}, z0, z1)",
            f"l0 = l0 + (s{j}[0] + s{j}[1])",
            f"l1 = l1 + (s{j}[2] + s{j}[3])",
        ]
    loop += [f"o{j} = shrunk(o{j}, e0, e1)" for j in range(width // 8)]
    loop += ["cp_wait(1)", "sync()"]
    for kk in range(KEYS // 16):
        loop.append(f"p = fragment(s{2 * kk}, s{2 * kk + 1})")
        for j in range(0, width // 8, 2):
            loop += [
                f"f = ldmatrix_x4_trans(vs, uint32(va + uint32({16 * kk * pitch_v + 8 * j})))",
                f"o{j} = mma_{short}(o{j}, p, (f[0], f[1]))",
            ]
            if j + 1 < width // 8:
                loop.append(f"o{j + 1} = mma_{short}(o{j + 1}, p, (f[2], f[3]))")
    body += indented(loop)
    nothing = "float32(0)" if a.zero else "float32(nan)"
    for i in (0, 1):
        body += [
            f"l{i} = l{i} + shfl_xor_f32(l{i}, uint32(1))",
            f"l{i} = l{i} + shfl_xor_f32(l{i}, uint32(2))",
            f"f{i} = rcp_approx(l{i}) if l{i} > float32(0) else {nothing}",
            f"f{i} = f{i} if l{i} == l{i} else float32(nan)",
        ]
    body += [f"d0 = {place_of(a.y, 'h', 'i0')}", f"d1 = {place_of(a.y, 'h', 'i1')}"]
    for i in (0, 1):
        body.append(f"if r{i} < uint32({a.rows}):")
        body += [
            f"    st_u32x1(y, uint32(d{i} + c2 + uint32({8 * j})),"
            f" f32_{short}x2(o{j}[{2 * i}] * f{i}, o{j}[{2 * i + 1}] * f{i}))"
            for j in range(width // 8)
        ]
    signature = operands_of(a)
    text = [f"def kernel({', '.join(name for name, _ in signature)}):", *indented(body), ""]
    kernel = Kernel(
        f"attention_{short}_{a.depth}",
        "\n".join([*functions.library([*lines, *text]), *lines, *text]),
        tuple(kind for _, kind in signature),
        32 * WARPS,
        shared_bytes=2 * KEYS * (pitch_k + pitch_v),
    )
    grid = (blocks * a.batch * a.heads, 1, 1)
    return Launches((Launch(kernel, grid, tuple(Ref(name) for name, _ in signature)),))


def _tile(memory: str, name: str, base: str, first: str, row: int, width: int, pitch: int) -> list[str]:
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
            f"cp_async16_if({memory}, uint32(j * uint32({pitch}) + c), {name},"
            f" uint32({base} + n * uint32({row}) + c), int32(ok))",
        ]
    return lines


def _is_folded(a: Attention) -> bool:
    """Whether the scale is multiplied in with the subtraction of the maximum: nothing comes between."""
    return a.mask is None and not a.softcap and a.scale > 0


def _mma_functions(a: Attention, short: str) -> list[str]:
    power = "exp2_approx(s[{}] - z{})"
    if _is_folded(a):
        power = f"exp2_approx(fma(s[{{}}], float32({a.scale * LOG2E!r}), -z{{}}))"
    powers = [power.format(i, i // 2) for i in range(4)]
    lines = [
        "@device",
        "def query(q, at0, at1):",  # the fragment of 16 rows and 16 columns
        "    return (ld_u32x1(q, at0), ld_u32x1(q, at1), ld_u32x1(q, uint32(at0 + uint32(8))),"
        " ld_u32x1(q, uint32(at1 + uint32(8))))",
        "",
        "@device",
        "def half_query(q, at0, at1):",  # of 8 columns, the others zero
        "    return (ld_u32x1(q, at0), ld_u32x1(q, at1), uint32(0), uint32(0))",
        "",
        "@device",
        "def scores(s):",
        "    return (score(s[0]), score(s[1]), score(s[2]), score(s[3]))",
        "",
        "@device",
        "def hidden(s, key, lim0, lim1):",
        "    lost = float32(-inf)",
        "    return (s[0] if key < lim0 else lost, s[1] if key + 1 < lim0 else lost,"
        " s[2] if key < lim1 else lost, s[3] if key + 1 < lim1 else lost)",
        "",
        "@device",
        "def powers(s, z0, z1):",
        f"    return ({', '.join(powers)})",
        "",
        "@device",
        "def shrunk(o, e0, e1):",
        "    return (o[0] * e0, o[1] * e0, o[2] * e1, o[3] * e1)",
        "",
        "@device",
        "def fragment(s, r):",  # accumulators of 16 keys are the left operand of the next product
        f"    return (f32_{short}x2(s[0], s[1]), f32_{short}x2(s[2], s[3]), f32_{short}x2(r[0], r[1]),"
        f" f32_{short}x2(r[2], r[3]))",
        "",
    ]
    if a.mask is None:
        return lines
    step, length = a.mask.strides[3], a.mask.length
    score = "score({s}) + {b}" if a.softcap else f"fma({{s}}, float32({a.scale * LOG2E!r}), {{b}})"
    parts = [score.format(s=f"s[{i}]", b=f"{'pq'[i // 2]}[{i % 2}]") for i in range(4)]
    keys = [
        f"bias(mask, uint32(at + {key} * uint32({step}))) if n0 + {key} < uint32({length}) else float32(0)"
        for key in ("column", "(column + uint32(1))")
    ]
    return [
        *lines,
        "@device",
        "def pair(mask, at, n0, column):",  # of two neighbouring keys; the limit hides those beyond the end
        f"    return ({keys[0]},",
        f"        {keys[1]})",
        "",
        "@device",
        "def biased(s, p, q):",
        f"    return ({', '.join(parts)})",
        "",
    ]


# --- float32 arithmetic ---------------------------------------------------------------------------------

SIDE = 64  # query rows and keys of a tile; 16 by 16 threads have 4 by 4 scores each
PITCH = SIDE + 4
EXACT_THREADS = 256


def _exact(a: Attention) -> Launches:
    """Tiles of 64 by 64 scores in float32; queries and keys lie transposed in shared memory."""
    depth, columns = a.depth, -(-a.width // 64)
    padded = columns * 64
    words = _exact_words(a)
    blocks = -(-a.rows // SIDE)
    lines = [*score_lines(a), *vectors.load("load", a.dtype, 1), *vectors.store("store", a.dtype, 1)]
    body = [
        f"block = uint32(block_x() % uint32({blocks}))",
        f"bh = uint32(block_x() // uint32({blocks}))",
        f"h = uint32(bh % uint32({a.heads}))",
        f"b = uint32(bh // uint32({a.heads}))",
        f"kv = uint32(h // uint32({a.heads // a.kv_heads}))",
        f"m0 = uint32((uint32({blocks - 1}) - block) * uint32({SIDE}))",
        "tx = uint32(thread() & uint32(15))",
        "ty = uint32(thread() >> uint32(4))",
    ]
    offset = 0
    for name, count in words.items():
        body.append(f"{name} = shared_f32(uint32({offset}))")
        offset += 4 * count
    body += [
        f"seen = {keys_of(a)}",
        *_spread("qs", "q", place_of(a.q, "h"), "m0", a.rows, a.q.row, depth),
        f"k0 = {place_of(a.k, 'kv')}",
        f"v0 = {place_of(a.v, 'kv')}",
        f"last = {limit_of(a, f'min(uint32(m0 + uint32({SIDE - 1})), uint32({a.rows - 1}))')}",
        f"tiles = uint32((max(last, int32(0)) + int32({SIDE - 1})) // int32({SIDE}))",
    ]
    for i in range(4):
        body += [
            f"r{i} = min(uint32(m0 + ty * uint32(4) + uint32({i})), uint32({a.rows - 1}))",
            f"lim{i} = {limit_of(a, f'r{i}')}",
            f"x{i} = float32(-inf)",
            f"l{i} = float32(0)",
        ]
    zeros = f"({', '.join(['float32(0)'] * 16)})"
    body += [f"o{n} = {zeros}" for n in range(columns)]
    loop = [
        f"n0 = uint32(uint32(tile) * uint32({SIDE}))",
        "sync()",
        *_spread("ks", "k", "k0", "n0", a.keys, a.k.row, depth),
        *_straight(a, padded),
        "sync()",
        f"s = {zeros}",
        f"for d in range({depth}):",
        f"    p = ld_f32x4(qs, uint32(uint32(d) * uint32({PITCH}) + ty * uint32(4)))",
        f"    s = outer_4x4(s, p[0], p[1], p[2], p[3],"
        f" ld_f32x4(ks, uint32(uint32(d) * uint32({PITCH}) + tx * uint32(4))))",
        "key = uint32(n0 + tx * uint32(4))",
    ]
    for i in range(4):
        parts = []
        for j in range(4):
            loop.append(f"s{j} = score(s[{4 * i + j}])")
            if a.mask:
                loop += [
                    f"if key + uint32({j}) < uint32({a.mask.length}):",
                    f"    s{j} = s{j} + bias(mask, {mask_place(a, 'h', f'r{i}', f'(key + uint32({j}))')})",
                ]
            parts.append(f"s{j} if int32(key) + int32({j}) < lim{i} else float32(-inf)")
        loop += [f"t{i} = ({', '.join(parts)})"]
    for i in range(4):
        loop.append(f"y{i} = max(x{i}, max(max(t{i}[0], t{i}[1]), max(t{i}[2], t{i}[3])))")
        loop += [f"y{i} = max(y{i}, shfl_xor_f32(y{i}, uint32({m})))" for m in (1, 2, 4, 8)]
        loop += [
            f"z{i} = y{i} if y{i} > float32(-inf) else float32(0)",
            f"e{i} = exp2(x{i} - z{i})",
            f"x{i} = y{i}",
            f"t{i} = powers(t{i}, z{i})",
            f"l{i} = l{i} * e{i} + ((t{i}[0] + t{i}[1]) + (t{i}[2] + t{i}[3]))",
        ]
    for j in range(4):
        loop.append(
            f"st_f32x4(ps, uint32((tx * uint32(4) + uint32({j})) * uint32({PITCH}) + ty * uint32(4)),"
            f" t0[{j}], t1[{j}], t2[{j}], t3[{j}])"
        )
    loop += ["sync()", *(f"o{n} = shrunk(o{n}, e0, e1, e2, e3)" for n in range(columns))]
    loop += [
        f"for j in range({SIDE}):",
        f"    p = ld_f32x4(ps, uint32(uint32(j) * uint32({PITCH}) + ty * uint32(4)))",
        f"    at = uint32(uint32(j) * uint32({padded}) + tx * uint32(4))",
        *(
            f"    o{n} = outer_4x4(o{n}, p[0], p[1], p[2], p[3], ld_f32x4(vs, uint32(at + uint32({64 * n}))))"
            for n in range(columns)
        ),
    ]
    body += ["for tile in range(tiles):", *indented(loop)]
    nothing = "float32(0)" if a.zero else "float32(nan)"
    for i in range(4):
        body += [f"l{i} = l{i} + shfl_xor_f32(l{i}, uint32({m}))" for m in (1, 2, 4, 8)]
        body += [
            f"f = float32(1) / l{i} if l{i} > float32(0) else {nothing}",
            f"f = f if l{i} == l{i} else float32(nan)",
            f"at = {place_of(a.y, 'h', f'r{i}')}",
            f"if m0 + ty * uint32(4) + uint32({i}) < uint32({a.rows}):",
        ]
        for n in range(columns):
            for j in range(4):
                column = f"tx * uint32(4) + uint32({64 * n + j})"
                put = f"store(y, uint32(at + {column}), (o{n}[{4 * i + j}] * f,))"
                inside = 64 * (n + 1) <= a.width
                body += (
                    [f"    {put}"] if inside else [f"    if {column} < uint32({a.width}):", f"        {put}"]
                )
    lines += [
        "@device",
        "def exp2(x):",
        f"    return float32(exp(x * float32({math.log(2)!r})))",
        "",
        "@device",
        "def powers(t, z):",
        "    return (exp2(t[0] - z), exp2(t[1] - z), exp2(t[2] - z), exp2(t[3] - z))",
        "",
        "@device",
        "def shrunk(o, e0, e1, e2, e3):",
        "    return (" + ", ".join(f"o[{i}] * e{i // 4}" for i in range(16)) + ")",
        "",
    ]
    signature = operands_of(a)
    text = [f"def kernel({', '.join(name for name, _ in signature)}):", *indented(body), ""]
    kernel = Kernel(
        f"attention_exact_{depth}",
        "\n".join([*functions.library([*lines, *text]), *lines, *text]),
        tuple(kind for _, kind in signature),
        EXACT_THREADS,
        shared_bytes=4 * sum(words.values()),
    )
    grid = (blocks * a.batch * a.heads, 1, 1)
    return Launches((Launch(kernel, grid, tuple(Ref(name) for name, _ in signature)),))


def _exact_words(a: Attention) -> dict[str, int]:
    """Shared float32s: queries, keys, values, probabilities."""
    return {
        "qs": a.depth * PITCH,
        "ks": a.depth * PITCH,
        "vs": SIDE * -(-a.width // 64) * 64,
        "ps": SIDE * PITCH,
    }


def _spread(memory: str, name: str, base: str, first: str, rows: int, step: int, depth: int) -> list[str]:
    """Lines that read 64 rows and write them as columns; those beyond the last are zeros."""
    limit = "seen" if name == "k" else f"int32({rows})"
    return [
        f"for u in range(thread(), uint32({SIDE * depth}), uint32({EXACT_THREADS})):",
        f"    j = uint32(uint32(u) // uint32({depth}))",
        f"    d = uint32(uint32(u) % uint32({depth}))",
        f"    n = uint32({first} + j)",
        "    value = float32(0)",
        f"    if int32(n) < {limit}:",
        f"        value = load({name}, uint32({base} + n * uint32({step}) + d))[0]",
        f"    {memory}[uint32(d * uint32({PITCH}) + j)] = value",
    ]


def _straight(a: Attention, padded: int) -> list[str]:
    """Lines that read 64 rows of values, and zeros beside and below them."""
    return [
        f"for u in range(thread(), uint32({SIDE * padded}), uint32({EXACT_THREADS})):",
        f"    j = uint32(uint32(u) // uint32({padded}))",
        f"    d = uint32(uint32(u) % uint32({padded}))",
        "    n = uint32(n0 + j)",
        "    value = float32(0)",
        f"    if int32(n) < seen and d < uint32({a.width}):",
        f"        value = load(v, uint32(v0 + n * uint32({a.v.row}) + d))[0]",
        "    vs[uint32(u)] = value",
    ]
