"""The benchmark of a GPU on a made-up driver, and `stowplan bench` as far as it runs without a GPU."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.main import main
from app.engine.runtime import capabilities
from app.engine.runtime.cuda import driver
from app.kernels.cuda import compiler as compilation
from app.kernels.cuda.compiler import MANIFEST
from app.kernels.cuda.kernel import Kernel
from benchmarks import cuda_h200
from tests.engine.runtime.cuda.devices import FakeDevice
from tests.engine.runtime.cuda.fake_driver import KERNEL_SECONDS, cubin, gpu, on_the_fake_driver, process
from tests.engine.runtime.cuda.programs import saved


class Fake(FakeDevice):
    driver, processors = "13.0", 132


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(
        tmp_path, "y = MatMul(x, w)", "float[8,16] x", "float[8,16] y", {"w": np.eye(16, dtype=np.float32)}
    )


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fills a folder by `--compile-only`; machine code is without instructions."""
    known: dict[str, Kernel] = {}
    report = "Used 32 registers, 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    monkeypatch.setattr(compilation, "ptx", lambda k: known.setdefault(repr(k), k) and repr(k))
    monkeypatch.setattr(compilation, "linked", lambda text, sm: (cubin(known[text], sm), report))
    monkeypatch.setattr(driver, "libraries", lambda: pytest.fail("a device was asked for"))

    def fill(*arguments: str) -> Path:
        folder = tmp_path / "kernels"
        given = ["--compile-only", "--processes", "1", "--kernels", str(folder), "--small", *arguments]
        assert cuda_h200.main(given) == 0
        return folder

    return fill


def measured(
    fake: Path, folder: Path, *arguments: str, **environment: str
) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and output of the benchmark on the fake driver, with kernels of a folder."""
    report = folder / "out" / "report.json"
    given = ("--trust", "--kernels", str(folder), "--json", str(report), "--small", *arguments)
    done = process(fake, "-m", "benchmarks.cuda_h200", *given, **environment)
    assert report.exists(), done.stdout
    return done.returncode, json.loads(report.read_text()), done.stdout


def test_compiled_without_a_gpu_all_rows_are_measured_from_that_folder_alone(
    model: Path, fake: Path, kernels: Any
) -> None:
    """No row fails on the driver's side; results are wrong, for no kernel computes anything."""
    folder = kernels(str(model))
    code, told, output = measured(fake, folder, str(model))
    assert code == 1
    assert told["versions"]["gpu"] == "Fake GPU"
    assert "numba-cuda: " in output
    notes: dict[str, list[str]] = {}
    for row in told["rows"]:
        notes.setdefault(row["section"], []).append(row["note"])
    assert notes["check"] == ["WRONG"] * len(list(cuda_h200.checked_cases())) * 4
    counts = {section: len(found) for section, found in notes.items() if section != "check"}
    assert counts == {"product": 2, "conv": 2, "memory": 4, "model": 2}
    assert not [row for row in told["rows"] if row["note"].startswith("FAILED")]
    assert not told["left_out"]
    # One kernel each: exactly its time on the made-up device, whatever this machine is doing.
    steps = [row["seconds"] for row in told["rows"] if row["section"] == "memory"]
    np.testing.assert_allclose(steps, KERNEL_SECONDS, rtol=1e-3)


def test_a_row_that_loses_the_device_costs_no_other_and_names_the_kernel_and_the_step(
    fake: Path, kernels: Any
) -> None:
    folder = kernels("--only", "n f32")
    code, told, _ = measured(fake, folder, "--only", "n f32", FAKE_CUDA_FAULT="elementwise")
    assert code == 1
    assert [row["name"] for row in told["rows"]] == ["chain", "attention"]
    lost, after = (row["note"] for row in told["rows"])
    assert after == "WRONG"  # it ran
    assert lost.startswith("FAILED: ")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in lost
    assert "launched one by one: FAILED: KernelError: step " in lost
    assert "kernel 'elementwise" in lost
    assert "threads with" in lost


def test_a_kernel_that_never_ends_costs_its_row_alone(fake: Path, kernels: Any) -> None:
    folder = kernels("--only", "memory")
    given = ("--only", "memory", "--patience", "20")
    _, told, output = measured(fake, folder, *given, FAKE_CUDA_HANG="softmax")
    notes = {row["name"]: row["note"] for row in told["rows"]}
    assert notes.pop("softmax") == "FAILED: the process that measured ended: no answer within 20 s", output
    assert set(notes) == {"x * s + x", "relu", "layer norm"}
    assert not [note for note in notes.values() if "FAILED" in note]


def test_a_folder_that_lacks_a_kernel_or_the_manifest_is_told(
    fake: Path, kernels: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kernels("--only", "memory relu")
    code, told, _ = measured(fake, folder, "--only", "memory softmax")
    assert code == 1
    (row,) = told["rows"]
    assert "is trusted and has no cubin of kernel" in row["note"]
    (folder / "cuda" / MANIFEST).unlink()
    with pytest.raises(SystemExit):
        cuda_h200.main(["--trust", "--kernels", str(folder)])
    assert "has no toolkit.json" in capsys.readouterr().err


def test_a_program_that_cannot_be_compiled_is_told_before_there_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_kernel: Kernel) -> str:
        raise compilation.KernelError("too many registers")

    monkeypatch.setattr(compilation, "ptx", refuse)
    given = [
        "--compile-only",
        "--processes",
        "1",
        "--kernels",
        str(tmp_path),
        "--only",
        "memory relu",
        "--small",
    ]
    assert cuda_h200.main(given) == 1
    told = capsys.readouterr().out
    assert "too many registers" in told
    assert "0 kernels for sm_90" in told


def test_a_report_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        cuda_h200.main(["--kernels", str(tmp_path), "--json", str(tmp_path / "file" / "report.json")])
    assert "--json: " in capsys.readouterr().err


@on_the_fake_driver
def test_torch_is_timed_as_our_own_work_is(folder: Path) -> None:
    """On the same stream, behind other work: none of the host's time is in it."""
    import contextlib
    from types import SimpleNamespace

    device = gpu()
    address = device.allocate(1 << 20)
    streams: list[object] = []
    cuda = SimpleNamespace(
        ExternalStream=lambda handle: handle, stream=lambda s: contextlib.nullcontext(streams.append(s))
    )
    torch = SimpleNamespace(no_grad=contextlib.nullcontext, cuda=cuda)
    bench = cuda_h200.Bench(device, None, False, torch)  # type: ignore[arg-type]
    fill = lambda: device.fill(address, 4, 0)  # noqa: E731
    seconds, note = cuda_h200.peer(bench, lambda: fill)
    assert not note
    np.testing.assert_allclose(seconds, device.elapsed([fill])[0], rtol=1e-3)
    np.testing.assert_allclose(seconds, 1.5e-6, rtol=1e-3)
    assert streams == [device.stream]

    def fails() -> Any:
        raise RuntimeError("no compiler")

    assert cuda_h200.peer(bench, fails) == (None, "peer failed: RuntimeError: no compiler")
    assert cuda_h200.peer(cuda_h200.Bench(device, None, False, None), fails) == (None, "")  # type: ignore[arg-type]


def test_without_torch_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_h200.importlib.util, "find_spec", lambda _: None)
    assert cuda_h200.torch_module() is None
    assert "torch is not installed" in capsys.readouterr().out


def test_what_does_not_fit_the_time_is_left_out(fake: Path, kernels: Any) -> None:
    folder = kernels("--only", "memory")
    code, told, output = measured(fake, folder, "--seconds", "0", "--only", "memory")
    assert code == 0
    assert [name.split()[0] for name in told["left_out"]] == ["memory"] * 4
    assert not told["rows"]
    assert "left out, for want of time: memory x * s + x f32" in output


def test_without_a_gpu_both_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "absent", lambda _sm: "no GPU 0 answers on this machine")
    assert cuda_h200.main(["--kernels", str(tmp_path)]) == 2
    assert "no GPU 0 answers" in capsys.readouterr().err
    assert main(["bench", "--target", "cuda"]) == 2
    assert "no GPU 0 answers" in capsys.readouterr().out


def test_bench_times_a_model_where_its_target_is(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path))
    monkeypatch.setattr(capabilities, "absence", lambda _t: None)
    opened: list[Any] = []
    monkeypatch.setattr(driver, "open_gpu", lambda *_: opened.append(Fake()) or opened[-1])
    assert main(["bench", "--target", "cuda", "--seconds", "0.01", str(model)]) == 0
    assert "cuda.matmul_of_few_rows" in capsys.readouterr().out
    assert opened[0].log.of("replay")
    assert opened[0].log.of("close")
