"""Ensembles of trees, whose attributes are checked before anything is made of them."""

from app.engine.core.registry import Operator
from app.engine.operators import forest

OPERATORS = tuple(Operator(op, domain=forest.DOMAIN, check=forest.check) for op in forest.OPERATORS)
