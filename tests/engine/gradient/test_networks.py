"""Whole networks: gradients are those of differences; planned and run by our kernels they are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.entry.training import peaks, training, write
from app.engine.types.errors import GraphError, NotDifferentiableError
from app.engine.types.options import Bindings, Options
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.gradient.derivatives import by_reference, check, model
from tests.engine.gradient.networks import NETWORKS
from tests.session import Session

Array = np.ndarray[Any, Any]


def saved(name: str, folder: Path, dtype: str = "float32") -> tuple[Path, dict[str, Array]]:
    network = NETWORKS[name]
    inputs, constants = network.arrays(dtype)
    built = model(network.body, inputs, {n: a for n, a in constants.items() if n != "scales"} | _scales(name))
    path = folder / f"{name}.onnx"
    path.write_bytes(ir.to_proto(built).SerializeToString())
    return path, inputs


def _scales(name: str) -> dict[str, Array]:
    found = NETWORKS[name].constants.get("scales")
    return {} if found is None else {"scales": found}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_networks_are_those_of_differences(name: str) -> None:
    network = NETWORKS[name]
    inputs, constants = network.arrays("float64")
    built = model(network.body, inputs, constants | _scales(name))
    # The reference computes GroupNormalization in single precision.
    coarse = "GroupNormalization" in network.body
    step, tolerance = (1e-3, 1e-3) if coarse else (1e-6, 1e-5)
    made = check(built, inputs, (*inputs, *network.weights), directions=3, step=step, tolerance=tolerance)
    assert set(made.gradients) == {*inputs, *network.weights}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_planned_training_graph_computes_what_the_reference_does(
    name: str, tmp_path: Path, compiler: Compiler
) -> None:
    path, inputs = saved(name, tmp_path)
    made = tmp_path / "training.onnx"
    summary = write(path, "loss", None, Bindings(), made)
    proto = onnx.load(made)
    onnx.checker.check_model(proto, full_check=True)
    expected = by_reference(proto, inputs)
    session = Session(made, compiler, options=Options(autotune=False), poison=True)
    found = session.run(inputs)
    session.close()
    assert set(summary["gradients"].values()) <= found.keys()
    for output, array in expected.items():
        scale = max(float(np.max(np.abs(array))), 1e-3)
        np.testing.assert_allclose(
            np.asarray(found[output]), array, rtol=0, atol=1e-4 * scale, err_msg=output
        )


def test_weights_are_variables_by_default_and_statistics_are_not(tmp_path: Path) -> None:
    path, _ = saved("resnet", tmp_path)
    made = training(path, "loss")
    kept = {"mean1", "mean2", "variance1", "variance2"}
    assert set(made.gradients) == set(NETWORKS["resnet"].weights) - kept
    assert made.loss == "loss"


def test_the_summary_counts_what_backward_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[4, 8] x) => (float[4, 2] y)
        <float[8, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> { h = Tanh(x) m = MatMul(h, w) y = Sigmoid(m) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    made = tmp_path / "training.onnx"
    summary = write(path, "y", ["w"], Bindings(), made)
    assert summary["kept"] == [{"name": "h", "bytes": 4 * 8 * 4}, {"name": "y", "bytes": 4 * 2 * 4}]
    assert summary["kept_bytes"] == 160
    assert summary["gradients"] == {"w": "w_grad"}
    assert [o.name for o in onnx.load(made).graph.output] == ["y", "y_sum", "w_grad"]
    found = peaks(path, made)
    assert found["training_peak_bytes"] >= found["forward_peak_bytes"] > 0
    before = made.read_bytes()
    write(path, "y", ["w"], Bindings(), made)
    assert made.read_bytes() == before


def test_refusals_name_operator_node_and_way_out(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[3, 3] x) => (float[3, 3] y) {
        [first] a = Det(x) b = Round(x) c = Mul(a, x) y = Add(c, b) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(NotDifferentiableError, match=r"1 nodes .*Det 'first': no rule for Det") as refused:
        training(path, "y", ("x",))
    assert refused.value.code == "not-differentiable"
    for loss, wrt, message in (
        ("z", None, "loss 'z': expected a value"),
        ("y", ("z",), "variable 'z': expected an input or an initializer"),
        ("b", ("x",), "does not depend on 'x'"),
        ("y", None, "depends on no initializer"),
        ("y", (), "no variable is named"),
    ):
        with pytest.raises(GraphError, match=message):
            training(path, loss, wrt)


def test_dead_branches_have_no_backward_nodes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[3] x, float[3] z) => (float[3] y, float[3] other) {
        a = Mul(x, z) y = Sin(a) other = Exp(z) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    made = training(path, "y", ("x",))
    backward = [n.op_type for n in made.model.graph][3:]
    assert "Exp" not in backward
    assert backward.count("Mul") == 2  # of Sin, and of Mul by x alone
