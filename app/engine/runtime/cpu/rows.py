"""Rows of the compiled driver from the calls of steps, and segments of steps that run as one sequence."""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.engine.core.calls import Body, BodyCall, Call, Jump, KernelCall
from app.engine.types.errors import KernelError
from app.kernels.cpu.runtime.compiler import CompiledKernel, Compiler, Request
from app.kernels.cpu.runtime.kernel_sequence import JumpRow, KernelRow, KernelSequence
from app.kernels.cpu.runtime.parallel import helped

Row = TypeVar("Row")


def compiled(
    requests: Sequence[Request],
    compiler: Compiler,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[Request, CompiledKernel]:
    """Kernels by what is asked of the compiler."""
    kernels = {}
    with helped(compiler, requests):
        for done, key in enumerate(requests):
            progress(done, len(requests))
            name, types, static, takes_thread = key
            try:
                kernels[key] = compiler.compile(name, types, static, takes_thread=takes_thread)
            except Exception as cause:  # any failure of the compiler is the kernel's
                raise KernelError(f"kernel {name!r} for {types} does not compile: {cause}") from cause
    return kernels


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of one step.

    Attributes:
        starts: for each call the index of its first row; then the number of rows.
    """

    rows: tuple[KernelRow | JumpRow, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps first..last (half-open) that run together: one sequence of kernels, or one host call.

    Attributes:
        work: runs all of it.
        sequence: of kernels; None for a host call.
        calls: of each step, half-open positions in the sequence.
        steps: rows of each step; none for a host call.
    """

    first: int
    last: int
    work: Callable[[], None]
    sequence: KernelSequence | None = None
    calls: tuple[tuple[int, int], ...] = ((0, 0),)
    steps: tuple[StepRows, ...] = ()


def flattened(
    calls: Sequence[Call],
    kernel_row: Callable[[KernelCall], Row],
    jump_row: Callable[[Jump, int], Row],
    body_rows: Callable[[Body], Sequence[Row]],
) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Rows of a step's calls, one of a kernel or a jump and those of its program for a body.

    Second, for each call the index of its first row, and the number of rows. A jump is made of its call and
    of its displacement in rows.
    """
    bodies = [body_rows(call.body) if isinstance(call, BodyCall) else None for call in calls]
    starts = (0, *itertools.accumulate(1 if rows is None else len(rows) for rows in bodies))
    found: list[Row] = []
    for at, call, rows in zip(starts, calls, bodies):
        if rows is not None:
            found += rows
        elif isinstance(call, Jump):
            found.append(jump_row(call, starts[call.target] - at))
        else:
            assert isinstance(call, KernelCall)
            found.append(kernel_row(call))
    return tuple(found), starts


def walk(
    calls: Sequence[Call],
    rows: StepRows,
    sequence: KernelSequence,
    begin: int,
    run_body: Callable[[Body], None],
) -> None:
    """Run a step call by call, its bodies by a function: the rows of the step begin at `begin`."""
    at = 0
    while at < len(calls):
        call = calls[at]
        if isinstance(call, Jump):
            row = rows.rows[rows.starts[at]]
            assert isinstance(row, JumpRow)
            holds = ctypes.c_int64.from_address(row.flag).value == row.expected
            at = call.target if holds else at + 1
            continue
        if isinstance(call, BodyCall):
            run_body(call.body)
        else:
            sequence.run(begin + rows.starts[at], begin + rows.starts[at + 1])
        at += 1
