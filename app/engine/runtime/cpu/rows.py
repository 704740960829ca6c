"""Rows of the compiled driver from the calls of steps, and segments of steps that run as one sequence."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.engine.core.calls import Argument, Body, BodyCall, Call, Jump, KernelCall
from app.engine.core.program import Program
from app.engine.types.errors import KernelError
from app.kernels.cpu.runtime.compiler import CompiledKernel, Compiler
from app.kernels.cpu.runtime.kernel_sequence import JumpRow, KernelRow, KernelSequence
from app.kernels.cpu.runtime.parallel import Request, helped


def compiled(
    program: Program, compiler: Compiler, progress: Callable[[int, int], None]
) -> dict[Request, CompiledKernel]:
    """Kernels of a program by what was asked of the compiler."""
    kernels = {}
    with helped(compiler, program.kernels):
        for done, key in enumerate(program.kernels):
            progress(done, len(program.kernels))
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


def step_rows(
    calls: Sequence[Call],
    kernels: Mapping[Request, CompiledKernel],
    address: Callable[[Argument], int],
    body_rows: Callable[[Body], Sequence[KernelRow | JumpRow]],
    *,
    shared: bool,
) -> StepRows:
    """Rows of a step's calls: one of a kernel or a jump, and those of its program for a body."""
    found: list[KernelRow | JumpRow] = []
    starts: list[int] = []
    jumps: list[tuple[int, Jump]] = []
    for call in calls:
        starts.append(len(found))
        if isinstance(call, KernelCall):
            numbers = tuple(map(address, call.arguments))
            found.append(KernelRow(kernels[call.request].address, call.units, numbers, shared))
        elif isinstance(call, Jump):
            jumps.append((len(found), call))
            found.append(JumpRow(0, address(call.flag), call.expected))
        else:
            assert isinstance(call, BodyCall)
            found += body_rows(call.body)
    starts.append(len(found))
    for at, jump in jumps:
        row = found[at]
        assert isinstance(row, JumpRow)
        found[at] = row._replace(displacement=starts[jump.target] - at)
    return StepRows(tuple(found), tuple(starts))


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


def shares(segment: Segment, sequence: KernelSequence) -> list[float]:
    """Fraction of a sequence's time that each of its steps took."""
    ticks = sequence.ticks
    total = max(float(ticks[segment.calls[-1][1]] - ticks[0]), 1.0)
    return [float(ticks[last] - ticks[first]) / total for first, last in segment.calls]
