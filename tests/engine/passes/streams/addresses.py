"""The bytes that the calls of a stream read and write, from the tables that its kernels are given.

What is decoded is what runs: loops are followed by their counters, rows by their cursors, addresses by the numbers in
the tables of rings. Nothing is asked of the schedule but which rows an operator reads (`Segment`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from app.engine.core.calls import Argument, Call, Constant, Jump, KernelCall, Workspace
from app.engine.core.program import Step
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.replay import Access, EmittedCall, replay
from app.kernels.cpu.attention_blocks import AttentionBlocksSizes
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.strip_heads import HeadProductSizes
from app.kernels.cpu.strips import RingSizes
from tests.harness import Array

# Numbers in a table of rings, see `app.kernels.cpu.strips.RingSizes`.
OPERATOR, WORK, X, Y, BESIDE = 0, 1, 2, 5, 8
LENGTH = len(fields(RingSizes))


def executed(calls: tuple[Call, ...]) -> Iterator[KernelCall]:
    """Calls of kernels of strips, and of what advances their cursors, in the order of the driver."""
    flags: dict[int, int] = {}
    at = 0
    while at < len(calls):
        call = calls[at]
        at += 1
        if isinstance(call, Jump):
            at = call.target if flags[id(call.flag)] == call.expected else at
        elif isinstance(call, KernelCall) and call.kernel.endswith(":begin_loop"):
            flags[id(call.arguments[0])] = 0
        elif isinstance(call, KernelCall) and call.kernel.endswith(":end_turn"):
            turn, again, turns = call.arguments
            flags[id(turn)] += 1
            assert isinstance(turns, int)
            flags[id(again)] = int(flags[id(turn)] < turns)
        elif isinstance(call, KernelCall) and not call.kernel.endswith(":begin_strips"):
            yield call


def emitted(step: Step, whole: Mapping[str, int], base: int) -> Iterator[EmittedCall]:
    """The calls of a stream; offsets of values outside by name, and that of its workspace."""
    assert isinstance(step.group, StreamGroup)
    segment = step.group.memory.schedule.segment
    begun = step.calls[0]
    assert isinstance(begun, KernelCall)
    cursors = next(a.array for a in begun.arguments if isinstance(a, Constant)).tolist()
    for call in executed(step.calls):
        if call.kernel.endswith(":advance"):
            continue  # by the rows of the call before, which are counted there
        anywhere = "strip_integer" in call.kernel
        table = _row_places(call) if anywhere else _table(call)
        number = int(table[OPERATOR])
        operator, first = segment.operators[number], max(cursors[number], 0)
        cursors[number] += next(a for a in reversed(call.arguments) if isinstance(a, int))
        rows = min(cursors[number], segment.rows(operator)) - first
        if rows <= 0:
            continue
        x, *others = operator.reads
        if anywhere:
            yield _from_table(segment, call, (number, first, rows), whole, base)
            continue
        low, high = segment.needed(x, first, rows)
        place = _place(call.arguments[0], whole, base)
        reads = [*_rows(segment, x.value, range(low, high), place, table[X : X + 3], first)]
        for other in others:
            beside = _place(_beside(call), whole, base)
            reads += _rows(segment, other.value, range(first, first + rows), beside, table[BESIDE:], first)
        y = operator.outputs[0]
        between = not any(kind in call.kernel for kind in ("pool", "copy", "elementwise"))  # weights
        if "resize" in call.kernel:
            between = bool(others)  # what is added
        out = _place(call.arguments[1 + between], whole, base)
        if segment.accumulates(operator) and first > 0:
            reads += _rows(segment, y, range(first - 1, first), out, table[Y : Y + 3], first)
        writes = _rows(segment, y, range(first, first + rows), out, table[Y : Y + 3], first)
        scratch = (base + int(table[WORK]) * 4, operator.scratch) if operator.scratch else None
        yield EmittedCall(number, first, rows, tuple(reads), tuple(writes), scratch)


def emitted_by_heads(step: Step, whole: Mapping[str, int], base: int) -> Iterator[EmittedCall]:
    """The calls of a stream of projections and attention, a head each, from the sizes of their kernels."""
    assert isinstance(step.group, StreamGroup)
    segment = step.group.memory.schedule.segment
    head = number = 0
    for call in executed(step.calls):
        if call.kernel.endswith(":advance"):
            head, number = head + 1, 0
            continue
        operator = segment.operators[number]
        (y,) = operator.outputs
        if "strip_heads" in call.kernel:
            n = _sizes_of(call, HeadProductSizes)
            at, row, line, turn = n["y_at"], n["y_row"], n["head"], head % n["y_ring"]
            (x,) = (segment.by_name[r.value] for r in operator.reads)
            reads = [Access(x.name, 0, 0, whole[x.name], x.row_bytes)]
            place = _place(call.arguments[2], whole, base)
            scratch = (base + n["work_at"] * 4, operator.scratch)
        else:
            n = _sizes_of(call, AttentionBlocksSizes)
            operands = zip("qkv", operator.reads, strict=False)
            reads = [
                Access(r.value, head, token, base + (n[f"{x}_at"] + token * n[f"{x}_s"]) * 4, n["depth"] * 4)
                for x, r in operands
                for token in range(n["keys"])
            ]
            at, row, line, turn = n["y_at"], n["y_s"], n["depth"], head
            place, scratch = _place(call.arguments[4], whole, base), None
        writes = (
            Access(y, head, token, place + (at + token * row + turn * line) * 4, line * 4)
            for token in range(segment.by_name[y].planes)
        )
        yield EmittedCall(number, head, 1, tuple(reads), tuple(writes), scratch)
        number += 1


def _sizes_of(call: KernelCall, kind: type[SizeTable]) -> dict[str, int]:
    """Sizes of a call by name: its last constant."""
    array = [a for a in call.arguments if isinstance(a, Constant)][-1].array
    return dict(zip((f.name for f in fields(kind)), array.tolist(), strict=True))


def _row_places(call: KernelCall) -> Array:
    """The numbers of `app.kernels.cpu.strips.RowPlaces`, two arguments behind the table of rows."""
    return _constants(call)[-1].array


def _constants(call: KernelCall) -> list[Constant]:
    """Constants before the cursors: what the kernel reads besides operands of its recipe."""
    end = next(i for i, a in enumerate(call.arguments) if isinstance(a, int)) - 1
    return [a for a in call.arguments[:end] if isinstance(a, Constant)]


def _from_table(
    segment: Segment, call: KernelCall, of: tuple[int, int, int], whole: Mapping[str, int], base: int
) -> EmittedCall:
    """A call whose rows lie where a table says."""
    number, first, rows = of
    operator, places = segment.operators[number], _row_places(call).tolist()
    table = _constants(call)[-3].array.tolist()
    out = 3 if call.kernel.endswith("emit_conv") else 2
    count = next(i for i, a in enumerate(call.arguments) if isinstance(a, int))
    behind = count + (1 if out == 3 else 2)  # the last argument that is the memory of the stream
    images = [
        i
        for i, a in enumerate(call.arguments)
        if i > behind and (isinstance(a, Workspace) or getattr(a, "name", "") in whole)
    ]

    def accesses(name: str, index: int, entry: int, lines: range) -> Iterator[Access]:
        value, start = segment.by_name[name], _place(call.arguments[index], whole, base)
        width = int(call.types[index].strip("uintfloa*") or 8) // 8
        line = value.row_bytes // value.planes
        for row in lines:
            for plane in range(value.planes):
                at = table[places[entry] + row] + plane * places[entry + 1]
                yield Access(name, row, plane, start + at * width, line)

    x, *others = operator.reads
    written = range(first, first + rows)
    reads = [*accesses(x.value, 0, 2, range(*segment.needed(x, first, rows)))]
    for other in others:
        reads += accesses(other.value, images[-1], 6, written)
    writes = accesses(operator.outputs[0], out, 4, written)
    return EmittedCall(*of, tuple(reads), tuple(writes), (base + places[1] * 4, operator.scratch))


def _table(call: KernelCall) -> Array:
    tables = [a.array for a in call.arguments if isinstance(a, Constant) and a.nbytes == 8 * LENGTH]
    return tables[-1]


def _beside(call: KernelCall) -> Argument:
    """Operand that is read at the place of the output: the residual of a convolution, or else the last."""
    if "resize" in call.kernel:
        return call.arguments[1]
    residual, last = call.arguments[4], call.arguments[-1]
    return last if isinstance(residual, Constant) or "elementwise" in call.kernel else residual


def _place(argument: Argument, whole: Mapping[str, int], base: int) -> int:
    if isinstance(argument, Workspace):
        return base
    return whole[getattr(argument, "name", "")]


def _rows(segment: Segment, name: str, rows: range, place: int, ring: Array, first: int) -> Iterator[Access]:
    """Planes of rows of a value in a ring: (elements from the place, rows, whether it moves)."""
    value, (at, slots, moves) = segment.by_name[name], (int(n) for n in ring[:3])
    line = value.row_bytes // value.planes
    for row in rows:
        slot = (row - (first if moves else 0)) % slots
        for plane in range(value.planes):
            yield Access(name, row, plane, place + at * 4 + (plane * slots + slot) * line, line)


def replayed(step: Step) -> None:
    """Replay the calls of a stream; values outside lie behind its workspace, an output over its input."""
    assert isinstance(step.group, StreamGroup)
    memory = step.group.memory
    segment, at = memory.schedule.segment, -(-memory.nbytes // 64) * 64
    whole: dict[str, int] = {}
    for name in (*segment.inputs, *segment.outputs):
        place = memory.schedule.whole[name]
        if place not in whole:
            whole[place] = at
            at += segment.by_name[place].nbytes
        whole[name] = whole[place]
    calls = emitted_by_heads if any(part.strips.heads for part in step.group.parts) else emitted
    replay(segment, [*calls(step, whole, 0)], whole, at)
