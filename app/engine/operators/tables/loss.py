"""Losses, and what else is rare in inference."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("NegativeLogLikelihoodLoss", "loss"),
    Operator("SoftmaxCrossEntropyLoss", "loss"),
    Operator("Det", "linear algebra"),
)
