"""Proof that a graph computes requests that are stacked along the batch axis as it computes each alone.

Two canonical graphs of one model are compared, of one request and of `count` of them. A value of the second
is `along` an axis where it is the concatenation, along that axis, of the values that the requests have alone,
and the same where it depends on no request. Rules by operator carry this from inputs to outputs; what no rule
covers is refused. Constants that shape inference made of the number of rows differ between the graphs, and
are let through only where they are read as shapes.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph

SAME: Final = -1  # of a value that depends on no request
DIFFERENT: Final = -2  # of a constant that is another one in the other graph

Along: TypeAlias = int  # an axis, or SAME
Shape: TypeAlias = tuple[int, ...]


class MixedRowsError(Exception):
    """Requests would read each other's numbers; the message names the node."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A node of the graph of all requests, and the same of one."""

    node: ir.Node
    alone: ir.Node
    along: tuple[Along, ...]  # of its inputs; SAME for those that are left out
    count: int

    def shape(self, index: int) -> Shape:
        """Shape of an input; of one that is left out that of a single number."""
        value = self.node.inputs[index]
        return () if value is None else graph.static_shape(value)

    def out(self, index: int = 0) -> Shape:
        """Shape of an output."""
        return graph.static_shape(self.node.outputs[index])

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the node."""
        return graph.attribute(self.node, name, default)

    def constant(self, index: int) -> tuple[int, ...] | None:
        """Integers of a constant input that is the same in both graphs; None for an absent one."""
        if index >= len(self.node.inputs) or self.node.inputs[index] is None:
            return None
        found = graph.constant(self.node.inputs[index])
        if found is None or self.along[index] != SAME:
            raise MixedRowsError(f"operand {index} is not a constant of all batch sizes")
        return tuple(int(i) for i in found.reshape(-1))

    def only(self, *allowed: int) -> None:
        """Refuse requests in other operands than these."""
        for index, along in enumerate(self.along):
            if along != SAME and index not in allowed:
                name = self.node.inputs[index]
                raise MixedRowsError(f"operand {getattr(name, 'name', index)!r} differs between requests")


def axis_of_rows(node: ir.Node, along: Sequence[Along]) -> Along:
    """Axis of the output along which a node computes slices one by one, of operands that have them `along`.

    Raises:
        MixedRowsError: a slice of the output may depend on several, or no rule shows that it does not.
    """
    rule = RULES.get(node.op_type)
    found = None if rule is None or node.domain else rule.along(_Pair(node, node, tuple(along), 1))
    if not isinstance(found, int):
        raise MixedRowsError(f"no rule for {node.op_type}")
    return found


def rows_of_outputs(alone: ir.Graph, stacked: ir.Graph, count: int) -> frozenset[str]:
    """Names of outputs that are stacked along axis 0; the others are the same for all requests.

    Raises:
        MixedRowsError: it cannot be shown that every request gets what it would get alone.
    """
    known: dict[ir.Value | None, Along] = {None: SAME}
    for value in stacked.inputs:
        if not graph.static_shape(value):
            raise MixedRowsError(
                f"input {value.name!r} is a single number, which requests may give differently"
            )
        known[value] = 0
    for both in itertools.zip_longest(alone, stacked):
        if None in both or both[0].op_type != both[1].op_type:
            found = " and ".join(f"{n.op_type} {n.name!r}" for n in both if n is not None)
            raise MixedRowsError(f"the graph has other nodes for another batch size, from {found} on")
    pairs = dict(zip(stacked.inputs, alone.inputs, strict=True))
    for node, single in zip(stacked, alone, strict=True):
        if not _alike(node, single, pairs):
            raise MixedRowsError(f"{node.op_type} {node.name!r} has other operands for another batch size")
        for operand, lone in zip(node.inputs, single.inputs):
            if operand is not None and lone is not None and operand not in known:
                known[operand] = _constant(operand, lone, count)
        pairs |= dict(zip(node.outputs, single.outputs, strict=True))
        pair = _Pair(node, single, tuple(known[v] for v in node.inputs), count)
        try:
            known |= _outputs(pair)
        except MixedRowsError as reason:
            raise MixedRowsError(f"{node.op_type} {node.name!r} may mix requests: {reason}") from None
        for value in node.outputs:
            _check_shape(value, pairs[value], known[value], count)
    for value, lone in zip(stacked.outputs, alone.outputs, strict=True):
        if value not in known:
            known[value] = _constant(value, lone, count)
        if known[value] == DIFFERENT:
            raise MixedRowsError(f"output {value.name!r} is a constant that depends on the batch size")
        if known[value] > 0:
            raise MixedRowsError(f"output {value.name!r} has the requests along axis {known[value]}")
    return frozenset(v.name or "" for v in stacked.outputs if known[v] == 0)


def _alike(node: ir.Node, alone: ir.Node, pairs: Mapping[ir.Value, ir.Value]) -> bool:
    """True if two nodes read the same values of their graphs."""
    both = tuple(zip(node.inputs, alone.inputs))
    return len(node.inputs) == len(alone.inputs) and all(
        (v is None) == (o is None) and (v is None or v not in pairs or pairs[v] is o) for v, o in both
    )


def _constant(value: ir.Value, alone: ir.Value, count: int) -> Along:
    """Axis along which a constant of the stacked graph repeats that of one request; SAME or DIFFERENT."""
    here, there = graph.constant(value), graph.constant(alone)
    if here is None or there is None:
        return DIFFERENT
    if here.dtype != there.dtype or here.ndim != there.ndim:
        return DIFFERENT
    if here.shape == there.shape:
        equal = np.array_equal(here, there) if here.dtype.hasobject else here.tobytes() == there.tobytes()
        return SAME if equal else DIFFERENT
    axes = [i for i, (a, b) in enumerate(zip(here.shape, there.shape)) if a != b]
    if len(axes) == 1 and np.array_equal(np.concatenate([there] * count, axes[0]), here):
        return axes[0]
    return DIFFERENT


def _outputs(pair: _Pair) -> dict[ir.Value | None, Along]:
    node, alone = pair.node, pair.alone
    if node.domain:
        raise MixedRowsError(f"no rule for operators of {node.domain!r}")
    names = set(node.attributes) | set(alone.attributes)
    for name in sorted(names):
        if name not in node.attributes or name not in alone.attributes:
            raise MixedRowsError(f"attribute {name!r} depends on the batch size")
        if not _equal(node.attributes[name], alone.attributes[name]):
            raise MixedRowsError(f"attribute {name!r} depends on the batch size")
    rule = RULES.get(node.op_type)
    if rule is None:
        raise MixedRowsError("no rule shows that it does not")
    for index in range(len(node.inputs)):
        if pair.along[index] == DIFFERENT and index not in rule.shapes:
            raise MixedRowsError(f"operand {index} is made of the batch size")
    along = rule.along(pair)
    made = along if isinstance(along, tuple) else (along,) * len(node.outputs)
    return dict(zip(node.outputs, made, strict=False))


def _equal(one: ir.Attr, other: ir.Attr) -> bool:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR)
    return one.type == other.type and one.type not in kinds and one.value == other.value


def _check_shape(value: ir.Value, alone: ir.Value, along: Along, count: int) -> None:
    """Refuse shapes that do not fit what a rule says."""
    here, there = graph.static_shape(value), graph.static_shape(alone)
    expected = tuple(d * count if i == along else d for i, d in enumerate(there))
    if here != expected:
        raise MixedRowsError(
            f"value {value.name!r} has shape {list(there)} alone and {list(here)} for {count} requests"
        )


_Rule: TypeAlias = Callable[[_Pair], Along | tuple[Along, ...]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A rule, and the operands that it takes as shapes: these may differ between the graphs."""

    along: _Rule
    shapes: frozenset[int] = field(default_factory=frozenset)


def _broadcast(pair: _Pair) -> Along:
    """Operands that align at their last axes: the requests lie along one axis in all of them."""
    rank = len(pair.out())
    found = {rank - len(pair.shape(i)) + a for i, a in enumerate(pair.along) if a >= 0}
    if not found:
        return SAME
    if len(found) > 1:
        raise MixedRowsError("its operands have the requests along different axes")
    (axis,) = found
    for index, along in enumerate(pair.along):
        if pair.node.inputs[index] is not None and along == SAME:
            at = axis - rank + len(pair.shape(index))
            if at >= 0 and pair.shape(index)[at] != 1:
                raise MixedRowsError(f"operand {index} has an element for each row of the requests together")
    return axis


def _images(pair: _Pair) -> Along:
    """Operators on images: the first axis is the batch, and weights are for all."""
    pair.only(0)
    if pair.attribute("training_mode", 0):
        raise MixedRowsError("its statistics are those of the batch")
    if pair.along[0] > 0:
        raise MixedRowsError(f"the requests lie along axis {pair.along[0]} of its images")
    if pair.along[0] == 0 and pair.out()[0] != pair.shape(0)[0]:
        raise MixedRowsError("it changes the number of images")
    return pair.along[0]


def _max_pool(pair: _Pair) -> Along:
    """Images; the places of maxima count through all of them."""
    if pair.along[0] != SAME and any(v.uses() or v.is_graph_output() for v in pair.node.outputs[1:]):
        raise MixedRowsError("its places of maxima count through the images of all requests")
    return _images(pair)


def _first_of(*operands: int) -> Callable[[_Pair], Along]:
    """A rule of operators of which these operands, or all, have the requests first, and no others have."""

    def along(pair: _Pair) -> Along:
        asked = operands or range(len(pair.along))
        pair.only(*asked)
        found = {pair.along[i] for i in asked if pair.node.inputs[i] is not None}
        if found not in ({SAME}, {0}):
            raise MixedRowsError("not all of its operands have the requests first")
        return found.pop()

    return along


def _product(pair: _Pair) -> Along:
    """MatMul: requests along rows of one operand, or along an axis that both share or broadcast."""
    a, b = pair.along[:2]
    pair.only(0, 1)
    if any(v is not None and math.prod(graph.static_shape(v)) > 1 for v in pair.node.inputs[2:]):
        raise MixedRowsError("its zero points are of rows or columns")
    if len(pair.shape(0)) < 2 or len(pair.shape(1)) < 2:
        if b == SAME and 0 <= a < len(pair.shape(0)) - 1:
            return a
        if a == b == SAME:
            return SAME
        raise MixedRowsError("an operand is a vector")
    rank = len(pair.out())
    at = [along - len(pair.shape(i)) if along >= 0 else None for i, along in enumerate((a, b))]
    if at[0] == -1 or at[1] == -2:
        raise MixedRowsError("it adds up along the requests")
    if at[0] == -2 and b == SAME:
        return rank - 2
    if at[1] == -1 and a == SAME:
        return rank - 1
    found = {x for x in at if x is not None}
    if not found:
        return SAME
    if len(found) > 1 or max(found) >= -2:
        raise MixedRowsError("its operands have the requests along different axes")
    (axis,) = found
    for index, along in enumerate((a, b)):
        shape = pair.shape(index)
        if along == SAME and len(shape) >= -axis and shape[axis] != 1:
            raise MixedRowsError(f"operand {index} has a matrix for each request")
    return rank + axis


def _gemm(pair: _Pair) -> Along:
    pair.only(0, 2)
    rows = 1 if pair.attribute("transA", 0) else 0
    if pair.along[0] not in (SAME, rows):
        raise MixedRowsError("it adds up along the requests")
    if len(pair.along) > 2 and pair.node.inputs[2] is not None:
        shape = pair.shape(2)
        if pair.along[2] >= 0 and (pair.along[2] - len(shape) != -2 or pair.along[0] != rows):
            raise MixedRowsError("operand 2 has the requests along another axis")
        if pair.along[2] == SAME and pair.along[0] == rows and len(shape) == 2 and shape[0] != 1:
            raise MixedRowsError("operand 2 has an element for each row of the requests together")
    return 0 if pair.along[0] == rows else SAME


def _apart_from(axes: Callable[[_Pair, int], Sequence[int]]) -> Callable[[_Pair], Along]:
    """A rule of operators that mix along some axes of operand 0 only."""

    def along(pair: _Pair) -> Along:
        pair.only(0)
        rank = len(pair.shape(0))
        if pair.along[0] in {axis % rank for axis in axes(pair, rank)} - {SAME}:
            raise MixedRowsError(f"it works along axis {pair.along[0]}, which has the requests")
        return pair.along[0]

    return along


def _axis(default: int) -> Callable[[_Pair, int], Sequence[int]]:
    return lambda pair, _rank: (pair.attribute("axis", default),)


def _reduce(pair: _Pair) -> Along:
    pair.only(0)
    rank, along = len(pair.shape(0)), pair.along[0]
    axes = pair.constant(1) if (given := pair.attribute("axes", None)) is None else given
    if not axes:
        axes = () if axes is not None and pair.attribute("noop_with_empty_axes", 0) else range(rank)
    reduced = {axis % rank for axis in axes}
    return _without(reduced, along, keep=bool(pair.attribute("keepdims", 1)))


def _arg(pair: _Pair) -> Along:
    pair.only(0)
    axis = pair.attribute("axis", 0) % len(pair.shape(0))
    return _without({axis}, pair.along[0], keep=bool(pair.attribute("keepdims", 1)))


def _without(reduced: set[int], along: Along, *, keep: bool) -> Along:
    if along in reduced:
        raise MixedRowsError(f"it reduces axis {along}, which has the requests")
    return along if keep or along == SAME else along - sum(axis < along for axis in reduced)


def _transpose(pair: _Pair) -> Along:
    rank = len(pair.shape(0))
    order = list(pair.attribute("perm", None) or reversed(range(rank)))
    return SAME if pair.along[0] == SAME else order.index(pair.along[0])


def _reshape(pair: _Pair) -> Along:
    """The same elements in row-major order: the axis before which there are as many of them.

    Element i of the requests begins at i times the elements of one, counted from where `before` axes end.
    """
    along = pair.along[0]
    if along == SAME:
        return SAME
    source, target = pair.shape(0), pair.out()
    alone = graph.static_shape(pair.alone.outputs[0])
    before = math.prod(source[:along])
    for axis, extent in enumerate(target):
        wide = extent == alone[axis] * pair.count and len(alone) == len(target)
        if wide and math.prod(target[:axis]) == before and target[axis + 1 :] == alone[axis + 1 :]:
            return axis
    raise MixedRowsError("it cuts across the requests")


def _concat(pair: _Pair) -> Along:
    found = set(pair.along)
    axis = pair.attribute("axis", 0) % len(pair.out())
    if len(found) > 1 or axis in found:
        raise MixedRowsError("it joins values that lie along the requests in different ways")
    return found.pop()


def _slice(pair: _Pair) -> Along:
    pair.only(0)
    along, rank = pair.along[0], len(pair.shape(0))
    starts = pair.constant(1) or ()
    axes = pair.constant(3) or tuple(range(len(starts)))
    if along in {axis % rank for axis in axes}:
        raise MixedRowsError(f"it takes a part of axis {along}, which has the requests")
    return along


def _pad(pair: _Pair) -> Along:
    pair.only(0)
    along, rank = pair.along[0], len(pair.shape(0))
    if along == SAME:
        return SAME
    pads = pair.constant(1) or ()
    axes = pair.constant(3) or tuple(range(rank))
    for i, axis in enumerate(axes):
        if axis % rank == along and (pads[i] or pads[i + len(axes)]):
            raise MixedRowsError(f"it pads axis {along}, which has the requests")
    return along


def _expand(pair: _Pair) -> Along:
    """Repeated along new axes, or along those of extent 1: of what depends on no request, for all of them."""
    target, alone = pair.out(), graph.static_shape(pair.alone.outputs[0])
    shape, along = pair.shape(0), pair.along[0]
    offset = len(target) - len(shape)
    if along != SAME:
        if target[along + offset] != shape[along]:
            raise MixedRowsError(f"it repeats axis {along}, which has the requests")
        return along + offset
    wider = [i for i, (a, b) in enumerate(zip(target, alone)) if a != b] or [SAME]
    if len(wider) > 1:
        raise MixedRowsError("it repeats along several axes by the batch size")
    return wider[0]


def _gather(pair: _Pair) -> Along:
    data, indices = pair.along
    axis, rank = int(pair.attribute("axis", 0)) % len(pair.shape(0)), len(pair.shape(1))
    if indices == SAME and data != axis:
        return data if data < axis else data + rank - 1
    if data == SAME:
        return axis + indices
    raise MixedRowsError("its indices count along the requests")


def _gather_nd(pair: _Pair) -> Along:
    data, indices = pair.along
    batch = int(pair.attribute("batch_dims", 0))
    if data == indices == SAME:
        return SAME
    if data == SAME and indices < len(pair.shape(1)) - 1 and indices >= batch:
        return indices
    depth = batch + pair.shape(1)[-1]
    if indices == SAME and data >= depth:
        return len(pair.shape(1)) - 1 + data - depth
    raise MixedRowsError("its indices count along the requests")


def _recurrent(pair: _Pair) -> tuple[Along, ...]:
    pair.only(0, 4, 5, 6)
    batch = 0 if pair.attribute("layout", 0) else 1
    first = {0: batch, 4: 0, 5: batch, 6: batch}
    for index, along in enumerate(pair.along):
        if along != SAME and along != first[index]:
            raise MixedRowsError(f"operand {index} has the requests along axis {along}")
    if pair.along[0] == SAME:
        raise MixedRowsError("its sequence is the same for all requests")
    for index in (4, 5, 6):
        if index < len(pair.along) and pair.along[index] == SAME and pair.node.inputs[index] is not None:
            raise MixedRowsError(f"operand {index} has a row for each of the requests together")
    return (0, 0, 0) if batch == 0 else (2, 1, 1)


def _quantized(pair: _Pair) -> Along:
    """Scales of a tensor, or of an axis that has no requests."""
    pair.only(0)
    axis = pair.attribute("axis", 1)
    if pair.along[0] >= 0 and math.prod(pair.shape(1)) > 1 and axis % len(pair.shape(0)) == pair.along[0]:
        raise MixedRowsError(f"axis {axis}, which has the requests, has scales of its own")
    if pair.attribute("block_size", 0):
        raise MixedRowsError("its scales are of blocks")
    return pair.along[0]


def _rows(names: str, along: _Rule, *shapes: int) -> Mapping[str, _Row]:
    return dict.fromkeys(names.split(), _Row(along, frozenset(shapes)))


RULES: Mapping[str, _Row] = {
    **_rows(
        """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
        Cast Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid
        HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or Pow
        PRelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh
        ThresholdedRelu Where Xor""",
        _broadcast,
    ),
    **_rows(
        """AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool
        GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool QLinearConv
        SpaceToDepth""",
        _images,
    ),
    **_rows("MaxPool", _max_pool),
    **_rows("Resize", _images, 3),
    **_rows("GridSample", _first_of()),
    **_rows("RoiAlign", _first_of(1, 2)),
    **_rows("MatMul MatMulInteger", _product),
    **_rows("Gemm", _gemm),
    **_rows("Softmax LogSoftmax Hardmax LpNormalization TopK", _apart_from(_axis(-1))),
    **_rows("CumSum", _apart_from(lambda pair, _rank: pair.constant(1) or ())),
    **_rows(
        "LayerNormalization RMSNormalization",
        _apart_from(lambda pair, rank: range(pair.attribute("axis", -1) % rank, rank)),
    ),
    **_rows(
        """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare""",
        _reduce,
    ),
    **_rows("ArgMax ArgMin", _arg),
    **_rows("Transpose", _transpose),
    **_rows("Flatten Reshape Squeeze Unsqueeze", _reshape, 1),
    **_rows("Concat", _concat),
    **_rows("Split", _apart_from(_axis(0))),
    **_rows("Slice", _slice, 2),
    **_rows("Pad", _pad),
    **_rows("Expand", _expand, 1),
    **_rows("Gather", _gather),
    **_rows("GatherND", _gather_nd),
    **_rows("LSTM GRU RNN", _recurrent),
    **_rows("QuantizeLinear DequantizeLinear", _quantized),
}
