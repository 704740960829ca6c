"""From elementwise nodes to the recipe of a generated kernel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.kernels.cpu.expressions import EXPRESSIONS, FLOATS, INTEGERS, Instruction, Recipe

Params = tuple[float | int | str, ...]
DTYPES = (*FLOATS, *INTEGERS, "bool")

# Attributes by operator with the defaults of the newest opset, in the order of the expression.
_ATTRIBUTES: Mapping[str, tuple[tuple[str, float | int | str], ...]] = {
    "LeakyRelu": (("alpha", 0.01),),
    "ThresholdedRelu": (("alpha", 1.0),),
    "Elu": (("alpha", 1.0),),
    "Selu": (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    "Celu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Swish": (("alpha", 1.0),),
    "Gelu": (("approximate", "none"),),
    "Shrink": (("bias", 0.0), ("lambd", 0.5)),
    "Mod": (("fmod", 0),),
    "IsInf": (("detect_negative", 1), ("detect_positive", 1)),
}
_FLOAT_ONLY = frozenset(
    [
        "Sqrt",
        "Reciprocal",
        "Exp",
        "Log",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Asinh",
        "Acosh",
        "Atanh",
        "Tanh",
        "Sigmoid",
        "Erf",
        "LeakyRelu",
        "ThresholdedRelu",
        "Elu",
        "Selu",
        "Celu",
        "HardSigmoid",
        "HardSwish",
        "Softplus",
        "Softsign",
        "Mish",
        "Swish",
        "Gelu",
        "Floor",
        "Ceil",
        "Round",
        "IsNaN",
        "IsInf",
        "Mean",
    ]
)
_LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


@dataclass(frozen=True, slots=True)
class Chain:
    """Elementwise nodes as one recipe.

    Attributes:
        recipe: the instructions.
        inputs: values that they read, numbered from 0.
        results: number of every value that a node makes.
    """

    recipe: Recipe
    inputs: tuple[ir.Value, ...]
    results: Mapping[ir.Value, int]


class RecipeError(Exception):
    """Why a node cannot be written as an expression."""


def recipe_of(nodes: Sequence[ir.Node], known: Sequence[ir.Value] = ()) -> Chain | str:
    """The recipe of nodes in execution order, or the reason why there is none.

    `known` are values that come first among the inputs: an epilogue names its accumulator.
    """
    made = {v for n in nodes for v in n.outputs}
    inputs = dict.fromkeys(known)
    inputs.update(dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in made))
    numbers = {v: i for i, v in enumerate(inputs)}
    recipe: list[Instruction] = []
    try:
        for value in inputs:
            _dtype(value)
        for node in nodes:
            instruction = _instruction(node, numbers)
            numbers[node.outputs[0]] = len(inputs) + len(recipe)
            recipe.append(instruction)
    except RecipeError as reason:
        return str(reason)
    return Chain(tuple(recipe), tuple(inputs), {v: i for v, i in numbers.items() if v not in inputs})


def _dtype(value: ir.Value) -> str:
    kind = graph.dtype(value)
    if kind is None or kind.name not in DTYPES:
        raise RecipeError(
            f"value {value.name!r} is {value.dtype}; generated kernels compute {', '.join(DTYPES)}"
        )
    return str(kind.name)


def _instruction(node: ir.Node, numbers: Mapping[ir.Value, int]) -> Instruction:
    dtype = _dtype(node.outputs[0])
    write = _WRITERS.get(node.op_type, _plain)
    op, operands, params = write(node, dtype)
    if op not in EXPRESSIONS:
        raise RecipeError(f"{node.op_type} {node.name!r} has no expression")
    first = _dtype(operands[0])
    if op in _FLOAT_ONLY and first not in FLOATS:
        raise RecipeError(f"{node.op_type} {node.name!r} on {first}; its expression is for floats")
    if op in ("Clip", "Relu", "PRelu", "Abs", "Neg", "Sign") and first == "bool":
        raise RecipeError(f"{node.op_type} {node.name!r} on booleans")
    return Instruction(op, tuple(numbers[v] for v in operands), params, dtype)


Written = tuple[str, tuple[ir.Value, ...], Params]


def _plain(node: ir.Node, _result: str) -> Written:
    params = tuple(
        graph.attribute(node, name, default) for name, default in _ATTRIBUTES.get(node.op_type, ())
    )
    return node.op_type, _operands(node), params


def _operands(node: ir.Node) -> tuple[ir.Value, ...]:
    if any(v is None for v in node.inputs):
        raise RecipeError(f"{node.op_type} {node.name!r} omits an input")
    return tuple(v for v in node.inputs if v is not None)


def _clip(node: ir.Node, _result: str) -> Written:
    """Limits are operands; the parameters say which, -1 where there is none."""
    given = [graph.input_at(node, i) for i in (1, 2)]
    operands = [node.inputs[0], *(v for v in given if v is not None)]
    places, place = [], 1
    for value in given:
        places.append(-1 if value is None else place)
        place += value is not None
    return "Clip", tuple(v for v in operands if v is not None), tuple(places)


def _shift(node: ir.Node, _result: str) -> Written:
    return f"BitShift{graph.attribute(node, 'direction', '')}", _operands(node), ()


def _cast(node: ir.Node, _result: str) -> Written:
    (source, *_) = (v for v in node.inputs if v is not None)
    return "Cast", (source,), ()


def _identity(node: ir.Node, _result: str) -> Written:
    if len(node.outputs) > 1 and any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        raise RecipeError(f"{node.op_type} {node.name!r} has a second output that is read")
    training = graph.input_at(node, 2)
    if training is not None:
        array = graph.constant(training)
        if array is None or bool(array):
            raise RecipeError(f"{node.op_type} {node.name!r} is in training mode")
    (source, *_) = (v for v in node.inputs if v is not None)
    return "Identity", (source,), ()


def _quantize(node: ir.Node, dtype: str) -> Written:
    if graph.attribute(node, "block_size", 0):
        raise RecipeError(f"{node.op_type} {node.name!r} is blocked")
    operands = _operands(node)
    if _dtype(operands[1]) not in FLOATS or dtype not in (*_LIMITS, *FLOATS):
        raise RecipeError(f"{node.op_type} {node.name!r}: {_dtype(operands[1])} to {dtype}")
    scale = graph.static_shape(operands[1])
    if len(scale) > 1 or (len(scale) == 1 and scale != (1,)):
        raise RecipeError(f"{node.op_type} {node.name!r} has a scale per axis")
    return node.op_type, operands, _LIMITS.get(dtype, ()) if node.op_type == "QuantizeLinear" else ()


_WRITERS: Mapping[str, Callable[[ir.Node, str], Written]] = {
    "Clip": _clip,
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Dropout": _identity,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _quantize,
}


@dataclass(frozen=True, slots=True)
class Nest:
    """Merged axes of a broadcast: sizes, and for every operand its strides, outermost first."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def merge_axes(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> Nest:
    """Axes of a result, merged where every operand advances as if they were one.

    Axes of length 1 vanish; at least one axis is left.
    """
    rank = len(shape)
    strides = [_strides(o, rank) for o in operands]
    sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in operands]
    for axis in range(rank):
        if shape[axis] == 1:
            continue
        if sizes and all(k[-1] == s[axis] * shape[axis] for k, s in zip(kept, strides)):
            sizes[-1] *= shape[axis]
            for k, s in zip(kept, strides):
                k[-1] = s[axis]
            continue
        sizes.append(shape[axis])
        for k, s in zip(kept, strides):
            k.append(s[axis])
    if not sizes:
        return Nest((1,), tuple((0,) for _ in operands))
    return Nest(tuple(sizes), tuple(tuple(k) for k in kept))


def _strides(shape: Sequence[int], rank: int) -> list[int]:
    wide = (1,) * (rank - len(shape)) + tuple(shape)
    steps = np.cumprod((1, *reversed(wide[1:])))[::-1] if wide else ()
    return [0 if d == 1 else int(s) for d, s in zip(wide, steps)]
