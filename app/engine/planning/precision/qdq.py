"""Rewrite of a float32 graph into one that computes its sites in the precisions of an assignment.

The result is plain ONNX with QuantizeLinear and DequantizeLinear around products, which any runtime runs and
whose products the backends here compute as integers. Products with weights in blocks read a DequantizeLinear
with blocks; dynamic ones are DynamicQuantizeLinear and MatMulInteger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import constant, sole_reader
from app.engine.model import naming
from app.engine.planning.precision.candidates import BY_NAME, Candidate
from app.engine.planning.precision.rounding.ranges import Levels
from app.engine.planning.precision.rounding.weights import Rounded
from app.engine.planning.precision.sites import LIMITS, Site

Array = np.ndarray[Any, Any]

# What quantization commutes with exactly: it only moves elements, or picks the largest.
MOVES = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "MaxPool", "Concat")
CROSSED = tuple(op for op in MOVES if op != "Concat")  # by onnxruntime with roundings
BIAS_LIMIT = 2.0**30  # of integers of a bias, which are added to sums in 32 bits
ZERO = 128  # zero point of weights that are written unsigned
Assignment: TypeAlias = Mapping[str, str]  # names of candidates by site; a site that is absent is float32


@dataclass(frozen=True, slots=True)
class Quantities:
    """Numbers that a quantized graph holds.

    Attributes:
        levels: by activation, and by result of a convolution.
        weights: rounded, by (site, candidate).
        unsigned: whether weights of 8 bits are written as uint8 with zero point 128: the same numbers, for
            runtimes that saturate products of uint8 and int8, see `candidates.saturates`.
    """

    levels: Mapping[str, Levels]
    weights: Mapping[tuple[str, str], Rounded]
    unsigned: bool = False


def quantized(
    plain: ir.Model,
    sites: tuple[Site, ...],
    assignment: Assignment,
    given: Quantities,
    *,
    results: bool = False,
) -> ir.Model:
    """A copy of a model with its sites in the assigned precisions; the model stays as it is.

    Sites in 16 bits stay float32: kernels round their operands. With `results` those of 8-bit convolutions
    are rounded to 8 bits also where no product reads them: other runtimes have no integer kernel for others.
    """
    model = graph.copied(plain)
    made = _Made(model.graph, given.unsigned)
    nodes = {node.name: node for node in model.graph}
    assigned = [(site, BY_NAME[assignment[site.name]]) for site in sites if site.name in assignment]
    chosen = [(site, row) for site, row in assigned if not row.half]
    shared = {s.activation for s, row in chosen if row.for_all}
    for site, row in chosen:
        node = nodes[site.name]
        rounded = given.weights[site.name, row.name]
        if row.activation == "dynamic":
            _dynamic(made, node, site, rounded)
            continue
        node.replace_input_with(1, made.weights(node, site, row, rounded))
        if site.op == "MatMul":
            _full_rank_addend(made, node, site)
        if rounded.shift is not None:
            _shift(made, node, site, rounded.shift)
        if row.activation == "static":
            _integer_bias(made, node, site, rounded, given.levels[site.activation])
        if row.activation == "static" and site.activation not in shared:
            x = graph.operand(node, 0)
            node.replace_input_with(0, made.dequantized(x, given.levels[site.activation], node))
    values = {v.name: v for v in graph.values(model.graph)}
    for name in dict.fromkeys(site.activation for site in sites):
        if name in shared:
            _for_all_readers(made, values[name], given.levels[name])
    for site, row in chosen:
        if results and row.activation == "static" and site.result is not None:
            _rounded_result(made, values[site.result], given.levels[site.result])
    for node in list(model.graph):
        _kept_in_float32(made, node)
    used = {v for node in model.graph.all_nodes() for v in node.inputs}
    for name, value in list(model.graph.initializers.items()):
        if value not in used and not value.is_graph_output():
            del model.graph.initializers[name]
    return model


def _rounded_result(made: "_Made", value: ir.Value, levels: Levels) -> None:
    """Round a value that nothing rounds yet, for all nodes that read it."""
    readers = [(use.node, use.idx) for use in value.uses()]
    if any(node.op_type == "QuantizeLinear" for node, _ in readers):
        return
    replacement = made.dequantized(value, levels, None)
    for node, index in readers:
        node.replace_input_with(index, replacement)


def _kept_in_float32(made: "_Made", node: ir.Node) -> None:
    """Let a float32 product between roundings read an operand whose scale is a vector of equal ones.

    Of one scale onnxruntime would round the product's weights to 8 bits on its own (WeightBiasQuantization),
    also where something stands between that it moves roundings across.
    """
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or graph.constant(node.inputs[1]) is None:
        return
    behind = sole_reader(node.outputs[0])
    while behind is not None and behind.op_type in (*LIMITS, *CROSSED):
        behind = sole_reader(behind.outputs[0])
    reader, x = node, graph.operand(node, 0)
    source = x.producer()
    while source is not None and source.op_type in CROSSED and sole_reader(x) is not None:
        reader, x = source, graph.operand(source, 0)
        source = x.producer()
    shape = graph.static_shape(x)
    if source is None or source.op_type != "DequantizeLinear" or len(shape) < 2:
        return
    if behind is None or behind.op_type != "QuantizeLinear":
        return
    levels = [
        made.constant(np.full(shape[1], graph.array(v)), f"{v.name}.vector")
        for v in source.inputs[1:]
        if v is not None
    ]
    (real,) = made("DequantizeLinear", [source.inputs[0], *levels], source.name or "", before=reader)
    real.shape, real.type = x.shape, x.type
    reader.replace_input_with(0, real)
    if not x.uses():
        made.remove(source)


def _for_all_readers(made: "_Made", value: ir.Value, levels: Levels) -> None:
    """Round a value for all nodes that read it; what only moves elements before it moves rounded ones."""
    readers = [(use.node, use.idx) for use in value.uses()]
    replacement = made.dequantized(value, levels, None)
    for node, index in readers:
        node.replace_input_with(index, replacement)
    move = value.producer()
    while move is not None and move.op_type in MOVES and move.domain in ("", "ai.onnx"):
        count = len(move.inputs) if move.op_type == "Concat" else 1
        sources = [v for v in move.inputs[:count] if v is not None]
        if len(move.outputs) != 1 or any(sole_reader(v) is None or graph.is_constant(v) for v in sources):
            return
        for index, source in enumerate(sources):
            move.replace_input_with(index, made.dequantized(source, levels, move))
        if count > 1:
            return
        move = sources[0].producer()


def _shift(made: "_Made", node: ir.Node, site: Site, shift: Array) -> None:
    """Add a number to each output channel: to the bias, where that is a constant or there may be one."""
    bias = graph.input_at(node, 2)
    known = graph.constant(bias)
    if site.op != "MatMul" and (bias is None or known is not None):
        total = shift if known is None else (known + shift).astype(np.float32)
        inputs = [*node.inputs[:2], made.constant(total, f"{site.name}.bias")]
        node.resize_inputs(3)
        node.replace_input_with(2, inputs[2])
        return
    (y,) = node.outputs
    rank = len(graph.static_shape(y))
    addend = made.constant(
        shift.reshape(shift_shape(site) if site.op == "Conv" else full(rank)), f"{site.name}.shift"
    )
    readers = [(use.node, use.idx) for use in y.uses()]
    (moved,) = made("Add", [y, addend], site.name)
    moved.shape, moved.type = y.shape, y.type
    made.take_over(y, moved, readers)


def _full_rank_addend(made: "_Made", node: ir.Node, site: Site) -> None:
    """Give a constant that is added to a product of more than two axes the product's rank.

    onnxruntime makes a Gemm of a MatMul and a vector that is added, and has no integer kernel for its bias.
    """
    (y,) = node.outputs
    addition, rank = sole_reader(y), len(graph.static_shape(y))
    if addition is None or addition.op_type != "Add":
        return
    for index, value in enumerate(addition.inputs):
        vector = graph.constant(value)
        if vector is not None and vector.ndim == 1 and rank > 2:
            addend = made.constant(vector.reshape(full(rank)), f"{site.name}.addend")
            addition.replace_input_with(index, addend)


def full(rank: int) -> tuple[int, ...]:
    """Shape of a vector along the last of so many axes."""
    return (*(1,) * (rank - 1), -1)


def _integer_bias(made: "_Made", node: ir.Node, site: Site, rounded: Rounded, levels: Levels) -> None:
    """Write a constant bias as 32-bit integers of the sums' scales: runtimes fuse a product with no other.

    One that these scales do not hold stays as it is; those of a channel without weights say nothing.
    """
    bias = graph.constant(graph.input_at(node, 2))
    scales = np.float32(levels.scale) * rounded.scales
    if bias is None or bias.shape != scales.shape:
        return
    integers = np.rint(bias.astype(np.float64) / scales)
    weightless = ~np.moveaxis(rounded.integers, site.axis, 0).reshape(site.channels, -1).any(1)
    if np.abs(integers).max(initial=0.0) > BIAS_LIMIT or bias[weightless].any():
        return
    inputs: list[ir.Value | None] = [
        made.constant(integers.astype(np.int32), f"{site.name}.bias.integers"),
        made.constant(scales, f"{site.name}.bias.scales"),
    ]
    (real,) = made("DequantizeLinear", inputs, f"{site.name}.bias.dq", [ir.AttrInt64("axis", 0)], before=node)
    real.shape, real.type = ir.Shape(bias.shape), ir.TensorType(ir.DataType.FLOAT)
    node.replace_input_with(2, real)


def shift_shape(site: Site) -> tuple[int, ...]:
    """Shape of a number for each output channel, as it is broadcast over the product."""
    return (-1, *(1,) * (site.array.ndim - 2)) if site.op == "Conv" else (-1,)


def _dynamic(made: "_Made", node: ir.Node, site: Site, rounded: Rounded) -> None:
    """MatMulInteger of a dynamically quantized operand, times both scales, plus the bias.

    Nodes have the name of the site and a number, by which the steps that compute them are known.
    """
    x, y = graph.operand(node, 0), node.outputs[0]
    integers = np.ascontiguousarray(rounded.integers.T) if site.axis == 0 else rounded.integers
    weights = made.integers(integers, site, 8)
    origin = [made.constant(np.array(ZERO, np.uint8), f"{site.weight}.zero")] if made.unsigned else []
    scales = made.constant(rounded.scales, f"{site.weight}.scales")
    to_float = [ir.AttrInt64("to", int(ir.DataType.FLOAT))]
    q, scale, zero = made("DynamicQuantizeLinear", [x], site.name, count=3, before=node)
    (sums,) = made("MatMulInteger", [q, weights, zero, *origin], site.name, before=node)
    (real,) = made("Cast", [sums], site.name, to_float, before=node)
    (factor,) = made("Mul", [scale, scales], site.name, before=node)
    (scaled,) = made("Mul", [real, factor], site.name, before=node)
    bias = graph.input_at(node, 2)
    addends = [bias, None if rounded.shift is None else made.constant(rounded.shift, f"{site.name}.shift")]
    for addend in addends:
        if addend is not None:
            (scaled,) = made("Add", [scaled, addend], site.name, before=node)
    made.stand_in(node, y, scaled)


class _Made:
    """New nodes and constants of a graph, under names that are free."""

    def __init__(self, owner: ir.Graph, unsigned: bool) -> None:
        self._owner, self.unsigned = owner, unsigned
        self._names = {v.name or "" for v in graph.values(owner)}
        self._names |= {node.name or "" for node in owner.all_nodes()}

    def __call__(
        self,
        op: str,
        inputs: list[ir.Value | None],
        name: str,
        attributes: list[ir.Attr] | None = None,
        *,
        count: int = 1,
        before: ir.Node | None = None,
    ) -> tuple[ir.Value, ...]:
        """Outputs of a new node, which stands before another or behind the writer of its first input."""
        node = ir.Node(
            "", op, inputs, attributes or [], num_outputs=count, name=naming.free(name, self._names)
        )
        for index, value in enumerate(node.outputs):
            value.name = naming.free(f"{name}.{op}" + (f".{index}" if index else ""), self._names)
        first = inputs[0]
        producer = None if first is None else first.producer()
        if before is not None:
            self._owner.insert_before(before, node)
        elif producer is not None:
            self._owner.insert_after(producer, node)
        else:
            self._owner.insert_before(self._owner[0], node)
        return tuple(node.outputs)

    def remove(self, node: ir.Node) -> None:
        """Remove a node whose outputs nothing reads."""
        self._owner.remove(node, safe=True)

    def constant(self, array: Array, name: str) -> ir.Value:
        """A new initializer."""
        value = constant(array, naming.free(name, self._names))
        self._owner.register_initializer(value)
        return value

    def dequantized(self, x: ir.Value, levels: Levels, before: ir.Node | None) -> ir.Value:
        """A float32 value as the nearest of its levels."""
        scale = self.constant(np.array(levels.scale, np.float32), f"{x.name}.scale")
        zero = self.constant(np.array(levels.zero, np.uint8), f"{x.name}.zero")
        (q,) = self("QuantizeLinear", [x, scale, zero], f"{x.name}.q", before=before)
        (real,) = self("DequantizeLinear", [q, scale, zero], f"{x.name}.dq", before=before)
        q.shape, q.type = x.shape, ir.TensorType(ir.DataType.UINT8)
        real.shape, real.type = x.shape, x.type
        return real

    def integers(self, array: Array, site: Site, bits: int) -> ir.Value:
        """Integers of weights in the type that they are written in."""
        if bits == 4:
            kind, array = ir.DataType.INT4, array.astype(ir.DataType.INT4.numpy())
        elif self.unsigned:
            kind, array = ir.DataType.UINT8, (array.astype(np.int16) + ZERO).astype(np.uint8)
        else:
            kind = ir.DataType.INT8
        value = constant(array, naming.free(f"{site.weight}.integers", self._names), kind)
        self._owner.register_initializer(value)
        return value

    def weights(self, node: ir.Node, site: Site, row: Candidate, rounded: Rounded) -> ir.Value:
        """Weights of a site, dequantized."""
        inputs: list[ir.Value | None] = [self.integers(rounded.integers, site, row.bits)]
        inputs.append(self.constant(rounded.scales, f"{site.weight}.scales"))
        if self.unsigned and row.bits != 4:
            zeros = np.full(rounded.scales.shape, ZERO, np.uint8)
            inputs.append(self.constant(zeros, f"{site.weight}.zeros"))
        elif site.op == "Gemm" and not row.block:  # whose integer kernel in onnxruntime wants them
            inputs.append(self.constant(np.zeros(rounded.scales.shape, np.int8), f"{site.weight}.zeros"))
        attributes = [ir.AttrInt64("axis", 1 - site.axis if row.block else site.axis)]
        if row.block:
            attributes.append(ir.AttrInt64("block_size", row.block))
        (real,) = self("DequantizeLinear", inputs, f"{site.weight}.dq", attributes, before=node)
        real.shape, real.type = ir.Shape(rounded.integers.shape), ir.TensorType(ir.DataType.FLOAT)
        return real

    def take_over(self, old: ir.Value, new: ir.Value, readers: Sequence[tuple[ir.Node, int]]) -> None:
        """Put what is computed of a value in its place, under its name where it is an output."""
        for node, index in readers:
            node.replace_input_with(index, new)
        if old.is_graph_output():
            outputs = self._owner.outputs
            outputs[list(outputs).index(old)] = new
            old.name, new.name = naming.free(f"{old.name}.plain", self._names), old.name

    def stand_in(self, node: ir.Node, old: ir.Value, new: ir.Value) -> None:
        """Put a new value in the place of a node's output, under its name; the node is removed."""
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.shape, new.type = old.shape, old.type
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        self._owner.remove(node)
        old.name, new.name = None, name
