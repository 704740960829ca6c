"""Text form of a plan: one line a step, with the columns that are written so far.

    %12 conv_4  nchwc_conv  numba-cpu  NCHW8c  pad undefined  arena+0x1f00  310 us  ! winograd_f4: stride is 2

A compilation before fusion has one line a node. The text depends on the compilation alone: those before and
after a pass can be compared line by line.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.placement import Location
from app.engine.core.plan import Compilation, Decision
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.report import units

NODES = 3  # named on a line
REASONS = 2  # rejected implementations named on a line
LENGTH = 60  # characters of a name, or of a reason


def text(compilation: Compilation) -> str:
    """All lines of a compilation, a summary first."""
    return "\n".join((_summary(compilation), *lines(compilation))) + "\n"


def lines(compilation: Compilation) -> tuple[str, ...]:
    """One line a step in the order of execution; one a group or a node where these are not decided yet."""
    plan = compilation.plan
    if plan.fusion is None:
        return tuple(_node_line(i, node, compilation) for i, node in enumerate(compilation.graph))
    decisions = {d.subject: d for d in compilation.decisions}
    groups = plan.groups if plan.order is None else plan.order
    return tuple(_group_line(i, group, compilation, decisions) for i, group in enumerate(groups))


def difference(before: str, after: str, title: str) -> str:
    """Unified diff of two texts; the empty string where they are the same."""
    names = f"before {title}", f"after {title}"
    compared = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="", n=0)
    return "".join(f"{line}\n" for line in compared)


def _summary(compilation: Compilation) -> str:
    plan = compilation.plan
    parts = [
        f"{compilation.graph.name or 'model'} on {compilation.target.name}",
        f"{len(compilation.graph)} nodes",
    ]
    if plan.fusion is not None:
        parts.append(f"{len(plan.groups)} groups")
    if plan.implementation is not None:
        seconds = sum(choice.seconds for choice in plan.implementation.values())
        parts.append(_plain(units.duration(seconds)))
    if (peak := compilation.peak) is not None:
        memory = [*peak.bandwidth.values()][-1]
        parts.append(f"predicted by a peak of {peak.flops / 1e9:.3g} GFLOP/s, {memory / 1e9:.3g} GB/s")
    if plan.placement is not None:
        proved = (
            "proved"
            if plan.placement.solution.proved
            else f"bound {plan.placement.solution.lower_bound} byte"
        )
        parts.append(f"arena {plan.placement.arena_bytes} byte ({proved})")
    return ", ".join(parts)


def _node_line(index: int, node: ir.Node, compilation: Compilation) -> str:
    operator = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    operands = ", ".join(units.cut(v.name, LENGTH) if v is not None else "-" for v in node.inputs)
    partition = compilation.plan.partition
    backend = "" if partition is None else f"  {partition[node].backend}"
    return (
        f"%{index} {units.cut(node.name, LENGTH)}  {operator}({operands}){backend} -> {_values(node.outputs)}"
    )


def _group_line(index: int, group: Group, compilation: Compilation, decisions: Mapping[str, Decision]) -> str:
    plan = compilation.plan
    parts = [f"%{index} {units.cut(group.name, LENGTH)}", _members(group)]
    if plan.partition is not None:
        parts.append(plan.partition[group.anchor].backend)
    choice = None if plan.implementation is None else plan.implementation.get(group)
    if choice is not None:
        parts.append(choice.implementation.name)
    if isinstance(group, StreamGroup):
        parts.append(_strips(group))
    parts += _columns(group.outputs, compilation)
    if choice is not None:
        parts.append(_plain(units.duration(choice.seconds)))
        parts += _rejections(decisions.get(group.name))
    return "  ".join(parts)


def _strips(group: StreamGroup) -> str:
    """Number of groups that run in strips, rows of these or heads, and bytes of rings and scratch."""
    if group.by_heads:
        return f"{len(group.parts)} groups head by head, {group.memory.nbytes} byte of heads and scratch"
    rows = [part.rows for part in group.parts]
    span = str(rows[0]) if min(rows) == max(rows) else f"{min(rows)} to {max(rows)}"
    return f"{len(rows)} groups in strips of {span} rows, {group.memory.nbytes} byte of rings and scratch"


def _members(group: Group) -> str:
    named = [n.op_type for n in group.nodes[:NODES]]
    more = len(group.nodes) - len(named)
    return "+".join(named) + (f"+{more} more" if more else "")


def _columns(outputs: Sequence[ir.Value], compilation: Compilation) -> Iterator[str]:
    """Type, storage type, layout, padded lanes and place of the outputs of a group."""
    plan = compilation.plan
    yield _values(outputs)
    for value in outputs:
        if plan.storage is not None and plan.storage[value].kind != "default":
            bound = plan.storage[value].bound
            yield plan.storage[value].kind + ("" if bound is None else f"<={bound}")
        if plan.layout is not None and not plan.layout[value].is_plain:
            yield str(plan.layout[value])
        if plan.padding is not None and plan.padding[value] != "none":
            yield f"pad {plan.padding[value]}"
        if plan.placement is not None and value in plan.placement.values:
            yield _place(plan.placement.values[value])


def _place(location: Location) -> str:
    return f"{location.space}+{location.offset:#x}"


def _values(outputs: Sequence[ir.Value]) -> str:
    return ", ".join(f"{units.cut(v.name, LENGTH)} {_type(v)}" for v in outputs)


def _type(value: ir.Value) -> str:
    element = value.dtype.short_name() if value.dtype is not None else "?"
    shape = graph.shape(value)
    return f"{element}{list(shape) if shape is not None else '[?]'}".replace(" ", "")


def _rejections(decision: Decision | None) -> Iterator[str]:
    """The implementations that were rejected, the first few with their reasons."""
    if decision is None:
        return
    rejected = [a for a in decision.alternatives if a.get("reason")]
    for row in rejected[:REASONS]:
        yield f"! {row['name']}: {units.cut(row['reason'], LENGTH)}"
    if len(rejected) > REASONS:
        yield f"! {len(rejected) - REASONS} more"


def _plain(number: str) -> str:
    return number.replace(units.NBSP, " ").replace("µ", "u")
