"""Rules that replace operators by simpler ones: fewer kinds of nodes to plan, fewer nodes to run.

Arithmetic on constants is done in double precision and rounded once. Rules that regroup floating
point operations look at float32 and float64 only: in half precision a regrouped product may
differ by more than rounding.
"""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.graph import scalar
from app.engine.core.rewriter import Made, Replacement, RewriteRule, constant, sole_reader, value_like

Array = np.ndarray[Any, Any]

_LARGEST_MASK = 1 << 23  # elements of scores whose masks are added up

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
# Operators that turn a rounding error into another result; and those that hand one on to them.
STEPS = frozenset(
    {"Floor", "Ceil", "Round", "Mod", "Cast", "CastLike", "Equal", "Less", "LessOrEqual", "Greater"}
    | {"GreaterOrEqual", "Sign", "QuantizeLinear", "DynamicQuantizeLinear"}
)
PASSING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Clip", "Max", "Min", "Identity", "Reshape", "Transpose"}
    | {"Squeeze", "Unsqueeze", "Flatten", "Concat", "Slice", "Gather", "Expand"}
)


def _pair(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    a, b = node.inputs[0], node.inputs[1]
    return None if a is None or b is None else (a, b)


def _as_is(source: ir.Value, output: ir.Value) -> Replacement | None:
    """The output is the source, if no broadcast has changed the shape."""
    shape = graph.shape(source)
    if shape is None or shape != graph.shape(output) or source.dtype != output.dtype:
        return None
    return Replacement([source])


def drop_neutral(node: ir.Node) -> Replacement | None:
    """X * 1 = x / 1 = x ** 1 = x + 0 = x - 0 = x."""
    pair = _pair(node)
    if pair is None:
        return None
    neutral = 0.0 if node.op_type in ("Add", "Sub") else 1.0
    if scalar(pair[1]) == neutral:
        return _as_is(pair[0], node.outputs[0])
    if node.op_type in ("Add", "Mul") and scalar(pair[0]) == neutral:
        return _as_is(pair[1], node.outputs[0])
    return None


def expand_power(node: ir.Node) -> Replacement | None:
    """X ** 2 = x * x;  x ** 0.5 = sqrt(x);  x ** -1 = 1 / x."""
    base, exponent = node.inputs[0], scalar(node.inputs[1])
    if base is None or graph.shape(base) is None or graph.shape(base) != graph.shape(node.outputs[0]):
        return None
    if exponent == 2.0:
        new = ir.Node("", "Mul", [base, base])
    elif exponent == 0.5 and base.dtype in FLOATS:
        new = ir.Node("", "Sqrt", [base])
    elif exponent == -1.0 and base.dtype in FLOATS:
        new = ir.Node("", "Reciprocal", [base])
    else:
        return None
    return Replacement(new.outputs, [new])


def multiply_by_reciprocal(node: ir.Node) -> Replacement | None:
    """X / c = x * (1 / c), for constants whose reciprocals are normal numbers.

    Off by one rounding unless c is a power of two, so not where a step function may follow.
    """
    x, divisor = node.inputs[0], node.inputs[1]
    array = graph.constant(divisor)
    if x is None or divisor is None or array is None or x.dtype not in FLOATS or array.size == 0:
        return None
    with np.errstate(all="ignore"):
        reciprocal = (1.0 / array.astype(np.float64)).astype(array.dtype)
    magnitude = np.abs(reciprocal)
    if not np.all(np.isfinite(magnitude) & (magnitude >= np.finfo(array.dtype).tiny) & np.isfinite(array)):
        return None
    exact = bool(np.all(np.abs(np.frexp(array)[0]) == 0.5))
    if not exact and reaches_step(node.outputs[0]):
        return None
    new = ir.Node("", "Mul", [x, constant(reciprocal, f"{divisor.name}.reciprocal")])
    return Replacement(new.outputs, [new])


def reaches_step(value: ir.Value) -> bool:
    """True if a step function reads the value, directly or through arithmetic."""
    seen = {value}
    pending = [value]
    while pending:
        for use in pending.pop().uses():
            if use.node.op_type in STEPS:
                return True
            if use.node.op_type in PASSING:
                fresh = [v for v in use.node.outputs if v not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return False


def compress_by_mask(node: ir.Node) -> Replacement | None:
    """GatherND(x, Transpose(NonZero(mask))) = Compress(x, mask), the axes of the mask taken as one.

    So exporters write `x[mask]`; places of elements need quotients of 64 bits, and reads at random.
    """
    x = graph.operand(node, 0)
    turned = graph.operand(node, 1).producer()
    found = turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else None
    made_by = found.producer() if found is not None else None
    if made_by is None or made_by.op_type != "NonZero" or graph.attribute(node, "batch_dims", 0):
        return None
    mask = graph.operand(made_by, 0)
    sizes, extents = graph.shape(x), graph.shape(mask)
    if not sizes or not extents or sizes[: len(extents)] != extents or x.dtype == ir.DataType.STRING:
        return None
    n, rest = Made(node), sizes[len(extents) :]
    if mask.dtype != ir.DataType.BOOL:
        mask = n("Cast", mask, to=ir.DataType.BOOL)
    if len(extents) > 1:
        size = math.prod(extents)
        x = n("Reshape", x, n.axes(size, *rest))
        mask = n("Reshape", mask, n.axes(size))
    return Replacement([n("Compress", x, mask, axis=0)], n.nodes)


def sample_in_one_type(node: ir.Node) -> Replacement | None:
    """GridSample of float32 and float64 has an image and a grid of one type, as kernels do.

    Exporters compute grids of deformable attention in float64. The grid takes the image's type; only
    where float32 might round to another nearest pixel the image takes the grid's.
    """
    x, grid = graph.operand(node, 0), graph.operand(node, 1)
    kind = x.dtype
    if kind is None or {kind, grid.dtype} != set(FLOATS):
        return None
    n, options = Made(node), tuple(node.attributes.values())
    widens = kind == ir.DataType.FLOAT and graph.attribute(node, "mode", "linear") == "nearest"
    if widens:
        x = n("Cast", x, to=ir.DataType.DOUBLE)
    else:
        grid = n("Cast", grid, to=kind)
    new = ir.Node("", "GridSample", [x, grid], options)
    if not widens:
        return Replacement(new.outputs, [*n.nodes, new])
    new.outputs[0].name = f"{node.name}.wide"
    narrowed = ir.Node("", "Cast", new.outputs, [ir.AttrInt64("to", ir.DataType.FLOAT)])
    return Replacement(narrowed.outputs, [*n.nodes, new, narrowed])


def chain_sum(node: ir.Node) -> Replacement | None:
    """Sum(a, b, c) = (a + b) + c."""
    if len(node.inputs) < 2:
        return None
    nodes: list[ir.Node] = []
    total = node.inputs[0]
    for term in node.inputs[1:]:
        nodes.append(ir.Node("", "Add", [total, term]))
        partial_sum = nodes[-1].outputs[0]
        # Its shape is for inference to say, where a later term broadcasts it.
        partial_sum.name = f"{node.outputs[0].name}.{len(nodes)}"
        partial_sum.type = node.outputs[0].type
        total = partial_sum
    return Replacement(nodes[-1].outputs, nodes)


def resolve_auto_pad(node: ir.Node) -> Replacement | None:
    """auto_pad as explicit pads, for static shapes.

    SAME pads so that ceil(in / stride) windows fit (for ConvTranspose: so that in * stride outputs
    remain), the odd element after the end (UPPER) or before the beginning (LOWER); VALID not at all.
    """
    mode = graph.attribute(node, "auto_pad", "NOTSET")
    x, y = node.inputs[0], node.outputs[0]
    shape = None if x is None else graph.shape(x)
    result = graph.shape(y)
    kernel = _kernel(node)
    if mode == "NOTSET" or shape is None or result is None or kernel is None:
        return None
    if "output_shape" in node.attributes:
        return None
    rank = len(shape) - 2
    strides = list(graph.attribute(node, "strides", [1] * rank))
    dilations = list(graph.attribute(node, "dilations", [1] * rank))
    extra = list(graph.attribute(node, "output_padding", [0] * rank))
    begins, ends = [], []
    for axis in range(rank):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        size, out, stride = shape[axis + 2], result[axis + 2], strides[axis]
        if node.op_type == "ConvTranspose":
            total = stride * (size - 1) + extra[axis] + window - out
            fits = total >= 0
        else:
            total = 0 if mode == "VALID" else max((out - 1) * stride + window - size, 0)
            fits = (size + total - window) // stride + 1 == out
        if not fits or (mode == "VALID" and total != 0):
            return None
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    kept = [a for name, a in node.attributes.items() if name not in ("auto_pad", "pads", "ceil_mode")]
    new = ir.Node(
        "",
        node.op_type,
        node.inputs,
        [*kept, ir.AttrInt64s("pads", [*begins, *ends])],
        num_outputs=len(node.outputs),
    )
    return Replacement(new.outputs, [new])


def _kernel(node: ir.Node) -> list[int] | None:
    """Extents of the window."""
    kernel = graph.attribute(node, "kernel_shape", None)
    if kernel is not None:
        return list(kernel)
    weight = graph.input_at(node, 1)
    shape = None if weight is None else graph.shape(weight)
    return None if shape is None else list(shape[2:])


def flatten_concat(node: ir.Node) -> Replacement | None:
    """Concat(a, Concat(b, c), d) = Concat(a, b, c, d) along one axis: nothing is copied twice."""
    axis = _concat_axis(node)
    operands: list[ir.Value | None] = []
    for value in node.inputs:
        inner = None if value is None or sole_reader(value) is not node else value.producer()
        if inner is not None and inner.op_type == "Concat" and _concat_axis(inner) == axis:
            operands.extend(inner.inputs)
        else:
            operands.append(value)
    if axis is None or len(operands) == len(node.inputs):
        return None
    new = ir.Node("", "Concat", operands, [ir.AttrInt64("axis", axis)])
    return Replacement(new.outputs, [new])


def _concat_axis(node: ir.Node) -> int | None:
    """The axis of a Concat, counted from the front; None where the rank is not known."""
    shape = node.outputs[0].shape
    return None if shape is None else graph.attribute(node, "axis", 0) % len(shape)


def hoist_invariant(node: ir.Node) -> Replacement | None:
    """Read from outside what a Loop or Scan hands from one iteration to the next unchanged."""
    body = node.attributes["body"].as_graph()
    scanned = int(graph.attribute(node, "num_scan_inputs", 0))
    if node.op_type == "Scan" and node.graph is not None and node.graph.opset_imports.get("", 0) < 9:
        return None  # it has a batch axis there, which its body has not
    # Of the carried values of a Loop, after the trip count and the condition; so in the body.
    first, results = (0, 0) if node.op_type == "Scan" else (2, 1)
    carried = len(node.inputs) - first - scanned
    kept = [
        k for k in range(carried) if graph.source(body.outputs[results + k]) is not body.inputs[first + k]
    ]
    if len(kept) == carried:
        return None
    body = body.clone(allow_outer_scope_values=True)
    for k in reversed(range(carried)):
        initial = node.inputs[first + k]
        if k in kept or initial is None:
            continue
        received = body.inputs[first + k]
        del body.outputs[results + k]
        returned = [i for i, value in enumerate(body.outputs) if value is received]
        if returned:  # what is read from outside is no output of a body
            copy = ir.Node("", "Identity", [initial], outputs=[value_like(received, f"{received.name}.kept")])
            body.append(copy)
            for i in returned:
                body.outputs[i] = copy.outputs[0]
        for use in received.uses():
            use.node.replace_input_with(use.idx, initial)
        del body.inputs[first + k]
    scans = range(carried, len(node.outputs))
    attributes = [a for a in node.attributes.values() if a.name != "body"]
    new = ir.Node(
        "",
        node.op_type,
        (*node.inputs[:first], *(node.inputs[first + k] for k in kept), *node.inputs[first + carried :]),
        (*attributes, ir.AttrGraph("body", body)),
        num_outputs=len(kept) + len(scans),
    )
    places = dict(zip((*kept, *scans), new.outputs))
    return Replacement(
        [places[i] if i in places else node.inputs[first + i] for i in range(len(node.outputs))], (new,)
    )


def join_masks(node: ir.Node) -> Replacement | None:
    """Softmax of a product plus constants, between Reshapes that cancel: one constant, no Reshape.

    Attention within windows adds a bias for each head, then a mask for each window where scores are taken
    apart by images and windows: so they are one attention. The sums of the constants round once.
    """
    value, added, moves = graph.operand(node, 0), [], 0
    shape = graph.shape(value)
    while shape is not None and (maker := value.producer()) is not None and maker.op_type != "MatMul":
        extents, pair = graph.shape(value), _pair(maker) if len(maker.inputs) == 2 else None
        if (
            extents is None
            or pair is None
            or sole_reader(value) is None
            or math.prod(extents) > _LARGEST_MASK
        ):
            return None
        if maker.op_type == "Reshape":
            value, moves = pair[0], moves + 1
            continue
        constants = [v for v in pair if graph.is_constant(v)]
        if maker.op_type != "Add" or len(constants) != 1:
            return None
        value = pair[0] if constants[0] is pair[1] else pair[1]
        if graph.shape(value) != extents:
            return None
        wide = np.broadcast_to(graph.array(constants[0]).astype(np.float64), extents)
        added.append(_narrowed(wide.reshape(shape)))
    if value.producer() is None or graph.shape(value) != shape or value.dtype not in FLOATS:
        return None
    if not added or (len(added) < 2 and not moves):
        return None
    made = Made(node)
    total = made.array(sum(added[1:], added[0]).astype(graph.element_type(value)), "masks")
    axis = graph.attribute(node, "axis", -1)
    return Replacement((made("Softmax", made("Add", value, total), axis=axis),), made.nodes)


def _narrowed(array: Array) -> Array:
    """An array with one element along the axes along which it is the same."""
    for axis in range(array.ndim):
        first = array.take(range(min(array.shape[axis], 1)), axis)
        if np.array_equal(np.broadcast_to(first, array.shape), array):
            array = first
    return array


ROWS = (
    RewriteRule(join_masks, ("Softmax",), nested=False),
    RewriteRule(hoist_invariant, ("Loop", "Scan")),
    RewriteRule(flatten_concat, ("Concat",), nested=False),
    RewriteRule(drop_neutral, ("Add", "Sub", "Mul", "Div", "Pow")),
    RewriteRule(expand_power, ("Pow",)),
    RewriteRule(multiply_by_reciprocal, ("Div",)),
    RewriteRule(compress_by_mask, ("GatherND",)),
    RewriteRule(sample_in_one_type, ("GridSample",)),
    RewriteRule(chain_sum, ("Sum",)),
    RewriteRule(
        resolve_auto_pad, ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), nested=False
    ),
)
