"""`stowplan run-operator` against a running service."""

from pathlib import Path

import numpy as np
import pytest

from app.cli.main import main
from tests.jobs.service import Served


def test_an_operator_runs_on_the_tensors_of_files(
    service: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.array([1.5, np.nan], np.float32))
    line = ["run-operator", "Relu", "--tensor", str(tmp_path / "a.npy"), "--url", str(service.http.base_url)]
    assert main(line) == 0
    assert "y0: float32[2] [1.5, NaN]" in capsys.readouterr().out


def test_what_the_service_refuses_is_told(
    service: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2, np.float32))
    line = ["run-operator", "Relu", "--tensor", str(tmp_path / "a.npy"), "--url", str(service.http.base_url)]
    assert main([*line, "--backend", "tpu"]) == 1
    assert "unknown backend 'tpu'" in capsys.readouterr().err
    assert main([*line, "--constant", "1"]) == 2
    assert "--constant 1" in capsys.readouterr().err
