"""Gradient of Resize: along each axis the adjoint of its matrix of weights."""

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient.rule import Gradients, Rule, Site, all_of, constants_required
from app.engine.gradient.tables.movement import along, check_matrix, selection
from app.engine.gradient.terms import Term
from app.engine.operators.resize_geometry import nearest_indices, resized_axes, taps_along


def _matrices(s: Site) -> list[np.ndarray]:
    """Weights [output, input] of every axis."""
    axes = resized_axes(s.node)
    if s.attribute("mode", "nearest") == "nearest":
        return [selection(n, np.asarray(i)) for n, i in zip(s.x.shape, nearest_indices(s.node))]
    found = []
    for n, m, axis in zip(s.x.shape, s.dy_shape, axes):
        check_matrix(m, n)
        matrix = np.zeros((m, n))
        if n == m and axis.scale == 1.0:
            matrix = np.eye(n)
        else:
            indices, weights = taps_along(s.node, axis)
            rows = np.broadcast_to(np.arange(m)[:, None], indices.shape)
            np.add.at(matrix, (rows, indices), weights)
        found.append(matrix)
    return found


def _resize(s: Site) -> Gradients:
    term, rank = s.dy, len(s.x.shape)
    shape = list(s.dy_shape)
    for axis, matrix in enumerate(_matrices(s)):
        m, n = matrix.shape
        if m == n and np.array_equal(matrix, np.eye(n)):
            continue
        times = m // n
        if m == times * n and np.array_equal(matrix, np.kron(np.eye(n), np.ones((times, 1)))):
            term = _blocks(term, shape, axis, times)
        else:
            term = along(term, axis, rank, matrix)
        shape[axis] = n
    return (term,)


def _blocks(term: Term, shape: list[int], axis: int, times: int) -> Term:
    """Sums of runs of elements along an axis."""
    apart = term.reshape((*shape[:axis], shape[axis] // times, times, *shape[axis + 1 :]))
    return apart.sum((axis + 1,), keepdims=False)


def _crops(node: ir.Node) -> str | None:
    if graph.attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return "coordinate_transformation_mode is 'tf_crop_and_resize', expected one without a region"
    return None


ROWS = (Rule(("Resize",), _resize, rejection=all_of(constants_required(1, 2, 3), _crops), settings=(1, 2)),)
