"""A planner makes a program once, and again where anything that plans look up has changed."""

from dataclasses import replace

import pytest

from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.cost import roofline
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.timing_cache import RecordedTimings
from app.engine.types.options import Bindings
from app.engine.types.target import host
from tests.engine.passes.streams.chains import OPTIONS, inverted_residuals


@pytest.fixture(scope="module")
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    path = inverted_residuals(1).save(tmp_path_factory.mktemp("planner"))
    return session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())


def other_time(program: Program) -> dict[str, float]:
    """A table in which the row of the first convolution takes no time."""
    step = next(s for s in program.steps if s.group.op == "Conv")
    context = PlanningContext.of(program.compilation)
    return {roofline.key(step.choice.implementation, step.group, context): 1e-9}


def test_what_no_plan_looks_up_changes_no_program(compilation: Compilation) -> None:
    planner = session.Planner()
    first = planner(compilation, OPTIONS)
    table = {"streams x1 a none": 1.0}
    planned = replace(compilation, timings=table)
    again = planner(planned, OPTIONS)
    told = planner(replace(planned, timings=table | {"copy x1 8": 1.0}, notes=("told",)), OPTIONS)
    assert told.steps is again.steps
    assert told.compilation.notes == ("told", *again.compilation.notes)
    assert told.compilation.timings == table | {"copy x1 8": 1.0}
    assert [s.group.name for s in first.steps] == [s.group.name for s in again.steps]


def test_a_program_follows_options_streams_and_times(compilation: Compilation) -> None:
    planner = session.Planner()
    timed = replace(compilation, timings={"streams x1 a none": 1.0})
    program = planner(timed, OPTIONS)
    assert planner(timed, OPTIONS).steps is program.steps
    faster = replace(timed, timings={**timed.timings, **other_time(program)})
    assert planner(faster, OPTIONS).seconds < program.seconds
    assert planner(faster, OPTIONS).steps is not program.steps
    assert len(planner(timed, replace(OPTIONS, fuse=False)).steps) > len(program.steps)
    for changed in (replace(timed, failures={("a", "b"): "c"}), replace(timed, model=timed.model.clone())):
        assert planner(changed, OPTIONS).steps is not planner(timed, OPTIONS).steps


def test_a_recorded_table_agrees_with_others_in_what_was_looked_up() -> None:
    table = RecordedTimings({"a": 1.0, "b": 2.0})
    assert table.get("a") == 1.0
    assert table.get("c") is None
    assert table.agrees({"a": 1.0})
    assert not table.agrees({"a": 2.0})
    assert not table.agrees({"a": 1.0, "c": 1.0})
    assert not RecordedTimings({}).agrees({"a": 1.0})
    assert dict(table) == {"a": 1.0, "b": 2.0}
