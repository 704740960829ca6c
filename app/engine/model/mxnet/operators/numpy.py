"""MXNet's operators of its NumPy interface (`_np_*`, `_npi_*`, `_npx_*`), as ONNX nodes.

Comparisons give bools, and scalars have no axes, as in NumPy.
"""

import ast
import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators import elementwise
from app.engine.model.mxnet.operators.elementwise import Binary, Translation, onnx, plain
from app.engine.model.mxnet.operators.linalg import diagonal, made_diagonal

_BOOL = ir.DataType.BOOL


def _differ(c: Call, a: ir.Value, b: ir.Value) -> ir.Value:
    return c.one("Not", c.one("Equal", a, b))


def _divided(c: Call, a: ir.Value, b: ir.Value) -> ir.Value:
    """Whole numbers are divided as float32."""
    pair = [v if c.dtype(v).is_floating_point() else c.cast(v, np.dtype("f4")) for v in (a, b)]
    return c.one("Div", *pair)


def _copysign(c: Call, a: ir.Value, b: ir.Value) -> ir.Value:
    negative = c.one("Less", b, c.const(0, b))
    size = c.one("Abs", a)
    return c.one("Where", negative, c.one("Neg", size), size)


def _arctan2(c: Call, y: ir.Value, x: ir.Value) -> ir.Value:
    """atan(y / x), by half a turn more or less where x is below 0."""
    zero = c.const(0, y)
    found = c.one("Atan", c.one("Div", y, x))
    turn = c.one("Where", c.one("Less", y, zero), c.const(-math.pi, y), c.const(math.pi, y))
    found = c.one("Where", c.one("Less", x, zero), c.one("Add", found, turn), found)
    none = c.one("And", c.one("Equal", x, zero), c.one("Equal", y, zero))
    return c.one("Where", none, zero, found)


_BINARY: Mapping[str, Binary] = {
    "add": onnx("Add"),
    "subtract": onnx("Sub"),
    "multiply": onnx("Mul"),
    "true_divide": _divided,
    "mod": elementwise.modulo,
    "power": onnx("Pow"),
    "hypot": elementwise.hypotenuse,
    "copysign": _copysign,
    "arctan2": _arctan2,
    "equal": onnx("Equal"),
    "not_equal": _differ,
    "greater": onnx("Greater"),
    "greater_equal": onnx("GreaterOrEqual"),
    "less": onnx("Less"),
    "less_equal": onnx("LessOrEqual"),
    "maximum": onnx("Max"),
    "minimum": onnx("Min"),
}
_REVERSED = ("subtract", "true_divide", "mod", "power", "copysign", "arctan2")


def _two(function: Binary) -> Translation:
    return lambda c: function(c, c.inputs[0], c.inputs[1])


def _with_scalar(function: Binary, *, is_reversed: bool = False) -> Translation:
    def translated(c: Call) -> ir.Value:
        x, scalar = c.inputs[0], c.attributes.number("scalar", 1.0)
        if not c.dtype(x).is_floating_point() and not scalar.is_integer():
            x = c.cast(x, np.dtype("f4"))
        pair = (x, c.const(scalar, x))
        return function(c, *(reversed(pair) if is_reversed else pair))

    return translated


_SAME = """negative reciprocal sign rint ceil floor trunc fix square sqrt cbrt exp expm1 log log10 log2 log1p
sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh degrees radians"""


def _around(c: Call) -> ir.Value:
    """Half to even, at so many decimals."""
    x, factor = c.inputs[0], 10.0 ** c.attributes.integer("decimals", 0)
    if factor == 1.0:
        return c.one("Round", x)
    return c.one("Div", c.one("Round", c.one("Mul", x, c.const(factor, x))), c.const(factor, x))


def _not(c: Call) -> ir.Value:
    return c.one("Not", c.cast(c.inputs[0], _BOOL))


def _finite(c: Call) -> ir.Value:
    x = c.inputs[0]
    return c.one("Not", c.one("Or", c.one("IsNaN", x), c.one("IsInf", x)))


def _numbers(c: Call) -> ir.Value:
    """Replace NaN and infinities by numbers."""
    x = c.inputs[0]
    c.attributes.flag("copy", True)
    limits = np.finfo(c.dtype(x).numpy())
    found = c.one("Where", c.one("IsNaN", x), c.const(c.attributes.number("nan", 0.0), x), x)
    for name, limit, only in (("posinf", limits.max, "negative"), ("neginf", limits.min, "positive")):
        value = c.attributes.number(name) if c.attributes.given(name) else float(limit)
        infinite = c.one("IsInf", found, **{f"detect_{only}": 0})
        found = c.one("Where", infinite, c.const(value, x), found)
    return found


def _axes(c: Call, name: str = "axis") -> list[ir.Value]:
    found = c.attributes.integers(name, ())
    return [c.ints(*found)] if found else []


def _reduced(op: str) -> Translation:
    def translated(c: Call) -> ir.Value:
        x = c.inputs[0]
        if c.attributes.given("initial"):
            raise c.error("initial is not supported; expected None")
        dtype = c.attributes.dtype("dtype", None)
        x = x if dtype is None else c.cast(x, dtype)
        return c.one(op, x, *_axes(c), keepdims=int(c.attributes.flag("keepdims")))

    return translated


def _spread(root: bool) -> Translation:
    """Variance or deviation, of the mean of all but `ddof` numbers."""

    def translated(c: Call) -> ir.Value:
        x, less = c.inputs[0], c.attributes.integer("ddof", 0)
        axes, keeps = _axes(c), int(c.attributes.flag("keepdims"))
        if c.attributes.given("dtype"):
            raise c.error("dtype is not supported; expected None")
        off = c.one("Sub", x, c.one("ReduceMean", x, *axes, keepdims=1))
        total = c.one("ReduceSumSquare", off, *axes, keepdims=keeps)
        ones = c.one("Expand", c.const(1, x), c.one("Shape", x))
        count = c.one("ReduceSum", ones, *axes, keepdims=keeps)
        found = c.one("Div", total, c.one("Sub", count, c.const(float(less), x)))
        return c.one("Sqrt", found) if root else found

    return translated


def _logical(op: str) -> Translation:
    """True where all, or any, elements are not 0."""

    def translated(c: Call) -> ir.Value:
        truth = c.cast(c.cast(c.inputs[0], _BOOL), np.dtype("i4"))
        found = c.one(op, truth, *_axes(c), keepdims=int(c.attributes.flag("keepdims")))
        return c.cast(found, _BOOL)

    return translated


def _extreme(op: str) -> Translation:
    """The int64 index of an extreme."""

    def translated(c: Call) -> ir.Value:
        x, keeps = c.inputs[0], int(c.attributes.flag("keepdims"))
        if c.attributes.given("axis"):
            return c.one(op, x, axis=c.attributes.integer("axis"), keepdims=keeps)
        found = c.one(op, c.one("Reshape", x, c.ints(-1)), axis=0, keepdims=0)
        return c.one("Reshape", found, c.ints(*[1] * c.rank(x))) if keeps else found

    return translated


def _joined(default: int) -> Translation:
    def translated(c: Call) -> ir.Value:
        c.attributes.integer("num_args", len(c.inputs))
        if c.attributes.text("axis", str(default)) == "None":
            return c.one("Concat", *(c.one("Reshape", x, c.ints(-1)) for x in c.inputs), axis=0)
        return c.one("Concat", *c.inputs, axis=c.attributes.integer("axis", default))

    return translated


def _stacked(c: Call) -> ir.Value:
    c.attributes.integer("num_args", len(c.inputs))
    axis = c.attributes.integer("axis", 0)
    return c.one("Concat", *(c.one("Unsqueeze", x, c.ints(axis)) for x in c.inputs), axis=axis)


def _row_stacked(c: Call) -> ir.Value:
    """Lists are rows."""
    c.attributes.integer("num_args", len(c.inputs))
    rows = [c.one("Unsqueeze", x, c.ints(0)) if c.rank(x) < 2 else x for x in c.inputs]
    return c.one("Concat", *rows, axis=0)


def _column_stacked(c: Call) -> ir.Value:
    c.attributes.integer("num_args", len(c.inputs))
    return c.one("Concat", *c.inputs, axis=0 if c.rank(c.inputs[0]) == 1 else 1)


def _where(c: Call) -> ir.Value:
    condition, *others = c.inputs
    return c.one("Where", c.cast(condition, _BOOL), *others)


def _dot(c: Call) -> ir.Value:
    a, b = c.inputs
    if c.rank(b) > 2:
        raise c.error(f"a product with {c.rank(b)} axes on the right; expected 1 or 2")
    if 0 in (c.rank(a), c.rank(b)):
        return c.one("Mul", a, b)
    return c.one("MatMul", a, b)


def _filled(value: float | None) -> Translation:
    """A constant tensor of a shape."""

    def translated(c: Call) -> ir.Value:
        shape, dtype = c.attributes.integers("shape", ()), c.attributes.dtype("dtype", "float32")
        c.attributes.text("ctx", "")
        found = c.const(c.attributes.number("value") if value is None else value, dtype or np.dtype("f4"))
        return c.one("Expand", found, c.ints(*shape)) if shape else found

    return translated


def _full_like(c: Call) -> ir.Value:
    x = c.inputs[0]
    kind = c.attributes.dtype("dtype", None) or c.dtype(x).numpy()
    return c.one("Expand", c.const(c.attributes.number("fill_value"), kind), c.one("Shape", x))


def _arange(c: Call) -> ir.Value:
    start, step = c.attributes.number("start", 0.0), c.attributes.number("step", 1.0)
    stop = c.attributes.number("stop") if c.attributes.given("stop") else None
    start, stop = (0.0, start) if stop is None else (start, stop)
    c.attributes.text("ctx", ""), c.attributes.text("repeat", "1"), c.attributes.text("infer_range", "")
    dtype = c.attributes.dtype("dtype", "float32") or np.dtype("f4")
    c.builder.room.take(nbytes=8 * max(int((stop - start) / step), 0))
    return c.builder.constant(np.arange(start, stop, step).astype(dtype), f"{c.node.name}.constant")


def _linspace(c: Call) -> ir.Value:
    count, dtype = c.attributes.integer("num", 50), c.attributes.dtype("dtype", "float32") or np.dtype("f4")
    start = c.attributes.number("start", 0.0)
    stop = c.attributes.number("stop")
    c.attributes.text("ctx", ""), c.attributes.text("step", ""), c.attributes.text("repeat", "")
    c.builder.room.take(nbytes=8 * count)
    found = np.linspace(start, stop, count, endpoint=c.attributes.flag("endpoint", True))
    return c.builder.constant(found.astype(dtype), f"{c.node.name}.constant")


def _eye(c: Call) -> ir.Value:
    rows, columns = c.attributes.integer("N"), c.attributes.integer("M", 0)
    dtype = c.attributes.dtype("dtype", "float32") or np.dtype("f4")
    c.attributes.text("ctx", "")
    c.builder.room.take(nbytes=8 * rows * (columns or rows))
    found = np.eye(rows, columns or rows, k=c.attributes.integer("k", 0), dtype=dtype)
    return c.builder.constant(found, f"{c.node.name}.constant")


def _identity(c: Call) -> ir.Value:
    shape, dtype = c.attributes.integers("shape"), c.attributes.dtype("dtype", "float32") or np.dtype("f4")
    c.attributes.text("ctx", "")
    c.builder.room.take(nbytes=8 * shape[0] ** 2)
    return c.builder.constant(np.eye(shape[0], dtype=dtype), f"{c.node.name}.constant")


def _tril(c: Call) -> ir.Value:
    places = c.builder.constant(np.array(c.attributes.integer("k", 0), np.int64), f"{c.node.name}.k")
    return c.one("Trilu", c.inputs[0], places, upper=0)


def _flip(c: Call) -> ir.Value:
    x = c.inputs[0]
    axes = c.attributes.integers("axis", ()) or tuple(range(c.rank(x)))
    ends = (-1,) * len(axes), (-(2**31) + 1,) * len(axes)
    return c.one("Slice", x, *(c.ints(*e) for e in ends), c.ints(*axes), c.ints(*[-1] * len(axes)))


def _reshaped(c: Call) -> ir.Value:
    if c.attributes.text("order", "C") != "C":
        raise c.attributes.error("order", "C")
    return c.one("Reshape", c.inputs[0], c.ints(*c.attributes.integers("newshape")), allowzero=1)


def _squeezed(c: Call) -> ir.Value:
    return c.one("Squeeze", c.inputs[0], *_axes(c))


def _moved(c: Call) -> ir.Value:
    rank = c.rank(c.inputs[0])
    source = [a % rank for a in c.attributes.integers("source")]
    target = [a % rank for a in c.attributes.integers("destination")]
    order = [i for i in range(rank) if i not in source]
    for at, axis in sorted(zip(target, source, strict=True)):
        order.insert(at, axis)
    return c.one("Transpose", c.inputs[0], perm=order)


def _rolled(c: Call) -> ir.Value:
    x, shifts = c.inputs[0], c.attributes.integers("shift")
    if not c.attributes.given("axis"):
        raise c.error("axis=None is not supported; expected axes")
    for axis, shift in zip(c.attributes.integers("axis"), shifts, strict=True):
        size = c.extent(x, axis % c.rank(x))
        if size is None:
            raise c.error(f"axis {axis} of {x.name!r} is free; bind the shapes of the inputs")
        at = c.ints(size - shift % size)
        first = c.one("Slice", x, at, c.ints(size), c.ints(axis))
        rest = c.one("Slice", x, c.ints(0), at, c.ints(axis))
        x = c.one("Concat", first, rest, axis=axis)
    return x


def _einsum(c: Call) -> ir.Value:
    c.attributes.integer("num_args", len(c.inputs)), c.attributes.text("optimize", "0")
    return c.one("Einsum", *c.inputs, equation=c.attributes.text("subscripts", ""))


def _contracted(c: Call, left: list[int], right: list[int]) -> ir.Value:
    """The sum of products over axes of both, by Einsum."""
    a, b = c.inputs
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    of_a = [next(letters) for _ in range(c.rank(a))]
    of_b = [of_a[left[right.index(i)]] if i in right else next(letters) for i in range(c.rank(b))]
    out = [x for i, x in enumerate(of_a) if i not in left] + [x for i, x in enumerate(of_b) if i not in right]
    return c.one("Einsum", a, b, equation=f"{''.join(of_a)},{''.join(of_b)}->{''.join(out)}")


def _tensordot(c: Call) -> ir.Value:
    axes = (c.attributes.integers(f"{name}_axes_summed") for name in "ab")
    left, right = ([i % c.rank(x) for i in found] for found, x in zip(axes, c.inputs))
    return _contracted(c, left, right)


def _tensordot_last(c: Call) -> ir.Value:
    count, rank = c.attributes.integer("axes"), c.rank(c.inputs[0])
    return _contracted(c, list(range(rank - count, rank)), list(range(count)))


def _padded(c: Call) -> ir.Value:
    modes = {"constant": "constant", "edge": "edge", "reflect": "reflect"}
    mode, x = c.attributes.text("mode", "constant", modes), c.inputs[0]
    c.attributes.text("reflect_type", "even", ("even",))
    try:
        pairs = ast.literal_eval(c.attributes.text("pad_width", "()"))
        pads = [int(p[end]) for end in range(2) for p in pairs]
    except (ValueError, SyntaxError, TypeError, IndexError, MemoryError, RecursionError):
        raise c.attributes.error("pad_width", "pairs of whole numbers") from None
    fill = c.const(c.attributes.number("constant_value", 0.0), x)
    return c.one("Pad", x, c.ints(*pads), *([fill] if mode == "constant" else []), mode=mode)


def _norm(c: Call) -> ir.Value:
    order = c.attributes.number("ord", 2.0)
    c.attributes.text("flag", "")
    if order not in (1.0, 2.0) or len(c.attributes.integers("axis", ())) > 1:
        raise c.error("a norm of a matrix, or of another order than 1 or 2, is not supported")
    keeps = int(c.attributes.flag("keepdims"))
    return c.one(f"ReduceL{int(order)}", c.inputs[0], *_axes(c), keepdims=keeps)


def _difference(c: Call) -> ir.Value:
    x, axis = c.inputs[0], c.attributes.integer("axis", -1)
    for _ in range(c.attributes.integer("n", 1)):
        after = c.one("Slice", x, c.ints(1), c.ints(2**31 - 1), c.ints(axis))
        x = c.one("Sub", after, c.one("Slice", x, c.ints(0), c.ints(-1), c.ints(axis)))
    return x


def _at_least(rank: int) -> Translation:
    """New axes before the others."""

    def translated(c: Call) -> ir.Value:
        c.attributes.integer("num_args", 1)
        (x,) = c.inputs
        missing = rank - c.rank(x)
        return c.one("Unsqueeze", x, c.ints(*range(missing))) if missing > 0 else c.one("Identity", x)

    return translated


def _diag(c: Call) -> ir.Value:
    x, offset = c.inputs[0], c.attributes.integer("k", 0)
    return made_diagonal(c, x, offset) if c.rank(x) == 1 else diagonal(c, x, offset)


def _trace(c: Call) -> ir.Value:
    if (c.attributes.integer("axis1", 0), c.attributes.integer("axis2", 1), c.rank(c.inputs[0])) != (0, 1, 2):
        raise c.error("a trace of more than two axes is not supported")
    return c.one("ReduceSum", diagonal(c, c.inputs[0], c.attributes.integer("offset", 0)), keepdims=0)


def _rows() -> Mapping[str, Translation]:
    found: dict[str, Translation] = {}
    for name, function in _BINARY.items():
        found[f"_npi_{name}"] = _two(function)
        found[f"_npi_{name}_scalar"] = _with_scalar(function)
        if name in _REVERSED:
            found[f"_npi_r{name}_scalar"] = _with_scalar(function, is_reversed=True)
    found |= {f"_npi_{name}": elementwise.ROWS[name] for name in _SAME.split()}
    return found


ROWS: Mapping[str, Translation] = {
    **_rows(),
    "_npi_absolute": plain("Abs"),
    "_npi_around": _around,
    "_npi_logical_not": _not,
    "_npi_isnan": plain("IsNaN"),
    "_npi_isinf": plain("IsInf"),
    "_npi_isposinf": plain("IsInf", detect_negative=0),
    "_npi_isneginf": plain("IsInf", detect_positive=0),
    "_npi_isfinite": _finite,
    "_npi_nan_to_num": _numbers,
    "_np_sum": _reduced("ReduceSum"),
    "_npi_mean": _reduced("ReduceMean"),
    "_np_max": _reduced("ReduceMax"),
    "_np_min": _reduced("ReduceMin"),
    "_np_prod": _reduced("ReduceProd"),
    "_npi_std": _spread(root=True),
    "_npi_var": _spread(root=False),
    "_np_all": _logical("ReduceMin"),
    "_np_any": _logical("ReduceMax"),
    "_npi_argmax": _extreme("ArgMax"),
    "_npi_argmin": _extreme("ArgMin"),
    "_npi_concatenate": _joined(0),
    "_npi_stack": _stacked,
    "_npi_vstack": _row_stacked,
    "_npi_hstack": _column_stacked,
    "_npi_broadcast_to": lambda c: c.one("Expand", c.inputs[0], c.ints(*c.attributes.integers("shape"))),
    "_npi_where": _where,
    "_npi_matmul": plain("MatMul"),
    "_np_dot": _dot,
    "_npi_zeros": _filled(0),
    "_npi_ones": _filled(1),
    "_npi_full_like": _full_like,
    "_npi_arange": _arange,
    "_linspace": _linspace,
    **dict.fromkeys(("_npi_eye", "_eye"), _eye),
    "_npi_identity": _identity,
    "_npi_tril": _tril,
    "_npi_flip": _flip,
    "_npi_einsum": _einsum,
    "_npi_tensordot": _tensordot,
    "_npi_tensordot_int_axes": _tensordot_last,
    "_npi_pad": _padded,
    "_npi_norm": _norm,
    "_npi_diff": _difference,
    "_np_copy": plain("Identity"),
    "_np_transpose": lambda c: c.one(
        "Transpose", c.inputs[0], perm=c.attributes.integers("axes", ()) or None
    ),
    "_np_reshape": _reshaped,
    "_np_squeeze": _squeezed,
    "_np_moveaxis": _moved,
    "_np_roll": _rolled,
    **{f"_np_atleast_{rank}d": _at_least(rank) for rank in (1, 2)},
    "_np_diag": _diag,
    "_np_trace": _trace,
    "_npx_relu": plain("Relu"),
    "_npx_sigmoid": plain("Sigmoid"),
}
