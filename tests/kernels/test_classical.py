"""Support vector machines, distances, encoders and maps of scores on kernels, against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.model.load import load
from app.engine.model.shape_inference import inference
from app.engine.types.map_type import ScoreMaps
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.reference.test_ml_operators import OPERATORS, session_of, written
from tests.harness import Array, context, group_of, implementation, run_group
from tests.kernels.single_node import REGISTRY

ROWS = {"SVMClassifier": "svm.classifier", "SVMRegressor": "svm.regressor", "LabelEncoder": "labels.encode"}
SEEDS = 60


@pytest.mark.parametrize("op", ROWS)
def test_random_nodes_give_what_onnxruntime_gives(op: str, compiler: Compiler, tmp_path: Path) -> None:
    path, compared = tmp_path / "m.onnx", 0
    row = implementation(ROWS[op], REGISTRY)
    for seed in range(SEEDS):
        fed = written(path, op, OPERATORS[op](np.random.default_rng(seed)))
        model = load(path).model
        inference.infer(model)
        group = group_of(model, REGISTRY)
        if row.rejection(group, context()) is not None:
            continue
        try:
            expected = session_of(path).run(None, fed)
        except Exception:  # onnxruntime raises many types for kinds that it lacks
            continue
        found = run_group(row, group, fed, compiler, threads=1 + seed % 2)
        for made, right in zip(found, expected, strict=True):
            assert made.dtype == right.dtype
            np.testing.assert_allclose(made, right, rtol=1e-4, atol=1e-5, err_msg=str(seed))
        compared += 1
    assert compared > SEEDS / 8


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize(("rows", "vectors", "features"), [(1, 1, 1), (3, 700, 5), (17, 33, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances(
    compiler: Compiler,
    tmp_path: Path,
    dtype: Any,
    rows: int,
    vectors: int,
    features: int,
    metric: str,
    fixed: bool,
) -> None:
    random = np.random.default_rng(rows)
    a, b = (random.standard_normal((n, features)).astype(dtype) for n in (rows, vectors))
    kind = ir.DataType.from_numpy(np.dtype(dtype))
    x, v = ir.val("a", kind, a.shape), ir.val("b", kind, b.shape)
    y = ir.val("y", kind, (rows, vectors))
    node = ir.node("CDist", [x, v], {"metric": metric}, domain="com.microsoft", outputs=[y], name="d")
    body = ir.Graph(
        [x] if fixed else [x, v], [y], nodes=[node], opset_imports={"": 21, "com.microsoft": 1}, name="g"
    )
    if fixed:
        v.const_value = ir.tensor(b, name="b")
        body.register_initializer(v)
    group = group_of(ir.Model(body, ir_version=10), REGISTRY)
    row = implementation("distances.all", REGISTRY)
    (found,) = run_group(row, group, {"a": a, "b": b}, compiler, threads=2)
    wide = ((a[:, None].astype(np.float64) - b[None]) ** 2).sum(-1)
    np.testing.assert_allclose(found, np.sqrt(wide) if metric == "euclidean" else wide, rtol=1e-5)


@pytest.mark.parametrize("version", [2, 4])
def test_nan_is_a_key_from_version_four_on(compiler: Compiler, tmp_path: Path, version: int) -> None:
    x = np.array([np.nan, 1.5, -0.0, 7.0], np.float32)
    attributes = {
        "keys_floats": [float("nan"), 0.0, 1.5, 1.5],
        "values_int64s": [5, 6, 7, 8],
        "default_int64": -9,
    }
    fed = written(tmp_path / "m.onnx", "LabelEncoder", (version, [x], attributes, 1))
    model = load(tmp_path / "m.onnx").model
    inference.infer(model)
    (found,) = run_group(implementation("labels.encode", REGISTRY), group_of(model, REGISTRY), fed, compiler)
    np.testing.assert_array_equal(found, [5 if version == 4 else -9, 7, 6, -9])


def test_maps_of_scores_are_those_of_a_list_of_maps() -> None:
    scores: Array = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    maps = ScoreMaps(("a", "b"), scores)
    assert maps == [{"a": 0.25, "b": 0.75}, {"a": 0.5, "b": 0.5}]
    assert (len(maps), maps[-1], list(maps[1:])) == (2, {"a": 0.5, "b": 0.5}, [{"a": 0.5, "b": 0.5}])
    assert maps != [{"a": 0.25, "b": 0.75}]
    assert repr(maps) == "[{'a': 0.25, 'b': 0.75}, {'a': 0.5, 'b': 0.5}]"
