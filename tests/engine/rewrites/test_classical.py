"""Operators of ai.onnx.ml as core operators: no one is left, and the values are those of onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core import pipeline
from app.engine.core.plan import Compilation
from app.engine.core.registry import Registry
from app.engine.model.load import load
from app.engine.passes.canonicalize import Canonicalize
from app.engine.passes.infer_types import InferTypes
from app.engine.runtime.oracle import evaluate
from app.engine.runtime.verify import compare
from app.engine.types.target import PRESETS
from tests.engine.reference.test_ml_operators import OPERATORS, runs, session_of, written

ML = "ai.onnx.ml"
REWRITTEN = (
    *("ArrayFeatureExtractor", "Binarizer", "FeatureVectorizer", "Imputer", "LinearClassifier"),
    *("LinearRegressor", "Normalizer", "OneHotEncoder", "Scaler"),
)
SEEDS = 60


def canonical(path: Path) -> Compilation:
    started = Compilation(load(path).model, PRESETS[0], Registry({}, {}))
    return pipeline.run(started, (InferTypes(), Canonicalize()))


@pytest.mark.parametrize("op", REWRITTEN)
def test_operators_become_core_operators_that_compute_the_same(op: str, tmp_path: Path) -> None:
    path, compared, kept = tmp_path / "m.onnx", 0, 0
    for seed, fed, _, expected in runs(path, op, SEEDS):
        compilation = canonical(path)
        kept += any(node.domain == ML for node in compilation.graph)
        for row in compare(expected, evaluate(compilation.model, fed), 1e-5):
            assert row.ok, (seed, row)
        compared += 1
    assert compared > SEEDS / 2
    # Strings, and softmax over what is not zero, have no core operators.
    assert kept < compared * 0.7


@pytest.mark.parametrize("op", ["TreeEnsembleClassifier", "SVMClassifier"])
def test_names_of_classes_are_looked_up_behind_the_classifier(op: str, tmp_path: Path) -> None:
    path, named = tmp_path / "m.onnx", 0
    for seed in range(SEEDS):
        case = OPERATORS[op](np.random.default_rng(seed))
        if "classlabels_strings" not in case[2]:
            continue
        fed = written(path, op, case)
        session = session_of(path)
        expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, fed)))
        compilation = canonical(path)
        assert [n.op_type for n in compilation.graph] == [op, "Gather"]
        assert compilation.graph[0].outputs[0].dtype == ir.DataType.INT64
        for row in compare(expected, evaluate(compilation.model, fed), 1e-4):
            assert row.ok, (seed, row)
        named += 1
    assert named > 5


def test_a_label_encoder_looks_names_up_by_position(tmp_path: Path) -> None:
    path, named = tmp_path / "m.onnx", 0
    for seed in range(SEEDS):
        case = OPERATORS["LabelEncoder"](np.random.default_rng(seed))
        # NaN as a key of version 4 is what the reference evaluator does not find.
        if "values_strings" not in case[2] or "keys_strings" in case[2] or case[0] == 4:
            continue
        fed = written(path, "LabelEncoder", case)
        expected = session_of(path).run(None, fed)
        compilation = canonical(path)
        assert [n.op_type for n in compilation.graph] == ["LabelEncoder", "Gather"]
        np.testing.assert_array_equal(evaluate(compilation.model, fed)["y0"], expected[0])
        named += 1
    assert named > 5


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("OneHotEncoder", {"cats_int64s": [1, 2], "zeros": 0}),  # fails on other categories
        ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}),  # of three features
        ("LinearRegressor", {"coefficients": [1.0, 2.0]}),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0]}),
    ],
)
def test_what_may_fail_or_does_not_fit_stays(op: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path / "m.onnx", op, (1, [np.ones((2, 3), np.float32)], attributes, 1))
    assert [n.op_type for n in canonical(tmp_path / "m.onnx").graph] == [op]
