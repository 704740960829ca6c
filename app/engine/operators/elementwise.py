"""From elementwise nodes to the recipe that generated code computes.

Attributes become parameters, optional inputs disappear, and operators with many forms become
several instructions. What cannot be translated is named with the reason.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.graph import scalar
from app.engine.core.group import Group
from app.kernels.expressions import (
    DTYPES,
    FLOATS,
    HALVES,
    Parameter,
    Recipe,
    computed,
    result_dtypes,
    template,
)

ROOT_ERROR = 1e-6  # what models write for the square root of 2 or of 1/2 is off by less
_LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a recipe reads, and its shape as it aligns with the last axes of the results."""

    value: ir.Value
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Formula:
    """A recipe and what it reads and leaves.

    Attributes:
        recipe: instructions on numbered values, operands first.
        operands: what the first values are read from.
        dtypes: of the operands, as they are in memory.
        results: number of the value and dtype in memory of each output that was asked for.
    """

    recipe: Recipe
    operands: tuple[Operand, ...]
    dtypes: tuple[str, ...]
    results: tuple[tuple[int, str], ...]


class _RefusedError(Exception):
    """Nodes have no recipe; the message is the reason."""


def formula_of(group: Group) -> Formula | str:
    """The formula of an elementwise group, or why it is not one over a single shape of outputs."""
    formula = recipe_of(group.nodes, group.outputs)
    if isinstance(formula, str):
        return formula
    shape = graph.static_shape(group.outputs[0])
    for value in group.outputs:
        if graph.static_shape(value) != shape:
            return f"outputs {group.outputs[0].name!r} and {value.name!r} differ in shape"
    try:
        broadcast = np.broadcast_shapes(*(operand.shape for operand in formula.operands))
    except ValueError as mismatch:
        return f"operands do not broadcast: {mismatch}"
    if broadcast != shape:
        return f"operands broadcast to {list(broadcast)}, the output is {list(shape)}"
    return formula


def recipe_of(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], first: Sequence[ir.Value] = ()
) -> Formula | str:
    """The recipe of elementwise nodes in execution order, or the reason why they have none.

    What the nodes read and none of them makes becomes an operand: in order of first use, one for
    each shape that a tensor is aligned with. `outputs` are values that the nodes make; `first`
    become the first operands, read or not: what an epilogue follows.
    """
    work = _Work()
    try:
        for value in first:
            work.read(value)
        for node in nodes:
            work.made[node.outputs[0]] = _translate(work, node)
        results = [(work.made[value], _dtype(value)) for value in outputs]
    except _RefusedError as refused:
        return str(refused)
    _combine(work)
    count = len(work.operands)

    def number(temporary: int) -> int:
        return ~temporary if temporary < 0 else count + temporary

    recipe = tuple((op, tuple(map(number, refs)), parameters) for op, refs, parameters in work.instructions)
    dtypes = tuple(_dtype(operand.value) for operand in work.operands)
    return Formula(recipe, tuple(work.operands), dtypes, tuple((number(i), dtype) for i, dtype in results))


def _combine(work: "_Work") -> None:
    """Let x * Sigmoid(x), and x / 2 * (1 + Erf(x / sqrt(2))), be one instruction, cheaper than all."""
    for k, (op, refs, _) in enumerate(work.instructions):
        if op != "Mul" or work.kinds[k] not in FLOATS:
            continue
        if (x := _gelu_argument(work, k)) is not None:
            work.instructions[k] = ("Gelu", (x,), ())
            continue
        for gate, x in (refs, refs[::-1]):
            if gate >= 0 and work.instructions[gate][:2] == ("Sigmoid", (x,)):
                work.instructions[k] = ("Silu", (x,), ())


def _gelu_argument(work: "_Work", k: int) -> int | None:
    """The number of x where instruction k is x / 2 * (1 + Erf(x / sqrt(2))), factors in any order."""
    factors: list[int] = []
    pending = [k]
    while pending and len(factors) < 4:
        number = pending.pop()
        if number >= 0 and work.instructions[number][0] == "Mul":
            pending += work.instructions[number][1]
        else:
            factors.append(number)
    if pending or len(factors) != 3:
        return None
    for x, half, gate in itertools.permutations(factors):
        if work.fixed(half) != 0.5 or gate < 0 or work.instructions[gate][0] != "Add":
            continue
        for one, erf in itertools.permutations(work.instructions[gate][1]):
            if work.fixed(one) != 1 or erf < 0 or work.instructions[erf][0] != "Erf":
                continue
            (inner,) = work.instructions[erf][1]
            if inner < 0 or work.instructions[inner][0] not in ("Mul", "Div"):
                continue
            scale, operands, _ = work.instructions[inner]
            root = 0.5**0.5 if scale == "Mul" else 2**0.5
            for y, factor in (operands, operands[::-1]) if scale == "Mul" else (operands,):
                value = work.fixed(factor)
                if y == x and value is not None and abs(value - root) < ROOT_ERROR:
                    return x
    return None


@dataclass
class _Work:
    """A recipe in the making: operand i has number ~i, the result of instruction k has number k."""

    operands: dict[Operand, int] = field(default_factory=dict)
    instructions: list[tuple[str, tuple[int, ...], tuple[Parameter, ...]]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # dtypes of the results
    made: dict[ir.Value, int] = field(default_factory=dict)

    def read(self, value: ir.Value | None, shape: tuple[int, ...] | None = None) -> int:
        assert value is not None
        if value in self.made:
            return self.made[value]
        _dtype(value)
        operand = Operand(value, graph.static_shape(value) if shape is None else shape)
        return ~self.operands.setdefault(operand, len(self.operands))

    def fixed(self, number: int) -> float | None:
        """Constant number that an operand is everywhere; None for others."""
        return scalar(list(self.operands)[~number].value) if number < 0 else None

    def kind(self, number: int) -> str:
        return self.kinds[number] if number >= 0 else _dtype(list(self.operands)[~number].value)

    def emit(self, op: str, refs: Iterable[int], *parameters: Parameter) -> int:
        refs = tuple(refs)
        kinds = [self.kind(r) for r in refs]
        if template(op, kinds[-1]) is None:
            raise _RefusedError(f"{op} is not generated for {kinds[-1]}")
        instruction = (op, refs, parameters)
        local = ((op, tuple(range(len(refs))), parameters),)
        self.instructions.append(instruction)
        self.kinds.append(result_dtypes(local, kinds)[-1])
        return len(self.instructions) - 1

    def cast(self, number: int, dtype: str) -> int:
        return number if self.kind(number) == dtype else self.emit("Cast", (number,), dtype)


def _dtype(value: ir.Value) -> str:
    if graph.is_dynamic(value):
        raise _RefusedError(f"value {value.name!r} has no static shape and element type")
    kind = graph.element_type(value)
    name = _NAMES.get(kind)  # NumPy makes the name of a type anew each time
    if name is None:
        raise _RefusedError(f"value {value.name!r} is {kind}, for which no code is generated")
    return name


_NAMES = {np.dtype(name): name for name in DTYPES}


def _translate(work: _Work, node: ir.Node) -> int:
    if len([v for v in node.outputs if v.name]) != 1:
        raise _RefusedError(f"{node.op_type} {node.name!r} has {len(node.outputs)} outputs")
    if node.domain not in ("", "ai.onnx"):
        raise _RefusedError(f"{node.op_type} {node.name!r} is of domain {node.domain!r}")
    _dtype(node.outputs[0])
    if node.op_type in _PLAIN:
        refs = [work.read(v) for v in node.inputs]
        parameters = (graph.attribute(node, name, default) for name, default in _PLAIN[node.op_type])
        return work.emit(node.op_type, refs, *parameters)
    if node.op_type not in _TRANSLATIONS:
        raise _RefusedError(f"{node.op_type} is not generated")
    return _TRANSLATIONS[node.op_type](work, node)


# Operators that are one instruction on all their inputs, with the attributes that are its parameters.
_PLAIN: dict[str, tuple[tuple[str, float], ...]] = {
    **dict.fromkeys(
        (
            *("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Erf"),
            *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Tanh"),
            *("Sigmoid", "Softplus", "Softsign", "Mish", "HardSwish", "Relu", "PRelu", "Where"),
            *("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Not", "IsNaN"),
            *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"),
            *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
        ),
        (),
    ),
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "Selu": (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    "Celu": (("alpha", 1.0),),
    "ThresholdedRelu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Swish": (("alpha", 1.0),),
    "Shrink": (("bias", 0.0), ("lambd", 0.5)),
}


def _chain(op: str) -> Callable[[_Work, ir.Node], int]:
    def translate(work: _Work, node: ir.Node) -> int:
        first, *rest = [work.read(v) for v in node.inputs]
        total = first if rest else work.emit("Identity", (first,))
        for ref in rest:
            total = work.emit(op, (total, ref))
        return total

    return translate


def _mean(work: _Work, node: ir.Node) -> int:
    return work.emit("DividedBy", (_chain("Add")(work, node),), len(node.inputs))


def _clip(work: _Work, node: ir.Node) -> int:
    result = work.emit("Identity", (work.read(node.inputs[0]),))
    for index, op in ((1, "AtLeast"), (2, "AtMost")):
        if graph.input_at(node, index) is not None:
            result = work.emit(op, (result, work.read(node.inputs[index])))
    return result


def _cast(work: _Work, node: ir.Node) -> int:
    return work.emit("Cast", (work.read(node.inputs[0]),), _dtype(node.outputs[0]))


def _mod(work: _Work, node: ir.Node) -> int:
    op = "Fmod" if graph.attribute(node, "fmod", 0) else "Mod"
    return work.emit(op, [work.read(v) for v in node.inputs])


def _shift(work: _Work, node: ir.Node) -> int:
    direction = graph.attribute(node, "direction", "")
    return work.emit(
        "ShiftLeft" if direction == "LEFT" else "ShiftRight", [work.read(v) for v in node.inputs]
    )


def _is_infinite(work: _Work, node: ir.Node) -> int:
    above = math.inf if graph.attribute(node, "detect_positive", 1) else math.nan
    below = -math.inf if graph.attribute(node, "detect_negative", 1) else math.nan
    return work.emit("IsInf", (work.read(node.inputs[0]),), above, below)


def _gelu(work: _Work, node: ir.Node) -> int:
    op = "GeluTanh" if graph.attribute(node, "approximate", "none") == "tanh" else "Gelu"
    return work.emit(op, (work.read(node.inputs[0]),))


def _dropout(work: _Work, node: ir.Node) -> int:
    training = graph.input_at(node, 2)
    fixed = graph.constant(training)
    if training is not None and (fixed is None or fixed.any()):
        raise _RefusedError(f"Dropout {node.name!r} may be in training mode")
    return work.emit("Identity", (work.read(node.inputs[0]),))


def _power(work: _Work, node: ir.Node) -> int:
    base = work.read(node.inputs[0])
    kind = work.kind(base)
    fixed = graph.constant(node.inputs[1])
    if fixed is not None and fixed.size == 1 and graph.elements(node.outputs[0]) >= 1:
        special = _POWERS.get(float(fixed.reshape(())))
        if special:
            return special(work, base)
    exponent = work.read(node.inputs[1])
    other = work.kind(exponent)
    if _is_real(kind):
        return work.emit("Pow", (base, work.cast(exponent, computed(kind))))
    if _is_real(other):
        result = work.emit("Pow", (work.cast(base, "float64"), work.cast(exponent, "float64")))
        return work.cast(result, kind)
    return work.emit("Pow", (base, work.cast(exponent, "int64")))


def _cube(work: _Work, base: int) -> int:
    return work.emit("Mul", (work.emit("Mul", (base, base)), base))


# Constant exponents that need no logarithm.
_POWERS: dict[float, Callable[[_Work, int], int]] = {
    1.0: lambda work, base: work.emit("Identity", (base,)),
    2.0: lambda work, base: work.emit("Mul", (base, base)),
    3.0: _cube,
    0.5: lambda work, base: work.emit("Sqrt", (base,)),  # as NumPy, also for -inf
    -1.0: lambda work, base: work.emit("Reciprocal", (base,)),
}


def _is_real(dtype: str) -> bool:
    return dtype in FLOATS or dtype in HALVES


def _along_axis(node: ir.Node, index: int) -> tuple[int, ...]:
    """The shape of a scale or zero point as it aligns with the last axes of the tensor."""
    value, data = graph.operand(node, index), graph.operand(node, 0)
    shape, rank = graph.static_shape(value), len(graph.static_shape(data))
    if graph.attribute(node, "block_size", 0):
        raise _RefusedError(f"{node.op_type} {node.name!r} has scales per block")
    if graph.elements(value) == 1:
        return ()
    if len(shape) != 1:
        raise _RefusedError(f"{node.op_type} {node.name!r} has scales of shape {shape}")
    return (*shape, *(1,) * (rank - 1 - graph.attribute(node, "axis", 1) % rank))


def _is_one(value: ir.Value | None) -> bool:
    array = graph.constant(value)
    return array is not None and bool(np.all(array == 1))


def _quantize(work: _Work, node: ir.Node) -> int:
    dtype = _dtype(node.outputs[0])
    if dtype not in _LIMITS:
        raise _RefusedError(f"QuantizeLinear {node.name!r} makes {dtype}")
    if graph.attribute(node, "precision", 0) not in (0, int(ir.DataType.FLOAT)):
        raise _RefusedError(f"QuantizeLinear {node.name!r} divides in another precision than float32")
    x = work.cast(work.read(node.inputs[0]), "float32")
    if not _is_one(node.inputs[1]):
        scale = work.cast(work.read(node.inputs[1], _along_axis(node, 1)), "float32")
        x = work.emit("Div", (x, scale))
    result = work.emit("Round", (x,))
    if graph.input_at(node, 2) is not None:
        zero = work.read(node.inputs[2], _along_axis(node, 2))
        result = work.emit("Add", (result, work.cast(zero, "float32")))
    return work.emit("Saturate", (result,), *map(float, _LIMITS[dtype]), dtype)


def _dequantize(work: _Work, node: ir.Node) -> int:
    result = work.cast(work.read(node.inputs[0]), "float32")
    if graph.input_at(node, 2) is not None:
        zero = work.read(node.inputs[2], _along_axis(node, 2))
        result = work.emit("Sub", (result, work.cast(zero, "float32")))
    scale = work.cast(work.read(node.inputs[1], _along_axis(node, 1)), "float32")
    return work.cast(work.emit("Mul", (result, scale)), _dtype(node.outputs[0]))


_TRANSLATIONS: dict[str, Callable[[_Work, ir.Node], int]] = {
    "Sum": _chain("Add"),
    "Min": _chain("Min"),
    "Max": _chain("Max"),
    "Mean": _mean,
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast,
    "Mod": _mod,
    "BitShift": _shift,
    "IsInf": _is_infinite,
    "Gelu": _gelu,
    "Dropout": _dropout,
    "Pow": _power,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
