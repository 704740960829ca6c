"""A validator of plans for described accelerators: it reads the JSON of the description, and nothing of its rows.

Layouts, multiples, limits and memories are worked out again here from what the JSON says.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from app.engine.core.program import Program, Step
from app.engine.report.decisions import decisions_json
from app.engine.types.layout import Layout, to_physical
from tests.fuzzing.checker import check_program

Json = Mapping[str, Any]
LETTERS = {4: ("NCHW", "OIHW")}


def check(program: Program, spec: Json) -> dict[str, int]:
    """Steps by row of the description; an AssertionError where the plan breaks it."""
    check_program(program)
    rows = {row["name"]: row for row in spec["accelerator"]["rows"]}
    found: dict[str, int] = {}
    for step in program.steps:
        _, _, name = step.choice.implementation.name.partition("accelerator.")
        row = rows.get(name.split(".")[0])
        if row is None:
            continue
        found[row["name"]] = found.get(row["name"], 0) + 1
        names = _names(step, row)
        _check_operators(step, row)
        for value in dict.fromkeys((*step.group.inputs, *step.group.outputs)):
            demand = _demand(value, names, row, step)
            _check_value(value, demand, row, program)
            _check_memory(value, demand, step, program, spec)
        _check_limits(step, row, program)
        for source, result in step.choice.inplace:
            assert [names[source], names[result]] in [list(p) for p in row.get("inplace", [])], step
        _check_padding(step, row, program)
        if "views" in row:
            _check_views(step, row, program)
    _check_banks(program, spec)
    check_reasons(program)
    return found


def check_reasons(program: Program) -> None:
    """Every node is on the accelerator, or a decision says why it is not."""
    for decision in decisions_json(program.compilation)["decisions"]:
        if decision["backend"] == "accelerator" or decision["op"] in ("ChangeLayout", "ZeroLanes"):
            continue
        told = [a["reason"] for a in decision["alternatives"] if a["backend"] == "accelerator"]
        assert told, decision["subject"]
        assert all(told), decision["subject"]


def _names(step: Step, row: Json) -> dict[ir.Value, str]:
    """Names of the values of a step: in0, out0, and those of a chain that a pattern is."""
    anchor, group = step.group.anchor, step.group
    if "pattern" not in row:
        found = {v: f"in{i}" for i, v in reversed(list(enumerate(anchor.inputs))) if v is not None}
        return found | {v: f"out{i}" for i, v in enumerate(group.outputs)}
    names: dict[ir.Value, str] = {}
    for node, wanted in zip(group.nodes, row["pattern"], strict=True):
        assert node.op_type in wanted["op"].split("|")
        texts = [t.removesuffix("?") for t in wanted["inputs"]]
        operands = [v for v in node.inputs if v is not None]
        inner = [v for v in operands if v.producer() in step.group.nodes]
        assert {names[v] for v in inner} <= set(texts)
        free = [t for t in texts if t not in {names[v] for v in inner}]
        names = dict(zip([v for v in operands if v not in inner], free)) | names
        names |= dict(zip(node.outputs, wanted["outputs"]))
    return names


def _demand(value: ir.Value, names: dict[ir.Value, str], row: Json, step: Step) -> Json:
    operands = row.get("operands", {})
    name = names.get(value, "")
    general = "weights" if _is_constant(value) else "out" if value in step.group.outputs else "in"
    return operands[name] if name in operands else operands.get(general, {})


def _is_constant(value: ir.Value) -> bool:
    return value.const_value is not None and not value.is_graph_input()


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(int(d) for d in value.shape)  # type: ignore[arg-type]


def _expected(text: str, multiple: int) -> tuple[list[int], list[tuple[int, int]], int]:
    """Order, blocks and channel axis of a layout's text."""
    axes = [c for c in text if c.isupper()]
    letters = next((k for k in LETTERS.get(len(axes), ()) if set(k) == set(axes)), "ABCDEFGH"[: len(axes)])
    order, blocks, digits = [letters.index(c) for c in axes], [], ""
    for c in text[len(axes) :]:
        if c.isdigit():
            digits += c
        else:
            blocks.append((letters.index(c.upper()), int(digits)))
            digits = ""
    channel = {"NCHW": 1, "OIHW": 0}.get(letters, len(axes) - 1)
    if multiple > 1 and not blocks and order[-1] == channel:
        blocks = [(channel, multiple)]
    return order, blocks, channel


def _padded(value: ir.Value, demand: Json) -> tuple[int, ...]:
    shape = list(_shape(value))
    text = next((t for t in demand.get("layouts", []) if sum(c.isupper() for c in t) == len(shape)), None)
    if text is not None:
        for axis in range(len(shape)):
            lanes = math.prod(n for a, n in _expected(text, demand.get("multiple", 1))[1] if a == axis)
            shape[axis] = -(-shape[axis] // lanes) * lanes
    return tuple(shape)


def _is_parameter(value: ir.Value, demand: Json) -> bool:
    return _is_constant(value) and value.dtype == ir.DataType.INT64 and len(_shape(value)) <= 1


def _check_operators(step: Step, row: Json) -> None:
    anchor = step.group.anchor
    if "pattern" in row:
        wanted = [set(node["op"].split("|")) for node in row["pattern"]]
        assert all(n.op_type in ops for n, ops in zip(step.group.nodes, wanted, strict=True))
        return
    assert anchor.op_type in row["ops"] or "Elementwise" in row["ops"], (anchor.op_type, row["name"])
    for node in step.group.nodes:
        taken = row.get("epilogue", [])
        assert node is anchor or node.op_type in taken or "Elementwise" in taken, (node.op_type, row["name"])


def _check_value(value: ir.Value, demand: Json, row: Json, program: Program) -> None:
    if _is_parameter(value, demand):
        return
    assert value.dtype is not None
    dtype = value.dtype.numpy().name
    assert dtype in (demand.get("dtypes") or row.get("dtypes", ["float32"])), (value.name, dtype)
    if _is_constant(value):
        return
    assert not demand.get("constant"), value.name
    layout = program.compilation.plan.require("layout")[value]
    rank = len(_shape(value))
    texts = demand.get("layouts", [])
    if not texts:
        assert layout.is_plain, (value.name, str(layout))
        order, blocks, channel = list(range(rank)), [], 1 if rank == 4 else rank - 1
    else:
        (text,) = (t for t in texts if sum(c.isupper() for c in t) == rank)
        order, blocks, channel = _expected(text, demand.get("multiple", 1))
    assert (list(layout.order), list(layout.blocks)) == (order, blocks), (value.name, str(layout))
    if rank:
        lanes = math.prod(n for axis, n in blocks if axis == channel)
        extent = -(-_shape(value)[channel] // lanes) * lanes
        assert extent % demand.get("multiple", 1) == 0, value.name


def _check_memory(value: ir.Value, demand: Json, step: Step, program: Program, spec: Json) -> None:
    memory = demand.get("memory")
    if not memory or _is_parameter(value, demand):
        return
    nbytes = math.prod(_padded(value, demand)) * value.dtype.numpy().itemsize  # type: ignore[union-attr]
    buffers = program.placement.buffers
    there = [
        b
        for b in buffers
        if b.memory == memory and value.name in b.values and b.first <= step.index <= b.last
    ]
    copies = [
        b
        for b in buffers
        if b.kind == "staged" and b.memory == memory and b.first == b.last == step.index
        and b.name.startswith(f"{value.name}.staged.")
    ]  # fmt: skip
    home = spec["memories"][0]["name"]
    if _is_constant(value):
        home = max(spec["memories"], key=lambda m: m["size"])["name"]
    outside = program.placement.values.get(value)
    lives = memory == home and (_is_constant(value) or (outside is not None and outside.space != "arena"))
    assert there or copies or lives, f"{value.name} is not in {memory} at step {step.index}"
    assert all(b.nbytes >= nbytes for b in copies), value.name


def _check_limits(step: Step, row: Json, program: Program) -> None:
    limits, node = row.get("limits", {}), step.group.anchor
    attributes = {name: a.value for name, a in node.attributes.items()}
    is_conv = node.op_type.startswith("Conv")
    kernel = _shape(node.inputs[1])[2:] if is_conv else attributes.get("kernel_shape", ())  # type: ignore[arg-type]
    assert max(kernel, default=0) <= limits.get("kernel", math.inf)
    assert max(attributes.get("strides", ()), default=0) <= limits.get("stride", math.inf)
    assert max(attributes.get("dilations", ()), default=0) <= limits.get("dilation", math.inf)
    for value in (*step.group.inputs, *step.group.outputs):
        assert len(_shape(value)) <= limits.get("rank", math.inf)
    for name, known in limits.get("attributes", {}).items():
        if name in attributes:
            given = attributes[name]
            assert all(v in known for v in (given if isinstance(given, list | tuple) else [given])), name
    if is_conv and "depthwise" in limits:
        channels = _shape(node.inputs[0])[1]  # type: ignore[arg-type]
        assert (channels > 1 and attributes.get("group", 1) == channels) == limits["depthwise"]
    ends = [node.inputs[0], step.group.outputs[0]]
    shapes = [_shape(v) for v in ends if v in (*step.group.inputs, *step.group.outputs)]  # type: ignore[arg-type]
    assert all(s[1 if len(s) > 3 else -1] <= limits.get("channels", math.inf) for s in shapes if s)
    names = _names(step, row)
    result = step.group.outputs[0]
    tile = limits.get("tile", [])
    extents = _padded(result, _demand(result, names, row, step))[-len(tile) :] if tile else ()
    count = math.prod(-(-e // t) for e, t in zip(reversed(extents), reversed(tile)))
    assert count <= limits.get("dispatches", math.inf), (step, count)
    values = dict.fromkeys((*step.group.inputs, *step.group.outputs))
    total = sum(
        math.prod(_padded(v, d)) * v.dtype.numpy().itemsize  # type: ignore[union-attr]
        for v in values
        if not _is_parameter(v, d := _demand(v, names, row, step))
    )
    assert total <= limits.get("nbytes", math.inf), (step, total)


def _check_views(step: Step, row: Json, program: Program) -> None:
    """A step of views takes no time but for copies, and each view holds the elements that its operator says."""
    places, layout = program.placement.values, program.compilation.plan.require("layout")
    copied = step.choice.implementation.name.endswith(".copy")
    assert copied != bool(step.choice.views)
    assert not step.choice.calls
    moved = [v for v in step.group.outputs if v not in {view.view for view in step.choice.views}]
    if not copied and step.group.anchor.op_type != "Concat":
        assert bool(moved) == bool(step.choice.seconds), step
    numbers, results = _numbered(step)
    for view in step.choice.views:
        itemsize = view.source.dtype.numpy().itemsize  # type: ignore[union-attr]
        assert view.offset % row["views"].get("alignment", 1) == 0, view
        source, part = places[view.source], places[view.view]
        assert (source.space, source.root) == (part.space, part.root)
        assert source.offset + view.offset == part.offset
        held = _physical((numbers | results)[view.source], layout[view.source])
        taken = _physical((numbers | results)[view.view], layout[view.view])
        there = held[view.offset // itemsize :][: taken.size]
        valid = taken >= 0  # what a reader takes for padding may be elements of the next part
        assert np.array_equal(there[valid], taken[valid]), view


def _numbered(step: Step) -> tuple[dict[ir.Value, np.ndarray], dict[ir.Value, np.ndarray]]:
    """Operands whose elements are numbered, and the numbers in the results, by the reference evaluator."""
    operands, start = [], 0
    for value in step.group.anchor.inputs:
        if value is not None and not _is_constant(value):
            count = math.prod(_shape(value))
            operands.append(np.arange(start, start + count).reshape(_shape(value)))
            start += count
        else:
            operands.append(None if value is None else value.const_value.numpy())  # type: ignore[union-attr]
    proto = ir.to_proto(step.group.anchor)
    given = {n: a for n, a in zip(proto.input, operands) if n}
    found = ReferenceEvaluator(proto, opsets={"": 21}).run(None, given)
    named = zip(step.group.anchor.inputs, operands)
    return {v: a for v, a in named if v is not None}, dict(zip(step.group.anchor.outputs, found))


def _physical(array: np.ndarray, layout: Layout) -> np.ndarray:
    """Elements in the order of memory, one after another; padding is -1."""
    return to_physical(array, layout, -1).reshape(-1)


def _check_padding(step: Step, row: Json, program: Program) -> None:
    lanes = program.compilation.plan.require("padding")
    if "views" in row:
        held = {lanes[v] for v in step.group.inputs if not _is_constant(v)}
        for value in step.group.outputs:
            assert lanes[value] in ("none", "undefined") or held <= {"none", "zero"}, value.name
        return
    for value in step.group.inputs:
        if row.get("reads", "zero") == "zero" and not _is_constant(value):
            assert lanes[value] in ("none", "zero"), (value.name, lanes[value])
    for value in step.group.outputs:
        if row.get("leaves", "undefined") == "undefined":
            assert lanes[value] in ("none", "undefined"), (value.name, lanes[value])


def _check_banks(program: Program, spec: Json) -> None:
    """No memory holds more than it has, and nothing that lives at one time overlaps there."""
    placement = program.placement
    starts = {bank.memory: bank.start for bank in placement.banks}
    for memory in spec["memories"]:
        own = [b for b in placement.buffers if b.memory == memory["name"]]
        start = starts.get(memory["name"], 0)
        for buffer in own:
            assert (buffer.offset - start) % memory.get("alignment", 64) == 0
            assert buffer.offset - start + buffer.nbytes <= memory["size"], buffer
        for i, one in enumerate(own):
            for other in own[:i]:
                apart = one.last < other.first or other.last < one.first
                below = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
                assert apart or below or one.parts or other.parts, (one, other)
