"""Operators of symbols against NumPy; `make test-mxnet` compares them with MXNet itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.types.errors import GraphError
from tests.engine.model.mxnet.writing import Symbols, loaded, run
from tests.harness import assert_close

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)


def one(folder: Path, op: str, *arrays: Array, **attributes: Any) -> list[Array]:
    """Outputs of one operator on inputs."""
    s = Symbols()
    operands = [s.var(f"x{i}", shape=str(a.shape)) for i, a in enumerate(arrays)]
    s.add(op, "node", *operands, **attributes)
    return run(folder, s, {f"x{i}": a for i, a in enumerate(arrays)})


# (operator, attributes, the same in NumPy)
UNARY: list[tuple[str, dict[str, Any], Callable[[Array], Array]]] = [
    ("_copy", {}, lambda x: x),
    ("_plus_scalar", {"scalar": 1.5}, lambda x: x + 1.5),
    ("_rminus_scalar", {"scalar": 1.5}, lambda x: 1.5 - x),
    ("_RDivScalar", {"scalar": 2}, lambda x: 2 / x),
    ("_greater_scalar", {"scalar": 0}, lambda x: (x > 0).astype("f4")),
    ("_mod_scalar", {"scalar": 0.7}, lambda x: np.mod(x, 0.7)),
    ("LeakyReLU", {"act_type": "leaky", "slope": 0.1}, lambda x: np.where(x > 0, x, 0.1 * x)),
    ("clip", {"a_min": -0.5, "a_max": 0.5}, lambda x: x.clip(-0.5, 0.5)),
    ("round", {}, lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5)),
    ("Reshape", {"shape": "(-3, 0)"}, lambda x: x.reshape(6, 4)),
    ("Reshape", {"shape": "(0, -4, -1, 3, -2)"}, lambda x: x.reshape(2, 1, 3, 4)),
    ("Reshape", {"shape": "(-1, 0)", "reverse": "True"}, lambda x: x.reshape(6, 4)),
    ("slice", {"begin": "(None, 1)", "end": "(None, None)", "step": "(-1, 1)"}, lambda x: x[::-1, 1:]),
    ("slice_axis", {"axis": "-1", "begin": "1", "end": "None"}, lambda x: x[..., 1:]),
    ("SwapAxis", {"dim1": 0, "dim2": 2}, lambda x: x.swapaxes(0, 2)),
    ("tile", {"reps": "(2, 1, 1, 3)"}, lambda x: np.tile(x, (2, 1, 1, 3))),
    ("repeat", {"repeats": 2, "axis": 1}, lambda x: x.repeat(2, 1)),
    ("flip", {"axis": 1}, lambda x: x[:, ::-1]),
    ("sum", {}, lambda x: x.sum(keepdims=False).reshape(1)),
    ("mean", {"axis": 1, "exclude": "True"}, lambda x: x.mean((0, 2))),
    ("norm", {"axis": "(0, 1)", "keepdims": "1"}, lambda x: np.sqrt((x**2).sum((0, 1), keepdims=True))),
    ("argmax", {"axis": 1}, lambda x: x.argmax(1).astype("f4")),
    ("topk", {"k": 2, "ret_typ": "value"}, lambda x: -np.sort(-x)[..., :2]),
    ("L2Normalization", {}, lambda x: x / np.sqrt((x**2).sum((1, 2), keepdims=True) + 1e-10)),
    ("softmin", {}, lambda x: np.exp(-x) / np.exp(-x).sum(-1, keepdims=True)),
    ("cumsum", {"axis": 2}, lambda x: x.cumsum(2)),
    ("broadcast_axis", {}, lambda x: x),
]


@pytest.mark.parametrize(
    ("op", "attributes", "expected"), UNARY, ids=[f"{r[0]}-{i}" for i, r in enumerate(UNARY)]
)
def test_an_operator_of_one_operand(
    tmp_path: Path, op: str, attributes: dict[str, Any], expected: Callable[[Array], Array]
) -> None:
    assert_close(one(tmp_path, op, X, **attributes)[0], expected(X))


BINARY: list[tuple[str, tuple[int, ...], dict[str, Any], Callable[[Array, Array], Array]]] = [
    ("elemwise_sub", (2, 3, 4), {}, lambda x, y: x - y),
    ("broadcast_div", (1, 3, 1), {}, lambda x, y: x / y),
    ("_Maximum", (2, 3, 4), {}, np.maximum),
    ("broadcast_lesser_equal", (3, 1), {}, lambda x, y: (x <= y).astype("f4")),
    ("dot", (4, 5, 6), {}, lambda x, y: np.tensordot(x, y, 1)),
    ("batch_dot", (2, 5, 4), {"transpose_b": "True"}, lambda x, y: x @ y.swapaxes(1, 2)),
    ("Concat", (2, 3, 4), {"dim": 1, "num_args": 2}, lambda x, y: np.concatenate((x, y), 1)),
    ("stack", (2, 3, 4), {"axis": -1, "num_args": 2}, lambda x, y: np.stack((x, y), -1)),
    ("slice_like", (1, 2, 3), {}, lambda x, y: x[:1, :2, :3]),
    ("take", (5,), {"axis": 1}, lambda x, y: x[:, np.trunc(y).astype(int).clip(0, 2)]),
    ("take", (5,), {"axis": 1, "mode": "wrap"}, lambda x, y: x[:, np.trunc(y).astype(int) % 3]),
    (
        "pick",
        (2, 3),
        {},
        lambda x, y: np.take_along_axis(x, np.trunc(y).astype(int).clip(0, 3)[..., None], -1)[..., 0],
    ),
]


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "expected"), BINARY, ids=[f"{r[0]}-{i}" for i, r in enumerate(BINARY)]
)
def test_an_operator_of_two_operands(
    tmp_path: Path,
    op: str,
    shape: tuple[int, ...],
    attributes: dict[str, Any],
    expected: Callable[[Array, Array], Array],
) -> None:
    y = (np.random.default_rng(5).standard_normal(shape) * 2).astype(np.float32)
    assert_close(one(tmp_path, op, X, y, **attributes)[0], expected(X, y))


@pytest.mark.parametrize("counted", [True, False])
def test_full_pooling_counts_the_padding_and_no_more(tmp_path: Path, counted: bool) -> None:
    x = RANDOM.standard_normal((1, 2, 8)).astype(np.float32)
    s = Symbols()
    s.add(
        "Pooling", "p", s.var("x", shape="(1, 2, 8)"), kernel="(3,)", stride="(2,)", pad="(1,)", pool_type="avg",
        pooling_convention="full", count_include_pad=counted,
    )  # fmt: skip
    expected = []
    for i in range(-1, 9, 2):
        if len(expected) == -(-(8 + 2 - 3) // 2) + 1:
            break
        inside = x[..., max(i, 0) : min(i + 3, 8)]
        divisor = min(i + 3, 9) - i if counted else inside.shape[-1]
        expected.append(inside.sum(-1) / divisor)
    assert_close(run(tmp_path, s, {"x": x})[0], np.stack(expected, -1))


def test_a_fixed_gamma_is_one(tmp_path: Path) -> None:
    s = Symbols()
    names = ("gamma", "beta", "moving_mean", "moving_var")
    s.add("BatchNorm", "bn", s.var("x", shape="(0, 3, 0)"), *(s.var(f"bn_{n}") for n in names), eps=0.5)
    w = {f"bn_{n}": RANDOM.random(3).astype(np.float32) for n in names}
    beta, mean, variance = (w[f"bn_{n}"][:, None] for n in names[1:])
    assert_close(run(tmp_path, s, {"x": X}, **w)[0], (X - mean) / np.sqrt(variance + 0.5) + beta)


def test_statistics_that_old_symbols_leave_out_are_found(tmp_path: Path) -> None:
    s = Symbols()
    s.add("BatchNorm", "bn", s.var("x", shape="(0, 3, 0)"), s.var("g"), s.var("b"), fix_gamma="False")
    w = {n: RANDOM.random(3).astype(np.float32) for n in ("g", "b", "bn_moving_mean", "bn_moving_var")}
    g, b, mean, variance = (v[:, None] for v in w.values())
    assert_close(run(tmp_path, s, {"x": X}, **w)[0], (X - mean) / np.sqrt(variance + 1e-3) * g + b)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_fused_lstm(tmp_path: Path, layers: int) -> None:
    """Parameters: weights of all layers (gates i, f, g, o), then their biases."""
    steps, batch, width, hidden = 3, 2, 5, 4
    parts, biases = [], []
    for layer in range(layers):
        inner = width if layer == 0 else hidden
        parts.append(
            (RANDOM.standard_normal((4 * hidden, inner)), RANDOM.standard_normal((4 * hidden, hidden)))
        )
        biases.append((RANDOM.standard_normal(4 * hidden), RANDOM.standard_normal(4 * hidden)))
    flat = [a.reshape(-1) for pair in (*parts, *biases) for a in pair]
    x = RANDOM.standard_normal((steps, batch, width)).astype(np.float32)
    h0, c0 = (RANDOM.standard_normal((layers, batch, hidden)).astype(np.float32) for _ in range(2))
    s = Symbols()
    node = s.add(
        "RNN", "rnn", s.var("x"), s.var("p"), s.var("h", shape=f"({layers}, 0, 4)"), s.var("c", shape=f"({layers}, 0, 4)"),
        mode="lstm", state_size=hidden, num_layers=layers, state_outputs="True",
    )  # fmt: skip
    inputs = {"x": x, "h": h0, "c": c0}
    found = run(
        tmp_path, s, inputs, (node, 0), (node, 1), (node, 2), p=np.concatenate(flat).astype(np.float32)
    )
    states, last = x.astype(np.float64), []
    for (w, r), (b, q), h, c in zip(parts, biases, h0, c0):
        out = []
        for step in states:
            i, f, g, o = np.split(step @ w.T + h @ r.T + b + q, 4, axis=-1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out.append(h)
        states = np.stack(out)
        last.append((h, c))
    for value, expected in zip(
        found, (states, np.stack([h for h, _ in last]), np.stack([c for _, c in last]))
    ):
        assert_close(value, expected.astype(np.float32), 1e-4)


def test_foreach_is_a_scan(tmp_path: Path) -> None:
    """out = a w + s; s = s + a."""
    body = Symbols()
    a, w, state = body.var("a"), body.var("w"), body.var("s")
    out = body.add("elemwise_add", "out", body.add("elemwise_mul", "m", a, w), state)
    following = body.add("elemwise_add", "next", state, a)
    s = Symbols()
    operands = s.var("x", shape="(3, 2)"), s.var("s0", shape="(2,)"), s.var("w0", shape="(2,)")
    loop = s.add(
        "_foreach", "loop", *operands, subgraphs=[body.json(out, following)], num_args=4, num_outputs=2, num_out_data=1,
        in_data_locs="(0,)", in_state_locs="(2,)", remain_locs="(1,)",
    )  # fmt: skip
    x, s0, w0 = X[0, :, :2], X[1, 0, :2], X[1, 1, :2]
    found = run(tmp_path, s, {"x": x, "s0": s0, "w0": w0}, (loop, 0), (loop, 1))
    sums = s0 + np.concatenate((np.zeros((1, 2)), x.cumsum(0)))
    assert_close(found[0], (x * w0 + sums[:-1]).astype(np.float32))
    assert_close(found[1], sums[-1].astype(np.float32))


@pytest.mark.parametrize("first", [0.0, 2.0, 9.0])
def test_while_loop_is_a_loop_of_padded_outputs(tmp_path: Path, first: float) -> None:
    """while i < 4: out = i w; i = i + 1."""
    condition = Symbols()
    condition.add("_lesser_scalar", "less", condition.var("i"), scalar=4)
    body = Symbols()
    i, w = body.var("i"), body.var("w")
    out = body.add("broadcast_mul", "out", i, w)
    following = body.add("_plus_scalar", "next", i, scalar=1)
    s = Symbols()
    operands = s.var("i0", shape="(1,)"), s.var("w0", shape="(3,)")
    loop = s.add(
        "_while_loop", "loop", *operands, subgraphs=[condition.json(), body.json(out, following)], num_args=4,
        num_outputs=2, num_out_data=1, max_iterations=6, cond_input_locs="(0,)", func_input_locs="(0, 1)",
        func_var_locs="(0,)",
    )  # fmt: skip
    w0 = X[0, 0, :3]
    found = run(tmp_path, s, {"i0": np.array([first], "f4"), "w0": w0}, (loop, 0), (loop, 1))
    counted = np.arange(first, 4, dtype=np.float32)
    assert_close(found[0], np.pad(counted[:, None] * w0, ((0, 6 - len(counted)), (0, 0))).astype(np.float32))
    assert_close(found[1], np.array([max(first, 4)], np.float32))


@pytest.mark.parametrize("sign", [1, -1])
def test_cond_is_an_if(tmp_path: Path, sign: int) -> None:
    graphs = []
    for op, options in (("_greater_scalar", {"scalar": 0}), ("square", {}), ("negative", {})):
        inner = Symbols()
        x = inner.var("v")
        inner.add(op, "n", inner.add("sum", "t", x) if op.startswith("_") else x, **options)
        graphs.append(inner.json())
    s = Symbols()
    s.add(
        "_cond", "if", s.var("x", shape="(2,)"), subgraphs=graphs, num_args=4, num_outputs=1, cond_input_locs="(0,)",
        then_input_locs="(0,)", else_input_locs="(0,)",
    )  # fmt: skip
    x = np.array([1, 2], np.float32) * sign
    assert_close(run(tmp_path, s, {"x": x})[0], x * x if sign > 0 else -x)


def test_labels_are_no_inputs_and_outputs_have_mxnets_names(tmp_path: Path) -> None:
    s = Symbols()
    parts = s.add("SliceChannel", "parts", s.var("x", shape="(2, 4)"), num_outputs=2)
    loss = s.add("SoftmaxOutput", "softmax", (parts, 1), s.var("softmax_label"))
    graph = loaded(tmp_path, s, loss, (parts, 0), (parts, 1)).graph
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in graph.outputs] == ["softmax_output", "parts_output0", "parts_output1"]


def test_shapes_and_types_of_inputs_are_those_of_the_variables(tmp_path: Path) -> None:
    s = Symbols()
    x = s.var("x", shape="(0, 3)", dtype="4", storage_type="2", layout="NC")
    s.add("relu", "r", x)
    s.add("Pooling", "p", s.var("image"), kernel="(2, 2)")
    graph = loaded(tmp_path, s, 1, 3).graph
    x, image = graph.inputs
    assert (str(x.shape), x.dtype.name, image.shape.rank()) == ("[x_0,3]", "INT32", 4)
    assert x.metadata_props["__storage_type__"] == "csr"
    assert x.metadata_props["__layout__"] == "NC"


def test_a_rank_that_is_needed_and_not_known_names_the_way_out(tmp_path: Path) -> None:
    s = Symbols()
    s.add("SwapAxis", "swap", s.var("x"), dim1=0, dim2=1)
    with pytest.raises(GraphError, match=r"SwapAxis 'swap': the rank of 'x' is not known.*__shape__"):
        loaded(tmp_path, s)
