"""Gradients of matrix products and contractions."""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient.rule import Gradients, Rule, Site
from app.engine.gradient.terms import Term


def _matrix(term: Term, shape: tuple[int, ...], axis: int) -> tuple[Term, tuple[int, ...]]:
    """A vector as a matrix with one row (axis 0) or one column (axis 1); others as they are."""
    if len(shape) > 1:
        return term, shape
    shape = (1, *shape) if axis == 0 else (*shape, 1)
    return term.reshape(shape), shape


def _swapped(term: Term, rank: int) -> Term:
    return term.transpose((*range(rank - 2), rank - 1, rank - 2))


def _matmul(s: Site) -> Gradients:
    """Products dy b^T and a^T dy, summed over batches that an operand was repeated along."""
    (a, left), (b, right) = _matrix(s.x, s.x.shape, 0), _matrix(s[1], s[1].shape, 1)
    rank = max(len(left), len(right))
    batch = s.dy_shape[: rank - 2]
    dy = s.dy
    if len(s.x.shape) == 1 or len(s[1].shape) == 1:
        dy = dy.reshape((*batch, left[-2], right[-1]))
    da = _repeated(dy.op("MatMul", _swapped(b, len(right))), (*batch, *left[-2:]), left)
    if len(right) == 2 and len(left) > 2:
        # One product of tall matrices in place of one a batch that is then summed.
        rows = a.reshape((-1, left[-1])), dy.reshape((-1, right[-1]))
        db = rows[0].op("Gemm", rows[1], transA=1)
    else:
        db = _repeated(_swapped(a, len(left)).op("MatMul", dy), (*batch, *right[-2:]), right)
    return da.reshape(s.x.shape) if left != s.x.shape else da, (
        db.reshape(s[1].shape) if right != s[1].shape else db
    )


def _repeated(term: Term, own: tuple[int, ...], shape: tuple[int, ...]) -> Term:
    return term.reduced_to(shape, own)


def _gemm(s: Site) -> Gradients:
    """Gradients of alpha op(a) op(b) + beta c."""
    alpha, beta = s.attribute("alpha", 1.0), s.attribute("beta", 1.0)
    left, right = s.attribute("transA", 0), s.attribute("transB", 0)
    a, b, dy = s.x, s[1], s.dy

    def gemm(first: Term, second: Term, first_turned: int, second_turned: int) -> Term:
        return first.op("Gemm", second, alpha=float(alpha), transA=first_turned, transB=second_turned)

    da = gemm(b, dy, right, 1) if left else gemm(dy, b, 0, 1 - right)
    db = gemm(dy, a, 1, left) if right else gemm(a, dy, 1 - left, 0)
    if not s.has(2):
        return da, db
    dc = dy.reduced_to(s[2].shape, s.dy_shape)
    return da, db, dc if beta == 1.0 else dc * float(beta)


def _equation(node: ir.Node) -> tuple[list[str], str]:
    """Labels of the operands and of the result."""
    text = str(graph.attribute(node, "equation", "")).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = sorted(set(left) - {","})
        right = "".join(c for c in letters if left.count(c) == 1)
    return terms, right


def _einsum_rejection(node: ir.Node) -> str | None:
    terms, _ = _equation(node)
    if any("." in t for t in terms):
        return "the equation has an ellipsis, expected a letter for every axis"
    if any(len(set(t)) < len(t) for t in terms):
        return "the equation takes a diagonal, expected each letter once in an operand"
    sizes: dict[str, set[int]] = {}
    for labels, value in zip(terms, node.inputs):
        for label, n in zip(labels, () if value is None else graph.static_shape(value)):
            sizes.setdefault(label, set()).add(n)
    if any(len(s) > 1 for s in sizes.values()):
        return "an axis is repeated to fit another, expected equal extents"
    return None


def _einsum(s: Site) -> Gradients:
    """For each operand the contraction of the gradient with all others; lost labels are repeated."""
    terms, result = _equation(s.node)
    found = []
    for i, labels in enumerate(terms):
        others = [(t, s[j]) for j, t in enumerate(terms) if j != i]
        there = set(result).union(*(set(t) for t, _ in others))
        kept = "".join(c for c in labels if c in there)
        equation = ",".join([result, *(t for t, _ in others)]) + "->" + kept
        term = s.dy.op("Einsum", *(o for _, o in others), equation=equation)
        if kept != labels:
            shape = s[i].shape
            term = term.reshape([n if c in kept else 1 for c, n in zip(labels, shape)]).expand(shape)
        found.append(term)
    return found


ROWS = (
    Rule(("MatMul",), _matmul),
    Rule(("Gemm",), _gemm),
    Rule(("Einsum",), _einsum, rejection=_einsum_rejection),
)
