"""Rows of integer products: zero points are subtracted first, then 32-bit products are taken."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu import conv, matmul, windows
from app.engine.backends.numba_cpu.epilogues import Epilogue
from app.engine.backends.numba_cpu.operands import unsuited
from app.engine.cost import flops, roofline
from app.engine.plan import Argument, Constant, Group, KernelCall, Workspace
from app.engine.registry import Implementation, Known
from app.kernels.cpu.tiles import ROW_BIAS

Array = np.ndarray[Any, Any]

BYTES = ("int8", "uint8")
INT32 = np.dtype(np.int32)


def _zero(value: ir.Value | None, like: ir.Value) -> Argument:
    """A zero point as an operand; one that is left out is zero."""
    if value is not None:
        return value
    kind = graph.dtype(like)
    assert kind is not None
    return Constant(np.zeros(1, kind))


def _single(value: ir.Value | None) -> str | None:
    if value is not None and graph.elements(value) != 1:
        return f"zero point {value.name!r} has {graph.elements(value)} elements; this one takes one"
    return None


def _widened(x: ir.Value, zero: ir.Value | None) -> tuple[KernelCall, Workspace]:
    """An operand minus its zero point as int32, in scratch memory of the step."""
    kind = graph.dtype(x)
    assert kind is not None
    wide = Workspace(max(graph.elements(x), 1) * 4)
    types = (f"{kind.name}*", f"{kind.name}*", "int32*")
    return (
        KernelCall("app.kernels.cpu.zero_points:widen", types, (x, _zero(zero, x), wide), graph.elements(x)),
        wide,
    )


def _shifted(value: ir.Value, zero: ir.Value | None, axis: int) -> Array:
    """A constant minus its zero point, which may be one per position along an axis."""
    array, offset = graph.constant(value), graph.constant(zero)
    assert array is not None
    if offset is None:
        return array.astype(np.int32)
    shape = [1] * array.ndim
    if offset.size > 1:
        shape[axis] = offset.size
    return array.astype(np.int32) - offset.astype(np.int32).reshape(shape)


class _Inputs:
    """The operands of an integer product by their roles; scales and y's zero point only of QLinear*."""

    def __init__(self, node: ir.Node) -> None:
        self.linear = node.op_type.startswith("QLinear")
        places = range(8) if self.linear else (0, None, 2, 1, None, 3, None, None)
        found = [None if i is None else graph.input_at(node, i) for i in places]
        self.a, self.a_scale, self.a_zero, self.b, self.b_scale, self.b_zero, *last = found
        self.y_scale, self.y_zero = last
        self.bias = graph.input_at(node, 8) if node.op_type == "QLinearConv" else None

    @property
    def scales(self) -> tuple[ir.Value | None, ...]:
        return self.a_scale, self.b_scale, self.y_scale


def _unless(group: Group, _known: Known) -> str | None:
    reason = unsuited(group)
    if reason is not None:
        return reason
    node, of = group.anchor, _Inputs(group.anchor)
    assert of.a is not None
    assert of.b is not None
    for value in (of.a, of.b, *(group.outputs if of.linear else ())):
        kind = graph.dtype(value)
        if kind is None or kind.name not in BYTES:
            return f"value {value.name!r} is {kind}; this one takes {', '.join(BYTES)}"
    is_conv = "Conv" in node.op_type
    rank = len(graph.static_shape(group.outputs[0])) - 2
    if is_conv and not 1 <= rank <= 3:
        return f"{rank} spatial axes; this one has 1 to 3"
    fixed = [of.b, of.b_zero] if is_conv else []
    if of.b_zero is not None and graph.elements(of.b_zero) > 1:
        if len(graph.static_shape(of.b_zero)) > 1:
            return f"zero point {of.b_zero.name!r} has more than one axis"
        fixed = [of.b, of.b_zero]
    if of.linear:
        fixed += [*of.scales, of.bias]
        many = next((v for v in (of.a_scale, of.y_scale) if v is not None and graph.elements(v) > 1), None)
        if many is not None:
            return f"scale {many.name!r} has {graph.elements(many)} elements; this one takes one"
    changing = next((v for v in fixed if v is not None and not graph.is_constant(v)), None)
    if changing is not None:
        return f"{changing.name!r} changes between runs; this one prepares it offline"
    return _single(of.a_zero) or _single(of.y_zero)


def _matmul(group: Group, y: Argument, known: Known) -> tuple[KernelCall, ...]:
    """Sums of a matrix product into y."""
    of = _Inputs(group.anchor)
    assert of.a is not None
    assert of.b is not None
    product = matmul.product_of(of.a, of.b)
    first, a = _widened(of.a, of.a_zero)
    if graph.is_constant(of.b) and (of.b_zero is None or graph.is_constant(of.b_zero)):
        b = _shifted(of.b, of.b_zero, -1)
        return first, matmul.product_call(product, INT32, a, b, y, known)
    second, wide = _widened(of.b, of.b_zero)
    return first, second, matmul.product_call(product, INT32, a, wide, y, known)


def _conv(group: Group, y: Argument, known: Known) -> tuple[KernelCall, ...]:
    """Sums of a convolution into y."""
    of = _Inputs(group.anchor)
    assert of.a is not None
    assert of.b is not None
    window = windows.of_conv(group.anchor, of.b)
    first, x = _widened(of.a, of.a_zero)
    weights = _shifted(of.b, of.b_zero, 0).reshape(window.groups, window.outputs, window.depth)
    nothing, scalars = Constant(np.zeros(1, INT32)), Constant(Epilogue().scalars(INT32))
    ends = conv.Ends(of.bias or nothing, nothing, scalars, ROW_BIAS * (of.bias is not None), Epilogue())
    part = conv.Part(window.flat(), weights, of.b.name or "")
    return first, conv.product_call(part, INT32, x, y, ends, known)


def _requantized(group: Group, sums: Workspace) -> KernelCall:
    """The sums as 8-bit numbers of the output's scale."""
    of = _Inputs(group.anchor)
    (y,) = group.outputs
    kind, shape = graph.dtype(y), graph.static_shape(y)
    assert kind is not None
    a_scale, b_scale, y_scale = (graph.constant(v) for v in of.scales)
    assert a_scale is not None
    assert b_scale is not None
    assert y_scale is not None
    factors = (a_scale.reshape(-1) * b_scale.reshape(-1) / y_scale.reshape(-1)).astype(np.float32)
    inner = math.prod(shape[2:]) if group.op == "QLinearConv" else 1
    columns = shape[-1] if shape else 1
    limits = np.iinfo(kind)
    pointer = f"{kind.name}*"
    arguments: tuple[tuple[str, Argument], ...] = (
        ("int32*", sums),
        ("float32*", Constant(factors)),
        (pointer, _zero(of.y_zero, y)),
        (pointer, y),
        *(("int64", n) for n in (columns, factors.size, inner, int(limits.min), int(limits.max))),
    )
    return KernelCall(
        "app.kernels.cpu.zero_points:requantize",
        tuple(t for t, _ in arguments),
        tuple(a for _, a in arguments),
        graph.elements(y) // max(columns, 1),
    )


Sums = Callable[[Group, Argument, Known], tuple[KernelCall, ...]]


def _lower(sums: Sums) -> Callable[[Group, Known], tuple[KernelCall, ...]]:
    def lower(group: Group, known: Known) -> tuple[KernelCall, ...]:
        (y,) = group.outputs
        if graph.elements(y) == 0:
            return ()
        if not _Inputs(group.anchor).linear:
            return sums(group, y, known)
        wide = Workspace(graph.elements(y) * 4)
        return *sums(group, wide, known), _requantized(group, wide)

    return lower


def _cost(group: Group, known: Known) -> float:
    return roofline(
        known.target,
        flops=flops(group),
        nbytes=4 * sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)),
        efficiency=0.3,
        threads=known.threads,
    )


IMPLEMENTATIONS = tuple(
    Implementation(f"{name}.int32", op, "numba-cpu", _unless, _lower(sums), _cost)
    for name, op, sums in (
        ("matmul_integer", "MatMulInteger", _matmul),
        ("qlinear_matmul", "QLinearMatMul", _matmul),
        ("conv_integer", "ConvInteger", _conv),
        ("qlinear_conv", "QLinearConv", _conv),
    )
)
