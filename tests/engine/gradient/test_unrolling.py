"""Gradients of recurrent operators and of loops, against differences in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.entry.training import training
from app.engine.gradient import unrolling
from app.engine.gradient.differentiate import training_graph
from app.engine.types.errors import NotDifferentiableError
from tests.engine.gradient.derivatives import by_reference, check, model

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 4, 2, 3, 2
LENGTHS = np.array([4, 2], np.int32)


def recurrent(op: str, attributes: str, more: tuple[str, ...]) -> tuple[ir.Model, dict[str, Array]]:
    """A layer with all its operands, its outputs weighed into a loss."""
    directions = 2 if "bidirectional" in attributes else 1
    first, h, g = "layout=1" in attributes, HIDDEN, GATES[op]
    state = (BATCH, directions, h) if first else (directions, BATCH, h)
    shapes = {
        "x": (BATCH, STEPS, INPUTS) if first else (STEPS, BATCH, INPUTS),
        "w": (directions, g * h, INPUTS), "r": (directions, g * h, h), "b": (directions, 2 * g * h),
        "h0": state, "c0": state, "p": (directions, 3 * h),
    }  # fmt: skip
    rng = np.random.default_rng(3)
    order = ("x", "w", "r", "b", "lengths", "h0", *(("c0", "p") if op == "LSTM" else ()))
    given = [n for n in order if n in ("x", "w", "r", *more)]
    inputs = {n: rng.standard_normal(shapes[n]) * 0.4 for n in given if n != "lengths"}
    operands = [n if n in given else "" for n in order]
    outputs = "y, yh, yc" if op == "LSTM" else "y, yh"
    body = f"{outputs} = {op}<hidden_size={h}, {attributes}>({', '.join(operands)}) s = Sin(y) a = ReduceSum(s) t = Cos(yh)"
    body += " b1 = ReduceSum(t) c1 = Add(a, b1)" + (
        " u = ReduceSumSquare(yc) loss = Add(c1, u)" if op == "LSTM" else " loss = Identity(c1)"
    )
    constants = {"lengths": LENGTHS} if "lengths" in given else {}
    return model(body, inputs, constants, 22), inputs


ALL = ("b", "lengths", "h0", "c0", "p")
RECURRENT = [
    *((op, f'direction="{d}", layout={layout}', more) for op in GATES for d in ("forward", "reverse", "bidirectional")
      for layout in (0, 1) for more in ((), ALL)),
    ("LSTM", "input_forget=1", ("b", "p")), ("LSTM", "clip=0.4", ALL), ("LSTM", 'direction="reverse"', ("b",)),
    ("LSTM", 'activations=["HardSigmoid", "Softsign", "Affine"], activation_alpha=[0.3, 0.7], activation_beta=[0.4, 0.2]', ALL),
    ("LSTM", 'direction="bidirectional", activations=["Sigmoid", "Tanh", "ScaledTanh", "Softplus", "Elu", "LeakyRelu"]', ("b",)),
    ("GRU", "linear_before_reset=1", ()), ("GRU", 'linear_before_reset=1, direction="bidirectional", clip=0.5', ALL),
    ("GRU", 'activations=["HardSigmoid", "Relu"]', ("b",)), ("RNN", 'activations=["ThresholdedRelu"], activation_alpha=[0.1]', ALL),
    ("RNN", 'activations=["Relu"], clip=2.0', ("b", "h0")),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "more"), RECURRENT)
def test_gradients_of_a_recurrent_layer_are_those_of_differences(
    op: str, attributes: str, more: tuple[str, ...]
) -> None:
    built, inputs = recurrent(op, attributes, more)
    before = by_reference(ir.to_proto(built), inputs)["loss"]
    made = check(built, inputs, tuple(inputs), step=1e-5, tolerance=1e-5)
    assert op not in {n.op_type for n in made.model.graph}
    np.testing.assert_allclose(by_reference(ir.to_proto(made.model), inputs)["loss"], before, rtol=1e-8)


SCAN = """
    last, stack = Scan<num_scan_inputs=2, ATTRIBUTES,
        body = step (double[2] s, double[2] e, double[2] f) => (double[2] n, double[2] o) {
            a = Mul(s, w) b = Add(a, e) n = Tanh(b) c = Mul(n, f) o = Sin(c) }>(x, u, v)
    k = Sin(last) p = ReduceSum(k) q = Mul(stack, stack) r = ReduceSum(q) loss = Add(p, r)"""
LOOP = """
    last, stack = Loop<body = step (int64 i, bool c, double[2] s) => (bool d, double[2] n, double[2] o) {
            f = Cast<to=11>(i) a = Mul(s, w) b = Add(a, f) n = Tanh(b) t = Sin(n) o = Mul(t, s) d = Identity(c)
        }>(turns, , x)
    p = ReduceSum(last) q = Mul(stack, stack) r = ReduceSum(q) loss = Add(p, r)"""
NESTED = """
    last = Loop<body = outer (int64 i, bool c, double[2] s) => (bool d, double[2] n) {
            n = Loop<body = inner (int64 j, bool g, double[2] z) => (bool e, double[2] m) {
                y = Mul(z, w) v = Add(y, s) m = Sin(v) e = Identity(g) }>(turns, , s)
            d = Identity(c) }>(turns, , x)
    loss = Mul(last, last)"""
TURNS = np.array(3, np.int64)


@pytest.mark.parametrize("attributes", [
    "scan_input_axes=[0,0]", "scan_input_axes=[1,0], scan_input_directions=[1,0]",
    "scan_input_axes=[0,-1], scan_output_axes=[1], scan_output_directions=[1]", "scan_input_directions=[0,1], scan_output_axes=[-1]",
])  # fmt: skip
def test_gradients_of_a_scan(attributes: str) -> None:
    rng = np.random.default_rng(0)
    axes = (
        [int(n) for n in attributes.split("axes=[")[1].split("]")[0].split(",")]
        if "input_axes" in attributes
        else [0, 0]
    )
    shapes = [(3, 2) if axis == 0 else (2, 3) for axis in axes]
    inputs = {
        n: rng.standard_normal(s) for n, s in (("x", (2,)), ("u", shapes[0]), ("v", shapes[1]), ("w", (2,)))
    }
    made = check(model(SCAN.replace("ATTRIBUTES", attributes), inputs, {}), inputs, tuple(inputs), step=1e-5)
    assert "Scan" not in {n.op_type for n in made.model.graph}


@pytest.mark.parametrize("body", [LOOP, NESTED])
def test_gradients_of_loops(body: str) -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal(2), "w": rng.standard_normal(2)}
    made = check(model(body, inputs, {"turns": TURNS}), inputs, tuple(inputs), step=1e-5)
    assert "Loop" not in {n.op_type for n in made.model.graph}


def test_a_turn_may_read_its_own_part_by_a_computed_index(tmp_path: Path) -> None:
    """Indices that the body computes from the number of the turn are constants of its steps."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[3, 4] x, float[1, 4] s0) => (float loss)
        <int64 turns = {3}, int64[1] one = {1}, int64[1] zero = {0}> {
        last = Loop<body = step (int64 i, bool c, float[1, 4] s) => (bool d, float[1, 4] n) {
            b = Reshape(i, one) e = Add(b, one) part = Slice(x, b, e, zero) m = Mul(part, s) n = Sin(m) d = Identity(c) }>(turns, , s0)
        loss = ReduceSum<keepdims=0>(last) }"""
    path = tmp_path / "loop.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    made = training(path, "loss", ("x", "s0"))
    rng = np.random.default_rng(1)
    inputs = {"x": rng.standard_normal((3, 4)).astype("f4"), "s0": rng.standard_normal((1, 4)).astype("f4")}
    found = by_reference(ir.to_proto(made.model), inputs)
    x, state, states = inputs["x"].astype("f8"), inputs["s0"].astype("f8"), []
    for row in x:
        states.append(state)
        state = np.sin(row * state)
    adjoint, dx = np.ones((1, 4)), np.zeros((3, 4))
    for i in (2, 1, 0):
        adjoint = adjoint * np.cos(x[i] * states[i])
        dx[i], adjoint = (adjoint * states[i])[0], adjoint * x[i]
    np.testing.assert_allclose(found["x_grad"], dx, atol=1e-6)
    np.testing.assert_allclose(found["s0_grad"], adjoint, atol=1e-6)


REFUSED = {
    "LSTM": ('y = LSTM<hidden_size=2, activations=["Sigmoid", "Tanh", "Gelu"]>(x, w, r) loss = Sin(y)', "activations are .*gelu.*expected 3 of"),
    "Loop": ("""last = Loop<body = step (int64 i, bool c, double[4,2,3] s) => (bool d, double[4,2,3] n) {
        n = Sin(s) t = ReduceSum<keepdims=0>(n) d = Less(t, zero) }>(turns, , x) loss = Sin(last)""", "number of turns is known only"),
    "If": ("""t = ReduceSum<keepdims=0>(x) c = Less(t, zero) y = If<then_branch = a () => (double[4,2,3] p) { p = Sin(x) },
        else_branch = b () => (double[4,2,3] q) { q = Cos(x) }>(c) loss = Sin(y)""", "branch is chosen when the graph runs"),
}  # fmt: skip


@pytest.mark.parametrize("op", REFUSED)
def test_what_has_no_steps_is_refused_with_the_reason(op: str) -> None:
    body, reason = REFUSED[op]
    inputs = {"x": np.ones((4, 2, 3)), "w": np.ones((1, 8, 3)), "r": np.ones((1, 8, 2))}
    constants = {"turns": TURNS, "zero": np.array(0.0)}
    used = {n: a for n, a in constants.items() if n in body}
    with pytest.raises(NotDifferentiableError, match=reason):
        training_graph(model(body, inputs, used), "loss", ("x",))


def test_steps_beyond_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolling, "LARGEST", 500)
    turns = unrolling.LARGEST
    inputs = {"x": np.ones(2), "w": np.ones(2)}
    with pytest.raises(NotDifferentiableError, match=f"at most {unrolling.LARGEST} are made"):
        training_graph(model(LOOP, inputs, {"turns": np.array(turns, np.int64)}), "loss", ("x",))
    # Loops in one another: each of them fits, all together do not.
    with pytest.raises(NotDifferentiableError, match=f"more than {unrolling.LARGEST} nodes"):
        training_graph(model(NESTED, inputs, {"turns": np.array(40, np.int64)}), "loss", ("x",))
