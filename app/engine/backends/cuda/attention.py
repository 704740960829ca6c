"""Attention as graphs spell it (MatMul, scale, mask, Softmax, MatMul) in one kernel."""

from collections.abc import Callable

import onnx_ir as ir

from app.engine import attention, graph
from app.engine.attention import Core, Operand
from app.engine.backends.cuda import tensors
from app.engine.backends.cuda.launching import BACKEND, blocks_of, calls, moved_bytes, seconds
from app.engine.backends.cuda.tensors import element
from app.engine.plan import ATTENTION, Argument, Call, Group, of_group
from app.engine.registry import Implementation, Known
from app.kernels.cuda.attention import Attention, Heads, Mask
from app.kernels.cuda.attention import attention as flash
from app.kernels.cuda.attention_decode import attention_decode, decode_unless
from app.kernels.cuda.geometry import LIMIT
from app.kernels.cuda.kernel import Launches

WIDEST = 256  # elements of a head that fit the registers of its threads


def _core(group: Group) -> Core:
    core = attention.read(group)
    assert not isinstance(core, str)
    return core


def _value(operand: Operand) -> ir.Value:
    assert isinstance(operand.value, ir.Value)
    return operand.value


def _unless(group: Group, _known: Known) -> str | None:
    if group.anchor.op_type == ATTENTION:
        return "the operator with its cache; this one is for chains of products"
    core = attention.read(group)
    if isinstance(core, str):
        return core
    values = [_value(o) for o in (core.q, core.k, core.v, core.y)]
    reason = tensors.not_floats(group, *values)
    if reason is not None:
        return reason
    for name, operand in (("queries", core.q), ("keys", core.k), ("values", core.v), ("the result", core.y)):
        if operand.shape[3] > 1 and operand.strides[3] != 1:
            return f"rows of {name} are {operand.strides[3]} elements apart"
        if operand.shape[3] > WIDEST:
            return f"heads of {operand.shape[3]} elements, at most {WIDEST} are supported"
        if graph.elements(_value(operand)) >= LIMIT or 0 in operand.shape:
            return f"{_value(operand).name!r} is empty, or too large for indices"
    if core.mask is not None:
        mask = _value(core.mask)
        return tensors.untyped(mask, ("bool", element(values[0]), "float32"))
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
    )


@of_group
def _flash(group: Group, _processors: int) -> Launches:
    return flash(_attention(group))


@of_group
def _decode(group: Group, processors: int) -> Launches:
    return attention_decode(_attention(group), processors)


def _decode_unless(group: Group, known: Known) -> str | None:
    return _unless(group, known) or decode_unless(_attention(group))


def _calls(group: Group, launches: Launches) -> tuple[Call, ...]:
    core = _core(group)
    roles: dict[str, Argument] = {"q": core.q.value, "k": core.k.value, "v": core.v.value, "y": core.y.value}
    if core.mask is not None:
        roles["mask"] = core.mask.value
    return calls(launches, roles)


def _inplace(group: Group, _known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
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
    """Whether two matrices lie at the same elements; along an axis of one, strides do not count."""
    steps = zip(a.shape, a.strides, b.strides)
    return a.shape == b.shape and a.start == b.start and all(n == 1 or s == t for n, s, t in steps)


def _work(group: Group) -> float:
    core = _core(group)
    batch, heads, rows, depth = core.q.shape
    return 2.0 * batch * heads * rows * core.k.shape[2] * (depth + core.v.shape[3])


Made = Callable[[Group, int], Launches]


def _row(
    name: str, unless: Callable[[Group, Known], str | None], made: Made, rates: tuple[float, float]
) -> Implementation:
    """A row whose kernel reaches `rates` of the peak for float32 and for 16 bits."""

    def seconds_of(group: Group, known: Known) -> float:
        launches = made(group, known.target.cores)
        rate = rates[element(_value(_core(group).q)) != "float32"]
        blocks = blocks_of(launches)
        time = seconds(known, nbytes=moved_bytes(group), flops=_work(group), rate=rate, blocks=blocks)
        return time + (len(launches.steps) - 1) * known.target.launch

    def lower(group: Group, known: Known) -> tuple[Call, ...]:
        return _calls(group, made(group, known.target.cores))

    return Implementation(name, ATTENTION, BACKEND, unless, lower, seconds_of, _inplace)


IMPLEMENTATIONS = (
    _row("cuda.attention", _unless, _flash, (0.25, 3.0)),
    _row("cuda.attention_decode", _decode_unless, _decode, (0.5, 0.5)),
)
