"""Rows of values of unknown size that lie in values of static shape, and of what is taken off these.

See `app.engine.rewrites.bounded`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operands, kernel_call
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.backends.cpu.selection import CALL_SECONDS, SUPPRESSED, kept_floats
from app.engine.backends.cpu.strided import element_type
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, HostCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import split
from app.engine.operators.operands import MOVABLE, data, itemsize
from app.engine.rewrites.bounded.prefix import COMPRESS, DOMAIN, PREFIX, SUPPRESS

_MODULE = "app.kernels.cpu.selection"


def prepare_prefix(node: ir.Node) -> Callable[[Sequence[object | None]], list[object]]:
    """The first elements of an array along an axis, as a view."""
    before = (slice(None),) * graph.attribute(node, "axis", 0)

    def run(values: Sequence[object | None]) -> list[object]:
        whole, count = values
        return [np.asarray(whole)[(*before, slice(np.asarray(count).item()))]]

    return run


def _prefix_rejection(group: Group, _context: PlanningContext) -> str | None:
    if len(group.nodes) > 1:
        return f"{group.op} takes no epilogue, the group has {len(group.nodes)} nodes"
    dynamic = next((v for v in group.inputs if graph.is_dynamic(v)), None)
    return None if dynamic is None else f"value {dynamic.name!r} has the dynamic shape {dynamic.shape}"


def _prefix_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    return (HostCall(f"{__name__}:prepare_prefix", node, tuple(node.inputs), tuple(node.outputs)),)


def _prefix_cost(group: Group, context: PlanningContext) -> float:
    nbytes = 2.0 * graph.nbytes(data(group.anchor))
    return CALL_SECONDS + roofline(context.target, flops=0.0, nbytes=nbytes, threads=1)


@after(single_rejection)
def _compress_rejection(group: Group, _context: PlanningContext) -> str | None:
    size = itemsize(data(group.anchor))
    return None if size in MOVABLE else f"elements of {size} byte"


def _compress_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, condition, y = data(node), graph.operand(node, 1), node.outputs[0]
    sizes = split(graph.static_shape(x), graph.attribute(node, "axis", 0))
    address = element_type(itemsize(x))
    operands: Operands = (address, x), ("uint8*", condition), (address, y), *sizes
    return (kernel_call(f"{_MODULE}:bounded_compress", operands, sizes[0]),)


def _compress_cost(group: Group, context: PlanningContext) -> float:
    flags = 1e-9 * graph.elements(graph.operand(group.anchor, 1))
    nbytes = 2.0 * graph.nbytes(data(group.anchor))
    return flags + roofline(context.target, flops=0.0, nbytes=nbytes, threads=context.threads)


def _suppress_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    given = [graph.input_at(node, i) for i in range(6)]
    batch, classes, n = graph.static_shape(graph.operand(node, 1))
    cap = graph.static_shape(node.outputs[0])[0] // (batch * classes)
    zero = Constant(np.zeros(1, np.float32))
    scratch = Workspace(8 * (n + 1)), Workspace(4 * kept_floats(cap))
    arguments = (*(zero if v is None else v for v in given), *node.outputs, *scratch)
    typed = tuple((f"{kind}*", argument) for kind, argument in zip(SUPPRESSED, arguments, strict=True))
    center = graph.attribute(node, "center_point_box", 0)
    numbers = batch, classes, n, cap, int(given[4] is not None), center
    return (kernel_call(f"{_MODULE}:suppress", (*typed, *numbers), 1),)


def _suppress_cost(group: Group, _context: PlanningContext) -> float:
    scores, chosen = graph.operand(group.anchor, 1), group.anchor.outputs[0]
    return 20e-9 * graph.elements(scores) + 50e-9 * graph.elements(chosen)


IMPLEMENTATIONS = (
    Implementation(
        "prefix.host", PREFIX, "numba-cpu", _prefix_rejection, _prefix_lower, _prefix_cost, domain=DOMAIN
    ),
    Implementation(
        "compress.bounded", COMPRESS, "numba-cpu", _compress_rejection, _compress_lower, _compress_cost,
        domain=DOMAIN,
    ),
    Implementation(
        "non_max_suppression.bounded", SUPPRESS, "numba-cpu", single_rejection, _suppress_lower,
        _suppress_cost, domain=DOMAIN,
    ),
)  # fmt: skip
