"""MXNet's quantized operators as integer arithmetic of ONNX, with the same numbers.

A quantized tensor q stands for q * a / L: a is the larger magnitude of its range, which two more operands
tell, L a number of its type. Sums are int32 and have the range of int32. Values are rounded half to even and
saturated. What looks odd is so in MXNet on CPUs: L is 127.5 and 255.5 in some operators, 127 and 255 in
others; a convolution takes L of int8 for data of uint8, and adds its bias as it is.

Source: measured on MXNet 1.9.1 with oneDNN, operator by operator.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators import neural
from app.engine.model.mxnet.operators.elementwise import Translation, Values

Array = np.ndarray[Any, Any]
_FLOAT, _SUM = np.dtype("f4"), np.dtype("i4")
_HALVES: Mapping[ir.DataType, float] = {ir.DataType.INT8: 127.5, ir.DataType.UINT8: 255.5}
_WHOLE: Mapping[ir.DataType, float] = {ir.DataType.INT8: 127.0, ir.DataType.UINT8: 255.0}
_SUMS = 2.0**31  # largest number of int32, as float32 has it
_TYPES = {"int8": ir.DataType.INT8, "uint8": ir.DataType.UINT8}
_FOLDED: Mapping[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Max": np.maximum,
    "Min": np.minimum,
    "Neg": np.negative,
    "Mul": np.multiply,
    "Div": np.divide,
}


def _of(c: Call, op: str, *operands: ir.Value | float) -> ir.Value:
    """An operator on ranges, computed here where they are known."""
    values = [c.const([v], _FLOAT) if isinstance(v, float) else v for v in operands]
    arrays = [v.const_value.numpy() for v in values if v.const_value is not None]
    return c.const(_FOLDED[op](*arrays), _FLOAT) if len(arrays) == len(values) else c.one(op, *values)


def _size(c: Call, place: int) -> ir.Value:
    """The larger magnitude of a range, whose ends are an operand and the next."""
    return _of(c, "Max", *(_of(c, "Abs", c.inputs[i]) for i in (place, place + 1)))


def _level(c: Call, value: ir.Value, levels: Mapping[ir.DataType, float] = _HALVES) -> float:
    if c.dtype(value) not in levels:
        raise c.error(f"{value.name!r} has elements of {c.dtype(value).name}; expected int8 or uint8")
    return levels[c.dtype(value)]


def _rounded(c: Call, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Floats rounded half to even, and saturated."""
    zero = c.builder.constant(np.zeros((), dtype.numpy()), f"{c.node.name}.zero")
    return c.one("QuantizeLinear", x, c.const(1.0, _FLOAT), zero)


def _calibrated(c: Call) -> tuple[float, float] | None:
    """The range that calibration found."""
    names = ("min_calib_range", "max_calib_range")
    if [c.attributes.given(name) for name in names] != [True, True]:
        return None
    low, high = (c.attributes.number(name) for name in names)
    return low, high


def _out_type(c: Call, default: str, found: tuple[float, float] | None) -> ir.DataType:
    kind = c.attributes.text("out_type", default, (*_TYPES, "auto"))
    if kind == "auto":
        kind = "uint8" if found is not None and found[0] >= 0 else "int8"
    return _TYPES[kind]


def _largest(c: Call, x: ir.Value) -> ir.Value:
    return c.one("ReduceMax", c.one("Reshape", c.one("Abs", x), c.ints(-1)), keepdims=1)


def _ends(c: Call, size: ir.Value, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
    """The ends of a range."""
    return (_of(c, "Neg", size) if dtype == ir.DataType.INT8 else c.const([0], _FLOAT)), size


def _quantize_v2(c: Call) -> Values:
    x, found = c.inputs[0], _calibrated(c)
    dtype = _out_type(c, "int8", found)
    if found is None:
        flat = c.one("Reshape", x, c.ints(-1))
        low, high = (c.one(op, flat, keepdims=1) for op in ("ReduceMin", "ReduceMax"))
    else:
        low, high = (c.const([v], _FLOAT) for v in found)
    size = _of(c, "Max", _of(c, "Abs", low), _of(c, "Abs", high))
    q = _rounded(c, c.one("Mul", x, _of(c, "Div", _HALVES[dtype], size)), dtype)
    return (q, *_ends(c, size, dtype)) if dtype == ir.DataType.INT8 else (q, low, high)


def _quantize(c: Call) -> Values:
    dtype = _out_type(c, "uint8", None)
    size = _size(c, 1)
    q = _rounded(c, c.one("Mul", c.inputs[0], _of(c, "Div", _WHOLE[dtype], size)), dtype)
    return (q, *_ends(c, size, dtype)) if dtype == ir.DataType.INT8 else (q, *c.inputs[1:3])


def _dequantize(c: Call) -> Values:
    c.attributes.text("out_type", "float32", ("float32",))
    q = c.inputs[0]
    scale = _of(c, "Div", _size(c, 1), _level(c, q))
    return c.one(
        "DequantizeLinear", q, c.one("Reshape", scale, c.builder.constant(np.zeros(0, np.int64), "scalar"))
    )


def _requantize(c: Call) -> Values:
    """Sums in the range that was calibrated, or else in that of their largest magnitude."""
    if c.dtype(c.inputs[0]) != ir.DataType.INT32:
        raise c.error(f"operand of {c.dtype(c.inputs[0]).name}; expected int32")
    sums, found = c.cast(c.inputs[0], _FLOAT), _calibrated(c)
    dtype = _out_type(c, "int8", found)
    step = _of(c, "Div", _size(c, 1), _SUMS)
    size = (
        c.one("Mul", _largest(c, sums), step)
        if found is None
        else c.const([max(abs(v) for v in found)], _FLOAT)
    )
    q = _rounded(c, c.one("Mul", sums, _of(c, "Mul", step, _of(c, "Div", _WHOLE[dtype], size))), dtype)
    return q, *_ends(c, size, dtype)


def _summed(c: Call, sums: ir.Value, steps: tuple[ir.Value, ir.Value]) -> Values:
    """Products and their range: that of int32 times both steps."""
    size = _of(c, "Mul", _of(c, "Mul", *steps), _SUMS)
    return sums, _of(c, "Neg", size), size


def _has_bias(c: Call) -> bool:
    has = not c.attributes.flag("no_bias")
    count = 9 if has else 6
    if len(c.inputs) != count:
        raise c.error(f"{len(c.inputs)} operands; expected {count}: operands, then the ends of their ranges")
    return has


def _conv(c: Call) -> Values:
    has_bias = _has_bias(c)
    x, weight = c.inputs[:2]
    if c.dtype(x) != ir.DataType.UINT8 or c.dtype(weight) != ir.DataType.INT8:
        raise c.error(
            f"data of {c.dtype(x).name} and weights of {c.dtype(weight).name}; MXNet computes uint8 and int8 "
            "on CPUs: quantize with quantized_dtype='auto' or 'uint8'"
        )
    c.attributes.text("layout", "None", neural.LAYOUTS)
    c.attributes.integer("num_filter")
    kernel, stride, pads = neural.window(c)
    found = c.one(
        "ConvInteger",
        x,
        weight,
        kernel_shape=kernel,
        strides=stride,
        pads=pads,
        dilations=c.attributes.integers("dilate", (1,) * len(kernel)) or (1,) * len(kernel),
        group=c.attributes.integer("num_group", 1),
    )
    if has_bias:
        bias = c.one("Reshape", c.cast(c.inputs[2], _SUM), c.ints(1, -1, *(1 for _ in kernel)))
        found = c.one("Add", found, bias)
    first = 3 if has_bias else 2
    signed = _WHOLE[ir.DataType.INT8]
    return _summed(
        c, found, (_of(c, "Div", _size(c, first), signed), _of(c, "Div", _size(c, first + 2), signed))
    )


def _fully_connected(c: Call) -> Values:
    has_bias = _has_bias(c)
    x, weight = c.inputs[:2]
    c.attributes.integer("num_hidden")
    first = 3 if has_bias else 2
    data, weights = _size(c, first), _size(c, first + 2)
    rows = c.one("Flatten", x, axis=1) if c.attributes.flag("flatten", True) else x
    found = c.one("MatMulInteger", rows, c.one("Transpose", weight, perm=[1, 0]))
    if has_bias:
        ratio = _of(c, "Mul", _of(c, "Div", _level(c, x), data), _of(c, "Div", _level(c, weight), weights))
        ratio = _of(c, "Div", _of(c, "Mul", ratio, _size(c, first + 4)), _level(c, c.inputs[2]))
        scaled = c.one("Mul", c.cast(c.inputs[2], _FLOAT), ratio)
        found = c.one("Add", found, c.cast(scaled, _SUM))  # towards 0
    steps = _of(c, "Div", data, _level(c, x, _WHOLE)), _of(c, "Div", weights, _level(c, weight, _WHOLE))
    return _summed(c, found, steps)


def _on_floats(translation: Translation) -> Translation:
    """The layer on floats that hold the numbers; the range stays."""

    def translated(c: Call) -> Values:
        q = c.inputs[0]
        _level(c, q)
        found = translation(replace(c, inputs=(c.cast(q, _FLOAT),)))
        assert isinstance(found, ir.Value)
        return _rounded(c, found, c.dtype(q)), *c.inputs[1:3]

    return translated


def _pooling(c: Call) -> Values:
    if c.attributes.text("pool_type", "max", ("max", "avg")) == "avg" or c.dtype(c.inputs[0]) in _HALVES:
        return _on_floats(neural.pooling)(c)
    raise c.error(f"operand of {c.dtype(c.inputs[0]).name}; expected int8 or uint8")


def _activation(c: Call) -> Values:
    """The bits of uint8 are those of an int8 result: numbers past 127 become negative."""
    c.attributes.text("act_type", "", ("relu",))
    q = c.inputs[0]
    if c.dtype(q) == ir.DataType.INT8:
        return c.one("Relu", q), *c.inputs[1:3]
    wide = c.cast(q, _SUM)
    wrapped = c.one(
        "Where", c.one("Greater", wide, c.const(127, _SUM)), c.one("Sub", wide, c.const(256, _SUM)), wide
    )
    return c.cast(wrapped, ir.DataType.INT8), *c.inputs[1:3]


def _flatten(c: Call) -> Values:
    return c.one("Flatten", c.inputs[0], axis=1), *c.inputs[1:3]


def _embedding(c: Call) -> Values:
    """Rows of the weights, and their range."""
    found = neural.embedding(replace(c, inputs=c.inputs[:2]))
    assert isinstance(found, ir.Value)
    return found, *c.inputs[2:4]


def _concat(c: Call) -> Values:
    """In the widest range; of both types int8 is left."""
    count = c.attributes.integer("num_args", len(c.inputs) // 3)
    if count < 1 or len(c.inputs) != 3 * count:
        raise c.error(f"{len(c.inputs)} operands of {count}; expected the ends of a range of each")
    values = c.inputs[:count]
    types = {c.dtype(v) for v in values}
    dtype = ir.DataType.INT8 if ir.DataType.INT8 in types else ir.DataType.UINT8
    low, high = c.inputs[count], c.inputs[count + 1]
    for i in range(1, count):
        low, high = (
            _of(c, "Min", low, c.inputs[count + 2 * i]),
            _of(c, "Max", high, c.inputs[count + 2 * i + 1]),
        )
    step = _of(c, "Div", _of(c, "Max", _of(c, "Abs", low), _of(c, "Abs", high)), _HALVES[dtype])
    parts = []
    for i, q in enumerate(values):
        own = _of(c, "Div", _size(c, count + 2 * i), _level(c, q))
        parts.append(_rounded(c, c.one("Mul", c.cast(q, _FLOAT), _of(c, "Div", own, step)), dtype))
    return c.one("Concat", *parts, axis=c.attributes.integer("dim", 1)), low, high


def _elemwise_add(c: Call) -> Values:
    """Sums in int32, or in the type of the operands where their range was calibrated."""
    a, b = c.inputs[:2]
    dtype = c.dtype(a)
    if c.dtype(b) != dtype:
        raise c.error(
            f"operands of {dtype.name} and {c.dtype(b).name}; expected one type, for MXNet's sums of both "
            "are not reproduced: take another quantized_dtype, or leave the sum out (excluded_sym_names)"
        )
    sizes, found, level = (_size(c, 2), _size(c, 4)), _calibrated(c), _level(c, a)
    if found is None:
        size = c.one("Add", *sizes)
        target = (
            _of(c, "Div", _SUMS, size)
            if size.const_value is not None
            else c.one("Div", c.const([_SUMS], _FLOAT), size)
        )
        own = [_of(c, "Div", s, level) for s in sizes]
        terms = (c.one("Mul", c.cast(v, _FLOAT), c.one("Mul", s, target)) for v, s in zip((a, b), own))
        return _saturated(c, c.one("Add", *terms)), c.one("Neg", size), size
    low, high = found
    target = c.const([level / np.float32(max(abs(low), abs(high)))], _FLOAT)
    scales = (_of(c, "Mul", target, _of(c, "Div", s, level)) for s in sizes)
    terms = (c.one("Mul", c.cast(v, _FLOAT), s) for v, s in zip((a, b), scales))
    return _rounded(c, c.one("Add", *terms), dtype), c.const([low], _FLOAT), c.const([high], _FLOAT)


def _saturated(c: Call, x: ir.Value) -> ir.Value:
    """Floats as int32; the largest float32 below its end takes the place of that."""
    bounds = (c.const(v, _FLOAT) for v in (-_SUMS, np.nextafter(np.float32(_SUMS), np.float32(0))))
    return c.cast(c.one("Clip", c.one("Round", x), *bounds), _SUM)


def _batch_norm(c: Call) -> Values:
    q, gamma, beta, mean, variance = c.inputs[:5]
    found = _calibrated(c)
    if found is None or c.dtype(q) != ir.DataType.INT8 or c.dtype(gamma).numpy() != _FLOAT:
        raise c.error("it is computed of int8, and in a calibrated range (min_calib_range, max_calib_range)")
    for name in ("use_global_stats", "output_mean_var"):
        c.attributes.flag(name)
    if c.attributes.integer("axis", 1) != 1:
        raise c.attributes.error("axis", "1")
    size, level = float(np.float32(max(abs(v) for v in found))), _HALVES[ir.DataType.INT8]
    deviation = c.one("Sqrt", c.one("Add", variance, c.const(c.attributes.number("eps", 1e-3), _FLOAT)))
    slope = (
        c.one("Reciprocal", deviation)
        if c.attributes.flag("fix_gamma", True)
        else c.one("Div", gamma, deviation)
    )
    scale = c.one("Mul", slope, _of(c, "Div", _size(c, 5), size))
    shift = c.one("Mul", c.one("Sub", beta, c.one("Mul", mean, slope)), c.const([level / size], _FLOAT))
    wide = c.ints(1, -1, *[1] * (c.rank(q) - 2))
    scale, shift = (c.one("Reshape", v, wide) for v in (scale, shift))
    y = _rounded(c, c.one("Add", c.one("Mul", c.cast(q, _FLOAT), scale), shift), ir.DataType.INT8)
    return y, *(c.const([v], _FLOAT) for v in found)


def _fused(c: Call) -> Values:
    """The operators that a node of oneDNN's backend stands for."""
    if c.attributes.flag("quantized"):
        raise c.error(
            "a quantized node of the backend MKLDNN has no ONNX form here; save the symbol that "
            "quantize_model makes of the network itself, not of get_backend_symbol('MKLDNN')"
        )
    if len(c.node.subgraphs) != 1:
        raise c.error(f"{len(c.node.subgraphs)} subgraphs; expected 1")
    for name in c.node.attributes:
        c.attributes.text(name, "")
    return c.convert(c.node.subgraphs[0], c.builder, c.inputs)


ROWS: Mapping[str, Translation] = {
    "_contrib_quantize_v2": _quantize_v2,
    "_contrib_quantize": _quantize,
    "_contrib_dequantize": _dequantize,
    "_contrib_requantize": _requantize,
    "_contrib_quantized_conv": _conv,
    "_contrib_quantized_fully_connected": _fully_connected,
    "_contrib_quantized_pooling": _pooling,
    "_contrib_quantized_act": _activation,
    "_contrib_quantized_flatten": _flatten,
    "_contrib_quantized_embedding": _embedding,
    "_contrib_quantized_concat": _concat,
    "_contrib_quantized_elemwise_add": _elemwise_add,
    "_contrib_quantized_batch_norm": _batch_norm,
    "_sg_mkldnn_conv": _fused,
    "_sg_mkldnn_fully_connected": _fused,
}
