"""Trials of single kernels from the command line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.kernels import trial


@pytest.mark.parametrize("family", sorted(trial.FAMILIES))
def test_every_family_agrees_with_its_reference(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.001)
    shape = "17x50x33" if family == "gemm" else "17x50"
    assert trial.main([family, "--shape", shape, "--cache", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"{family} {shape}: " in printed
    assert ("GFLOP/s" if family == "gemm" else "GB/s") in printed


def test_a_wrong_result_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = trial.FAMILIES["reduce"]

    def wrong(extents: tuple[int, ...], option: str) -> trial.Trial:
        made = make(extents, option)
        return replace(made, expected=np.asarray(made.expected) + 1)

    monkeypatch.setitem(trial.FAMILIES, "reduce", (wrong, shape))
    monkeypatch.setattr(trial, "SECONDS", 0.001)
    assert trial.main(["reduce", "--cache", str(tmp_path)]) == 1
    assert "above the tolerance" in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["8x0", "8", "axb"])
def test_a_shape_that_does_not_fit_is_an_error(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trial.main(["transpose", "--shape", shape])
    assert "expected 2 positive extents" in capsys.readouterr().err
