"""Accelerators that targets describe by data: their demands are obeyed, and what is not on them says why."""

import copy
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.api.schemas.targets import TargetSpec
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report.decisions import accelerated, decisions_json
from app.engine.report.report import memory_json
from app.engine.types.errors import TargetError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, find
from app.jobs.worker.child_request import target_of
from tests.engine.backends.described_check import check, check_reasons
from tests.engine.backends.described_models import NETWORKS, network, quantized
from tests.engine.backends.described_targets import BLOCK16, DRAM, TENSOR32, target_from

REGISTRY = load_registry()
Json = dict[str, Any]

# A third one, for this test alone: all operands in a small memory, tiles of 32 by 16 by 16, a table of times.
SCRATCHPAD: Json = {
    "name": "scratchpad",
    "device": "model",
    "memories": [DRAM, {"name": "tcm", "size": 100_000, "alignment": 16, "bandwidth": 40e9}],
    "backends": ["accelerator", "reference"],
    "accelerator": {
        "cost": {"points": [[0, 2], [1e5, 4], [1e6, 20]], "bytes_per_second": 40e9, "fixed_us": 1},
        "rows": [
            {
                "name": "norm_product",
                "pattern": [
                    {"op": "LayerNormalization", "inputs": ["x", "s", "t?"], "outputs": ["n"]},
                    {"op": "MatMul", "inputs": ["n", "w"], "outputs": ["y"]},
                ],
                "operands": {"in": {"memory": "tcm"}, "out": {"memory": "tcm"}, "weights": {"memory": "tcm"}},
            },
            {
                "name": "conv",
                "ops": ["Conv"],
                "epilogue": ["Relu"],
                "operands": {
                    "in": {"layouts": ["NHWC"], "multiple": 4, "memory": "tcm"},
                    "out": {"layouts": ["NHWC"], "multiple": 4, "memory": "tcm"},
                    "weights": {"memory": "tcm"},
                },
                "leaves": "zero",
                "limits": {
                    "channels": 20,
                    "tile": [32, 16, 16],
                    "dispatches": 4,
                    "attributes": {"group": [1]},
                },
            },
            {
                "name": "product",
                "ops": ["MatMul"],
                "operands": {
                    "in": {"memory": "tcm", "multiple": 16},
                    "out": {"memory": "tcm"},
                    "weights": {"memory": "tcm"},
                },
                "limits": {"nbytes": 60_000},
            },
            {
                "name": "vector",
                "ops": ["Add", "Mul", "Relu", "Softmax", "LayerNormalization"],
                "operands": {"in": {"memory": "tcm"}, "out": {"memory": "tcm"}},
                "inplace": [["in0", "out0"]],
                "cost": {"bytes_per_second": 40e9, "fixed_us": 1},
            },
        ],
    },
}
SPECS = {spec["name"]: spec for spec in (TENSOR32, BLOCK16, SCRATCHPAD)}


def planned(path: Path, target: Target, **options: Any) -> Program:
    chosen = Options(**options)
    return session.planned(session.canonical(load(path), target, chosen, Bindings(), REGISTRY), chosen)


def file_of(name: str, folder: Path) -> Path:
    return quantized(folder) if name == "quantized" else network(name, folder)


def changed(spec: Json, row: int = 0, **fields: Any) -> Json:
    """A description with other fields of one row."""
    made = copy.deepcopy(spec)
    made["accelerator"]["rows"][row] |= fields
    return made


@pytest.mark.parametrize("name", ["quantized", *NETWORKS])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("options", [{}, {"prefer": "memory"}, {"fuse": False}, {"inplace": False}], ids=str)
def test_plans_obey_descriptions(name: str, spec: Json, options: Json, tmp_path: Path) -> None:
    check(planned(file_of(name, tmp_path), target_from(spec), **options), spec)


EXPECTED = {
    ("quantized", "tensor32"): {"conv_requantize": 3, "pool": 1},
    ("residual", "tensor32"): {},
    ("residual", "block16"): {"conv": 5, "pool": 2, "product": 1},
    ("depthwise", "block16"): {"conv": 4, "depthwise": 2},
    ("transformer", "block16"): {"product": 8, "add": 4},
    ("transformer", "scratchpad"): {"norm_product": 1, "product": 6, "vector": 6},
    ("residual", "scratchpad"): {"conv": 3, "vector": 4},
}


@pytest.mark.parametrize(("name", "target"), EXPECTED, ids=["-".join(key) for key in EXPECTED])
def test_what_a_description_has_runs_on_it(name: str, target: str, tmp_path: Path) -> None:
    found = check(planned(file_of(name, tmp_path), target_from(SPECS[target])), SPECS[target])
    assert found == EXPECTED[name, target]


def test_the_job_verifies_the_layouts_and_says_that_times_are_predicted(tmp_path: Path) -> None:
    path, target = quantized(tmp_path), target_from(TENSOR32)
    summary = optimize(path, target, Options(), Bindings(), tmp_path, kernels=tmp_path)
    assert summary["timings"] == "predicted"
    assert any(
        "predicted from the description of target 'tensor32', not measured" in n for n in summary["notes"]
    )
    proof = summary["verification"]
    assert [d["ok"] for d in proof["functions"]] == [True], "the plan over tensors as the device has them"
    assert "not the target" in proof["unverified"]["outputs"]
    told = summary["accelerator"]
    assert (told["nodes"], told["steps"], told["conversions"]) == (19, 4, 2)
    assert {(e["op"], e["backend"], e["count"]) for e in told["elsewhere"]} == {
        ("QuantizeLinear", "numba-cpu", 1),
        ("DequantizeLinear", "numba-cpu", 1),
    }
    assert all("it takes no" in e["reason"] for e in told["elsewhere"])
    page = (tmp_path / "report.html").read_text()
    assert "predicted, not measured" in page
    assert "it takes no QuantizeLinear" in page


def test_a_target_without_an_accelerator_tells_nothing_of_one(tmp_path: Path) -> None:
    program = planned(network("residual", tmp_path), find("cpu-avx2"))
    assert accelerated(program.compilation) is None
    assert not any("predicted from the description" in note for note in program.compilation.notes)


REASONS = [
    ("residual", changed(BLOCK16, limits={"kernel": 1}), "Conv", "3 a kernel of Conv, at most 1"),
    ("residual", changed(BLOCK16, limits={"stride": 1}), "Conv", "2 strides, at most 1"),
    ("residual", changed(BLOCK16, limits={"channels": 39}), "Conv", "channels of 'i', at most 39"),
    ("residual", changed(BLOCK16, limits={"nbytes": 10_000}), "Conv", "byte of operands and results, at most 10000"),
    ("residual", changed(BLOCK16, limits={"rank": 3}), "Conv", "4 axes of 'x', at most 3"),
    ("residual", changed(BLOCK16, limits={"tile": [8, 8], "dispatches": 3}), "Conv", "4 dispatches of tiles of [8, 8], at most 3"),
    ("residual", changed(BLOCK16, dtypes=["float16"]), "Conv", "is float32; the row takes float16"),
    ("residual", TENSOR32, "MaxPool", "is float32; the row takes int8, uint8"),
    ("depthwise", changed(BLOCK16, row=1, limits={"depthwise": False}), "Conv", "it takes no depthwise convolution"),
    ("depthwise", BLOCK16, "Conv", "attribute 'group' is 16; the row takes 1"),
    ("transformer", BLOCK16, "Softmax", "it has no row for Softmax"),
    ("transformer", BLOCK16, "LayerNormalization", "it has no row for LayerNormalization"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "spec", "op", "reason"), REASONS, ids=[r[-1] for r in REASONS])
def test_what_is_not_on_it_says_why(name: str, spec: Json, op: str, reason: str, tmp_path: Path) -> None:
    program = planned(network(name, tmp_path), target_from(spec))
    check(program, spec)
    reasons = [
        str(a["reason"])
        for d in decisions_json(program.compilation)["decisions"]
        if op in d["op"].split("+")
        for a in d["alternatives"]
        if a["backend"] == "accelerator"
    ]
    assert any(reason in told for told in reasons), reasons


def test_operands_that_a_memory_cannot_hold_are_elsewhere_with_the_reason(tmp_path: Path) -> None:
    spec = copy.deepcopy(BLOCK16)
    spec["memories"][1]["size"] = 20_000
    program = planned(network("residual", tmp_path), target_from(spec))
    found = check(program, spec)
    assert 0 < found["conv"] < 5
    text = json.dumps(decisions_json(program.compilation))
    assert re.search(r"its operands take \d+ byte of 'sram', which has 20000", text)


def test_values_live_where_all_their_steps_ask_for_them(tmp_path: Path) -> None:
    program = planned(network("transformer", tmp_path), target_from(SCRATCHPAD))
    check(program, SCRATCHPAD)
    inner = [b for b in program.placement.buffers if b.memory == "tcm" and b.kind != "staged"]
    assert inner, "a value between two steps of the device lies in its memory"
    assert program.placement.delay > 0, "inputs and outputs are copied"
    memory = memory_json(program.compilation)
    assert {m["name"] for m in memory["memories"]} == {"dram", "tcm"}
    assert not memory["order"]["proved"], "a bound of one memory says nothing of two"


@pytest.mark.parametrize("name", ["transformer", "residual"])
def test_what_is_proved_of_memory_is_said_of_each(name: str, tmp_path: Path) -> None:
    """A bound of all rows counts every value in the first memory; what rows ask for elsewhere is not there."""
    program = planned(network(name, tmp_path), target_from(SCRATCHPAD), prefer="memory")
    check(program, SCRATCHPAD)
    memory = memory_json(program.compilation)
    assert memory["rows"] == {"lower_bound": None, "proved": False}
    assert any("is not proved: some ask for other memories" in note for note in program.compilation.notes)
    alignment = {m["name"]: m.get("alignment", 64) for m in SCRATCHPAD["memories"]}
    assert [m["name"] for m in memory["memories"]] == list(alignment)
    for told in memory["memories"]:
        live = [0] * len(program.steps)
        unit = alignment[told["name"]]
        for buffer in (b for b in program.placement.buffers if b.memory == told["name"]):
            for span in buffer.spans:
                for step in range(max(span.first, 0), span.last + 1):
                    live[step] += -(-span.nbytes // unit) * unit
        assert max(live) <= told["lower_bound"] <= told["peak_bytes"]
        assert told["proved"] == (told["gap"] == 0)


def test_rows_that_ask_for_no_memory_have_a_bound(tmp_path: Path) -> None:
    program = planned(network("residual", tmp_path), target_from(TENSOR32), prefer="memory")
    rows = memory_json(program.compilation)["rows"]
    assert 0 < rows["lower_bound"] <= program.placement.solution.peak


CHAIN = """<ir_version: 10, opset_import: ["": 21]>
chain (float[1,1024] x) => (float[1,1024] y) {
    a = Relu(x) b = Relu(a) c = Relu(b) d = Relu(c) e = Add(a, d) y = Relu(e)
}"""


@pytest.mark.parametrize("values", [3, 2], ids=["room", "without room"])
def test_values_leave_a_memory_without_room_and_are_copied_for_each_step(values: int, tmp_path: Path) -> None:
    """The first value waits while two others are in use; it is read by two steps."""
    path = tmp_path / "chain.onnx"
    onnx.save(onnx.parser.parse_model(CHAIN), path)
    spec = copy.deepcopy(SCRATCHPAD)
    spec["memories"][1]["size"] = values * 4096 + 64
    operands = {"in": {"memory": "tcm"}}
    spec["accelerator"]["rows"] = [{"name": "vector", "ops": ["Relu", "Add"], "operands": operands}]
    program = planned(path, target_from(spec), fuse=False)
    assert check(program, spec) == {"vector": 6}
    homes = {name: b.memory for b in program.placement.buffers for name in b.values}
    copies = sorted(b.name for b in program.placement.buffers if b.kind == "staged")
    assert set(homes.values()) == ({"tcm"} if values == 3 else {"tcm", "dram"})
    reads = {"x": [0], "a": [1, 4], "b": [2], "c": [3], "d": [4], "e": [5]}
    outside = [name for name in reads if homes.get(name) != "tcm"]
    assert copies == sorted(f"{name}.staged.{step}" for name in outside for step in reads[name])
    assert program.placement.delay == pytest.approx(len(copies) * 4096 / 12e9)


def test_results_are_computed_in_place_where_the_description_allows_it_and_nowhere_else(
    tmp_path: Path,
) -> None:
    path = network("transformer", tmp_path)
    with_pairs = planned(path, target_from(BLOCK16))
    without = planned(path, target_from(changed(BLOCK16, row=4, inplace=[])))
    shared = [
        sum("because accelerator.add allows it" in b.reason for b in p.placement.buffers)
        for p in (with_pairs, without)
    ]
    assert shared[0] > 0
    assert shared[1] == 0


def test_times_follow_the_table_tiles_and_padding(tmp_path: Path) -> None:
    spec = copy.deepcopy(SCRATCHPAD)
    program = planned(network("residual", tmp_path), target_from(spec))
    (step,) = (s for s in program.steps if s.group.name == "Conv a")
    # x 3 channels in 4, y 20 in 20: 20 * 16 * 16 results of 4 * 9 products, 1 dispatch of [32, 16, 16].
    macs = 20 * 16 * 16 * 4 * 9 + 20 * 16 * 16 / 2 * (4 / 3)  # Relu is half a MAC, padded as the product is
    table = 4 + (macs - 1e5) / 9e5 * 16
    weights = -(-20 * 3 * 9 * 4 // 16) * 16 + 80
    assert step.choice.seconds == pytest.approx((1 + table) * 1e-6 + weights / 12e9, rel=1e-6)
    spec["accelerator"]["rows"][1]["limits"]["tile"] = [32, 8, 16]
    twice = planned(network("residual", tmp_path), target_from(spec))
    (step,) = (s for s in twice.steps if s.group.name == "Conv a")
    half = 2 + (macs / 2) / 1e5 * 2 if macs / 2 < 1e5 else 4 + (macs / 2 - 1e5) / 9e5 * 16
    assert step.choice.seconds == pytest.approx(2 * (1 + half) * 1e-6 + weights / 12e9, rel=1e-6)


def test_a_pattern_that_something_else_reads_is_not_taken(tmp_path: Path) -> None:
    """The value between is an output of the graph: its nodes run one by one, or elsewhere."""
    path = quantized(tmp_path)
    proto = onnx.load(path)
    value = onnx.ValueInfoProto()
    value.CopyFrom(proto.graph.input[0])
    value.name = "a_r"
    value.type.tensor_type.shape.dim[1].dim_value = 20
    proto.graph.output.append(value)
    onnx.save(proto, path)
    found = check(planned(path, target_from(TENSOR32)), TENSOR32)
    assert found == {"conv_requantize": 2, "pool": 1}


def test_zero_points_are_moved_out_for_products_without_them(tmp_path: Path) -> None:
    program = planned(quantized(tmp_path, zero=3), target_from(TENSOR32))
    check(program, TENSOR32)
    products = [n for n in program.compilation.graph if n.op_type == "ConvInteger"]
    assert products
    assert all(len([v for v in n.inputs if v is not None]) == 2 for n in products)


def test_a_commutative_operator_matches_either_way(tmp_path: Path) -> None:
    spec = changed(TENSOR32)
    for node in spec["accelerator"]["rows"][0]["pattern"]:
        if node["op"] in ("Mul", "Add"):
            node["inputs"].reverse()
    found = check(planned(quantized(tmp_path), target_from(spec)), spec)
    assert found["conv_requantize"] == 3


def test_the_preset_edge_npu_is_such_a_description(tmp_path: Path) -> None:
    target = find("edge-npu")
    assert target.accelerator is not None
    spec = json.loads(json.dumps(asdict(target)))
    assert TargetSpec.of({k: v for k, v in spec.items() if k != "cpu_model"}).to_target() == target
    for name in ("quantized", *NETWORKS):
        program = planned(file_of(name, tmp_path), target)
        check_reasons(program)
        assert {s.choice.implementation.backend for s in program.steps} == {"accelerator"}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_descriptions_survive_the_way_to_a_worker(spec: Json) -> None:
    target = target_from(spec)
    assert target_of(json.loads(json.dumps(asdict(target)))) == target


INVALID = [
    (changed(BLOCK16, ops=[]), "either ops or a pattern", "/accelerator/rows/0"),
    (changed(BLOCK16, operands={"in": {"layouts": ["NCHWc"]}}), "cannot read 'c'", "/accelerator/rows/0/operands/in/layouts"),
    (changed(BLOCK16, operands={"in": {"layouts": ["NCHW9999c"]}}), "at most 4096", "/accelerator/rows/0/operands/in/layouts"),
    (changed(BLOCK16, operands={"in": {"layouts": ["NCHW", "NHWC"]}}), "two layouts of 4 axes", "/accelerator/rows/0/operands/in/layouts"),
    (changed(BLOCK16, operands={"x": {}}), "unknown operand 'x'", "/accelerator/rows/0/operands/x"),
    (changed(BLOCK16, operands={"in": {"memory": "l2"}}), "unknown memory 'l2'; the target has dram, sram", "/accelerator/rows/0/operands/in/memory"),
    (changed(BLOCK16, dtypes=["float33"]), "unknown type 'float33'", "/accelerator/rows/0/dtypes"),
    (changed(BLOCK16, inplace=[["out0", "in0"]]), "such as in0, out0", "/accelerator/rows/0/inplace"),
    (changed(BLOCK16, leaves="f(0)"), "only a row of 'Elementwise'", "/accelerator/rows/0/leaves"),
    (changed(BLOCK16, name="pool"), "two rows are called 'pool'", "/accelerator/rows/2/name"),
    (changed(BLOCK16, name="loop"), "cannot be called 'loop'", "/accelerator/rows/0/name"),
    (changed(BLOCK16, cost={"points": [[2, 1], [1, 2]]}), "must rise", "/accelerator/rows/0/cost/points"),
    (changed(TENSOR32, epilogue=["Relu"]), "a pattern has no epilogue", "/accelerator/rows/0/epilogue"),
    (
        changed(TENSOR32, pattern=[{"op": "Relu", "inputs": ["x"], "outputs": ["a"]}, {"op": "Relu", "inputs": ["x"], "outputs": ["y"]}]),
        "nothing reads what Relu writes",
        "/accelerator/rows/0/pattern/0",
    ),
    (
        changed(TENSOR32, pattern=[{"op": "Relu", "inputs": ["x"], "outputs": ["x"]}]),
        "written after it is read",
        "/accelerator/rows/0/pattern/0",
    ),
    (BLOCK16 | {"backends": ["reference"]}, "its backends lack it", "/backends"),
    (BLOCK16 | {"accelerator": None}, "this one does not", ""),
    (BLOCK16 | {"memories": [DRAM, DRAM]}, "two memories have one name", "/memories"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "message", "pointer"), INVALID, ids=[i[1] for i in INVALID])
def test_descriptions_that_contradict_themselves_are_refused(spec: Json, message: str, pointer: str) -> None:
    with pytest.raises(TargetError, match=re.escape(message)) as refused:
        target_from(spec)
    assert refused.value.pointer == pointer


def test_weights_of_named_values_do_not_collide_with_copies(tmp_path: Path) -> None:
    """A model may call a value as a copy is called."""
    path = network("depthwise", tmp_path)
    proto = onnx.load(path)
    for node in proto.graph.node:
        node.output[:] = ["w0.staged.1" if n == "b" else n for n in node.output]
        node.input[:] = ["w0.staged.1" if n == "b" else n for n in node.input]
    onnx.save(proto, path)
    program = planned(path, target_from(BLOCK16))
    names = [b.name for b in program.placement.buffers]
    assert len(set(names)) == len(names)
    assert np.isfinite(program.seconds)


PAGE = Path(__file__).resolve().parents[3] / "docs" / "accelerators.md"


def test_the_page_describes_a_device_in_forty_lines(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(text.splitlines()) <= 40
    spec = json.loads(text)
    target = TargetSpec.model_validate_json(text).to_target()
    program = planned(quantized(tmp_path), target)
    assert check(program, spec) == {"conv": 3, "pool": 1}
    copies = {b.name: b.memory for b in program.placement.buffers if b.kind == "staged"}
    assert set(copies.values()) == {"tcm"}
    assert len(copies) == 3
    for name in NETWORKS:
        assert check(planned(network(name, tmp_path), target), spec) == {}
