"""Symbols with operators that cannot be said in those of ONNX: planned, and run by nothing.

The shapes of all of them are compared with real MXNet by `make test-mxnet` (`tests/mxnet/planned.py`).
"""

import json
from pathlib import Path

import numpy as np
import pytest

from app.cli.main import main
from app.engine.core.registry import load as load_registry
from app.engine.entry import optimize
from app.engine.entry.symbols import to_symbol
from app.engine.model.load import load
from app.engine.model.shape_inference.mxnet_rules import RULES
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.backend_names import UNEXECUTED
from app.engine.types.errors import GraphError, UnknownOperatorError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.model.mxnet.writing import Symbols

OPTIONS = Options(autotune=False, semantics="mxnet-1.9")


def detector() -> Symbols:
    """Features of regions, noise added twice."""
    s = Symbols()
    x = s.add("relu", "features", s.var("x", shape="(2, 3, 8, 8)"))
    rois = s.var("rois", shape="(5, 5)")
    x = s.add("ROIPooling", "pool", x, rois, pooled_size="(2, 2)", spatial_scale="1.0")
    for name in ("a", "b"):
        noise = s.add("_random_uniform", f"noise_{name}", shape="(5, 3, 2, 2)")
        x = s.add("elemwise_add", f"sum_{name}", x, noise)
    return s


def test_all_but_the_execution_of_such_a_graph_is_planned(tmp_path: Path) -> None:
    path = detector().save(tmp_path)
    summary = optimize.optimize(path, host(), OPTIONS, Bindings(), tmp_path, kernels=tmp_path / "k")
    assert summary["steps"]["predicted"] == 3
    assert summary["verification"]["status"] == "not verified"
    assert "nothing executes ROIPooling 'pool'" in summary["verification"]["reason"]
    assert any("noise_b" in note for note in summary["notes"])
    decisions = json.loads((tmp_path / "decisions.json").read_text())
    told = {n["name"]: n["dispatch"] for n in decisions["symbol"]}
    assert told["pool"] == "compute"
    assert told["sum_a"] == "compute_ex"
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert len(plan["steps"]) == 6  # equal draws of numbers are not one
    memory = json.loads((tmp_path / "memory.json").read_text())
    assert {b["name"]: b["bytes"] for b in memory["buffers"]}["noise_a._random_uniform"] == 5 * 3 * 2 * 2 * 4


def test_to_run_it_is_refused_and_names_the_nodes(tmp_path: Path) -> None:
    path = detector().save(tmp_path)
    compilation = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    assert compilation.target.backends[-1] == UNEXECUTED
    with pytest.raises(UnknownOperatorError, match="nothing executes ROIPooling 'pool', _random_uniform"):
        Executor(session.planned(compilation, OPTIONS), Compiler(tmp_path / "k"))
    measured = Options(autotune=False, timings="measured")
    with pytest.raises(UnknownOperatorError, match="'pool'.*ask for timings 'predicted'"):
        optimize.optimize(path, host(), measured, Bindings(), tmp_path, kernels=tmp_path / "k")


def test_other_models_have_no_such_backend(tmp_path: Path) -> None:
    s = Symbols()
    s.add("relu", "y", s.var("x", shape="(2, 3)"))
    path = s.save(tmp_path)
    compilation = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    assert UNEXECUTED not in compilation.target.backends


def test_a_shape_that_is_not_known_is_refused(tmp_path: Path) -> None:
    s = Symbols()
    s.add("Custom", "mine", s.var("x", shape="(2, 3)"), op_type="mine")
    with pytest.raises(GraphError, match="Custom 'mine': the shape of output 0 is not known"):
        load(s.save(tmp_path))


def test_a_node_may_state_its_shape(tmp_path: Path) -> None:
    s = Symbols()
    x = s.add("Custom", "mine", s.var("x", shape="(2, 3)"), op_type="mine", __shape__="(4, 5)")
    s.add("relu", "y", x)
    model = load(s.save(tmp_path)).model
    compilation = session.canonical(
        load(s.save(tmp_path)), host(), OPTIONS, Bindings({"x": (2, 3)}), load_registry()
    )
    assert [tuple(v.shape or ()) for v in compilation.graph.outputs] == [(4, 5)]
    assert model.opset_imports["mxnet"] == 1


def test_explain_shows_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(detector().save(tmp_path)), "--target", "cpu-avx2"]) == 0
    assert "pool  ROIPooling  unexecuted" in capsys.readouterr().out


def test_such_nodes_go_out_as_they_came_in(tmp_path: Path) -> None:
    path = detector().save(tmp_path)
    written = to_symbol(path, {})
    found = {n.name: n for n in written.symbol.nodes if n.op in RULES}
    assert {name.partition(".")[0]: n.op for name, n in found.items()} == {
        "pool": "ROIPooling", "noise_a": "_random_uniform", "noise_b": "_random_uniform"
    }  # fmt: skip
    pool = next(n for n in found.values() if n.op == "ROIPooling")
    assert pool.attributes == {"pooled_size": "(2, 2)", "spatial_scale": "1.0"}


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "expected"),
    [
        ("_linalg_gelqf", ["(2, 3, 5)"], {}, (2, 3, 5)),
        ("_sample_normal", ["(2, 3)", "(2, 3)"], {"shape": "(4,)"}, (2, 3, 4)),
        ("im2col", ["(2, 4, 8, 9)"], {"kernel": "(3, 3)", "stride": "(2, 1)", "pad": "(1, 0)"}, (2, 36, 28)),
        (
            "Correlation",
            ["(2, 3, 9, 10)"] * 2,
            {"kernel_size": "3", "max_displacement": "2", "stride1": "2", "pad_size": "3"},
            (2, 25, 5, 5),
        ),
    ],
)
def test_shapes_follow_from_attributes(
    op: str, shapes: list[str], attributes: dict[str, str], expected: tuple[int, ...], tmp_path: Path
) -> None:
    s = Symbols()
    node = s.add(op, "y", *(s.var(f"x{i}", shape=shape) for i, shape in enumerate(shapes)), **attributes)
    s.add("relu", "z", node)
    compilation = session.canonical(load(s.save(tmp_path)), host(), OPTIONS, Bindings(), load_registry())
    assert [tuple(v.shape or ()) for v in compilation.graph.outputs] == [expected]
    assert np.prod(expected) > 0
