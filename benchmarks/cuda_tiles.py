"""Every tile of matrix products and convolutions on a real GPU: seconds, and whether the result is right.

    python -m benchmarks.cuda_tiles [--kernels FOLDER] [--json FILE] [--only TEXT] [--seconds 120]
    python -m benchmarks.cuda_tiles --compile-only --kernels FOLDER     on a machine without a GPU
    python -m benchmarks.cuda_tiles --trust --kernels FOLDER            with what that one compiled

The table of tiles (`app/engine/backends/cuda/dispatch.py`) is chosen by these figures. Times are medians of
launches within one graph, on random operands that stay where they are (`hot`). A few rows of each result are
compared with float64.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.backends.cuda import dispatch
from app.engine.runtime.cuda.device import Pointer
from app.engine.runtime.cuda.driver import Gpu, open_gpu, sm_of
from app.engine.types.target import find
from app.kernels.cuda.compiler import Compiler
from app.kernels.cuda.conv import Conv, conv
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.gemm import dtype_of, gemm
from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import Launches, Ref
from app.kernels.cuda.product import Product
from app.kernels.cuda.tiles import SIMT_TILES, TENSOR_TILES, WARPGROUP_TILES

Array = np.ndarray[Any, Any]
TARGET = "cuda-sm90"
REPEATS = 20
SAMPLED = 3  # rows of a result
CUBES = (("bf16", (8192, 4096, 2048, 1024)), ("fp16", (4096,)), ("f32", (4096,)), ("3xtf32", (4096,)))
# Layers of residual networks: channels in and out, taps, pixels of a side.
LAYERS = (
    *((64, 64, 3, 56), (128, 128, 3, 28), (256, 256, 3, 14), (512, 512, 3, 7), (64, 256, 1, 56)),
    *((256, 64, 1, 56), (128, 512, 1, 28), (1024, 256, 1, 14), (512, 2048, 1, 7), (2048, 512, 1, 7)),
)
BATCHES = (1, 64)
# Of the largest element sampled: what rounds once to 16 bits, and sums of float32.
TOLERANCES = {"bf16": 2.0**-8, "fp16": 2.0**-11, "f32": 2e-5, "3xtf32": 2e-5}


@dataclass(frozen=True)
class Run:
    """One tile on one problem."""

    problem: str
    precision: str
    tile: str
    splits: int
    flops: float
    launches: Callable[[], Launches]
    sizes: tuple[int, int, int]  # elements of a, b, y
    expected: Callable[[Array, Array], tuple[Array, Array]]  # of a and b: indexes of elements of y, and these


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    problem: str
    precision: str
    tile: str
    splits: int
    seconds: float = 0.0
    rate: float = 0.0  # TFLOP/s
    error: float = 0.0  # of the largest element sampled
    note: str = ""


def offered(precision: str, blocks: Callable[[Any], int]) -> Iterator[tuple[str, int]]:
    """Tiles of a precision, and splits of the reduction that give every multiprocessor work."""
    processors = find(TARGET).cores
    tiles = SIMT_TILES if precision == "f32" else TENSOR_TILES
    if precision in ("bf16", "fp16"):
        tiles = {**tiles, **WARPGROUP_TILES}
    for name, tile in tiles.items():
        if name in dispatch.SPILLING.get((precision, False), ()):
            continue
        yield name, 1
        if blocks(tile) < processors:
            yield name, -(-processors // blocks(tile))


def products() -> Iterator[Run]:
    """Square products."""
    for precision, sizes in CUBES:
        dtype = dtype_of(precision)
        for n in sizes:

            def expected(a: Array, b: Array, n: int = n, f32: bool = precision == "f32") -> Any:
                rows = np.linspace(0, n - 1, SAMPLED).astype(int)
                right = b.reshape(n, n) if f32 else b.reshape(n, n).T
                return rows[:, None] * n + np.arange(n), a.reshape(n, n)[rows] @ right

            for tile, splits in offered(precision, lambda t, n=n: dispatch.tiles_of(t, n, n)):
                product = Product(n, n, n, n, n, n)

                def launches(p: Any = product, of: Any = (precision, dtype, tile, splits)) -> Launches:
                    return gemm(p, of[0], Epilogue(of[1]), of[2], of[3])

                name = f"{n} x {n} x {n}"
                yield Run(name, precision, tile, splits, 2.0 * n**3, launches, (n * n,) * 3, expected)


def convolutions() -> Iterator[Run]:
    """Layers, with what follows them."""
    for batch in BATCHES:
        for ci, co, k, size in LAYERS:
            p = k // 2
            c = Conv(batch, size, size, ci, co, (k, k), (1, 1), (p, p, p, p))
            m = batch * size * size

            def expected(x: Array, w: Array, c: Conv = c, m: int = m) -> Any:
                k, p = c.kernel[0], c.pads[0]
                wide = np.pad(x.reshape(c.n, c.h, c.w, c.ci), ((0, 0), (p, p), (p, p), (0, 0)))
                rows = np.linspace(0, m - 1, SAMPLED).astype(int)
                n, y, x_ = np.unravel_index(rows, (c.n, c.h, c.w))
                patches = [wide[i, j : j + k, h : h + k].reshape(-1) for i, j, h in zip(n, y, x_)]
                sums = np.stack(patches) @ w.reshape(c.co, -1).T
                return rows[:, None] * c.co + np.arange(c.co), np.maximum(sums, 0)

            for tile, splits in offered("bf16", lambda t, m=m, co=co: dispatch.tiles_of(t, m, co)):

                def launches(c: Conv = c, of: Any = (tile, splits)) -> Launches:
                    return conv(c, "bf16", Epilogue("bfloat16", activation=("relu",)), *of)

                sizes = (m * ci, co * k * k * ci, m * co)
                name = f"{ci}->{co} {k}x{k} at {size}, batch {batch}"
                yield Run(name, "bf16", tile, splits, 2.0 * m * co * ci * k * k, launches, sizes, expected)


def told(row: Row) -> str:
    """A line of the table."""
    return (
        f"{row.problem:32} {row.precision:6} {row.tile:10} {row.splits:3} {row.seconds * 1e6:9.1f} us "
        f"{row.rate:7.1f} TFLOP/s  {row.error:.1e} {row.note}"
    )


class Operands:
    """Random elements of each type on the host and on the device, which all runs share."""

    def __init__(self, gpu: Gpu, runs: list[Run]) -> None:
        largest = max(max(run.sizes[:2]) for run in runs)
        block = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32)
        numbers = np.resize(block, largest + (1 << 20))
        high = ((numbers.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
        self.host: dict[str, Array] = {
            "bf16": (high.astype(np.uint32) << 16).view(np.float32),
            "fp16": numbers.astype(np.float16).astype(np.float32),
            "f32": numbers,
        }
        bits = {"bf16": high, "fp16": numbers.astype(np.float16), "f32": numbers}
        self.places = {name: gpu.allocate(array.nbytes) for name, array in bits.items()}
        for name, array in bits.items():
            gpu.write(self.places[name], array)

    def of(self, run: Run) -> tuple[str, int, Array, Array]:
        """(kind, elements before b, a and b in float64)."""
        kind, (a, b, _), start = "f32" if "f32" in run.precision else run.precision, run.sizes, 1 << 20
        host = self.host[kind]
        return kind, start, host[:a].astype(np.float64), host[start : start + b].astype(np.float64)


def measured(gpu: Gpu, operands: Operands, run: Run) -> Row:
    """The row of a run."""
    launches, dtype = run.launches(), dtype_of(run.precision)
    kind, start, a, b = operands.of(run)
    place, each = operands.places[kind], NBYTES[dtype]
    y, workspace = gpu.allocate(run.sizes[2] * each), gpu.allocate(max(launches.workspace, 256))
    gpu.fill(y, run.sizes[2] * each, 0xFF)
    roles = {"a": place, "x": place, "b": place + start * each, "w": place + start * each}
    roles |= {"y": y, "workspace": workspace}
    steps = []
    for step in launches:
        passed = [
            Pointer(roles[given.role] + given.offset, 0, kind[:-1]) if isinstance(given, Ref) else given
            for given, kind in zip(step.arguments, step.kernel.signature, strict=True)
        ]
        steps.append(gpu.load(step.kernel).bound(step.grid, passed))

    def work() -> None:
        for step in steps:
            step()

    work()
    bits = np.empty(run.sizes[2], np.uint16 if each == 2 else np.float32)
    gpu.read(y, bits)
    indexes, expected = run.expected(a, b)
    found = bits[indexes]
    if kind == "bf16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    elif kind == "fp16":
        found = found.view(np.float16)
    error = float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
    seconds = float(np.median(gpu.timeline([work] * REPEATS)()))
    gpu.release(y)
    gpu.release(workspace)
    right = error <= TOLERANCES[run.precision]  # not so of NaN
    row = Row(run.problem, run.precision, run.tile, run.splits, seconds, run.flops / seconds / 1e12, error)
    return replace(row, note="" if right else "WRONG")


def main() -> int:
    """Exit code 0 when all results are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=Path, default=Path("build/kernels"), help="compiled kernels")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--only", default="", help="runs whose problem, precision, tile have this text")
    parser.add_argument("--seconds", type=float, default=120.0, help="after which nothing new is begun")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--compile-only", action="store_true", help="fill the folder of kernels; no GPU")
    how.add_argument("--trust", action="store_true", help="take kernels from the folder, compile nothing")
    options = parser.parse_args()
    deadline, rows = time.monotonic() + options.seconds, list[Row]()
    runs = [*products(), *convolutions()]
    runs = [run for run in runs if options.only in f"{run.problem} {run.precision} {run.tile}"]
    if options.compile_only:
        compiler, sm = Compiler(options.kernels), sm_of(find(TARGET))
        for kernel in dict.fromkeys(step.kernel for run in runs for step in run.launches()):
            compiler.compile(kernel, sm)
        return 0
    gpu = open_gpu(options.kernels, find(TARGET), trusted=options.trust)
    operands = Operands(gpu, runs)
    for run in runs:
        row = Row(run.problem, run.precision, run.tile, run.splits)
        if time.monotonic() > deadline or gpu.lost is not None:
            row = replace(row, note="left out")
        else:
            try:
                row = measured(gpu, operands, run)
            except Exception as error:  # of the driver: what fails is a line, the others go on
                row = replace(row, note=f"FAILED: {' '.join(str(error).split())[:200]}")
        rows.append(row)
        print(told(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(any(row.note for row in rows))


if __name__ == "__main__":
    sys.exit(main())
