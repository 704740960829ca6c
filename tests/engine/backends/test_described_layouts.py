"""Layouts of described accelerators against every choice of a row for every node, at the costs of the description."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.core.program import Program
from tests.engine.backends.described_check import check
from tests.engine.backends.described_models import HEADER
from tests.engine.backends.described_targets import DRAM, target_from
from tests.engine.backends.test_accelerators import planned
from tests.engine.canonical import saved

Json = dict[str, Any]
LAYOUTS = ("", "NCHW16c", "NCHW8c", "NHWC", "NHCW")  # of each operator a subset, row-major among them
LANES = {"NCHW16c": 16, "NCHW8c": 8}
WIRINGS = (
    "a = Relu(x) b = Sigmoid(a) c = Tanh(b) y = Abs(c)",
    "a = Relu(x) b = Sigmoid(a) c = Tanh(a) y = Add(b, c)",
    "a = Relu(x) b = Sigmoid(x) c = Tanh(b) d = Abs(b) e = Add(c, d) y = Add(a, e)",
)
SHAPE = (1, 20, 6, 6)
TEXT = "g (float[1,20,6,6] x) => (float[1,20,6,6] y) {{ {body} }}"


def spec_of(costs: dict[tuple[str, str], float], conversion: Json) -> Json:
    """A device with a row for each operator and layout."""
    rows = []
    for (op, layout), us in costs.items():
        demand = {"in": {"layouts": [layout]}, "out": {"layouts": [layout]}} if layout else {}
        name = f"{op.lower()}_{layout.lower() or 'plain'}"
        rows.append({"name": name, "ops": [op], "operands": demand, "cost": {"fixed_us": us}, "reads": "any"})
    return {
        "name": "layouts",
        "device": "model",
        "memories": [DRAM],
        "backends": ["accelerator", "reference"],
        "accelerator": {"rows": rows, "conversion": conversion},
    }


def nodes_of(body: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(result, operator, operands) of each node."""
    words = body.replace(" = ", "=").replace(", ", ",").split()
    for word in words:
        result, _, rest = word.partition("=")
        op, _, operands = rest.removesuffix(")").partition("(")
        yield result, op, tuple(operands.split(","))


def least(body: str, spec: Json) -> float:
    """Seconds of the cheapest choice, each value converted once to each layout, by way of row-major."""
    nodes = list(nodes_of(body))
    rows: dict[str, list[tuple[str, float]]] = {}
    for row in spec["accelerator"]["rows"]:
        layout = row["operands"].get("in", {"layouts": [""]})["layouts"][0]
        rows.setdefault(row["ops"][0], []).append((layout, row["cost"]["fixed_us"] * 1e-6))
    rate = spec["accelerator"]["conversion"]
    best = np.inf
    for picked in itertools.product(*(rows[op] for _, op, _ in nodes)):
        total = sum(seconds for _, seconds in picked)
        written = {"x": ""} | {result: layout for (result, _, _), (layout, _) in zip(nodes, picked)}
        read: dict[str, set[str]] = {"y": {""}}
        for (_, _, operands), (layout, _) in zip(nodes, picked):
            for value in operands:
                read.setdefault(value, set()).add(layout)
        for value, wanted in read.items():
            others = wanted - {written[value]}
            for layout in [*others - {""}, *([written[value]] if others and written[value] else [])]:
                channels = -(-SHAPE[1] // LANES.get(layout, 1)) * LANES.get(layout, 1)
                moved = 4 * (np.prod(SHAPE) + channels * SHAPE[2] * SHAPE[3])
                total += rate["fixed_us"] * 1e-6 + moved / rate["bytes_per_second"]
        best = min(best, total)
    return float(best)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Json]:
    body = draw(st.sampled_from(WIRINGS))
    costs = {}
    for op in dict.fromkeys(op for _, op, _ in nodes_of(body)):
        for layout in ("", *draw(st.lists(st.sampled_from(LAYOUTS[1:]), max_size=3, unique=True))):
            costs[op, layout] = draw(st.floats(1, 20))
    rate = draw(st.sampled_from((0.5e9, 2e9, 10e9)))
    return body, spec_of(costs, {"fixed_us": draw(st.sampled_from((0.0, 1.0))), "bytes_per_second": rate})


def plan_of(body: str, spec: Json, folder: Path) -> Program:
    program = planned(saved(HEADER + TEXT.format(body=body), folder), target_from(spec), fuse=False)
    check(program, spec)
    return program


@settings(max_examples=30, deadline=None, derandomize=True)
@given(case=cases())
def test_the_plan_is_the_cheapest_with_conversions_at_their_described_cost(
    case: tuple[str, Json], tmp_path_factory: pytest.TempPathFactory
) -> None:
    body, spec = case
    program = plan_of(body, spec, tmp_path_factory.mktemp("plan"))
    found = sum(step.choice.seconds for step in program.steps)
    assert found == pytest.approx(least(body, spec), rel=1e-6)


def test_two_blocked_layouts_are_not_free_of_each_other(tmp_path: Path) -> None:
    """Each operator is fastest in another block; conversions from one to the other cost more than it saves."""
    body = WIRINGS[0]
    ops = [op for _, op, _ in nodes_of(body)]
    costs = {(op, layout): 9.0 for op in ops for layout in ("", "NCHW16c", "NCHW8c")}
    costs |= {(op, "NCHW16c" if i % 2 else "NCHW8c"): 8.0 for i, op in enumerate(ops)}
    spec = spec_of(costs, {"fixed_us": 1.1, "bytes_per_second": 1e15})
    program = plan_of(body, spec, tmp_path)
    assert not [s for s in program.steps if s.group.op == "ChangeLayout"]
    assert sum(s.choice.seconds for s in program.steps) == pytest.approx(36e-6)
