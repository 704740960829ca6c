"""graph.json: all of the plan, each thing once, with what the page tells of it."""

import json

from app.engine.report.drawing import LONGEST, graph_json
from tests.engine.report.test_report import HOSTILE, planned


def test_every_step_input_and_output_has_a_place_of_its_own() -> None:
    compilation = planned()
    found = graph_json(compilation)
    assert compilation.plan.order is not None
    steps = [n for n in found["nodes"] if n["kind"] == "step"]
    assert [n["name"] for n in steps] == [g.name for g in compilation.plan.order]
    assert {n["name"] for n in found["nodes"] if n["kind"] == "input"} == {"x"} | {
        v.name for v in compilation.graph.inputs
    }
    assert {n["name"] for n in found["nodes"] if n["kind"] == "output"} == {"out", "where"}
    assert len({(n["x"], n["y"]) for n in found["nodes"]}) == len(found["nodes"])
    assert all(0 <= n["x"] <= found["width"] and 0 <= n["y"] <= found["height"] for n in found["nodes"])
    assert [n["op"] for n in steps if n["fallback"]] == ["Log"]


def test_every_edge_names_values_that_are_described() -> None:
    found = graph_json(planned())
    for edge in found["edges"]:
        assert edge["from"] < edge["to"]
        assert edge["values"]
        assert all(v in found["values"] for v in edge["values"])
        assert len(edge["points"]) >= 2
    a = found["values"]["a"]
    assert (a["shape"], a["bytes"], a["layout"]) == ([64], 256, "row-major")
    assert found["values"]["where"]["bytes"] is None, "its shape is known when it runs only"


def test_the_document_is_json_and_always_the_same() -> None:
    texts = {json.dumps(graph_json(planned(hostile=True)), allow_nan=False) for _ in range(2)}
    assert len(texts) == 1
    assert json.dumps(HOSTILE)[1:-1] in texts.pop()
    assert LONGEST < 1000
