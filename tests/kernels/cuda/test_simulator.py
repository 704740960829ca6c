"""The simulator finds what a GPU would not forgive, and has the compiler's names."""

from dataclasses import replace

import numpy as np
import pytest

from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.gemm import gemm
from app.kernels.cuda.kernel import Kernel, Launch, Ref
from app.kernels.cuda.product import Product
from tests.kernels.cuda.oracle import encoded, poisoned
from tests.kernels.cuda.simulator import SimulationError, simulate
from tests.kernels.cuda.twins import NAMES, from_bf16, to_bf16
from tests.needed import numba_cuda

pytestmark = pytest.mark.simulated


def launch(source: str, threads: int = 64, shared_bytes: int = 0, blocks: int = 1) -> Launch:
    kernel = Kernel("probe", source, ("float32*", "float32*"), threads, shared_bytes=shared_bytes)
    return Launch(kernel, (blocks, 1, 1), (Ref("x"), Ref("y")))


def test_names_of_compiler_and_simulator_are_the_same() -> None:
    numba_cuda()
    from app.kernels.cuda import primitives

    assert set(primitives.NAMES) == set(NAMES)


REVERSE = """
def kernel(x, y):
    s = shared_f32(uint32(0))
    i = thread()
    s[i] = x[i]
    {barrier}
    y[i] = s[uint32(63 - i)]
"""


def test_a_barrier_makes_shared_memory_visible() -> None:
    x, y = np.arange(64, dtype=np.float32), np.full(64, np.nan, np.float32)
    simulate(launch(REVERSE.format(barrier="sync()"), shared_bytes=256), {"x": x, "y": y})
    np.testing.assert_array_equal(y, x[::-1])


def test_a_missing_barrier_is_a_race() -> None:
    x, y = np.arange(64, dtype=np.float32), np.full(64, np.nan, np.float32)
    with pytest.raises(SimulationError, match="race in shared memory"):
        simulate(launch(REVERSE.format(barrier="pass"), shared_bytes=256), {"x": x, "y": y})


@pytest.mark.parametrize("wait", ["cp_wait(0)", "pass"])
def test_an_asynchronous_copy_lands_when_it_is_waited_for(wait: str) -> None:
    source = f"""
def kernel(x, y):
    s = shared_f32(uint32(0))
    i = uint32(thread() * 4)
    cp_async16(s, i, x, i, int32(12))
    cp_commit()
    {wait}
    a, b, c, d = ld_f32x4(s, i)
    st_f32x4(y, i, a, b, c, d)
"""
    x, y = np.arange(256, dtype=np.float32), np.full(256, 7, np.float32)
    simulate(launch(source, shared_bytes=1024), {"x": x, "y": y})
    expected = np.where(np.arange(256) % 4 == 3, np.float32(0), x)
    assert np.isnan(y).all() if wait == "pass" else (y == expected).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[thread() + 1] = x[0]", "outside"),
        ("y[int32(thread()) - 1] = x[0]", "outside"),
        ("st_f32x4(y, thread(), x[0], x[0], x[0], x[0])", "not aligned"),
        ("if thread() < 40:\n        sync_warp()", "deadlock"),
        ("if lane() < 4:\n        converged()", "deadlock"),
        ("if lane() < 4:\n        sync_warp()\n    else:\n        y[0] = warp_sum_f32(x[0])", "diverges"),
    ],
)
def test_what_a_gpu_would_not_forgive_is_an_error(body: str, message: str) -> None:
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(SimulationError, match=message):
        simulate(launch(f"def kernel(x, y):\n    {body}\n"), {"x": x, "y": y})


def test_shuffles_sum_a_warp() -> None:
    source = (
        "def kernel(x, y):\n    y[thread()] = warp_sum_f32(x[thread()]) + shfl_f32(x[thread()], uint32(3))\n"
    )
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    simulate(launch(source), {"x": x, "y": y})
    np.testing.assert_array_equal(y, np.repeat([496 + 3, 1520 + 35], 32))


def test_bfloat16_rounds_to_nearest_even() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, -3.1415927, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(
        from_bf16(to_bf16(x)), np.float32([1, 1, 1.015625, -3.140625, np.nan, np.inf])
    )


def over(source: str, blocks: int) -> None:
    """A kernel whose y is the memory of its x."""
    x = np.zeros(64 * blocks, np.float32)
    simulate(launch(source, blocks=blocks), {"x": x, "y": x})


@pytest.mark.parametrize(
    ("read", "barrier", "blocks"),
    [
        ("uint32(63 - i)", "pass", 1),  # of another thread
        ("(i + uint32(64)) % uint32(128)", "sync()", 2),  # of another block, in whichever order they run
    ],
)
def test_what_another_reads_must_not_be_overwritten(read: str, barrier: str, blocks: int) -> None:
    source = (
        "def kernel(x, y):\n    i = uint32(block_x() * 64 + thread())\n"
        f"    v = x[{read}]\n    {barrier}\n    y[i] = v\n"
    )
    with pytest.raises(SimulationError, match="race in"):
        over(source, blocks)


def test_what_the_same_thread_or_block_reads_may_be_overwritten() -> None:
    over(
        "def kernel(x, y):\n    i = uint32(block_x() * 64 + thread())\n    v = x[i]\n    y[i] = v\n", blocks=2
    )
    over(
        "def kernel(x, y):\n    i = uint32(63 - thread())\n    v = x[i]\n    sync()\n    y[thread()] = v\n",
        blocks=1,
    )


@pytest.mark.parametrize(
    ("line", "instead", "told"),
    [
        ("fence_shared()", "", "reads copies that no fence_shared"),
        ("wgmma_wait(1)", "", "race in shared memory|overwritten before"),
        ("wgmma_sums_n64(c)", "c", "read while it may still add"),
    ],
)
def test_what_a_warpgroup_must_wait_for_is_missed(line: str, instead: str, told: str) -> None:
    n, dtype = 64, "bfloat16"
    (step,) = gemm(Product(n, n, 400, 400, 400, n), "bf16", Epilogue(dtype), "64x64wg")
    assert line in step.kernel.source
    wrong = replace(step.kernel, source=step.kernel.source.replace(line, instead or "pass"))
    a, b, y = encoded(dtype, np.ones((n, 400))), encoded(dtype, np.ones((n, 400))), poisoned(dtype, n, n)
    with pytest.raises(SimulationError, match=told):
        simulate(replace(step, kernel=wrong), {"a": a, "b": b, "y": y})
