"""MXNet's special functions, reductions that skip what is no number, moments and others, as ONNX nodes."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators import elementwise, neural
from app.engine.model.mxnet.operators.elementwise import Translation, Values
from app.engine.model.mxnet.operators.indexing import reduced_axes

# log gamma(z) = (z - 1/2) log z - z + log(2 pi) / 2 + these, over z, z^3, z^5 (Stirling's series).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260)
_SHIFT = 7  # the series is taken at z + 7, where its error is below that of float32


def _log_gamma(c: Call, x: ir.Value) -> ir.Value:
    """Logarithm for numbers of at least 1/2: log gamma(x + 7) less the logarithm of x (x + 1) ... (x + 6)."""
    product = x
    for k in range(1, _SHIFT):
        product = c.one("Mul", product, c.one("Add", x, c.const(float(k), x)))
    z = c.one("Add", x, c.const(float(_SHIFT), x))
    inverse = c.one("Reciprocal", z)
    square = c.one("Mul", inverse, inverse)
    series = c.const(_STIRLING[-1], x)
    for coefficient in reversed(_STIRLING[:-1]):
        series = c.one("Add", c.one("Mul", series, square), c.const(coefficient, x))
    main = c.one("Mul", c.one("Sub", z, c.const(0.5, x)), c.one("Log", z))
    rest = c.one("Sub", c.const(0.5 * math.log(2 * math.pi), x), z)
    total = c.one("Add", c.one("Add", main, rest), c.one("Mul", series, inverse))
    return c.one("Sub", total, c.one("Log", product))


def _reflected(c: Call) -> tuple[ir.Value, ir.Value, ir.Value]:
    """True for numbers below 1/2, the number or 1 less it, and sin(pi x) with the period taken off."""
    x = c.inputs[0]
    low = c.one("Less", x, c.const(0.5, x))
    other = c.one("Where", low, c.one("Sub", c.const(1.0, x), x), x)
    rest = c.one("Sub", x, c.one("Mul", c.const(2.0, x), c.one("Floor", c.one("Mul", x, c.const(0.5, x)))))
    return low, other, c.one("Sin", c.one("Mul", rest, c.const(math.pi, x)))


def _gammaln(c: Call) -> ir.Value:
    """Logarithm of |gamma(x)|; below 1/2 by log pi - log |sin(pi x)| - log gamma(1 - x)."""
    low, other, sine = _reflected(c)
    found = _log_gamma(c, other)
    log = c.one("Log", c.one("Abs", sine))
    reflected = c.one("Sub", c.one("Sub", c.const(math.log(math.pi), other), log), found)
    return c.one("Where", low, reflected, found)


def _gamma(c: Call) -> ir.Value:
    """Below 1/2 by pi / (sin(pi x) gamma(1 - x))."""
    low, other, sine = _reflected(c)
    found = c.one("Exp", _log_gamma(c, other))
    reflected = c.one("Div", c.const(math.pi, other), c.one("Mul", sine, found))
    return c.one("Where", low, reflected, found)


def _numbers(op: str, neutral: float) -> Translation:
    """A reduction of what is a number."""

    def translated(c: Call) -> ir.Value:
        x, axes = c.inputs[0], reduced_axes(c)
        x = c.one("Where", c.one("IsNaN", x), c.const(neutral, x), x)
        keeps = int(c.attributes.flag("keepdims"))
        found = c.one(op, x, *([c.ints(*axes)] if axes else []), keepdims=keeps)
        return found if keeps or axes else c.one("Reshape", found, c.ints(1))

    return translated


def _moments(c: Call) -> Values:
    """Mean and variance along axes."""
    x, axes = c.inputs[0], c.attributes.integers("axes", ())
    keeps, operands = int(c.attributes.flag("keepdims")), [c.ints(*axes)] if axes else []
    mean = c.one("ReduceMean", x, *operands, keepdims=1)
    off = c.one("Sub", x, mean)
    variance = c.one("ReduceMean", c.one("Mul", off, off), *operands, keepdims=keeps)
    mean = mean if keeps else c.one("ReduceMean", x, *operands, keepdims=0)
    if keeps or axes:
        return mean, variance
    return c.one("Reshape", mean, c.ints(1)), c.one("Reshape", variance, c.ints(1))


def _quadratic(c: Call) -> ir.Value:
    """A x^2 + b x + c."""
    x = c.inputs[0]
    a, b, rest = (c.const(c.attributes.number(name, 0.0), x) for name in ("a", "b", "c"))
    return c.one("Add", c.one("Mul", c.one("Add", c.one("Mul", a, x), b), x), rest)


def _all_finite(c: Call) -> ir.Value:
    """1 where all elements of all operands are finite, else 0, as a list of one float32."""
    c.attributes.flag("init_output", True)
    c.attributes.integer("num_arrays", 1)
    found = c.const(True, np.dtype("?"))
    for x in c.inputs:
        size = c.one("ReduceMax", c.one("Abs", x), keepdims=0)
        finite = c.one("Not", c.one("Or", c.one("IsInf", size), c.one("IsNaN", size)))
        total = c.one("ReduceSum", x, keepdims=0)  # which is no number where an element is none
        finite = c.one("And", finite, c.one("Not", c.one("IsNaN", c.one("Mul", total, c.const(0.0, total)))))
        found = c.one("And", found, finite)
    return c.one("Reshape", c.cast(found, np.dtype("f4")), c.ints(1))


def _khatri_rao(c: Call) -> ir.Value:
    """Products of the columns of matrices: (rows of all, columns)."""
    found = c.inputs[0]
    for x in c.inputs[1:]:
        pair = c.one("Mul", c.one("Unsqueeze", found, c.ints(1)), c.one("Unsqueeze", x, c.ints(0)))
        last = c.one("Shape", x, start=1, end=2)
        found = c.one("Reshape", pair, c.one("Concat", c.ints(-1), last, axis=0))
    return found


def _cross_entropy(c: Call) -> ir.Value:
    """The sum of -log softmax at the labels, as a list of one."""
    x, labels = c.inputs
    places = c.one("Unsqueeze", c.cast(labels, ir.DataType.INT64), c.ints(1))
    picked = c.one("GatherElements", c.one("LogSoftmax", x, axis=-1), places, axis=1)
    return c.one("Reshape", c.one("Neg", c.one("ReduceSum", picked, keepdims=0)), c.ints(1))


def _square_sum(c: Call) -> ir.Value:
    """The sum of squares along axes."""
    x, axes = c.inputs[0], reduced_axes(c)
    keeps = int(c.attributes.flag("keepdims"))
    found = c.one("ReduceSumSquare", x, *([c.ints(*axes)] if axes else []), keepdims=keeps)
    return found if keeps or axes else c.one("Reshape", found, c.ints(1))


def _with_scalar(op: str) -> Translation:
    return lambda c: c.one(op, c.inputs[0], c.const(c.attributes.number("scalar", 1.0), c.inputs[0]))


def _assigned(c: Call) -> ir.Value:
    """The first operand with a part replaced by the second, or by a number."""
    x = c.inputs[0]
    dims = c.dims(x)
    if dims is None:
        raise c.error("the shape of the data is not known; bind the shapes of the inputs")
    begin, end = c.attributes.some_integers("begin"), c.attributes.some_integers("end")
    step = c.attributes.some_integers("step", ()) or (None,) * len(begin)
    c.builder.room.take(nbytes=16 * math.prod(dims))
    places = np.arange(math.prod(dims)).reshape(dims)[tuple(map(slice, begin, end, step))]
    flat, at = c.one("Reshape", x, c.ints(-1)), c.ints(*places.reshape(-1).tolist())
    if c.node.op.endswith("scalar"):
        number = c.const(c.attributes.number("scalar", 0.0), x)
        updates = c.one("Expand", number, c.ints(places.size))
    else:
        updates = c.one("Reshape", c.inputs[1], c.ints(-1))
    return c.one("Reshape", c.one("ScatterElements", flat, at, updates), c.ints(*dims))


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _raveled(c: Call) -> ir.Value:
    """The place in a flattened tensor, of indices in the first axis."""
    x = c.inputs[0]
    found = [
        c.one("Gather", x, c.builder.constant(np.array(i), f"{c.node.name}.axis"))
        for i in range(len(c.attributes.integers("shape")))
    ]
    terms = [c.one("Mul", v, c.const(s, v)) for v, s in zip(found, _strides(c.attributes.integers("shape")))]
    return c.one("Sum", *terms) if c.dtype(x).is_floating_point() else _added(c, terms)


def _added(c: Call, terms: list[ir.Value]) -> ir.Value:
    total = terms[0]
    for term in terms[1:]:
        total = c.one("Add", total, term)
    return total


def _unraveled(c: Call) -> ir.Value:
    """Indices, in a first axis, of places in a flattened tensor."""
    x, shape = c.inputs[0], c.attributes.integers("shape")
    whole = c.cast(x, ir.DataType.INT64)
    parts = []
    for stride, size in zip(_strides(shape), shape):
        part = c.one("Mod", c.one("Div", whole, c.const(stride, whole)), c.const(size, whole))
        parts.append(c.one("Unsqueeze", part, c.ints(0)))
    return c.cast(c.one("Concat", *parts, axis=0), c.dtype(x))


def _index_array(c: Call) -> ir.Value:
    """The indices of every element, in a last axis."""
    dims, axes = c.dims(c.inputs[0]), c.attributes.integers("axes", ())
    if dims is None:
        raise c.error("the shape of the data is not known; bind the shapes of the inputs")
    c.builder.room.take(nbytes=16 * math.prod(dims) * len(dims))
    found = np.moveaxis(np.indices(dims), 0, -1)
    return c.builder.constant(found[..., list(axes)] if axes else found, f"{c.node.name}.constant")


def _allclose(c: Call) -> ir.Value:
    """1 where |a - b| <= atol + rtol |b| for all elements, else 0, a scalar of uint8."""
    a, b = c.inputs
    atol, rtol = c.attributes.number("atol", 1e-8), c.attributes.number("rtol", 1e-5)
    bound = c.one("Add", c.one("Mul", c.one("Abs", b), c.const(rtol, b)), c.const(atol, b))
    close = c.one("LessOrEqual", c.one("Abs", c.one("Sub", a, b)), bound)
    if c.attributes.flag("equal_nan", True):
        close = c.one("Or", close, c.one("And", c.one("IsNaN", a), c.one("IsNaN", b)))
    found = c.one("ReduceMin", c.cast(close, np.dtype("i4")), keepdims=0)
    return c.cast(found, np.dtype("u1"))


def _normalized_relu(c: Call) -> Values:
    found = neural.ROWS["BatchNorm"](c)
    first, *others = (found,) if isinstance(found, ir.Value) else found
    return (c.one("Relu", first), *others)


def _multicast(c: Call) -> Values:
    """All in the widest of their float types, or the narrowest."""
    c.attributes.integer("num_outputs", len(c.inputs))
    kinds = [c.dtype(x).numpy() for x in c.inputs]
    chosen = (min if c.attributes.flag("cast_narrow") else max)(kinds, key=lambda kind: kind.itemsize)
    return tuple(c.one("Cast", x, to=ir.DataType.from_numpy(chosen).value) for x in c.inputs)


def _unchanged(*names: str) -> Translation:
    """The operand; attributes of its gradient or of training are read."""

    def translated(c: Call) -> ir.Value:
        for name in names:
            c.attributes.text(name, "")
        return c.one("Identity", c.inputs[0])

    return translated


ROWS: Mapping[str, Translation] = {
    "gamma": _gamma,
    "gammaln": _gammaln,
    "nansum": _numbers("ReduceSum", 0.0),
    "nanprod": _numbers("ReduceProd", 1.0),
    "moments": _moments,
    "_contrib_quadratic": _quadratic,
    **dict.fromkeys(("all_finite", "multi_all_finite"), _all_finite),
    "khatri_rao": _khatri_rao,
    "softmax_cross_entropy": _cross_entropy,
    "_square_sum": _square_sum,
    "_contrib_gradientmultiplier": _unchanged("scalar", "is_int"),
    "SVMOutput": _unchanged("margin", "regularization_coefficient", "use_linear"),
    "IdentityAttachKLSparseReg": _unchanged("sparseness_target", "penalty"),
    "_contrib_round_ste": elementwise.ROWS["round"],
    **{
        name: _with_scalar(op)
        for name, op in (("_scatter_plus_scalar", "Add"), ("_scatter_minus_scalar", "Sub"))
    },
    "_slice_assign": _assigned,
    "_slice_assign_scalar": _assigned,
    "_ravel_multi_index": _raveled,
    "_unravel_index": _unraveled,
    "_contrib_index_array": _index_array,
    "_contrib_allclose": _allclose,
    "_contrib_BatchNormWithReLU": _normalized_relu,
    "amp_multicast": _multicast,
    "_contrib_sign_ste": lambda c: c.one("Sign", c.inputs[0]),
    "_CrossDeviceCopy": _unchanged(),
}
