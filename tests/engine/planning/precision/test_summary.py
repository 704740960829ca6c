"""Sentences of precision.json."""

import pytest

from app.engine.planning.precision.summary import sentence

CHOSEN = {"nodes": {"f32": 1, "int8": 3}, "error": 0.004, "simulated": 0.005, "speedup": 1.5}


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (CHOSEN, "products 1 in f32, 3 in int8; error 0.004 of 0.01 on 4 samples held back; 1.50x float32"),
        (
            CHOSEN | {"error": None, "speedup": None},
            "error 0.005 of 0.01 on 4 samples held back, simulated; times",
        ),
        (None, "precision: float32, as slower"),
    ],
)
def test_the_result_of_an_error_budget_is_one_sentence(chosen: dict[str, object] | None, told: str) -> None:
    assert told in sentence(chosen, "slower", 0.01, 4)
