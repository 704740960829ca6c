"""One kernel, tried alone: its result against a float64 reference, its time and its rate.

    python -m app.kernels.trial softmax --shape 64x1000

Nothing of the engine takes part: a trial compiles the kernel, passes it NumPy arrays and calls it on one
thread. It ends with status 1 where the result is further from the reference than the tolerance.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.kernels.cpu import gemm
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.runtime.compiler import Compiler, call

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-5  # of the largest element of the reference; float32 sums of a few thousand terms lose less
SECONDS = 0.2  # that runs last together; the fastest of them counts
BLOCK = 128  # rows, and elements of k, of a block of a matrix product


@dataclass(frozen=True, slots=True)
class Trial:
    """A call of a kernel: what to compile, arguments with their types, the expected output.

    `work` counts floating-point operations if `unit` is GFLOP/s, bytes read and written if it is GB/s.
    """

    kernel: str
    arguments: tuple[tuple[str, Array | int], ...]
    units: int
    output: Array
    expected: Array
    work: float
    unit: str = "GB/s"
    static: tuple[object, ...] | None = None
    takes_thread: bool = False


def _random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _softmax(shape: tuple[int, ...], _option: str) -> Trial:
    x = _random(*shape)
    y, wide = np.empty_like(x), x.astype(np.float64)
    exponentials = np.exp(wide - wide.max(-1, keepdims=True))
    return Trial(
        "app.kernels.cpu.softmax:softmax_rows",
        (("float32*", x), ("float32*", y), ("int64", shape[-1])),
        x.size // shape[-1],
        y,
        exponentials / exponentials.sum(-1, keepdims=True),
        x.nbytes + y.nbytes,
    )


def _reduce(shape: tuple[int, ...], _option: str) -> Trial:
    x = _random(*shape)
    n, outputs = shape[-1], x.size // shape[-1]
    y = np.empty(shape[:-1], np.float32)
    # One run of n elements for each output.
    numbers = (n, outputs, 1, 0, n, 0, 1, 1, 0, 0)
    return Trial(
        "app.kernels.cpu.reduce:rows",
        (("float32*", x), ("float32*", y), *(("int64", i) for i in numbers)),
        outputs,
        y,
        x.astype(np.float64).sum(-1),
        x.nbytes + y.nbytes,
        static=("sum", "float32", "float64", "float32"),
    )


def _transpose(shape: tuple[int, ...], _option: str) -> Trial:
    rows, columns = shape
    x, block = _random(rows, columns), 16
    y = np.empty((columns, rows), np.float32)
    table = np.zeros(1, np.int64)  # no outer axes
    numbers = (0, 0, 0, columns, rows, rows, columns, block)
    return Trial(
        "app.kernels.cpu.strided:transpose",
        (("float32*", x), ("float32*", y), ("int64*", table), *(("int64", i) for i in numbers)),
        -(-columns // block),
        y,
        x.T.astype(np.float64),
        x.nbytes + y.nbytes,
    )


REFERENCES: dict[str, Callable[[Array], Array]] = {
    "Abs": np.abs,
    "Exp": np.exp,
    "Neg": np.negative,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
}


def _elementwise(shape: tuple[int, ...], option: str) -> Trial:
    x = _random(*shape)
    y = np.empty_like(x)
    return Trial(
        "app.kernels.cpu.elementwise:emit",
        (("float32*", x), ("float32*", y), ("int64", x.size)),
        x.size,
        y,
        REFERENCES[option](x.astype(np.float64)),
        x.nbytes + y.nbytes,
        static=(((option, (0,), ()),), ("float32",), ((True,),), ((1, "float32"),)),
    )


def _gemm(shape: tuple[int, ...], _option: str) -> Trial:
    m, n, k = shape
    a, b, lanes = _random(m, k), _random(k, n), 8
    y, nothing = np.empty((m, n), np.float32), np.zeros(1, np.float32)
    vectors = tiles.vectors_for(n, "float32", lanes)
    shapes = tiles.shapes_of("float32", vectors)
    width = tiles.columns_of("float32", lanes, shapes)
    packed = tiles.packed_panels("float32", b, width, lanes)
    spare, block = tiles.spare("float32", lanes, shapes), min(BLOCK, m)
    columns, sums = 4 * width, block * 4 * width
    sizes = gemm.GemmSizes(
        m=m, n=n, k=k, a_row=k, a_k=1, b_packed=True, b_row=n, b_column=1, rows_step=0, residual_row=0,
        by_rows=False, block_m=block, block_n=columns, block_k=min(BLOCK, k), packed_row=columns,
        sums_size=sums, spare_size=spare, work_step=sums + spare, flags=0,
    )  # fmt: skip
    floats = (a, packed, y, nothing, nothing, nothing, np.array([1, 1, 0, 0], np.float32))
    return Trial(
        "app.kernels.cpu.gemm:emit",
        (
            *(("float32*", x) for x in floats),
            ("int64*", np.zeros(3, np.int64)),
            ("int64*", sizes.array()),
            ("float32*", np.empty(sums + spare, np.float32)),
        ),
        -(-m // block) * -(-n // columns),
        y,
        a.astype(np.float64) @ b.astype(np.float64),
        2.0 * m * n * k,
        "GFLOP/s",
        ("float32", lanes, (), (), vectors, n if n < lanes else 0),
        takes_thread=True,
    )


# Family: its trial, and the shape by default; of gemm m x n x k.
FAMILIES: dict[str, tuple[Callable[[tuple[int, ...], str], Trial], tuple[int, ...]]] = {
    "elementwise": (_elementwise, (1024, 1024)),
    "gemm": (_gemm, (256, 256, 256)),
    "reduce": (_reduce, (64, 1000)),
    "softmax": (_softmax, (64, 1000)),
    "transpose": (_transpose, (512, 512)),
}


def run(trial: Trial, cache: Path) -> tuple[float, float]:
    """(Largest difference to the reference over its largest element, seconds of the fastest run)."""
    kernel = Compiler(cache, processes=1).compile(
        trial.kernel, tuple(t for t, _ in trial.arguments), trial.static, takes_thread=trial.takes_thread
    )
    numbers = [a if isinstance(a, int) else a.ctypes.data for _, a in trial.arguments]
    given = (*numbers, 0, trial.units, *((0,) if trial.takes_thread else ()))
    trial.output.fill(np.nan)
    call(kernel, *given)
    scale = float(np.max(np.abs(trial.expected), initial=1e-30))
    error = float(np.max(np.abs(trial.output - trial.expected), initial=0.0)) / scale
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        call(kernel, *given)
        best = min(best, time.perf_counter() - started)
    return error, best


def main(arguments: list[str]) -> int:
    """Run a trial and print its figures; 1 if the result is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m app.kernels.trial", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--shape", help="extents such as 64x1000; of gemm m x n x k")
    parser.add_argument("--expression", default="Sigmoid", choices=REFERENCES, help="of elementwise")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "stowplan-trial",
        help="folder of machine code",
    )
    given = parser.parse_args(arguments)
    make, shape = FAMILIES[given.family]
    rank = 3 if given.family == "gemm" else 2 if given.family == "transpose" else 0
    if given.shape:
        extents = given.shape.split("x")
        if not all(e.isdigit() and int(e) for e in extents) or len(extents) != (rank or len(extents)):
            parser.error(
                f"--shape: expected {rank or 'some'} positive extents such as 64x1000, found {given.shape!r}"
            )
        shape = tuple(int(e) for e in extents)
    trial = make(shape, given.expression)
    error, seconds = run(trial, given.cache)
    right = error <= TOLERANCE
    print(
        f"{given.family} {'x'.join(map(str, shape))}: {seconds * 1e6:.1f} us, "
        f"{trial.work / seconds / 1e9:.1f} {trial.unit}, relative error {error:.1e}"
        + ("" if right else f", above the tolerance of {TOLERANCE:.0e}")
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
