"""Which rows of a decisions.json are about a node."""

import json
from pathlib import Path

from app.api.routes.artifacts import Decisions


def test_a_node_has_the_rows_that_name_it(tmp_path: Path) -> None:
    rows = [
        {"subject": "conv", "nodes": ["conv", "relu"], "cost": 1.5},
        {"subject": "wrapped", "nodes": ["a", "b"], "cost": None},
        {"subject": "a", "nodes": [], "cost": 2.0},
    ]
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps({"decisions": rows}))
    found = Decisions.read(path)
    for name in ("conv", "relu", "wrapped", "a", "b", "none"):
        assert found.about(name) == [r for r in rows if name == r["subject"] or name in r["nodes"]]
