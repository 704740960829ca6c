"""MXNet's elementwise operators, in all of their spellings, as ONNX nodes."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call

Values: TypeAlias = "ir.Value | tuple[ir.Value, ...]"
Translation: TypeAlias = Callable[[Call], Values]
Binary: TypeAlias = Callable[[Call, ir.Value, ir.Value], ir.Value]


def plain(op: str, **attributes: Any) -> Translation:
    """The ONNX operator on the same operands."""
    return lambda c: c.one(op, *c.inputs, **attributes)


def onnx(op: str) -> Binary:
    """The ONNX operator of two operands."""
    return lambda c, a, b: c.one(op, a, b)


def _compared(op: str) -> Binary:
    """A comparison: 0 or 1 in the element type of the left operand."""
    return lambda c, a, b: c.cast(c.one(op, a, b), c.dtype(a))


def _differ(c: Call, a: ir.Value, b: ir.Value) -> ir.Value:
    return c.cast(c.one("Not", c.one("Equal", a, b)), c.dtype(a))


def _logical(op: str) -> Binary:
    def translated(c: Call, a: ir.Value, b: ir.Value) -> ir.Value:
        bools = (c.cast(v, ir.DataType.BOOL) for v in (a, b))
        return c.cast(c.one(op, *bools), c.dtype(a))

    return translated


def modulo(c: Call, a: ir.Value, b: ir.Value) -> ir.Value:
    """A - floor(a / b) b, as Python has it, and 0 where b is 0."""
    zero = c.const(0, a)
    if not c.dtype(a).is_floating_point():
        none = c.one("Equal", b, zero)
        return c.one("Where", none, zero, c.one("Mod", a, c.one("Where", none, c.const(1, a), b)))
    whole = c.one("Mul", c.one("Floor", c.one("Div", a, b)), b)
    return c.one("Where", c.one("Equal", b, zero), zero, c.one("Sub", a, whole))


def hypotenuse(c: Call, a: ir.Value, b: ir.Value) -> ir.Value:
    """The root of a^2 + b^2."""
    return c.one("Sqrt", c.one("Add", c.one("Mul", a, a), c.one("Mul", b, b)))


_BINARY: Mapping[str, Binary] = {
    "add plus": onnx("Add"),
    "sub minus": onnx("Sub"),
    "mul": onnx("Mul"),
    "div": onnx("Div"),
    "mod": modulo,
    "power pow": onnx("Pow"),
    "maximum": onnx("Max"),
    "minimum": onnx("Min"),
    "hypot": hypotenuse,
    "equal": _compared("Equal"),
    "not_equal": _differ,
    "greater": _compared("Greater"),
    "greater_equal": _compared("GreaterOrEqual"),
    "lesser": _compared("Less"),
    "lesser_equal": _compared("LessOrEqual"),
    "logical_and": _logical("And"),
    "logical_or": _logical("Or"),
    "logical_xor": _logical("Xor"),
}
_REVERSED = ("minus", "div", "mod", "power")  # of a scalar and a tensor


def _camel(name: str) -> str:
    """`greater_equal` as `Greater_Equal`: how the oldest releases write it."""
    return "_".join(part.capitalize() for part in name.split("_"))


def _two(function: Binary) -> Translation:
    return lambda c: function(c, c.inputs[0], c.inputs[1])


def _scalar_of(c: Call) -> ir.Value:
    scalar, x = c.attributes.number("scalar", 1.0), c.inputs[0]
    kind = c.dtype(x)
    if not kind.is_floating_point() and not (math.isfinite(scalar) and scalar.is_integer()):
        raise c.error(f"the scalar {scalar} with a tensor of {kind.name}; expected a whole number")
    return c.const(scalar, x)


def _with_scalar(function: Binary, *, is_reversed: bool = False) -> Translation:
    def translated(c: Call) -> ir.Value:
        operands = c.inputs[0], _scalar_of(c)
        return function(c, *(reversed(operands) if is_reversed else operands))

    return translated


def _binary_rows() -> Iterable[tuple[str, Translation]]:
    for spellings, function in _BINARY.items():
        for name in spellings.split():
            camel = _camel(name)
            for spelled in (f"elemwise_{name}", f"_{name}", f"_{camel}", f"broadcast_{name}"):
                yield spelled, _two(function)
            for spelled in (f"_{name}_scalar", f"_{camel.replace('_', '')}Scalar", f"_npi_{name}_scalar"):
                yield spelled, _with_scalar(function)
            if name in _REVERSED:
                for spelled in (f"_r{name}_scalar", f"_R{camel}Scalar"):
                    yield spelled, _with_scalar(function, is_reversed=True)


UNARY: Mapping[str, str] = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "negative": "Neg",
    "floor": "Floor",
    "ceil": "Ceil",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
    "erf": "Erf",
    "sign": "Sign",
    "reciprocal": "Reciprocal",
    "softsign": "Softsign",
    "_copy": "Identity",
    "identity": "Identity",
    "BlockGrad": "Identity",
    "stop_gradient": "Identity",
    "make_loss": "Identity",
    "MakeLoss": "Identity",
    "LinearRegressionOutput": "Identity",
    "MAERegressionOutput": "Identity",
    "LogisticRegressionOutput": "Sigmoid",
    "_identity_with_attr_like_rhs": "Identity",
}


def _first(op: str) -> Translation:
    """The ONNX operator of the first operand; the others are labels or only say a shape."""
    return lambda c: c.one(op, c.inputs[0])


def _scaled(op: str, factor: float) -> Translation:
    return lambda c: c.one("Mul", c.one(op, c.inputs[0]), c.const(factor, c.inputs[0]))


def _round(c: Call) -> ir.Value:
    """Half away from zero."""
    x = c.inputs[0]
    return c.one("Mul", c.one("Sign", x), c.one("Floor", c.one("Add", c.one("Abs", x), c.const(0.5, x))))


def _rint(c: Call) -> ir.Value:
    """The nearest whole number, of two the lower one."""
    x = c.inputs[0]
    low, high = c.one("Floor", x), c.one("Ceil", x)
    nearer = c.one("LessOrEqual", c.one("Sub", x, low), c.one("Sub", high, x))
    return c.one("Where", nearer, low, high)


def _truncated(c: Call) -> ir.Value:
    x = c.inputs[0]
    return c.one("Mul", c.one("Sign", x), c.one("Floor", c.one("Abs", x)))


def _cube_root(c: Call) -> ir.Value:
    x = c.inputs[0]
    return c.one("Mul", c.one("Sign", x), c.one("Pow", c.one("Abs", x), c.const(1 / 3, x)))


def _shifted(first: str, shift: float, then: str) -> Translation:
    """then(first(x) + shift), where the empty text is the identity."""

    def translated(c: Call) -> ir.Value:
        x = c.one(first, c.inputs[0]) if first else c.inputs[0]
        moved = c.one("Add", x, c.const(shift, x))
        return c.one(then, moved) if then else moved

    return translated


def _hard_sigmoid(c: Call) -> ir.Value:
    alpha, beta = c.attributes.number("alpha", 0.2), c.attributes.number("beta", 0.5)
    return c.one("HardSigmoid", c.inputs[0], alpha=alpha, beta=beta)


ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softrelu": "Softplus",
    "softsign": "Softsign",
}


def _activation(c: Call) -> ir.Value:
    return c.one(ACTIVATIONS[c.attributes.text("act_type", "", ACTIVATIONS)], c.inputs[0])


def _prelu(c: Call) -> ir.Value:
    """One slope a channel, of axis 1, or one for all."""
    x, slope = c.inputs[:2]
    if c.dims(slope) != (1,):
        ones = max(c.rank(x) - 2, 0)
        slope = c.one("Reshape", slope, c.ints(-1, *[1] * ones))
    return c.one("PRelu", x, slope)


def _leaky_relu(c: Call) -> ir.Value:
    kinds = ("leaky", "elu", "selu", "gelu", "prelu", "rrelu")
    kind, x = c.attributes.text("act_type", "leaky", kinds), c.inputs[0]
    slope = c.attributes.number("slope", 0.25)
    if kind == "rrelu":  # its mean, where nothing is trained
        slope = (c.attributes.number("lower_bound", 0.125) + c.attributes.number("upper_bound", 0.334)) / 2
    if kind == "prelu":
        return _prelu(c)
    if kind == "gelu":
        inner = c.one("Erf", c.one("Mul", x, c.const(math.sqrt(0.5), x)))
        half = c.one("Mul", x, c.const(0.5, x))
        return c.one("Mul", half, c.one("Add", inner, c.const(1, x)))
    if kind == "selu":
        return c.one("Selu", x)
    return c.one("Elu" if kind == "elu" else "LeakyRelu", x, alpha=slope)


def _clip(c: Call) -> ir.Value:
    x = c.inputs[0]
    low, high = (c.const(c.attributes.number(name), x) for name in ("a_min", "a_max"))
    return c.one("Clip", x, low, high)


def _cast(c: Call) -> ir.Value:
    dtype = c.attributes.dtype("dtype", "float32")
    assert dtype is not None
    return c.one("Cast", c.inputs[0], to=ir.DataType.from_numpy(dtype).value)


def _cast_storage(c: Call) -> ir.Value:
    """The same elements, stored otherwise."""
    c.attributes.text("stype", "", ("default", "row_sparse", "csr"))
    return c.one("Identity", c.inputs[0])


def _logical_not(c: Call) -> ir.Value:
    x = c.inputs[0]
    return c.cast(c.one("Equal", x, c.const(0, x)), c.dtype(x))


def _like(value: float) -> Translation:
    """A constant of the operand's shape."""
    return lambda c: c.one("Expand", c.const(value, c.inputs[0]), c.one("Shape", c.inputs[0]))


def _smooth_l1(c: Call) -> ir.Value:
    """0.5 (s x)^2 where |x| < 1 / s^2, else |x| - 0.5 / s^2."""
    x, square = c.inputs[0], c.attributes.number("scalar", 1.0) ** 2
    size = c.one("Abs", x)
    inner = c.one("Mul", c.one("Mul", x, x), c.const(0.5 * square, x))
    near = c.one("Less", size, c.const(1 / square, x))
    return c.one("Where", near, inner, c.one("Sub", size, c.const(0.5 / square, x)))


def _within(c: Call) -> ir.Value:
    """True at places along the axis that lie before the end, which the second operand has for every line."""
    x, lengths = c.inputs
    rank = c.rank(x)
    axis = c.axis("axis", rank, -1)
    size = c.one("Squeeze", c.one("Shape", x, start=axis, end=axis + 1), c.ints(0))
    start, step = (c.builder.constant(np.array(v, np.int64), f"{c.node.name}.constant") for v in (0, 1))
    places = c.one("Range", start, size, step)
    places = c.one("Reshape", places, c.ints(*(-1 if i == axis else 1 for i in range(rank))))
    return c.one("Less", places, c.one("Unsqueeze", c.cast(lengths, ir.DataType.INT64), c.ints(axis)))


def _softmax(op: str, *, is_negated: bool = False) -> Translation:
    def translated(c: Call) -> ir.Value:
        if used := c.attributes.flag("use_length"):
            inside = _within(c)
        x, heat = (
            c.inputs[0],
            c.attributes.number("temperature", 1.0) if c.attributes.given("temperature") else 1.0,
        )
        dtype = c.attributes.dtype("dtype", None)
        if heat != 1.0 or is_negated:
            x = c.one("Mul", x, c.const((-1 if is_negated else 1) / heat, x))
        if used:
            x = c.one("Where", inside, x, c.const(-math.inf, x))
        found = c.one(op, x, axis=c.attributes.integer("axis", -1))
        if used:
            found = c.one("Where", inside, found, c.const(0, found))
        return found if dtype is None else c.cast(found, dtype)

    return translated


def _softmax_output(c: Call) -> ir.Value:
    """Softmax over the last axis, or over that of the channels."""
    c.attributes.flag("preserve_shape")
    return c.one("Softmax", c.inputs[0], axis=1 if c.attributes.flag("multi_output") else -1)


def _softmax_activation(c: Call) -> ir.Value:
    """Softmax over the channels or the last axis, as measured; documented are all axes but the first."""
    mode = c.attributes.text("mode", "instance", ("instance", "channel"))
    return c.one("Softmax", c.inputs[0], axis=1 if mode == "channel" else -1)


def _where(c: Call) -> ir.Value:
    """The condition has the shape of the operands, or is a list that chooses rows."""
    condition, *operands = c.inputs
    if condition.shape is not None and len(condition.shape) == 1 and (more := c.rank(operands[0]) - 1):
        condition = c.one("Reshape", condition, c.ints(-1, *[1] * more))
    return c.one("Where", c.cast(condition, ir.DataType.BOOL), *operands)


def _div_sqrt_dim(c: Call) -> ir.Value:
    x = c.inputs[0]
    last = c.cast(c.one("Shape", x, start=-1), c.dtype(x))
    return c.one("Div", x, c.one("Sqrt", last))


def _log_of(base: float) -> Translation:
    return _scaled("Log", 1 / math.log(base))


def _square(c: Call) -> ir.Value:
    return c.one("Mul", c.inputs[0], c.inputs[0])


def _inverse(function: Translation) -> Translation:
    def translated(c: Call) -> ir.Value:
        found = function(c)
        assert isinstance(found, ir.Value)
        return c.one("Reciprocal", found)

    return translated


ROWS: Mapping[str, Translation] = {
    **dict(_binary_rows()),
    **{name: _first(op) for name, op in UNARY.items()},
    "_grad_add": plain("Add"),
    "_scatter_elemwise_div": plain("Div"),
    **dict.fromkeys(("add_n", "ElementWiseSum", "_sum"), plain("Sum")),
    "square": _square,
    "rsqrt": _inverse(plain("Sqrt")),
    "cbrt": _cube_root,
    "rcbrt": _inverse(_cube_root),
    "log10": _log_of(10),
    "log2": _log_of(2),
    "log1p": _shifted("", 1, "Log"),
    "expm1": _shifted("Exp", -1, ""),
    "degrees": _scaled("Identity", 180 / math.pi),
    "radians": _scaled("Identity", math.pi / 180),
    "round": _round,
    "rint": _rint,
    **dict.fromkeys(("fix", "trunc"), _truncated),
    "cast_storage": _cast_storage,
    "logical_not": _logical_not,
    "hard_sigmoid": _hard_sigmoid,
    "Activation": _activation,
    "LeakyReLU": _leaky_relu,
    "clip": _clip,
    **dict.fromkeys(("Cast", "cast", "amp_cast"), _cast),
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "smooth_l1": _smooth_l1,
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "softmin": _softmax("Softmax", is_negated=True),
    **dict.fromkeys(("SoftmaxOutput", "Softmax"), _softmax_output),
    "SoftmaxActivation": _softmax_activation,
    "where": _where,
    "_contrib_div_sqrt_dim": _div_sqrt_dim,
}
