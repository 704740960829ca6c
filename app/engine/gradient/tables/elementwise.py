"""Gradients of elementwise operators: derivatives as arithmetic, then the adjoint of broadcasting.

At corners (0 of Relu, ties of Max) the gradient is one of the sub-gradients: that of the constant side, or
equal shares among ties.
"""

import math
from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient import dropout
from app.engine.gradient.rule import Gradients, Rule, Site
from app.engine.gradient.terms import FLOATS, Term

Derivative: TypeAlias = Callable[[Site], Term]  # dy/dx for one operand
Parts: TypeAlias = Callable[[Site], tuple[Term | None, ...]]  # gradients in the shape of the output


def _unary(derivative: Derivative) -> Callable[[Site], Gradients]:
    return lambda s: (s.dy * derivative(s),)


def _broadcast(parts: Parts) -> Callable[[Site], Gradients]:
    """Gradients in the shape of the output, reduced to those of the operands."""

    def product(site: Site) -> Gradients:
        own = site.dy_shape
        return tuple(
            None if part is None else part.reduced_to(site[i].shape, own)
            for i, part in enumerate(parts(site))
        )

    return product


def _gelu(s: Site) -> Term:
    x = s.x
    if s.attribute("approximate", "none") == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        t = inner.op("Tanh")
        slope = (x * x * (3 * 0.044715) + 1) * math.sqrt(2 / math.pi)
        return (t + 1) * 0.5 + x * 0.5 * (1 - t * t) * slope
    return ((x * math.sqrt(0.5)).op("Erf") + 1) * 0.5 + x * (x * x * -0.5).op("Exp") / math.sqrt(2 * math.pi)


def _swish(s: Site) -> Term:
    alpha = s.attribute("alpha", 1.0)
    gate = (s.x * alpha).op("Sigmoid")
    return gate + s.y * alpha * (1 - gate)


def _mish(s: Site) -> Term:
    t = s.x.op("Softplus").op("Tanh")
    return t + s.x * (1 - t * t) * s.x.op("Sigmoid")


def _celu(s: Site) -> Term:
    return (s.x > 0).where(1.0, (s.x / s.attribute("alpha", 1.0)).op("Exp"))


def _selu(s: Site) -> Term:
    scale = s.attribute("gamma", 1.05070102214813232421875)
    alpha = s.attribute("alpha", 1.67326319217681884765625)
    return (s.x > 0).where(s.x.like(scale), s.y + scale * alpha)


def _hard_sigmoid(s: Site) -> Term:
    return ((s.y > 0) & (s.y < 1)).cast(s.x.dtype) * s.attribute("alpha", 0.2)


def _hard_swish(s: Site) -> Term:
    inner = (s.x > -3).where((s.x * 2 + 3) / 6, 0.0)
    return (s.x < 3).where(inner, 1.0)


def _elu(s: Site) -> Term:
    return (s.x > 0).where(s.x.like(1.0), s.y + s.attribute("alpha", 1.0))


def _shrink(s: Site) -> Term:
    size = s.attribute("lambd", 0.5)
    return s.x.op("Abs").__gt__(size).cast(s.x.dtype)


_UNARY: dict[str, Derivative] = {
    "Abs": lambda s: s.x.op("Sign"),
    "Exp": lambda s: s.y,
    "Log": lambda s: 1 / s.x,
    "Sqrt": lambda s: 0.5 / s.y,
    "Reciprocal": lambda s: -(s.y * s.y),
    "Sin": lambda s: s.x.op("Cos"),
    "Cos": lambda s: -s.x.op("Sin"),
    "Tan": lambda s: s.y * s.y + 1,
    "Asin": lambda s: 1 / (1 - s.x * s.x).op("Sqrt"),
    "Acos": lambda s: -(1 / (1 - s.x * s.x).op("Sqrt")),
    "Atan": lambda s: 1 / (s.x * s.x + 1),
    "Sinh": lambda s: s.x.op("Cosh"),
    "Cosh": lambda s: s.x.op("Sinh"),
    "Tanh": lambda s: 1 - s.y * s.y,
    "Asinh": lambda s: 1 / (s.x * s.x + 1).op("Sqrt"),
    "Acosh": lambda s: 1 / (s.x * s.x - 1).op("Sqrt"),
    "Atanh": lambda s: 1 / (1 - s.x * s.x),
    "Sigmoid": lambda s: s.y * (1 - s.y),
    "LeakyRelu": lambda s: (s.x > 0).where(1.0, s.x.like(s.attribute("alpha", 0.01))),
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Softplus": lambda s: s.x.op("Sigmoid"),
    "Softsign": lambda s: 1 / ((s.x.op("Abs") + 1) * (s.x.op("Abs") + 1)),
    "Mish": _mish,
    "Gelu": _gelu,
    "Swish": _swish,
    "Erf": lambda s: (-(s.x * s.x)).op("Exp") * (2 / math.sqrt(math.pi)),
    "Shrink": _shrink,
}


def _kept_where(condition: Callable[[Site], Term]) -> Callable[[Site], Gradients]:
    """The gradient where a condition holds, else zero: Where, so that nothing multiplies infinity."""
    return lambda s: (condition(s).where(s.dy, 0.0),)


def _pow(s: Site) -> tuple[Term | None, ...]:
    x, exponent, number = s.x, s[1].cast(s.x.dtype), graph.number(s[1].value)
    if number in (0.0, 2.0):  # without a power that is infinite or slow
        return s.dy * (x * number), None
    dx = s.dy * exponent * x.op("Pow", exponent - 1)
    if s[1].dtype not in FLOATS:
        return dx, None
    # 0 to a power is 0 next to it too; a negative base has no derivative by the exponent.
    log = (x > 0).where((x > 0).where(x, 1.0).op("Log"), 0.0)
    return dx, (s.dy * s.y * log).cast(s[1].dtype)


def _mod(s: Site) -> tuple[Term | None, ...]:
    quotient = (s.x - s.y) / s[1]
    return s.dy, -(s.dy * quotient)


def _prelu(s: Site) -> tuple[Term | None, ...]:
    return (s.x > 0).where(s.dy, s.dy * s[1]), (s.x > 0).where(0.0, s.dy * s.x)


def _where(s: Site) -> tuple[Term | None, ...]:
    return None, s.x.where(s.dy, 0.0), s.x.where(0.0, s.dy)


def _extremum(s: Site) -> tuple[Term | None, ...]:
    """Equal shares for the operands that reach the maximum or minimum."""
    count = len(s.node.inputs)
    if count == 1:
        return (s.dy,)
    hits = [s[i].equals(s.y).cast(s.dy.dtype) for i in range(count)]
    share = s.dy / reduce(Term.__add__, hits)
    return tuple(hit * share for hit in hits)


def _sum(s: Site) -> tuple[Term | None, ...]:
    return (s.dy,) * len(s.node.inputs)


def _mean(s: Site) -> tuple[Term | None, ...]:
    return (s.dy / len(s.node.inputs),) * len(s.node.inputs)


def _clip(s: Site) -> Gradients:
    """Zero outside the bounds, which then take the gradient; a maximum below the minimum wins."""
    dy, x = s.dy, s.x
    low = s[1] if s.has(1) else None
    high = s[2] if s.has(2) else None
    raised = x if low is None else x.op("Max", low)
    inside = dy if high is None else (raised > high).where(0.0, dy)
    dx = inside if low is None else (x < low).where(0.0, inside)
    every = range(len(s.dy_shape))
    dlow = None if low is None else (x < low).where(inside, 0.0).sum(every, keepdims=False)
    dhigh = None if high is None else (raised > high).where(dy, 0.0).sum(every, keepdims=False)
    return (
        dx,
        None if dlow is None or low is None else dlow.reshape(low.shape),
        None if dhigh is None or high is None else dhigh.reshape(high.shape),
    )


def _cast(s: Site) -> Gradients:
    return (s.dy.cast(s.x.dtype) if s.x.dtype in FLOATS else None,)


def _dropout_rejection(node: ir.Node) -> str | None:
    if not dropout.is_random(node):
        return None
    return "its ratio is not a number below 1 that is known before a run, so that its mask is no input"


ROWS = (
    *(Rule((op,), _unary(derivative)) for op, derivative in _UNARY.items()),
    Rule(("Neg",), lambda s: (-s.dy,)),
    Rule(("Relu",), _kept_where(lambda s: s.y > 0)),
    Rule(("ThresholdedRelu",), _kept_where(lambda s: s.x > s.attribute("alpha", 1.0))),
    Rule(("Identity",), lambda s: (s.dy,)),
    Rule(("Dropout",), lambda s: (s.dy,), rejection=_dropout_rejection, settings=(1,)),
    Rule(("Cast", "CastLike"), _cast),
    Rule(("Clip",), _clip, settings=(1, 2)),
    Rule(("Add",), _broadcast(lambda s: (s.dy, s.dy))),
    Rule(("Sub",), _broadcast(lambda s: (s.dy, -s.dy))),
    Rule(("Mul",), _broadcast(lambda s: (s.dy * s[1], s.dy * s.x))),
    Rule(("Div",), _broadcast(lambda s: (s.dy / s[1], -(s.dy * s.y / s[1])))),
    Rule(("Pow",), _broadcast(_pow), settings=(1,)),
    Rule(("Mod",), _broadcast(_mod)),
    Rule(("PRelu",), _broadcast(_prelu)),
    Rule(("Where",), _broadcast(_where)),
    Rule(("Max", "Min"), _broadcast(_extremum)),
    Rule(("Sum",), _broadcast(_sum)),
    Rule(("Mean",), _broadcast(_mean)),
)
