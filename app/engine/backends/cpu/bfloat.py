"""Common parts of the rows that multiply in bfloat16: two products at once, sums in float32.

Activations stay float32 between kernels, which round them where they are first used; weights are
rounded offline. So every product has two relative errors of at most 2**-9, and nothing else is rounded.
"""

from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.core.calls import Argument, KernelCall, Workspace
from app.engine.core.registry import PlanningContext
from app.kernels.cpu import matrix_tiles
from app.kernels.cpu.codegen.tiles import BFLOATS, SHIFTED_BFLOATS

RATE = 2.0  # products a second, over those of float32, by vector instructions
SLOW_RATE = 0.9  # the same of processors that have tile registers for it: one port, and longer chains
ROUNDING = 4.0  # operations of float32 that take as long as rounding one element
TILES_RATE = 6.0  # the same of tile registers, as far as the caches feed them
ENDING = 4.0  # the same as ROUNDING for what takes a sum from a tile register through the epilogue
TILES = "amx_bf16"
INSTRUCTIONS = "avx512_bf16"  # of vectors of 8 and 16 float32


def rejection(context: PlanningContext) -> str | None:
    """Reason why nothing is computed in bfloat16 here."""
    return "the job computes in f32" if context.precision != "bf16" else None


def rate(context: PlanningContext) -> float:
    """Products a second by vector instructions, over those of float32."""
    return SLOW_RATE if TILES in context.target.isa else RATE


def tiles_rejection(context: PlanningContext) -> str | None:
    """Reason why no tile registers multiply bfloat16 here."""
    if context.precision != "bf16":
        return rejection(context)
    if TILES not in context.target.isa:
        return f"target {context.target.name!r} has no {TILES}, or its system does not permit its use"
    lanes = context.target.vector_lanes
    return (
        None if lanes == matrix_tiles.LANES else f"vectors of {lanes} float32; tile registers have 16 columns"
    )


def dtype(context: PlanningContext) -> str:
    """The type of a pair, which tells how pairs are multiplied."""
    native = INSTRUCTIONS in context.target.isa and context.target.vector_lanes in (8, 16)
    return BFLOATS if native else SHIFTED_BFLOATS


def tiled_rows_call(x: Argument, rows: int, k: int) -> tuple[KernelCall, Workspace, int]:
    """Rows of k float32 rounded to pairs for tile registers, where they go, and how far they lie apart.

    That is an odd number of cache lines, so that rows of a tile spread over the sets of the caches.
    """
    lines = -(-k // (2 * matrix_tiles.LANES))
    row = (lines + (lines % 2 == 0)) * matrix_tiles.LANES
    pairs = Workspace((rows + matrix_tiles.BEHIND) * row * 4)
    operands: Operands = (*of_type("float32*", x, pairs), k, row)
    static = (matrix_tiles.LANES,)
    return kernel_call("app.kernels.cpu.bfloat:emit_blocked_rows", operands, rows, static), pairs, row


def rows_call(x: Argument, rows: int, k: int, context: PlanningContext) -> tuple[KernelCall, Workspace]:
    """Rows of k float32 rounded to ceil(k / 2) pairs, and where they go."""
    pairs = Workspace(rows * -(-k // 2) * 4)
    operands: Operands = (*of_type("float32*", x, pairs), k)
    static = dtype(context), context.target.vector_lanes
    return kernel_call("app.kernels.cpu.bfloat:emit_rows", operands, rows, static), pairs
