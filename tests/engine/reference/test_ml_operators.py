"""Operators of ai.onnx.ml: types, shapes and values against onnxruntime, on models drawn from seeds."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx_shape_inference import registry

from app.engine.core import graph
from app.engine.entry import optimize
from app.engine.entry.served_model import ServedModel
from app.engine.model import operand_types
from app.engine.model.load import inspect as inspect_file
from app.engine.model.load import load
from app.engine.model.shape_inference import inference, tensor_rules
from app.engine.report.npz import write_outputs
from app.engine.report.onnx import export
from app.engine.runtime.oracle import evaluate
from app.engine.runtime.verify import compare
from app.engine.types.errors import EngineError
from app.engine.types.map_type import MapType
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler

Array = np.ndarray[Any, Any]
Random = np.random.Generator
Attributes = dict[str, Any]
Case = tuple[int, list[Any], Attributes, int]  # version of the operator set, inputs, attributes, outputs

SEEDS = 40
POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
NUMBERS = (np.float32, np.float64, np.int64, np.int32)


def floats(random: Random, count: int) -> list[float]:
    return [float(v) for v in random.standard_normal(count).astype(np.float32)]


def normal(random: Random, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def dims(random: Random, rank: int) -> list[int]:
    return [int(d) for d in random.integers(1, 5, rank)]


def samples(random: Random) -> Array:
    """A matrix of samples, or sometimes a vector."""
    n, features = dims(random, 2)
    return normal(random, features) if random.random() < 0.15 else normal(random, n, features)


def retyped(random: Random, x: Array) -> Array:
    return x if random.random() < 0.6 else (x * 4).astype(random.choice(np.array(NUMBERS, object)))


def labels(random: Random, count: int, integers: str = "classlabels_ints") -> Attributes:
    if random.random() < 0.4:
        return {"classlabels_strings": [f"class {i}" for i in range(count)]}
    return {integers: [i * 3 - 1 for i in range(count)]}


def array_feature_extractor(random: Random) -> Case:
    x = normal(random, *dims(random, int(random.integers(1, 4))))
    k = int(random.integers(1, 6))
    shape = [(k,), (1, k), (k, 1), (2, k)][int(random.integers(4))]
    return 1, [retyped(random, x), random.integers(0, x.shape[-1], shape)], {}, 1


def binarizer(random: Random) -> Case:
    return 1, [normal(random, *dims(random, 2))], {"threshold": float(random.random())}, 1


def category_mapper(random: Random) -> Case:
    keys: Any = (["a", "b", "c", "z"], object) if random.random() < 0.5 else ([1, 5, 7, 9], np.int64)
    x = random.choice(np.array(*keys), dims(random, 2))
    tables = {"cats_strings": ["a", "b", "c"], "cats_int64s": [1, 5, 7]}
    return 1, [x], {**tables, "default_string": "other", "default_int64": -3}, 1


def feature_vectorizer(random: Random) -> Case:
    n, *widths = dims(random, int(random.integers(2, 5)))
    return 1, [normal(random, n, w) for w in widths], {"inputdimensions": widths}, 1


def imputer(random: Random) -> Case:
    n, features = dims(random, 2)
    count = features if random.random() < 0.6 else 1
    if random.random() < 0.3:
        values = {"imputed_value_int64s": [int(v) for v in random.integers(5, 9, count)]}
        return 1, [random.integers(0, 3, (n, features))], {**values, "replaced_value_int64": 1}, 1
    x = normal(random, n, features)
    replaced = float(random.choice([np.nan, 2.0]))
    x[random.random(x.shape) < 0.3] = replaced
    return 1, [x], {"imputed_value_floats": floats(random, count), "replaced_value_float": replaced}, 1


def label_encoder(random: Random) -> Case:
    shape = dims(random, int(random.integers(1, 3)))
    version = int(random.integers(1, 5))
    if version == 1:
        strings = random.choice(np.array(["a", "b", "z"], object), shape)
        x = strings if random.random() < 0.5 else random.integers(0, 4, shape)
        return 1, [x], {"classes_strings": ["a", "b", "c"]}, 1
    keys: dict[str, list[Any]] = {
        "keys_strings": ["a", "b", "c"],
        "keys_int64s": [1, 2, 3],
        "keys_floats": [1.5, 2.0, float("nan")],
    }
    values: dict[str, list[Any]] = {
        "values_strings": ["x", "y", "z"],
        "values_int64s": [4, 5, 6],
        "values_floats": [0.5, 0.25, 0.125],
    }
    key, value = str(random.choice(list(keys))), str(random.choice(list(values)))
    kind = {"keys_strings": object, "keys_int64s": np.int64, "keys_floats": np.float32}[key]
    missing: Any = "other" if kind is object else 9
    x = random.choice(np.array([*keys[key], missing], kind), shape)
    default = {"default_string": "none", "default_int64": 77, "default_float": 7.5}
    return version, [x], {key: keys[key], value: values[value], **default}, 1


def linear_classifier(random: Random) -> Case:
    x = samples(random)
    vectors = int(random.integers(1, 5))
    attributes = {
        "coefficients": floats(random, vectors * x.shape[-1]),
        "intercepts": floats(random, vectors),
        "post_transform": str(random.choice(POST)),
    }
    return 1, [retyped(random, x)], attributes | labels(random, max(vectors, 2)), 2


def linear_regressor(random: Random) -> Case:
    x, targets = samples(random), int(random.integers(1, 4))
    attributes = {"coefficients": floats(random, targets * x.shape[-1]), "targets": targets}
    if random.random() < 0.7:
        attributes["intercepts"] = floats(random, targets)
    return 1, [x], attributes | {"post_transform": str(random.choice(POST))}, 1


def normalizer(random: Random) -> Case:
    x = samples(random)
    if random.random() < 0.2:
        x[0] = 0
    return 1, [retyped(random, x)], {"norm": str(random.choice(["MAX", "L1", "L2"]))}, 1


def one_hot_encoder(random: Random) -> Case:
    shape = dims(random, int(random.integers(1, 3)))
    if random.random() < 0.5:
        x = random.choice(np.array(["a", "b", "z"], object), shape)
        return 1, [x], {"cats_strings": ["a", "b", "c"], "zeros": 1}, 1
    kind = [np.int64, np.float32, np.float64][int(random.integers(3))]
    return 1, [random.integers(0, 5, shape).astype(kind)], {"cats_int64s": [0, 2, 3], "zeros": 1}, 1


def svm_classifier(random: Random) -> Case:
    n, features = dims(random, 2)
    classes = int(random.integers(2, 5))
    pairs = classes * (classes - 1) // 2
    named = labels(random, classes) | {"post_transform": str(random.choice(POST))}
    named["kernel_params"] = [0.3, 0.2, 2.0]
    x = retyped(random, normal(random, n, features))
    if random.random() < 0.25:
        linear = {"coefficients": floats(random, classes * features), "rho": floats(random, 1)}
        return 1, [x], {**linear, "kernel_type": "LINEAR", **named}, 2
    each = dims(random, classes)
    attributes = {
        "support_vectors": floats(random, sum(each) * features),
        "vectors_per_class": each,
        "coefficients": floats(random, (classes - 1) * sum(each)),
        "rho": floats(random, pairs),
        "kernel_type": str(random.choice(KERNELS)),
    }
    if random.random() < 0.5:
        attributes |= {"prob_a": [-abs(v) for v in floats(random, pairs)], "prob_b": floats(random, pairs)}
    return 1, [x], attributes | named, 2


def svm_regressor(random: Random) -> Case:
    n, features, count = dims(random, 3)
    attributes = {
        "support_vectors": floats(random, count * features),
        "coefficients": floats(random, count),
        "rho": [0.25],
        "n_supports": count,
        "kernel_type": str(random.choice(KERNELS)),
        "kernel_params": [0.3, 0.2, 2.0],
    }
    return 1, [normal(random, n, features)], attributes, 1


def scaler(random: Random) -> Case:
    x = samples(random)
    count = x.shape[-1] if random.random() < 0.6 else 1
    return 1, [retyped(random, x)], {"offset": floats(random, count), "scale": floats(random, count)}, 1


def forest(random: Random, features: int, ids: Sequence[int], prefix: str) -> Attributes:
    """Up to three trees of depth three at most, whose leaves have a weight for each of the ids."""
    nodes: list[dict[str, Any]] = []
    leaves: list[dict[str, Any]] = []
    modes = ["BRANCH_LEQ"]
    if random.random() < 0.4:
        modes += ["BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]

    def grow(tree: int, number: list[int], depth: int) -> int:
        own, number[0] = number[0], number[0] + 1
        row = {"treeids": tree, "nodeids": own, "featureids": int(random.integers(features))}
        row |= {"values": floats(random, 1)[0], "missing_value_tracks_true": int(random.integers(2))}
        row |= {"modes": "LEAF", "truenodeids": 0, "falsenodeids": 0}
        nodes.append(row)
        if depth and random.random() < 0.8:
            row["modes"] = str(random.choice(modes))
            row["truenodeids"] = grow(tree, number, depth - 1)
            row["falsenodeids"] = grow(tree, number, depth - 1)
        else:
            leaves.extend({"treeids": tree, "nodeids": own, "ids": i} for i in ids)
        return own

    for tree in range(int(random.integers(1, 4))):
        grow(tree, [0], 3)
    columns = {f"nodes_{k}": [row[k] for row in nodes] for k in nodes[0]}
    columns |= {f"{prefix}_{k}": [row[k] for row in leaves] for k in leaves[0]}
    return columns | {f"{prefix}_weights": floats(random, len(leaves))}


def with_missing(random: Random, x: Array) -> Array:
    if random.random() < 0.3:
        x[random.random(x.shape) < 0.2] = np.nan
    return x if random.random() < 0.7 else x.astype(np.float64)


def tree_ensemble_classifier(random: Random) -> Case:
    x = normal(random, *dims(random, 2))
    classes = int(random.integers(2, 5))
    ids: Sequence[int] = range(classes)
    if classes == 2 and random.random() < 0.6:
        ids = [int(random.integers(2))]
    attributes = forest(random, x.shape[-1], ids, "class")
    if random.random() < 0.4:
        attributes["class_weights"] = [abs(v) for v in attributes["class_weights"]]
    if random.random() < 0.4 and (classes > 2 or ids == [0]):
        attributes["base_values"] = floats(random, classes if classes > 2 else 1)
    attributes |= labels(random, classes, "classlabels_int64s")
    return 3, [with_missing(random, x)], attributes | {"post_transform": str(random.choice(POST))}, 2


def tree_ensemble_regressor(random: Random) -> Case:
    x, targets = normal(random, *dims(random, 2)), int(random.integers(1, 4))
    attributes = forest(random, x.shape[-1], range(targets), "target") | {"n_targets": targets}
    if random.random() < 0.4:
        attributes["base_values"] = floats(random, targets)
    attributes["aggregate_function"] = str(random.choice(["SUM", "AVERAGE", "MIN", "MAX"]))
    return 3, [with_missing(random, x)], attributes | {"post_transform": str(random.choice(POST))}, 1


def tree_ensemble(random: Random) -> Case:
    """One tree of version 5: a root and two leaves."""
    x = normal(random, *dims(random, 2)).astype([np.float32, np.float64][int(random.integers(2))])
    tensors = {"nodes_splits": floats(random, 1), "leaf_weights": floats(random, 2)}
    attributes: Attributes = {k: ir.tensor(np.array(v, x.dtype)) for k, v in tensors.items()}
    attributes["nodes_modes"] = ir.tensor(np.array([int(random.integers(6))], np.uint8))
    numbers = {"tree_roots": [0], "nodes_featureids": [int(random.integers(x.shape[1]))]}
    numbers |= {"nodes_truenodeids": [0], "nodes_trueleafs": [1]}
    numbers |= {"nodes_falsenodeids": [1], "nodes_falseleafs": [1]}
    return 5, [x], {**attributes, **numbers, "leaf_targetids": [0, 1], "n_targets": 2}, 1


def zip_map(random: Random) -> Case:
    n, count = dims(random, 2)
    x = normal(random, count) if random.random() < 0.2 else normal(random, n, count)
    if random.random() < 0.5:
        return 1, [x], {"classlabels_strings": [f"class {i}" for i in range(count)]}, 1
    return 1, [x], {"classlabels_int64s": [7 * i for i in range(count)]}, 1


OPERATORS: Mapping[str, Callable[[Random], Case]] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "CategoryMapper": category_mapper,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "Scaler": scaler,
    "TreeEnsemble": tree_ensemble,
    "TreeEnsembleClassifier": tree_ensemble_classifier,
    "TreeEnsembleRegressor": tree_ensemble_regressor,
    "ZipMap": zip_map,
}


def written(path: Path, op: str, case: Case) -> dict[str, Array]:
    """A file with one node, whose outputs it does not declare; the inputs by name."""
    version, inputs, attributes, outputs = case
    values = [
        ir.Value(
            name=f"x{i}",
            shape=ir.Shape(a.shape),
            type=ir.TensorType(ir.DataType.STRING if a.dtype == object else ir.DataType.from_numpy(a.dtype)),
        )
        for i, a in enumerate(inputs)
    ]
    node = ir.node(op, values, attributes, domain="ai.onnx.ml", num_outputs=outputs, name=op)
    for i, value in enumerate(node.outputs):
        value.name = f"y{i}"
    opsets = {"": 21, "ai.onnx.ml": version}
    body = ir.Graph(values, node.outputs, nodes=[node], opset_imports=opsets, name="g")
    path.write_bytes(ir.to_proto(ir.Model(body, ir_version=10)).SerializeToString())
    return {v.name or "": a for v, a in zip(values, inputs)}


def session_of(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def runs(path: Path, op: str, seeds: int) -> Iterator[tuple[int, dict[str, Array], Any, dict[str, Any]]]:
    """Cases that onnxruntime runs: seed, inputs, session and outputs by name; the file is that of the case."""
    for seed in range(seeds):
        fed = written(path, op, OPERATORS[op](np.random.default_rng(seed)))
        try:
            session = session_of(path)
            expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, fed)))
        except Exception:  # onnxruntime raises many types for kinds that it lacks
            continue
        yield seed, fed, session, expected


@pytest.mark.parametrize(("version", "kind"), [(2, "floats"), (4, "floats"), (4, "tensor")])
def test_nan_is_a_key_from_version_four_on(version: int, kind: str, tmp_path: Path) -> None:
    keys, x = np.array([1.5, np.nan], np.float32), np.array([[np.nan, 1.5], [0.0, -np.nan]], np.float32)
    tables: dict[str, Any] = {"keys_floats": keys.tolist(), "values_floats": [2.0, 3.0], "default_float": 9.0}
    if kind == "tensor":
        values = {"keys_tensor": keys, "values_tensor": [2.0, 3.0], "default_tensor": [9.0]}
        tables = {name: ir.tensor(np.array(v, np.float32)) for name, v in values.items()}
    path = tmp_path / "m.onnx"
    fed = written(path, "LabelEncoder", (version, [x], tables, 1))
    (expected,) = session_of(path).run(None, fed)
    model = load(path).model
    inference.infer(model)
    np.testing.assert_array_equal(evaluate(model, fed)["y0"], expected)
    assert (3.0 in expected) == (version == 4)


@pytest.mark.parametrize("op", OPERATORS)
def test_types_shapes_and_values_are_those_of_onnxruntime(op: str, tmp_path: Path) -> None:
    path, compared = tmp_path / "m.onnx", 0
    for seed, fed, session, expected in runs(path, op, SEEDS):
        compared += 1
        model = load(path).model
        inference.infer(model)
        operand_types.check(model)
        for value, output in zip(model.graph.outputs, session.get_outputs()):
            assert operand_types.title(value.type) == output.type, seed
            if not isinstance(value.type, ir.SequenceType):
                assert graph.shape(value) == expected[output.name].shape, seed
        for row in compare(expected, evaluate(model, fed), 1e-4):
            assert row.ok, (seed, row)
    assert compared > SEEDS / 2


@pytest.mark.parametrize(
    "schema", [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == "ai.onnx.ml"]
)
def test_every_operator_of_every_version_has_a_rule_for_its_types(schema: Any) -> None:
    tensor_rules.complete()
    assert registry.get(schema.domain, schema.name, schema.since_version) is not None


def mapped(path: Path, op: str, attributes: Attributes, kind: ir.DataType) -> Path:
    """A file with one node that takes a map of strings."""
    x = ir.Value(name="x", type=MapType(ir.DataType.STRING, kind))
    node = ir.node(op, [x], attributes, domain="ai.onnx.ml", name=op)
    node.outputs[0].name = "y"
    body = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 21, "ai.onnx.ml": 1}, name="g")
    export(ir.Model(body, ir_version=10), path)
    return path


def test_a_dictionary_becomes_a_row_of_its_vocabulary(tmp_path: Path) -> None:
    path = mapped(
        tmp_path / "m.onnx", "DictVectorizer", {"string_vocabulary": ["b", "a", "c"]}, ir.DataType.FLOAT
    )
    fed = {"x": {"a": 1.5, "b": 2.5}}
    (expected,) = session_of(path).run(None, fed)
    model = load(path).model
    inference.infer(model)
    (output,) = model.graph.outputs
    assert (operand_types.title(output.type), graph.shape(output)) == ("tensor(float)", (1, 3))
    np.testing.assert_array_equal(evaluate(model, fed)["y"], expected)


def test_an_input_that_is_a_map_is_told_and_refused_by_what_needs_it(tmp_path: Path) -> None:
    path = mapped(tmp_path / "m.onnx", "DictVectorizer", {"string_vocabulary": ["a"]}, ir.DataType.FLOAT)
    assert inspect_file(path).inputs[0].dtype == "map(string, float32)"
    (problem,) = optimize.validate(path, host(), Options(), Bindings())
    assert (problem["code"], problem["pointer"]) == ("input-invalid", "/inputs/x")
    assert "input 'x' has type map(string,tensor(float))" in problem["detail"]


PIPELINE = """<ir_version: 8, opset_import: ["": 15, "ai.onnx.ml": 1]>
    g (float[n, 3] x) => (int64[n] label, p) {
        scaled = ai.onnx.ml.Scaler <offset = [0.5, 0.0, -1.0], scale = [2.0, 1.0, 0.5]> (x)
        label, scores = ai.onnx.ml.LinearClassifier <
            coefficients = [1.0, -1.0, 0.5, 0.25, 1.0, -2.0], intercepts = [0.1, -0.1],
            classlabels_ints = [3, 8], post_transform = "SOFTMAX"> (scaled)
        p = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 8]> (scores)
    }"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A classifier as the exporter of scikit-learn writes it, with a sequence of maps."""
    proto = onnx.parser.parse_model(PIPELINE.replace(", p) {", ", float[n] p) {"))
    output = proto.graph.output[1]
    output.ClearField("type")
    map_type = output.type.sequence_type.elem_type.map_type
    map_type.key_type = onnx.TensorProto.INT64
    map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    path = tmp_path / "pipeline.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_classifier_with_a_sequence_of_maps_is_planned_run_and_verified(
    pipeline: Path, tmp_path: Path, compiler: Compiler
) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    bindings = Bindings(shapes={"x": (4, 3)}, tensors={"x": str(tmp_path / "x.npy")})
    options = Options(autotune=False, timings="predicted")
    summary = optimize.optimize(pipeline, host(), options, bindings, tmp_path, kernels=compiler.cache)
    rows = summary["verification"]["outputs"]
    assert [(row["name"], row["ok"]) for row in rows] == [("label", True), ("p", True)]
    label, maps = session_of(pipeline).run(None, {"x": x})
    with np.load(tmp_path / "outputs.npz", allow_pickle=False) as found:
        assert set(found.files) == {"label", "p.keys", "p.values"}
        np.testing.assert_array_equal(found["label"], label)
        np.testing.assert_array_equal(found["p.keys"], [3, 8])
        np.testing.assert_allclose(found["p.values"], [list(m.values()) for m in maps], rtol=1e-5)
    exported = session_of(tmp_path / "optimized.onnx").get_outputs()[1]
    assert exported.type == "seq(map(int64,tensor(float)))"
    onnx.checker.check_model(onnx.load(tmp_path / "optimized.onnx"))
    assert inspect_file(pipeline).outputs[1].dtype == "sequence(map(int64, float32))"


def test_serving_tells_that_a_sequence_of_maps_cannot_be_sent(pipeline: Path, compiler: Compiler) -> None:
    with pytest.raises(EngineError, match=r"output 'p': expected a tensor of numbers, found seq\(map"):
        ServedModel(pipeline, Options(autotune=False), Bindings(shapes={"x": (1, 3)}), kernels=compiler.cache)


def test_strings_and_empty_values_are_written_without_pickling() -> None:
    outputs = {
        "s": np.array([["a", "bc"]], object),
        "q": [np.ones(2), np.zeros(1)],
        "none": None,
        "m": {"k": 1.5},
        "ragged": [{"a": 1.0}, {"b": 2.0}],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs.npz"
        write_outputs(path, outputs)
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    assert set(arrays) == {
        *("s", "q.0", "q.1", "m.keys", "m.values"),
        *("ragged.0.keys", "ragged.0.values", "ragged.1.keys", "ragged.1.values"),
    }
    assert arrays["s"].tolist() == [["a", "bc"]]
