"""The compiled driver against NumPy, on one thread and on several."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from app.kernels.cpu.runtime import driver
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import Team, compile_dispatch_loop
from app.kernels.cpu.runtime.kernel_sequence import KernelRow, KernelSequence


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_run_in_order_and_share_their_units(tmp_path: Path, threads: int) -> None:
    compiler = Compiler(tmp_path)
    copy = compiler.compile("app.kernels.cpu.movement:copy", ("float32*", "float32*"))
    x = np.arange(1001, dtype=np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    team = Team(threads)
    rows = [KernelRow(copy.address, x.size, (a.ctypes.data, b.ctypes.data)) for a, b in ((x, y), (y, z))]
    stretch = KernelSequence(compile_dispatch_loop(), rows, team)
    for turn in range(200):
        z[:] = 0
        if turn % 20 == 0:  # about as long as threads wait before they sleep, and longer
            time.sleep(turn * 2e-5)
        stretch.run()
        np.testing.assert_array_equal(z, x)
    team.close()
    assert (stretch.ticks > 0).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stretch_may_have_no_rows(threads: int) -> None:
    team = Team(threads)
    for _ in range(3):
        KernelSequence(compile_dispatch_loop(), [], team).run()
    team.close()


def test_rows_that_are_not_shared_run_on_the_calling_thread(tmp_path: Path) -> None:
    kernel = Compiler(tmp_path).compile(
        "tests.kernels.test_driver:note_thread", ("int64*",), takes_thread=True
    )
    x, y = np.full(64, -1, np.int64), np.full(64, -1, np.int64)
    team = Team(2)
    rows = [KernelRow(kernel.address, 64, (a.ctypes.data,), a is y) for a in (x, y)]
    stretch = KernelSequence(compile_dispatch_loop(), rows, team)
    for _ in range(50):
        stretch.run()
        np.testing.assert_array_equal(x, 0)
        # Each share was run by one thread, whichever it was.
        assert all(len(set(share)) == 1 for share in np.split(y, 2))
        assert set(y) <= {0, 1}
    team.close()


@pytest.mark.skipif(driver._core_of_caller is None, reason="the system does not tell which core runs")
@pytest.mark.parametrize("pinned", [False, True])
def test_helpers_keep_off_the_core_of_the_calling_thread(tmp_path: Path, pinned: bool) -> None:
    kernel = Compiler(tmp_path).compile(
        "tests.kernels.test_driver:note_thread", ("int64*",), takes_thread=True
    )
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core")
    team = Team(2, sorted(allowed) if pinned else ())
    x = np.zeros(64, np.int64)
    stretch = KernelSequence(compile_dispatch_loop(), [KernelRow(kernel.address, 64, (x.ctypes.data,))], team)
    (helper,) = (t.native_id for t in team._members)
    assert helper is not None
    try:
        for core in sorted(allowed)[:2] * 2:
            os.sched_setaffinity(0, {core})
            stretch.run()
            kept = os.sched_getaffinity(helper)
            assert core not in kept
            assert len(kept) == (1 if pinned else len(allowed) - 1)
    finally:
        os.sched_setaffinity(0, allowed)
        team.close()


def test_a_helper_sleeps_when_nothing_runs_and_is_woken_by_the_next_run(tmp_path: Path) -> None:
    copy = Compiler(tmp_path).compile("app.kernels.cpu.movement:copy", ("float32*", "float32*"))
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    team = Team(2)
    asleep = team.mailbox[driver.THREADS + driver.LINE + driver.ASLEEP :]
    stretch = KernelSequence(
        compile_dispatch_loop(), [KernelRow(copy.address, 64, (x.ctypes.data, y.ctypes.data))], team
    )
    for _ in range(5):
        deadline = time.perf_counter() + 10
        while not asleep[0] and time.perf_counter() < deadline:
            time.sleep(1e-3)
        assert asleep[0]
        y[:] = 0
        stretch.run()
        np.testing.assert_array_equal(y, x)
    team.close()
    assert not any(member.is_alive() for member in team._members)


def test_a_helper_is_woken_before_there_is_work(tmp_path: Path) -> None:
    """Where there will be any for it."""
    team, x = Team(2), np.full(64, -1.0, np.float32)
    asleep = team.mailbox[driver.THREADS + driver.LINE + driver.ASLEEP :]
    note = Compiler(tmp_path).compile(
        "tests.kernels.test_driver:note_thread", ("float32*",), takes_thread=True
    )
    row = KernelRow(note.address, 64, (x.ctypes.data,))
    KernelSequence(compile_dispatch_loop(), [row._replace(shared=False)], team).wake()
    assert asleep[0]
    stretch = KernelSequence(compile_dispatch_loop(), [row], team)
    deadline = time.perf_counter() + 10
    while asleep[0] and time.perf_counter() < deadline:
        stretch.wake()
    assert not asleep[0]
    stretch.run()
    assert set(x) <= {0, 1}
    team.close()
    assert not any(member.is_alive() for member in team._members)


def note_thread(x, begin, end, thread):
    for i in range(begin, end):
        x[i] = thread
