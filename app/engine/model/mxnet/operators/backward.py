"""Backward operators of MXNet: the forward node again, and a node that asks for its gradients.

A training graph of MXNet names the forward node of each backward one in `control_deps`. Most backward
operators take gradients of its outputs first and give those of its operands, in order; rows tell the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.model.mxnet.builder import Call

Own = Callable[[Call, Call], tuple[ir.Value, ...]]  # from the forward and the backward node


@dataclass(frozen=True, slots=True)
class Backward:
    """Exceptions of a backward operator.

    Attributes:
        first: the operand of the forward node that the first output is the gradient of.
        own: its outputs, where it is no derivative of the forward operator.
    """

    first: int = 0
    own: Own | None = None


def _regression(translated: Callable[[Call, ir.Value, ir.Value], ir.Value]) -> Own:
    """A function of prediction and label, over the labels of a sample; the label has no gradient."""

    def outputs(forward: Call, c: Call) -> tuple[ir.Value, ...]:
        label, prediction = c.inputs
        dims = c.dims(label)
        if dims is None or not dims:
            raise c.error("the shape of the label is not known; declare `__shape__` of it")
        scale = forward.attributes.number("grad_scale", 1.0) * dims[0]
        for size in dims:
            scale /= size
        shaped = c.one("Reshape", label, c.one("Shape", prediction))
        found = c.one("Mul", translated(c, prediction, shaped), c.const(scale, prediction))
        zeros = c.one("Expand", c.const(0, label), c.one("Shape", label))
        return found, zeros

    return outputs


def _softmax_output(forward: Call, c: Call) -> tuple[ir.Value, ...]:
    """Probabilities less the label's one-hot code; without other attributes than `grad_scale`."""
    probabilities, label = c.inputs
    others = [n for n in forward.node.attributes if n != "grad_scale" and not n.startswith("__")]
    if others or c.rank(probabilities) != 2:
        raise c.error(f"{c.rank(probabilities)} axes and {others}; expected 2 axes and grad_scale alone")
    depth = c.one("Shape", probabilities, start=1, end=2)
    off_on = c.builder.constant(c.const([0, 1], probabilities).const_value.numpy(), "off_on")  # type: ignore[union-attr]
    code = c.one("OneHot", c.cast(label, ir.DataType.INT64), depth, off_on, axis=-1)
    scale = forward.attributes.number("grad_scale", 1.0)
    found = c.one("Mul", c.one("Sub", probabilities, code), c.const(scale, probabilities))
    return found, c.one("Expand", c.const(0, label), c.one("Shape", label))


def _made_loss(forward: Call, c: Call) -> tuple[ir.Value, ...]:
    """The constant `grad_scale`."""
    if forward.attributes.text("normalization", "null") != "null":
        raise c.error("normalization has no row; expected null")
    x = forward.inputs[0]
    return (c.one("Expand", c.const(forward.attributes.number("grad_scale", 1.0), x), c.one("Shape", x)),)


def _difference(c: Call, prediction: ir.Value, label: ir.Value) -> ir.Value:
    return c.one("Sub", prediction, label)


ROWS: Mapping[str, Backward] = {
    "_backward_where": Backward(first=1),
    "_backward_SoftmaxOutput": Backward(own=_softmax_output),
    "_backward_MakeLoss": Backward(own=_made_loss),
    "_backward_linear_reg_out": Backward(own=_regression(_difference)),
    "_backward_logistic_reg_out": Backward(own=_regression(_difference)),
    "_backward_mae_reg_out": Backward(own=_regression(lambda *of: of[0].one("Sign", _difference(*of)))),
}


def translated(
    c: Call, forward: Call, forward_results: Callable[[Call], tuple[ir.Value, ...]]
) -> tuple[ir.Value, ...]:
    """Outputs of a backward node; `forward` is its forward node.

    Raises:
        GraphError: its operands are not those of a gradient of the forward node.
    """
    row = ROWS.get(c.node.op, Backward())
    if row.own is not None:
        return row.own(forward, c)
    operands = tuple(c.one("Identity", v) for v in forward.inputs)
    again = Call(forward.node, operands, forward.attributes, c.builder, forward.convert)
    values = forward_results(again)
    asked = operands[row.first :]
    if len(c.inputs) < len(values) or c.node.outputs > len(asked):
        raise c.error(
            f"{len(c.inputs)} operands and {c.node.outputs} outputs; {forward.title} has {len(values)} "
            f"outputs and {len(asked)} operands"
        )
    return c.builder.backward(c.inputs[: len(values)], values, asked[: c.node.outputs], c.node.name)
