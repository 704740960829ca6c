"""What a contraction does with its sums before it stores them: the nodes that follow the anchor.

A tile adds a bias and a residual and clamps in registers, in this order.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.plan import Group

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Epilogue:
    """Nodes after the anchor, as far as a tile can apply them.

    Attributes:
        biases: constants that are added, one element per channel or a single one, with a sign.
        residual: a value of the output's shape that is added.
        low, high: limits of the result; None where there are none.
    """

    biases: tuple[tuple[ir.Value, float], ...] = ()
    residual: ir.Value | None = None
    low: float | None = None
    high: float | None = None

    @property
    def clamps(self) -> bool:
        """Whether there is a limit."""
        return self.low is not None or self.high is not None

    def bias(self, channels: int, dtype: np.dtype[Any]) -> Array | None:
        """The sum of the biases, one element per channel; None where there are none."""
        if not self.biases:
            return None
        total = np.zeros(channels, dtype)
        for value, sign in self.biases:
            array = graph.constant(value)
            assert array is not None
            total += array.reshape(-1).astype(dtype) * dtype.type(sign)
        return total

    def scalars(self, dtype: np.dtype[Any], alpha: float = 1.0, beta: float = 1.0) -> Array:
        """[alpha, beta, low, high] of a tile."""
        if dtype.kind != "f":
            bounds = np.iinfo(dtype)
            return np.array([1, 1, bounds.min, bounds.max], dtype)
        low = -np.inf if self.low is None else self.low
        return np.array([alpha, beta, low, np.inf if self.high is None else self.high], dtype)


def read(group: Group, axis: int) -> Epilogue | str:
    """The epilogue of a group, or the reason why a tile cannot apply it.

    `axis` is the channels' axis of the anchor's output.
    """
    value = group.anchor.outputs[0]
    if len(group.outputs) > 1:
        return f"{len(group.outputs)} values leave the group; a tile stores one"
    found = Epilogue()
    for node in group.epilogue:
        operands = [v for v in node.inputs if v is not None]
        if value not in operands:
            return f"{node.op_type} {node.name!r} does not continue the chain"
        following = _follow(found, node, value, axis)
        if isinstance(following, str):
            return f"{node.op_type} {node.name!r} {following}"
        found, value = following, node.outputs[0]
    return found


def _follow(found: Epilogue, node: ir.Node, value: ir.Value, axis: int) -> Epilogue | str:
    if graph.shape(node.outputs[0]) != graph.shape(value):
        return f"changes the shape {graph.shape(value)} to {graph.shape(node.outputs[0])}"
    if node.op_type in ("Relu", "Clip"):
        return _limit(found, node)
    if node.op_type not in ("Add", "Sub"):
        return "is not among Add, Sub, Relu and Clip"
    if found.clamps:
        return "follows a limit"
    if node.op_type == "Sub" and node.inputs[1] is value:
        return "subtracts from something else"
    others = [v for v in node.inputs if v is not None and v is not value]
    if len(others) != 1:
        return "has no second operand"
    (other,) = others
    shape = graph.static_shape(value)
    if graph.is_constant(other) and per_channel(graph.static_shape(other), shape, axis):
        sign = -1.0 if node.op_type == "Sub" else 1.0
        return replace(found, biases=(*found.biases, (other, sign)))
    if graph.shape(other) != shape:
        return f"has an operand {other.name!r} that is neither a constant per channel nor of shape {shape}"
    if node.op_type == "Sub":
        return "subtracts a tensor"
    if found.residual is not None:
        return "would be the second residual"
    return replace(found, residual=other)


def per_channel(shape: tuple[int, ...], output: tuple[int, ...], axis: int) -> bool:
    """Whether a tensor of this shape, broadcast to the output's, varies along one axis at most."""
    if len(shape) > len(output):
        return False
    wide = (1,) * (len(output) - len(shape)) + shape
    return all(d == 1 or (i == axis % len(output) and d == output[i]) for i, d in enumerate(wide))


def _limit(found: Epilogue, node: ir.Node) -> Epilogue | str:
    low, high = 0.0, None
    if node.op_type == "Clip":
        limits = []
        for index in (1, 2):
            bound = graph.input_at(node, index)
            array = graph.constant(bound)
            if bound is not None and array is None:
                return "has a limit that is no constant"
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
