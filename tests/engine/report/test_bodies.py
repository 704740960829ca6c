"""Bodies of control flow in what a plan tells: decisions, steps, memory, time; and memory that has no bound."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report import pages, report
from app.engine.types.errors import CapacityError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.backends.test_branches import of_text

TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (bool c, float[4, 16, 64] x, float[64, 64] w) => (float[16, 64] y, float[4, 16, 64] all) {
        zero = Constant <value_ints = [0]> ()
        start = ReduceMax <keepdims = 0> (x, zero)
        last, all = Scan <num_scan_inputs = 1,
            body = outer (float[16, 64] a, float[16, 64] e) => (float[16, 64] next, float[16, 64] o) {
                three = Constant <value = int64 {3}> ()
                yes = Constant <value = bool {1}> ()
                turned = Loop (three, yes, e) <
                    body = inner (int64 i, bool go, float[16, 64] b) => (bool more, float[16, 64] d) {
                        p = MatMul (b, w)
                        q = Softmax <axis = 0> (p)
                        d = MatMul (q, w)
                        more = Identity (go)
                    }
                >
                sum = Add (turned, a)
                next = Softmax <axis = 1> (sum)
                o = MatMul (next, w)
            }
        > (start, x)
        y = If (c) <
            then_branch = one () => (float[16, 64] r) { m = MatMul (last, w) r = Softmax <axis = 0> (m) },
            else_branch = two () => (float[16, 64] s) { s = Softmax <axis = 1> (last) }
        >
    }
"""


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bodies")
    path, _ = of_text(TEXT, folder)
    options = Options(benchmark_seconds=0.05, autotune=False)
    summary = optimize(path, find("host"), options, Bindings(), folder, kernels=compiler.cache)
    read = {
        n: json.loads((folder / f"{n}.json").read_text()) for n in ("plan", "decisions", "memory", "timings")
    }
    read |= {"trace": json.loads((folder / "trace.json").read_text()), "summary": summary}
    return read | {"page": (folder / "report.html").read_text(), "map": (folder / "memory.html").read_text()}


def paths(rows: list[dict[str, Any]], name: str) -> dict[str, str | None]:
    return {row[name]: row["parent"] for row in rows}


def test_every_document_names_the_same_steps_of_bodies(documents: dict[str, Any]) -> None:
    steps = paths(documents["plan"]["steps"], "name")
    assert steps == paths(documents["decisions"]["decisions"], "subject")
    assert steps == paths(documents["timings"]["operators"], "name")
    inner = {s["name"] for b in documents["memory"]["bodies"] for s in b["steps"]}
    assert inner == {name for name, parent in steps.items() if parent is not None}
    assert inner
    for name, parent in steps.items():
        assert parent is None or (parent in steps and name.startswith(f"{parent}/"))
    depth = {name.count("/body/") for name in inner}
    assert depth == {0, 1, 2}  # of a branch, of the Scan, of the Loop within


def test_decisions_in_bodies_have_reasons_and_alternatives(documents: dict[str, Any]) -> None:
    rows = [d for d in documents["decisions"]["decisions"] if d["parent"]]
    products = [d for d in rows if d["op"].startswith("MatMul")]
    assert len(products) >= 4
    assert all(d["reason"] and d["alternatives"] for d in products)


def test_time_in_bodies_is_told_and_counted_once(documents: dict[str, Any]) -> None:
    rows = documents["timings"]["operators"]
    assert documents["timings"]["kind"] == "measured"
    outside = documents["timings"]["outside"]["share"]
    assert sum(r["share"] for r in rows) + outside == pytest.approx(1)
    main = sum(r["seconds_with_bodies"] for r in rows if r["parent"] is None)
    assert sum(r["seconds"] for r in rows) == pytest.approx(main, rel=0.2)
    by_name = {r["name"]: r for r in rows}
    (loop,) = (n for n in by_name if by_name[n]["op"] == "Loop")
    within = sum(r["seconds_with_bodies"] for r in rows if r["parent"] == loop)
    assert 0 < within <= by_name[loop]["seconds_with_bodies"]


def test_bodies_lie_in_the_arena_where_their_step_has_room(documents: dict[str, Any]) -> None:
    memory = documents["memory"]
    around: dict[str, tuple[int, int]] = {}
    for body in memory["bodies"]:
        low, high = body["offset"], body["offset"] + body["bytes"]
        outer = around.get(body["parent"].rpartition("/")[0])
        if outer is None:
            buffers = [b for b in memory["buffers"] if b["kind"] == "body" and b["first"] == body["step"]]
            (outer,) = ((b["offset"], b["offset"] + b["bytes"]) for b in buffers)
        assert outer[0] <= low <= high <= outer[1]
        around[body["name"]] = low, high
        for b in body["buffers"]:
            assert low <= b["offset"] <= b["offset"] + b["bytes"] <= high
        for step in range(len(body["steps"])):
            live = sorted(
                (b["offset"], b["offset"] + b["bytes"])
                for b in body["buffers"]
                if b["first"] <= step <= b["last"] and not b["parts"] and b["bytes"]
            )
            assert all(a[1] <= b[0] for a, b in pairwise(live))
    assert {b["turns"] for b in memory["bodies"]} == {1, 4, 12}


def test_pages_and_trace_show_bodies(documents: dict[str, Any]) -> None:
    inner = [s["name"] for b in documents["memory"]["bodies"] for s in b["steps"]]
    assert all(name in documents["page"] for name in inner)
    names = [b["name"] for body in documents["memory"]["bodies"] for b in body["buffers"]]
    assert names
    assert all(f'data-name="{name}"' in documents["map"] for name in names)
    events = [e for e in documents["trace"]["traceEvents"] if e["ph"] == "X"]
    assert {e["args"]["node"] for e in events} >= set(inner)


def test_values_of_bodies_have_places(documents: dict[str, Any]) -> None:
    values = documents["plan"]["values"]
    inner = {name: v for name, v in values.items() if "/inner/" in name or "/body/" in name}
    assert inner
    assert all(v["location"]["space"] in ("arena", "output", "input") for v in inner.values())


def test_compiled_control_flow_is_no_fallback(documents: dict[str, Any]) -> None:
    steps = documents["summary"]["steps"]
    assert (steps["control_flow"], steps["fallback"]) == (3, 0)
    assert documents["summary"]["fallbacks"] == []
    listed = documents["plan"]["steps"]
    assert steps["in_bodies"] == sum(s["parent"] is not None for s in listed)
    assert sum(steps[k] for k in ("compiled", "views", "control_flow", "fallback", "library")) == len(listed)


def planned(text: str, folder: Path, target: str, **options: Any) -> Program:
    path, _ = of_text(text, folder)
    given = Options(**options)
    compilation = session.canonical(load(path), find(target), given, Bindings(), load_registry())
    return session.planned(compilation, given)


NESTED = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (int64 n, float[64, 256] x, float[256, 256] w) => (float[64, 256] y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (n, yes, x) <
            body = outer (int64 i, bool go, float[64, 256] a) => (bool more, float[64, 256] b) {
                b = Loop (n, yes, a) <
                    body = inner (int64 j, bool on, float[64, 256] c) => (bool again, float[64, 256] d) {
                        p = MatMul (c, w)
                        d = Softmax <axis = 0> (p)
                        again = Identity (on)
                    }
                >
                more = Identity (go)
            }
        >
    }
"""
GROWING = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (int64 n, float[64, 256] x) => (float[64, 256] y) {
        zero = Constant <value_ints = [0]> ()
        yes = Constant <value = bool {1}> ()
        rows = Loop (n, yes, x) <
            body = turn (int64 i, bool go, float[?, 256] a) => (bool more, float[?, 256] b) {
                s = Softmax <axis = 0> (x)
                b = Concat <axis = 0> (a, s)
                more = Identity (go)
            }
        >
        top = ReduceMax (rows, zero)
        y = Add (top, x)
    }
"""
MATRIX = 64 * 256 * 4  # byte


@pytest.mark.parametrize("target", ["host", "cpu-avx2", "edge-npu"])
def test_memory_of_nested_bodies_is_counted_on_every_target(tmp_path: Path, target: str) -> None:
    program = planned(NESTED, tmp_path, target)
    # The values carried by both loops, and one in the inner, whose product is not done in place.
    assert program.placement.solution.peak >= 4 * MATRIX
    assert program.placement.unplanned == ()
    with pytest.raises(CapacityError):
        planned(NESTED, tmp_path, target, memory_budget=3 * MATRIX)


@pytest.mark.parametrize("target", ["host", "edge-npu"])
def test_a_body_that_the_reference_evaluator_runs_is_unplanned_and_never_proved(
    tmp_path: Path, target: str
) -> None:
    program = planned(GROWING, tmp_path, target)
    memory = report.memory_json(program.compilation)
    (loop,) = (s.group.name for s in program.steps if s.group.op == "Loop")
    assert f"{loop}/body" in memory["unplanned"]
    assert not memory["proved"]
    assert not memory["order"]["proved"]
    assert memory["peak_bytes"] >= MATRIX  # the one value of the body whose size is known
    assert any("is not proved" in note and f"{loop}/body" in note for note in program.compilation.notes)
    assert "proved" not in pages.memory_html(memory, "growing").split("<body>")[1].split("the policies")[0]


def test_a_budget_below_what_an_evaluated_body_surely_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CapacityError):
        planned(GROWING, tmp_path, "edge-npu", memory_budget=MATRIX // 2)


def test_what_a_dynamic_loop_gives_is_refused_by_rows_of_static_shapes_not_a_crash(tmp_path: Path) -> None:
    text = GROWING.replace(
        "top = ReduceMax (rows, zero)", "more = Concat <axis = 0> (rows, x) top = ReduceMax (more, zero)"
    )
    for target, backend in (("cuda-sm90", "reference"), ("edge-npu", "reference"), ("host", "numba-cpu")):
        program = planned(text, tmp_path, target)
        (step,) = (s for s in program.steps if s.group.op == "Concat")
        assert step.choice.implementation.backend == backend
