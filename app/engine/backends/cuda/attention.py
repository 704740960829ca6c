"""Attention in one kernel: the operator, with key-value cache, or the chain of nodes that spells it."""

import math
from collections.abc import Callable

import onnx_ir as ir

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import (
    BACKEND,
    blocks_of,
    calls,
    moved_bytes,
    numbered,
    seconds,
)
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, LaunchCall, Workspace
from app.engine.core.group import ATTENTION, Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators import attention_pattern
from app.engine.operators.attention_pattern import (
    LENGTHS,
    MASK,
    PAST_K,
    PAST_V,
    PRESENT_K,
    PRESENT_V,
    SCORES,
    Core,
    K,
    Operand,
    V,
    heads,
    mask_of,
    spread,
)
from app.kernels.cuda.attention import attention as flash
from app.kernels.cuda.attention_decode import attention_decode, decode_rejection
from app.kernels.cuda.attention_problem import Attention, Heads, Mask
from app.kernels.cuda.geometry import LIMIT, NBYTES, Strided
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.transpose import moved

WIDEST = 256  # elements of a head that fit the registers of its threads


def _is_node(group: Group) -> bool:
    return group.anchor.op_type == ATTENTION


@of_group
def _prepared(group: Group) -> tuple[tuple[LaunchCall, ...], Core]:
    """The attention, and the calls that put new keys and values behind old ones."""
    if _is_node(group):
        return _of_node(group)
    core = attention_pattern.read(group)
    assert not isinstance(core, str)
    return (), core


def _core(group: Group) -> Core:
    return _prepared(group)[1]


def _of_node(group: Group) -> tuple[tuple[LaunchCall, ...], Core]:
    node = group.anchor
    q = heads(graph.operand(node, 0), node, "q_num_heads")
    past = graph.input_at(node, PAST_K)
    before_k, k = _cached(group, graph.operand(node, K), past, PRESENT_K)
    before_v, v = _cached(group, graph.operand(node, V), graph.input_at(node, PAST_V), PRESENT_V)
    core = Core(
        q,
        k,
        v,
        heads(node.outputs[0], node, "q_num_heads"),
        mask_of(graph.input_at(node, MASK)),
        graph.attribute(node, "scale", 1.0 / math.sqrt(max(q.shape[3], 1))),
        bool(graph.attribute(node, "is_causal", 0)),
        0 if past is None else graph.static_shape(past)[2],
        zero=True,
    )
    return (*before_k, *before_v), core


def _cached(
    group: Group, value: ir.Value, past: ir.Value | None, position: int
) -> tuple[tuple[LaunchCall, ...], Operand]:
    """Where old and new keys, or values, lie one behind the other, and the copies that put them there."""
    fresh, outputs = heads(value, group.anchor, "kv_num_heads"), group.anchor.outputs
    present = outputs[position] if position < len(outputs) and outputs[position] in group.outputs else None
    if past is None and present is None:
        return (), fresh
    old = 0 if past is None else graph.static_shape(past)[2]
    batch, count, length, width = fresh.shape
    shape, dtype = (batch, count, old + length, width), element(value)
    target: Argument = Workspace(math.prod(shape) * NBYTES[dtype]) if present is None else present
    strides = spread(shape).strides
    parts = [(value, fresh.shape, fresh.strides, old * width)]
    if past is not None:
        own = graph.static_shape(past)
        parts.append((past, own, spread(own).strides, 0))
    made = tuple(
        call
        for source, sizes, lies, start in parts
        for call in calls(
            moved(sizes, Strided(dtype, lies), Strided(dtype, strides, start)), numbered([source], [target])
        )
    )
    return made, Operand(target, 0, shape, strides)


def _node_rejection(group: Group) -> str | None:
    """Rejection of the operator; None if kernels compute it."""
    node = group.anchor
    reason = tensor_views.group_rejection(group)
    if reason is not None:
        return reason
    if node.outputs[0] not in group.outputs:
        return "the result is not read"
    if len(node.outputs) > SCORES and node.outputs[SCORES] in group.outputs:
        return "scores are an output, here they stay in registers"
    if any(graph.attribute(node, f"{side}_window_size", -1) >= 0 for side in ("left", "right")):
        return "queries see a window of keys"
    if graph.attribute(node, "softmax_precision", 1) == ir.DataType.DOUBLE.value:
        return "softmax in double precision"
    if graph.input_at(node, LENGTHS) is not None and graph.attribute(node, "is_causal", 0):
        return "queries of sequences of several lengths see what is before them"
    given = [graph.input_at(node, i) for i in (K, V, PAST_K, PAST_V)]
    return tensor_views.not_floats(group, node.inputs[0], *given, *group.outputs)


def _value(operand: Operand) -> ir.Value:
    assert isinstance(operand.value, ir.Value)
    return operand.value


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    if _is_node(group):
        reason = _node_rejection(group)
    else:
        found = attention_pattern.read(group)
        if isinstance(found, str):
            return found
        reason = tensor_views.not_floats(group, *(_value(o) for o in (found.q, found.k, found.v, found.y)))
    if reason is not None:
        return reason
    core = _core(group)
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
        float(graph.attribute(group.anchor, "softcap", 0.0)) if _is_node(group) else 0.0,
        _lengths(group) is not None,
    )


def _lengths(group: Group) -> ir.Value | None:
    """Keys that each sequence has."""
    return graph.input_at(group.anchor, LENGTHS) if _is_node(group) else None


@of_group
def _flash(group: Group, _processors: int) -> Launches:
    return flash(_attention(group))


@of_group
def _decode(group: Group, processors: int) -> Launches:
    return attention_decode(_attention(group), processors)


def _decode_rejection(group: Group, context: PlanningContext) -> str | None:
    return _rejection(group, context) or decode_rejection(_attention(group))


def _calls(group: Group, launches: Launches) -> tuple[Call, ...]:
    before, core = _prepared(group)
    roles: dict[str, Argument] = {"q": core.q.value, "k": core.k.value, "v": core.v.value, "y": core.y.value}
    if core.mask is not None:
        roles["mask"] = core.mask.value
    lengths = _lengths(group)
    if lengths is not None:
        roles["lengths"] = lengths
    return (*before, *calls(launches, roles))


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Queries that lie as the result does: a block reads its own before it writes, keys and values never."""
    core = _core(group)
    q, y = _value(core.q), _value(core.y)
    others = [o.value for o in (core.k, core.v, core.mask) if o is not None]
    if (
        not _alike(core.q, core.y)
        or q in others
        or graph.is_constant(q)
        or graph.nbytes(q) != graph.nbytes(y)
    ):
        return ()
    return ((q, y),)


def _alike(a: Operand, b: Operand) -> bool:
    """True if two matrices lie at the same elements; along an axis of one, strides do not count."""
    steps = zip(a.shape, a.strides, b.strides)
    return a.shape == b.shape and a.start == b.start and all(n == 1 or s == t for n, s, t in steps)


def _work(group: Group) -> float:
    core = _core(group)
    batch, heads, rows, depth = core.q.shape
    return 2.0 * batch * heads * rows * core.k.shape[2] * (depth + core.v.shape[3])


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
        time = seconds(context, nbytes=moved_bytes(group), flops=_work(group), rate=rate, blocks=blocks)
        count = len(launches.steps) + len(_prepared(group)[0])
        return time + (count - 1) * context.target.launch

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        return _calls(group, made(group, context.target.cores))

    return Implementation(name, ATTENTION, BACKEND, rejection, lower, seconds_of, _inplace)


IMPLEMENTATIONS = (
    _row("cuda.attention", _rejection, _flash, (0.25, 3.0)),
    _row("cuda.attention_decode", _decode_rejection, _decode, (0.5, 0.5)),
)
