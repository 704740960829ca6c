"""Attention in one kernel: the operator, with key-value cache, or the chain of nodes that spells it."""

import math
from collections.abc import Callable

import onnx_ir as ir

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import (
    BACKEND,
    blocks_of,
    calls,
    moved_by,
    moved_bytes,
    numbered,
    seconds,
)
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Argument, Call
from app.engine.core.group import ATTENTION, Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators import attention, attention_pattern
from app.engine.operators.attention import K, V
from app.engine.operators.attention_pattern import Core, Operand
from app.kernels.cuda.attention import attention as flash
from app.kernels.cuda.attention_decode import attention_decode, decode_rejection
from app.kernels.cuda.attention_problem import Attention, Heads, Mask
from app.kernels.cuda.geometry import LIMIT
from app.kernels.cuda.kernel import Launches

WIDEST = 256  # elements of a head that fit the registers of its threads


def _core(group: Group) -> Core:
    return attention.prepared(group)[0]


@of_group
def _before(group: Group) -> tuple[Call, ...]:
    """The calls that put new keys and values behind old ones."""
    return tuple(
        call
        for joined in attention.prepared(group)[1]
        for copy, x, y in reversed(joined)
        for call in calls(moved_by(copy, element(x)), numbered([x], [y]))
    )


def _node_rejection(group: Group) -> str | None:
    """Rejection of the operator; None if kernels compute it."""
    node = group.anchor
    reason = tensor_views.group_rejection(group)
    if reason is not None:
        return reason
    if node.outputs[0] not in group.outputs:
        return "the result is not read"
    if attention.scores_of(group) is not None:
        return "scores are an output, here they stay in registers"
    if attention.has_window(group):
        return "queries see a window of keys"
    if graph.attribute(node, "softmax_precision", 1) == ir.DataType.DOUBLE.value:
        return "softmax in double precision"
    if attention.lengths_of(group) is not None and graph.attribute(node, "is_causal", 0):
        return "queries of sequences of several lengths see what is before them"
    given = [graph.input_at(node, i) for i in (K, V, attention.PAST_K, attention.PAST_V)]
    return tensor_views.not_floats(group, node.inputs[0], *given, *group.outputs)


def _value(operand: Operand) -> ir.Value:
    assert isinstance(operand.value, ir.Value)
    return operand.value


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    if attention.is_node(group):
        reason = _node_rejection(group)
    else:
        found = attention_pattern.read(group)
        if isinstance(found, str):
            return found
        reason = tensor_views.not_floats(group, *(_value(o) for o in (found.q, found.k, found.v, found.y)))
    if reason is not None:
        return reason
    core = _core(group)
    if core.clears_nan:
        return "a row whose weights are NaN is zero, here it is NaN"
    for name, operand in (("queries", core.q), ("keys", core.k), ("values", core.v), ("the result", core.y)):
        if operand.shape[3] > 1 and operand.strides[3] != 1:
            return f"rows of {name} are {operand.strides[3]} elements apart"
        if operand.shape[3] > WIDEST:
            return f"heads of {operand.shape[3]} elements, at most {WIDEST} are supported"
        if math.prod(operand.shape) >= LIMIT or 0 in operand.shape:
            return f"{name} are empty, or too large for indices"
    if core.mask is not None:
        mask = _value(core.mask)
        return tensor_views.untyped(mask, ("bool", element(_value(core.q)), "float32"))
    return None


def _heads(operand: Operand) -> Heads:
    batch, head, row, _ = operand.strides
    return Heads(batch, head, row, operand.start)


@of_group
def _attention(group: Group) -> Attention:
    core = _core(group)
    batch, heads, rows, depth = core.q.shape
    mask = None
    if core.mask is not None:
        a, b, c, d = core.mask.strides
        mask = Mask(element(_value(core.mask)), (a, b, c, d), core.mask.shape[3], core.mask.start)
    return Attention(
        batch,
        heads,
        core.k.shape[1],
        rows,
        core.k.shape[2],
        depth,
        core.v.shape[3],
        element(_value(core.q)),
        _heads(core.q),
        _heads(core.k),
        _heads(core.v),
        _heads(core.y),
        core.scale,
        mask,
        core.causal,
        core.past,
        core.zero,
        attention.softcap_of(group),
        attention.lengths_of(group) is not None,
    )


@of_group
def _flash(group: Group, _processors: int) -> Launches:
    return flash(_attention(group))


@of_group
def _decode(group: Group, processors: int) -> Launches:
    return attention_decode(_attention(group), processors)


def _decode_rejection(group: Group, context: PlanningContext) -> str | None:
    return _rejection(group, context) or decode_rejection(_attention(group))


def _calls(group: Group, launches: Launches) -> tuple[Call, ...]:
    core, lengths = _core(group), attention.lengths_of(group)
    roles: dict[str, Argument] = {"q": core.q.value, "k": core.k.value, "v": core.v.value, "y": core.y.value}
    if core.mask is not None:
        roles["mask"] = core.mask.value
    if lengths is not None:
        roles["lengths"] = lengths
    return (*_before(group), *calls(launches, roles))


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Queries that lie as the result does: a block reads its own before it writes, keys and values never."""
    core = _core(group)
    q, y = _value(core.q), _value(core.y)
    others = [o.value for o in (core.k, core.v, core.mask) if o is not None]
    alike = core.q.shape == core.y.shape and core.q.start == core.y.start
    if (
        not (alike and tensor_views.lie_alike(core.q.shape, core.q.strides, core.y.strides))
        or q in others
        or graph.is_constant(q)
        or graph.nbytes(q) != graph.nbytes(y)
    ):
        return ()
    return ((q, y),)


Made = Callable[[Group, int], Launches]


def _row(
    name: str,
    rejection: Callable[[Group, PlanningContext], str | None],
    made: Made,
    rates: tuple[float, float],
) -> Implementation:
    """A row whose kernel reaches `rates` of the peak for float32 and for 16 bits."""

    def seconds_of(group: Group, context: PlanningContext) -> float:
        launches = made(group, context.target.cores)
        rate = rates[element(_value(_core(group).q)) != "float32"]
        blocks = blocks_of(launches)
        time = seconds(
            context,
            nbytes=moved_bytes(group),
            flops=attention.products(_core(group)),
            rate=rate,
            blocks=blocks,
        )
        count = len(launches.steps) + len(_before(group))
        return time + (count - 1) * context.target.launch

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        return _calls(group, made(group, context.target.cores))

    return Implementation(name, ATTENTION, BACKEND, rejection, lower, seconds_of, _inplace)


IMPLEMENTATIONS = (
    _row("cuda.attention", _rejection, _flash, (0.25, 3.0)),
    _row("cuda.attention_decode", _decode_rejection, _decode, (0.5, 0.5)),
)
