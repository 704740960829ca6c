"""Views of described accelerators: results that are bytes of operands take no step, others are copied."""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.operators.movement import PARTS, VIEWS
from app.engine.report.decisions import decisions_json
from app.engine.types.accelerator import VIEW_OPS
from app.engine.types.errors import TargetError
from app.jobs.worker.child_request import target_of
from tests.engine.backends.described_check import check
from tests.engine.backends.described_models import HEADER, NETWORKS, network
from tests.engine.backends.described_targets import BLOCK16, DRAM, target_from
from tests.engine.backends.test_accelerators import planned
from tests.engine.canonical import saved

Json = dict[str, Any]
_ROWS = {"layouts": ["AB16b", "ABC16c", "NCHW16c"]}
_LAYOUTS = {"in": _ROWS, "out": _ROWS}

# The blocked device whose parts of images are addresses, and whose matrices are reshaped as they lie.
VIEWER = copy.deepcopy(BLOCK16) | {"name": "viewer"}
VIEWER["accelerator"]["conversion"] = {"bytes_per_second": 12e9, "fixed_us": 1}
VIEWER["accelerator"]["rows"] += [
    {"name": "parts", "ops": ["Concat", "Split", "Slice"], "operands": _LAYOUTS, "views": {}},
    {"name": "shapes", "ops": ["Reshape", "Flatten", "Squeeze", "Transpose", "Slice"], "views": {}},
]


def with_row(row: Json, alignment: int = 64) -> Json:
    """A description of one row beside elementwise operators, of a memory with this alignment."""
    return {
        "name": "small",
        "device": "model",
        "memories": [DRAM | {"alignment": alignment}],
        "backends": ["accelerator", "reference"],
        "accelerator": {
            "conversion": {"bytes_per_second": 1e9, "fixed_us": 1},
            "rows": [{"name": "vector", "ops": ["Relu"], "cost": {"fixed_us": 1}}, {"name": "row"} | row],
        },
    }


def plan_of(text: str, spec: Json, folder: Path, **arrays: Any) -> Program:
    path = saved(HEADER + text, folder, arrays)
    program = planned(path, target_from(spec), fuse=False)
    check(program, spec)
    return program


def chosen(program: Program) -> dict[str, str]:
    """Implementations of the description's rows by operator."""
    names = {s.group.anchor.op_type: s.choice.implementation.name for s in program.steps}
    return {op: n.removeprefix("accelerator.") for op, n in names.items() if n.startswith("accelerator.")}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("options", [{}, {"prefer": "memory"}, {"fuse": False}, {"inplace": False}], ids=str)
def test_plans_with_views_obey_descriptions(name: str, options: Json, tmp_path: Path) -> None:
    check(planned(network(name, tmp_path), target_from(VIEWER), **options), VIEWER)


def test_a_device_that_needs_no_copies_has_none(tmp_path: Path) -> None:
    """Halves of an image, and their concatenation, are computed where they lie."""
    path = network("views", tmp_path)
    program = planned(path, target_from(VIEWER))
    check(program, VIEWER)
    steps = {
        s.group.name: s.choice
        for s in program.steps
        if s.choice.implementation.name.split(".")[1] in ("parts", "shapes")
    }
    names = {name: choice.implementation.name.removeprefix("accelerator.") for name, choice in steps.items()}
    assert sorted(names.values()) == [
        "parts.concat", "parts.concat", "parts.split", "shapes.flatten", "shapes.reshape", "shapes.slice",
        "shapes.squeeze",
    ]  # fmt: skip
    copies = {name: choice.seconds for name, choice in steps.items() if choice.seconds}
    assert copies == {"Concat y": pytest.approx(1e-6 + 2 * 4096 / 12e9)}, "half of it is the half of an input"
    spec = copy.deepcopy(VIEWER)
    for row in spec["accelerator"]["rows"]:
        row.pop("views", None)
    copying = planned(path, target_from(spec))
    check(copying, spec)
    assert copying.seconds > program.seconds


SLICED = """slice (float[40] x) => (float[24] y, float[40] z) {
    a = Relu(x) z = Relu(a) b = Slice(a, start, end) y = Relu(b)
}"""


@pytest.mark.parametrize(("start", "alignment", "rule", "view"), [
    (16, 64, 1, True),
    (4, 64, 1, False),
    (4, 16, 1, True),
    (4, 16, 32, False),
    (8, 16, 32, True),
    (3, 4, 1, True),
])  # fmt: skip
def test_a_part_is_a_view_where_its_place_is_aligned(
    start: int, alignment: int, rule: int, view: bool, tmp_path: Path
) -> None:
    spec = with_row({"ops": ["Slice"], "views": {"alignment": rule}}, alignment)
    bounds = {"start": np.array([start]), "end": np.array([start + 24])}
    program = plan_of(SLICED, spec, tmp_path, **bounds)
    assert chosen(program)["Slice"] == ("row" if view else "row.copy")
    (step,) = (s for s in program.steps if s.group.anchor.op_type == "Slice")
    assert step.choice.seconds == pytest.approx(0 if view else 1e-6 + 2 * 24 * 4 / 1e9)
    told = json.dumps(decisions_json(program.compilation))
    assert (
        "byte" in told and (f"no multiple of {rule}" in told or "does not begin a cache line" in told)
    ) != view


PARTS_TEXT = """parts (float[1,{whole},4,4] x) => (float[1,{whole},4,4] y) {{
    a = Relu(x) b, c = Split<axis = {axis}>(a, sizes) d = Relu(b) e = Relu(c) f = Concat<axis = {axis}>(d, e) y = Relu(f)
}}"""


@pytest.mark.parametrize(("layout", "axis", "sizes", "views"), [
    ("NCHW16c", 1, (16, 32), "both"),
    ("NCHW16c", 1, (32, 8), "both"),
    ("NCHW16c", 1, (8, 32), "first"),
    ("NCHW16c", 2, (2, 2), "none"),
    ("NCHW4c4c", 1, (16, 16), "both"),
    ("NCHW4c4c", 1, (4, 28), "first"),
    ("NHWC", 2, (1, 3), "both"),
    ("NHWC", 1, (16, 16), "none"),
])  # fmt: skip
def test_parts_of_images_are_views_where_they_lie_in_one_piece(
    layout: str, axis: int, sizes: tuple[int, int], views: str, tmp_path: Path
) -> None:
    demand = {"in": {"layouts": [layout]}, "out": {"layouts": [layout]}}
    spec = with_row({"ops": ["Split", "Concat"], "views": {}, "operands": demand})
    spec["accelerator"]["rows"][0] |= {"operands": demand}
    whole = sum(sizes) if axis == 1 else 32
    program = plan_of(PARTS_TEXT.format(whole=whole, axis=axis), spec, tmp_path, sizes=np.array(sizes))
    found = {
        s.group.anchor.op_type: len(s.choice.views)
        for s in program.steps
        if "row" in s.choice.implementation.name
    }
    most = {"both": 2, "first": 1, "none": 0}[views]
    assert found == {"Split": most, "Concat": most}


WHOLE = [
    ("a = Relu(x) b = Reshape(a, shape) y = Relu(b)", "2,3,4", "6,4", {}, "row"),
    ("a = Relu(x) b = Transpose<perm = [0, 2, 1]>(a) y = Relu(b)", "2,1,4", "2,4,1", {}, "row"),
    ("y = Reshape(x, shape)", "2,3,4", "6,4", {}, "row.copy"),  # both have memory of their own
]


@pytest.mark.parametrize(("body", "before", "after", "operands", "row"), WHOLE, ids=[w[0] for w in WHOLE])
def test_values_of_another_shape_are_views_where_nothing_moves(
    body: str, before: str, after: str, operands: Json, row: str, tmp_path: Path
) -> None:
    spec = with_row({"ops": ["Reshape", "Transpose"], "views": {}, "operands": operands})
    text = f"whole (float[{before}] x) => (float[{after}] y) {{ {body} }}"
    program = plan_of(text, spec, tmp_path, shape=np.array([6, 4]))
    (found,) = (n for op, n in chosen(program).items() if op in ("Reshape", "Transpose"))
    assert found.replace("row.reshape", "row").replace("row.transpose", "row") == row


@pytest.mark.parametrize(("source", "perm", "result", "view"), [
    ("NHWC", [0, 2, 3, 1], "NCHW", True),
    ("NCHW", [0, 3, 1, 2], "NHWC", True),
    ("NHWC", [0, 3, 1, 2], "NCHW", False),
])  # fmt: skip
def test_a_transpose_is_a_view_of_a_value_that_lies_as_its_result(
    source: str, perm: list[int], result: str, view: bool, tmp_path: Path
) -> None:
    operands = {"in": {"layouts": [source]}, "out": {"layouts": [result]}}
    spec = with_row({"ops": ["Transpose"], "views": {}, "operands": operands})
    shape = [1, 3, 4, 5]
    after = ",".join(str(shape[axis]) for axis in perm)
    text = f"t (float[1,3,4,5] x) => (float[{after}] y) {{ a = Relu(x) b = Transpose<perm = {perm}>(a) y = Relu(b) }}"
    program = plan_of(text, spec, tmp_path)
    assert chosen(program).get("Transpose") == ("row" if view else None)
    if not view:
        assert "moves elements" in json.dumps(decisions_json(program.compilation))


INVALID = [
    ({"ops": ["Relu"], "views": {}}, "'Relu' makes no views", "/views"),
    ({"ops": ["Split"], "epilogue": ["Relu"], "views": {}}, "computes nothing", "/epilogue"),
    ({"ops": ["Split"], "inplace": [["in0", "out0"]], "views": {}}, "has no pairs", "/inplace"),
    ({"ops": ["Split"], "operands": {"in": {"memory": "dram"}}, "views": {}}, "is where its operand is", "/operands/in/memory"),
    ({"pattern": [{"op": "Relu", "inputs": ["x"], "outputs": ["y"]}], "views": {}}, "'a pattern' makes no views", "/views"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message", "place"), INVALID, ids=[i[1] for i in INVALID])
def test_rows_whose_results_cannot_be_views_are_refused(row: Json, message: str, place: str) -> None:
    with pytest.raises(TargetError, match=message) as refused:
        target_from(with_row(row))
    assert refused.value.pointer == f"/accelerator/rows/1{place}"


def test_operators_of_views_are_those_whose_results_may_be_bytes_of_operands() -> None:
    assert sorted(VIEW_OPS) == sorted({*VIEWS, *(op for op, _, _ in PARTS)})


def test_rules_of_views_survive_the_way_to_a_worker() -> None:
    target = target_from(VIEWER)
    assert target_of(json.loads(json.dumps(asdict(target)))) == target
