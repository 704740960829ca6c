"""Rules of shapes of the core operators: each against the evaluator and shape inference, over random cases.

What a rule says is computed here a second time, from shapes and attributes alone.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from app.engine.core import graph
from app.engine.model.shape_inference import inference
from app.engine.types.core_operator import INTERNAL, SHAPES
from tests.engine.operators.test_core import CORE, OPSET, run

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Random = np.random.Generator
# Operands, attributes, and the shape that the rule says where it is told by them.
Case = tuple[Sequence[Any], Mapping[str, Any], Shape | None]
TURNS = 12
ROWS = {op: row for row in CORE.operators if row.level != INTERNAL for op in row.ops}
OPS = [(row.shape, op) for op, row in ROWS.items()]


def dims(random: Random, low: int = 1, high: int = 4) -> Shape:
    return tuple(int(d) for d in random.integers(1, 5, random.integers(low, high + 1)))


def floats(random: Random, shape: Shape) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def many(values: Sequence[int]) -> Array:
    return np.array(values, np.int64)


def fitting(random: Random, shape: Shape) -> Shape:
    """A shape that is broadcast with this one."""
    kept = shape[random.integers(0, len(shape) + 1) :]
    return tuple(1 if random.random() < 0.3 else d for d in kept)


# ---- Operands of the rules that hold for many operators


def unary(random: Random) -> Case:
    return (floats(random, dims(random)),), {}, None


def typed(kind: str, count: int, **attributes: Any) -> Callable[[Random], Case]:
    """Operands of a type that are broadcast."""

    def case(random: Random) -> Case:
        shape = dims(random)
        shapes = [shape, *(fitting(random, shape) for _ in range(count - 1))]
        random.shuffle(shapes)
        return tuple(random.integers(0, 2, s).astype(kind) for s in shapes), attributes, None

    return case


def where(random: Random) -> Case:
    shape = dims(random)
    kinds = zip((bool, np.float32, np.float32), (shape, fitting(random, shape), fitting(random, shape)))
    return tuple(random.integers(0, 2, s).astype(k) for k, s in kinds), {}, None


def product(random: Random) -> Case:
    m, k, n = random.integers(1, 5, 3)
    batch = dims(random, 0, 2)
    left, right = [(*batch, m, k), (*(fitting(random, batch) if batch else ()), k, n)]
    shapes = [(left, right), ((k,), right), (left, (k,)), ((k,), (k,))][random.integers(0, 4)]
    return tuple(floats(random, tuple(map(int, s))) for s in shapes), {}, None


def channels_first(random: Random, count: int, ranks: tuple[int, int] = (1, 3)) -> tuple[Shape, Array]:
    """A batch of images with so many channels."""
    shape = (int(random.integers(1, 3)), count, *map(int, random.integers(5, 8, random.integers(*ranks))))
    return shape, floats(random, shape)


def window(random: Random, axes: int) -> dict[str, Any]:
    draw = lambda low, high, n: [int(v) for v in random.integers(low, high, n)]  # noqa: E731
    return {
        "kernel_shape": draw(1, 3, axes), "strides": draw(1, 4, axes), "dilations": draw(1, 3, axes),
        "pads": draw(0, 1, 2 * axes) if random.random() < 0.5 else [1] * (2 * axes),
    }  # fmt: skip


def conv(random: Random) -> Case:
    group, each = (int(v) for v in random.integers(1, 3, 2))
    shape, x = channels_first(random, group * each)
    attributes = window(random, len(shape) - 2) | {"group": group}
    weights = floats(random, (2 * group, each, *attributes["kernel_shape"]))
    return (x, weights), attributes, (shape[0], 2 * group, *places(shape[2:], attributes))


def conv_transpose(random: Random) -> Case:
    group, each = (int(v) for v in random.integers(1, 3, 2))
    shape, x = channels_first(random, 2 * group)
    attributes = window(random, len(shape) - 2) | {"group": group}
    weights = floats(random, (2 * group, each, *attributes["kernel_shape"]))
    k, s, d, p = (attributes[n] for n in ("kernel_shape", "strides", "dilations", "pads"))
    axes = range(len(k))
    ends = [s[i] * (shape[2 + i] - 1) + d[i] * (k[i] - 1) + 1 - p[i] - p[i + len(k)] for i in axes]
    return (x, weights), attributes, (shape[0], group * each, *ends)


def pool(random: Random) -> Case:
    shape, x = channels_first(random, 2)
    attributes = window(random, len(shape) - 2)
    attributes["kernel_shape"] = [2] * (len(shape) - 2)
    return (x,), attributes, (*shape[:2], *places(shape[2:], attributes))


def places(sizes: Shape, attributes: Mapping[str, Any]) -> Shape:
    """How often a window fits along each axis, by trying every place."""
    found = []
    for i, size in enumerate(sizes):
        k, s, d = (attributes[n][i] for n in ("kernel_shape", "strides", "dilations"))
        whole = size + attributes["pads"][i] + attributes["pads"][i + len(sizes)]
        found.append(sum(start + d * (k - 1) < whole for start in range(0, whole, s)))
    return tuple(found)


def reduced(random: Random) -> Case:
    shape = dims(random)
    axes = sorted(
        int(a) for a in random.choice(len(shape), random.integers(1, len(shape) + 1), replace=False)
    )
    keep = int(random.integers(0, 2))
    kept = tuple(1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes)
    return (floats(random, shape), many([a - len(shape) * (a % 2) for a in axes])), {"keepdims": keep}, kept


def argmax(random: Random) -> Case:
    shape = dims(random)
    axis, keep = int(random.integers(0, len(shape))), int(random.integers(0, 2))
    kept = tuple(1 if i == axis else d for i, d in enumerate(shape) if keep or i != axis)
    return (floats(random, shape),), {"axis": axis, "keepdims": keep}, kept


# ---- Operators whose attributes or operands tell the shape


def resize(random: Random) -> Case:
    shape = (1, 2, *map(int, random.integers(3, 6, 2)))
    if random.random() < 0.5:
        sizes = (*shape[:2], *map(int, random.integers(1, 9, 2)))
        return (floats(random, shape), None, None, many(sizes)), {}, sizes
    scales = np.array([1, 1, *random.choice([0.5, 1.5, 2.0], 2)], np.float32)
    return (floats(random, shape), None, scales), {}, tuple(int(d * float(s)) for d, s in zip(shape, scales))


def pad(random: Random) -> Case:
    shape = dims(random)
    before, after = random.integers(0, 3, (2, len(shape)))
    expected = tuple(int(d + a + b) for d, a, b in zip(shape, before, after))
    return (floats(random, shape), many([*before, *after])), {}, expected


def reshape(random: Random) -> Case:
    shape = dims(random, 2, 4)
    told = [0, -1, *(int(np.prod(shape[2:])) for _ in range(len(shape) > 2))]
    return (
        (floats(random, shape), many(told)),
        {},
        (shape[0], *shape[1:2], *(np.prod(shape[2:]),) * (len(shape) > 2)),
    )


def transpose(random: Random) -> Case:
    shape = dims(random)
    order = [int(i) for i in random.permutation(len(shape))]
    return (floats(random, shape),), {"perm": order}, tuple(shape[i] for i in order)


def expand(random: Random) -> Case:
    shape = dims(random)
    other = fitting(random, shape)
    shapes = [(other, shape), (shape, other)][random.integers(0, 2)]
    return (floats(random, shapes[0]), many(shapes[1])), {}, np.broadcast_shapes(shape, other)


def concat(random: Random) -> Case:
    shape = list(dims(random))
    axis = int(random.integers(0, len(shape)))
    extents = [int(d) for d in random.integers(0, 4, 3)]
    parts = [floats(random, (*shape[:axis], d, *shape[axis + 1 :])) for d in extents]
    return parts, {"axis": axis - len(shape)}, (*shape[:axis], sum(extents), *shape[axis + 1 :])


def sliced(random: Random) -> Case:
    shape = dims(random)
    axis, step = int(random.integers(0, len(shape))), int(random.choice([-2, -1, 1, 2]))
    start, end = (int(v) for v in random.integers(-6, 6, 2))
    # Negative steps start at the last element at most, and end before the first one.
    size = shape[axis]
    first = min(max(start + size * (start < 0), 0), size - (step < 0))
    last = min(max(end + size * (end < 0), -(step < 0)), size)
    left = len(range(first, last, step))
    operands = (floats(random, shape), *(many([v]) for v in (start, end, axis, step)))
    return operands, {}, (*shape[:axis], left, *shape[axis + 1 :])


def tile(random: Random) -> Case:
    shape = dims(random)
    times = random.integers(1, 4, len(shape))
    return (floats(random, shape), many(times)), {}, tuple(int(d * t) for d, t in zip(shape, times))


def take(random: Random) -> Case:
    shape, indices = dims(random), dims(random, 0, 2)
    axis = int(random.integers(0, len(shape)))
    places_ = np.zeros(indices, np.int64)
    return (floats(random, shape), places_), {"axis": axis}, (*shape[:axis], *indices, *shape[axis + 1 :])


def gather_nd(random: Random) -> Case:
    shape = dims(random, 2, 4)
    shared, depth = int(random.integers(0, 2)), 1
    inner = dims(random, 1, 2)
    places_ = np.zeros((*shape[:shared], *inner, depth), np.int64)
    expected = (*shape[:shared], *inner, *shape[shared + depth :])
    return (floats(random, shape), places_), {"batch_dims": shared}, expected


def take_along_axis(random: Random) -> Case:
    shape = dims(random)
    axis = int(random.integers(0, len(shape)))
    places_ = np.zeros((*shape[:axis], 3, *shape[axis + 1 :]), np.int64)
    return (floats(random, shape), places_), {"axis": axis}, places_.shape


def topk(random: Random) -> Case:
    shape = dims(random)
    axis = int(random.integers(0, len(shape)))
    k = int(random.integers(1, shape[axis] + 1))
    return (floats(random, shape), many([k])), {"axis": axis}, (*shape[:axis], k, *shape[axis + 1 :])


def recurrent(gates: int) -> Callable[[Random], Case]:
    def case(random: Random) -> Case:
        steps, batch, width, hidden = (int(v) for v in random.integers(1, 4, 4))
        ways = int(random.integers(1, 3))
        operands = (
            floats(random, (steps, batch, width)), floats(random, (ways, gates * hidden, width)),
            floats(random, (ways, gates * hidden, hidden)),
        )  # fmt: skip
        attributes = {"hidden_size": hidden, "direction": "bidirectional" if ways == 2 else "forward"}
        return operands, attributes, (steps, ways, batch, hidden)

    return case


def roi_align(random: Random) -> Case:
    count, height, width = (int(v) for v in random.integers(1, 4, 3))
    boxes = np.tile(np.array([0, 0, 3, 3], np.float32), (count, 1))
    operands = floats(random, (2, 3, 6, 6)), boxes, np.zeros(count, np.int64)
    return operands, {"output_height": height, "output_width": width}, (count, 3, height, width)


def grid_sample(random: Random) -> Case:
    n, c, h, w = dims(random, 4, 4)
    out = tuple(int(v) for v in random.integers(1, 5, 2))
    return (floats(random, (n, c, h, w)), floats(random, (n, *out, 2))), {}, (n, c, *out)


def attention(random: Random) -> Case:
    batch, heads, queries, keys, width, values = (int(v) for v in random.integers(1, 5, 6))
    shapes = ((queries, width), (keys, width), (keys, values))
    operands = tuple(floats(random, (batch, heads, *s)) for s in shapes)
    return operands, {}, (batch, heads, queries, values)


def normalized(*widths: str) -> Callable[[Random], Case]:
    """An operand of channels first and a parameter a channel for each, positive."""

    def case(random: Random) -> Case:
        shape = (int(random.integers(1, 3)), 4, *dims(random, 1, 2))
        return (floats(random, shape), *(np.ones(4, np.float32) for _ in widths)), {}, None

    return case


def layer_norm(random: Random) -> Case:
    shape = dims(random, 1, 4)
    axis = int(random.integers(0, len(shape)))
    return (floats(random, shape), np.ones(shape[axis:], np.float32)), {"axis": axis}, None


def group_norm(random: Random) -> Case:
    operands, _, _ = normalized("scale", "bias")(random)
    return operands, {"num_groups": 2}, None


def lrn(random: Random) -> Case:
    return (channels_first(random, 3)[1],), {"size": 3}, None


def scatter_nd(random: Random) -> Case:
    shape = dims(random, 2, 3)
    return (floats(random, shape), np.zeros((3, 1), np.int64), floats(random, (3, *shape[1:]))), {}, None


def put_along_axis(random: Random) -> Case:
    shape = dims(random)
    part = tuple(int(random.integers(1, d + 1)) for d in shape)
    return (floats(random, shape), np.zeros(part, np.int64), floats(random, part)), {}, None


def cumsum(random: Random) -> Case:
    return (floats(random, dims(random)), np.int64(0)), {}, None


def quantize(random: Random) -> Case:
    return (floats(random, dims(random)), np.float32(0.1), np.uint8(3)), {}, None


def dequantize(random: Random) -> Case:
    return (random.integers(0, 9, dims(random)).astype(np.uint8), np.float32(0.1)), {}, None


def clip(random: Random) -> Case:
    return (floats(random, dims(random)), np.float32(-1), np.float32(1)), {}, None


def constant(random: Random) -> Case:
    array = floats(random, dims(random))
    return (), {"value": onnx.numpy_helper.from_array(array)}, array.shape


def full(random: Random) -> Case:
    shape = dims(random)
    return (many(shape),), {}, shape


def shape_of(random: Random) -> Case:
    shape = dims(random)
    start, end = sorted(int(v) for v in random.integers(0, len(shape) + 1, 2))
    return (floats(random, shape),), {"start": start, "end": end}, (end - start,)


CASES: Mapping[str, Callable[[Random], Case]] = {
    **dict.fromkeys(
        (op for rule, op in OPS if rule == "same" and ROWS[op].level <= 1 and op not in ("Cast", "Clip")), unary
    ),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less"), typed("float32", 2)),
    **dict.fromkeys(("Min", "Max"), typed("float32", 3)), "Mod": typed("float32", 2, fmod=1), "Where": where,
    **dict.fromkeys(("And", "Or", "Xor"), typed("bool", 2)), "Not": typed("bool", 1),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), typed("int64", 2)), "BitwiseNot": typed("int64", 1),
    "BitShift": typed("uint64", 2, direction="LEFT"), "Clip": clip,
    "Cast": lambda random: (unary(random)[0], {"to": 11}, None),
    "MatMul": product, "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool, "AveragePool": pool,
    **dict.fromkeys((f"Reduce{n}" for n in ("Sum", "Mean", "Max", "Min", "Prod")), reduced), "ArgMax": argmax,
    "Constant": constant, "ConstantOfShape": full, "Shape": shape_of, "Resize": resize, "Pad": pad,
    "Reshape": reshape, "Transpose": transpose, "Expand": expand, "Concat": concat, "Slice": sliced, "Tile": tile,
    "Gather": take, "GatherND": gather_nd, "GatherElements": take_along_axis, "TopK": topk,
    "LSTM": recurrent(4), "GRU": recurrent(3), "RoiAlign": roi_align, "GridSample": grid_sample,
    "Attention": attention, "BatchNormalization": normalized("scale", "bias", "mean", "variance"),
    "LayerNormalization": layer_norm, "GroupNormalization": group_norm, "Softmax": unary, "LRN": lrn,
    "ScatterND": scatter_nd, "ScatterElements": put_along_axis, "CumSum": cumsum,
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize,
}  # fmt: skip


def matmul_shape(operands: Sequence[Any]) -> Shape:
    """Axes of batches, rows of the first, columns of the second; a vector has no rows or no columns."""
    a, b = (np.shape(o) for o in operands)
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


# What a rule says of the operands' shapes alone; other rules are told by the case.
RULES: Mapping[str, Callable[[Sequence[Any]], Shape]] = {
    "same": lambda operands: np.shape(operands[0]),
    "broadcast": lambda operands: np.broadcast_shapes(*map(np.shape, operands)),
    "product": matmul_shape,
}


def inferred(op: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Shape | None:
    """The shape of the first result by our inference: integers, and scales, are constants, all else inputs."""
    values = []
    for i, array in enumerate(operands):
        if array is None:
            values.append(None)
            continue
        tensor = ir.Tensor(np.asarray(array), name=f"x{i}")
        value = ir.Value(name=f"x{i}", type=ir.TensorType(tensor.dtype), shape=tensor.shape)
        if np.asarray(array).dtype == np.int64 or (op, i) == ("Resize", 2):
            value.const_value = tensor
        values.append(value)
    given = {k: ir.from_proto(v) if isinstance(v, onnx.TensorProto) else v for k, v in attributes.items()}
    node = ir.node(op, values, given, num_outputs=max(onnx.defs.get_schema(op).min_output, 1))
    for value in node.outputs:
        value.name = f"y{value.index()}"
    held = [v for v in values if v is not None]
    main = ir.Graph(
        [v for v in held if v.const_value is None],
        [node.outputs[0]],
        nodes=[node],
        initializers=[v for v in held if v.const_value is not None],
        opset_imports={"": OPSET},
        name="one",
    )
    inference.infer(ir.Model(main, ir_version=10))
    return graph.shape(node.outputs[0])


@pytest.mark.parametrize(("rule", "op"), [row for row in OPS if row[0] not in ("data", "body")])
def test_the_rule_of_a_shape_holds(rule: str, op: str) -> None:
    """Of every operator of every row, over random cases."""
    random = np.random.default_rng([OPS.index((rule, op)), 7])
    seen = set()
    for _ in range(TURNS):
        operands, attributes, told = CASES[op](random)
        expected = RULES[rule](operands) if rule in RULES else told
        assert np.shape(run(op, operands, attributes)[0]) == expected, (np.shape(operands[0]), attributes)
        assert inferred(op, operands, attributes) == expected, ([np.shape(o) for o in operands], attributes)
        seen.add(expected)
    assert len(seen) > 1, "all cases are one"


def test_slices_are_those_of_onnxruntime() -> None:
    """Every start and end around an axis, forward and back: a start before the first element is that one."""
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[3] x, int64[1] s, int64[1] e, int64[1] a, int64[1] t)'
        " => (float[n] y) { y = Slice(x, s, e, a, t) }"
    )
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    x = np.arange(3, dtype=np.float32)
    for start, end, step in itertools.product(range(-5, 6), range(-5, 6), (-2, -1, 1, 2)):
        operands = x, many([start]), many([end]), many([0]), many([step])
        (expected,) = session.run(None, dict(zip("xseat", operands)))
        np.testing.assert_array_equal(run("Slice", operands, {})[0], expected)
        assert inferred("Slice", operands, {}) == expected.shape, (start, end, step)


DATA: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "Range": [(np.float32(0), np.float32(n), np.float32(1)) for n in (2, 5)],
    "NonZero": [(np.array([1, 0, 1], np.float32),), (np.array([0, 0, 1], np.float32),)],
    "NonMaxSuppression": [
        (np.array([[[0, 0, 1, 1], [0, far, 1, far + 1]]], np.float32), np.ones((1, 1, 2), np.float32),
         np.int64(2), np.float32(0.5), np.float32(0)) for far in (0.0, 5.0)
    ],
}  # fmt: skip


@pytest.mark.parametrize("op", [op for rule, op in OPS if rule == "data"])
def test_a_shape_that_is_known_in_a_run_alone_differs_between_runs(op: str) -> None:
    """Operands of the same shapes give results of others, and inference tells none."""
    first, second = DATA[op]
    assert [np.shape(o) for o in first] == [np.shape(o) for o in second]
    assert np.shape(run(op, first, {})[0]) != np.shape(run(op, second, {})[0])
    assert inferred(op, first, {}) is None


BODIES = {
    "If": "y = If(t) <then_branch = g () => (float[2] a) {{ a = Identity(x) }},"
    " else_branch = h () => (float[2] b) {{ b = Neg(x) }}>",
    "Loop": "s, y = Loop(n, t, x) <body = g (int64 i, bool c, float[2] u) => (bool d, float[2] v, float[2] w)"
    " {{ d = Identity(c) v = Identity(u) w = Neg(u) }}>",
    "Scan": "y = Scan <num_scan_inputs = 1, body = g (float[2] r) => (float[2] w) {{ w = Neg(r) }}> (z)",
}


@pytest.mark.parametrize("op", [op for rule, op in OPS if rule == "body"])
def test_a_shape_of_a_nested_graph_is_that_of_its_result(op: str) -> None:
    """Of a loop, a row for each turn."""
    text = (
        '<ir_version: 10, opset_import: ["": 21]> m (float[2] x, float[3,2] z) => (float y) {'
        f" t = Constant<value = bool {{1}}>() n = Constant<value_int=3>() {BODIES[op].format()} }}"
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.outputs[0].shape = None
    inference.infer(model)
    assert graph.shape(model.graph.outputs[0]) == ((2,) if op == "If" else (3, 2))


def test_every_rule_has_a_test() -> None:
    assert {rule for rule, _ in OPS} == set(SHAPES)
    assert {op for rule, op in OPS if rule not in ("data", "body")} == set(CASES)
