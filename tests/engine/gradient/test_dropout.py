"""Dropout in training mode: masks as inputs, gradients against differences with the same masks, and a job."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.entry import optimize
from app.engine.entry.training import training
from app.engine.gradient.differentiate import training_graph
from app.engine.model import dropout_masks
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.runtime.inputs import tensors
from app.engine.types.errors import NotDifferentiableError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.gradient.derivatives import by_onnxruntime, model

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((3, 4))
RATIO, YES, NO = np.array(0.25), np.array(True), np.array(False)
BODY = "h = Exp(x) d{kept} = Dropout(h{ratio}, t) s = Sin(d) {more} loss = ReduceSum(s)"


def built(text: str, constants: dict[str, Array], inputs: dict[str, Array] | None = None) -> ir.Model:
    return model(text, {"x": X, **(inputs or {})}, constants)


def ran(made: ir.Model, inputs: dict[str, Array]) -> dict[str, Array]:
    proto = ir.to_proto(made)
    onnx.checker.check_model(proto, full_check=True)
    return by_onnxruntime(proto, inputs)


def masks_of(made: ir.Model, seed: int = 0) -> dict[str, Array]:
    """Masks for the inputs that note what they are, each of a share and shape of its own."""
    random = np.random.default_rng(seed)
    return {
        v.name or "": dropout_masks.drawn(share, tuple(v.shape or ()), np.dtype("f8"), random)
        for v in made.graph.inputs
        if (share := dropout_masks.share_of(v)) is not None
    }


@pytest.mark.parametrize(("ratio", "share"), [(", r", 0.25), (",", 0.5)])
def test_a_mask_is_an_input_that_both_ways_read(ratio: str, share: float) -> None:
    made = training_graph(
        built(BODY.format(kept="", ratio=ratio, more=""), {"r": RATIO, "t": YES}), "loss", ["x"]
    )
    (mask,) = masks_of(made.model).values()
    assert set(np.unique(mask)) <= {0.0, 1 / (1 - share)}
    assert not any(n.op_type == "Dropout" for n in made.model.graph)
    (name,) = masks_of(made.model)
    found = ran(made.model, {"x": X, name: mask})
    h = np.exp(X)
    np.testing.assert_allclose(found[made.loss], np.sin(h * mask).sum(), rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], np.cos(h * mask) * mask * h, rtol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_a_mode_that_is_an_input_takes_the_mask_or_leaves_it(training: bool) -> None:
    text = BODY.format(kept="", ratio=", r", more="")
    made = training_graph(built(text, {"r": RATIO}, {"t": np.array(True)}), "loss", ["x"])
    masks = masks_of(made.model)
    (mask,) = masks.values() if training else (np.ones_like(X),)
    found = ran(made.model, {"x": X, "t": np.array(training), **masks})
    np.testing.assert_allclose(found["x_grad"], np.cos(np.exp(X) * mask) * mask * np.exp(X), rtol=1e-12)


def test_the_mask_that_a_node_returns_is_that_of_the_input() -> None:
    text = BODY.format(kept=", m", ratio=", r", more="c = Cast<to=11>(m)").replace("(s)", "(z)")
    made = training_graph(
        built(text.replace("loss =", "z = Mul(s, c) loss ="), {"r": RATIO, "t": YES}), "loss", ["x"]
    )
    masks = masks_of(made.model)
    (mask,) = masks.values()
    found = ran(made.model, {"x": X, **masks})
    np.testing.assert_allclose(found[made.loss], (np.sin(np.exp(X) * mask) * (mask != 0)).sum(), rtol=1e-12)


def test_each_turn_of_a_loop_has_a_mask_of_its_own() -> None:
    text = """
        loss = Scan<num_scan_inputs=1, body = step (double[4] state, double[4] row) => (double[4] next) {
            d = Dropout(row, r, t) next = Add(state, d)
        }>(zeros, x)
    """
    text = text.replace("loss =", "last =") + " y = Mul(last, last) loss = ReduceSum(y)"
    made = training_graph(built(text, {"r": RATIO, "t": YES, "zeros": np.zeros(4)}), "loss", ["x"])
    masks = masks_of(made.model)
    assert [a.shape for a in masks.values()] == [(4,)] * 3
    mask = np.stack(list(masks.values()))
    found = ran(made.model, {"x": X, **masks})
    np.testing.assert_allclose(found["x_grad"], 2 * (X * mask).sum(0) * mask, rtol=1e-12)


def test_a_mode_that_is_never_on_and_a_ratio_of_zero_need_no_mask() -> None:
    for constants in ({"r": RATIO, "t": NO}, {"r": np.array(0.0), "t": YES}):
        made = training_graph(built(BODY.format(kept="", ratio=", r", more=""), constants), "loss", ["x"])
        assert masks_of(made.model) == {}


def test_a_ratio_that_is_known_in_a_run_alone_is_refused() -> None:
    text = BODY.format(kept="", ratio=", r", more="")
    with pytest.raises(NotDifferentiableError, match="its ratio is not a number below 1 that is known"):
        training_graph(built(text, {"t": YES}, {"r": RATIO}), "loss", ["x"])


FILE = (
    '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]> g (float[64,32] x, float[32,16] w)'
    " => (float loss {more}) {{ r = Constant<value_float=0.25>() t = Constant<value = bool {{1}}>()"
    " p = MatMul(x, w) h = Relu(p) d = Dropout(h, r, t) q = Mul(d, d) loss = ReduceSum<keepdims=0>(q) {last} }}"
)
GRADIENT = 'dw = ai.onnx.preview.training.Gradient<xs = ["w"], y = "loss">(w)'


def saved(folder: Path, more: str = "", last: str = "") -> Path:
    onnx.save(onnx.parser.parse_model(FILE.format(more=more, last=last)), folder / "m.onnx")
    return folder / "m.onnx"


def test_the_mask_of_a_file_is_an_input_of_its_training_graph(tmp_path: Path) -> None:
    made = training(saved(tmp_path), "loss", ["w"]).model
    assert [v.name for v in made.graph.inputs if dropout_masks.share_of(v) == 0.25] == ["Dropout d_mask"]


def test_a_job_draws_masks_from_its_seed_and_verifies(compiler: Compiler, tmp_path: Path) -> None:
    """A file asks for the gradient by a Gradient node."""
    path = saved(tmp_path, ", float[32,16] dw", GRADIENT)
    options = Options(autotune=False, benchmark_seconds=0.05, seed=7)
    summary = optimize.optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)
    assert summary["verification"]["status"] == "verified", summary["verification"]
    compilation = session.canonical(expanded(load(path)), host(), options, Bindings(), load_registry())
    drawn = [tensors(compilation, Bindings(), seed)["Dropout d_mask"] for seed in (7, 7, 8)]
    assert set(np.unique(drawn[0])) == {0, np.float32(1 / 0.75)}
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.any(drawn[0] != drawn[2])
