"""What takes long in the reference evaluator is bounded and told, and no phase is silent meanwhile."""

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.entry import execution, optimize
from app.engine.planning import heartbeat, session, verification
from app.engine.planning.heartbeat import Heartbeat
from app.engine.runtime import benchmark, oracle
from app.engine.types.deadline import TimeUpError, limited
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.jobs.worker import benchmark_lock
from app.jobs.worker.benchmark_lock import WAITING, BenchmarkLock
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import saved
from tests.engine.planning.test_verification import FILES, integer, old_cpu, optimized

__all__ = ["old_cpu"]  # a fixture

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
Json = dict[str, Any]
Told = list[tuple[str, int, int]]


def in_reference(folder: Path) -> Path:
    """A model that runs in the reference evaluator where that is the only backend."""
    text = f"{HEAD} g (float[4,8] x) => (float[4,8] y) {{ a = Relu(x) y = CumSum(a, axis) }}"
    return saved(text, folder, {"axis": np.array(1)})


def run(path: Path, compiler: Compiler, **options: Any) -> Json:
    asked = Options(autotune=False, benchmark_seconds=0.05, backends=("reference",), **options)
    return optimize.optimize(path, host(), asked, Bindings(), path.parent, kernels=compiler.cache)


def endless() -> None:
    while True:
        with contextlib.suppress(Exception):  # what is ended may catch all it likes
            ...


def test_python_code_is_ended_when_its_time_is_up() -> None:
    before = sys.gettrace()
    with pytest.raises(TimeUpError), limited(0.02):
        endless()
    assert sys.gettrace() is before
    with limited(60):
        assert sum(range(10)) == 45
    assert sys.gettrace() is before


@pytest.mark.usefixtures("old_cpu")
def test_an_original_that_takes_too_long_is_not_verified_and_says_so(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "REFERENCE_SECONDS", -1.0)
    found = optimized(integer(tmp_path), compiler)["verification"]
    assert found["status"] == "not verified"
    assert found["unverified"].keys() == {"outputs", *FILES}
    assert "reference evaluator" in found["unverified"]["outputs"]
    assert "not verified because" in page(tmp_path) or "was not verified" in page(tmp_path)


def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


@pytest.mark.usefixtures("old_cpu")
def test_exports_that_take_too_long_are_not_verified_and_say_so(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = oracle.original

    def slow(*arguments: Any, seconds: float) -> Any:
        found = original(*arguments)
        monkeypatch.setattr(time, "monotonic", lambda: 1e9)  # a long time has passed
        return found

    monkeypatch.setattr(oracle, "original", slow)
    found = optimized(integer(tmp_path), compiler)["verification"]
    assert found["status"] == "partly verified"
    assert [row["ok"] for row in found["outputs"]] == [True]
    assert found["unverified"].keys() == set(FILES)


def test_a_program_that_takes_too_long_is_neither_verified_nor_measured_and_says_so(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_reference(tmp_path)
    assert run(path, compiler)["verification"]["status"] == "verified"
    monkeypatch.setattr(execution, "REFERENCE_SECONDS", -1.0)
    for verify in (True, False):
        summary = run(path, compiler, verify=verify)
        assert summary["timings"] == "predicted"
        (note,) = (
            n for n in summary["notes"] if n.startswith("not measured because a run of the program takes")
        )
        assert "reference evaluator" in note
        if verify:
            assert summary["verification"]["status"] == "partly verified"
            assert summary["verification"]["unverified"].keys() == {"outputs"}


def test_progress_is_told_again_while_nothing_new_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SILENCE", 0.0)
    monkeypatch.setattr(heartbeat, "LOOK", 0.001)
    told: Told = []
    again = threading.Event()

    def tell(*step: Any) -> None:
        told.append(step)
        if len(told) > 3:
            again.set()

    with Heartbeat(tell) as heart:
        heart.progress("verify", 1, 3)
        assert again.wait(30)
    assert set(told) == {("verify", 1, 3)}
    count = len(told)
    time.sleep(0.02)
    assert len(told) == count, "nothing is told after the end"


def test_progress_is_not_told_by_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SILENCE", 0.0)
    monkeypatch.setattr(heartbeat, "LOOK", 0.001)
    inside, most = 0, 0

    def tell(*_: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.005)
        inside -= 1

    with Heartbeat(tell) as heart:
        for done in range(10):
            heart.progress("tune", done, 10)
            time.sleep(0.002)
    assert most == 1


@pytest.mark.parametrize("phase", ["load", "verify"])
def test_no_phase_of_a_job_is_silent(
    phase: str, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "SILENCE", 0.0)
    monkeypatch.setattr(heartbeat, "LOOK", 0.001)
    module, name = {"load": (optimize, "load"), "verify": (oracle, "original")}[phase]
    work = getattr(module, name)
    heard = threading.Event()
    working = False

    def slow(*arguments: Any, **named: Any) -> Any:
        nonlocal working
        working = True
        assert heard.wait(30), "nothing was told meanwhile"
        return work(*arguments, **named)

    def progress(at: str, _done: int, _total: int) -> None:
        if working and at == phase:
            heard.set()

    monkeypatch.setattr(module, name, slow)
    options = Options(timings="predicted", autotune=False)
    path = in_reference(tmp_path)
    optimize.optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache, progress=progress)


def test_a_job_that_waits_for_its_turn_tells_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_lock, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(benchmark_lock, "TELL", 1)
    told: list[str] = []
    thrice = threading.Event()

    def tell(phase: str, _done: int, _total: int) -> None:
        told.append(phase)
        if told.count(WAITING) == 3:
            thrice.set()

    first, second = BenchmarkLock(tmp_path / "lock", lambda *_: None), BenchmarkLock(tmp_path / "lock", tell)
    first.progress("benchmark", 0, 1)
    thread = threading.Thread(target=second.progress, args=("benchmark", 0, 1))
    thread.start()
    assert thrice.wait(30)
    first.progress("benchmark", 1, 1)
    thread.join(30)
    assert told[-1] == "benchmark"
    second.progress("report", 0, 1)


def test_a_long_call_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "LONG", -1.0)
    monkeypatch.setattr(benchmark, "PATIENCE", -1.0)
    calls: list[int] = []
    samples = benchmark.measure_in_turn([lambda: calls.append(1)], 0.0)
    assert len(calls) == len(samples[0].seconds) == 1


def test_whether_libraries_run_is_not_awaited_for_long(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FIRST_SECONDS", -1.0)
    options = Options(timings="predicted", autotune=False, backends=("onnxruntime", "reference"))
    found = optimize.optimize(
        in_reference(tmp_path), host(), options, Bindings(), tmp_path, kernels=compiler.cache
    )
    assert found["steps"]["library"] == 1
    assert found["verification"]["status"] == "verified"
