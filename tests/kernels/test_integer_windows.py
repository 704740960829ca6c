"""Integer convolutions of images with channels last against NumPy, and the blocks that threads share."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.backends.cpu import window_tiles
from app.engine.backends.cpu.window_tiles import Reduction, Sharing
from app.engine.core.registry import load
from app.kernels.cpu.integer_windows import SHAPES
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.test_integer import HEAD, convolved, declared, narrow, random

REGISTRY = load()
# channels, outputs, groups, size, kernel, pads, strides: borders wider than windows and lines that read none
# of the image, tiles of a line and across lines, groups that fill a vector or not, stretches of odd lengths
BORDERED = (
    (32, 48, 1, (7, 7), (3, 3), (1, 1, 1, 1), (1, 1)),
    (20, 40, 1, (14, 14), (3, 3), (1, 1, 1, 1), (1, 1)),
    (3, 20, 1, (23, 17), (7, 7), (3, 3, 3, 3), (2, 2)),
    (40, 40, 5, (9, 7), (3, 3), (1, 1, 1, 1), (1, 1)),
    (24, 24, 3, (8, 12), (3, 3), (1, 1, 1, 1), (2, 2)),
    (8, 100, 1, (2, 9), (5, 2), (4, 0, 4, 1), (1, 1)),
)


@pytest.mark.parametrize(
    ("row", "lanes"), [("last_dot", 16), ("last_dot", 8), ("last_quads", 8), ("last_pairs", 16)]
)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("int8", -128), ("int8", 0), ("uint8", 7)])
def test_borders_that_add_nothing_are_left_out(
    compiler: Compiler, row: str, lanes: int, dtype: str, zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero point that is known: of some the border is zeros as they are multiplied, of others not."""
    context = harness.context
    monkeypatch.setattr(
        harness, "context", lambda *a, **k: replace(f := context(*a, **k), target=harness.offering(f.target))
    )
    rng = np.random.default_rng(4)
    for c, f, group, size, kernel, pads, strides in BORDERED:
        x, w = random(rng, dtype, (2, c, *size)), random(rng, "int8", (f, c // group, *kernel))
        w = narrow(rng, w.shape) if "quads" in row else w
        values = {"x": x, "w": w, "z": np.array(zero, dtype)}
        expected = convolved(x.astype(np.int64) - zero, w.astype(np.int64), group, pads, strides)
        model = harness.model_of(
            f"""{HEAD} ({declared(values)}) => (int32{list(expected.shape)} y) {{
            y = ConvInteger <pads = {list(pads)}, strides = {list(strides)}, group = {group}> (x, w, z) }}""",
            {"w": w, "z": values["z"]},
        )
        for threads in (1, 3):
            (found,) = harness.run_group(
                harness.implementation(f"conv_integer.{row}", REGISTRY),
                harness.group_of(model, REGISTRY),
                {"x": x},
                compiler,
                threads=threads,
                lanes=lanes,
            )
            np.testing.assert_array_equal(found, expected)


def test_lines_at_the_border_take_fewer_stretches() -> None:
    reduction = Reduction(4, ((1, 3), (0, 3), (0, 2)), columns=7)
    assert reduction.stretches(7) == (2, 3, 2)
    assert reduction.stretches(14) == (3, 2)
    assert reduction.stretches(21) == (3,)


@pytest.mark.parametrize("size", [7, 14, 28, 56])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_get_equal_shares(size: int, threads: int) -> None:
    """Blocks in turn, as a team cuts them: none takes a tenth more than an equal share."""
    lines = ((1, 3), *[(0, 3)] * (size - 2), (0, 2))
    vectors = 3584 // size // 16
    reduction = Reduction(144, lines, size)
    tiling = window_tiles.tiling(SHAPES[16], vectors, 16, reduction, Sharing(1, threads, far=False))
    rows, width = tiling.shape
    work = [
        sum(reduction.stretches(rows)[m // rows : (m + tiling.block_m) // rows])
        * sum(
            window_tiles.panels_of(vectors, width)[n // (width * 16) : (n + tiling.block_n) // (width * 16)]
        )
        for m in range(0, reduction.pixels, tiling.block_m)
        for n in range(0, vectors * 16, tiling.block_n)
    ]
    shares = [sum(work[len(work) * i // threads : len(work) * (i + 1) // threads]) for i in range(threads)]
    assert max(shares) <= 1.1 * sum(work) / threads
