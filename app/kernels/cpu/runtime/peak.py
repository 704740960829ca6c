"""Peak arithmetic of this machine: independent chains of multiply-adds that touch no memory."""

import functools
import hashlib
import time
from pathlib import Path

import llvmlite.ir as ll
import numpy as np
from numba import types

from app.kernels.cpu.codegen.instructions import Vectors, repeat, typed
from app.kernels.cpu.runtime.compiler import CompiledKernel, Compiler
from app.kernels.cpu.runtime.driver import Team, compile_dispatch_loop
from app.kernels.cpu.runtime.kernel_sequence import KernelRow, KernelSequence

CHAINS = 12  # more than latency times issue rate (4 x 2) and fewer than the registers
TURNS = 1 << 20
REPEATS = 15


def chains(lanes: int):  # an intrinsic has no type
    """An intrinsic `chains(x, y, turns)`: CHAINS sums of x[0] * x[0], `turns` times; all added to y."""
    address = types.CPointer(types.float32)

    def write(context, builder, _signature, values):
        x, y, turns = values
        v = Vectors(builder, "float32", lanes)
        factor = v.broadcast(x)
        # Different starts: equal chains would become one.
        starts = [ll.Constant(v.type, [float(i)] * lanes) for i in range(CHAINS)]
        sums = repeat(builder, turns, starts, lambda totals: [v.fma(factor, factor, t) for t in totals])
        whole = functools.reduce(v.add, sums)
        v.store(whole, y)
        return context.get_dummy_value()

    return typed(types.void(address, address, types.int64), write)


def emit_chains(lanes: int) -> str:
    """The module of a kernel that runs CHAINS chains of `lanes` lanes; units are threads."""
    # The text names this file's version: the cache of machine code follows the text.
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    return f"""# {version}
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.runtime.peak import chains

chained = chains({lanes})


def kernel(x, y, turns, begin, end):
    for unit in range(begin, end):
        chained(x, at(y, unit * {lanes}), turns)
"""


def compiled(compiler: Compiler, lanes: int) -> CompiledKernel:
    """The kernel that `peak_flops` runs."""
    types = ("float32*", "float32*", "int64")
    return compiler.compile("app.kernels.cpu.runtime.peak:emit_chains", types, static=(lanes,))


def peak_flops(compiler: Compiler, lanes: int, threads: int, cores: tuple[int, ...]) -> float:
    """Single-precision operations a second of so many threads; the best of REPEATS runs."""
    kernel = compiled(compiler, lanes)
    x, y = np.full(1, 1e-3, np.float32), np.zeros(lanes * threads, np.float32)
    arguments = (x.ctypes.data, y.ctypes.data, TURNS)
    team = Team(threads, cores)
    stretch = KernelSequence(compile_dispatch_loop(), [KernelRow(kernel.address, threads, arguments)], team)
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        stretch.run()
        best = min(best, time.perf_counter() - started)
    team.close()
    return 2.0 * lanes * CHAINS * TURNS * threads / best
