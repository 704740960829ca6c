"""Random descriptions of accelerators: refused with a reason, or planned for as they demand."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.api.schemas.targets import AcceleratorSpec, TargetSpec
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.accelerator import VIEW_OPS
from app.engine.types.errors import CapacityError, TargetError
from app.engine.types.options import Bindings, Options
from tests.engine.backends.described_check import check
from tests.engine.backends.described_models import NETWORKS, network, quantized

REGISTRY = load_registry()
Json = dict[str, Any]

LAYOUTS = (
    "NHWC",
    "NCHW16c",
    "NCHW8c",
    "NCHW4c2c",
    "CHWN",
    "ABC",
    "ABC8c",
    "BAC",
    "AB",
    "AB16b",
    "BA4a",
    "A",
    "A8a",
    "NHCW",
)
OPS = ("Conv", "ConvInteger", "MatMul", "Gemm", "MaxPool", "GlobalAveragePool", "Softmax", "LayerNormalization",
       "Flatten", "Transpose", "Concat", "Split", "Elementwise", "Relu", "Clip", "Add", "Mul", "Cast", "QuantizeLinear")  # fmt: skip
PATTERNS = (
    [{"op": "Conv", "inputs": ["x", "w", "b?"], "outputs": ["c"]}, {"op": "Relu|Clip", "inputs": ["c", "l?", "h?"], "outputs": ["y"]}],
    [{"op": "MatMul", "inputs": ["x", "w"], "outputs": ["c"]}, {"op": "Add", "inputs": ["r", "c"], "outputs": ["y"]}],
    [{"op": "LayerNormalization", "inputs": ["x", "w", "b?"], "outputs": ["c"]}, {"op": "MatMul", "inputs": ["c", "v"], "outputs": ["y"]}],
    [{"op": "Mul", "inputs": ["x", "s"], "outputs": ["c"]}, {"op": "Softmax", "inputs": ["c"], "outputs": ["y"]}],
    [{"op": "Cast", "inputs": ["x"], "outputs": ["c"]}, {"op": "Mul", "inputs": ["c", "s"], "outputs": ["y"]}],
)  # fmt: skip

few = st.integers(1, 3)
# Mostly one layout for each number of axes, as a device has them; now and then any.
FAMILIES = (
    [],
    ["NHWC"],
    ["NCHW16c"],
    ["NHWC", "ABC", "AB16b"],
    ["AB16b", "ABC16c", "NCHW16c"],
    ["CHWN", "BAC"],
)
operands = st.fixed_dictionaries(
    {},
    optional={
        "layouts": st.sampled_from(FAMILIES)
        | st.sampled_from(FAMILIES)
        | st.lists(st.sampled_from(LAYOUTS), max_size=2, unique=True),
        "multiple": st.sampled_from((1, 1, 4, 32)),
        "memory": st.sampled_from(("", "main", "tcm", "tcm")),
    },
)
costs = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "macs_per_second": st.sampled_from((1.0, 1e9, 1e18)),
        "bytes_per_second": st.sampled_from((1.0, 1e9)),
        "fixed_us": st.sampled_from((0.0, 5.0)),
        "points": st.lists(st.tuples(st.sampled_from((0.0, 1e3, 1e6)), st.floats(0, 100)), max_size=3),
    },
)
limits = st.fixed_dictionaries(
    {},
    optional={
        "rank": st.integers(0, 4),
        "kernel": st.integers(0, 5),
        "stride": few,
        "channels": st.sampled_from((0, 16, 40, 200)),
        "nbytes": st.sampled_from((0, 10_000, 1_000_000)),
        "tile": st.lists(st.sampled_from((1, 8, 64)), max_size=5),
        "dispatches": st.sampled_from((0, 1, 100)),
        "attributes": st.dictionaries(st.sampled_from(("group", "axis", "auto_pad")), st.lists(st.sampled_from((0, 1, -1, "SAME")), max_size=2), max_size=2),
        "depthwise": st.none() | st.booleans(),
        "zero_points": st.booleans(),
    },
)  # fmt: skip


@st.composite
def rows(draw: st.DrawFn) -> Json:
    pattern = draw(st.sampled_from((None, None, *PATTERNS)))
    names = ("in0", "in1", "out0") if pattern is None else ("x", "w", "y")
    row: Json = {
        "operands": {
            **draw(
                st.fixed_dictionaries({}, optional={"in": operands, "out": operands, "weights": operands})
            ),
            **draw(st.dictionaries(st.sampled_from(names), operands, max_size=1)),
        },
        "dtypes": draw(st.sampled_from((["float32"], ["float32", "int8", "int32", "uint8"]))),
        "reads": draw(st.sampled_from(("any", "zero"))),
        "leaves": draw(st.sampled_from(("undefined", "zero"))),
        "limits": draw(st.just({}) | st.just({}) | limits),
        "cost": draw(costs),
    }
    if pattern is not None:
        pair = [["x", "y"]]
        return row | {"pattern": pattern, "inplace": draw(st.sampled_from(([], pair)))}
    if draw(st.integers(0, 3)) == 0:
        ops = draw(st.lists(st.sampled_from(VIEW_OPS), min_size=1, max_size=5, unique=True))
        return row | {"ops": ops, "views": {"alignment": draw(st.sampled_from((1, 16, 64, 256)))}}
    row["ops"] = draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=4, unique=True))
    if row["ops"] == ["Elementwise"]:
        row["leaves"] = draw(st.sampled_from(("undefined", "f(0)")))
    row["epilogue"] = draw(
        st.lists(st.sampled_from(("Elementwise", "Relu", "Clip", "Add", "Cast")), max_size=3, unique=True)
    )
    return row | {"inplace": draw(st.sampled_from(([], [["in0", "out0"]], [["in1", "out0"]])))}


@st.composite
def specs(draw: st.DrawFn) -> Json:
    found = draw(st.lists(rows(), min_size=1, max_size=5))
    return {
        "name": "random",
        "device": "model",
        "memories": [
            {"name": "main", "size": 2**24, "bandwidth": 1e9},
            {"name": "tcm", "size": draw(st.sampled_from((4096, 40_000, 2**20))), "alignment": 16},
        ],
        "backends": ["accelerator", *draw(st.sampled_from((["reference"], ["numba-cpu", "reference"])))],
        "accelerator": {
            "rows": [{"name": f"row{i}"} | row for i, row in enumerate(found)],
            "cost": draw(costs),
            "conversion": draw(costs),
        },
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("networks")
    return {name: network(name, folder) for name in NETWORKS} | {"quantized": quantized(folder)}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(spec=specs(), name=st.sampled_from(("quantized", *NETWORKS)), fuse=st.booleans())
def test_random_descriptions_are_refused_or_obeyed(
    spec: Json, name: str, fuse: bool, paths: dict[str, Path]
) -> None:
    try:
        target = TargetSpec.model_validate(spec).to_target()
    except TargetError:
        return
    options = Options(fuse=fuse)
    try:
        compilation = session.canonical(load(paths[name]), target, options, Bindings(), REGISTRY)
        program = session.planned(compilation, options)
    except CapacityError:
        return
    check(program, spec)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "name",
    "ops",
    "pattern",
    "epilogue",
    "dtypes",
    "operands",
    "inplace",
    "views",
    "reads",
    "leaves",
    "limits",
    "cost",
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(row=rows(), field=st.sampled_from(FIELDS), value=junk)
def test_what_is_no_description_is_refused_by_the_schema(row: Json, field: str, value: object) -> None:
    with contextlib.suppress(ValidationError):
        AcceleratorSpec.model_validate({"rows": [{"name": "row"} | row | {field: value}]})
