"""Attention as one operator."""

from app.engine.core.registry import Operator

OPERATORS = (Operator("Attention", "attention", 6),)
