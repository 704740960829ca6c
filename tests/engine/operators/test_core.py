"""The core operators: every row is whole and read, every formula computes what the operator does."""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.core.registry import load
from app.engine.entry import core_operators, core_operators_page
from app.engine.passes import outside_core
from app.engine.reference.evaluator import Evaluator
from app.engine.types.core_operator import INTERNAL, LEVELS, SHAPES, CoreOperator, CoreSet, Expressed, Outside

ROOT = Path(__file__).resolve().parents[3]
Array = np.ndarray[Any, Any]
Sample = tuple[
    Sequence[Any], Mapping[str, Any], Mapping[str, Any]
]  # operands, attributes, names of the formula
REGISTRY = load()
CORE = REGISTRY.core
FORMULAS = {row.op: row.formula for row in CORE.expressed if row.formula}
RANDOM = np.random.default_rng(5)
OPSET = onnx.defs.onnx_opset_version()


def live() -> set[str]:
    """Operators of ONNX that are not deprecated."""
    return {s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}


def f4(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def run(op: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Results of one operator in the reference evaluator."""
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(operands)]
    least = max(onnx.defs.get_schema(op).min_output, 1)
    node = onnx.helper.make_node(op, names, [f"y{i}" for i in range(least)], **attributes)  # noqa: TID251
    body = onnx.GraphProto(name="one", node=[node])
    for name, value in zip(names, operands, strict=True):
        if value is not None:
            kind = onnx.TypeProto.Tensor(elem_type=onnx.numpy_helper.from_array(np.asarray(value)).data_type)
            body.input.append(onnx.ValueInfoProto(name=name, type=onnx.TypeProto(tensor_type=kind)))
    (operator,) = Evaluator(body, opsets={"": OPSET}).rt_nodes_
    with np.errstate(all="ignore"):
        return list(operator.run(*operands))


class Term:
    """An array whose arithmetic is that of the core operators."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def of(self, other: Any) -> "Term":
        return other if isinstance(other, Term) else Term(np.asarray(other, self.array.dtype))

    def __add__(self, other: Any) -> "Term":
        return call("add", self, self.of(other))

    def __sub__(self, other: Any) -> "Term":
        return call("sub", self, self.of(other))

    def __mul__(self, other: Any) -> "Term":
        return call("mul", self, self.of(other))

    def __truediv__(self, other: Any) -> "Term":
        return call("div", self, self.of(other))

    def __rtruediv__(self, other: Any) -> "Term":
        return call("div", self.of(other), self)

    def __pow__(self, other: Any) -> "Term":
        return call("pow", self, self.of(other))

    def __matmul__(self, other: Any) -> "Term":
        return call("matmul", self, self.of(other))

    def __lt__(self, other: Any) -> "Term":
        return call("less", self, self.of(other))

    def __neg__(self) -> "Term":
        return call("neg", self)


def call(name: str, *operands: Any, **attributes: Any) -> Term:
    """The first result of a core operator; a Scan over one step is that step."""
    if name == "scan":
        return Term(operands[0].array)
    given = {k: v.array.tolist() if isinstance(v, Term) else v for k, v in attributes.items()}
    arrays = [v.array if isinstance(v, Term) else np.asarray(v) for v in operands]
    return Term(run(CORE.by_name[name].ops[0], arrays, given)[0])


def evaluated(formula: str, names: Mapping[str, Any]) -> Array:
    """The value of a formula."""
    scope: dict[str, Any] = {name: lambda *a, _n=name, **k: call(_n, *a, **k) for name in CORE.by_name}
    scope |= {name: Term(value) for name, value in names.items()}
    found: Term = eval(compile(ast.parse(formula, mode="eval"), formula, "eval"), {}, scope)
    return found.array


def grid(*shape: int, axis: int) -> Array:
    """Indices along an axis, at every place."""
    return np.indices(shape)[axis]


def quantized(op: str, a: Array, b: Array) -> Sample:
    sa, sb, sy = (np.float32(v) for v in (0.05, 0.1, 0.7))
    za, zb, zy = np.uint8(100), np.int8(3), np.uint8(120)
    names = {
        "a": a,
        "b": b,
        "a_scale": sa,
        "b_scale": sb,
        "a_zero": za,
        "b_zero": zb,
        "scale": sy,
        "zero": zy,
    }
    return (a, sa, za, b, sb, zb, sy, zy), {}, names


def integer(a: Array, b: Array) -> Sample:
    names = {"a": a, "b": b, "a_zero": np.float64(100), "b_zero": np.float64(3), "double": 11, "int32": 6}
    return (a, b, np.uint8(100), np.int8(3)), {}, names


def u1(*shape: int) -> Array:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def i1(*shape: int) -> Array:
    return RANDOM.integers(-20, 20, shape).astype(np.int8)


def col2im() -> Sample:
    x = f4(1, 4, 6)  # one channel, blocks of 2x2 at 2x3 places of a 3x4 image
    places = [[i + p, j + q] for i in range(2) for j in range(2) for p in range(2) for q in range(3)]
    names = {"x": x, "zeros": np.zeros((3, 4), np.float32), "places": np.array(places), "flat": ints(-1)}
    return (x, ints(3, 4), ints(2, 2)), {}, {**names, "shape": ints(1, 1, 3, 4)}


def deformed() -> Sample:
    x, w, moved = f4(1, 2, 5, 5), f4(3, 2, 2, 2), 0.4 * f4(1, 8, 4, 4)
    tap = moved.reshape(2, 2, 2, 4, 4)
    rows = grid(4, 4, axis=0) + np.arange(2).reshape(2, 1, 1, 1) + tap[:, :, 0]
    columns = grid(4, 4, axis=1) + np.arange(2).reshape(1, 2, 1, 1) + tap[:, :, 1]
    places = np.stack([columns / 2 - 1, rows / 2 - 1], -1).reshape(1, 4, 16, 2).astype(np.float32)
    names = {
        "x": x,
        "w": w.reshape(3, 8),
        "places": places,
        "columns": ints(1, 8, 16),
        "shape": ints(1, 3, 4, 4),
    }
    return (x, w, moved), {"kernel_shape": [2, 2]}, names


def mel() -> Sample:
    bins, length, rate = 4, 64, 8000
    low, high = (2595 * np.log10(1 + f / 700) for f in (0, 4000))
    edges = 700 * (10 ** ((np.arange(bins + 2) * (high - low) / (bins + 2) + low) / 2595) - 1)
    edges = ((length + 1) * edges // rate).astype(np.float32)
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    places = np.arange(length // 2 + 1, dtype=np.float32).reshape(-1, 1)
    names = {"places": places, "left": left, "right": right, "rise": center - left, "fall": right - center}
    operands = np.int64(bins), np.int64(length), np.int64(rate), np.float32(0), np.float32(4000)
    return operands, {}, {**names, "zero": np.float32(0)}


def waves(n: int) -> tuple[Array, Array]:
    angle = -2 * np.pi * np.outer(np.arange(n), np.arange(n)) / n
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def stft() -> Sample:
    signal, window = f4(1, 16, 1), f4(8)
    cosines, sines = waves(8)
    both = np.stack([cosines[:, :5], sines[:, :5]], -1).reshape(8, 10)
    places = np.arange(0, 9, 4)[:, None] + np.arange(8)
    names = {"signal": signal.reshape(16), "places": places, "window": window, "waves": both}
    return (signal, np.int64(4), window, np.int64(8)), {}, {**names, "shape": ints(1, 3, 5, 2)}


def rnn() -> Sample:
    x, w, r, b, h = f4(1, 2, 3), f4(1, 4, 3), f4(1, 4, 4), f4(1, 8), f4(1, 2, 4)
    names = {"x": x, "w": w[0].T, "h": h, "r": r[0].T, "bias": b[0, :4] + b[0, 4:], "shape": ints(1, 1, 2, 4)}
    return (x, w, r, b, None, h), {"hidden_size": 4}, names


def gemm() -> Sample:
    a, b, c = f4(4, 3), f4(5, 4), f4(3, 1)
    names = {"a": a, "b": b, "c": c, "alpha": np.float32(0.5), "beta": np.float32(2)}
    return (a, b, c), {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}, names


def unpool() -> Sample:
    x, places = f4(1, 1, 2, 2), ints(1, 3, 8, 14).reshape(1, 1, 2, 2)
    names = {"zeros": np.zeros(16, np.float32), "indices": places.reshape(-1), "flat": x.reshape(-1)}
    return (x, places), {"kernel_shape": [2, 2], "strides": [2, 2]}, {**names, "shape": ints(1, 1, 4, 4)}


def rotary() -> Sample:
    x, cos, sin = f4(1, 2, 3, 4), f4(1, 3, 2), f4(1, 3, 2)
    names = {"a": x[..., :2], "b": x[..., 2:], "cos": cos[:, None], "sin": sin[:, None], "axis": -1}
    return (x, cos, sin), {}, names


X = f4(2, 4, 6)
IMAGE = f4(1, 4, 6, 6)
POSITIVE = {"x": np.abs(IMAGE), "axes": ints(2, 3), "p": np.float32(2)}
BLOCKS_OUT = {"x": IMAGE, "split": ints(1, 2, 2, 1, 6, 6), "order": [0, 3, 4, 1, 5, 2]}
BLOCKS_IN = {"x": IMAGE, "split": ints(1, 4, 3, 2, 3, 2), "order": [0, 3, 5, 1, 2, 4]}
SHAPED = {"x": X, "shape": ints(2, 24)}
SAMPLES: dict[str, Callable[[], Sample]] = {
    "ArgMin": lambda: ((X,), {"axis": 1}, {"x": X, "axis": 1}),
    "CastLike": lambda: ((X, ints(1)), {}, {"x": X, "dtype": 7}),
    "Col2Im": col2im,
    "Compress": lambda: (
        (X, np.array([True, False, True])), {"axis": 1},
        {"x": X, "condition": np.array([True, False, True]), "flat": ints(-1), "axis": 1},
    ),
    "ConvInteger": lambda: integer(u1(1, 2, 5, 5), i1(3, 2, 3, 3)),
    "CumProd": lambda: (
        (X[0, 0], np.int64(0)), {},
        {"x": X[0, 0], "row": np.arange(6)[:, None], "column": np.arange(6), "ones": np.float32(1), "axes": ints(1)},
    ),
    "DFT": lambda: (
        (X[:, :1].transpose(0, 2, 1), None, np.int64(1)), {},
        {"x": X[:, :1].transpose(0, 2, 1), "axis": -1} | dict(zip(("cosines", "sines"), waves(6), strict=True)),
    ),
    "DeformConv": deformed,
    "DepthToSpace": lambda: ((IMAGE,), {"blocksize": 2}, {**BLOCKS_OUT, "shape": ints(1, 1, 12, 12)}),
    "Dropout": lambda: ((X,), {}, {"x": X}),
    "Einsum": lambda: (
        (X[0], X[1].T), {"equation": "ij,jk->ik"},
        {"a": X[0], "b": X[1].T, "a_shape": ints(4, 6, 1), "b_shape": ints(1, 6, 4), "axes": ints(1)},
    ),
    "EyeLike": lambda: (
        (X[0],), {"k": 1}, {"row": np.arange(4)[:, None] + 1, "column": np.arange(6), "dtype": 1},
    ),
    "Flatten": lambda: ((X,), {}, SHAPED),
    "Gemm": gemm,
    "GlobalAveragePool": lambda: ((IMAGE,), {}, {"x": IMAGE, "axes": ints(2, 3)}),
    "GlobalLpPool": lambda: ((POSITIVE["x"],), {"p": 2}, POSITIVE),
    "GlobalMaxPool": lambda: ((IMAGE,), {}, {"x": IMAGE, "axes": ints(2, 3)}),
    "Greater": lambda: ((X, X[:1]), {}, {"a": X, "b": X[:1]}),
    "Hardmax": lambda: ((X,), {"axis": 1}, {"x": X, "places": ints(0, 1, 2, 3)[:, None], "axis": 1, "dtype": 1}),
    "InstanceNormalization": lambda: (
        (IMAGE, X[0, 0, :4], X[0, 1, :4]), {"epsilon": 0.01},
        {"x": IMAGE, "scale": X[0, 0, :4], "bias": X[0, 1, :4], "channels": 4, "epsilon": 0.01},
    ),
    "LpNormalization": lambda: ((X,), {"axis": 2, "p": 2}, {"x": X, "axes": ints(2), "p": np.float32(2)}),
    "LpPool": lambda: (
        (IMAGE,), {"kernel_shape": [2, 3], "p": 2},
        {"x": IMAGE, "kernel": [2, 3], "elements": np.float32(6), "p": np.float32(2)},
    ),
    "MatMulInteger": lambda: integer(u1(3, 4), i1(4, 5)),
    "MaxRoiPool": lambda: (
        (IMAGE, np.array([[0, 1, 2, 3, 4]], np.float32)), {"pooled_shape": [1, 1]},
        {"x": IMAGE, "starts": ints(2, 1), "ends": ints(5, 4), "sliced": ints(2, 3), "axes": ints(2, 3)},
    ),
    "MaxUnpool": unpool,
    "Mean": lambda: ((X, X[:1], X[:, :1]), {}, {"a": X, "b": X[:1], "c": X[:, :1], "count": np.float32(3)}),
    "MelWeightMatrix": mel,
    "OneHot": lambda: (
        (ints(2, 0, 1), np.int64(4), np.array([-1, 5], np.float32)), {},
        {"places": np.arange(4), "indices": ints(2, 0, 1)[:, None], "on": np.float32(5), "off": np.float32(-1)},
    ),
    "QLinearConv": lambda: quantized("QLinearConv", u1(1, 2, 5, 5), i1(3, 2, 3, 3)),
    "QLinearMatMul": lambda: quantized("QLinearMatMul", u1(3, 4), i1(4, 5)),
    "RNN": rnn,
    "Reciprocal": lambda: ((X,), {}, {"x": X}),
    "ReverseSequence": lambda: (
        (X, ints(2, 4, 1, 3, 4, 2)), {"time_axis": 1, "batch_axis": 2}, {"x": X, "axis": 1, "places": reversed_places()},
    ),
    "RotaryEmbedding": rotary,
    "STFT": stft,
    "Size": lambda: ((X,), {}, {"x": X}),
    "SpaceToDepth": lambda: ((IMAGE,), {"blocksize": 2}, {**BLOCKS_IN, "shape": ints(1, 16, 3, 3)}),
    "Split": lambda: ((X, ints(1, 3)), {"axis": 1}, {"x": X, "begin": ints(0), "end": ints(1), "axes": ints(1)}),
    "Squeeze": lambda: ((X[:1], ints(0)), {}, {"x": X[:1], "shape": ints(4, 6)}),
    "Sum": lambda: ((X, X[:1], X[:, :1]), {}, {"a": X, "b": X[:1], "c": X[:, :1]}),
    "TensorScatter": lambda: (
        (IMAGE, IMAGE[:, :, :1] + 1, ints(2)), {"axis": 2},
        {"past": IMAGE, "update": IMAGE[0, :, 0] + 1, "places": np.array([[0, c, 2] for c in range(4)])},
    ),
    "Trilu": lambda: (
        (X,), {}, {"x": X, "row": np.arange(4)[:, None], "column": np.arange(6), "zero": np.float32(0)},
    ),
    "Unsqueeze": lambda: ((X, ints(1)), {}, {"x": X, "shape": ints(2, 1, 4, 6)}),
}  # fmt: skip


def reversed_places() -> Array:
    """For each batch the steps, the first so many in reverse."""
    lengths, steps = ints(2, 4, 1, 3, 4, 2), np.arange(4)[:, None]
    return np.broadcast_to(np.where(steps < lengths, lengths - 1 - steps, steps), (2, 4, 6)).copy()


def test_every_operator_of_onnx_has_one_row() -> None:
    internal = {op for row in CORE.operators if row.level == INTERNAL for op in row.ops}
    assert set(CORE.ops) - internal == live()


def test_a_row_knows_all_attributes_of_its_operators() -> None:
    for row in CORE.operators:
        declared = [set(onnx.defs.get_schema(op).attributes) for op in row.ops if onnx.defs.has(op)]
        assert set(row.attributes) == set().union(*declared), row.name


@pytest.mark.parametrize("op", FORMULAS)
def test_a_formula_computes_what_the_operator_does(op: str) -> None:
    operands, attributes, names = SAMPLES[op]()
    expected = run(op, operands, attributes)[0]
    found = evaluated(FORMULAS[op], names)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", [row.op for row in CORE.expressed if not row.formula])
def test_a_function_body_is_expressed(op: str) -> None:
    inner = core_operators.body(op)
    assert inner
    assert [name for name in inner if CORE.how(name) == "outside"] == []


@pytest.fixture(scope="module")
def document() -> Mapping[str, Any]:
    return core_operators.document(REGISTRY)


def test_every_core_operator_says_what_runs_it_and_how_it_is_spelled(document: Mapping[str, Any]) -> None:
    for row in document["operators"]:
        own = {i["op"] for i in row["implementations"]}
        assert own, row["name"]
        if row["level"] != INTERNAL:
            assert row["onnx"][0]["how"] == "direct"
            assert row["reference"][row["onnx"][0]["op"]]
            assert row["operands"] or row["name"] == "constant"
    rows = {row["name"]: row for row in document["operators"]}
    assert "Convolution" in rows["conv"]["mxnet"]
    assert "Pooling (pool_type=max)" in rows["max_pool"]["mxnet"]
    assert "take" in rows["take"]["mxnet"]
    assert {"_foreach", "RNN"} <= {*rows["scan"]["mxnet"], *rows["lstm"]["mxnet"]}
    assert any(i["name"].startswith("conv.") for i in rows["conv"]["implementations"])
    assert any("dd>d:X" in s["rules"] for s in rows["add"]["storage"])


def test_the_page_of_the_documentation_is_current(document: Mapping[str, Any]) -> None:
    """Written anew by `make core-operators`."""
    assert (ROOT / "docs" / "core-operators.md").read_text() == core_operators_page.page(document)


def altered(row: CoreOperator) -> Mapping[str, Any]:
    """By column, another value than the row has."""
    return {
        "name": f"{row.name}_x",
        "level": (row.level + 1) % len(LEVELS),
        "ops": (*row.ops, "Other"),
        "formula": f"{row.formula}!",
        "shape": next(rule for rule in SHAPES if rule != row.shape),
        "attributes": {k: f"{v}!" for k, v in row.attributes.items()} or {"other": "?"},
    }


@pytest.mark.parametrize("column", [f.name for f in fields(CoreOperator)])
def test_every_column_of_every_core_operator_is_read(column: str) -> None:
    for row in CORE.operators:
        other = replace(row, **{column: altered(row)[column]})
        assert described(other) != described(row), row.name


def described(row: CoreOperator) -> object:
    """The document of a set of one row."""
    alone = replace(REGISTRY, core=CoreSet((row,)))
    try:
        return core_operators.operator(row, alone, {op: alone.core.names(op) for op in row.ops}, {})
    except ValueError as error:
        return str(error)


def test_every_column_of_what_is_expressed_and_of_what_is_not_is_read() -> None:
    def told(core: CoreSet, op: str) -> object:
        return core.how(op), core.names(op), core.formula(op), core.reason(op, "")

    for row in CORE.expressed:
        for other in (Expressed("Other", row.formula), Expressed(row.op, f"-({row.formula or 'x'})")):
            mutated = replace(CORE, expressed=(other,))
            assert told(mutated, row.op) != told(CORE, row.op)
    for outside in CORE.outside:
        for unlike in (Outside(("Other",), outside.reason), Outside(outside.ops, "x")):
            mutated = replace(CORE, outside=(unlike,))
            assert told(mutated, outside.ops[0]) != told(CORE, outside.ops[0])


def test_two_rows_for_one_operator_are_refused() -> None:
    with pytest.raises(ValueError, match="'Relu' has two rows"):
        replace(CORE, expressed=(*CORE.expressed, Expressed("Relu", "maximum(x, 0)")))
    with pytest.raises(ValueError, match="'frobnicate', which is no core operator"):
        CORE.calls("frobnicate(x)")


def test_nodes_that_are_not_expressed_are_listed_with_the_reason() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    text = ir.Value(name="t", type=ir.TensorType(ir.DataType.STRING), shape=ir.Shape([2]))
    nodes = [
        ir.node("Gelu", [x], name="expressed"),
        ir.node("Det", [x], name="det"),
        ir.node("FusedConv", [x], domain="com.microsoft", name="fused"),
        ir.node("Identity", [text], name="text"),
    ]
    main = ir.Graph([x, text], [], nodes=nodes, name="g")
    found = outside_core.outside_core(main, CORE)
    assert [n.node for n in found] == ["det", "fused", "text"]
    assert "elimination" in found[0].reason
    assert "'com.microsoft'" in found[1].reason
    assert "strings" in found[2].reason
    assert outside_core.told(found)[0].startswith("outside the core operators: 1 Det, ")
    assert outside_core.outside_core(main, CoreSet()) == ()
