"""Products in float32 without tensor cores, exact: y[m, n] = epilogue(sum over k of a[m, k] b[k, n]), "NN".

A thread makes 8 rows of 4 or 8 columns. Both operands come by asynchronous copies; rows of a have 64
bytes whose 16-byte chunks are exchanged by row, so that warps that read eight rows apart meet no bank
twice. Every product is a fused multiply-add in the order of the reduction, apart from shared reductions.
"""

from collections.abc import Callable

from app.kernels.cuda import product
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.kernel import Kernel
from app.kernels.cuda.operands import Columns, Operand, Rows
from app.kernels.cuda.source import Source, zeros
from app.kernels.cuda.tiles import SIMT_DEPTH, SIMT_ROWS, SimtTile

CHUNKS = SIMT_DEPTH // 4


def kernel(
    precision: str, tile: SimtTile, operand: Operand, after: Epilogue, width: int, shared: bool = False
) -> Kernel:
    """The kernel of precision "f32": see `product.kernel`."""
    assert precision == "f32", precision
    return product.kernel(
        tile,
        operand,
        after,
        width,
        shared,
        dtype="float32",
        label=precision,
        each=SIMT_DEPTH,
        stage=(tile.m + tile.n) * SIMT_DEPTH,
        copies=lambda s: _copies(s, tile, operand),
        begin=lambda s: _begin(s, tile),
        multiply=lambda s: _multiply(s, tile),
        stage_sums=lambda s: _stage_sums(s, tile),
    )


def _begin(s: Source, tile: SimtTile) -> None:
    s(*zeros(16))
    s(*(f"c{i}_{j} = zeros" for i in range(SIMT_ROWS // 4) for j in range(tile.across // 4)))
    threads_n = tile.n // tile.across
    s(
        f"thread_m = uint32(thread() // uint32({threads_n}))",
        f"thread_n = uint32((thread() - thread_m * {threads_n}) * 4)",
        f"from_a = uint32(thread_m * {SIMT_ROWS * SIMT_DEPTH})",
        "turn = uint32((thread_m & uint32(3)) * 4)",
        f"from_b = uint32({tile.m * SIMT_DEPTH} + thread_n)",
    )


def _copies(s: Source, tile: SimtTile, operand: Operand) -> Callable[[str], None]:
    """Text of what this thread copies of both operands; returns the writer of one stage's copies."""
    rows = tile.threads // CHUNKS  # of a, copied at once
    right = Columns("float32", tile.n, SIMT_DEPTH, tile.threads, tile.m * SIMT_DEPTH, tile.n)
    s(
        f"chunk = uint32((thread() & uint32({CHUNKS - 1})) * 4)",
        f"mine = uint32(thread() >> uint32({CHUNKS.bit_length() - 1}))",
        "turn = uint32(((mine >> uint32(3)) & uint32(3)) * 4)",
        f"to_a = uint32(mine * {SIMT_DEPTH} + uint32(chunk ^ turn))",
        "row = uint32(first_m + mine)",
    )
    operand.prepare(s, tile.m // rows, rows)
    right.prepare(s)
    s("s = shared_f32(uint32(0))")

    def fetch(at: str) -> None:
        """Copies of the tile at `k0` of the reduction to the stage at element `at`."""
        s("k = uint32(k0 + chunk)")
        if isinstance(operand, Rows) and operand.ragged:
            s("left = int32(min(max((int64(k_end) - int64(k)) * 4, 0), 16))")
        operand.step(s)
        for i in range(tile.m // rows):
            operand.copy(s, i, f"uint32({at} + to_a + {i * rows * SIMT_DEPTH})", SIMT_DEPTH)
        right.copy(s, at)
        s("cp_commit()", f"k0 = uint32(k0 + {SIMT_DEPTH})")

    return fetch


def _multiply(s: Source, tile: SimtTile) -> None:
    """Text of the products of the stage at `read`, two elements of the reduction at a time."""
    halves = tile.across // 4
    for k in range(0, SIMT_DEPTH, 2):
        s(f"at = uint32(read + from_a + uint32(turn ^ uint32({k & ~3})) + {k & 3})")
        s(*(f"a{i} = lds_f32x2(s, uint32(at + {i * SIMT_DEPTH}))" for i in range(SIMT_ROWS)))
        for q in range(2):
            for h in range(halves):
                where = (k + q) * tile.n + h * tile.n // 2
                s(f"b{h} = lds_f32x4(s, uint32(read + from_b + {where}))")
            for i in range(SIMT_ROWS // 4):
                column = ", ".join(f"a{4 * i + r}[{q}]" for r in range(4))
                s(*(f"c{i}_{h} = outer_4x4(c{i}_{h}, {column}, b{h})" for h in range(halves)))


def _stage_sums(s: Source, tile: SimtTile) -> None:
    """Text that brings the sums to shared memory."""
    s("sums = shared_f32(uint32(0))")
    s(f"at = uint32(thread_m * {SIMT_ROWS * tile.staging_row} + thread_n)")
    for i in range(SIMT_ROWS):
        for h in range(tile.across // 4):
            values = ", ".join(f"c{i // 4}_{h}[{4 * (i % 4) + j}]" for j in range(4))
            where = i * tile.staging_row + h * tile.n // 2
            s(f"st_f32x4(sums, uint32(at + {where}), {values})")
    s("sync()")
