"""Epilogues of contractions, from sums to what is stored: the nodes that follow the anchor.

A tile adds biases and a residual and clamps in registers, in this order. What comes after that, or
cannot be had that way, is a recipe that runs over sums still in cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group, of_group
from app.engine.operators.elementwise import recipe_of
from app.kernels.expressions import Recipe, stored

Array = np.ndarray[Any, Any]

# Steps of float32 that a bias may lie from a multiple of the scale of sums, by which it was multiplied. Any
# number is as close to a multiple beyond these.
BIAS_ROUNDING, BIAS_MOST = 4, 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Epilogue:
    """Nodes after the anchor, as far as a tile can apply them.

    Attributes:
        biases: constants that are added, one element per channel or a single one, with a sign.
        residual: a value of the output's shape that is added.
        low, high: limits of the result; None where there are none.
        recipe: what follows; its input 0 is the result so far.
        operands: its other inputs, with the place each is read at: `same` as the output's,
            `channel` (one element per channel), `plane` (one per channel and image), `row` (one per
            position along all axes but the channels'), `scalar`.
    """

    biases: tuple[tuple[ir.Value, float], ...] = ()
    residual: ir.Value | None = None
    low: float | None = None
    high: float | None = None
    recipe: Recipe = ()
    operands: tuple[tuple[ir.Value, str], ...] = ()

    @property
    def static(self) -> tuple[Recipe, tuple[tuple[str, str], ...]]:
        """Recipe and operands as a generator of kernels takes them: (place, element type)."""
        return self.recipe, tuple((kind, str(graph.dtype(v))) for v, kind in self.operands)

    @property
    def arguments(self) -> tuple[tuple[str, ir.Value], ...]:
        """The operands of the recipe as arguments of a kernel, with their types."""
        return tuple((f"{stored(str(graph.dtype(v)))}*", v) for v, _ in self.operands)

    @property
    def clamps(self) -> bool:
        """True if there is a limit."""
        return self.low is not None or self.high is not None

    def bias(self, channels: int, dtype: np.dtype[Any]) -> Array | None:
        """The sum of the biases, one element per channel; None where there are none."""
        return summed(self.biases, channels, dtype)

    def scalars(self, dtype: np.dtype[Any], alpha: float = 1.0, beta: float = 1.0) -> Array:
        """[alpha, beta, low, high] of a tile."""
        if dtype.kind != "f":
            bounds = np.iinfo(dtype)
            return np.array([1, 1, bounds.min, bounds.max], dtype)
        low = -np.inf if self.low is None else self.low
        return np.array([alpha, beta, low, np.inf if self.high is None else self.high], dtype)


@of_group
def read(group: Group, axis: int) -> Epilogue | str:
    """The epilogue of a group, or the reason why none of this kind computes it.

    `axis` is the channels' axis of the anchor's output.
    """
    value = group.anchor.outputs[0]
    if len(group.outputs) > 1:
        return f"{len(group.outputs)} values leave the group; a contraction stores one"
    found, nodes = Epilogue(), group.epilogue
    for i, node in enumerate(nodes):
        readers = [n for n in nodes[i:] if value in n.inputs]
        following = _follow(found, node, value, axis) if readers == [node] else None
        if following is None:
            return _general(found, nodes[i:], value, group, axis)
        found, value = following, node.outputs[0]
    return found


def _general(
    found: Epilogue, nodes: tuple[ir.Node, ...], value: ir.Value, group: Group, axis: int
) -> Epilogue | str:
    """The epilogue with a recipe for the remaining nodes."""
    shape = graph.static_shape(value)
    (output,) = group.outputs
    if graph.shape(output) != shape or graph.dtype(output) != graph.dtype(value):
        return (
            f"the result is {graph.dtype(output)}{graph.shape(output)}, the sums {graph.dtype(value)}{shape}"
        )
    if output is not nodes[-1].outputs[0]:
        return f"{output.name!r} is not what the last node makes"
    formula = recipe_of(nodes, (output,), first=(value,))
    if isinstance(formula, str):
        return formula
    operands = []
    for operand in formula.operands[1:]:
        kind = place(operand.shape, shape, axis)
        if kind is None:
            return (
                f"operand {operand.value.name!r} of shape {operand.shape} is neither of shape {shape} "
                f"nor one element, nor one for each channel"
            )
        operands.append((operand.value, kind))
    return replace(found, recipe=formula.recipe, operands=tuple(operands))


def place(shape: tuple[int, ...], output: tuple[int, ...], axis: int) -> str | None:
    """How an operand of this shape is read along the output; None if in no way that is known."""
    if len(shape) > len(output):
        return None
    wide = (1,) * (len(output) - len(shape)) + shape
    if wide == output:
        return "same"
    axis %= len(output)
    if math.prod(wide) == 1:
        return "scalar"
    if per_channel(shape, output, axis):
        return "channel"
    if wide == output[: axis + 1] + (1,) * (len(output) - axis - 1):
        return "plane"
    if wide == (*output[:axis], 1) and axis == len(output) - 1:
        return "row"
    return None


def _follow(found: Epilogue, node: ir.Node, value: ir.Value, axis: int) -> Epilogue | None:
    """The epilogue with one more node; None where a tile does not apply it."""
    if graph.shape(node.outputs[0]) != graph.shape(value):
        return None
    if node.op_type in ("Relu", "Clip"):
        return _limit(found, node)
    addend = None if found.clamps else added(node, value, axis)
    if addend is None:
        return None
    if addend.per_channel:
        return replace(found, biases=(*found.biases, (addend.value, addend.sign)))
    return replace(found, residual=addend.value) if found.residual is None else None


@dataclass(frozen=True, slots=True, eq=False)
class Addend:
    """Operand that an Add or a Sub joins with sums: a constant per channel, or a tensor of their shape."""

    value: ir.Value
    sign: float
    per_channel: bool


def added(node: ir.Node, value: ir.Value, axis: int) -> Addend | None:
    """The other operand of an Add to, or a Sub from, a value; None for others, and for tensors subtracted."""
    if node.op_type not in ("Add", "Sub") or (node.op_type == "Sub" and node.inputs[1] is value):
        return None
    others = [v for v in node.inputs if v is not None and v is not value]
    if len(others) != 1:
        return None
    (other,) = others
    shape, sign = graph.static_shape(value), -1.0 if node.op_type == "Sub" else 1.0
    if graph.is_constant(other) and per_channel(graph.static_shape(other), shape, axis):
        return Addend(other, sign, True)
    return Addend(other, sign, False) if sign > 0 and graph.shape(other) == shape else None


def summed(biases: Sequence[tuple[ir.Value, float]], channels: int, dtype: np.dtype[Any]) -> Array | None:
    """The sum of constants with their signs, one element per channel; None where there are none."""
    if not biases:
        return None
    total = np.zeros(channels, dtype)
    for value, sign in biases:
        total += graph.array(value).reshape(-1).astype(dtype) * dtype.type(sign)
    return total


def per_channel(shape: tuple[int, ...], output: tuple[int, ...], axis: int) -> bool:
    """True if a tensor of this shape, broadcast to the output's, varies along one axis at most."""
    if len(shape) > len(output):
        return False
    wide = (1,) * (len(output) - len(shape)) + shape
    return all(d == 1 or (i == axis % len(output) and d == output[i]) for i, d in enumerate(wide))


def inplace(group: Group, axis: int) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Operands that the output may overwrite: read at the very place that is stored, and nowhere else."""
    epilogue = read(group, axis)
    assert not isinstance(epilogue, str)
    (output,) = group.outputs
    same = [v for v, kind in epilogue.operands if kind == "same"]
    if epilogue.residual is not None:
        same.insert(0, epilogue.residual)
    return tuple(
        (value, output)
        for value in dict.fromkeys(same)
        if not graph.is_constant(value)
        and value not in group.anchor.inputs
        and graph.dtype(value) == graph.dtype(output)
    )


def _limit(found: Epilogue, node: ir.Node) -> Epilogue | None:
    low: float | None = 0.0
    high: float | None = None
    if node.op_type == "Clip":
        limits = []
        for index in (1, 2):
            bound = graph.input_at(node, index)
            array = graph.constant(bound)
            if bound is not None and array is None:
                return None
            limits.append(None if array is None else float(array.reshape(())))
        low, high = limits
    if low is not None:
        # The upper limit wins where limits cross, as in Clip after Clip.
        new_low = low if found.low is None else max(low, found.low)
        found = replace(found, low=new_low, high=None if found.high is None else max(found.high, low))
    if high is not None:
        found = replace(found, low=None if found.low is None else min(found.low, high))
        found = replace(found, high=high if found.high is None else min(high, found.high))
    return found


def bias_before_scale(recipe: Recipe, inputs: int) -> tuple[Recipe, int, int] | None:
    """A recipe on integer sums, scaled and then added to, as one that adds to the integers.

    With the inputs that are the scale and the addend, which is to be an integer; None of any other recipe.
    """
    match recipe:
        case (("Cast", (0,), _), ("Mul", (real, i), _), ("Add", (scaled, j), _), *rest):
            again = {index for _, read, _ in rest for index in read}
        case _:
            return None
    own = {real, scaled, j}
    if (real, scaled) != (inputs, inputs + 1) or max(i, j) >= inputs or own & {*again, i}:
        return None
    first: Recipe = (("Add", (0, j), ()), ("Cast", (real,), ("float32",)), ("Mul", (scaled, i), ()))
    return (*first, *rest), i, j


def multiples(bias: Array, scale: Array, most: float) -> Array | None:
    """Integers, int32 and below `most`, whose products with a scale a bias in float32 is; None of others."""
    if bias.dtype != np.float32:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        integers = np.rint(bias.astype(np.float64) / scale)
        off = np.abs(integers * scale - bias) > BIAS_ROUNDING * np.spacing(np.abs(bias))
    if off.any() or not np.abs(integers).max(initial=0.0) < min(most, BIAS_MOST):
        return None
    return integers.astype(np.int32)
