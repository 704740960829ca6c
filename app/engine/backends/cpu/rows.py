"""Parts that rows of all kernel families share: chains of rejections, bytes moved, predicted seconds."""

from collections.abc import Callable
from functools import wraps

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext, Rejection
from app.engine.cost.roofline import roofline
from app.engine.operators.operands import group_rejection


def after(first: Rejection) -> Callable[[Rejection], Rejection]:
    """A decorator: the decorated rejection is asked only where the first one has no reason."""

    def decorator(second: Rejection) -> Rejection:
        @wraps(second)
        def rejection(group: Group, context: PlanningContext) -> str | None:
            reason = first(group, context)
            return second(group, context) if reason is None else reason

        return rejection

    return decorator


def single_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection of groups that are not one node on static tensors."""
    return group_rejection(group)


def total_bytes(group: Group) -> int:
    """Bytes that the group reads and writes, each value once."""
    return sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))


def group_roofline(
    group: Group, context: PlanningContext, flops: float, efficiency: float, nbytes: float | None = None
) -> float:
    """Seconds on the threads of the job, see `roofline`; without `nbytes` all values are moved once."""
    return roofline(
        context.target,
        flops=flops,
        nbytes=total_bytes(group) if nbytes is None else nbytes,
        efficiency=efficiency,
        threads=context.threads,
    )
