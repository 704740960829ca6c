"""The pipeline holds every pass to what it declares."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from app.engine.core import graph
from app.engine.core.pipeline import Pass, Rerun, run
from app.engine.core.plan import Compilation, Plan, Subgraph
from app.engine.types.errors import CapacityError, PassError
from app.engine.types.storage import StorageType
from tests.engine.plans import compilation_of

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[4] x) => (float[4] y) { a = Relu(x)  y = Exp(a) }"""
STORED = StorageType("default", "float32")
PART = Subgraph(0, "test")


@dataclass(frozen=True)
class Example:
    """A pass that declares what a test tells it to."""

    act: Callable[[Compilation], Any]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    name: str = "example"

    def __call__(self, compilation: Compilation) -> Compilation | Rerun:
        return self.act(compilation)


def started(**columns: object) -> Compilation:
    """A compilation of two nodes with these columns."""
    return replace(compilation_of(TEXT), plan=Plan(**columns))  # type: ignore[arg-type]


def parts(compilation: Compilation) -> dict[Any, Subgraph]:
    return dict.fromkeys(compilation.graph, PART)


def storages(compilation: Compilation) -> Mapping[Any, StorageType]:
    return dict.fromkeys(graph.values(compilation.graph), STORED)


def test_columns_that_are_neither_written_nor_kept_are_dropped() -> None:
    compilation = compilation_of(TEXT)
    step = Example(lambda c: c.with_plan(partition=parts(c)), (), ("partition",), ("fusion",))
    found = run(compilation, (step,)).plan
    assert found.partition == parts(compilation)
    assert found.fusion is compilation.plan.fusion
    assert all(getattr(found, c) is None for c in ("storage", "layout", "implementation", "order"))


def test_a_pass_is_given_the_columns_that_it_reads() -> None:
    compilation = compilation_of(TEXT)
    seen: list[object] = []

    def act(given: Compilation) -> Compilation:
        seen.append(given.plan.require("layout"))
        return given

    run(compilation, (Example(act, ("layout",)),))
    assert seen == [compilation.plan.layout]


@pytest.mark.parametrize(
    "read", [lambda c: c.plan.layout, lambda c: c.plan.require("layout"), lambda c: c.plan.groups]
)
def test_a_pass_that_reads_what_it_does_not_declare_is_named_with_the_column(
    read: Callable[[Compilation], object],
) -> None:
    with pytest.raises(PassError, match=r"pass 'example' .* reads the column '(layout|fusion)'"):
        run(compilation_of(TEXT), (Example(read, ("storage",)),))


def test_an_undeclared_column_cannot_be_read_after_another_was_written() -> None:
    def act(given: Compilation) -> object:
        return given.with_plan(partition=parts(given)).plan.layout

    with pytest.raises(PassError, match="'layout', which it does not declare"):
        run(compilation_of(TEXT), (Example(act, (), ("partition",)),))


def test_a_pass_does_not_see_what_another_left_in_a_column_that_it_only_writes() -> None:
    seen: list[object] = []

    def act(given: Compilation) -> Compilation:
        seen.append(given.plan.storage)
        given = given.with_plan(storage=storages(given))
        seen.append(given.plan.storage)
        return given

    compilation = compilation_of(TEXT)
    run(compilation, (Example(act, (), ("storage",)),))
    assert seen == [None, storages(compilation)]


def test_a_pass_that_reads_what_no_pass_wrote_does_not_run() -> None:
    ran: list[Compilation] = []
    with pytest.raises(PassError, match="pass 'example' .* column 'layout' has not been written yet"):
        run(started(), (Example(ran.append, ("layout",)),))
    assert not ran


def test_a_pass_that_promises_a_column_and_does_not_write_it_is_named() -> None:
    with pytest.raises(PassError, match="pass 'example' .* column 'storage' was promised but not written"):
        run(started(), (Example(lambda c: c, (), ("storage",)),))


def test_a_column_of_nodes_has_every_node() -> None:
    step = Example(lambda c: c.with_plan(partition={c.graph[0]: PART}), (), ("partition",))
    with pytest.raises(PassError, match="column 'partition' lacks node 'Exp_1'"):
        run(started(), (step,))


def test_a_column_of_values_has_every_value() -> None:
    step = Example(lambda c: c.with_plan(storage={c.graph.inputs[0]: STORED}), (), ("storage",))
    with pytest.raises(PassError, match="column 'storage' lacks value 'a'"):
        run(started(), (step,))


def test_a_column_of_groups_has_every_group_once() -> None:
    given = compilation_of(TEXT)
    first, second = given.plan.groups
    for order, told in (((first,), "lacks group 'Exp_1'"), ((first, second, first), "has 3 rows for 2")):
        step = Example(lambda c, order=order: c.with_plan(order=order), ("fusion",), ("order",), ("fusion",))
        with pytest.raises(PassError, match=f"column 'order' {told}"):
            run(given, (step,))


def test_a_column_of_groups_needs_the_groups() -> None:
    given = compilation_of(TEXT)
    step = Example(lambda c: c.with_plan(order=given.plan.order), (), ("order",))
    with pytest.raises(PassError, match="the column 'fusion' is neither written nor kept"):
        run(given, (step,))


def test_a_pass_that_writes_what_it_does_not_promise_is_named() -> None:
    with pytest.raises(PassError, match="writes the column 'partition', which it does not promise"):
        run(started(), (Example(lambda c: c.with_plan(partition=parts(c))),))


def test_a_pass_that_returns_a_plan_of_its_own_is_named() -> None:
    step = Example(lambda c: replace(c, plan=Plan(storage=storages(c))), (), ("storage",))
    with pytest.raises(PassError, match="pass 'example' .* returns another plan"):
        run(started(), (step,))


def test_an_exception_in_a_pass_is_wrapped_and_one_about_the_request_is_not() -> None:
    def fails(_given: Compilation) -> Compilation:
        raise KeyError("gone")

    def refuses(_given: Compilation) -> Compilation:
        raise CapacityError("too much", needed=2, available=1)

    with pytest.raises(PassError, match="pass 'example' failed: KeyError: 'gone'"):
        run(started(), (Example(fails),))
    with pytest.raises(CapacityError, match="too much"):
        run(started(), (Example(refuses),))


def test_the_pipeline_runs_earlier_passes_again_and_what_they_write_is_hidden_until_then() -> None:
    ran: list[str] = []

    def first(given: Compilation) -> Compilation:
        ran.append("first")
        assert given.plan.partition is None
        return given.with_plan(partition=parts(given))

    def second(given: Compilation) -> Compilation | Rerun:
        ran.append("second")
        if len(ran) < 3:
            return Rerun(given, "first")
        return given.with_plan(storage=storages(given))

    passes = (
        Example(first, (), ("partition",), name="first"),
        Example(second, ("partition",), ("storage",), ("partition",), name="second"),
    )
    found = run(started(), passes)
    assert ran == ["first", "second"] * 2
    assert [r.name for r in found.records] == ran
    assert found.plan.storage is not None


def test_a_pass_that_lets_others_run_again_writes_no_part_of_a_column() -> None:
    def act(given: Compilation) -> Rerun:
        return Rerun(given.with_plan(partition={given.graph[0]: PART}), "example")

    with pytest.raises(PassError, match="column 'partition' lacks node"):
        run(started(), (Example(act, (), ("partition",)),))


def test_only_a_pass_that_ran_before_can_run_again() -> None:
    with pytest.raises(PassError, match=r"'later' run again, which is not among those before it: \[\]"):
        run(
            started(),
            (Example(lambda c: Rerun(c, "later")), Example(lambda c: c, name="later")),
        )


def test_an_observer_is_told_of_every_pass_with_the_compilation_before_and_after() -> None:
    told: list[tuple[str, object, object]] = []

    def observe(step: Pass, before: Compilation, after: Compilation) -> None:
        told.append((step.name, before.plan.partition, after.plan.partition))

    compilation = started()
    write = Example(lambda c: c.with_plan(partition=parts(c)), (), ("partition",), name="write")
    read = Example(lambda c: c, ("partition",), (), ("partition",), name="read")
    run(compilation, (write, read), observe=observe)
    column = parts(compilation)
    assert told == [("write", None, column), ("read", column, column)]


def test_passes_are_recorded_and_logged_with_their_own_notes(caplog: pytest.LogCaptureFixture) -> None:
    def noting(text: str) -> Callable[[Compilation], Compilation]:
        return lambda c: replace(c, notes=(*c.notes, text))

    with caplog.at_level(logging.DEBUG, "stowplan.passes"):
        found = run(started(), (Example(noting("one")), Example(noting("two"), name="other")))
    assert [(r.name, r.notes, r.nodes) for r in found.records] == [
        ("example", ("one",), 2),
        ("other", ("two",), 2),
    ]
    lines = [r.getMessage() for r in caplog.records]
    assert [lines[1], lines[3]] == ["example: one", "other: two"]
    assert lines[0].startswith("example: ")
    assert lines[0].endswith(" ms, 2 nodes")


def test_progress_tells_each_pass_before_it_runs() -> None:
    told: list[tuple[str, int, int]] = []
    steps = (Example(lambda c: c, name="a"), Example(lambda c: c, name="b"))
    run(started(), steps, lambda *at: told.append(at))
    assert told == [("a", 0, 2), ("b", 1, 2)]
