"""Gradients of operators that move or repeat elements."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient.rule import Gradients, Rule, Site, constants_required
from app.engine.gradient.terms import FLOATS, Term
from app.engine.operators.pad_geometry import padded_indices
from app.engine.types.errors import NotDifferentiableError

LARGEST = 2**24  # elements of a matrix of weights along an axis: 128 MiB of float64


def _reshaped(s: Site) -> Gradients:
    return (s.dy.reshape(s.x.shape),)


def _transpose(s: Site) -> Gradients:
    rank = len(s.x.shape)
    perm = s.attribute("perm", tuple(reversed(range(rank))))
    return (s.dy.transpose([int(i) for i in np.argsort(perm)]),)


def _expand(s: Site) -> Gradients:
    return (s.dy.reduced_to(s.x.shape, s.dy_shape),)


def _tile(s: Site) -> Gradients:
    shape = s.x.shape
    if 0 in shape:
        return (s.dy.reshape(shape),)
    repeats = [m // n for m, n in zip(s.dy_shape, shape)]
    apart = s.dy.reshape([n for pair in zip(repeats, shape) for n in pair])
    return (apart.sum(range(0, 2 * len(shape), 2), keepdims=False),)


def _concat(s: Site) -> Gradients:
    axis = s.axis(0, len(s.dy_shape))
    ends = itertools.accumulate(s[i].shape[axis] for i in range(len(s.node.inputs)))
    return [
        s.dy.slice((end - s[i].shape[axis],), (end,), (axis,)) if s[i].dtype in FLOATS else None
        for i, end in enumerate(ends)
    ]


def _split(s: Site) -> Gradients:
    axis = s.axis(0)
    parts = [
        s.maker.zeros(graph.static_shape(v), s.x.dtype) if g is None else g
        for v, g in zip(s.node.outputs, s.gradients)
    ]
    return (parts[0].op("Concat", *parts[1:], axis=axis) if len(parts) > 1 else parts[0],)


def _ranges(s: Site) -> list[range]:
    """Source indices of every axis of a Slice."""
    shape = s.x.shape
    starts, ends = (graph.array(s[i].value).reshape(-1).tolist() for i in (1, 2))
    axes = graph.array(s[3].value).reshape(-1).tolist() if s.has(3) else range(len(starts))
    steps = graph.array(s[4].value).reshape(-1).tolist() if s.has(4) else [1] * len(starts)
    found = [range(n) for n in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        axis %= len(shape)
        found[axis] = range(*slice(start, end, step).indices(shape[axis]))
        if step < 0 and end < -shape[axis]:  # before the first: beyond it, not counted from the end
            found[axis] = range(*slice(start, None, step).indices(shape[axis]))
    return found


def _slice(s: Site) -> Gradients:
    shape, ranges = s.x.shape, _ranges(s)
    if 0 in s.dy_shape:
        return (s.maker.zeros(shape, s.x.dtype),)
    if all(r.step == 1 for r in ranges):
        after = [n - r.stop for r, n in zip(ranges, shape)]
        return (s.dy.pad([r.start for r in ranges], after),)
    places = np.arange(math.prod(shape)).reshape(shape)[np.ix_(*ranges)]
    return (s.dy.scattered(s.maker.integers(places.reshape(-1).tolist()), math.prod(shape)).reshape(shape),)


def gathered_back(term: Term, own: Sequence[int], sources: Sequence[np.ndarray]) -> Term:
    """The adjoint of copying along each axis from the given source indices, negative ones from outside.

    `own` is the shape of the sources' array. Axis by axis a product with a matrix of zeros and ones,
    which adds up what was copied more than once.
    """
    for axis, (n, source) in enumerate(zip(own, sources)):
        if not np.array_equal(source, np.arange(n)):
            term = along(term, axis, len(own), selection(n, source))
    return term


def selection(n: int, source: np.ndarray) -> np.ndarray:
    """Matrix [target, n] of ones where a target is copied from a source; rows of negative ones are zero."""
    check_matrix(len(source), n)
    matrix = np.zeros((len(source), n))
    (targets,) = np.nonzero(source >= 0)
    matrix[targets, source[targets]] = 1.0
    return matrix


def check_matrix(m: int, n: int) -> None:
    """Refuse an axis whose matrix of weights would be too large.

    Raises:
        NotDifferentiableError: it has more than `LARGEST` elements.
    """
    if m * n > LARGEST:
        raise NotDifferentiableError(
            f"an axis of {n} elements becomes one of {m}: its gradient needs a matrix of {m * n} weights, at "
            f"most {LARGEST} are allowed; crop or divide the axis"
        )


def along(term: Term, axis: int, rank: int, matrix: np.ndarray) -> Term:
    """Adjoint of y = matrix[out, in] x along an axis."""
    perm = [i for i in range(rank) if i != axis] + [axis]
    product = term.transpose(perm).op("MatMul", term.maker.constant(matrix, term.dtype))
    return product.transpose([int(i) for i in np.argsort(perm)])


def _pad(s: Site) -> Gradients:
    shape, mode = s.x.shape, s.attribute("mode", "constant")
    amounts = graph.array(s[1].value).reshape(-1).tolist()
    axes = graph.array(s[3].value).reshape(-1).tolist() if s.has(3) else range(len(shape))
    pads = {a % len(shape): pair for a, pair in zip(axes, zip(amounts, amounts[len(amounts) // 2 :]))}
    both = [pads.get(i, (0, 0)) for i in range(len(shape))]
    if mode != "constant":
        return (gathered_back(s.dy, shape, [padded_indices(n, *b, mode) for n, b in zip(shape, both)]),)
    dx = s.dy.pad([-b for b, _ in both], [-e for _, e in both])
    if not s.has(2):
        return dx, None
    every = range(len(shape))
    inside = dx.pad([min(b, 0) for b, _ in both], [min(e, 0) for _, e in both])
    fill = s.dy.sum(every, keepdims=False) - inside.sum(every, keepdims=False)
    return dx, None, fill.reshape(s[2].shape)


def _depth_to_space(s: Site) -> Gradients:
    n, c, h, w = s.x.shape
    size = s.attribute("blocksize", 1)
    dcr = s.attribute("mode", "DCR") == "DCR"
    apart = s.dy.reshape((n, c // size**2, h, size, w, size))
    return (apart.transpose((0, 3, 5, 1, 2, 4) if dcr else (0, 1, 3, 5, 2, 4)).reshape((n, c, h, w)),)


def _space_to_depth(s: Site) -> Gradients:
    return (s.dy.op("DepthToSpace", blocksize=s.attribute("blocksize", 1), mode="DCR"),)


def _trilu(s: Site) -> Gradients:
    return (s.dy.op("Trilu", s[1] if s.has(1) else None, upper=s.attribute("upper", 1)),)


def _reverse_sequence(s: Site) -> Gradients:
    batch, time = s.attribute("batch_axis", 1), s.attribute("time_axis", 0)
    return (s.dy.op("ReverseSequence", s[1], batch_axis=batch, time_axis=time),)


def _cum_sum(s: Site) -> Gradients:
    turned = 1 - s.attribute("reverse", 0)
    return (s.dy.op("CumSum", s[1], exclusive=s.attribute("exclusive", 0), reverse=turned),)


def _outputs_of(node: ir.Node) -> str | None:
    return None if all(v.name for v in node.outputs) else "an output has no name, expected all of them"


ROWS = (
    Rule(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    Rule(("Transpose",), _transpose),
    Rule(("Expand",), _expand),
    Rule(("Tile",), _tile),
    Rule(("Concat",), _concat),
    Rule(("Split",), _split, outputs=2**31, rejection=_outputs_of),
    Rule(("Slice",), _slice, rejection=constants_required(1, 2, 3, 4)),
    Rule(("Pad",), _pad, rejection=constants_required(1, 3), settings=(2,)),
    Rule(("DepthToSpace",), _depth_to_space),
    Rule(("SpaceToDepth",), _space_to_depth),
    Rule(("Trilu",), _trilu),
    Rule(("ReverseSequence",), _reverse_sequence),
    Rule(("CumSum",), _cum_sum),
)
