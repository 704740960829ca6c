"""Gradients of reductions."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from app.engine.gradient.rule import Gradients, Rule, Site, constants_required
from app.engine.gradient.terms import Term
from app.engine.operators.axes import static_reduced_axes


@dataclass(frozen=True, slots=True)
class _Reduced:
    """A reduction: operand, result and gradient, the latter two with the reduced axes as extent 1."""

    x: Term
    y: Term
    dy: Term
    axes: tuple[int, ...]
    count: int


def _reduction(f: Callable[[_Reduced], Term]) -> Callable[[Site], Gradients]:
    def product(s: Site) -> Gradients:
        axes, shape = static_reduced_axes(s.group), s.x.shape
        kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
        y, dy = (t if s.dy_shape == kept else t.reshape(kept) for t in (s.y, s.dy))
        found = f(_Reduced(s.x, y, dy, axes, math.prod(shape[i] for i in axes)))
        return (found.expand(shape),) if f in _CONSTANT else (found,)

    return product


def _sum(r: _Reduced) -> Term:
    return r.dy


def _mean(r: _Reduced) -> Term:
    return r.dy / r.count


_CONSTANT = (_sum, _mean)  # the same for all elements that are reduced


def _ties(r: _Reduced) -> Term:
    hits = r.x.equals(r.y).cast(r.x.dtype)
    return hits * (r.dy / hits.sum(r.axes))


def _product(r: _Reduced) -> Term:
    """The product of the other elements: zeros are told apart from the rest."""
    zero = r.x.equals(0.0)
    safe = zero.where(1.0, r.x)
    rest = safe.op("ReduceProd", r.x.maker.integers(r.axes), keepdims=1) if r.axes else safe
    zeros = zero.cast(r.x.dtype).sum(r.axes)
    others = zeros - zero.cast(r.x.dtype)
    return others.equals(0.0).where(rest / safe, 0.0) * r.dy


def _norm(r: _Reduced) -> Term:
    """Direction x / |x|; zero for the zero vector."""
    return r.x * (r.dy / r.y.equals(0.0).where(1.0, r.y))


_ROWS: dict[str, Callable[[_Reduced], Term]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "GlobalAveragePool": _mean,
    "ReduceMax": _ties,
    "ReduceMin": _ties,
    "GlobalMaxPool": _ties,
    "ReduceProd": _product,
    "ReduceL1": lambda r: r.x.op("Sign") * r.dy,
    "ReduceL2": _norm,
    "ReduceSumSquare": lambda r: r.x * 2 * r.dy,
    "ReduceLogSum": lambda r: (r.dy / r.y.op("Exp")).expand(r.x.shape),
    "ReduceLogSumExp": lambda r: (r.x - r.y).op("Exp") * r.dy,
}


ROWS = tuple(Rule((op,), _reduction(f), rejection=constants_required(1)) for op, f in _ROWS.items())
