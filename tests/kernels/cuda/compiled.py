"""Kernels compiled for both generations, disassembled, and what is wrong with them."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from app.kernels.cuda.compiler import Compiler, Cubin
from app.kernels.cuda.kernel import Kernel
from tests.kernels.cuda.sass import instructions, opcodes

GENERATIONS = ("sm_80", "sm_90")
# A multiprocessor of either generation has four schedulers, each with these registers, which warps get in
# pieces: CUDA programming guide, "Compute Capabilities".
SCHEDULERS, REGISTERS, PIECE = 4, 16_384, 256
WARPS = 64  # at most
LOCAL = {"LDL", "STL"}  # spills, and arrays that are indexed at run time


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel's machine code for one generation, and how often each instruction occurs in it."""

    kernel: Kernel
    cubin: Cubin
    found: Counter[str]

    @property
    def warps(self) -> int:
        """How many of a multiprocessor's warps its registers allow, in whole blocks."""
        each = -(-self.cubin.registers * 32 // PIECE) * PIECE
        block = self.kernel.threads // 32
        return min(SCHEDULERS * (REGISTERS // each), WARPS) // block * block


def generations(kernel: Kernel) -> tuple[str, ...]:
    """Those that a kernel is compiled for."""
    return (kernel.only,) if kernel.only else GENERATIONS


def together(steps: Sequence[Sequence[Compiled]]) -> Iterator[tuple[Counter[str], ...]]:
    """Instructions of all kernels of some launches, for each generation that has them all."""
    for sm in GENERATIONS:
        own = tuple(one.found for step in steps for one in step if one.cubin.sm == sm)
        if len(own) == len(steps):
            yield own


def warm(
    kernels: Iterable[Kernel],
    cache: Path,
    processes: int = 2,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Compile kernels into a cache, in processes that end with what the compilers keep of each: a gigabyte.

    `progress` is called with (done, total).
    """
    wanted = list(dict.fromkeys(kernels))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done, _ in enumerate(pool.map(partial(_warm, cache), wanted, chunksize=4), 1):
            progress(done, len(wanted))


def _warm(cache: Path, kernel: Kernel) -> None:
    gc.disable()  # looking for the few cycles that numba leaves takes a sixth of its time
    compiler = Compiler(cache)
    for sm in generations(kernel):
        compiler.compile(kernel, sm)


def compiled(
    kernels: Iterable[Kernel], compiler: Compiler, folder: Path
) -> dict[Kernel, tuple[Compiled, ...]]:
    """Kernels for each generation. The disassembler starts once for all."""
    pairs = [(k, compiler.compile(k, sm)) for k in dict.fromkeys(kernels) for sm in generations(k)]
    found = instructions([cubin for _, cubin in pairs], folder)
    made: dict[Kernel, tuple[Compiled, ...]] = {}
    for (kernel, cubin), counts in zip(pairs, found, strict=True):
        made[kernel] = (*made.get(kernel, ()), Compiled(kernel, cubin, counts))
    return made


def faults(made: Compiled, warps: int, stack: int = 0) -> list[str]:
    """What is wrong with a kernel of which a multiprocessor must hold so many warps.

    `stack` are the bytes of a thread that it may have without a spill.
    """
    cubin, name = made.cubin, f"{made.cubin.name} for {made.cubin.sm}"
    told = []
    if cubin.spills or cubin.stack > stack or (not stack and LOCAL & opcodes(made.found)):
        told.append(f"{name}: {cubin.spills} byte spilled, {cubin.stack} of stack, expected 0 and {stack}")
    least = max(warps, made.kernel.minimum_blocks * made.kernel.threads // 32)
    if made.warps < least:
        told.append(f"{name}: {cubin.registers} registers allow {made.warps} warps, expected {least}")
    return told


def missing(expected: Sequence[str], found: Iterable[Counter[str]]) -> list[str]:
    """Of beginnings of instructions those that none of some kernels has."""
    names = {name for counts in found for name in counts}
    return [start for start in expected if not any(name.startswith(start) for name in names)]


def present(refused: Sequence[str], found: Iterable[Counter[str]]) -> list[str]:
    """Instructions of some kernels that begin with something refused."""
    return sorted({name for counts in found for name in counts if name.startswith(tuple(refused))})
