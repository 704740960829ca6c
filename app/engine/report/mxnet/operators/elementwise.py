"""Elementwise operators of ONNX in MXNet's spelling."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.mxnet.operators.elementwise import ACTIVATIONS, UNARY
from app.engine.model.mxnet.symbol_file import Entry
from app.engine.report.mxnet.spelling import BOOL, FLOAT, FLOATS, Spelling, Unspelled, is_same

Written: TypeAlias = "Entry | list[Entry]"  # of one result, or of several
Row: TypeAlias = Callable[[Spelling], Written]


def plain(op: str, **attributes: Any) -> Row:
    """MXNet's operator on the same operands."""
    return lambda c: c.add(op, *c.inputs(), **attributes)


# Names of the operators of two operands: of equal shapes, broadcast, with a scalar, with one on the left.
_TWO: Mapping[str, tuple[str, str, str, str]] = {
    "Add": ("elemwise_add", "broadcast_add", "_plus_scalar", "_plus_scalar"),
    "Sub": ("elemwise_sub", "broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": ("elemwise_mul", "broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "Div": ("elemwise_div", "broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "Pow": ("_power", "broadcast_power", "_power_scalar", "_rpower_scalar"),
    "Max": ("_maximum", "broadcast_maximum", "_maximum_scalar", "_maximum_scalar"),
    "Min": ("_minimum", "broadcast_minimum", "_minimum_scalar", "_minimum_scalar"),
    "Mod": ("_mod", "broadcast_mod", "_mod_scalar", "_rmod_scalar"),
    "Equal": ("_equal", "broadcast_equal", "_equal_scalar", "_equal_scalar"),
    "Greater": ("_greater", "broadcast_greater", "_greater_scalar", "_lesser_scalar"),
    "GreaterOrEqual": (
        "_greater_equal",
        "broadcast_greater_equal",
        "_greater_equal_scalar",
        "_lesser_equal_scalar",
    ),
    "Less": ("_lesser", "broadcast_lesser", "_lesser_scalar", "_greater_scalar"),
    "LessOrEqual": (
        "_lesser_equal",
        "broadcast_lesser_equal",
        "_lesser_equal_scalar",
        "_greater_equal_scalar",
    ),
    "And": ("_logical_and", "broadcast_logical_and", "_logical_and_scalar", "_logical_and_scalar"),
    "Or": ("_logical_or", "broadcast_logical_or", "_logical_or_scalar", "_logical_or_scalar"),
    "Xor": ("_logical_xor", "broadcast_logical_xor", "_logical_xor_scalar", "_logical_xor_scalar"),
}  # fmt: skip
_COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_OF_FLOATS = ("Div", "Pow")  # of whole numbers MXNet has others


def _scalar(c: Spelling, place: int) -> float | None:
    """The number that an operand of float32 is, if it is one that an attribute holds."""
    value = c.value(place)
    array = graph.constant(value)
    if array is None or array.size != 1 or array.dtype != FLOAT or array.ndim > max(c.rank(1 - place), 1):
        return None
    found = float(array.reshape(()))
    return found if math.isfinite(found) else None


def two(op: str) -> Callable[[Spelling], Entry]:
    """A row of an operator of two operands."""
    same, broadcast, with_scalar, reverse = _TWO[op]

    def written(c: Spelling) -> Entry:
        a, b = c.value(0), c.value(1)
        dtype = c.dtype(a)
        if op in _OF_FLOATS and dtype not in FLOATS:
            raise Unspelled(f"{op} of {dtype}; MXNet and ONNX agree on floats")
        if op == "Pow" and c.dtype(b) != dtype:
            raise Unspelled(f"Pow of {dtype} by {c.dtype(b)}; expected equal types")
        found = _joined(c, (same, broadcast, with_scalar, reverse))
        return c.cast(found, dtype, FLOAT) if op in _COMPARED else found

    return written


def _joined(c: Spelling, names: tuple[str, str, str, str]) -> Entry:
    """The spelling that fits the operands' shapes."""
    same, broadcast, with_scalar, reverse = names
    for place, name in ((1, with_scalar), (0, reverse)):
        number = _scalar(c, place)
        if number is not None and graph.constant(c.value(1 - place)) is None:
            return c.add(name, c.input(1 - place), scalar=number)
    op = same if is_same(c.value(0), c.value(1)) else broadcast
    return c.add(op, c.input(0), c.input(1))


def _mod(c: Spelling) -> Entry:
    """MXNet's remainder has the sign of the divisor; that of floats in ONNX has the dividend's."""
    if not c.attribute("fmod", 0):
        return _joined(c, _TWO["Mod"])
    c.floats()
    size = c.add("broadcast_mod", c.add("abs", c.input(0)), c.add("abs", c.input(1)))
    return c.add("broadcast_mul", size, c.add("sign", c.input(0)))


def _chain(op: str) -> Callable[[Spelling], Entry]:
    """A row of an operator of many operands, two by two."""

    def written(c: Spelling) -> Entry:
        if len(c.node.inputs) == 2:
            return two(op)(c)
        found, *rest = c.inputs()
        for entry in rest:
            found = c.add(_TWO[op][1], found, entry)
        return found if rest else c.add("_copy", found)

    return written


def _mean(c: Spelling) -> Entry:
    return c.add("_mul_scalar", _chain("Add")(c), scalar=1.0 / len(c.node.inputs))


def _activation(kind: str) -> Row:
    return lambda c: c.add("Activation", c.input(0), act_type=kind)


def _leaky(kind: str, default: float) -> Row:
    """Slope of ONNX's attribute alpha."""
    return lambda c: c.add("LeakyReLU", c.input(0), act_type=kind, slope=float(c.attribute("alpha", default)))


def _selu(c: Spelling) -> Entry:
    standard = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}
    for name, value in standard.items():
        if abs(c.attribute(name, value) - value) > 1e-6:
            raise Unspelled(f"{name}={c.attribute(name, value)}; MXNet has {value}")
    return c.add("LeakyReLU", c.input(0), act_type="selu")


def _gelu(c: Spelling) -> Entry:
    x = c.input(0)
    if c.attribute("approximate", "none") == "none":
        return c.add("LeakyReLU", x, act_type="gelu")
    cube = c.add("_mul_scalar", c.add("_power_scalar", x, scalar=3.0), scalar=0.044715)
    inner = c.add("_mul_scalar", c.add("elemwise_add", x, cube), scalar=math.sqrt(2 / math.pi))
    one = c.add("_plus_scalar", c.add("tanh", inner), scalar=1.0)
    return c.add("elemwise_mul", c.add("_mul_scalar", x, scalar=0.5), one)


def _hard_sigmoid(c: Spelling) -> Entry:
    alpha, beta = float(c.attribute("alpha", 0.2)), float(c.attribute("beta", 0.5))
    return c.add("hard_sigmoid", c.input(0), alpha=alpha, beta=beta)


def _hard_swish(c: Spelling) -> Entry:
    x = c.input(0)
    return c.add("elemwise_mul", x, c.add("hard_sigmoid", x, alpha=1 / 6, beta=0.5))


def _swish(c: Spelling) -> Entry:
    x, alpha = c.input(0), float(c.attribute("alpha", 1.0))
    inner = x if alpha == 1.0 else c.add("_mul_scalar", x, scalar=alpha)
    return c.add("elemwise_mul", x, c.add("sigmoid", inner))


def _mish(c: Spelling) -> Entry:
    x = c.input(0)
    return c.add("elemwise_mul", x, c.add("tanh", c.add("Activation", x, act_type="softrelu")))


def _celu(c: Spelling) -> Entry:
    """Elu of x / alpha, times alpha."""
    alpha = float(c.attribute("alpha", 1.0))
    inner = c.add("_div_scalar", c.input(0), scalar=alpha)
    return c.add("_mul_scalar", c.add("LeakyReLU", inner, act_type="elu", slope=1.0), scalar=alpha)


def _thresholded(c: Spelling) -> Entry:
    x = c.input(0)
    above = c.add("_greater_scalar", x, scalar=float(c.attribute("alpha", 1.0)))
    return c.add("where", above, x, c.add("zeros_like", x))


def _prelu(c: Spelling) -> Entry:
    """One slope a channel is an attribute of MXNet's layer; any other is written out."""
    x, slope = c.input(0), graph.constant(c.value(1))
    dims = c.dims(c.value(0))
    if slope is not None and len(dims) > 1 and slope.size == dims[1]:
        shape = (1,) * (len(dims) - slope.ndim) + slope.shape
        if shape[1] == dims[1]:
            return c.add("LeakyReLU", x, c.array(slope.reshape(-1), "gamma"), act_type="prelu")
    low = c.add("broadcast_mul", c.add("_minimum_scalar", x, scalar=0.0), c.input(1))
    return c.add("broadcast_add", c.add("relu", x), low)


def _clip(c: Spelling) -> Entry:
    low, high = (
        float(c.constant(i).reshape(())) if c.has(i) else math.copysign(math.inf, i - 1.5) for i in (1, 2)
    )
    x, dtype = c.input(0), c.dtype(c.value(0))
    if dtype not in FLOATS:
        raise Unspelled(f"Clip of {dtype}; MXNet bounds are float32")
    if math.isfinite(low) and math.isfinite(high):
        return c.add("clip", x, a_min=low, a_max=high)
    for bound, name in ((low, "_maximum_scalar"), (high, "_minimum_scalar")):
        if math.isfinite(bound):
            return c.add(name, x, scalar=bound)
    return c.add("_copy", x)


def _cast(c: Spelling) -> Entry:
    """To bool is a comparison with 0."""
    x, source = c.input(0), c.dtype(c.value(0))
    target = graph.dtype(c.result())
    c.dtype(c.result())
    if target == BOOL and graph.dtype(c.value(0)) != BOOL:
        return c.cast(c.add("_not_equal_scalar", x, scalar=0.0), source, FLOAT)
    assert target is not None
    to = FLOAT if target == BOOL else target
    return c.add("_copy", x) if source == to else c.add("Cast", x, dtype=str(to))


def _round(c: Spelling) -> Entry:
    if c.dtype(c.value(0)) not in FLOATS:
        raise Unspelled("Round of whole numbers")
    return half_to_even(c, c.input(0))


def half_to_even(c: Spelling, x: Entry) -> Entry:
    """Round half to even: floor(x + 0.5), less 1 where that is odd and x is halfway."""
    moved = c.add("_plus_scalar", x, scalar=0.5)
    whole = c.add("floor", moved)
    odd = c.add("_mod_scalar", whole, scalar=2.0)
    return c.add("elemwise_sub", whole, c.add("elemwise_mul", odd, c.add("_equal", moved, whole)))


def broadcast(c: Spelling, place: int, to: ir.Value) -> Entry:
    """An operand in the shape of a value that it broadcasts to."""
    value, entry = c.value(place), c.input(place)
    if is_same(value, to):
        return entry
    target, dims = c.dims(to) or (1,), c.dims(value)
    padded = (1,) * (len(target) - len(dims)) + dims
    if len(dims) != len(padded):
        entry = c.reshaped(entry, tuple(-1 if d is None else d for d in padded))
    if list(padded) == list(target) and None not in target:
        return entry
    # 0 keeps a dimension.
    wanted = [0 if d == w else w for d, w in zip(padded, target)]
    if None in wanted:
        raise Unspelled(
            f"{value.name!r} is broadcast to the free shape {to.shape}; bind the shapes of the inputs"
        )
    return c.add("broadcast_to", entry, shape=tuple(wanted))


def _where(c: Spelling) -> Entry:
    return c.add("where", *(broadcast(c, i, c.result()) for i in range(3)))


def _is_nan(c: Spelling) -> Entry:
    x = c.input(0)
    return c.cast(c.add("_not_equal", x, x), c.dtype(c.value(0)), FLOAT)


def _is_inf(c: Spelling) -> Entry:
    """Infinity is what is not below the largest number."""
    x, dtype = c.input(0), c.dtype(c.value(0))
    if dtype != FLOAT or not (c.attribute("detect_positive", 1) and c.attribute("detect_negative", 1)):
        raise Unspelled("IsInf of one sign, or of other elements than float32")
    return c.add("_greater_scalar", c.add("abs", x), scalar=float(np.finfo(np.float32).max))


def _softmax(op: str) -> Row:
    return lambda c: c.add(op, c.input(0), axis=c.axis("axis", -1))


def _unary_rows() -> Mapping[str, Row]:
    """Operators of one operand, by the reader's table; of several spellings the first one."""
    rows: dict[str, Row] = {}
    for name, op in UNARY.items():
        if not name.endswith("Output"):
            rows.setdefault(op, plain(name))
    return rows


ROWS: Mapping[str, Row] = {
    **{op: two(op) for op in _TWO},
    **{op: _chain(op) for op in ("Max", "Min")},
    "Mean": _mean,
    "Mod": _mod,
    **_unary_rows(),
    **{op: _activation(kind) for kind, op in ACTIVATIONS.items() if op == "Softplus"},
    "Not": plain("logical_not"),
    "LeakyRelu": _leaky("leaky", 0.01),
    "Elu": _leaky("elu", 1.0),
    "Selu": _selu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Swish": _swish,
    "Mish": _mish,
    "Celu": _celu,
    "ThresholdedRelu": _thresholded,
    "PRelu": _prelu,
    "Clip": _clip,
    "Cast": _cast,
    "Round": _round,
    "Where": _where,
    "IsNaN": _is_nan,
    "IsInf": _is_inf,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
}
