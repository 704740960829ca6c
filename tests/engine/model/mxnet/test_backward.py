"""Training graphs of symbols: outputs and gradients equal those that MXNet 1.9.1 computed, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.entry import optimize
from app.engine.model import dropout_masks
from app.engine.model.load import load
from app.engine.planning.expansion import expanded
from app.engine.types.errors import EngineError, GraphError, UnknownOperatorError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.model.mxnet.writing import Symbols
from tests.mxnet.__main__ import difference, outputs_of

FILE = Path(__file__).parents[3] / "data" / "mxnet_training_values.jsonl"
# Training graphs of `tests/mxnet/training_graphs.py` with inputs, outputs and gradients: {name: [shape, elements]}.
CASES = [json.loads(line) for line in FILE.read_text().splitlines()]


def training(op: str, backward: str, *operands: str, **attributes: Any) -> Symbols:
    """A node and its backward node, which is given its gradient and operands."""
    s = Symbols()
    variables = [s.var(name, shape="(2, 3)") for name in operands]
    made = s.add(op, "f", *variables, **attributes)
    gradient = s.var("_head_grad_0", shape="(2, 3)")
    back = s.add(backward, "f_backward", gradient, *variables, **attributes)
    s.nodes[back]["control_deps"] = [made]
    return s


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["symbol"]["nodes"][-1]["name"])
def test_outputs_and_gradients_are_those_of_mxnet(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(case["symbol"]))
    arrays = {n: np.array(v, np.float32).reshape(shape) for n, (shape, v) in case["arrays"].items()}
    expected = [arrays.pop(f"output{i}") for i in range(sum(n.startswith("output") for n in arrays))]
    found = outputs_of(path, arrays, tmp_path)
    assert len(found) == len(expected)
    assert max(difference(e, f) for e, f in zip(expected, found)) < 1e-4


def test_a_job_plans_runs_and_verifies_a_training_graph(compiler: Compiler, tmp_path: Path) -> None:
    path = training("elemwise_mul", "_backward_mul", "a", "b").save(tmp_path, 2, (4, 0), (4, 1))
    options = Options(autotune=False, benchmark_seconds=0.05, semantics="mxnet-1.9")
    summary = optimize.optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)
    assert summary["verification"]["status"] == "verified"
    assert summary["training"]["gradients"] == 2
    told = json.loads((tmp_path / "decisions.json").read_text())["symbol"]
    assert [node["op"] for node in told] == ["elemwise_mul", "_backward_mul"]


@pytest.mark.parametrize(
    ("op", "backward", "attributes", "error", "text"),
    [
        ("erfinv", "_backward_erfinv", {}, GraphError, "its forward node erfinv 'f' has no row"),
        ("round", "_backward_mul", {}, GraphError, "2 outputs; round 'f' has 1 outputs and 1 operands"),
    ],
)
def test_a_backward_node_without_a_meaning_is_refused(
    op: str, backward: str, attributes: dict[str, Any], error: type[EngineError], text: str, tmp_path: Path
) -> None:
    s = training(op, backward, "a", **attributes)
    with pytest.raises(error, match=text):
        expanded(load(s.save(tmp_path, 1, (3, 0), (3, 1))))


def test_masks_of_a_training_graph_are_inputs(tmp_path: Path) -> None:
    """One of each Dropout, for the forward and the backward node; without a backward node nothing is left out."""
    s = training("Dropout", "_backward_Dropout", "a", p=0.5)
    x, dy = np.arange(1, 7, dtype="f4").reshape(2, 3), np.full((2, 3), 3, np.float32)
    mask = np.array([[0, 2, 2], [2, 0, 0]], np.float32)
    arrays = {"a": x, "_head_grad_0": dy, "f_mask": mask}
    path = s.save(tmp_path, 1, (3, 0))
    assert [v.name for v in load(path).model.graph.inputs] == ["a", "_head_grad_0", "f_mask"]
    forward, backward = outputs_of(path, arrays, tmp_path)
    np.testing.assert_array_equal(forward, x * mask)
    np.testing.assert_array_equal(backward, dy * mask)
    alone = Symbols()
    alone.add("Dropout", "f", alone.var("a", shape="(2, 3)"), p=0.5)
    (found,) = outputs_of(alone.save(tmp_path), {"a": x}, tmp_path)
    np.testing.assert_array_equal(found, x)


def test_a_dropout_in_a_loop_has_a_mask_for_each_turn(tmp_path: Path) -> None:
    """Also in a loop in a loop; masks of two bodies that name a node alike are two."""
    inner = Symbols()
    inner.add("Dropout", "d", inner.var("element", shape="(3,)"), p=0.5)
    outer = Symbols()
    item = outer.var("item", shape="(4, 3)")
    whole = outer.add("Dropout", "d", item, p=0.25, axes=(0,))
    loop = {"num_args": 2, "num_outputs": 1, "num_out_data": 1, "in_data_locs": "[0]", "in_state_locs": "[]"}
    outer.add("_foreach", "inner", whole, subgraphs=[inner.json()], remain_locs="[]", **loop)
    s = training("relu", "_backward_relu", "a")
    s.add(
        "_foreach",
        "outer",
        s.var("rows", shape="(2, 4, 3)"),
        subgraphs=[outer.json()],
        remain_locs="[]",
        **loop,
    )
    path = s.save(tmp_path)
    found = {v.name: v for v in load(path).model.graph.inputs if "mask" in (v.name or "")}
    assert {n: list(v.shape or ()) for n, v in found.items()} == {"d_mask": [2, 1, 3], "d_mask.1": [2, 4, 3]}
    random = np.random.default_rng(0)
    rows = random.standard_normal((2, 4, 3)).astype("f4")
    masks = {
        n: dropout_masks.drawn(0.5, tuple(v.shape or ()), np.dtype("f4"), random) for n, v in found.items()
    }
    zeros = dict.fromkeys(("a", "_head_grad_0"), np.zeros((2, 3), np.float32))
    (y,) = outputs_of(path, {"rows": rows, **masks, **zeros}, tmp_path)
    np.testing.assert_allclose(y, rows * masks["d_mask"] * masks["d_mask.1"], rtol=1e-6)


def test_a_dropout_in_a_loop_with_a_condition_takes_the_mask_of_its_turn(tmp_path: Path) -> None:
    """At most 4 turns, of which 3 are made: each leaves out elements of what the one before left."""
    condition, body = Symbols(), Symbols()
    condition.add("_lesser_scalar", "c", condition.var("i", shape="(1,)"), scalar=3)
    i, x = body.var("i", shape="(1,)"), body.var("x", shape="(5,)")
    dropped = body.add("Dropout", "d", x, p=0.2)
    up = body.add("_plus_scalar", "up", i, scalar=1)
    s = training("relu", "_backward_relu", "a")
    s.add(
        "_while_loop", "w", s.var("start", shape="(1,)"), s.var("x", shape="(5,)"),
        subgraphs=[condition.json(), body.json(dropped, up, dropped)], num_args=4, num_outputs=3, num_out_data=1,
        max_iterations=4, cond_input_locs="[0]", func_input_locs="[0, 1]", func_var_locs="[0, 1]",
    )  # fmt: skip
    path = s.save(tmp_path)
    random = np.random.default_rng(0)
    mask = dropout_masks.drawn(0.2, (4, 5), np.dtype("f4"), random)
    x_ = random.standard_normal(5).astype("f4")
    zeros = dict.fromkeys(("a", "_head_grad_0"), np.zeros((2, 3), np.float32)) | {
        "start": np.zeros(1, np.float32)
    }
    (rows,) = outputs_of(path, {"x": x_, "d_mask": mask, **zeros}, tmp_path)
    expected = x_ * np.cumprod(mask, axis=0)
    np.testing.assert_allclose(rows[:3], expected[:3], rtol=1e-6)
    assert not rows[3].any()


def test_an_operator_without_a_gradient_is_refused(tmp_path: Path) -> None:
    s = training("sort", "_backward_sort", "a")
    s.nodes[0]["attrs"] = {}
    with pytest.raises(EngineError, match="backward"):
        expanded(load(s.save(tmp_path, 3)))


@pytest.mark.parametrize("after", [1, [9], [-1], ["f"], [True, 0]])
def test_a_forward_node_that_is_none_is_refused(after: Any, tmp_path: Path) -> None:
    s = training("relu", "_backward_relu", "a")
    s.nodes[-1]["control_deps"] = after
    with pytest.raises(GraphError, match="control_deps"):
        load(s.save(tmp_path))


def test_a_backward_node_that_names_no_forward_node_is_unknown(tmp_path: Path) -> None:
    s = training("relu", "_backward_relu", "a")
    del s.nodes[-1]["control_deps"]
    with pytest.raises(UnknownOperatorError, match=r"_backward_relu \(node 'f_backward'\)"):
        load(s.save(tmp_path))


def test_a_gradient_of_another_shape_is_refused(tmp_path: Path) -> None:
    s = training("relu", "_backward_relu", "a")
    s.nodes[2]["attrs"]["__shape__"] = "(3, 2)"
    with pytest.raises(GraphError, match=r"gradient '_head_grad_0' is .*expected"):
        expanded(load(s.save(tmp_path)))
