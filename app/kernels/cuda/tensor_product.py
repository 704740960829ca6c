"""Products on tensor cores: y[m, n] = epilogue(sum over k of a[m, k] b[n, k]), or b[k, n].

Tiles of both operands come by asynchronous copies, several under way, into rows of 128 bytes whose
16-byte chunks are exchanged by row (chunk ^ row % 8), so that neither the copies nor `ldmatrix` meet a
bank twice. Sums stay in registers until the end; then they pass through shared memory, so that a thread
finishes 16 bytes of the output and a warp writes whole lines. Source of the fragments' layouts: PTX ISA
9.0, section 9.7.14.
"""

from collections.abc import Callable
from dataclasses import replace

from app.kernels.cuda import product
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import Kernel
from app.kernels.cuda.operands import Columns, Operand, Rows
from app.kernels.cuda.source import Source, zeros
from app.kernels.cuda.tiles import CHUNKS, Tile, depth

# Storage type and instruction of a precision. "3xtf32" adds the products of the parts that tf32 drops, which
# is nearly as exact as float32.
PRECISIONS = {
    "bf16": ("bfloat16", "mma_bf16"),
    "fp16": ("float16", "mma_f16"),
    "tf32": ("float32", "mma_tf32"),
    "3xtf32": ("float32", "mma_tf32"),
}


PAD = 8  # elements between rows of b as [k, n]: no lanes of a fragment share a bank


def kernel(
    precision: str,
    tile: Tile,
    operand: Operand,
    after: Epilogue,
    width: int,
    shared: bool = False,
    columns: bool = False,
) -> Kernel:
    """The kernel of a precision: see `product.kernel`; `columns`: b is [k, n] and not [n, k]."""
    dtype, mma = PRECISIONS[precision]
    if dtype == "float32":  # its conversions need the registers of the other blocks
        fit = precision == "3xtf32" and tile.m * tile.n <= 32 * 64  # else one takes all registers it can get
        tile = replace(tile, minimum_blocks=3 if fit else 1)
    each = depth(dtype)
    stage = (tile.m + tile.n + PAD * columns) * each

    def begin(s: Source) -> None:
        _accumulators(s, tile)
        _fragments(s, tile, each, 16 // NBYTES[dtype])
        if columns:
            _column_fragments(s, tile, dtype, tile.m * each)
        if precision == "3xtf32":
            s(f"parts = opaque(uint32({CHUNKS // 2}))")

    made = product.kernel(
        tile,
        operand,
        after,
        width,
        shared,
        dtype=dtype,
        label=precision.replace("3x", "three_") + "_nn" * columns,
        each=each,
        stage=stage,
        copies=lambda s: copies(s, tile, operand, dtype, columns),
        begin=begin,
        multiply=lambda s: _multiply(s, tile, precision, mma, each, columns),
        stage_sums=lambda s: _stage_sums(s, tile),
    )
    return replace(made, shared_bytes=max(made.shared_bytes, tile.stages * stage * NBYTES[dtype]))


def copies(
    s: Source, tile: Tile, operand: Operand, dtype: str, columns: bool = False
) -> Callable[[str], None]:
    """Text of what this thread copies of both operands; returns the writer of one stage's copies."""
    each, vector = depth(dtype), 16 // NBYTES[dtype]
    a_size, rows = tile.m * each, tile.threads // CHUNKS
    s(
        f"chunk = uint32(thread() & uint32({CHUNKS - 1}))",
        f"mine = uint32(thread() >> uint32({CHUNKS.bit_length() - 1}))",
        f"to = uint32(mine * {each} + (uint32(chunk ^ uint32(mine & uint32(7))) * {vector}))",
        f"chunk = uint32(chunk * {vector})",
        "row = uint32(first_m + mine)",
    )
    operand.prepare(s, tile.m // rows, rows)
    ragged = isinstance(operand, Rows) and operand.ragged
    across = Columns(dtype, tile.n, each, tile.threads, a_size, tile.n + PAD * columns)
    along = Rows(ragged, "b", "n")
    if columns:
        across.prepare(s)
    else:
        s("row = uint32(first_n + mine)")
        along.prepare(s, tile.n // rows, rows)
    s(f"s = shared_{'f32' if dtype == 'float32' else 'u16'}(uint32(0))")

    def fetch(at: str) -> None:
        """Copies of the tile at `k0` of the reduction to the stage at element `at`."""
        s("k = uint32(k0 + chunk)")
        if ragged:
            nbytes = f"(int64(k_end) - int64(k)) * {NBYTES[dtype]}"
            s(f"left = int32(min(max({nbytes}, 0), 16))")
        operand.step(s)
        s(f"at_stage = uint32({at} + to)")
        for i in range(tile.m // rows):
            operand.copy(s, i, f"uint32(at_stage + {i * rows * each})", each)
        if columns:
            across.copy(s, at)
        for i in range(0 if columns else tile.n // rows):
            along.copy(s, i, f"uint32(at_stage + {a_size + i * rows * each})", each)
        s("cp_commit()", f"k0 = uint32(k0 + {each})")

    return fetch


def _accumulators(s: Source, tile: Tile) -> None:
    s(*zeros(8))
    for i in range(tile.m // tile.down // 16):
        for j in range(0, tile.n // tile.across // 8, 2):
            s(f"c{i}_{j} = zeros")


def _fragments(s: Source, tile: Tile, each: int, vector: int) -> None:
    """Where this lane's rows begin: fa of a, fb of b, one index for each 32 bytes of a row."""
    s(
        f"warp_m = uint32(uint32(warp() % uint32({tile.down})) * {tile.m // tile.down})",
        f"warp_n = uint32(uint32(warp() // uint32({tile.down})) * {tile.n // tile.across})",
        "row_a = uint32(warp_m + (lane() & uint32(15)))",
        "row_b = uint32(warp_n + ((lane() >> uint32(4)) << uint32(3)) + (lane() & uint32(7)))",
        "chunk_a = uint32(lane() >> uint32(4))",
        "chunk_b = uint32((lane() >> uint32(3)) & uint32(1))",
    )
    for q in range(CHUNKS // 2):
        for name, base in (("a", 0), ("b", tile.m * each)):
            s(
                f"turned = uint32(uint32(chunk_{name} + {2 * q}) ^ uint32(row_{name} & uint32(7)))",
                f"f{name}{q} = uint32({base} + row_{name} * {each} + turned * {vector})",
            )


def _column_fragments(s: Source, tile: Tile, dtype: str, start: int) -> None:
    """Where this lane reads b as [k, n]: rows of it for 16 bits, single elements for 32."""
    if dtype == "float32":
        row, column = "lane() & uint32(3)", "lane() >> uint32(2)"
    else:
        row, column = "lane() & uint32(15)", "(lane() >> uint32(4)) << uint32(3)"
    s(f"from_b = uint32({start} + ({row}) * {tile.n + PAD} + warp_n + ({column}))")


def _multiply(s: Source, tile: Tile, precision: str, mma: str, each: int, columns: bool) -> None:
    if precision == "3xtf32":
        _multiply_parts(s, tile, mma, each, columns)
        return
    down, across = tile.m // tile.down // 16, tile.n // tile.across // 8
    part = "h" if mma == "mma_tf32" else ""
    for q in range(CHUNKS // 2):
        places = f"fa{q}", f"fb{q}", f"{(8 if part else 16) * q * (tile.n + PAD)}"
        _load_fragments(s, tile, mma, each, columns, places)
        if part:
            for name in _fragment_names(down, across):
                s(f"{name}h = tf32_x4({name})")
        for i in range(down):
            for j in range(0, across, 2):
                s(f"c{i}_{j} = {mma}_x2(c{i}_{j}, a{i}{part}, b{j}{part})")


def _fragment_names(down: int, across: int) -> tuple[str, ...]:
    return (*(f"a{i}" for i in range(down)), *(f"b{j}" for j in range(0, across, 2)))


def _load_fragments(
    s: Source, tile: Tile, mma: str, each: int, columns: bool, places: tuple[str, str, str]
) -> None:
    """Fragments of 32 bytes of the rows; `places` are where a's, b's and b's as [k, n] begin in a stage."""
    down, across = tile.m // tile.down // 16, tile.n // tile.across // 8
    in_a, in_b, in_columns = places
    for i in range(down):
        s(f"a{i} = ldmatrix_x4(s, uint32(read + {in_a} + {16 * i * each}))")
    for j in range(0, across, 2):
        at = f"read + from_b + {in_columns} + {8 * j}"
        if not columns:
            s(f"b{j} = ldmatrix_x4(s, uint32(read + {in_b} + {8 * j * each}))")
        elif mma == "mma_tf32":
            steps = (0, 4 * (tile.n + PAD), 8, 4 * (tile.n + PAD) + 8)
            s(f"b{j} = ({', '.join(f'lds_u32(s, uint32({at} + {step}))' for step in steps)})")
        else:
            s(f"b{j} = ldmatrix_x4_trans(s, uint32({at}))")


def _multiply_parts(s: Source, tile: Tile, mma: str, each: int, columns: bool) -> None:
    """The same with both parts of each operand.

    Tensor cores truncate when they add, float32 additions round: a long sum would lose a unit of its last
    place each time, so sums of few products are added outside. Source: Ootomo and Yokota, 2022,
    arXiv:2203.03341. It is a loop, because unrolled it takes more registers than there are.
    """
    down, across = tile.m // tile.down // 16, tile.n // tile.across // 8
    s("q = uint32(0)")
    with s.block("while q < parts:"):
        for name, base in (("a", 0), ("b", tile.m * each)):
            turned = f"uint32(uint32(chunk_{name} + q * 2) ^ uint32(row_{name} & uint32(7)))"
            s(f"f{name} = uint32({base} + row_{name} * {each} + {turned} * 4)")
        _load_fragments(s, tile, mma, each, columns, ("fa", "fb", f"q * {8 * (tile.n + PAD)}"))
        for name in _fragment_names(down, across):
            s(f"{name}h = tf32_high_x4({name})", f"{name}l = tf32_rest_x4({name}, {name}h)")
        for i in range(down):
            for j in range(0, across, 2):
                s("p = zeros")
                for kind in ("lh", "hl", "hh"):  # small parts first
                    s(f"p = {mma}_x2(p, a{i}{kind[0]}, b{j}{kind[1]})")
                s(f"c{i}_{j} = add_x8(c{i}_{j}, p)")
        s("q = uint32(q + 1)")


def _stage_sums(s: Source, tile: Tile) -> None:
    s("sums = shared_f32(uint32(0))")
    s(
        f"at = uint32((warp_m + (lane() >> uint32(2))) * {tile.staging_row} + warp_n + "
        "((lane() & uint32(3)) << uint32(1)))"
    )
    for i in range(tile.m // tile.down // 16):
        for j in range(tile.n // tile.across // 8):
            for h in range(2):
                index = (16 * i + 8 * h) * tile.staging_row + 8 * j
                c, e = f"c{i}_{j - j % 2}", j % 2 * 4 + 2 * h
                s(f"st_f32x2(sums, uint32(at + {index}), {c}[{e}], {c}[{e + 1}])")
    s("sync()")
