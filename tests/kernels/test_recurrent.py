"""LSTM, GRU and RNN against the equations of the standard, step by step in float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.core.registry import PlanningContext
from app.engine.operators.recurrent import ACTIVATIONS
from app.engine.reference.recurrent import CORRECTIONS
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.harness import Array, assert_close, context, implementation, run_group
from tests.kernels.single_node import REGISTRY, run_text, text_group

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OUTPUTS = {"LSTM": ("y", "y_h", "y_c"), "GRU": ("y", "y_h"), "RNN": ("y", "y_h")}
ORDER = ("x", "w", "r", "b", "lens", "h0", "c0", "p")


def sigmoid(v: Array) -> Array:
    return 1 / (1 + np.exp(-v))


def layer(
    op: str,
    operands: dict[str, Array],
    direction: str = "forward",
    *,
    linear_before_reset: int = 0,
    clip: float = np.inf,
    activation: Any = np.tanh,
) -> list[Array]:
    """Every direction, sequence and step in turn. x: [steps, batch, inputs]; results as in layout 0."""
    a = {k: v.astype(np.float64) for k, v in operands.items()}
    steps, batch, _ = a["x"].shape
    directions, _, n = a["r"].shape
    y = np.zeros((steps, directions, batch, n))
    last_h, last_c = np.zeros((directions, batch, n)), np.zeros((directions, batch, n))
    lengths = operands.get("lens", np.full(batch, steps))
    for d in range(directions):
        backwards = direction == "reverse" or d == 1
        w, r = a["w"][d], a["r"][d]
        bias = a["b"][d] if "b" in a else np.zeros(2 * len(w))
        wb, rb = bias[: len(w)], bias[len(w) :]
        pi, po, pf = np.split(a["p"][d], 3) if "p" in a else (0.0, 0.0, 0.0)
        for b in range(batch):
            h = a["h0"][d, b] if "h0" in a else np.zeros(n)
            c = a["c0"][d, b] if "c0" in a else np.zeros(n)
            order = range(lengths[b])
            for t in reversed(order) if backwards else order:
                cut = lambda v: np.clip(v, -clip, clip)  # noqa: E731
                g = w @ a["x"][t, b] + wb
                if op == "LSTM":
                    gi, go, gf, gc = np.split(g + r @ h + rb, 4)
                    i, f = sigmoid(cut(gi + pi * c)), sigmoid(cut(gf + pf * c))
                    c = f * c + i * np.tanh(cut(gc))
                    h = sigmoid(cut(go + po * c)) * np.tanh(c)
                elif op == "GRU":
                    z, reset = (sigmoid(cut(v)) for v in np.split((g + r @ h + rb)[: 2 * n], 2))
                    rh, rbh = r[2 * n :], rb[2 * n :]
                    inner = reset * (rh @ h + rbh) if linear_before_reset else rh @ (reset * h) + rbh
                    h = (1 - z) * np.tanh(cut(g[2 * n :] + inner)) + z * h
                else:
                    h = activation(cut(g + r @ h + rb))
                y[t, d, b] = h
            last_h[d, b], last_c[d, b] = h, c
    return [y, last_h, last_c][: len(OUTPUTS[op])]


def operands_of(
    op: str, steps: int, batch: int, inputs: int, hidden: int, directions: int, names: str
) -> dict[str, Array]:
    rng = np.random.default_rng(steps * 7 + hidden)
    rows = GATES[op] * hidden
    shapes = {
        "x": (steps, batch, inputs),
        "w": (directions, rows, inputs),
        "r": (directions, rows, hidden),
        "b": (directions, 2 * rows),
        "h0": (directions, batch, hidden),
        "c0": (directions, batch, hidden),
        "p": (directions, 3 * hidden),
    }
    found = {k: rng.normal(0, 0.6, shapes[k]).astype(np.float32) for k in shapes if k in names.split()}
    if "lens" in names.split():
        found["lens"] = rng.integers(1, steps + 1, batch).astype(np.int32)
    return found


def body_of(op: str, operands: dict[str, Array], attributes: str) -> str:
    present = [name if name in operands else "" for name in ORDER[: 8 if op == "LSTM" else 6]]
    hidden = operands["r"].shape[2]
    return f"{op} <hidden_size = {hidden}{attributes}> ({', '.join(present).rstrip(', ')})"


def check(
    compiler: Compiler,
    op: str,
    operands: dict[str, Array],
    direction: str = "forward",
    attributes: str = "",
    constants: tuple[str, ...] = ("w", "r", "b", "p"),
    threads: int = 1,
    **options: Any,
) -> None:
    body = body_of(op, operands, f', direction = "{direction}"{attributes}')
    fixed = {k: v for k, v in operands.items() if k in constants}
    inputs = {k: v for k, v in operands.items() if k not in constants}
    found = run_text(compiler, f"{op.lower()}.loop", body, inputs, fixed, OUTPUTS[op], threads=threads)
    for a, b in zip(found, layer(op, operands, direction, **options), strict=True):
        assert_close(a, b, 1e-5)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("names", ["x w r", "x w r b lens h0 c0 p"])
def test_layers_follow_the_equations(compiler: Compiler, op: str, direction: str, names: str) -> None:
    if op != "LSTM":
        names = names.replace(" c0 p", "")
    directions = 2 if direction == "bidirectional" else 1
    check(compiler, op, operands_of(op, 6, 3, 5, 9, directions, names), direction, threads=2)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_extents_need_not_fit_the_tiles(compiler: Compiler, data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["LSTM", "GRU", "RNN"]))
    extents = [data.draw(st.integers(low, high)) for low, high in ((0, 5), (0, 4), (1, 20), (1, 20))]
    names = "x w r b" + (" lens" if extents[0] and data.draw(st.booleans()) else "")
    threads = data.draw(st.integers(1, 2))
    check(compiler, op, operands_of(op, *extents, 2, names), "bidirectional", threads=threads)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("batch", [1, 6])
def test_layers_are_the_same_for_any_width_of_registers(
    compiler: Compiler, op: str, lanes: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(host(), vector_lanes=lanes)
    monkeypatch.setattr(harness, "context", lambda threads=1, _lanes=0: PlanningContext(target, threads))
    check(compiler, op, operands_of(op, 3, batch, 5, 37, 2, "x w r b"), "bidirectional")


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_weights_may_change_between_runs(compiler: Compiler, op: str) -> None:
    check(compiler, op, operands_of(op, 4, 2, 5, 23, 2, "x w r b"), "bidirectional", constants=())


def test_gru_may_multiply_before_it_resets(compiler: Compiler) -> None:
    for lens in ("", " lens"):
        operands = operands_of("GRU", 5, 3, 4, 7, 2, "x w r b h0" + lens)
        check(
            compiler, "GRU", operands, "bidirectional", ", linear_before_reset = 1",
            linear_before_reset=1,
        )  # fmt: skip


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_gates_are_clipped(compiler: Compiler, op: str) -> None:
    check(compiler, op, operands_of(op, 4, 2, 3, 5, 1, "x w r b"), "forward", ", clip = 0.3", clip=0.3)


def test_rnn_activations_are_chosen_by_direction(compiler: Compiler) -> None:
    operands = operands_of("RNN", 4, 2, 3, 5, 2, "x w r b")
    names = {"Relu": lambda v: np.maximum(v, 0), "Sigmoid": sigmoid}
    body = body_of("RNN", operands, ', direction = "bidirectional", activations = ["Relu", "Sigmoid"]')
    fixed = {k: v for k, v in operands.items() if k != "x"}
    y, _ = run_text(compiler, "rnn.loop", body, {"x": operands["x"]}, fixed, OUTPUTS["RNN"])
    for d, function in enumerate(names.values()):
        assert_close(y[:, d], layer("RNN", operands, "bidirectional", activation=function)[0][:, d], 1e-5)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_the_batch_may_come_first(compiler: Compiler, op: str) -> None:
    operands = operands_of(op, 5, 3, 4, 6, 2, "x w r b lens h0" + (" c0" if op == "LSTM" else ""))
    expected = layer(op, operands, "bidirectional")
    swapped = {
        k: np.ascontiguousarray(v.swapaxes(0, 1)) if k in ("x", "h0", "c0") else v
        for k, v in operands.items()
    }
    body = body_of(op, swapped, ', direction = "bidirectional", layout = 1')
    found = run_text(compiler, f"{op.lower()}.loop", body, swapped, None, OUTPUTS[op])
    assert_close(found[0], expected[0].transpose(2, 0, 1, 3), 1e-5)
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert_close(a, b.swapaxes(0, 1), 1e-5)


def test_outputs_that_nobody_reads_are_not_written(compiler: Compiler) -> None:
    operands = operands_of("LSTM", 5, 2, 4, 6, 1, "x w r b")
    body = body_of("LSTM", operands, "")
    fixed = {k: v for k, v in operands.items() if k != "x"}
    (c,) = run_text(compiler, "lstm.loop", body, {"x": operands["x"]}, fixed, ("", "", "y_c"))
    assert_close(c, layer("LSTM", operands)[2], 1e-5)


def test_unknown_activations_are_refused_by_name() -> None:
    operands = operands_of("GRU", 2, 1, 3, 4, 1, "x w r")
    body = body_of("GRU", operands, ', activations = ["HardTanh", "Tanh"]')
    reason = implementation("gru.loop", REGISTRY).rejection(text_group(body, operands), context())
    assert "hardtanh" in (reason or "")


def against_the_evaluator(compiler: Compiler, op: str, names: str, **attributes: Any) -> None:
    operands = operands_of(op, 4, 3, 3, 5, 2 if "direction" in attributes else 1, names)
    fixed = {k: v for k, v in operands.items() if k in ("w", "r", "b", "p")}
    inputs = {k: v for k, v in operands.items() if k not in fixed}
    written = "".join(f", {k} = {v}".replace("'", '"') for k, v in attributes.items())
    written = written.replace("bidirectional", '"bidirectional"')
    found = run_text(
        compiler, f"{op.lower()}.loop", body_of(op, operands, written), inputs, fixed, OUTPUTS[op]
    )
    compute = next(c.function for c in CORRECTIONS if c.op == op)
    given = [operands.get(name) for name in ORDER[: 8 if op == "LSTM" else 6]]
    wide = [v.astype(np.float64) if v is not None and v.dtype == np.float32 else v for v in given]
    for a, b in zip(found, compute(*wide, **attributes), strict=True):
        assert_close(a, b, 1e-5)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_any_activation_serves_in_either_direction(compiler: Compiler, op: str, name: str) -> None:
    count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op]
    against_the_evaluator(
        compiler,
        op,
        "x w r b",
        direction="bidirectional",
        clip=0.7,
        activations=[*["Sigmoid", "Elu", name][-count:], *[name, "ScaledTanh", "Softsign"][:count]],
        activation_alpha=[0.4],
        activation_beta=[0.6],
    )


def test_the_forget_gate_may_be_coupled_to_the_input_gate(compiler: Compiler) -> None:
    against_the_evaluator(compiler, "LSTM", "x w r b lens h0 c0 p", input_forget=1)


def rounded(v: Array) -> Array:
    """What is left of v after quantization to uint8 over its own range."""
    v = v.astype(np.float32)
    low, high = min(v.min(), np.float32(0)), max(v.max(), np.float32(0))
    step = (high - low) / np.float32(255) or np.float32(1)
    zero = np.clip(np.rint(-low / step), 0, 255)
    return (np.clip(np.rint(v / step) + zero, 0, 255) - zero).astype(np.float64) * step


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("kind", "per_column", "zeros", "batch", "n"),
    [("int8", False, (100, 120), 2, 7), ("uint8", True, (100, 120), 1, 40), ("int8", True, (0, 1), 1, 40)]
    + [("int8", False, (0, 1), batch, n) for batch, n in ((1, 7), (3, 7), (5, 36))],
)
def test_quantized_lstm_rounds_its_activations(
    compiler: Compiler,
    kind: str,
    per_column: bool,
    zeros: tuple[int, int],
    batch: int,
    n: int,
    lanes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = replace(host(), vector_lanes=lanes)
    monkeypatch.setattr(harness, "context", lambda threads=1, _lanes=0: PlanningContext(target, threads))
    steps, inputs = 5, 5
    a = operands_of("LSTM", steps, batch, inputs, n, 2, "x w r b h0 c0 p")
    rng = np.random.default_rng(5)
    limits = np.iinfo(kind)
    shapes = {"w": (2, inputs, 4 * n), "r": (2, n, 4 * n)}
    for name, shape in shapes.items():
        a[name] = rng.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)
        columns = (2, 4 * n) if per_column else (2,)
        a[f"{name}_scale"] = rng.uniform(0.001, 0.01, columns).astype(np.float32)
        a[f"{name}_zero"] = rng.integers(*zeros, columns).astype(kind)
    names = ["x", "w", "r", "b", "", "h0", "c0", "p", "w_scale", "w_zero", "r_scale", "r_zero"]
    body = (
        f'com.microsoft.DynamicQuantizeLSTM <hidden_size = {n}, direction = "bidirectional"> '
        f"({', '.join(names)})"
    )
    fixed = {k: v for k, v in a.items() if k not in ("x", "h0", "c0")}
    inputs_of = {k: a[k] for k in ("x", "h0", "c0")}
    group = text_group(body, inputs_of, fixed, OUTPUTS["LSTM"], domain="com.microsoft")
    for value, size in zip(group.outputs, [(steps, 2, batch, n), (2, batch, n), (2, batch, n)]):
        value.shape, value.dtype = ir.Shape(size), ir.DataType.FLOAT
    found = run_group(implementation("dynamic_quantize_lstm.loop", REGISTRY), group, inputs_of, compiler)

    real = {
        name: (a[name].astype(np.float64) - a[f"{name}_zero"].reshape(2, 1, -1).astype(np.float64))
        * a[f"{name}_scale"].reshape(2, 1, -1)
        for name in shapes
    }
    x = rounded(a["x"])
    for d in range(2):
        h, c = a["h0"][d].astype(np.float64), a["c0"][d].astype(np.float64)
        bias = a["b"][d].astype(np.float64)
        for t in reversed(range(steps)) if d else range(steps):
            g = x[t] @ real["w"][d] + rounded(h) @ real["r"][d] + bias[: 4 * n] + bias[4 * n :]
            i, o, f, new = np.split(g, 4, axis=1)
            pi, po, pf = np.split(a["p"][d].astype(np.float64), 3)
            c = sigmoid(f + pf * c) * c + sigmoid(i + pi * c) * np.tanh(new)
            h = sigmoid(o + po * c) * np.tanh(c)
            assert_close(found[0][t, d], h, 1e-5)
        assert_close(found[1][d], h, 1e-5)
        assert_close(found[2][d], c, 1e-5)


@pytest.mark.parametrize(("size", "offset"), [(1, 0.0), (9000, 3.0), (10000, -0.5), (5, -90.0)])
@pytest.mark.parametrize("threads", [1, 2])
def test_dynamic_quantization_covers_the_range_and_zero(
    compiler: Compiler, size: int, offset: float, threads: int
) -> None:
    x = (np.random.default_rng(size).standard_normal((1, size)) + offset).astype(np.float32)
    y, scale, zero = run_text(
        compiler,
        "dynamic_quantize_linear.chunks",
        "DynamicQuantizeLinear (x)",
        {"x": x},
        None,
        ("y", "scale", "zero"),
        threads=threads,
    )
    assert y.dtype == zero.dtype == np.uint8
    np.testing.assert_allclose(scale, (max(x.max(), 0) - min(x.min(), 0)) / np.float32(255), rtol=1e-6)
    assert np.abs((y.astype(np.float64) - zero) * scale - x).max() <= 0.501 * scale
    np.testing.assert_allclose(rounded(x), (y.astype(np.float64) - zero) * scale, rtol=1e-6)


def test_zeros_are_quantized_with_scale_one(compiler: Compiler) -> None:
    y, scale, zero = run_text(
        compiler,
        "dynamic_quantize_linear.chunks",
        "DynamicQuantizeLinear (x)",
        {"x": np.zeros(3, np.float32)},
        None,
        ("y", "scale", "zero"),
    )
    np.testing.assert_array_equal(y, 0)
    assert (scale, zero) == (1, 0)
