"""The documents against the plan they tell of, and the page as a browser reads it."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.plan import Compilation, Decision
from app.engine.passes.order import Order
from app.engine.passes.plan_memory import PlanMemory
from app.engine.report import memory_map, pages, report, units
from app.engine.report.decisions import decisions_json
from app.engine.report.trace import trace_json
from app.engine.runtime.comparison import Memory, comparison
from app.engine.types.options import Options
from app.engine.types.storage import DispatchMode
from app.engine.types.target import Peak
from tests.engine.plans import Row, compilation_of, values_of
from tests.harness import model_of

HOSTILE = "\"'><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>"
TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[64] x, float[64] w) => (float[64] out, int64[1,N] where) {
    a = Relu(x)  b = Add(a, w)  c = Exp(a)  d = Mul(b, c)  where = NonZero(d)  out = Log(d)
}"""


def planned(*, hostile: bool = False) -> Compilation:
    model = model_of(TEXT, {"w": np.ones(64, np.float32)})
    if hostile:
        for node in model.graph:
            node.name = f"{node.op_type}{HOSTILE}"
        values_of(model)["b"].name = HOSTILE
    b = HOSTILE if hostile else "b"
    rows = {"d": Row("mul.inplace", inplace=((b, "d"),)), "c": Row("exp", workspace=(Workspace(1000),))}
    compilation = compilation_of(model, rows, options=Options(memory_budget=1 << 20))
    names = [g.name for g in compilation.plan.groups]
    reason = "no kernel: " + (HOSTILE if hostile else "strings")
    decisions = tuple(
        Decision(n, "op", "fake", reason, ({"name": "other", "seconds": float("inf"), "reason": reason},))
        for n in names
    )
    dispatch = {
        n: DispatchMode.FALLBACK if n.op_type == "Log" else DispatchMode.COMPUTE for n in compilation.graph
    }
    return PlanMemory()(Order()(replace(compilation.with_plan(dispatch=dispatch), decisions=decisions)))


WHY = "no such machine"


def timings_of(compilation: Compilation, name: str = "step") -> dict[str, Any]:
    quantiles = {"p10": 0.9e-3, "p50": 1e-3, "p90": 1.1e-3, "samples": [1e-3], "warmup": 3}
    count = 40
    return {
        "schema": "stowplan.timings/2",
        "kind": "measured",
        "machine": {"cpu_model": "cpu", "flags": [], "cores": 2, "threads": 1},
        "optimized": quantiles,
        "unfused": quantiles,
        "peers": {"onnxruntime": quantiles},
        "peak": Peak(1e11, {2**20: 1e10}, measured=True).to_json(),
        "outside": {"seconds": 180e-6, "share": 0.18},
        "operators": [
            {
                "name": f"{name}{i}",
                "op": "Relu",
                "implementation": "fake",
                "backend": "reference" if i == 3 else "test",
                "seconds": 1e-6 * (i + 1),
                "share": (i + 1) / 1000,
                "flops": 1e6 * i,
                "bytes": 1000 * i,
                "gflops": 1.5,
                "gigabytes_per_second": 2.5,
                "of_peak": 0.125,
            }
            for i in range(count)
        ],
    }


def summary_of(compilation: Compilation, model: str = "model") -> dict[str, Any]:
    assert compilation.plan.placement is not None
    solution = compilation.plan.placement.solution
    row = {"name": "out", "max_abs": 1e-7, "max_rel": 1e-8, "tolerance": 1e-4, "ok": True}
    return {
        "model": model,
        "target": "test",
        "nodes": {"original": 7, "canonical": 6, "before": 6, "after": 6},
        "peak_bytes": {"before": 2 * solution.peak, "after": solution.peak},
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        "naive_bytes": compilation.plan.placement.naive,
        "latency": {"before": 1e-3, "after": 1e-3, "onnxruntime": 1.1e-3},
        "comparison": comparison(
            1e-3, "predicted", [], Memory(solution.peak, solution.lower_bound, True), WHY
        ),
        "timings": "measured",
        "verification": {"oracle": "onnxruntime", "outputs": [row, {**row, "name": "where"}]},
        "steps": {"compiled": 5, "fallback": 1},
        "notes": ["a note"],
    }


def page_of(compilation: Compilation, **changes: Any) -> str:
    memory, decisions = report.memory_json(compilation), decisions_json(compilation)
    summary = summary_of(compilation) | {k: v for k, v in changes.items() if k != "timings"}
    return pages.report_html(summary, memory, changes.get("timings", timings_of(compilation)), decisions)


class Page(HTMLParser):
    """Tags, attributes and text; void and self-closing tags balanced."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def test_memory_json_holds_every_buffer_where_the_plan_put_it() -> None:
    compilation = planned()
    placement = compilation.plan.placement
    assert placement is not None
    document = report.memory_json(compilation)
    assert document["schema"] == "stowplan.memory/1"
    assert document["budget_bytes"] == 1 << 20
    rows = {b["name"]: b for b in document["buffers"]}
    values = values_of(compilation.model)
    for name in ("a", "b", "c"):
        assert rows[name]["offset"] == placement.values[values[name]].offset
        assert rows[name]["bytes"] == 256
    assert [v["name"] for v in rows["b"]["values"]] == ["b", "d"]
    assert rows["b"]["values"][1] == {"name": "d", "shape": [64], "dtype": "FLOAT"}
    assert "mul.inplace" in rows["b"]["reason"]
    assert document["input_bytes"] == 256
    assert document["output_bytes"] == 256
    assert document["unplanned"] == ["where"]
    assert {o["name"]: o["space"] for o in document["outside"]} == {"x": "input", "out": "output"}


def test_live_bytes_of_the_steps_reach_the_lower_bound() -> None:
    document = report.memory_json(planned())
    live = [s["live_bytes"] for s in document["steps"]]
    assert max(live) == document["lower_bound"]
    for step, found in enumerate(live):
        alive = [b for b in document["buffers"] if b["first"] <= step <= b["last"]]
        assert found == sum(-(-b["bytes"] // 64) * 64 for b in alive)


def test_weights_are_counted_once_and_constants_by_their_packed_size() -> None:
    compilation = planned()
    chosen = dict(compilation.plan.implementation or {})
    group, other = list(chosen)[:2]
    packed = Constant(np.zeros(1000, np.float32), "w")
    w = values_of(compilation.model)["w"]
    call = KernelCall("a:b", ("float32*", "float32*"), (packed, w), 1)
    chosen[group] = replace(chosen[group], calls=(call, call))
    chosen[other] = replace(chosen[other], calls=(call,))
    document = report.memory_json(compilation.with_plan(implementation=chosen))
    assert document["weights_bytes"] == 4000 + 256


@pytest.mark.parametrize("write", [report.memory_json, report.plan_json, decisions_json])
def test_a_document_is_json_without_nan_and_the_same_every_time(write: Any) -> None:
    first, second = (json.dumps(write(planned()), sort_keys=True, allow_nan=False) for _ in range(2))
    assert first == second
    assert json.loads(first)["schema"].endswith("/1")


def test_plan_json_places_every_value_of_the_graph() -> None:
    document = report.plan_json(planned())
    assert set(document["values"]) == {"x", "w", "a", "b", "c", "d", "out", "where"}
    assert document["values"]["where"]["location"] is None
    assert document["values"]["w"]["location"]["space"] == "weights"
    assert [s["name"] for s in document["steps"]] == [
        s["name"] for s in report.memory_json(planned())["steps"]
    ]
    assert {s["op"]: s["inplace"] for s in document["steps"]}["Mul"] == [["b", "d"]]


def test_decisions_tell_storage_dispatch_and_what_else_there_was() -> None:
    rows = decisions_json(planned())["decisions"]
    assert {r["op"] for r in rows if r["fallback"]} == {"Log"}
    assert rows[0]["dispatch"] == {rows[0]["subject"]: "compute"}
    assert rows[0]["alternatives"] == [
        {
            "name": "other",
            "seconds": None,
            "measured": False,
            "bytes": None,
            "layouts": {},
            "reason": "no kernel: strings",
        }
    ]


def test_the_page_asks_for_nothing_from_outside() -> None:
    page = Page(page_of(planned()))
    assert page.open == []
    assert {"link", "img", "iframe", "object"}.isdisjoint(tag for tag, _ in page.tags)
    assert all("src" not in a and "href" not in a for _, a in page.tags)
    [policy] = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert "default-src 'none'" in policy


def test_names_of_a_hostile_model_are_text() -> None:
    compilation = planned(hostile=True)
    timings = timings_of(compilation, HOSTILE)
    row = {"name": HOSTILE, "max_abs": 1e-7, "max_rel": 1e-8, "tolerance": 1e-4, "ok": True}
    verification = {"oracle": HOSTILE, "reason": HOSTILE, "outputs": [row], "exported": [row]}
    page = Page(
        page_of(compilation, model=HOSTILE, notes=[HOSTILE], timings=timings, verification=verification)
    )
    assert page.open == []
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert any(HOSTILE in a.get("data-name", "") for tag, a in page.tags if tag == "rect")  # type: ignore[operator]
    assert sum(HOSTILE in text for text in page.text) > 20


def test_the_page_draws_every_buffer_and_the_slowest_operators() -> None:
    compilation = planned()
    page = Page(page_of(compilation))
    assert page.count("rect") == len(report.memory_json(compilation)["buffers"])
    text = "".join(page.text)
    assert "15 more steps" in text  # of 40 operators 25 have bars
    assert "Outside of steps" in text
    assert "12\N{NO-BREAK SPACE}%" in text  # of the peak
    assert text.count("fallback") >= 2
    assert "Dynamic values outside the plan (1)" in text
    assert "a note" in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"verification": None}, "Verification was not asked for"),
        ({"verification": {"oracle": "reference", "outputs": []}}, "Nothing was compared"),
        ({"latency": {"before": None, "after": 1e-3, "onnxruntime": None}}, "1\N{NO-BREAK SPACE}ms"),
    ],
)
def test_the_page_does_without_what_was_not_run(changes: dict[str, Any], expected: str) -> None:
    compilation = planned()
    timings = timings_of(compilation) | {
        "kind": "predicted",
        "unfused": None,
        "peers": {"onnxruntime": {"unavailable": WHY}},
        "operators": [],
    }
    text = "".join(Page(page_of(compilation, timings=timings, **changes)).text)
    assert expected in text
    assert "a run, predicted" in text
    assert f"({WHY})" in text


def test_a_differing_output_is_marked() -> None:
    row = {"name": "out", "max_abs": 1.0, "max_rel": 0.5, "tolerance": 1e-4, "ok": False}
    page = Page(page_of(planned(), verification={"oracle": "onnxruntime", "outputs": [row]}))
    assert "1 of 1 differ" in "".join(page.text)
    assert any(a.get("class") == "failed" for tag, a in page.tags if tag == "tr")


def test_rectangles_have_the_proportions_of_their_buffers() -> None:
    memory = report.memory_json(planned())
    drawn = memory_map.draw(memory)
    steps = len(memory["steps"])
    buffers = {b["name"]: b for b in memory["buffers"]}
    for r in drawn.rectangles:
        b = buffers[r.name]
        assert r.width == pytest.approx(memory_map.WIDTH * (b["last"] - b["first"] + 1) / steps)
        assert r.height / r.width == pytest.approx(
            b["bytes"] / memory["peak_bytes"] / memory_map.HEADROOM / r.width * memory_map.HEIGHT
        )
    assert min(r.y for r in drawn.rectangles) >= drawn.peak_y - 1e-9
    assert drawn.peak_y <= drawn.bound_y


def test_a_plan_without_an_arena_has_a_page() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> agraph (float[4] x) => (float[4] y) { y = Relu(x) }'
    compilation = PlanMemory()(Order()(compilation_of(text)))
    assert "No value lives in the arena" in "".join(Page(page_of(compilation)).text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "–"), (0.0, "0"), (3e-9, "3 ns"), (1.5e-5, "15 µs"), (0.25, "250 ms"), (1234.0, "1,234 s")],
)
def test_durations_read_well(seconds: float | None, expected: str) -> None:
    assert units.duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == expected


def test_a_trace_has_every_step_once_and_the_bytes_alive_beside_it() -> None:
    compilation = planned()
    memory = report.memory_json(compilation)
    seconds = [1e-6 * (i + 1) for i in range(len(memory["steps"]))]
    trace = trace_json(compilation, memory, seconds, {"kind": "measured", "spill_seconds": 0.0})
    assert trace == json.loads(json.dumps(trace))
    steps = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [e["args"]["step"] for e in steps] == list(range(len(seconds)))
    ends = [0.0, *(e["ts"] + e["dur"] for e in steps)]
    assert [e["ts"] for e in steps] == pytest.approx(ends[:-1])
    assert ends[-1] == pytest.approx(sum(seconds) * 1e6)
    counted = [e["args"]["live"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert counted == [step["live_bytes"] for step in memory["steps"]]
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {rows[e["tid"]] for e in steps} == {
        c.implementation.backend for c in (compilation.plan.implementation or {}).values()
    }
