"""The CSV of the literature, its errors, and the command that reads it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.main import main
from app.engine.memory import csv_table
from app.engine.memory.problem import Buffer
from benchmarks.memory import plant
from tests.jobs.service import ROOT

EXAMPLE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


def test_columns_are_found_by_name() -> None:
    text = "alignment,size,id,upper,lower\r\n64,10,a,5,-2\r\n\r\n1,0,b,1,0\r\n"
    assert csv_table.read(text).buffers == (Buffer("a", -2, 5, 10, 64), Buffer("b", 0, 1, 0, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the columns id, lower, upper, size"),
        ("id,lower,upper\n", "line 1: expected the columns"),
        ("id,lower,upper,size,colour\n", "'colour'"),
        (EXAMPLE + "b6,1,2\n", "line 7: expected 4 columns, found 3"),
        (EXAMPLE + "b6,1,x,3\n", "line 7, column upper: expected an integer, found 'x'"),
        (EXAMPLE + "b6,1,2,-3\n", "line 7, column size: expected 0 to"),
        (EXAMPLE + f"b6,1,2,{10**30}\n", "line 7, column size: expected 0 to"),
        (EXAMPLE + "b6,2,2,3\n", "line 7, column upper: expected more than lower, 2, found 2"),
        (EXAMPLE + "b1,2,3,3\n", "line 7, column id: 'b1' names the buffer of line 2"),
        (EXAMPLE + ",2,3,3\n", "line 7, column id"),
    ],
)
def test_errors_name_the_line_and_the_column(text: str, message: str) -> None:
    with pytest.raises(csv_table.TableError, match=message):
        csv_table.read(text)


def test_plan_prints_offsets_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text(EXAMPLE)
    assert main(["plan", str(path), "--capacity", "12", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sorted(answer["offsets"]) == ["b1", "b2", "b3", "b4", "b5"]
    assert (answer["peak_bytes"], answer["lower_bound"], answer["proved"]) == (12, 12, True)
    assert answer["load_seconds"] == 0.0  # five buffers need no compiled code
    assert main(["plan", str(path)]) == 0
    assert capsys.readouterr().out.startswith("id,offset\nb1,")


def test_plan_tells_why_nothing_fits_and_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text(EXAMPLE)
    assert main(["plan", str(path), "--capacity", "11"]) == 1
    assert "proof: lower bound" in capsys.readouterr().err
    path.write_text("id;lower\n")
    assert main(["plan", str(path)]) == 2
    assert "line 1" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "absent.csv")]) == 2


def test_an_easy_plan_loads_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text(EXAMPLE)
    code = f"import sys; from app.cli.main import main; main(['plan', {str(path)!r}]); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ.copy(), check=True)  # noqa: TID251


def test_the_validator_misses_no_planted_overlap() -> None:
    planted, missed = plant(4_000)
    assert planted > 1_000
    assert missed == 0
