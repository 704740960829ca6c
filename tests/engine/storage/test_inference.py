"""Storage types as MXNet 1.9.1 infers them: every row that was measured, and graphs of several nodes."""

import json
import re
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from app.engine.core.registry import load
from app.engine.storage.inference import DECLARED, StorageColumns, inferred
from app.engine.types.errors import GraphError
from app.engine.types.storage import DispatchMode

REGISTRY = load()
GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "mxnet_storage_golden.json").read_text())
# By operator and attributes, for every combination of inputs: measured with MXNet 1.9.1 (CPU, oneDNN) from the
# verbose log of its inference, backward operators too.
MEASURED = json.loads((Path(__file__).parents[2] / "data" / "mxnet_storage_operators.json").read_text())
LETTERS = {"d": "default", "r": "row_sparse", "c": "csr"}
LETTER_MODES = {"F": DispatchMode.COMPUTE, "X": DispatchMode.COMPUTE_EX, "B": DispatchMode.FALLBACK}
MODES = {
    "fcompute": DispatchMode.COMPUTE,
    "fcompute_ex": DispatchMode.COMPUTE_EX,
    "fcompute_fallback": DispatchMode.FALLBACK,
}
# Labels of the table that are no operator's name with attributes.
LABELS = {
    "cast_storage->csr": ("cast_storage", {"stype": "csr"}),
    "cast_storage->row_sparse": ("cast_storage", {"stype": "row_sparse"}),
    "cast_storage->default": ("cast_storage", {"stype": "default"}),
    "slice(axis0)": ("slice", {"begin": "(0,)", "end": "(2,)"}),
    "Activation(relu)": ("Activation", {"act_type": "relu"}),
    "add_n3": ("add_n", {}),
}


def operator_of(label: str) -> tuple[str, dict[str, str]]:
    if label in LABELS:
        return LABELS[label]
    found = re.fullmatch(r"(\w+)(?:\((\w+)(?:=(\w+))?\))?", label)
    assert found is not None
    name, attribute, text = found.groups()
    return name, {attribute: text or "True"} if attribute else {}


def value(name: str, kind: str | None = None) -> ir.Value:
    made = ir.Value(name=name, shape=ir.Shape((4, 4)), type=ir.TensorType(ir.DataType.FLOAT))
    if kind is not None:
        made.metadata_props[DECLARED] = kind
    return made


def node(op: str, inputs: list[ir.Value], name: str, attributes: dict[str, str] | None = None) -> ir.Node:
    output = value(name)
    given = [ir.AttrString(k, v) for k, v in (attributes or {}).items()]
    return ir.Node("mxnet", op, inputs, given, outputs=[output], name=name)


def columns(inputs: list[ir.Value], nodes: list[ir.Node]) -> StorageColumns:
    return inferred(ir.Graph(inputs, list(nodes[-1].outputs), nodes=nodes), REGISTRY)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda r: f"{r['op']} {','.join(r['in'])}")
def test_mxnet_golden_row(row: dict[str, Any]) -> None:
    op, attributes = operator_of(row["op"])
    inputs = [value(f"x{i}", kind) for i, kind in enumerate(row["in"])]
    last = node(op, inputs, "y", attributes)
    if row["dispatch"] == "error":
        with pytest.raises(GraphError, match="takes storage types"):
            columns(inputs, [last])
        return
    found = columns(inputs, [last])
    assert [found.kinds[v] for v in last.outputs] == row["out"]
    assert found.modes[last] is MODES[row["dispatch"]]


def test_the_table_is_complete() -> None:
    assert len(GOLDEN) == 369


def test_knowledge_goes_back_to_an_undeclared_input() -> None:
    """sparse_retain takes row_sparse only, so what makes its operand is row_sparse too."""
    x, ids = value("x"), value("ids", "default")
    relu = node("relu", [x], "r")
    retain = node("sparse_retain", [relu.outputs[0], ids], "y")
    found = columns([x, ids], [relu, retain])
    assert found.kinds[x] == found.kinds[relu.outputs[0]] == "row_sparse"
    assert set(found.modes.values()) == {DispatchMode.COMPUTE_EX}


def test_what_stays_unknown_is_dense() -> None:
    x, z = value("x"), value("z")
    add = node("elemwise_add", [x, z], "y")
    found = columns([x, z], [add])
    assert set(found.kinds.values()) == {"default"}
    assert found.modes[add] is DispatchMode.COMPUTE_EX


def test_a_fallback_densifies_what_follows() -> None:
    x = value("x", "csr")
    exp = node("exp", [x], "e")
    relu = node("relu", [exp.outputs[0]], "y")
    found = columns([x], [exp, relu])
    assert [found.modes[n] for n in (exp, relu)] == [DispatchMode.FALLBACK, DispatchMode.COMPUTE]


@pytest.mark.parametrize(
    ("op", "kinds", "attributes", "out", "mode"),
    [
        ("FullyConnected", ["default", "row_sparse", "row_sparse"], {}, ["default"], "COMPUTE_EX"),
        ("FullyConnected", ["default", "default", "csr"], {}, ["default"], "FALLBACK"),
        ("add_n", ["csr"] * 4 + ["default"], {}, ["default"], "COMPUTE_EX"),
        ("add_n", ["csr"] * 5, {}, ["default"], "FALLBACK"),
        ("_backward_Convolution", ["default"] * 3, {}, ["default"] * 2, "COMPUTE_EX"),
        ("_backward_relu", ["row_sparse"] * 2, {}, ["row_sparse"], "COMPUTE_EX"),
        ("_backward_add", ["csr"], {}, ["csr"] * 2, "COMPUTE_EX"),
        ("_backward_dot", ["default", "csr", "default"], {}, ["default", "row_sparse"], "COMPUTE_EX"),
        (
            "_backward_Embedding",
            ["default"] * 2,
            {"sparse_grad": "True"},
            ["default", "row_sparse"],
            "COMPUTE_EX",
        ),
    ],
)
def test_rows_from_the_source(
    op: str, kinds: list[str], attributes: dict[str, str], out: list[str], mode: str
) -> None:
    inputs = [value(f"x{i}", kind) for i, kind in enumerate(kinds)]
    given = [ir.AttrString(k, v) for k, v in attributes.items()]
    outputs = [value(f"y{i}") for i in range(len(out))]
    last = ir.Node("mxnet", op, inputs, given, outputs=outputs, name="y")
    found = columns(inputs, [last])
    assert [found.kinds[v] for v in outputs] == out
    assert found.modes[last] is DispatchMode[mode]


def test_an_unknown_storage_type_is_an_error() -> None:
    x = value("x", "coo")
    with pytest.raises(GraphError, match=r"'x': storage type must be .* found 'coo'"):
        columns([x], [node("relu", [x], "y")])


@pytest.mark.parametrize("row", MEASURED, ids=lambda r: " ".join([r["op"], *r["attributes"].values()]))
def test_operators_infer_what_mxnet_infers_for_every_combination_of_inputs(row: dict[str, Any]) -> None:
    for kinds, expected in row["modes"].items():
        outputs, mode = expected.split(":")
        inputs = [value(f"x{i}", LETTERS[kind]) for i, kind in enumerate(kinds)]
        made = [value(f"y{i}") for i in range(len(outputs))]
        given = [ir.AttrString(k, v) for k, v in row["attributes"].items()]
        tested = ir.Node("mxnet", row["op"], inputs, given, outputs=made, name="n")
        found = columns(inputs, [tested])
        told = "".join(found.kinds[v][0] for v in made), found.modes[tested]
        assert told == (outputs, LETTER_MODES[mode]), kinds
