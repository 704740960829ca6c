"""Rows of transposed convolutions: a convolution for each remainder of output positions by the strides."""

from app.engine.backends.cuda import dispatch
from app.engine.backends.cuda.conv import (
    ending_of,
    group_rejection,
    layouts_of,
    pair,
    weights_of,
)
from app.engine.backends.cuda.epilogue import roles as epilogue_roles
from app.engine.backends.cuda.launch_calls import BACKEND, calls, product_seconds
from app.engine.backends.cuda.matmul import precision_rejection
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Argument, LaunchCall
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators import conv_geometry
from app.engine.operators.axes import first_input
from app.engine.types.target import Target
from app.kernels.cuda.conv_transpose import ConvTranspose, conv_transpose, packed_weights


@of_group
def shape_of(group: Group) -> ConvTranspose:
    """The transposed convolution that the anchor is; padding as its output's shape tells."""
    node = group.anchor
    n, ci, *places = graph.static_shape(first_input(group))
    _, _, *kernel = graph.static_shape(graph.operand(node, 1))
    _, co, *ends = graph.static_shape(node.outputs[0])
    (h, w), out, taps = (pair(sizes, 1) for sizes in (places, ends, kernel))
    strides = pair(graph.attribute(node, "strides", (1, 1)), 1)
    dilations = pair(graph.attribute(node, "dilations", (1, 1)), 1)
    phases = conv_geometry.of_conv_transpose(node)
    # Output pixel 0 sees the taps that pads leave: what the first phase reads tells how many are cut.
    top, left = (
        (
            phases[0].taps[i][0] * d + phases[0].window.offsets[i][0] * s
            for i, d, s in zip((1, 2), dilations, strides)
        )
        if all(phases[0].taps[1:])
        else pair(graph.attribute(node, "pads", (0, 0, 0, 0))[: len(places)], 0)
    )
    reach = [
        (size - 1) * s + d * (k - 1) + 1 - before - o
        for size, s, d, k, before, o in zip((h, w), strides, dilations, taps, (top, left), out)
    ]
    after = [max(r, 0) for r in reach]
    extra = [max(-r, 0) for r in reach]
    return ConvTranspose(
        n,
        h,
        w,
        ci,
        co,
        taps,
        strides,
        (top, left, after[0], after[1]),
        dilations,
        graph.attribute(node, "group", 1),
        output_padding=(extra[0], extra[1]),
    )


def _rejection(group: Group, context: PlanningContext, precision: str) -> str | None:
    reason = group_rejection(group)
    if reason is None and ending_of(group).residual is not None:
        reason = "adds a residual"
    return reason or precision_rejection(precision, group, context)


def _cut(group: Group, precision: str, target: Target) -> dispatch.Cut:
    shape = shape_of(group)
    ci, co = shape.ci // shape.groups, shape.co // shape.groups
    tiles, depth = dispatch.offered(precision, ci, target.isa), shape.kernel[0] * shape.kernel[1] * ci
    pixels = shape.n * shape.h * shape.w
    return dispatch.cut(precision, tiles, pixels, co, depth, shape.groups, target, shares=False)


@of_group
def _lowered(group: Group, precision: str, target: Target) -> tuple[LaunchCall, ...]:
    shape, ending, (y,) = shape_of(group), ending_of(group), group.outputs
    own = graph.constant(graph.input_at(group.anchor, 2))
    bias = ending.bias(shape.co, own)
    way = _cut(group, precision, target)
    epilogue = ending.epilogue(element(y), bias=bias is not None)
    weights = weights_of(group, lambda w: packed_weights(w, shape, precision))
    roles: dict[str, Argument] = {"x": first_input(group), "w": weights, "y": y}
    roles |= epilogue_roles(ending.residual, bias)
    return calls(conv_transpose(shape, precision, epilogue, way.tile), roles)


def _seconds(group: Group, context: PlanningContext, precision: str) -> float:
    found = _lowered(group, precision, context.target)
    blocks = max(call.units for call in found)
    rate = dispatch.rate(precision, _cut(group, precision, context.target).tile)
    return product_seconds(group, context, blocks, rate, launches=len(found))


def _row(precision: str) -> Implementation:
    return Implementation(
        f"cuda.conv_transpose_{precision}",
        "ConvTranspose",
        BACKEND,
        lambda group, context: _rejection(group, context, precision),
        lambda group, context: _lowered(group, precision, context.target),
        lambda group, context: _seconds(group, context, precision),
        layouts=layouts_of(False),
        precision=dispatch.TOLD[precision],
        rank=dispatch.PRECISIONS.index(precision),
    )


IMPLEMENTATIONS = tuple(map(_row, dispatch.PRECISIONS))
