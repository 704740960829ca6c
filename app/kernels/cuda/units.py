"""Kernels in which every thread does one unit of work alone."""

from collections.abc import Sequence

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import indented
from app.kernels.cuda.kernel import Kernel, Launches

THREADS = 256


def per_unit(
    name: str,
    lines: Sequence[str],
    body: Sequence[str],
    operands: Sequence[tuple[str, str]],
    units: int,
    minimum_blocks: int = 1,
    threads: int = THREADS,
) -> Launches:
    """The kernel whose threads run `body` for `u` = 0 to units - 1; no launch for no units.

    Args:
        name: of the kernel.
        lines: functions that the body calls.
        body: lines that know `u` (uint32) and the operands.
        operands: name, which is the role too, and element type of every address.
        units: how many.
        minimum_blocks: of a multiprocessor, which registers must leave room for.
        threads: of a block.
    """
    roles = [o for o, _ in operands]
    head = [f"u = uint32(block_x() * uint32({threads}) + thread())", "if u < units:"]
    source = functions.source(lines, [*roles, "units"], [*head, *indented(body)])
    signature = (*(vectors.pointer(d) for _, d in operands), "uint32")
    kernel = Kernel(name, source, signature, threads, minimum_blocks)
    return Launches.of(kernel, -(-units // threads), roles, units)
