"""Processor time of inferences over HTTP: measured with a service of its own, and kept."""

import json
import subprocess
from pathlib import Path

import pytest

from app.api import http_costs
from app.engine.planning.capacity.http import HttpCosts
from app.settings import Settings


def test_costs_are_measured_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data=tmp_path)
    rows = http_costs.costs(settings)
    assert [(row["request"], row["answer"]) for row in rows] == list(http_costs.SIZES)
    assert all(min(row.values()) > 0.0 for row in rows)
    found = HttpCosts.at(rows, 600_000, 4000)
    assert min(found.sent, found.request, found.executor, found.answer, found.received) > 0.0
    monkeypatch.setattr(subprocess, "Popen", None)
    assert http_costs.costs(settings) == rows, "they are kept"
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"machine": ["other", "1"]}))
    with pytest.raises(TypeError):
        http_costs.costs(settings)  # it measures again


def test_a_measurement_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(subprocess.CalledProcessError):
        http_costs.costs(Settings(data=tmp_path))
    assert not list(tmp_path.iterdir())
