"""`stowplan peak`: the memory of a shape, out of a memory.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main, service

REGION: dict[str, Any] = {
    "symbols": {"N": [1, 8, 1]},
    "inputs": {"x": ["N", 4]},
    "points": 8,
    "pieces": [
        {
            "symbols": {"N": [1, 8, 1]},
            "buffers": [
                {
                    "id": name,
                    "lower": 0,
                    "upper": 2,
                    "alignment": 64,
                    "bytes": {"text": "16*N", "terms": [[16, ["N"]]], "divisor": 1},
                    "parts": [],
                    "table": [],
                    "below": below,
                }
                for name, below in (("a", {}), ("b", {"a": False}))
            ],
            "exact": True,
        }
    ],
    "worst_bytes": 256,
    "proof": "every shape",
}


def told(
    memory: dict[str, Any], text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    path = folder / "memory.json"
    path.write_text(json.dumps(memory))
    status = main.main(["peak", str(path), "--input", text])
    out = capsys.readouterr()
    return status, out.out + out.err


@pytest.mark.parametrize(("rows", "nbytes"), [(8, 256), (5, 256), (4, 128)])
def test_the_peak_follows_the_formulas(
    rows: int, nbytes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = told({"region": REGION}, f"x={rows}x4", tmp_path, capsys)
    assert status == service.DONE
    assert text.startswith(f"{nbytes} byte; no shape takes more than 256 byte\nproof: every shape")


@pytest.mark.parametrize(
    ("memory", "text", "reason"),
    [
        ({"region": REGION}, "x=9x4", "'x' takes [N:1..8, 4], found [9, 4]"),
        ({"peak_bytes": 77}, "x=1x4", "no input shape has a symbol; every run takes 77 byte"),
        ({"region": {"rejection": "a Loop"}}, "x=1x4", "no plan serves the region: a Loop"),
    ],
)
def test_what_has_no_peak_is_refused_with_the_reason(
    memory: dict[str, Any], text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = told(memory, text, tmp_path, capsys)
    assert status == service.REFUSED
    assert reason in found
