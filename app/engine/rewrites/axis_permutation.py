"""Operators on permuted axes: what must change for them to compute the same, a row per family.

A value v is permuted by `perm` when v' = Transpose(v, perm): axis i of v' is axis perm[i] of v. Most
operators read and write permuted values alike (`Relu`, `Concat` along another axis); some read
permuted values and write what they always do (a `ReduceMean` that drops the axes of an image), some
the reverse (`Unsqueeze`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.operators.tables.elementwise import OPERATORS

Array = np.ndarray[Any, Any]
Perm: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permuted:
    """A node on permuted axes.

    Attributes:
        reads: positions of the inputs that are read permuted.
        writes: whether the outputs are permuted.
        constants: inputs that become other constants.
        reshaped: inputs of lower rank, and the shape in which they broadcast as before.
        attributes: those that change or are added.
        op: another operator that takes the node's place.
    """

    reads: tuple[int, ...] = (0,)
    writes: bool = True
    constants: Mapping[int, Array] = field(default_factory=dict)
    reshaped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict)
    op: str = ""


Rule: TypeAlias = Callable[[ir.Node, Perm], Permuted | None]


@dataclass(frozen=True, slots=True)
class Family:
    """Operators that share a rule, which tells how a node computes on permuted axes, or that it cannot."""

    ops: tuple[str, ...]
    rule: Rule


def inverse(perm: Sequence[int]) -> Perm:
    """The permutation that undoes another: the place of each axis."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def permuted_shape(shape: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """Extents of the permuted value."""
    return tuple(shape[axis] for axis in perm)


def is_view(shape: Sequence[int], perm: Perm) -> bool:
    """True if no element moves: axes longer than one stay in order."""
    long = [axis for axis in perm if shape[axis] != 1]
    return long == sorted(long) or math.prod(shape) == 0


def on_permuted_axes(node: ir.Node, perm: Perm) -> Permuted | None:
    """How a node of static shapes computes on axes permuted by `perm`; None when it cannot."""
    rule = _RULES.get(node.op_type)
    if rule is None or node.domain:
        return None
    operands = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    if any(graph.shape(v) is None for v in operands):
        return None
    if all(v is None or _rank(v) != len(perm) for v in (node.inputs[0], node.outputs[0])):
        return None
    found = rule(node, perm)
    if found is None:
        return None
    touched = [node.inputs[i] for i in found.reads] + (list(node.outputs) if found.writes else [])
    fits = all(v is None or not v.name or _rank(v) == len(perm) for v in touched)
    return found if fits else None


def _rank(value: ir.Value) -> int:
    return len(graph.static_shape(value))


def _elementwise(node: ir.Node, perm: Perm) -> Permuted | None:
    """Operands of lower rank broadcast along the last axes: with leading ones they can be permuted."""
    if _rank(node.outputs[0]) != len(perm):
        return None
    reads: list[int] = []
    constants: dict[int, Array] = {}
    reshaped: dict[int, tuple[int, ...]] = {}
    for index, value in enumerate(node.inputs):
        if value is None or graph.elements(value) == 1:
            continue
        shape = graph.static_shape(value)
        wide = (1,) * (len(perm) - len(shape)) + shape
        array = graph.constant(value)
        if len(shape) == len(perm):
            reads.append(index)
        elif array is not None:
            constants[index] = array.reshape(wide).transpose(perm)
        elif is_view(wide, perm):
            reshaped[index] = permuted_shape(wide, perm)
        else:
            return None
    return Permuted(tuple(reads), constants=constants, reshaped=reshaped)


def _along(default: int, inputs: Callable[[ir.Node], Sequence[int]] = lambda _node: (0,)) -> Rule:
    """The rule of operators with an attribute `axis`."""

    def rule(node: ir.Node, perm: Perm) -> Permuted:
        axis = graph.attribute(node, "axis", default) % len(perm)
        return Permuted(tuple(inputs(node)), attributes=_integer("axis", perm.index(axis)))

    return rule


def _integer(name: str, value: int) -> dict[str, ir.Attr]:
    return {name: ir.AttrInt64(name, value)}


def _every_input(node: ir.Node) -> Sequence[int]:
    return range(len(node.inputs))


def _quantize(node: ir.Node, perm: Perm) -> Permuted | None:
    """Parameters are one for all, or one for each place along an axis."""
    scale = node.inputs[1]
    if scale is None or _rank(scale) > 1 or graph.attribute(node, "block_size", 0):
        return None
    return _along(1)(node, perm)


def _gather(node: ir.Node, perm: Perm) -> Permuted | None:
    """A vector of indices leaves the rank."""
    indices = node.inputs[1]
    return None if indices is None or _rank(indices) != 1 else _along(0)(node, perm)


def _arg(node: ir.Node, perm: Perm) -> Permuted | None:
    axis = graph.attribute(node, "axis", 0) % len(perm)
    keeps = bool(graph.attribute(node, "keepdims", 1))
    if not keeps and not _stay(perm, {axis}):
        return None
    return Permuted(writes=keeps, attributes=_integer("axis", perm.index(axis)))


def _stay(perm: Perm, dropped: set[int]) -> bool:
    """True if the axes that remain are in order."""
    kept = [axis for axis in perm if axis not in dropped]
    return kept == sorted(kept)


def _axes(node: ir.Node, index: int, default: Sequence[int], rank: int) -> list[int] | None:
    """An input of axes, none negative; None when it is no constant."""
    value = graph.input_at(node, index)
    if value is None:
        return list(default)
    array = graph.constant(value)
    return None if array is None else [int(a) % rank for a in array]


def _places(axes: Sequence[int], perm: Perm) -> Array:
    return np.array([perm.index(a) for a in axes], np.int64)


def _reduce(node: ir.Node, perm: Perm) -> Permuted | None:
    rank = len(perm)
    given = graph.input_at(node, 1) is not None
    axes = _axes(node, 1, range(rank), rank)
    if axes is None or "axes" in node.attributes:
        return None
    if not axes:  # an empty list means all axes, or none
        if graph.attribute(node, "noop_with_empty_axes", 0):
            return Permuted()
        axes = list(range(rank))
    constants = {1: _places(axes, perm)} if given else {}
    if graph.attribute(node, "keepdims", 1):
        return Permuted(constants=constants)
    return Permuted(writes=False, constants=constants) if _stay(perm, set(axes)) else None


def _slice(node: ir.Node, perm: Perm) -> Permuted | None:
    starts = node.inputs[1]
    if starts is None:
        return None
    axes = _axes(node, 3, range(graph.elements(starts)), len(perm))
    return None if axes is None else Permuted(constants={3: _places(axes, perm).astype(graph.dtype(starts))})


def _pad(node: ir.Node, perm: Perm) -> Permuted | None:
    pads, axes = graph.constant(node.inputs[1]), _axes(node, 3, range(len(perm)), len(perm))
    if pads is None or axes is None:
        return None
    wide = np.zeros((2, len(perm)), np.int64)
    wide[:, axes] = pads.reshape(2, -1)
    constants = {1: wide[:, perm].reshape(-1)}
    if graph.input_at(node, 3) is not None:
        constants[3] = np.arange(len(perm))
    return Permuted(constants=constants)


def _vector(index: int) -> Rule:
    """The rule of operators with a constant number for each axis, counted from the last."""

    def rule(node: ir.Node, perm: Perm) -> Permuted | None:
        array = graph.constant(node.inputs[index])
        if array is None or array.size > len(perm):
            return None
        wide = np.ones(len(perm), np.int64)
        wide[len(perm) - array.size :] = array
        return Permuted(constants={index: wide[list(perm)]})

    return rule


def _cumulate(node: ir.Node, perm: Perm) -> Permuted | None:
    axis = graph.constant(node.inputs[1])
    if axis is None:
        return None
    return Permuted(constants={1: np.array(perm.index(int(axis.item()) % len(perm)), np.int64)})


def _resize(node: ir.Node, perm: Perm) -> Permuted | None:
    """Region (two numbers an axis), scales and sizes are for all axes, or for those of an attribute."""
    axes = graph.attribute(node, "axes", None)
    if axes is not None:
        places = [int(a) for a in _places([a % len(perm) for a in axes], perm)]
        return Permuted(attributes={"axes": ir.AttrInt64s("axes", places)})
    constants = {}
    for index, parts in ((1, 2), (2, 1), (3, 1)):
        value = graph.input_at(node, index)
        if value is None or graph.elements(value) == 0:
            continue
        array = graph.constant(value)
        if array is None:
            return None
        constants[index] = array.reshape(parts, -1)[:, perm].reshape(-1)
    return Permuted(constants=constants)


def _squeeze(node: ir.Node, perm: Perm) -> Permuted | None:
    x = graph.operand(node, 0)
    if _rank(x) != len(perm):
        return None
    ones = [a for a, n in enumerate(graph.static_shape(x)) if n == 1]
    axes = _axes(node, 1, ones, len(perm))
    if axes is None or not _stay(perm, set(axes)):
        return None
    return Permuted(writes=False, constants={1: _places(axes, perm)})


def _unsqueeze(node: ir.Node, perm: Perm) -> Permuted | None:
    axes = _axes(node, 1, (), len(perm))
    if axes is None or not _stay(perm, set(axes)):
        return None
    return Permuted(reads=(), constants={1: np.sort(_places(axes, perm))})


def _reshape(node: ir.Node, perm: Perm) -> Permuted | None:
    """Where the axes longer than one stay in order, the bytes do; only the shape is another."""
    x, y = graph.operand(node, 0), node.outputs[0]
    before, after = graph.static_shape(x), graph.static_shape(y)
    if len(before) == len(perm) and is_view(before, perm):
        return Permuted(writes=False, constants={1: np.array(after, np.int64)}, op="Reshape")
    if len(after) == len(perm) and is_view(after, perm):
        shape = np.array(permuted_shape(after, perm), np.int64)
        return Permuted(reads=(), constants={1: shape}, op="Reshape")
    return None


FAMILIES = (
    Family(tuple(row.op for row in OPERATORS if not row.per_axis and row.op != "CastLike"), _elementwise),
    Family(("Concat",), _along(0, _every_input)),
    Family(("GatherElements",), _along(0, _every_input)),
    Family(("Split",), _along(0)),
    Family(("Softmax", "LogSoftmax", "Hardmax", "TopK", "LpNormalization"), _along(-1)),
    Family(("QuantizeLinear", "DequantizeLinear"), _quantize),
    Family(("Gather",), _gather),
    Family(("ArgMax", "ArgMin"), _arg),
    Family(
        tuple(f"Reduce{x}" for x in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()),  # noqa: SIM905
        _reduce,
    ),
    Family(("Slice",), _slice),
    Family(("Pad",), _pad),
    Family(("Tile",), _vector(1)),
    Family(("Expand",), _vector(1)),
    Family(("CumSum",), _cumulate),
    Family(("Resize",), _resize),
    Family(("Squeeze",), _squeeze),
    Family(("Unsqueeze",), _unsqueeze),
    Family(("Reshape", "Flatten"), _reshape),
)
_RULES: Mapping[str, Rule] = {op: family.rule for family in FAMILIES for op in family.ops}
