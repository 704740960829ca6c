"""The sentences that a job leads with: true to its samples, whoever is faster."""

import pytest

from app.engine.runtime.benchmark import Samples
from app.engine.runtime.comparison import Memory, comparison
from app.engine.runtime.peers import Rival
from app.engine.runtime.verify import Difference

PLAN = Memory(1000, 1000, proved=True, onnxruntime=4000)


def samples(seconds: float) -> Samples:
    return Samples((seconds,), 0)


def rival(ours: float, theirs: float, difference: float = 2.8e-7, name: str = "onnxruntime") -> Rival:
    rows = (Difference("y", difference, difference, 1e-4),)
    return Rival(name, "1", samples(ours), samples(theirs), differences=rows)


def test_speed_beside_onnxruntime_comes_first_then_memory_beside_its_high_water() -> None:
    found = comparison(6.1e-3, "measured", [rival(6.1e-3, 8.8e-3)], PLAN)
    assert [line["about"] for line in found["lines"]] == ["speed", "memory"]
    assert found["sentence"] == (
        "1.44x onnxruntime's speed (6.1 ms, 8.8 ms), same answer "
        "(largest difference 2.8e-07 of the output's maximum, 1e-04 allowed)"
    )
    assert found["lines"][1]["text"] == (
        "1000 B of activations, 0.25x of onnxruntime's high water (4000 B), proved least (bound 1000 B)"
    )
    assert found["memory"]["ratio"] == 0.25


def test_a_slower_program_says_so_and_is_not_praised() -> None:
    found = comparison(1.0, "measured", [rival(1.0, 0.97)], PLAN)
    assert found["sentence"].startswith("0.97x onnxruntime's speed (1 s, 970 ms), same answer")
    assert found["lines"][0]["tone"] == ""


def test_another_answer_is_called_one() -> None:
    found = comparison(1.0, "measured", [rival(1.0, 2.0, difference=0.2)], PLAN)
    assert (
        "another answer (largest difference 2.0e-01 of the output's maximum, 1e-04 allowed)"
        in (found["sentence"])
    )
    assert found["lines"][0]["tone"] == "bad"
    assert found["peers"][0]["same_answer"] is False


def test_each_peer_is_compared_with_ours_of_its_own_turn() -> None:
    found = comparison(1.0, "measured", [rival(1.0, 2.0), rival(1.5, 2.0, name="OpenVINO")], PLAN)
    assert [peer["ratio"] for peer in found["peers"]] == [2.0, pytest.approx(4 / 3)]
    assert found["lines"][1]["text"].startswith("1.33x OpenVINO's speed (1.5 s, 2 s)")


def test_a_peer_that_is_missing_says_why_and_the_others_lead() -> None:
    absent = Rival("OpenVINO", "", reason="openvino is not installed")
    found = comparison(1.0, "measured", [rival(1.0, 2.0), absent], PLAN)
    assert found["lines"][0]["text"].startswith("2.00x onnxruntime's speed")
    assert found["notes"] == ["OpenVINO: openvino is not installed"]


def test_a_prediction_says_so_and_leads_with_memory() -> None:
    memory = Memory(1100, 1000, proved=False)
    found = comparison(1.0, "predicted", [], memory, "this machine is not the target")
    assert found["sentence"] == "1100 B of activations, at most 10.0% above the least (bound 1000 B)"
    assert found["lines"][1]["text"] == "1 s a run, predicted (this machine is not the target)"


def test_an_unknown_high_water_says_why() -> None:
    memory = Memory(1000, 1000, proved=True, unmeasured="'y' is no tensor of numbers")
    found = comparison(1.0, "measured", [rival(1.0, 2.0)], memory)
    assert found["memory"]["onnxruntime"] is None
    assert found["lines"][1]["text"].endswith("onnxruntime's not measured: 'y' is no tensor of numbers")


def test_outputs_that_cannot_be_compared_are_not_called_the_same() -> None:
    strange = Rival("onnxruntime", "1", samples(1.0), samples(2.0), unlike="output 'y' is absent")
    found = comparison(1.0, "measured", [strange], PLAN)
    assert found["peers"][0]["same_answer"] is None
    assert found["sentence"].endswith("answers not compared (output 'y' is absent)")


def test_memory_outside_of_the_plan_is_never_called_proved() -> None:
    found = comparison(1.0, "predicted", [], Memory(1000, 1000, proved=False, unplanned=2), "")
    assert found["sentence"] == (
        "1000 B of activations, without 2 dynamic values or bodies that are outside of the plan (bound 1000 B)"
    )
