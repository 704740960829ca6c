"""Epilogues of contractions: the nodes after the anchor, computed on its sums before they are stored.

y = activation(alpha sums + bias + residual), or activation(...) + residual. What does not fit this form stays
outside of the group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Argument, Constant
from app.engine.core.group import Group, of_group
from app.engine.operators import epilogues
from app.engine.operators.elementwise import recipe_of
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]
Activation = tuple[str | float, ...]

# Activations of contractions that one expression computes, and its name.
FUNCTIONS: Mapping[str, str] = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "silu": "Silu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "leaky_relu": "LeakyRelu",
    "elu": "Elu",
    "hard_sigmoid": "HardSigmoid",
    "hard_swish": "HardSwish",
}
NEAR = 1e-6  # what models write for 1/6 is off by less


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """The nodes after an anchor.

    Attributes:
        biases: constants of one element per channel or a single one, with a sign.
        residual: a value of the output's shape.
        place: of the residual, `before` or `after` the activation.
        activation: as `app.kernels.cuda.epilogue` names it.
    """

    biases: tuple[tuple[ir.Value, float], ...] = ()
    residual: ir.Value | None = None
    place: str = ""
    activation: Activation = ("",)

    def bias(self, channels: int, more: Array | None = None) -> Array | None:
        """The sum of the biases, float32, one element per channel; None where there are none."""
        total = epilogues.summed(self.biases, channels, np.dtype(np.float64))
        if more is not None:
            total = (np.zeros(channels) if total is None else total) + more.reshape(-1).astype(np.float64)
        return None if total is None else total.astype(np.float32)

    def epilogue(self, dtype: str, *, bias: bool, alpha: float = 1.0) -> Epilogue:
        """Epilogue as the kernel's generator takes it."""
        return Epilogue(dtype, alpha, bias, self.place, self.activation)


@of_group
def read(group: Group, axis: int) -> Ending | str:
    """The ending of a group, or why a contraction does not compute it; `axis` is the channels'."""
    (value,) = group.anchor.outputs[:1]
    if len(group.outputs) > 1:
        return f"{len(group.outputs)} values leave the group; a contraction stores one"
    shape, found = graph.static_shape(value), Ending()
    nodes = group.epilogue
    for i, node in enumerate(nodes):
        (output,) = node.outputs
        if graph.shape(output) != shape or graph.dtype(output) != graph.dtype(value):
            return f"{node.op_type} {node.name!r} changes shape or type"
        readers = [n for n in nodes[i:] if value in n.inputs]
        added = _added(found, node, value, axis) if readers == [node] else None
        if added is not None:
            found, value = added, output
            continue
        return _activated(found, nodes[i:], value)
    return found


def _added(found: Ending, node: ir.Node, value: ir.Value, axis: int) -> Ending | None:
    """With what an Add or a Sub adds; None for anything else."""
    addend, activated = epilogues.added(node, value, axis), _is_activated(found)
    if addend is None:
        return None
    if addend.per_channel and not activated:
        return replace(found, biases=(*found.biases, (addend.value, addend.sign)))
    if graph.is_constant(addend.value) or found.residual is not None:
        return None
    return replace(found, residual=addend.value, place="after" if activated else "before")


def _is_activated(found: Ending) -> bool:
    return found.activation != ("",)


def _activated(found: Ending, nodes: Sequence[ir.Node], value: ir.Value) -> Ending | str:
    """The ending with the function that the nodes from here on are, and a residual after it."""
    if _is_activated(found):
        return f"{nodes[0].op_type} {nodes[0].name!r} follows an activation"
    for end in range(len(nodes), max(len(nodes) - 2, 0), -1):
        last = nodes[end - 1].outputs[0]
        activation = _function(nodes[:end], value, last)
        if activation is None:
            continue
        made = replace(found, activation=activation)
        if end == len(nodes):
            return made
        after = _added(made, nodes[-1], last, 0)
        if after is not None and after.place == "after" and found.residual is None:
            return after
    return f"{nodes[0].op_type} {nodes[0].name!r} and what follows is no activation that contractions know"


def _function(nodes: Sequence[ir.Node], value: ir.Value, last: ir.Value) -> Activation | None:
    """The activation of one value that some nodes compute; None for others."""
    formula = recipe_of(nodes, (last,), first=(value,))
    if isinstance(formula, str) or formula.results[0][0] != len(formula.operands) + len(formula.recipe) - 1:
        return None
    constants = [graph.number(o.value) for o in formula.operands[1:]]
    if any(c is None for c in constants):
        return None
    ops = tuple(op for op, _, _ in formula.recipe if op != "Identity")
    known = _KNOWN.get(ops)
    return None if known is None else known(formula.recipe, [float(c) for c in constants if c is not None])


def _plain(name: str) -> Callable[[Recipe, list[float]], Activation | None]:
    def found(recipe: Recipe, constants: list[float]) -> Activation | None:
        """The activation with the parameters of its one instruction."""
        return None if constants else (name, *(p for p in recipe[-1][2] if not isinstance(p, str)))

    return found


def _clip(recipe: Recipe, constants: list[float]) -> Activation | None:
    """Both limits, or the one that makes a ReLU; an open end would cut infinity off."""
    ops = [op for op, _, _ in recipe if op != "Identity"]
    limits = dict(zip(ops, constants))
    if len(ops) != len(constants):
        return None
    if limits == {"AtLeast": 0.0}:
        return ("relu",)
    return ("clip", limits["AtLeast"], limits["AtMost"]) if len(limits) == 2 else None


def _gated(recipe: Recipe, constants: list[float]) -> Activation | None:
    """HardSwish: x * HardSigmoid(x) where the slope is a sixth."""
    (_, gate, parameters), (_, factors, _) = recipe
    if constants or gate != (0,) or set(factors) != {0, 1}:
        return None
    slope, offset = (float(p) for p in parameters)
    return ("hard_swish",) if abs(slope - 1 / 6) < NEAR and abs(offset - 0.5) < NEAR else None


_KNOWN: Mapping[tuple[str, ...], Callable[[Recipe, list[float]], Activation | None]] = {
    **{(op,): _plain(name) for name, op in FUNCTIONS.items()},
    ("AtLeast",): _clip,
    ("AtMost",): _clip,
    ("AtLeast", "AtMost"): _clip,
    ("HardSigmoid", "Mul"): _gated,
}


def over_residual(
    group: Group, residual: ir.Value | None, read: Sequence[ir.Value | None]
) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The output over a residual that is not `read` otherwise: who stores an element has read it before.

    That holds where a second kernel sums up, too.
    """
    if residual is None or residual in read or graph.is_constant(residual):
        return ()
    return ((residual, group.outputs[0]),)


def roles(residual: ir.Value | None, bias: Array | None) -> dict[str, Argument]:
    """The arguments of an ending, by the roles that its kernels give them."""
    given: dict[str, Argument] = {} if bias is None else {"bias": Constant(bias)}
    return given if residual is None else {**given, "residual": residual}
