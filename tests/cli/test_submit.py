"""What `stowplan optimize` understands, and what it says when it does not."""

import argparse
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from rich.console import Console

from app.api.schemas.jobs import BindingsRequest, InputStorage, JobOptions
from app.cli import bench, service, submit, sweep
from app.cli.console import milliseconds, precision_lines, slowest
from app.cli.main import main
from app.client import Job
from app.engine.types.storage import DeclaredStorage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either an ONNX file or --sample"),
        (["m.onnx", "--sample", "squeezenet"], "either an ONNX file or --sample"),
        (["m.onnx", "--input", "x"], "expected NAME=VALUE, found 'x'"),
        (["m.onnx", "--input", "x=1xtwo"], "expected dimensions such as 1x3x224x224, found '1xtwo'"),
        (["m.onnx", "--value", "sr=fast"], "expected a number, true or false, found 'fast'"),
        (["m.onnx", "--range", "ids=5"], "expected LOW:HIGH, found '5'"),
        (
            ["m.onnx", "--storage", "x=csr"],
            "expected csr:ELEMENTS, row_sparse:ROWS or a share such as csr:0.01",
        ),
        (["m.onnx", "--value-storage", "h=coo:5"], "--value-storage h: expected csr:ELEMENTS"),
        (["m.onnx", "--storage", "x=coo:5"], "or a share such as csr:0.01, found 'coo:5'"),
    ],
)
def test_what_cannot_be_understood_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_no_service_at_the_address_is_told_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "--sample", "squeezenet", "--url", "http://127.0.0.1:9"]) == 2
    assert "make run" in capsys.readouterr().err


@pytest.mark.parametrize("command", [submit, sweep], ids=["optimize", "sweep"])
def test_backends_and_how_they_are_chosen_are_asked_for_on_the_command_line(command: object) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)  # type: ignore[attr-defined]
    line = ["m.onnx", "--backends", "numba-cpu,onnxruntime", "--choose", "measured"]
    asked = submit.request(parser.parse_args(line))["options"]
    options = JobOptions(**asked).to_options()
    assert (options.backends, options.choose) == (("numba-cpu", "onnxruntime"), "measured")
    usual = submit.request(parser.parse_args(["m.onnx"]))["options"]
    assert "backends" not in usual
    assert "choose" not in usual


def test_a_quick_job_is_asked_for_on_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    for line, quick in ((["m.onnx", "--quick"], True), (["m.onnx"], False)):
        asked = submit.request(parser.parse_args(line))["options"]
        assert JobOptions(**asked).to_options().quick is quick


@pytest.mark.parametrize(("text", "budget"), [("1%", 0.01), ("0.5%", 0.005), ("0.02", 0.02)])
def test_an_error_budget_is_asked_for_on_the_command_line(text: str, budget: float) -> None:
    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    line = ["m.onnx", "--error-budget", text, "--error-metric", "cosine"]
    options = JobOptions(**submit.request(parser.parse_args(line))["options"]).to_options()
    assert (options.error_budget, options.error_metric) == (pytest.approx(budget), "cosine")
    usual = JobOptions(**submit.request(parser.parse_args(["m.onnx"]))["options"]).to_options()
    assert usual.error_budget is None


@pytest.mark.parametrize("text", ["0", "-1%", "101%", "little", "nan"])
def test_an_error_budget_that_is_no_share_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["m.onnx", f"--error-budget={text}"])
    assert f"expected a share above 0 such as 0.01 or 1%, found {text!r}" in capsys.readouterr().err


def test_names_of_a_model_are_printed_as_they_are() -> None:
    job = SimpleNamespace(state="failed", code="graph-invalid", pointer="node:x:[/b]", detail="'[/a]' :x:")
    console = Console(record=True, width=200, emoji=False)
    submit._show(None, job, Path(), console)  # type: ignore[arg-type]  # what it reads of a job
    operator = {"name": "[/a]", "implementation": "[b]", "seconds": 2e-7, "share": 1.0}
    console.print(slowest({"operators": [operator], "timings": "predicted"}))
    told = console.export_text()
    assert "failed graph-invalid at node:x:[/b]: '[/a]' :x:" in told
    assert "[/a]  [b]" in told


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0251, "25.100 ms"), (1e-4, "0.100 ms"), (1.18e-7, "118 ns")]
)
def test_short_latencies_keep_their_digits(seconds: float | None, text: str) -> None:
    assert milliseconds(seconds) == text


def test_the_choice_under_an_error_budget_is_told_after_its_warnings() -> None:
    choice = {"warnings": ["of one sample"], "sentence": "precision: float32, as slower"}
    told = [line.plain for line in precision_lines(choice)]
    assert told == ["warning: of one sample", "precision: float32, as slower"]
    assert list(precision_lines(None)) == []


def test_sparse_inputs_are_declared_on_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    line = ["m.onnx", "--storage", "x=csr:5000", "--storage", "y=csr:0.5", "--storage", "g=row_sparse:64"]
    asked = submit.request(parser.parse_args(line))["input_storage"]
    declared = {name: InputStorage(**stated).to_declared() for name, stated in asked.items()}
    assert declared["x"] == DeclaredStorage("csr", 5000)
    assert declared["y"] == DeclaredStorage("csr", density=0.5)
    assert declared["g"] == DeclaredStorage("row_sparse", 64)
    line = ["m.onnx", "--value-storage", "h=csr:0.5"]
    assert submit.request(parser.parse_args(line))["value_storage"] == {
        "h": {"storage": "csr", "density": 0.5}
    }


def test_symbols_are_asked_for_on_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    line = ["m.onnx", "--input", "ids=N<=8,L:8..512%8", "--input", "x=1,3,H:32..640%32,H", "--input", "z=2x3"]
    asked = submit.request(
        parser.parse_args([*line, "--input", "one=N", "--input", "two=2*N+1", "--input", "s="])
    )
    assert asked["input_shapes"] == {
        "ids": ["N<=8", "L:8..512%8"],
        "x": [1, 3, "H:32..640%32", "H"],
        "z": [2, 3],
        "one": ["N"],
        "two": ["2*N+1"],
        "s": [],
    }
    assert BindingsRequest(input_shapes=asked["input_shapes"]).input_shapes == asked["input_shapes"]
    with pytest.raises(ValueError, match="symbol 'H' has no bounds"):
        BindingsRequest(input_shapes={"x": [1, "H"]})


def test_the_name_of_a_library_cannot_leave_the_folder_of_artifacts(tmp_path: Path) -> None:
    written: list[Path] = []
    client = SimpleNamespace(download=lambda _job, _name, path: written.append(path))
    exports = {"module.whl": {"filename": "../../other.whl"}}
    job = SimpleNamespace(id="1", artifacts=("plan.json", "module.whl"), summary={"exports": exports})
    submit.download(client, job, tmp_path)  # type: ignore[arg-type]  # what it uses of both
    assert written == [tmp_path / "plan.json", tmp_path / "other.whl"]


def test_an_exported_job_leaves_its_libraries_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = {
        "module.whl": {"filename": "../net-1-py3-none-any.whl"},
        "../../secret": {"filename": "secret"},  # no artifact of the job
    }
    summary = {"exports": exports}
    job = Job(**dict.fromkeys((f.name for f in fields(Job)), None))  # type: ignore[arg-type]
    job = replace(job, id="2", state="succeeded", artifacts=("plan.json", "module.whl"), summary=summary)
    asked: list[object] = []
    written: list[Path] = []

    def export(*given: object, **named: object) -> Job:
        asked.append((given, named))
        return job

    client = SimpleNamespace(
        job=lambda _id: replace(job, model_name="net.onnx"),
        export=export,
        wait=lambda _id: job,
        download=lambda _job, _name, path: written.append(path),
    )
    parser = argparse.ArgumentParser()
    submit.add_export(parser)
    arguments = parser.parse_args(["1", "--format", "wheel,ort", "--out", str(tmp_path)])
    with mock.patch.object(service, "Client", return_value=nullcontext(client)):
        assert submit.export(arguments) == 0
    assert asked == [(("1", ["wheel", "ort"]), {"name": "net"})]
    assert written == [tmp_path / "net-1-py3-none-any.whl"]
    assert capsys.readouterr().out == f"{written[0]}\n"


def test_a_list_of_backends_with_a_hole_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["optimize", "m.onnx", "--backends", "numba-cpu,,reference"])
    assert "names with commas" in capsys.readouterr().err


def test_a_benchmark_names_its_backends() -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    assert parser.parse_args(["--backends", "numba-cpu"]).backends == ["numba-cpu"]


def test_expected_shapes_are_told_on_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    line = ["m.onnx", "--input", "ids=N<=8,L<=512", "--shape-histogram", "N=1,L=128:0.9"]
    asked = submit.request(parser.parse_args([*line, "--shape-histogram", "N=8,L=64:0.1"]))
    expected = [{"sizes": {"N": 1, "L": 128}, "weight": 0.9}, {"sizes": {"N": 8, "L": 64}, "weight": 0.1}]
    assert asked["shape_histogram"] == expected
    shapes = asked["input_shapes"]
    found = BindingsRequest(input_shapes=shapes, shape_histogram=expected)
    assert [e.model_dump() for e in found.shape_histogram] == expected
    with pytest.raises(ValueError, match="N=9, L=1 is no shape of N:1..8, L:1..512"):
        BindingsRequest(input_shapes=shapes, shape_histogram=[{"sizes": {"N": 9, "L": 1}, "weight": 1}])
    with pytest.raises(ValueError, match="expected N=1,L=128:0.9, found 'N=1'"):
        submit.request(parser.parse_args([*line, "--shape-histogram", "N=1"]))
