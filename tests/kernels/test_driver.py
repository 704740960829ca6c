"""The compiled driver against NumPy, on one thread and on several."""

import time
from pathlib import Path

import numpy as np
import pytest

from app.kernels.cpu.compiler import Compiler
from app.kernels.cpu.driver import POSTED, Stretch, Team, compile_walk


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_run_in_order_and_share_their_units(tmp_path: Path, threads: int) -> None:
    compiler = Compiler(tmp_path)
    copy = compiler.compile("app.kernels.cpu.movement:copy", ("float32*", "float32*"))
    x = np.arange(1001, dtype=np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    team = Team(threads)
    rows = [(copy.address, False, x.size, (a.ctypes.data, b.ctypes.data)) for a, b in ((x, y), (y, z))]
    stretch = Stretch(compile_walk(), rows, team)
    for turn in range(200):
        z[:] = 0
        if turn % 20 == 0:  # about as long as threads wait before they sleep, and longer
            time.sleep(turn * 2e-5)
        stretch.run()
        np.testing.assert_array_equal(z, x)
    team.close()
    assert stretch.ticks[2] > stretch.ticks[1] > stretch.ticks[0] > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_no_rows_need_no_thread(threads: int) -> None:
    team = Team(threads)
    for _ in range(3):
        Stretch(compile_walk(), [], team).run()
    assert team.mail[POSTED] == 0
    team.close()
