"""The comparison of `tests.same_plans` finds differences and allows renames, those of the map alone."""

import json
from pathlib import Path

import pytest

from tests.same_plans import RENAMES, Model, Planner, Renames, Setting, difference

PLAN = {"passes": ["order", "store_halves"], "steps": [{"kernel": "app.pool_rows:max", "bytes": 64}]}


def test_equal_documents_have_no_difference() -> None:
    assert difference(PLAN, json.loads(json.dumps(PLAN))) is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "$.a[0].b: 1 before, 2 after"),
        ({"a": 1}, {"a": 1, "b": 2}, "$.b: only after"),
        ({"a": 1, "b": 2}, {"a": 1}, "$.b: only before"),
        ([1, 2], [1, 2, 3], "$: 2 elements before, 3 after"),
        (["x", "y"], ["y", "x"], '$[0]: "x" before, "y" after'),
        (1, 1.0, "$: 1 before, 1.0 after"),
        (1, True, "$: 1 before, true after"),
        ({}, [], "$: {} before, [] after"),
        ({"a": None}, {"a": 0}, "$.a: null before, 0 after"),
    ],
)
def test_the_first_difference_is_told_with_its_path(before: object, after: object, expected: str) -> None:
    assert difference(before, after) == expected


def test_renamed_words_are_no_difference() -> None:
    renames = Renames({"store_halves": "narrow_storage", "steps": "calls", "app.pool_": "app.kernels.pool_"})
    after = {
        "passes": ["order", "narrow_storage"],
        "calls": [{"kernel": "app.kernels.pool_rows:max", "bytes": 64}],
    }
    assert difference(renames.document(PLAN), after) is None
    assert not renames.unused


def test_a_rename_outside_the_map_is_a_difference() -> None:
    after = {**PLAN, "passes": ["order", "narrow_storage"]}
    found = difference(Renames({"order": "order"}).document(PLAN), after)
    assert found == '$.passes[1]: "store_halves" before, "narrow_storage" after'


def test_a_word_that_should_have_been_renamed_is_a_difference() -> None:
    found = difference(Renames({"order": "schedule"}).document(PLAN), PLAN)
    assert found == '$.passes[0]: "schedule" before, "order" after'


def test_a_rename_changes_whole_words_only() -> None:
    renames = Renames({"order": "schedule", "a": "b", "pool.": "window."})
    text = "reorder, a.order, order_2, order: a pool. of pool.max"
    assert renames.text(text) == "reorder, b.order, order_2, schedule: b pool. of window.max"
    assert Renames({"a": "b", "never": "used"}).unused == {"a", "never"}


def test_the_map_of_renames_maps_no_word_to_itself() -> None:
    words = json.loads(RENAMES.read_text())
    assert not [old for old, new in words.items() if old == new]


def test_a_process_that_ends_is_a_reason_and_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit(3)")
    with Planner(tmp_path) as planner:
        for name in ("first", "second"):
            found = planner.plan(Model("model", tmp_path), Setting("host"), tmp_path / name)
            assert found == {"refused": {"type": "failure", "message": "the process ended with status 3"}}
