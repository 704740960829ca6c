"""Gradients of classification losses by scores or log probabilities [n, classes, ...]."""

import numpy as np
import onnx_ir as ir

from app.engine.gradient.rule import Gradients, Rule, Site
from app.engine.gradient.terms import Term


def _likelihood(s: Site, dloss: Term) -> Term:
    """Gradient by the log probabilities: minus the weight of each sample, at its class."""
    shape, targets = s.x.shape, s[1].cast(ir.DataType.INT64)
    ignored: int | None = s.attribute("ignore_index", None)
    own = None if ignored is None else targets.equals(ignored)
    safe = targets if own is None else own.where(0, targets)
    weight = s[2].op("Gather", safe) if s.has(2) else None
    if own is not None:
        given = s.maker.constant(1, s.x.dtype) if weight is None else weight
        weight = own.where(0.0, given)
    reduction = s.attribute("reduction", "mean")
    part = dloss if weight is None else weight * dloss
    if reduction == "mean":
        many = s[1].shape
        total: Term | float = float(np.prod(many))
        if weight is not None:
            total = weight.sum(range(len(many)), keepdims=False)
        part = part / total
    if weight is not None or reduction == "none":
        part = part.reshape((shape[0], 1, *shape[2:]))
    classes = np.arange(shape[1]).reshape(-1, *(1,) * (len(shape) - 2))
    hits = safe.reshape((shape[0], 1, *shape[2:])).equals(s.maker.constant(classes, ir.DataType.INT64))
    return hits.where(-part, 0.0)


def _negative_log_likelihood(s: Site) -> Gradients:
    return (_likelihood(s, s.dy),)


def _softmax_cross_entropy(s: Site) -> Gradients:
    """Through log softmax, whose values may be an output that is read too."""
    parts = [] if s.gradients[0] is None else [_likelihood(s, s.gradients[0])]
    logs = s.node.outputs[1] if len(s.node.outputs) > 1 and s.node.outputs[1].name else None
    if len(s.gradients) > 1 and s.gradients[1] is not None:
        parts.append(s.gradients[1])
    g = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    log = s.x.op("LogSoftmax", axis=1) if logs is None else Term(s.maker, logs)
    return (g - log.op("Exp") * g.sum((1,)),)


ROWS = (
    Rule(("NegativeLogLikelihoodLoss",), _negative_log_likelihood, settings=(2,)),
    Rule(("SoftmaxCrossEntropyLoss",), _softmax_cross_entropy, outputs=2, settings=(2,)),
)
