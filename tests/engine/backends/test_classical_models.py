"""Classical models as exporters write them: planned and run as a whole, nothing with the reference evaluator."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import GraphError
from app.engine.types.map_type import ScoreMaps
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.reference.test_ml_operators import OPERATORS, written
from tests.harness import OWN, Array

HEAD = '<ir_version: 8, opset_import: ["": 15, "ai.onnx.ml": 1, "com.microsoft": 1]>'
NEIGHBORS = f"""{HEAD}
    g (float[n, 4] x) => (int64[n] label) <float[37, 4] train, int64[37] classes, int64[1] k = {{3}}> {{
        distances = com.microsoft.CDist <metric = "euclidean"> (x, train)
        nearest, places = TopK <axis = 1, largest = 0> (distances, k)
        found = Gather <axis = 0> (classes, places)
        real = Cast <to = 1> (found)
        share = ReduceMean <axes = [1], keepdims = 0> (real)
        half = Constant <value_float = 0.5> ()
        most = Greater(share, half)
        label = Cast <to = 7> (most)
    }}"""
SCORES = f"""{HEAD}
    g (float[n, 4] x) => (float[n, 2] scores) {{
        imputed = ai.onnx.ml.Imputer <imputed_value_floats = [0.5], replaced_value_float = 0.0> (x)
        scaled = ai.onnx.ml.Scaler <offset = [0.5, 0.0, -1.0, 0.0], scale = [2.0, 1.0, 0.5, 1.0]> (imputed)
        unit = ai.onnx.ml.Normalizer <norm = "L2"> (scaled)
        chosen, scores = ai.onnx.ml.LinearClassifier <coefficients = [1.0, -1.0, 0.5, 0.25],
            intercepts = [0.1], classlabels_strings = ["no", "yes"], post_transform = "LOGISTIC"> (unit)
    }}"""


def planned(path: Path, shape: tuple[int, ...], name: str, compiler: Compiler) -> Executor:
    options = Options(autotune=False, timings="predicted", backends=OWN)
    bindings = Bindings(shapes={name: shape})
    compilation = session.canonical(load(path), host(), options, bindings, load_registry())
    return Executor(session.planned(compilation, options), compiler, poison=True)


def expected(path: Path, fed: dict[str, Array]) -> dict[str, object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    opened = onnxruntime.InferenceSession(str(path), options)
    return dict(zip([o.name for o in opened.get_outputs()], opened.run(None, fed), strict=True))


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("text", [NEIGHBORS, SCORES], ids=["neighbors", "linear"])
def test_pipelines_run_on_kernels_alone(text: str, rows: int, tmp_path: Path, compiler: Compiler) -> None:
    random = np.random.default_rng(rows)
    proto = onnx.parser.parse_model(text)
    weights = {
        "train": random.standard_normal((37, 4)).astype(np.float32),
        "classes": random.integers(0, 2, 37),
    }
    del proto.graph.value_info[:]
    for name in [n for n in weights if any(n in node.input for node in proto.graph.node)]:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights[name], name))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    x = random.standard_normal((rows, 4)).astype(np.float32)
    executor = planned(path, x.shape, "x", compiler)
    assert not any(step.is_host for step in executor.program.steps)
    for name, right in expected(path, {"x": x}).items():
        np.testing.assert_allclose(executor.run({"x": x})[name], right, rtol=1e-5, atol=1e-6)


def test_names_and_maps_are_made_behind_the_kernels(tmp_path: Path, compiler: Compiler) -> None:
    seed = next(
        s
        for s in range(100)
        if "classlabels_strings" in OPERATORS["TreeEnsembleClassifier"](np.random.default_rng(s))[2]
    )
    case = OPERATORS["TreeEnsembleClassifier"](np.random.default_rng(seed))
    path = tmp_path / "m.onnx"
    fed = written(path, "TreeEnsembleClassifier", case)
    proto = onnx.load(path)
    zipped = proto.graph.node.add(op_type="ZipMap", domain="ai.onnx.ml", input=["y1"], output=["maps"])
    zipped.attribute.add(
        name="classlabels_strings", type=8, strings=[s.encode() for s in case[2]["classlabels_strings"]]
    )
    proto.graph.output.add(name="maps")
    onnx.save(proto, path)
    executor = planned(path, fed["x0"].shape, "x0", compiler)
    assert not any(step.is_fallback for step in executor.program.steps)
    found, right = executor.run(fed), expected(path, fed)
    np.testing.assert_array_equal(found["y0"], right["y0"])
    maps = found["maps"]
    assert isinstance(maps, ScoreMaps)
    executor.run({"x0": -fed["x0"]})  # maps that nobody has read keep their scores
    for mine, theirs in zip(maps, right["maps"], strict=True):  # type: ignore[call-overload]  # a list
        assert mine == pytest.approx(theirs, rel=1e-5)


def test_an_ensemble_with_a_cycle_is_refused_when_it_is_planned(tmp_path: Path, compiler: Compiler) -> None:
    attributes = {
        "nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_values": [0.0],
        "nodes_modes": ["BRANCH_LEQ"], "nodes_truenodeids": [0], "nodes_falsenodeids": [0],
        "target_treeids": [0], "target_nodeids": [0], "target_ids": [0], "target_weights": [1.0],
    }  # fmt: skip
    x = np.ones((1, 2), np.float32)
    written(tmp_path / "m.onnx", "TreeEnsembleRegressor", (3, [x], attributes, 1))
    with pytest.raises(GraphError, match="leads back to itself"):
        planned(tmp_path / "m.onnx", (1, 2), "x0", compiler)
