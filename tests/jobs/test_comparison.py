"""A group's table: who keeps the constraints, and who is best."""

from typing import Any

from app.jobs.comparison import Constraints, best_by_target, compare


def row(name: str, seconds: float | None, peak: int | None, **given: Any) -> dict[str, Any]:
    summary = {
        "latency": {"after": seconds},
        "peak_bytes": {"after": peak},
        "timings": "measured",
        "verification": {"outputs": [{"max_rel": 1e-6}, {"max_rel": 1e-5}]},
        "steps": {"fallback": 0},
    }
    options = {"threads": len(name), "seed": 0}
    fields = {"id": name, "target": "host", "state": "succeeded", "code": None, "detail": None}
    return fields | {"summary": summary, "request": {"options": options}} | given


FAILED = row("ddd", None, None, state="failed", code="time-limit", detail="too slow", summary=None)
ROWS = [row("a", 2.0, 100), row("bb", 1.0, 300), FAILED, row("cccc", 1.0, 200, target="board")]


def test_jobs_are_ranked_by_the_objective_then_by_the_other() -> None:
    by_latency = compare(ROWS, "latency", Constraints())
    assert {e.job: e.rank for e in by_latency} == {"a": 3, "bb": 2, "ddd": None, "cccc": 1}
    by_memory = compare(ROWS, "memory", Constraints())
    assert {e.job: e.rank for e in by_memory} == {"a": 1, "bb": 3, "ddd": None, "cccc": 2}
    assert best_by_target(by_latency) == {"host": "bb", "board": "cccc"}


def test_a_job_that_breaks_a_constraint_says_which_and_is_not_ranked() -> None:
    found = {e.job: e for e in compare(ROWS, "latency", Constraints(peak_bytes=250, seconds=1.5))}
    assert [job for job, entry in found.items() if entry.rank] == ["cccc"]
    assert found["a"].unmet == ("latency is 2 s, at most 1.5 s are allowed",)
    assert found["bb"].unmet == ("peak memory is 300 byte, at most 250 byte are allowed",)
    assert found["ddd"].unmet == ("failed: too slow",)
    close = compare(ROWS[:1], "latency", Constraints(difference=1e-6))
    assert close[0].unmet[0].startswith("difference is 1e-05")


def test_what_is_not_known_keeps_no_constraint_and_comes_last() -> None:
    rows = [row("a", None, 1), row("b", 5.0, 1)]
    assert [e.rank for e in compare(rows, "latency", Constraints())] == [2, 1]
    assert "not known" in compare(rows, "latency", Constraints(seconds=9.0))[0].unmet[0]


def test_only_options_that_differ_are_shown() -> None:
    assert [e.options for e in compare(ROWS, "latency", Constraints())] == [
        {"threads": n} for n in (1, 2, 3, 4)
    ]
    assert compare(ROWS[:1], "latency", Constraints())[0].options == {}


def test_a_job_that_runs_is_neither_ranked_nor_refused() -> None:
    running = row("a", None, None, state="running", summary=None)
    entry = compare([running], "latency", Constraints(seconds=1.0))[0]
    assert (entry.rank, entry.unmet) == (None, ())
