"""Runs a streamed program call by call and overwrites with NaN every row that no later call may read.

It finds out by itself which rows those are: from the windows that the groups state, operator by operator.
"""

import ctypes
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields

import numpy as np

from app.engine.core.calls import Jump, KernelCall
from app.engine.core.program import Program, Step
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.rows import Segment
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.kernel_sequence import JumpRow, KernelRow
from app.kernels.cpu.strips import RingSizes
from tests.harness import Array

RINGS = len(fields(RingSizes))  # numbers of a table of rings; the first is the operator's


@dataclass
class Forgetting:
    """Progress of a stream: rows that each operator has computed."""

    group: StreamGroup
    memory: Array  # float32 of the workspace

    def __post_init__(self) -> None:
        self.segment = self.group.memory.schedule.segment
        self.at = [*self.group.memory.program.starts]
        self.done = [0] * len(self.segment.operators)

    def advance(self, operator: int, rows: int) -> None:
        """Count the rows of a call, and overwrite those that are not read any more.

        Only a call that reads or writes a ring is the last for any of its rows; others may lie in its place.
        """
        extent = self.segment.rows(self.segment.operators[operator])
        self.at[operator] += rows
        self.done[operator] = min(max(self.at[operator], 0), extent)
        found = self.segment.operators[operator]
        touched = {*found.outputs, *(read.value for read in found.reads)}
        for ring, offset in zip(self.group.memory.schedule.rings, self.group.memory.rings, strict=True):
            summed = self.segment.by_name[ring.values[0]].accumulated  # its turns lie in one place
            if not ring.transient and not summed and touched & {*ring.values}:
                self._forget(
                    ring.values, ring.rows, ring.row_bytes // ring.planes // 4, ring.planes, offset // 4
                )

    def _forget(self, values: tuple[str, ...], rows: int, line: int, planes: int, at: int) -> None:
        written = {v: self.done[self.segment.producer[v]] for v in values}
        if not any(written.values()):
            return  # another ring may lie here
        kept = {
            row % rows
            for v, count in written.items()
            for row in range(max(count - rows, 0), count)
            if any(self._reads(i, v, row) for i in range(len(self.done)))
        }
        latest = {row % rows for v, count in written.items() for row in range(max(count - rows, 0), count)}
        ring = self.memory[at : at + planes * rows * line].reshape(planes, rows, line)
        if not kept and all(self._finished(v) for v in values):
            return  # nor does this ring live any more
        for slot in latest - kept:
            ring[:, slot] = np.nan

    def _finished(self, value: str) -> bool:
        readers = [i for i, o in enumerate(self.segment.operators) for r in o.reads if r.value == value]
        return all(self.done[i] == self.segment.rows(self.segment.operators[i]) for i in readers)

    def _reads(self, operator: int, value: str, row: int) -> bool:
        """True if a row of the operator that is still to come reads the row of the value."""
        found = self.segment.operators[operator]
        return any(
            row in range(*self.segment.needed(read, later, 1))
            for read in found.reads
            if read.value == value
            for later in range(self.done[operator], self.segment.rows(found))
        )


def run_forgetting(program: Program, x: Array, compiler: Compiler) -> Array:
    """The output of a program without host steps."""
    with closing(Executor(program, compiler, poison=True)) as executor:
        executor.feed({"x": x})
        (segment,) = executor.segments
        for index, step in enumerate(program.steps):
            if isinstance(step.group, StreamGroup):
                _walk(step, step.group, segment, index)
            else:
                assert segment.sequence is not None
                segment.sequence.run(*segment.calls[index])
        (found,) = executor.fetch().values()
    return np.asarray(found)


def _walk(step: Step, group: StreamGroup, segment: Segment, index: int) -> None:
    assert segment.sequence is not None
    first, _ = segment.calls[index]
    rows = segment.steps[index].rows
    progress = Forgetting(group, _memory(step, rows, group))
    at = 0
    while at < len(step.calls):
        call, row = step.calls[at], rows[at]
        if isinstance(call, Jump):
            assert isinstance(row, JumpRow)
            again = ctypes.c_int64.from_address(row.flag).value == row.expected
            at = call.target if again else at + 1
            continue
        segment.sequence.run(first + at, first + at + 1)
        assert isinstance(call, KernelCall)
        tables = [a.array for a in call.arguments if hasattr(a, "array") and a.array.shape == (RINGS,)]
        if tables:
            rows_asked = next(a for a in reversed(call.arguments) if isinstance(a, int))
            progress.advance(int(tables[-1][0]), rows_asked)
        at += 1


def _memory(step: Step, rows: Sequence[KernelRow | JumpRow], group: StreamGroup) -> Array:
    """The workspace of a stream as float32, where it lies."""
    for call, row in zip(step.calls, rows, strict=True):
        if not isinstance(call, KernelCall) or not isinstance(row, KernelRow):
            continue
        for argument, address in zip(call.arguments, row.arguments, strict=True):
            if getattr(argument, "nbytes", None) == group.memory.nbytes and not hasattr(argument, "array"):
                count = group.memory.nbytes // 4
                return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))
    raise AssertionError("no call of a stream names its workspace")
