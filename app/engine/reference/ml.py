"""The operators of ai.onnx.ml that the reference evaluator lacks or computes wrongly.

The specification leaves much open: scores of two classes of which one has weights, base values, ties,
transforms of scores. Where it does, these functions compute what onnxruntime 1.31 does, for which the
exporters of scikit-learn, LightGBM and XGBoost are written.

Source: ONNX operator specifications of ai.onnx.ml 1 to 5; onnxruntime/core/providers/cpu/ml.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from app.engine.reference.correction import Correction
from app.engine.reference.corrections import softmax

Array = np.ndarray[Any, Any]
Floats = Sequence[float]
Ints = Sequence[int]
Strings = Sequence[str]
DOMAIN = "ai.onnx.ml"
_ERF = 0.147  # of Winitzki's approximation of the error function
_TINY = 1e-7  # scores nearer to 0 than this are 0 to SOFTMAX_ZERO; probabilities keep off 0 and 1


def _rows(x: Array) -> Array:
    """The samples as float32 (float64 stays) [n, features]; a vector is one of them."""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    return wide.reshape(1, -1) if x.ndim == 1 else wide


def _logistic(scores: Array) -> Array:
    found: Array = np.exp(-np.logaddexp(0, -scores))
    return found


def _probit(scores: Array) -> Array:
    x = 2 * scores - 1
    log = np.log((1 - x) * (1 + x))
    half = 2 / (math.pi * _ERF) + 0.5 * log
    found: Array = math.sqrt(2) * np.sign(x) * np.sqrt(-half + np.sqrt(half**2 - log / _ERF))
    return found


def _softmax_zero(scores: Array) -> Array:
    """Softmax over the scores that are not zero; zeros stay near zero."""
    most = scores.max(axis=1, keepdims=True)
    counted = np.abs(scores) > _TINY
    powers: Array = np.where(counted, np.exp(scores - most), scores * np.exp(-most))
    powers /= np.where(counted, powers, 0).sum(axis=1, keepdims=True)
    return powers


_TRANSFORMS: Mapping[str, Callable[[Array], Array]] = {
    "NONE": lambda scores: scores,
    "LOGISTIC": _logistic,
    "PROBIT": _probit,
    "SOFTMAX": softmax,
    "SOFTMAX_ZERO": _softmax_zero,
}


def _transformed(scores: Array, name: str) -> Array:
    """Scores of a row after their transform; of a single one there is only PROBIT."""
    return _TRANSFORMS[name if scores.shape[1] > 1 or name == "PROBIT" else "NONE"](scores)


def _pair(scores: Array, name: str, *, complement: bool) -> Array:
    """[n, 2] of one score a row: it is the second, the first is 1 - score or its negative."""
    if name == "LOGISTIC":
        return _logistic(np.stack([-scores, scores], axis=1))
    return np.stack([1 - scores if complement else -scores, scores], axis=1)


def _chosen(classes: Array, strings: Strings | None, ints: Ints | None) -> Array:
    """The labels of classes given by number."""
    return np.array(strings, object)[classes] if strings else np.array(ints, np.int64)[classes]


def array_feature_extractor(x: Array, y: Array) -> list[Array]:
    """The columns y of x; a vector is one row."""
    return [np.take(x.reshape(1, -1) if x.ndim == 1 else x, y.reshape(-1), axis=-1)]


def cast_map(
    x: Mapping[object, object], *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> list[Array]:
    """The values of a map in the order of its keys; a sparse one has its keys as positions."""
    kind, missing = {"TO_FLOAT": (np.float32, 0), "TO_STRING": (object, "0"), "TO_INT64": (np.int64, 0)}[
        cast_to
    ]
    convert: Callable[[Any], Any] = str if cast_to == "TO_STRING" else kind  # type: ignore[assignment]  # a NumPy type
    if map_form != "SPARSE":
        return [np.array([[convert(x[key]) for key in sorted(x)]], kind)]  # type: ignore[type-var]  # one kind
    y = np.full((1, max_map), missing, kind)
    for key, value in x.items():
        if isinstance(key, int | np.integer) and 0 <= key < max_map:
            y[0, key] = convert(value)
    return [y]


def dict_vectorizer(
    x: Mapping[object, object],
    *,
    string_vocabulary: Strings | None = None,
    int64_vocabulary: Ints | None = None,
) -> list[Array]:
    """The values of a map in the order of the vocabulary, 0 for what it lacks."""
    missing = type(next(iter(x.values()), 0.0))()
    found = [x.get(word, missing) for word in string_vocabulary or int64_vocabulary or ()]
    return [np.array([found], object if isinstance(missing, str) else None)]


def linear_classifier(
    x: Array,
    *,
    coefficients: Floats,
    intercepts: Floats | None = None,
    classlabels_ints: Ints | None = None,
    classlabels_strings: Strings | None = None,
    multi_class: int = 0,  # noqa: ARG001  # changes nothing
    post_transform: str = "NONE",
) -> list[Array]:
    """Labels and scores; where one vector tells two classes apart, the first class has what is left."""
    scores = _linear(_rows(x), coefficients, intercepts)
    count = len(classlabels_strings or classlabels_ints or ())
    if scores.shape[1] > 1:
        classes = scores.argmax(axis=1)
        return [
            _chosen(classes, classlabels_strings, classlabels_ints),
            _transformed(scores, post_transform).astype(np.float32),
        ]
    positive = (scores[:, 0] > 0).astype(np.int64)
    if count != 2:
        return [positive, _transformed(scores, post_transform).astype(np.float32)]
    pairs = _pair(scores[:, 0], post_transform, complement=True)
    return [_chosen(positive, classlabels_strings, classlabels_ints), pairs.astype(np.float32)]


def linear_regressor(
    x: Array,
    *,
    coefficients: Floats,
    intercepts: Floats | None = None,
    post_transform: str = "NONE",
    targets: int = 1,  # noqa: ARG001  # the coefficients say it
) -> list[Array]:
    """A matrix product, transformed."""
    return [_transformed(_linear(_rows(x), coefficients, intercepts), post_transform).astype(np.float32)]


def _linear(rows: Array, coefficients: Floats, intercepts: Floats | None) -> Array:
    """[n, vectors]: products of rows with vectors of coefficients, each with its intercept."""
    products: Array = rows @ np.array(coefficients, np.float32).reshape(-1, rows.shape[1]).T
    return products + np.array(intercepts or 0, np.float32)


def normalizer(x: Array, *, norm: str = "MAX") -> list[Array]:
    """Rows divided by their largest element or their norm, unless that is 0."""
    wide = x.astype(np.float32)
    by: Mapping[str, Callable[[Array], Array]] = {
        "MAX": lambda v: v.max(axis=-1, keepdims=True),
        "L1": lambda v: np.abs(v).sum(axis=-1, keepdims=True),
        "L2": lambda v: np.sqrt((v.astype(np.float64) ** 2).sum(axis=-1, keepdims=True)),
    }
    size = by[norm](wide)
    return [(wide / np.where(size == 0, 1, size)).astype(np.float32)]


def scaler(x: Array, *, offset: Floats, scale: Floats) -> list[Array]:
    """(x - offset) * scale, in floats whatever x is."""
    return [((x - np.array(offset, np.float32)) * np.array(scale, np.float32)).astype(np.float32)]


@dataclass(frozen=True, slots=True)
class _Machine:
    """Attributes of the scores of a support vector machine."""

    coefficients: Floats
    rho: Floats
    kernel_params: Floats | None = None
    kernel_type: str = "LINEAR"
    support_vectors: Floats | None = None
    vectors_per_class: Ints = ()


def svm_classifier(
    x: Array,
    *,
    classlabels_ints: Ints | None = None,
    classlabels_strings: Strings | None = None,
    post_transform: str = "NONE",
    prob_a: Floats | None = None,
    prob_b: Floats | None = None,
    **attributes: Any,
) -> list[Array]:
    """Labels, and scores of classes, of pairs of classes, or probabilities fitted to these."""
    rows, machine = _rows(x).astype(np.float64), _Machine(**attributes)
    count = len(classlabels_strings or classlabels_ints or ())
    weights = np.array(machine.coefficients, np.float64)
    if sum(machine.vectors_per_class):
        scores = _pairwise(rows, weights, machine)
        votes = _votes(scores, count)
        classes = votes.argmax(axis=1)
        if prob_a:
            scores = _probabilities(scores, prob_a, prob_b or (), count)
    else:
        scores = rows @ weights.reshape(count, -1).T + machine.rho[0]
        classes, most = scores.argmax(axis=1), scores.max(axis=1)
        if count == 2:
            classes = np.where(most >= 0.5 if np.all(weights >= 0) else most > 0, 1, classes)
    if scores.shape[1] == 1:
        scores = _pair(scores[:, 0], post_transform, complement=post_transform != "NONE")
    else:
        scores = _transformed(scores, post_transform)
    return [_chosen(classes, classlabels_strings, classlabels_ints), scores.astype(np.float32)]


def _kernel(rows: Array, vectors: Array, name: str, params: Floats | None) -> Array:
    """[n, vectors]: the kernel of each sample and vector. Parameters: gamma, coef0, degree."""
    gamma, offset, degree = params or (0.0, 0.0, 0.0)
    products: Array = rows @ vectors.T
    if name == "RBF":
        products = np.exp(-gamma * ((rows[:, None] - vectors[None]) ** 2).sum(axis=-1))
    if name == "POLY":
        return (gamma * products + offset) ** degree
    return np.tanh(gamma * products + offset) if name == "SIGMOID" else products


def _pairwise(rows: Array, weights: Array, machine: _Machine) -> Array:
    """[n, pairs]: positive where the first class of a pair wins."""
    per_class, rho = machine.vectors_per_class, machine.rho
    total = sum(per_class)
    vectors = np.array(machine.support_vectors, np.float64).reshape(total, -1)
    kernels = _kernel(rows, vectors, machine.kernel_type, machine.kernel_params)
    table = weights.reshape(-1, total)
    ends = np.cumsum(per_class)
    spans = [slice(end - size, end) for end, size in zip(ends, per_class)]
    scores = [
        kernels[:, spans[i]] @ table[j - 1, spans[i]] + kernels[:, spans[j]] @ table[i, spans[j]] + rho[pair]
        for pair, (i, j) in enumerate(combinations(range(len(per_class)), 2))
    ]
    return np.stack(scores, axis=1)


def _votes(scores: Array, count: int) -> Array:
    votes = np.zeros((len(scores), count))
    for pair, (i, j) in enumerate(combinations(range(count), 2)):
        votes[:, i] += scores[:, pair] > 0
        votes[:, j] += scores[:, pair] <= 0
    return votes


def _probabilities(scores: Array, a: Floats, b: Floats, count: int) -> Array:
    """[n, classes] from those of the pairs: Wu, Lin and Weng, 2004, second method, as in libsvm."""
    found = np.empty((len(scores), count))
    for row, sums in enumerate(scores):
        wins = np.zeros((count, count))
        for pair, (i, j) in enumerate(combinations(range(count), 2)):
            value = 1 - _logistic(np.array(sums[pair] * a[pair] + b[pair]))
            wins[i, j] = np.clip(value, _TINY, 1 - _TINY)
            wins[j, i] = 1 - wins[i, j]
        found[row] = _coupled(wins)
    return found


def _coupled(wins: Array) -> Array:
    count = len(wins)
    q = -wins.T * wins
    np.fill_diagonal(q, (wins.T**2).sum(axis=1) - np.diag(wins) ** 2)
    p = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        product = q @ p
        energy = p @ product
        if np.abs(product - energy).max() < 0.005 / count:
            break
        for t in range(count):
            difference = (energy - product[t]) / q[t, t]
            p[t] += difference
            energy = (energy + difference * (difference * q[t, t] + 2 * product[t])) / (1 + difference) ** 2
            product = (product + difference * q[t]) / (1 + difference)
            p /= 1 + difference
    return p


def tree_classifier(
    x: Array,
    *,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: Strings | None = None,
    post_transform: str = "NONE",
    **forest: Any,
) -> list[Array]:
    """Labels and scores. Of two classes of which one has weights, the other has what is left."""
    count = len(classlabels_strings or classlabels_int64s or ())
    sums, there = _leaves(_rows(x), forest, "class", count)
    if count == 2:
        classes, scores = _two_classes(sums, forest, post_transform)
        if len(set(forest["class_ids"])) > 1 and not classlabels_strings:
            return [classes, scores.astype(np.float32)]  # onnxruntime gives numbers of classes, not labels
    else:
        base = _tensor_or_floats(forest, "base_values")
        scores = sums + base if len(base) else sums
        classes = np.where(there, scores, -np.inf).argmax(axis=1)
        scores = _transformed(scores, post_transform)
    return [_chosen(classes, classlabels_strings, classlabels_int64s), scores.astype(np.float32)]


def _two_classes(sums: Array, forest: Mapping[str, Any], post_transform: str) -> tuple[Array, Array]:
    """Classes by the score of the second, which is the only one where one has weights; and both scores."""
    ids = set(forest["class_ids"])
    base = _tensor_or_floats(forest, "base_values")
    limit = 0.5 if len(ids) == 1 and np.all(_tensor_or_floats(forest, "class_weights") >= 0) else 0.0
    if ids == {0} and len(base) < 2:
        one = sums[:, 0] + (base[0] if len(base) else 0)
        classes = (one > limit).astype(np.int64)
        return classes, _pair(one, post_transform, complement=bool(limit))
    scores = sums + base if len(base) == 2 else sums
    return (scores[:, 1] > limit).astype(np.int64), _transformed(scores, post_transform)


def tree_regressor(
    x: Array,
    *,
    aggregate_function: str = "SUM",
    n_targets: int = 1,
    post_transform: str = "NONE",
    **forest: Any,
) -> list[Array]:
    """Sums, means or extrema of the leaves that a sample reaches, of each target."""
    sums, _ = _leaves(_rows(x), forest, "target", n_targets, aggregate_function)
    base = _tensor_or_floats(forest, "base_values")
    scores = sums + base if len(base) else sums
    return [_transformed(scores, post_transform).astype(np.float32)]


def _tensor_or_floats(forest: Mapping[str, Any], name: str) -> Array:
    """Numbers that are floats, or in double precision a tensor."""
    tensor = forest.get(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(tensor, np.float64).reshape(-1)
    return np.array(forest.get(name) or (), np.float32).astype(np.float64)


_TAKEN: Mapping[str, Callable[[Array, Array], Array]] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


def _leaves(
    rows: Array, forest: Mapping[str, Any], prefix: str, count: int, combine: str = "SUM"
) -> tuple[Array, Array]:
    """[n, count]: the weights of the leaves that each sample reaches, combined; and whether there are any.

    All samples go through one tree at a time, a level a turn.
    """
    keys = list(zip(forest["nodes_treeids"], forest["nodes_nodeids"]))
    at = {key: i for i, key in enumerate(keys)}
    modes = np.array(forest["nodes_modes"], object)
    features = np.array(forest["nodes_featureids"], np.int64)
    limits = _tensor_or_floats(forest, "nodes_values")
    nans = np.array(forest.get("nodes_missing_value_tracks_true") or [0] * len(keys), bool)
    leaf = modes == "LEAF"
    branches = ("nodes_truenodeids", "nodes_falsenodeids")
    true, false = (
        np.array([i if leaf[i] else at[t, n] for i, ((t, _), n) in enumerate(zip(keys, forest[name]))])
        for name in branches
    )
    weights: dict[int, list[tuple[int, float]]] = {}
    numbers = _tensor_or_floats(forest, f"{prefix}_weights")
    for tree, node, target, weight in zip(
        forest[f"{prefix}_treeids"], forest[f"{prefix}_nodeids"], forest[f"{prefix}_ids"], numbers
    ):
        weights.setdefault(at[tree, node], []).append((target, weight))
    merge = {"MIN": np.minimum, "MAX": np.maximum}.get(combine, np.add)
    found = np.zeros((len(rows), count))
    there = np.zeros((len(rows), count), bool)
    roots: dict[int, int] = {}  # by tree, the first of its nodes
    for tree, node in keys:
        roots.setdefault(tree, at[tree, node])
    samples = np.arange(len(rows))
    for root in roots.values():
        here = np.full(len(rows), root)
        while not leaf[here].all():
            values = rows[samples, features[here]]
            taken = nans[here] & np.isnan(values)
            for mode in set(modes[here]) - {"LEAF"}:
                taken |= (modes[here] == mode) & _TAKEN[mode](values, limits[here].astype(values.dtype))
            here = np.where(taken, true[here], false[here])
        for row, reached in enumerate(here):
            for target, weight in weights.get(int(reached), ()):
                old = found[row, target]
                found[row, target] = merge(old, weight) if there[row, target] else weight
                there[row, target] = True
    return found / len(roots) if combine == "AVERAGE" else found, there


def zip_map(
    x: Array, *, classlabels_int64s: Ints | None = None, classlabels_strings: Strings | None = None
) -> list[list[dict[object, float]]]:
    """A map from labels to scores for each sample."""
    labels = classlabels_strings or classlabels_int64s or ()
    return [[dict(zip(labels, map(float, row), strict=True)) for row in (x if x.ndim > 1 else x[None])]]


_OPEN = "leaves out what the specification leaves open"

CORRECTIONS = (
    Correction("ArrayFeatureExtractor", array_feature_extractor, "keeps vectors", domain=DOMAIN),
    Correction("CastMap", cast_map, "is absent", domain=DOMAIN),
    Correction("DictVectorizer", dict_vectorizer, "takes arrays of maps", domain=DOMAIN),
    Correction("LinearClassifier", linear_classifier, _OPEN, domain=DOMAIN),
    Correction("LinearRegressor", linear_regressor, "lacks transforms and vectors", domain=DOMAIN),
    Correction("Normalizer", normalizer, "divides by the largest magnitude", domain=DOMAIN),
    Correction("SVMClassifier", svm_classifier, _OPEN, domain=DOMAIN),
    Correction("Scaler", scaler, "rounds to integers where the input has them", domain=DOMAIN),
    Correction("TreeEnsembleClassifier", tree_classifier, _OPEN, domain=DOMAIN),
    Correction("TreeEnsembleRegressor", tree_regressor, "lacks transforms", domain=DOMAIN),
    Correction("ZipMap", zip_map, "is absent", domain=DOMAIN),
)
