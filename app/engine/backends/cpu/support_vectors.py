"""Rows of support vector machines and of distances between rows (CDist, of nearest neighbors)."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_values, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, single_rejection
from app.engine.backends.cpu.scores import Classes, pair_of, scored, transform_of
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.operators.forest import DOMAIN as ML
from app.engine.operators.operands import data

Array: TypeAlias = np.ndarray[Any, Any]
KERNELS = "app.kernels.cpu.support_vectors"
INPUTS = ("float32", "float64", "int32", "int64")
FLOATS = ("float32", "float64")
METRICS = ("euclidean", "sqeuclidean")


def _attributes(node: ir.Node, name: str) -> Array:
    return np.asarray(graph.attribute(node, name, ()), np.float32).astype(np.float64)


def _labels(node: ir.Node) -> tuple[int, ...]:
    return tuple(graph.attribute(node, "classlabels_ints", ()))


def _sizes(node: ir.Node) -> tuple[int, int, int]:
    """Rows, features, support vectors."""
    rows, features = (1, *graph.static_shape(data(node)))[-2:]
    return rows, features, len(graph.attribute(node, "support_vectors", ())) // max(features, 1)


@after(single_rejection)
def _machine_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    x, shape = data(node), graph.static_shape(data(node))
    if graph.element_type(x).name not in INPUTS or len(shape) not in (1, 2):
        return f"input {x.name!r} is {graph.element_type(x)}{list(shape)}, expected samples of numbers"
    _, features, vectors = _sizes(node)
    if not vectors or vectors * features != len(graph.attribute(node, "support_vectors", ())):
        return "it has no support vectors of as many features as its input"
    if graph.attribute(node, "kernel_type", "LINEAR") not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        return f"kernel {graph.attribute(node, 'kernel_type', 'LINEAR')!r} is unknown"
    if len(_attributes(node, "kernel_params")) not in (0, 3):
        return "'kernel_params' are not gamma, coef0 and degree"
    return None


@after(_machine_rejection)
def _regressor_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    _, _, vectors = _sizes(node)
    if len(_attributes(node, "coefficients")) != vectors or len(_attributes(node, "rho")) != 1:
        return "'coefficients' and 'rho' do not fit the support vectors"
    return None


@after(_machine_rejection)
def _classifier_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    each, classes = graph.attribute(node, "vectors_per_class", ()), len(_labels(node))
    pairs = classes * (classes - 1) // 2
    _, _, vectors = _sizes(node)
    if len(each) != classes or classes < 2 or sum(each) != vectors or min(each) < 0:
        return "'vectors_per_class' does not fit classes and support vectors"
    counts = {"coefficients": (classes - 1) * vectors, "rho": pairs}
    for name, count in counts.items():
        if len(_attributes(node, name)) != count:
            return f"{name!r} has {len(_attributes(node, name))} entries, expected {count}"
    fitted = {len(_attributes(node, name)) for name in ("prob_a", "prob_b")}
    return None if fitted in ({0}, {pairs}) else "'prob_a' and 'prob_b' do not fit the pairs of classes"


def _similar_calls(node: ir.Node) -> tuple[Call, Operand]:
    """The call that compares all rows with the support vectors, and its result."""
    rows, features, vectors = _sizes(node)
    table = _attributes(node, "support_vectors").reshape(vectors, features)
    parameters = _attributes(node, "kernel_params")
    found: Operand = ("float32*", Workspace(4 * rows * vectors))
    operands: Operands = (
        *of_values(data(node)),
        ("float32*", Constant(np.ascontiguousarray(table.T, np.float32))),
        found,
        ("float32*", Constant((parameters if len(parameters) else np.zeros(3)).astype(np.float32))),
        features,
        vectors,
    )
    static = ("float32", graph.attribute(node, "kernel_type", "LINEAR"))
    return kernel_call(f"{KERNELS}:similarities", operands, rows, static), found


def _doubles(*arrays: Array) -> tuple[Operand, ...]:
    return tuple(("float64*", Constant(np.ascontiguousarray(a, np.float64))) for a in arrays)


def _decided(k: Operand, weights: Array, rho: Array, y: Operand, rows: int) -> Call:
    count, vectors = weights.shape
    operands = (k, *_doubles(weights, rho), y, vectors, count)
    return kernel_call(f"{KERNELS}:decisions", operands, rows)


def _regressor_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    rows, _, _ = _sizes(node)
    similar, k = _similar_calls(node)
    sums: Operand = ("float64*", Workspace(8 * rows))
    weights = _attributes(node, "coefficients")[None]
    calls = [similar, _decided(k, weights, _attributes(node, "rho"), sums, rows)]
    if graph.attribute(node, "one_class", 0):
        calls.append(kernel_call(f"{KERNELS}:one_class", (sums,), rows))
    classes = Classes("none", 0, transform_of(node, 1))
    return (*calls, scored(node, classes, sums, None, rows, 1))


def pair_weights(coefficients: Array, each: Sequence[int]) -> Array:
    """[pairs, vectors]: of a pair of classes, the weights of its own support vectors; others are 0."""
    vectors = sum(each)
    table = coefficients.reshape(-1, vectors)
    ends = np.cumsum(each)
    spans = [slice(end - size, end) for end, size in zip(ends, each)]
    pairs = list(combinations(range(len(each)), 2))
    found = np.zeros((len(pairs), vectors))
    for row, (i, j) in enumerate(pairs):
        found[row, spans[i]] = table[j - 1, spans[i]]
        found[row, spans[j]] = table[i, spans[j]]
    return found


def _classifier_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    rows, _, _ = _sizes(node)
    labels, each = _labels(node), graph.attribute(node, "vectors_per_class", ())
    count = len(labels)
    pairs = count * (count - 1) // 2
    similar, k = _similar_calls(node)
    sums: Operand = ("float64*", Workspace(8 * rows * pairs))
    weights = pair_weights(_attributes(node, "coefficients"), each)
    chosen, y = node.outputs
    label: Operand = ("int64*", chosen if chosen.name else Workspace(8 * rows))
    voted = (
        *(sums, ("int64*", Constant(np.array(labels, np.int64))), label),
        *(("int64*", Workspace(8 * count, per_thread=True)), count),
    )
    calls = [
        similar,
        _decided(k, weights, _attributes(node, "rho"), sums, rows),
        kernel_call(f"{KERNELS}:votes", voted, rows, takes_thread=True),
    ]
    if not y.name:
        return tuple(calls)
    width, result = pairs, sums
    fits = _attributes(node, "prob_a"), _attributes(node, "prob_b")
    if len(fits[0]):
        width, result = count, ("float64*", Workspace(8 * rows * count))
        scratch: Operand = ("float64*", Workspace(8 * (2 * count**2 + count), per_thread=True))
        operands: Operands = (sums, *_doubles(*fits), result, scratch, count)
        calls.append(typed_call(f"{KERNELS}:coupled", operands, rows))
    if width == 1:
        plain = graph.attribute(node, "post_transform", "NONE") == "NONE"
        classes = Classes("none", 0, pair_of(node, complement=not plain))
    else:
        classes = Classes("none", 0, transform_of(node, width))
    return (*calls, scored(node, classes, result, None, rows, width))


@after(single_rejection)
def _distance_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    a, b = graph.operands(node)
    metric = graph.attribute(node, "metric", "sqeuclidean")
    if metric not in METRICS or a.dtype != b.dtype or graph.element_type(a).name not in FLOATS:
        return f"it computes the metric {metric!r} of {a.dtype} and {b.dtype}"
    shapes = graph.static_shape(a), graph.static_shape(b)
    if any(len(s) != 2 for s in shapes) or shapes[0][1] != shapes[1][1]:
        return f"its operands have the shapes {shapes}, expected rows of as many features"
    return None


def _distance_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    a, b = graph.operands(node)
    (rows, features), (vectors, _) = graph.static_shape(a), graph.static_shape(b)
    number = graph.element_type(a).name
    fixed, pointer = graph.constant(b), f"{number}*"
    calls: list[Call] = []
    if fixed is not None:
        side: Operand = (pointer, Constant(np.ascontiguousarray(fixed.T)))
    else:
        side = (pointer, Workspace(graph.nbytes(b)))
        calls.append(kernel_call(f"{KERNELS}:transposed", ((pointer, b), side, vectors, features), features))
    parameters = Constant(np.zeros(3, number))
    operands = ((pointer, a), side, (pointer, node.outputs[0]), (pointer, parameters), features, vectors)
    static = (number, graph.attribute(node, "metric", "sqeuclidean"))
    return (*calls, kernel_call(f"{KERNELS}:similarities", operands, rows, static))


def _distance_cost(group: Group, context: PlanningContext) -> float:
    a, b = graph.operands(group.anchor)
    return group_roofline(group, context, 3 * graph.elements(a) * graph.static_shape(b)[0], 0.2)


def _machine_cost(group: Group, context: PlanningContext) -> float:
    rows, features, vectors = _sizes(group.anchor)
    pairs = max(len(_attributes(group.anchor, "rho")), 1)
    return group_roofline(group, context, rows * vectors * (3 * features + 20 * pairs), 0.2)


IMPLEMENTATIONS = tuple(
    Implementation(name, op, "numba-cpu", rejection, lower, cost, domain=domain)
    for name, domain, op, rejection, lower, cost in (
        ("svm.classifier", ML, "SVMClassifier", _classifier_rejection, _classifier_lower, _machine_cost),
        ("svm.regressor", ML, "SVMRegressor", _regressor_rejection, _regressor_lower, _machine_cost),
        ("distances.all", MICROSOFT, "CDist", _distance_rejection, _distance_lower, _distance_cost),
    )
)
