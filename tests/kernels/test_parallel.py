"""Helper processes fill the cache; what several processes want is compiled once."""

import io
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.kernels.cpu.runtime import parallel
from app.kernels.cpu.runtime.compiler import Compiler, Request, call
from app.kernels.cpu.runtime.parallel import helped

KINDS = ("float32", "float64", "int32", "int64", "uint8", "int16")
COPIES: list[Request] = [
    ("app.kernels.cpu.movement:copy", (f"{kind}*", f"{kind}*"), None, False) for kind in KINDS
]


def test_helpers_fill_the_cache_with_working_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(tmp_path, processes=2)
    with helped(compiler, COPIES):
        pass  # all of it is the helper's
    assert compiler.count() == len(COPIES)
    loaded = Compiler(tmp_path, processes=1)
    monkeypatch.setattr(loaded, "_make", None)
    for kind, (kernel, types, static, takes_thread) in zip(KINDS, COPIES):
        assert loaded.has(kernel, types, static, takes_thread)
        compiled = loaded.compile(kernel, types, static, takes_thread=takes_thread)
        x = np.arange(9).astype(kind)
        y = np.zeros_like(x)
        call(compiled, x.ctypes.data, y.ctypes.data, 0, x.size)
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("missing", "processes", "expected"), [(6, 1, 0), (3, 2, 0), (4, 2, 1), (9, 9, 3)])
def test_helpers_are_started_for_work_that_is_worth_it(
    missing: int, processes: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes: list[io.StringIO] = []

    class Helper:
        def __init__(self, *_arguments: object, **_options: object) -> None:
            self.stdin = io.StringIO()
            pipes.append(self.stdin)

        wait = kill = communicate = lambda _self: None

    monkeypatch.setattr(parallel.subprocess, "Popen", Helper)
    requests: list[Request] = [(f"app.kernels.none:{i}", (), None, False) for i in range(missing)]
    with helped(Compiler(tmp_path, processes=processes), requests):
        pass
    started = [[parallel.tuples(r) for r in json.loads(pipe.getvalue())[-1]] for pipe in pipes]
    assert len(started) == expected
    assert all(Counter(order) == Counter(requests) for order in started)
    assert len({order[0] for order in started} | {requests[0]}) == expected + 1  # all begin elsewhere


ASKING = """
import sys, time
from pathlib import Path
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.parallel import helped
requests = [("tests.kernels.test_parallel:emit_slow", (), (i, sys.argv[1]), False) for i in range(4)]
with helped(Compiler(Path(sys.argv[1]), processes=2), requests):
    time.sleep(60)
"""


def emit_slow(number: int, folder: str) -> str:
    """A generator that takes longer than any test; a file tells that it has begun."""
    Path(folder, f"begun{number}").touch()
    time.sleep(60)
    return ""


def test_helpers_end_with_the_process_that_asked(tmp_path: Path) -> None:
    asking = subprocess.Popen([sys.executable, "-c", ASKING, str(tmp_path)])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("begun*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    helpers = psutil.Process(asking.pid).children()
    asking.kill()
    asking.wait()
    gone, alive = psutil.wait_procs(helpers, timeout=20)
    for process in alive:
        process.kill()
    assert len(gone) == 1
