"""Copies of operands whose rows do not begin at multiples of 16 bytes, into the workspace, where they do."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import WORKSPACE, Kernel, Launch, Launches, Ref
from app.kernels.cuda.source import Source
from app.kernels.cuda.vectors import pointer

THREADS = 256
PLACE = 256  # bytes: what a part of the workspace begins at a multiple of


@dataclass(frozen=True, slots=True)
class Matrices:
    """`batch` matrices of elements: rows begin `row` apart, matrices `step`; the same one if 0."""

    rows: int
    columns: int
    row: int
    batch: int = 1
    step: int = 0

    def is_aligned(self, dtype: str) -> bool:
        """True if all rows begin at multiples of 16 bytes when the first does."""
        vector = 16 // NBYTES[dtype]
        return self.row % vector == 0 and self.step % vector == 0


def layout(source: Matrices, dtype: str, *, beside: bool = False) -> Matrices:
    """Where a copy lies: rows filled up to 16 bytes.

    `beside`: rows of the matrices alternate, as groups of channels do, and are not one matrix after another.
    """
    full = -(-source.columns * NBYTES[dtype] // 16) * 16 // NBYTES[dtype]
    several = source.step != 0
    if beside:
        row = full * source.batch if several else full
        return Matrices(source.rows, full, row, source.batch, full if several else 0)
    return Matrices(source.rows, full, full, source.batch, full * source.rows if several else 0)


def copies(
    sources: Mapping[str, Matrices], dtype: str, *, beside: bool = False
) -> dict[str, tuple[Matrices, Matrices]]:
    """(source, layout of its copy) of the operands that need one, by role."""
    unaligned = {role: x for role, x in sources.items() if not x.is_aligned(dtype)}
    return {role: (x, layout(x, dtype, beside=beside)) for role, x in unaligned.items()}


def after_copies(main: Launches, copies: Mapping[str, tuple[Matrices, Matrices]], dtype: str) -> Launches:
    """Launches that read operands by role from copies: (source, layout) of each, made before."""
    steps, places, end = [], {}, main.workspace
    for role, (source, made) in copies.items():
        place = -(-end // PLACE) * PLACE
        batch = source.batch if source.step else 1
        pieces = made.columns * NBYTES[dtype] // 16
        numbers = source.rows, source.columns, pieces, source.row, source.step, made.row, made.step
        grid = -(-source.rows * pieces // THREADS), 1, batch
        steps.append(Launch(kernel(dtype), grid, (Ref(role), Ref(WORKSPACE, place), *numbers)))
        places[role] = Ref(WORKSPACE, place)
        end = place + 16 * batch * source.rows * pieces
    return Launches((*steps, *main.moved(places).steps), end)


def kernel(dtype: str) -> Kernel:
    """A thread makes one piece of 16 bytes."""
    wide = dtype == "float32"
    vector = 16 // NBYTES[dtype]
    s = Source()
    with s.block("def kernel(x, y, rows, columns, pieces, x_row, x_step, y_row, y_step):"):
        s(
            f"item = uint32(uint32(block_x() * {THREADS}) + thread())",
            "row = uint32(item // pieces)",
            f"column = uint32((item - row * pieces) * {vector})",
            "x = advance(x, int64(block_z()) * int64(x_step) + int64(row) * int64(x_row))",
            "y = advance(y, int64(block_z()) * int64(y_step) + int64(row) * int64(y_row))",
        )
        with s.block("if row < rows:"):
            zero = "float32(0)" if wide else "uint32(0)"
            for i in range(vector):
                s(f"v{i} = {zero}")
                with s.block(f"if column + {i} < columns:"):
                    value = f"x[uint32(column + {i})]"
                    s(f"v{i} = {value if wide else f'uint32({value})'}")
            if wide:
                s("st_f32x4(y, column, v0, v1, v2, v3)")
            else:
                words = ", ".join(f"uint32(v{i} | (v{i + 1} << uint32(16)))" for i in range(0, 8, 2))
                s(f"st_u32x4(y, column, {words})")
    element = pointer(dtype)
    return Kernel(f"realign_{dtype}", s.text, (element, element, *("uint32",) * 7), THREADS)
