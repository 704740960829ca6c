"""Gradients of operators that read or write at computed indices."""

import numpy as np
import onnx_ir as ir

from app.engine.gradient import sparse
from app.engine.gradient.rule import Gradients, Rule, Site, allowed
from app.engine.gradient.terms import Term


def _int64(term: Term) -> Term:
    return term.cast(_INT64)


def _gather(s: Site) -> Gradients:
    """Rows of the gradient, added at their indices; the axis goes to the front and back."""
    shape, indices = s.x.shape, _int64(s[1])
    rank, axis, many = len(shape), s.axis(0), len(s[1].shape)
    front = [axis, *(i for i in range(rank) if i != axis)]
    places = list(range(axis, axis + many))
    moved = s.dy.transpose(places + [i for i in range(rank - 1 + many) if i not in places])
    zeros = s.maker.zeros([shape[i] for i in front], s.x.dtype)
    rows = indices.reshape((*s[1].shape, 1))
    added = zeros.op("ScatterND", rows, moved, reduction="add")
    sparse.mark(s.node, s.maker.nodes[-1])
    return (added.transpose([int(i) for i in np.argsort(front)]),)


def _gather_elements(s: Site) -> Gradients:
    zeros = s.maker.zeros(s.x.shape, s.x.dtype)
    return (zeros.op("ScatterElements", s[1], s.dy, axis=s.axis(0), reduction="add"),)


def _gather_nd(s: Site) -> Gradients:
    """Slices of the gradient, added at their indices; batch axes become indices too."""
    indices, shape = _int64(s[1]), s[1].shape
    batch = s.attribute("batch_dims", 0)
    if batch:
        grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape[:batch]), indexing="ij"), -1)
        grid = grid.reshape((*shape[:batch], *(1,) * (len(shape) - 1 - batch), batch))
        full = np.broadcast_to(grid, (*shape[:-1], batch))
        prefix = s.maker.constant(full, indices.dtype)
        indices = prefix.op("Concat", indices, axis=-1)
    zeros = s.maker.zeros(s.x.shape, s.x.dtype)
    return (zeros.op("ScatterND", indices, s.dy, reduction="add"),)


def _scatter_elements(s: Site) -> Gradients:
    axis = s.axis(0)
    updates = s.dy.op("GatherElements", s[1], axis=axis)
    if s.attribute("reduction", "none") == "add":
        return s.dy, None, updates
    zeros = s.maker.zeros(s[2].shape, s.x.dtype)
    return s.dy.op("ScatterElements", s[1], zeros, axis=axis), None, updates


def _scatter_nd(s: Site) -> Gradients:
    updates = s.dy.op("GatherND", s[1])
    if s.attribute("reduction", "none") == "add":
        return s.dy, None, updates
    zeros = s.maker.zeros(s[2].shape, s.x.dtype)
    return s.dy.op("ScatterND", s[1], zeros), None, updates


def _top_k(s: Site) -> Gradients:
    """Values go back to where they came from; the node's indices are computed for that."""
    indices = s.output(1, "indices", _INT64)
    zeros = s.maker.zeros(s.x.shape, s.x.dtype)
    return (zeros.op("ScatterElements", indices, s.dy, axis=s.axis(-1), reduction="add"),)


_INT64 = ir.DataType.INT64
_LINEAR = allowed("reduction", "none", "none", "add")

ROWS = (
    Rule(("Gather",), _gather),
    Rule(("GatherElements",), _gather_elements),
    Rule(("GatherND",), _gather_nd),
    Rule(("ScatterElements",), _scatter_elements, rejection=_LINEAR),
    Rule(("ScatterND",), _scatter_nd, rejection=_LINEAR),
    Rule(("TopK",), _top_k),
)
