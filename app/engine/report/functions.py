"""A plan as ONNX that any runtime can run: blocked tensors and local functions over them.

A value whose layout is blocked becomes a tensor of its physical shape ([N, C/8, H, W, 8] for NCHW8c,
padding included). Each group that reads or writes such values, conversions among them, becomes one
call of a local function of domain `stowplan`. The call tells the layouts of its operands in the grammar
of `app.engine.types.layout` (attributes `input_layouts` and `output_layouts`), a blocked value its layout and
logical shape (metadata `stowplan.layout`, `stowplan.shape`). The bodies are standard operators: what
handles every lane alike, or moves whole blocks, works on blocked tensors as they are; any other body
converts, computes and converts back. Weights are operands, stored once.

An integer product that the planner made of dequantized operands is one of dequantized operands here too:
runtimes may saturate integer products, onnxruntime does on CPUs without VNNI.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.plan import Compilation
from app.engine.report.onnx import proto_of
from app.engine.rewrites.float_widening import CONVERTS, HALVES, WIDE
from app.engine.rewrites.quantization import DEQUANTIZED
from app.engine.types.layout import Layout, blocked

DOMAIN = "stowplan"
IDENTITIES = ("ChangeLayout", "ZeroLanes")  # the elements stay, their memory changes


def with_functions(compilation: Compilation, plain: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """The planned graph over blocked tensors, its groups in the order of execution.

    Without any blocked value it is the plain graph. `plain` is the message of that, which is used up; it may
    lack weights.

    Raises:
        ModelTooLargeError: the weights do not fit into one file.
    """
    plan = compilation.plan
    proto = proto_of(compilation.model) if plain is None else plain
    layouts = rearranged(compilation)
    proto.functions.extend(f for op, f in _BOUNDED.items() if any(n.op_type == op for n in proto.graph.node))
    if not layouts:
        return proto
    written = {node.output[0]: node for node in proto.graph.node}
    library = _Library(compilation, layouts)
    nodes: list[onnx.NodeProto] = []
    for group in plan.require("order"):
        protos = [written[_name(n.outputs[0])] for n in group.nodes]
        converts = any(n.domain == DOMAIN and n.op_type in IDENTITIES for n in group.nodes)  # within a stream
        if converts or any(v in layouts for v in (*group.inputs, *group.outputs)):
            nodes.append(library.call(group, protos))
        else:
            for node, own in zip(group.nodes, protos):
                nodes.extend(_standard(node, own))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    _retype(proto.graph, layouts)
    proto.functions.extend(library.functions)
    if DOMAIN not in {o.domain for o in proto.opset_import}:
        proto.opset_import.append(onnx.OperatorSetIdProto(domain=DOMAIN, version=1))
    return proto


# Operators of `app.engine.rewrites.bounded`; what is undefined there is 0 here.
_BOUNDED = {
    function.name: function
    for function in map(
        onnx.parser.parse_function,
        (
            """<domain: "stowplan", opset_import: ["": 21]> Prefix <axis> (x, count) => (y) {
                first = Constant <value_ints: ints = [0]> ()
                along = Constant <value_int: int = @axis> ()
                axes = Unsqueeze (along, first)
                y = Slice (x, first, count, axes)
            }""",
            """<domain: "stowplan", opset_import: ["": 21]> BoundedCompress <axis> (x, condition) => (y) {
                kept = Compress <axis: int = @axis> (x, condition)
                whole = Shape (x)
                found = Shape (kept)
                missing = Sub (whole, found)
                before = Sub (whole, whole)
                pads = Concat <axis: int = 0> (before, missing)
                y = Pad (kept, pads)
            }""",
            """<domain: "stowplan", opset_import: ["": 21]>
            BoundedNonMaxSuppression <center_point_box, bound>
            (boxes, scores, most, limit, least, valid) => (y, count) {
                first = Constant <value_ints: ints = [0]> ()
                second = Constant <value_ints: ints = [1]> ()
                third = Constant <value_ints: ints = [2]> ()
                some = Slice (boxes, first, valid, second)
                ranked = Slice (scores, first, valid, third)
                found = NonMaxSuppression <center_point_box: int = @center_point_box>
                    (some, ranked, most, limit, least)
                count = Shape <start: int = 0, end: int = 1> (found)
                all = Constant <value_int: int = @bound> ()
                missing = Sub (all, count)
                pads = Concat <axis: int = 0> (first, first, missing, first)
                y = Pad (found, pads)
            }""",
        ),
    )
}


def rearranged(compilation: Compilation) -> dict[ir.Value, Layout]:
    """The values that are not row-major, with their layouts."""
    return {v: at for v, at in compilation.plan.require("layout").items() if not at.is_plain}


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph without functions; weights are not copied on the way."""
    if not proto.functions:
        return proto
    shell = onnx.ModelProto(ir_version=proto.ir_version, producer_name=proto.producer_name)
    shell.opset_import.extend(proto.opset_import)
    shell.functions.extend(proto.functions)
    shell.graph.name = proto.graph.name
    for name in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(shell.graph, name).extend(getattr(proto.graph, name))
    flat = onnx.inliner.inline_local_functions(shell)
    flat.graph.initializer.extend(proto.graph.initializer)
    kept = [o for o in flat.opset_import if o.domain != DOMAIN]
    del flat.opset_import[:]
    flat.opset_import.extend(kept)
    return flat


def _name(value: ir.Value) -> str:
    return value.name or ""


def _standard(node: ir.Node, written: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node of the plan in operators of ONNX; `written` is it under the names of where it is written."""
    if DEQUANTIZED in node.meta:
        return _in_floats(node, written)
    return _between_casts(node, written) if CONVERTS in node.meta else [written]


def _between_casts(node: ir.Node, written: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node whose kernel converts 16-bit floats: computed in float32 between casts."""
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    wide = onnx.NodeProto()
    wide.CopyFrom(written)
    for index, value in enumerate(node.inputs):
        if value is not None and value.dtype in HALVES:
            wide.input[index] = f"{written.output[0]}.wide{index}"
            before.append(_cast(written.input[index], wide.input[index], WIDE))
    for index, value in enumerate(node.outputs):
        if value.dtype in HALVES and written.output[index]:
            wide.output[index] = f"{written.output[index]}.wide"
            after.append(_cast(wide.output[index], written.output[index], value.dtype))
    return [*before, wide, *after]


def _cast(source: str, to: str, kind: ir.DataType) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="Cast", input=[source], output=[to])
    node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=kind)
    return node


def _in_floats(node: ir.Node, product: onnx.NodeProto) -> list[onnx.NodeProto]:
    """An integer product as one of float32: DequantizeLinear with scale 1, Conv or MatMul, Cast.

    Sums below 2^24 are the same numbers; larger ones are rounded to 24 bits. `product` is the node under
    the names of where it is written.
    """
    (sums,) = product.output
    nodes: list[onnx.NodeProto] = []
    operands = [f"{sums}.left", f"{sums}.right"]
    for index, (operand, axis) in enumerate(zip(operands, (1, _CHANNELS_OF_WEIGHTS[node.op_type]))):
        zero = graph.input_at(node, index + 2)
        shape = () if zero is None else graph.static_shape(zero)
        one = onnx.NodeProto(op_type="Constant", output=[f"{operand}.scale"])
        if shape:
            ones = [1.0] * shape[0]
            one.attribute.add(name="value_floats", type=onnx.AttributeProto.FLOATS, floats=ones)
        else:
            one.attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT, f=1.0)
        real = onnx.NodeProto(op_type="DequantizeLinear", output=[operand])
        real.input.extend((product.input[index], one.output[0]))
        if zero is not None:
            real.input.append(product.input[index + 2])
        if shape:
            real.attribute.add(name="axis", type=onnx.AttributeProto.INT, i=axis)
        nodes += [one, real]
    op = node.op_type.removesuffix("Integer")
    floats = onnx.NodeProto(op_type=op, name=product.name, input=operands, output=[f"{sums}.real"])
    floats.attribute.extend(product.attribute)
    return [*nodes, floats, _cast(floats.output[0], sums, ir.DataType.INT32)]


# The axis of the second operand that vectors of zero points lie along.
_CHANNELS_OF_WEIGHTS = {"ConvInteger": 0, "MatMulInteger": -1}


def _retype(main: onnx.GraphProto, layouts: dict[ir.Value, Layout]) -> None:
    """State physical shapes; what is inside a function is no value of the graph any more."""
    by_name = {_name(v): v for v in layouts}
    left = {name for node in main.node for name in node.output}
    kept = [info for info in main.value_info if info.name in left]
    del main.value_info[:]
    for info in kept:
        value = by_name.get(info.name)
        if value is not None:
            shape, layout = graph.static_shape(value), layouts[value]
            dims = info.type.tensor_type.shape.dim
            del dims[:]
            dims.extend(onnx.TensorShapeProto.Dimension(dim_value=n) for n in layout.physical_shape(shape))
            info.metadata_props.add(key="stowplan.layout", value=str(layout))
            info.metadata_props.add(key="stowplan.shape", value=json.dumps(list(shape)))
        main.value_info.append(info)


class _Library:
    """Functions by their bodies: groups that do the same share one."""

    def __init__(self, compilation: Compilation, layouts: dict[ir.Value, Layout]) -> None:
        self.functions: list[onnx.FunctionProto] = []
        self._layouts = layouts
        self._opset = compilation.model.graph.opset_imports
        self._names: dict[bytes, str] = {}
        self._count: Counter[str] = Counter()

    def call(self, group: Group, protos: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
        """The call that computes a group."""
        body = _body(group, protos, self._layouts)
        key = b"".join(node.SerializeToString(deterministic=True) for node in body.nodes)
        if key not in self._names:
            title = "_".join(n.op_type for n in group.nodes)
            self._count[title] += 1
            self._names[key] = title if self._count[title] == 1 else f"{title}_{self._count[title]}"
            self._add(self._names[key], body)
        name = self._names[key]
        node = onnx.NodeProto(op_type=name, domain=DOMAIN, name=group.name)
        node.input.extend(_name(v) for v in group.inputs)
        node.output.extend(_name(v) for v in group.outputs)
        for label, values in (("input_layouts", group.inputs), ("output_layouts", group.outputs)):
            spelled = (str(self._layouts.get(v) or _row_major(v)).encode() for v in values)
            node.attribute.add(name=label, type=onnx.AttributeProto.STRINGS, strings=spelled)
        return node

    def _add(self, name: str, body: "_Body") -> None:
        domains = sorted({node.domain for node in body.nodes})
        function = onnx.FunctionProto(name=name, domain=DOMAIN)
        function.input.extend(body.inputs)
        function.output.extend(body.outputs)
        function.attribute.extend(("input_layouts", "output_layouts"))
        function.node.extend(body.nodes)
        function.opset_import.extend(
            onnx.OperatorSetIdProto(domain=d, version=self._opset[d]) for d in domains
        )
        self.functions.append(function)


def _row_major(value: ir.Value) -> str:
    """Row-major order in the grammar; empty for a scalar or an unknown rank."""
    rank = 0 if value.shape is None else len(value.shape)
    return str(Layout(tuple(range(rank))))


@dataclass
class _Body:
    """Nodes of a function under construction; names are its own."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[tuple[int, ...], str] = field(default_factory=dict)
    fresh: Any = field(default_factory=itertools.count)

    def name(self) -> str:
        """A new name."""
        return f"t{next(self.fresh)}"

    def ints(self, numbers: Iterable[int]) -> str:
        """A constant vector of integers."""
        key = tuple(int(n) for n in numbers)
        if key not in self.constants:
            self.constants[key] = self.name()
            node = onnx.NodeProto(op_type="Constant", output=[self.constants[key]])
            node.attribute.add(name="value_ints", type=onnx.AttributeProto.INTS, ints=key)
            self.nodes.append(node)
        return self.constants[key]

    def step(self, op: str, *inputs: str, **numbers: Sequence[int]) -> str:
        """A node with integer lists as attributes; the name of its output."""
        node = onnx.NodeProto(op_type=op, input=inputs, output=[self.name()])
        for label, ints in numbers.items():
            node.attribute.add(name=label, type=onnx.AttributeProto.INTS, ints=ints)
        self.nodes.append(node)
        return str(node.output[0])

    def physical(
        self, source: str, layout: Layout, shape: Sequence[int], broadcast: Container[int] = ()
    ) -> str:
        """The elements of a row-major tensor in memory order; padded lanes are zero.

        Axes in `broadcast` have extent 1 and are neither padded nor split into more than one part.
        """
        wide = layout.padded_shape(shape)
        wide = tuple(1 if axis in broadcast else n for axis, n in enumerate(wide))
        if wide != tuple(shape):
            pads = [0] * len(shape) + [b - a for a, b in zip(shape, wide)]
            source = self.step("Pad", source, self.ints(pads))
        permutation = layout.permutation()
        if layout.blocks:
            held = zip(_axes(layout), layout.physical_shape(wide))
            parts = [1 if axis in broadcast else n for axis, n in held]
            source = self.step("Reshape", source, self.ints(np.take(parts, np.argsort(permutation))))
        if permutation != sorted(permutation):
            source = self.step("Transpose", source, perm=permutation)
        return source

    def logical(self, source: str, layout: Layout, shape: Sequence[int]) -> str:
        """The row-major tensor of this shape behind elements in memory order."""
        permutation, wide = layout.permutation(), layout.padded_shape(shape)
        if permutation != sorted(permutation):
            source = self.step("Transpose", source, perm=np.argsort(permutation).tolist())
        if layout.blocks:
            source = self.step("Reshape", source, self.ints(wide))
        axes = [a for a, (n, padded) in enumerate(zip(shape, wide)) if n != padded]
        if axes:
            ends = [shape[a] for a in axes]
            source = self.step("Slice", source, self.ints([0] * len(axes)), self.ints(ends), self.ints(axes))
        return source


def _axes(layout: Layout) -> tuple[int, ...]:
    """The logical axis of every physical one."""
    return (*layout.order, *(axis for axis, _ in layout.blocks))


def _body(group: Group, protos: Sequence[onnx.NodeProto], layouts: dict[ir.Value, Layout]) -> _Body:
    """Nodes of a function: the group's between conversions, or on blocked tensors where they can."""
    body = _Body([f"x{i}" for i in range(len(group.inputs))], [f"y{i}" for i in range(len(group.outputs))])
    inside = dict(zip((_name(v) for v in group.inputs), body.inputs))
    direct = _direct(group, layouts)
    if direct is None:
        for value in group.inputs:
            if value in layouts:
                held = inside[_name(value)]
                inside[_name(value)] = body.logical(held, layouts[value], graph.static_shape(value))
    else:
        direct.operands(body, group, layouts, inside)
    results = dict(zip(group.outputs, body.outputs))
    for node, proto in zip(group.nodes, protos):
        for value in node.outputs:
            converts = direct is None and value in layouts
            taken = value in results and not converts
            inside[_name(value)] = results[value] if taken else body.name() if value.name else ""
        inputs = [inside[name] if name else "" for name in proto.input]
        outputs = [inside[name] if name else "" for name in proto.output]
        if node.op_type in IDENTITIES and node.domain == DOMAIN:
            inside[proto.output[0]] = inputs[0]
            continue
        made = onnx.NodeProto(op_type=proto.op_type, domain=proto.domain, input=inputs, output=outputs)
        made.attribute.extend(proto.attribute)
        body.nodes.extend(_standard(node, made))
        if direct is not None:
            direct.adapt(body, node, body.nodes[-1])
    for value, to in results.items():
        held = inside[_name(value)]
        if direct is None and value in layouts:
            held = body.physical(held, layouts[value], graph.static_shape(value))
        _finish(body, held, to)
    return body


def _finish(body: _Body, held: str, to: str) -> None:
    """Let the output have its name: that of the node that made it, else a copy's."""
    if held == to:
        return
    last = body.nodes[-1] if body.nodes else None
    if last is not None and list(last.output) == [held]:
        last.output[0] = to
    else:
        body.nodes.append(onnx.NodeProto(op_type="Identity", input=[held], output=[to]))


@dataclass(frozen=True, slots=True)
class _Direct:
    """How nodes work on blocked tensors without conversion.

    Attributes:
        adapt: changes the copy of a node so that it does.
        broadcasts: whether operands are to be laid out beside the blocked ones.
    """

    adapt: Callable[[_Body, ir.Node, onnx.NodeProto], None]
    broadcasts: bool = False

    def operands(
        self, body: _Body, group: Group, layouts: dict[ir.Value, Layout], inside: dict[str, str]
    ) -> None:
        """Lay out what the elementwise nodes of a group read besides blocked tensors."""
        if not self.broadcasts:
            return
        layout = layouts[group.outputs[0]]
        for value in group.inputs:
            shape = graph.static_shape(value)
            if value in layouts or all(n == 1 for n in shape):
                continue
            wide = (1,) * (len(layout.order) - len(shape)) + shape
            held = inside[_name(value)]
            if wide != shape:
                held = body.step("Reshape", held, body.ints(wide))
            inside[_name(value)] = body.physical(
                held, layout, wide, broadcast=[axis for axis, n in enumerate(wide) if n == 1]
            )


def _as_is(_body: _Body, _node: ir.Node, _made: onnx.NodeProto) -> None:
    """The node works on blocked tensors as it is."""


def _window(_body: _Body, _node: ir.Node, made: onnx.NodeProto) -> None:
    """A window of one lane beside that over the pixels: a pooling of three axes."""
    for attribute in made.attribute:
        if attribute.name in ("kernel_shape", "strides", "dilations"):
            attribute.ints.append(1)
        elif attribute.name == "pads":
            attribute.ints[:] = [*attribute.ints[:2], 0, *attribute.ints[2:], 0]


def _whole(body: _Body, node: ir.Node, made: onnx.NodeProto) -> None:
    """A reduction over the pixels."""
    made.op_type = "ReduceMean" if node.op_type == "GlobalAveragePool" else "ReduceMax"
    body.nodes.pop()
    made.input.append(body.ints([2, 3]))
    body.nodes.append(made)


# Operators of images in blocks of channels, [N, C/8, H, W, 8], that need no conversion. Rows that join
# images take whole blocks only, so axis 1 may be counted in blocks.
_DIRECT = {
    "MaxPool": _Direct(_window),
    "AveragePool": _Direct(_window),
    "GlobalAveragePool": _Direct(_whole),
    "GlobalMaxPool": _Direct(_whole),
    "Concat": _Direct(_as_is),
}


def _direct(group: Group, layouts: dict[ir.Value, Layout]) -> _Direct | None:
    """How a group works on blocked tensors, or None where it has to convert them."""
    found = {layouts.get(v) for v in group.outputs}
    layout = found.pop()
    if any(not node.meta.keys().isdisjoint((DEQUANTIZED, CONVERTS)) for node in group.nodes):
        return None
    if found or layout is None:
        return None
    read = {layouts.get(v) for v in group.inputs}
    if group.op == ELEMENTWISE:
        fits = read <= {layout, None} and all(graph.shape(v) is not None for v in group.inputs)
        return _Direct(_as_is, broadcasts=True) if fits else None
    if len(group.nodes) > 1 or read != {layout} or not layout.blocks:
        return None
    if layout != blocked(4, layout.lanes(1) if layout.blocks[0][0] == 1 else 2):
        return None
    if group.op == "Concat" and graph.attribute(group.anchor, "axis", 0) < 0:
        return None
    return _DIRECT.get(group.op)
