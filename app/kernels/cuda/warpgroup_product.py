"""Products by warpgroups of sm_90: y[m, n] = epilogue(sum over k of a[m, k] b[n, k]), operands of 16 bits.

Four warps multiply 64 rows of a by all of b's rows straight out of shared memory, where copies put both as
for `tensor_product`. Multiplications are asynchronous: while one stage is, the one before it still may be, so
of all stages two are never being filled. Source: PTX ISA 9.0, section 9.7.15.
"""

from dataclasses import replace

from app.kernels.cuda import product
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.kernel import Kernel
from app.kernels.cuda.operands import Operand
from app.kernels.cuda.source import Source, zeros
from app.kernels.cuda.tensor_product import copies
from app.kernels.cuda.tiles import BESIDE, WARPGROUP, WarpgroupTile, depth

GENERATION = "sm_90"
# Storage type and kind of instruction of a precision.
PRECISIONS = {"bf16": ("bfloat16", "bf16"), "fp16": ("float16", "f16")}
ROWS = 64  # of a, that a warpgroup multiplies


def kernel(
    precision: str, tile: WarpgroupTile, operand: Operand, after: Epilogue, width: int, shared: bool = False
) -> Kernel:
    """The kernel of a precision: see `product.kernel`; b is [n, k]."""
    dtype, kind = PRECISIONS[precision]
    each = depth(dtype)

    def begin(s: Source) -> None:
        s(
            *zeros(tile.n // 2),
            "c = zeros",
            f"from_a = uint32((warp() // uint32({WARPGROUP})) * {ROWS * each})",
        )

    def multiply(s: Source) -> None:
        places = f"s, uint32(read + from_a), s, uint32(read + {tile.m * each})"
        s(f"c = wgmma_{kind}_n{tile.n}(c, {places})", "wgmma_wait(1)")

    made = product.kernel(
        tile,
        operand,
        after,
        width,
        shared,
        dtype=dtype,
        label=precision,
        each=each,
        stage=(tile.m + tile.n) * each,
        copies=lambda s: copies(s, tile, operand, dtype),
        begin=begin,
        multiply=multiply,
        stage_sums=lambda s: _stage_sums(s, tile),
        ahead=tile.stages - BESIDE,
        landed=("fence_shared()",),
    )
    return replace(made, only=GENERATION)


def _stage_sums(s: Source, tile: WarpgroupTile) -> None:
    """Each warp has 16 rows; a thread two of them, of every eight columns two."""
    row = "warp() * 16 + (lane() >> uint32(2))"
    s(
        f"total = wgmma_sums_n{tile.n}(c)",
        "sync()",
        "sums = shared_f32(uint32(0))",
        f"at = uint32(({row}) * {tile.staging_row} + ((lane() & uint32(3)) << uint32(1)))",
    )
    for j in range(tile.n // 8):
        for h in range(2):
            index, e = 8 * h * tile.staging_row + 8 * j, 4 * j + 2 * h
            s(f"st_f32x2(sums, uint32(at + {index}), total[{e}], total[{e + 1}])")
    s("sync()")
