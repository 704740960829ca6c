"""Rows of DFT and STFT of any length, planned when the model is."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import takes_floats
from app.engine.backends.cpu.calls import Operands, of_type, of_values, typed_call
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.axes import split
from app.engine.operators.operands import data, fixed_inputs
from app.kernels.cpu import fft

CACHE = 2**18  # byte of scratch of a thread: it stays in the second cache


@dataclass(frozen=True, slots=True)
class Transforms:
    """Transforms of a node, see `app.kernels.cpu.fft.transforms`.

    Attributes:
        n: length of each.
        total: how many.
        inner: those that lie together.
        taken: elements of the input that each reads.
        bins: elements of the result.
        x, y: distances of groups of `inner`, of their members, and of elements.
        pairs: whether the input is of real and imaginary parts.
        inverse, real: backwards; the result is of real numbers.
    """

    n: int
    total: int
    inner: int
    taken: int
    bins: int
    x: tuple[int, int, int]
    y: tuple[int, int, int]
    pairs: bool
    inverse: bool = False
    real: bool = False


def _axis(node: ir.Node) -> int:
    """The axis of a DFT, an attribute before version 20."""
    rank = len(graph.static_shape(data(node)))
    given = graph.constant(graph.input_at(node, 2))
    if graph.owner(node).opset_imports.get("", 20) < 20:
        return graph.attribute(node, "axis", 1) % rank
    return (int(given.item()) if given is not None else -2) % rank


@after(takes_floats)
def _dft_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    reason = fixed_inputs(node, (1, 2))
    if reason is not None:
        return reason
    shape, (inverse, onesided) = graph.static_shape(data(node)), _sides(node)
    if len(shape) < 2 or shape[-1] not in (1, 2):
        return f"the last axis of {shape} is neither of real numbers nor of pairs"
    if _axis(node) == len(shape) - 1:
        return "transforms along the axis of pairs"
    if onesided and shape[-1] != (2 if inverse else 1):
        return "one half of a spectrum is that of real numbers"
    return None if _dft(node).n > 0 else "a transform of no elements"


def _sides(node: ir.Node) -> tuple[bool, bool]:
    return bool(graph.attribute(node, "inverse", 0)), bool(graph.attribute(node, "onesided", 0))


def _dft(node: ir.Node) -> Transforms:
    shape, out = graph.static_shape(data(node)), graph.static_shape(node.outputs[0])
    axis, (inverse, onesided) = _axis(node), _sides(node)
    real = inverse and onesided
    outer, size, inner = split(shape[:-1], axis)
    given = graph.constant(graph.input_at(node, 1))
    n = int(given.item()) if given is not None else 2 * (size - 1) if real else size
    pair, made, bins = shape[-1], out[-1], out[axis]
    return Transforms(
        n,
        outer * inner,
        inner,
        min(size, n // 2 + 1 if real else n),
        bins,
        (size * inner * pair, pair, inner * pair),
        (bins * inner * made, made, inner * made),
        pair == 2,
        inverse,
        real,
    )


@after(takes_floats)
def _stft_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    reason = fixed_inputs(node, (1, 3))
    if reason is not None:
        return reason
    shape = graph.static_shape(data(node))
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[-1] not in (1, 2)):
        return f"a signal of shape {shape}, expected [batch, length] of real numbers or pairs"
    if len(shape) == 3 and shape[-1] == 2 and graph.attribute(node, "onesided", 1):
        return "one half of a spectrum is that of real numbers"
    window = graph.input_at(node, 2)
    if window is not None and graph.dtype(window) != graph.dtype(data(node)):
        return f"a window of {graph.dtype(window)}"
    if window is not None and graph.elements(window) != _stft(node).n:
        return f"a window of {graph.elements(window)} for frames of {_stft(node).n} elements"
    return None


def _stft(node: ir.Node) -> Transforms:
    shape = graph.static_shape(data(node))
    frames, bins = graph.static_shape(node.outputs[0])[1:3]
    pair = shape[2] if len(shape) == 3 else 1
    window, length = graph.input_at(node, 2), graph.constant(graph.input_at(node, 3))
    n = (
        graph.elements(window)
        if length is None and window is not None
        else int(graph.array(node.inputs[3]).item())
    )
    step = int(graph.array(graph.operand(node, 1)).item())
    x = (shape[1] * pair, step * pair, pair)
    y = (frames * bins * 2, bins * 2, 2)
    return Transforms(n, shape[0] * frames, frames, n, bins, x, y, pair == 2)


def _lanes(found: Transforms, length: int, itemsize: int, context: PlanningContext) -> int:
    """Transforms at once: at most a register, and as many as there are and as the cache has scratch for."""
    lanes = context.target.vector_lanes * 4 // itemsize
    while lanes > 1 and (lanes >= 2 * found.total or 4 * length * lanes * itemsize > CACHE):
        lanes //= 2
    return lanes


def _call(
    found: Transforms, x: ir.Value, y: ir.Value, window: ir.Value | None, context: PlanningContext
) -> KernelCall:
    kind = graph.element_type(x)
    made = fft.plan(found.n)
    length = made.length
    lanes = _lanes(found, length, kind.itemsize, context)
    pointer = f"{kind}*"
    nothing: Argument = Constant(np.zeros(1, kind))
    operands: Operands = (
        *of_values(x, y),
        *of_type(pointer, window or nothing, Constant(made.twiddles.astype(kind))),
        ("int64*", Constant(made.table)),
        *of_type(pointer, Constant(made.wave.astype(kind))),
        *of_type(pointer, Workspace(4 * length * lanes * kind.itemsize, per_thread=True)),
        ("int64*", Workspace(16 * lanes, per_thread=True)),
        *(len(made.table), found.total, found.inner, found.taken, found.n, length, found.bins),
        *(int(found.pairs), *found.x, *found.y),
    )
    static = (lanes, made.radices, found.inverse, window is not None, length != found.n, found.real)
    return typed_call("app.kernels.cpu.fft:transforms", operands, -(-found.total // lanes), static)


def _dft_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    if graph.elements(node.outputs[0]) == 0:
        return ()
    return (_call(_dft(node), data(node), node.outputs[0], None, context),)


def _stft_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    if graph.elements(node.outputs[0]) == 0:
        return ()
    return (_call(_stft(node), data(node), node.outputs[0], graph.input_at(node, 2), context),)


def _cost(group: Group, context: PlanningContext) -> float:
    found = _dft(group.anchor) if group.op == "DFT" else _stft(group.anchor)
    made = fft.plan(found.n)
    passes = (1 if made.length == found.n else 2) * (len(made.table) + 2)
    kind = graph.element_type(data(group.anchor))
    lanes = _lanes(found, made.length, kind.itemsize, context)
    used = context.target.vector_lanes / lanes
    return group_roofline(group, context, 12.0 * passes * found.total * made.length * used, 0.25)


IMPLEMENTATIONS = (
    Implementation("dft.stages", "DFT", "numba-cpu", _dft_rejection, _dft_lower, _cost),
    Implementation("stft.stages", "STFT", "numba-cpu", _stft_rejection, _stft_lower, _cost),
)
