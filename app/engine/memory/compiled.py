"""Compiled methods of planning, loaded before a plan needs them; those that the cache lacks are compiled."""

from app.engine.memory import portfolio
from app.engine.memory.beam_order import Step
from app.engine.memory.rows.geometry import Read, RowOperator, RowValue, Segment
from app.engine.memory.rows.schedule import Demand


def load() -> None:
    """Load all of them, those first that most plans need."""
    _load_orders()
    _load_rows()
    portfolio.load_compiled()


def _load_orders() -> None:
    from app.engine.memory.optimal_order import least_order  # imports numba

    needs = ((), (0,), (0,), (1, 2))
    touches = ((0,), (0, 1), (0, 2), (1, 2, 3))
    least_order([Step(n, t) for n, t in zip(needs, touches, strict=True)], [1, 2, 3, 4])


def _load_rows() -> None:
    values = tuple(RowValue(name, 4, 8) for name in "xyz")
    operators = (RowOperator("a", (Read("x"),), ("y",)), RowOperator("b", (Read("y"),), ("z",)))
    demand = Demand(Segment(values, operators, ("x",), ("z",)))
    demand.most_in_rings()
    demand.most_in_rows()
