"""Ensembles of trees: kernels against onnxruntime and against trees that are walked one by one."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from app.engine.core.group import Group
from app.engine.model.load import load
from app.engine.model.shape_inference import inference
from app.engine.operators import forest
from app.engine.operators.forest import MAX_DEPTH
from app.engine.types.errors import GraphError
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.reference.test_ml_operators import OPERATORS, session_of, written
from tests.harness import Array, context, group_of, implementation, run_group
from tests.kernels.single_node import REGISTRY

Random = np.random.Generator
NAMES = {
    "TreeEnsemble": "trees.ensemble",
    "TreeEnsembleClassifier": "trees.classifier",
    "TreeEnsembleRegressor": "trees.regressor",
}
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def grouped(path: Path) -> Group:
    model = load(path).model
    inference.infer(model)
    return group_of(model, REGISTRY)


def run(compiler: Compiler, group: Group, x: Array, threads: int = 1) -> list[Array]:
    row = implementation(NAMES[group.op], REGISTRY)
    assert row.rejection(group, context()) is None
    return run_group(row, group, {"x0": x}, compiler, threads=threads)


@pytest.mark.parametrize("op", NAMES)
def test_random_ensembles_give_what_onnxruntime_gives(op: str, compiler: Compiler, tmp_path: Path) -> None:
    compared = 0
    for seed in range(30):
        fed = written(tmp_path / "m.onnx", op, OPERATORS[op](np.random.default_rng(seed)))
        group = grouped(tmp_path / "m.onnx")
        if group.outputs[0].dtype == ir.DataType.STRING:
            continue
        expected = session_of(tmp_path / "m.onnx").run(None, fed)
        for found, right in zip(run(compiler, group, fed["x0"]), expected, strict=True):
            assert found.dtype == right.dtype
            np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6, err_msg=str(seed))
        compared += 1
    assert compared > 12


def grown(
    random: Random, trees: int, depth: int, features: int, stop: float, modes: Sequence[str]
) -> list[list[Any]]:
    """Nodes of random trees: feature, value, mode, true, false, tracks; leaves have no mode."""
    found = []
    for _ in range(trees):
        nodes: list[Any] = [None]
        level = [(0, 0)]
        while level:
            below = []
            for at, deep in level:
                if deep == depth or (deep > 1 and random.random() < stop):
                    nodes[at] = (0, 0.0, "LEAF", 0, 0, 0)
                    continue
                value = float(random.integers(-3, 4)) / 2  # rows meet it exactly
                children = len(nodes), len(nodes) + 1
                nodes += [None, None]
                nodes[at] = (
                    int(random.integers(features)),
                    value,
                    str(random.choice(modes)),
                    *children,
                    int(random.integers(2)),
                )
                below += [(child, deep + 1) for child in children]
            level = below
        found.append(nodes)
    return found


def classic(
    op: str,
    trees: Sequence[Sequence[Any]],
    weights: Mapping[tuple[int, int], Mapping[int, float]],
    **more: Any,
) -> tuple[int, dict[str, Any]]:
    """Attributes of these trees."""
    prefix = "class" if op == "TreeEnsembleClassifier" else "target"
    rows = [(t, n, *node) for t, nodes in enumerate(trees) for n, node in enumerate(nodes)]
    names = (
        "treeids",
        "nodeids",
        "featureids",
        "values",
        "modes",
        "truenodeids",
        "falsenodeids",
        "missing_value_tracks_true",
    )
    found: dict[str, Any] = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*rows))}
    leaves = [(t, n, i, w) for (t, n), each in weights.items() for i, w in each.items()]
    found |= {
        f"{prefix}_{name}": list(column)
        for name, column in zip(("treeids", "nodeids", "ids", "weights"), zip(*leaves))
    }
    return 3, found | more


def weighted(
    random: Random, trees: Sequence[Sequence[Any]], targets: Sequence[Sequence[int]]
) -> dict[tuple[int, int], dict[int, float]]:
    """Weights of every leaf: for one of the choices of targets."""
    return {
        (t, n): {
            i: float(np.float32(random.standard_normal()))
            for i in targets[int(random.integers(len(targets)))]
        }
        for t, nodes in enumerate(trees)
        for n, node in enumerate(nodes)
        if node[2] == "LEAF"
    }


def walked(
    x: Array,
    trees: Sequence[Sequence[Any]],
    weights: Mapping[tuple[int, int], Mapping[int, float]],
    width: int,
) -> Array:
    """Sums in float64 by walking every tree for every row."""
    taken = {
        "BRANCH_LEQ": lambda a, b: a <= b, "BRANCH_LT": lambda a, b: a < b, "BRANCH_GTE": lambda a, b: a >= b,
        "BRANCH_GT": lambda a, b: a > b, "BRANCH_EQ": lambda a, b: a == b, "BRANCH_NEQ": lambda a, b: a != b,
    }  # fmt: skip
    sums = np.zeros((len(x), width))
    for row, sample in enumerate(x.tolist()):
        for t, nodes in enumerate(trees):
            at = 0
            while nodes[at][2] != "LEAF":
                feature, value, mode, true, false, tracks = nodes[at]
                goes = taken[mode](sample[feature], value) or (tracks and math.isnan(sample[feature]))
                at = true if goes else false
            for target, weight in weights[t, at].items():
                sums[row, target] += weight
    return sums


def rows_of(random: Random, rows: int, features: int) -> Array:
    """Samples that meet thresholds, with NaN and infinities."""
    x = (random.integers(-4, 5, (rows, features)) / 2).astype(np.float32)
    for special in (np.nan, np.inf, -np.inf, -0.0):
        x[random.random(x.shape) < 0.06] = special
    return x


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 7, 8, 9, 300])
@pytest.mark.parametrize(
    ("targets", "width"),
    [([[0]], 1), ([[0, 1, 2]], 3), ([[0], [1, 2], []], 3)],
    ids=["value", "dense", "sparse"],
)
def test_sums_are_those_of_trees_that_are_walked(
    compiler: Compiler, tmp_path: Path, targets: list[list[int]], width: int, rows: int, threads: int
) -> None:
    random = np.random.default_rng(rows)
    trees = grown(random, 21, 7, 5, 0.2, MODES)
    weights = weighted(random, trees, targets)
    x = rows_of(random, rows, 5)
    version, attributes = classic("TreeEnsembleRegressor", trees, weights, n_targets=width)
    written(tmp_path / "m.onnx", "TreeEnsembleRegressor", (version, [x], attributes, 1))
    (found,) = run(compiler, grouped(tmp_path / "m.onnx"), x, threads)
    np.testing.assert_allclose(found, walked(x, trees, weights, width), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_other_element_types_of_samples(compiler: Compiler, tmp_path: Path, dtype: Any) -> None:
    random = np.random.default_rng(5)
    trees = grown(random, 9, 5, 4, 0.1, MODES)
    weights = weighted(random, trees, [[0, 1]])
    x = (random.integers(-4, 5, (20, 4)) / (2 if dtype == np.float64 else 1)).astype(dtype)
    version, attributes = classic("TreeEnsembleRegressor", trees, weights, n_targets=2)
    written(tmp_path / "m.onnx", "TreeEnsembleRegressor", (version, [x], attributes, 1))
    (found,) = run(compiler, grouped(tmp_path / "m.onnx"), x)
    np.testing.assert_allclose(found, walked(x.astype(np.float64), trees, weights, 2), rtol=1e-5, atol=1e-5)


def test_sums_at_the_limit_get_the_labels_of_onnxruntime(compiler: Compiler, tmp_path: Path) -> None:
    # Twenty trees that vote 0 or 1/20: many rows sum up to what float32 makes of a half.
    random = np.random.default_rng(2)
    trees = grown(random, 20, 6, 6, 0.1, ["BRANCH_LEQ"])
    weights = {
        key: {0: float(np.float32(0.05)) * int(random.integers(2))} for key in weighted(random, trees, [[0]])
    }
    x = rows_of(random, 500, 6)
    case = classic("TreeEnsembleClassifier", trees, weights, classlabels_int64s=[4, 9])
    written(tmp_path / "m.onnx", "TreeEnsembleClassifier", (case[0], [x], case[1], 2))
    # On several threads onnxruntime adds up sums of parts of the trees, which round differently.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options)
    labels, scores = session.run(None, {"x0": x})
    found = run(compiler, grouped(tmp_path / "m.onnx"), x)
    np.testing.assert_array_equal(found[0], labels)
    np.testing.assert_array_equal(found[1], scores)
    assert (np.abs(scores[:, 1] - 0.5) < 1e-6).sum() > 20


def test_many_columns_and_a_deep_tree_need_wide_links(compiler: Compiler, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    depth, features = 1500, 9000
    nodes: list[Any] = []
    for i in range(depth):
        nodes += [(i % features, 0.5, "BRANCH_LEQ", 2 * i + 2, 2 * i + 1, 0), (0, 0.0, "LEAF", 0, 0, 0)]
    nodes.append((0, 0.0, "LEAF", 0, 0, 0))
    others = [
        [(int(f), 0.0, "BRANCH_GT", 1, 2, 0), (0, 0.0, "LEAF", 0, 0, 0), (0, 0.0, "LEAF", 0, 0, 0)]
        for f in random.permutation(features)
    ]
    trees = [nodes, *others]
    weights = weighted(random, trees, [[0]])
    x = random.random((9, features)).astype(np.float32) * np.float32(0.5001)
    version, attributes = classic("TreeEnsembleRegressor", trees, weights, n_targets=1)
    written(tmp_path / "m.onnx", "TreeEnsembleRegressor", (version, [x], attributes, 1))
    group = grouped(tmp_path / "m.onnx")
    expected = walked(x, trees, weights, 1)
    scale = np.abs(expected).max()
    (found,) = run(compiler, group, x)
    np.testing.assert_allclose(found, expected, atol=1e-4 * scale)


def five(x: Array, attributes: dict[str, Any], path: Path) -> Group:
    tensors = {
        "nodes_splits": x.dtype,
        "leaf_weights": x.dtype,
        "nodes_modes": np.uint8,
        "membership_values": x.dtype,
    }
    made = {k: ir.tensor(np.array(v, tensors[k])) if k in tensors else v for k, v in attributes.items()}
    written(path, "TreeEnsemble", (5, [x], made, 1))
    return grouped(path)


SETS: dict[str, Any] = {  # two nodes that test membership, and one leaf that both lead to
    "tree_roots": [0], "nodes_featureids": [0, 1], "nodes_modes": [6, 6], "nodes_splits": [0.0, 0.0],
    "nodes_truenodeids": [0, 0], "nodes_trueleafs": [1, 1], "nodes_falsenodeids": [1, 1], "nodes_falseleafs": [0, 1],
    "leaf_targetids": [0, 0], "leaf_weights": [3.0, 5.0], "membership_values": [1.0, 2.5, -4.0, 8.0, 9.0, np.nan, 7.0, np.nan],
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 40])
def test_membership_is_a_search(compiler: Compiler, tmp_path: Path, rows: int) -> None:
    random = np.random.default_rng(rows)
    x = random.choice(
        np.array([1.0, 2.5, -4.0, 8.0, 9.0, 7.0, 3.0, 8.5, np.nan, np.inf], np.float32), (rows, 2)
    )
    (found,) = run(compiler, five(x, SETS, tmp_path / "m.onnx"), x)
    inside = np.isin(x[:, 0], [1.0, 2.5, -4.0, 8.0, 9.0]) | (x[:, 1] == 7.0)
    np.testing.assert_array_equal(found[:, 0], np.where(inside, 3.0, 5.0))


def test_a_node_that_two_lead_to_is_computed_once(compiler: Compiler, tmp_path: Path) -> None:
    # As LightGBM's converter writes sets: several comparisons whose true branch is one node.
    shared = {
        "tree_roots": [0], "nodes_featureids": [0, 0, 1], "nodes_modes": [4, 4, 0], "nodes_splits": [1.0, 2.0, 0.0],
        "nodes_truenodeids": [2, 2, 0], "nodes_trueleafs": [0, 0, 1], "nodes_falsenodeids": [1, 2, 1],
        "nodes_falseleafs": [0, 1, 1], "leaf_targetids": [0, 0, 0], "leaf_weights": [1.0, 2.0, 4.0],
    }  # fmt: skip
    x = np.array([[1, -1], [1, 1], [2, -1], [2, 1], [3, -1]], np.float32)
    (found,) = run(compiler, five(x, shared, tmp_path / "m.onnx"), x)
    np.testing.assert_array_equal(found[:, 0], [1, 2, 1, 2, 4])


STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0], "nodes_values": [0.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0], "n_targets": 1,
}  # fmt: skip
CHAIN = MAX_DEPTH + 2
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a cycle": ({"nodes_truenodeids": [0, 0, 0]}, "leads back to itself"),
    "a child that is missing": ({"nodes_falsenodeids": [7, 0, 0]}, "node 7 of tree 0, which does not exist"),
    "a leaf that is missing": ({"target_nodeids": [1, 9]}, "'target_nodeids' names node 9"),
    "a node twice": ({"nodes_nodeids": [0, 1, 1]}, "tree 0 has two nodes 1"),
    "a target beyond the last": ({"target_ids": [0, 1]}, "target 1, there are 1"),
    "a negative target": ({"target_ids": [-1, 0]}, "target -1"),
    "a feature beyond the last": ({"nodes_featureids": [2, 0, 0]}, "reads feature 2, its input has 2"),
    "a negative feature": ({"nodes_featureids": [-1, 0, 0]}, "reads feature -1"),
    "another length": ({"nodes_values": [0.0, 0.0]}, "'nodes_values' has 2 entries, 'nodes_modes' has 3"),
    "an unknown mode": ({"nodes_modes": ["BRANCH", "LEAF", "LEAF"]}, "'nodes_modes' has 'BRANCH'"),
    "absurd depth": (
        {
            "nodes_treeids": [0] * (2 * CHAIN + 1), "nodes_nodeids": list(range(2 * CHAIN + 1)),
            "nodes_featureids": [0] * (2 * CHAIN + 1), "nodes_values": [0.0] * (2 * CHAIN + 1),
            "nodes_modes": ["BRANCH_LEQ", "LEAF"] * CHAIN + ["LEAF"],
            "nodes_truenodeids": [v for i in range(CHAIN) for v in (2 * i + 1, 0)] + [0],
            "nodes_falsenodeids": [v for i in range(CHAIN) for v in (2 * i + 2, 0)] + [0],
        },
        f"deeper than {MAX_DEPTH}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_tree_is_refused(name: str, tmp_path: Path) -> None:
    change, message = HOSTILE[name]
    x = np.zeros((1, 2), np.float32)
    written(tmp_path / "m.onnx", "TreeEnsembleRegressor", (3, [x], STUMP | change, 1))
    (node,) = load(tmp_path / "m.onnx").model.graph
    with pytest.raises(GraphError, match=message):
        forest.check(node)


HOSTILE_FIVE: dict[str, tuple[dict[str, Any], str]] = {
    "a cycle": ({"nodes_falsenodeids": [0, 1]}, "leads back to itself"),
    "a root beyond the last": ({"tree_roots": [2]}, "'tree_roots' has 2, expected 0 to 1"),
    "a leaf beyond the last": ({"nodes_truenodeids": [0, 2]}, "'nodes_truenodeids' has 2, expected 0 to 1"),
    "an unknown mode": ({"nodes_modes": [6, 7]}, "known are 0 to 6"),
    "sets that are missing": ({"membership_values": [1.0]}, "has 1 sets for 2 nodes"),
    "a target beyond the last": ({"leaf_targetids": [0, 5]}, "target 5, there are 1"),
}


@pytest.mark.parametrize("name", HOSTILE_FIVE)
def test_what_is_no_tree_of_version_five_is_refused(name: str, tmp_path: Path) -> None:
    change, message = HOSTILE_FIVE[name]
    group = five(np.zeros((1, 2), np.float32), SETS | change, tmp_path / "m.onnx")
    with pytest.raises(GraphError, match=message):
        forest.check(group.anchor)
