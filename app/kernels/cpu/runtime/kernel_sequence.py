"""Sequences of rows of the compiled driver: kernels one after the other, and jumps among them."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.kernels.cpu.runtime.driver import JUMP, MAX_ARITY, ROW, Team


class KernelRow(NamedTuple):
    """A call of a kernel; `shared` if the other threads help."""

    address: int
    units: int
    arguments: tuple[int, ...]
    shared: bool = True


class JumpRow(NamedTuple):
    """Go on `displacement` rows from here if the int64 at `flag` is `expected`, else with the next row."""

    displacement: int
    flag: int
    expected: int


class KernelSequence:
    """Consecutive rows that run without returning to Python.

    Attributes:
        ticks: of the time stamp counter, which row i took in all runs since they were set to zero.
    """

    def __init__(self, dispatch_loop: Any, rows: Sequence[KernelRow | JumpRow], team: Team) -> None:
        table = np.zeros((max(len(rows), 1), ROW), np.int64)
        arguments: list[int] = []
        for i, row in enumerate(rows):
            if isinstance(row, JumpRow):
                table[i] = row.displacement, JUMP, row.expected, len(arguments), 0
                arguments.append(row.flag)
                continue
            if len(row.arguments) > MAX_ARITY:
                raise ValueError(f"a kernel takes at most {MAX_ARITY} arguments, found {len(row.arguments)}")
            shares = row.units > 1 and row.shared
            table[i] = row.address, len(row.arguments), row.units, len(arguments), shares
            arguments.extend(row.arguments)
        self._dispatch_loop = dispatch_loop
        self._team = team
        self._count = len(rows)
        self._rows = table
        self._arguments = np.array(arguments or [0], np.int64)
        self._helped = team.threads > 1 and bool(table[:, 4].any())
        self.ticks = np.zeros(max(len(rows), 1), np.int64)
        self._control = np.array(
            [
                *(team.mailbox.ctypes.data, team.threads if self._helped else 1),
                *(self._rows.ctypes.data, self._arguments.ctypes.data),
                *(0, self._count, self.ticks.ctypes.data),
            ],
            np.int64,
        )
        self._part = self._control.copy()  # of a run that leaves rows out
        self._all = ctypes.c_int64(self._control.ctypes.data)

    def set_argument(self, position: int, number: int) -> None:
        """Let an argument, counted over all rows, be another number in runs from now on."""
        self._arguments[position] = number

    def wake(self) -> None:
        """Wake the helpers, if any row is shared: it will be run soon."""
        if self._helped:
            self._team.wake()

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Run rows first..last, half-open."""
        if self._helped:
            self._team.make_way()
        if first == 0 and last is None:
            self._dispatch_loop(self._all)
            return
        self._part[4:6] = first, self._count if last is None else last
        self._dispatch_loop(self._part.ctypes.data)
