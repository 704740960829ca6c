"""Operators of MXNet that no operators of ONNX express: planned, with predicted times, and run by nothing.

Their storage types, layouts and buffers are those of any node. The backend joins the target where a model has
such nodes (`app.engine.planning.session.canonical`).
"""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import Backend, Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.movement import no_calls
from app.engine.types.backend_names import UNEXECUTED
from app.engine.types.storage import MXNET


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    others = [node.op_type for node in group.nodes if node.domain != MXNET]
    return f"it only stands for operators of MXNet, {others[0]} is none" if others else None


def _cost(group: Group, context: PlanningContext) -> float:
    """Seconds in which the operands and results are moved once: a lower bound."""
    moved = sum(_nbytes(v) for v in (*group.inputs, *group.outputs))
    return roofline(context.target, flops=0.0, nbytes=moved, threads=context.threads)


def _nbytes(value: ir.Value) -> float:
    return 0.0 if graph.is_dynamic(value) else float(graph.nbytes(value))


BACKENDS = (Backend(UNEXECUTED, devices=("cpu", "cuda", "model"), runs_here=False),)
IMPLEMENTATIONS = (Implementation(UNEXECUTED, "*", UNEXECUTED, _rejection, no_calls, _cost, domain=MXNET),)
