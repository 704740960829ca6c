"""Attention as one operator."""

from app.engine.registry import Operator

OPERATORS = (Operator("Attention", "attention", 6),)
