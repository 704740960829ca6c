"""Share of the machine's peak that every step reaches, by the roofline model.

Source: Williams, Waterman and Patterson, 2009, "Roofline: an insightful visual performance model".
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.plan import Compilation
from app.engine.core.program import Step
from app.engine.cost import roofline
from app.engine.planning.timing_cache import store, stored
from app.engine.runtime.benchmark import pinned
from app.engine.types.saturation import PRODUCTS
from app.engine.types.target import Peak, Target
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.peak import peak_flops

Json: TypeAlias = dict[str, object]

SIZES = (2**18, 2**21, 2**23, 2**25)  # bytes: a core's own caches, a shared one, beyond most of those
INTERVAL = 1e-3  # seconds of one sample
REPEATS = 5
RATES: Mapping[str, float] = {"bf16": 2.0}  # of products, in those of float32; see Target
INTEGER_RATE = 4.0  # of products of 8-bit integers, where the target has instructions for them


def measured(compiler: Compiler, target: Target, threads: int, cores: tuple[int, ...]) -> Peak:
    """The peak of this machine: chains of multiply-adds; copies and reads of SIZES by so many threads."""
    flops = peak_flops(compiler, target.vector_lanes, threads, cores)
    bandwidth: dict[int, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        for size in SIZES:
            parts = list(pool.map(_moved, [size // threads] * threads))
            # What fits a cache is never slower than what does not, whatever else the machine did meanwhile.
            bandwidth = {s: max(b, sum(parts)) for s, b in bandwidth.items()} | {size: sum(parts)}
    return Peak(flops, bandwidth, measured=True)


def kept(compiler: Compiler, target: Target) -> Peak:
    """The peak of one thread of this machine: as its timings table has it, where it is measured once."""
    names = {size: f"peak x1 {target.vector_lanes} lanes {size} byte/s" for size in SIZES}
    first, table = f"peak x1 {target.vector_lanes} lanes flop/s", stored(compiler.folder)
    if first not in table:
        with pinned(1) as cores:
            found = measured(compiler, target, 1, cores)
        table = {first: found.flops} | {names[size]: speed for size, speed in found.bandwidth.items()}
        store(compiler.folder, table)
    return Peak(table[first], {size: table[name] for size, name in names.items()}, measured=True)


def _moved(nbytes: int) -> float:
    """Byte/s of one thread in arrays of so many bytes: of a copy between two halves, or of a read of both.

    The better of the two, as a copy also reads what it overwrites; the best of REPEATS each.
    """
    both = np.ones((2, max(nbytes // 8, 1)), np.float32)
    ways: tuple[Callable[[], object], ...] = (lambda: np.copyto(both[1], both[0]), lambda: np.max(both))
    best = float("inf")
    for way in ways:
        calls = 1
        for _ in range(REPEATS):
            started = time.perf_counter()
            for _ in range(calls):
                way()
            taken = (time.perf_counter() - started) / calls
            best = min(best, taken)
            calls = max(int(INTERVAL / taken), 1)
    return both.nbytes / best


def nbytes(step: Step, compilation: Compilation) -> int:
    """Bytes that a step reads and writes: inputs, outputs and weights, each once, as they are stored."""
    if not step.calls:
        return 0
    constants: dict[int, int] = {}
    for call in step.calls:
        for held in call.arguments if isinstance(call, KernelCall) else ():
            if isinstance(held, Constant):
                constants[id(held)] = held.nbytes
            elif isinstance(held, ir.Value) and graph.is_constant(held) and not graph.is_dynamic(held):
                constants[id(held)] = value_bytes(held, compilation)
    moved = dict.fromkeys((*step.group.inputs, *step.group.outputs))
    host = step.is_host  # then nothing is packed: constants are read as they are
    values = (v for v in moved if not graph.is_dynamic(v) and (host or not graph.is_constant(v)))
    return sum(constants.values()) + sum(value_bytes(v, compilation) for v in values)


def figures(step: Step, compilation: Compilation, turns: int, seconds: float, peak: Peak) -> Json:
    """Operations and bytes of a step in so many turns, a second too, and its share of the peak.

    Operations are those of the textbook's algorithm, so that steps compare whatever computes them; fast
    algorithms may exceed the peak.
    """
    flops = turns * roofline.flops(step.group) if step.calls else 0.0
    moved = turns * nbytes(step, compilation)
    rate = RATES.get(step.choice.implementation.precision, 1.0)
    if "int8" in compilation.target.precisions and PRODUCTS.intersection(n.op_type for n in step.group.nodes):
        rate = INTEGER_RATE
    return {
        "flops": flops,
        "bytes": moved,
        "gflops": flops / seconds / 1e9 if seconds > 0 else None,
        "gigabytes_per_second": moved / seconds / 1e9 if seconds > 0 else None,
        "of_peak": peak.share(flops, moved, seconds, rate, turns),
    }
