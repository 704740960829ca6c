"""Jobs, models, targets and sweeps from the command line: what programs and people read of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from app.cli.sweep import option_sets
from tests.jobs.service import Served

Output = pytest.CaptureFixture[str]


def told(service: Served, output: Output, *arguments: str, code: int = 0) -> Any:
    """What a command answers to a program."""
    assert main([*arguments, "--json", "--url", str(service.http.base_url)]) == code
    return json.loads(output.readouterr().out)


def test_jobs_are_listed_shown_waited_for_and_run_again(service: Served, capsys: Output) -> None:
    good, bad = service.submit("ok manage"), service.submit("fail manage")
    jobs = told(service, capsys, "jobs", "wait", good, bad, code=1)
    assert [j["state"] for j in jobs] == ["succeeded", "failed"]
    assert told(service, capsys, "jobs", "wait", good)[0]["id"] == good
    assert told(service, capsys, "jobs", "show", bad)[0]["code"] == "input-invalid"
    listed = told(service, capsys, "jobs", "list", "--model", jobs[0]["model"], "--limit", "1")
    assert [j["id"] for j in listed] == [good]
    again = told(service, capsys, "jobs", "retry", bad)[0]
    assert (again["group"], again["id"] != bad) == (jobs[1]["group"], True)
    assert told(service, capsys, "jobs", "wait", again["id"], code=1)[0]["state"] == "failed"


def test_a_wait_that_is_too_short_ends_with_a_code_of_its_own(service: Served, capsys: Output) -> None:
    job = service.submit("sleep 600")
    url = str(service.http.base_url)
    assert main(["jobs", "wait", job, "--timeout", "0.1", "--url", url]) == 3
    assert job in capsys.readouterr().err
    told(service, capsys, "jobs", "cancel", job)
    assert told(service, capsys, "jobs", "wait", job, code=1)[0]["state"] == "cancelled"
    assert told(service, capsys, "jobs", "delete", job) == {"deleted": [job]}
    assert main(["jobs", "show", job, "--url", url]) == 1
    assert "job-not-found" in capsys.readouterr().err


def test_artifacts_are_listed_and_downloaded(service: Served, capsys: Output, tmp_path: Path) -> None:
    job = service.submit("ok artifacts")
    service.end(job)
    assert told(service, capsys, "jobs", "artifacts", job) == ["decisions.json", "plan.json", "report.html"]
    files = told(service, capsys, "jobs", "artifacts", job, "plan.json", "--out", str(tmp_path / "new"))
    assert [Path(f).read_text() for f in files] == ['{"schema": 1}']


def test_models_and_targets_are_managed(service: Served, capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("ok managed")
    model = told(service, capsys, "models", "upload", str(path))
    assert model["state"] == "ready"
    assert model["id"] in [m["id"] for m in told(service, capsys, "models", "list")]
    assert told(service, capsys, "models", "show", model["id"])["report"]["nodes"] == 2
    assert told(service, capsys, "models", "delete", model["id"]) == {"deleted": [model["id"]]}
    path.write_text("bad")
    assert told(service, capsys, "models", "upload", str(path), code=1)["state"] == "invalid"
    (tmp_path / "target.json").write_text('{"name": "managed-board", "cores": 3}')
    assert told(service, capsys, "targets", "add", str(tmp_path / "target.json"))["cores"] == 3
    assert told(service, capsys, "targets", "show", "managed-board")["origin"] == "described"
    assert "managed-board" in [t["name"] for t in told(service, capsys, "targets", "list")]


def test_a_sweep_ends_with_its_best_job(service: Served, capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("fail-threads 4")
    common = ["sweep", str(path), "--vary", "threads=1,2,4", "--target", "host", "--fresh"]
    group = told(service, capsys, *common, "--out", str(tmp_path / "best"), "--max-memory", "1500")
    assert group["counts"] == {"succeeded": 2, "failed": 1}
    assert [(j["options"]["threads"], j["rank"]) for j in group["jobs"]] == [(1, 1), (2, None), (4, None)]
    assert group["best"] == group["jobs"][0]["job"]
    assert (tmp_path / "best" / "plan.json").exists()
    assert main([*common, "--max-memory", "1", "--url", str(service.http.base_url)]) == 1
    table = capsys.readouterr().out
    assert "at most 1 byte are allowed" in table
    assert "no 4 threads" in table


def test_tables_for_people_are_not_cut(service: Served, capsys: Output) -> None:
    job = service.submit("ok table")
    service.end(job)
    model = service.job(job)["model"]
    assert main(["jobs", "list", "--model", model, "--url", str(service.http.base_url)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if job in line)
    assert model in row
    assert "succeeded" in row


def test_option_sets_are_all_combinations_and_those_given_as_a_whole() -> None:
    assert option_sets(["threads=1,2", "precision=f32,bf16"], ['{"seed": 3}']) == [
        {"threads": 1, "precision": "f32"},
        {"threads": 1, "precision": "bf16"},
        {"threads": 2, "precision": "f32"},
        {"threads": 2, "precision": "bf16"},
        {"seed": 3},
    ]
    assert option_sets([], []) == [{}]
    assert option_sets(["memory_budget=null,4096"], []) == [{"memory_budget": None}, {"memory_budget": 4096}]
    for varied, whole in ((["threads"], []), ([], ["[1]"]), ([], ["{"])):
        with pytest.raises(ValueError, match="expected"):
            option_sets(varied, whole)
