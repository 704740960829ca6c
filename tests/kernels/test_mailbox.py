"""The protocol of the driver's mailbox under interleavings of its threads.

The driver's own functions run here as Python, on a model of their atomic instructions: each instruction
is a point where a seeded scheduler may let another thread go on, so a seed is one interleaving. A second
test runs the compiled driver on real threads.
"""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime import driver
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import Team, compile_dispatch_loop
from app.kernels.cpu.runtime.kernel_sequence import KernelRow, KernelSequence

MOST_STEPS = 20_000  # of an interleaving; a correct one of these sizes takes a few hundred
SEEDS = 150
UNITS = 5
Units = list[tuple[int, int]]  # (row, unit)


class StuckError(Exception):
    """No thread can go on, or they do without end."""


class Machine:
    """Memory and threads, of which one runs at a time; the next is drawn at every instruction."""

    def __init__(self, seed: int, threads: int) -> None:
        self.random = random.Random(seed)
        self.threads = threads
        self.memory = [0] * (driver.THREADS + threads * (driver.LINE + driver.GATE))
        for thread in range(1, threads):
            self.memory[driver.THREADS + thread * driver.LINE + driver.ASLEEP] = 1
        self.gates = [threading.Event() for _ in range(threads)]
        self.blocked: dict[int, Callable[[], bool]] = {}  # thread: whether it may go on
        self.alive = set(range(threads))
        self.locks: dict[int, int] = {}  # address of a mutex: thread that holds it
        self.signaled: dict[int, set[int]] = {}  # address of a condition: threads that wait for it
        self.current, self.steps, self.error = 0, 0, None  # type: int, int, BaseException | None
        self.done: Units = []

    def switch(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let a random thread run; return when this one is drawn again and ready."""
        me = self.current
        self.blocked[me] = ready
        self.steps += 1
        self._draw()
        self._await(me)

    def _draw(self) -> None:
        able = [t for t in sorted(self.alive) if self.blocked.get(t, lambda: True)()]
        if self.alive and (not able or self.steps > MOST_STEPS) and self.error is None:
            self.error = StuckError(f"after {self.steps} steps, {able} of {self.alive} could run")
        if self.error is not None:
            for gate in self.gates:
                gate.set()
        elif able:
            self.current = self.random.choice(able)
            self.gates[self.current].set()

    def _await(self, me: int) -> None:
        self.gates[me].wait()
        if self.error is not None:
            raise self.error
        self.gates[me].clear()

    def run(self, functions: list[Callable[[], None]]) -> None:
        def body(me: int) -> None:
            try:
                self._await(me)
                functions[me]()
            except BaseException as error:  # raised again below, by the test's own thread
                self.error = self.error or error
            self.alive.discard(me)
            self._draw()

        members = [threading.Thread(target=body, args=(i,)) for i in range(self.threads)]
        for member in members:
            member.start()
        self.gates[0].set()
        for member in members:
            member.join()
        if self.error is not None:
            raise self.error


class Pointer:
    """An address in the memory of a machine; plain accesses are points of interleaving as well."""

    def __init__(self, machine: Machine, base: int = 0) -> None:
        self.machine, self.base = machine, base

    def __getitem__(self, index: int) -> int:
        self.machine.switch()
        return self.machine.memory[self.base + index]

    def __setitem__(self, index: int, value: int) -> None:
        self.machine.switch()
        self.machine.memory[self.base + index] = value


def model(machine: Machine, table: list[list[int]], *, torn: bool = False) -> dict[str, Any]:
    """The functions of the driver on a machine, `table` the rows; `torn`: an exchange of two instructions."""
    memory, switch = machine.memory, machine.switch

    def load(pointer: Pointer, index: int) -> int:
        switch()
        return memory[index]

    def store(pointer: Pointer, index: int, value: int) -> None:
        switch()
        memory[index] = value

    def increment(pointer: Pointer, index: int) -> None:
        switch()
        memory[index] += 1

    def exchange(pointer: Pointer, index: int, old: int, new: int) -> bool:
        switch()
        if memory[index] != old:
            return False
        if torn:
            switch()
        memory[index] = new
        return True

    def lock(mutex: int) -> None:
        switch(lambda: mutex not in machine.locks)
        machine.locks[mutex] = machine.current

    def unlock(mutex: int) -> None:
        assert machine.locks.pop(mutex) == machine.current
        switch()

    def wait(condition: int, mutex: int) -> None:
        me, waiting = machine.current, machine.signaled.setdefault(condition, set())
        assert machine.locks.pop(mutex) == me
        waiting.add(me)
        spurious = machine.random.random() < 0.1  # POSIX allows it
        switch(lambda: mutex not in machine.locks and (spurious or me not in waiting))
        waiting.discard(me)
        machine.locks[mutex] = me

    def call(
        _address: int, row: int, _arguments: int, _offset: int, begin: int, end: int, _thread: int
    ) -> None:
        for unit in range(begin, end):
            switch()
            machine.done.append((row, unit))

    names: dict[str, Any] = {
        **{n: v for n, v in vars(driver).items() if isinstance(v, int)},
        "SPINS": 2,
        "IDLE": 3,
        "_load": load, "_store": store, "_increment": increment, "_exchange": exchange,
        "_pause": switch, "_yield": switch, "_ticks": lambda: machine.steps,
        "_lock": lock, "_unlock": unlock, "_wait": wait,
        "_signal": lambda condition: machine.signaled.get(condition, set()).clear(),
        "_call": call,
        "address": lambda value: 0 if isinstance(value, Pointer) else table.index(value) if value else 0,
        "pointer": lambda number: table[number],
        "at": lambda rows, index: rows[index // driver.ROW],
        "range": range, "min": min,
    }  # fmt: skip
    for name in ("_run_share", "_take_shares", "_gate", "_sleep", "_wake", "_run_leader", "_run_helper"):
        function = getattr(driver, name)
        names[name] = FunctionType(getattr(function, "py_func", function).__code__, names)
    names["_woken"] = names["_wake"]
    return names


def play(seed: int, threads: int, *, torn: bool = False) -> tuple[Units, Units]:
    """Units done by an interleaving, in order, and those of the rows: three runs of four rows, then the end."""
    machine = Machine(seed, threads)
    shares = [machine.random.random() < 0.75 for _ in range(12)]
    table = [[1, number, UNITS, 0, int(shared)] for number, shared in enumerate(shares)]
    names, mailbox = model(machine, table, torn=torn), Pointer(machine)

    def lead() -> None:
        ticks = [0] * (len(table) + 1)
        for first in range(0, len(table), 4):
            names["_run_leader"](mailbox, threads, table, [], first, first + 4, ticks)
            for _ in range(machine.random.choice((0, 3, 30))):  # helpers fall asleep, or are about to
                machine.switch()
        names["_store"](mailbox, driver.STOPPED, 1)
        names["_wake"](mailbox, threads)

    def helper(number: int) -> Callable[[], None]:
        return lambda: names["_run_helper"](mailbox, number, threads)

    machine.run([lead, *(helper(i) for i in range(1, threads))])
    return machine.done, [(row, unit) for row in range(len(table)) for unit in range(UNITS)]


@pytest.mark.parametrize("threads", [2, 3])
def test_every_unit_runs_once_and_rows_in_order_in_any_interleaving(threads: int) -> None:
    deadline = time.monotonic() + 4  # s; a busy machine plays fewer of them
    for seed in range(SEEDS):
        done, rows = play(seed, threads)
        assert sorted(done) == rows, f"seed {seed}"
        assert [row for row, _ in done] == [row for row, _ in rows], f"seed {seed}"
        if time.monotonic() > deadline:
            break


def test_the_model_finds_a_claim_that_is_not_atomic() -> None:
    def differs(seed: int) -> bool:
        try:
            done, rows = play(seed, 2, torn=True)
        except StuckError:
            return True
        return sorted(done) != rows

    assert any(differs(seed) for seed in range(SEEDS))


def test_real_threads_run_random_rows_once_and_in_order(tmp_path: Path) -> None:
    kernel = Compiler(tmp_path).compile("tests.kernels.test_mailbox:advance", ("int64*", "int64"))
    rng, x = random.Random(0), np.zeros(64, np.int64)
    teams = [Team(2), Team(3)]
    compiled = compile_dispatch_loop()
    deadline = time.monotonic() + 2
    turn = 0
    while time.monotonic() < deadline:
        team, count = rng.choice(teams), rng.randrange(1, 20)
        units = rng.choice((1, 2, 3, 64))
        rows = [
            KernelRow(kernel.address, units, (x.ctypes.data, row), rng.random() < 0.8) for row in range(count)
        ]
        sequence = KernelSequence(compiled, rows, team)
        for _ in range(rng.randrange(1, 20)):
            x[:] = 0
            sequence.run()
            assert (x[:units] == count).all(), f"turn {turn}"
            turn += 1
        if rng.random() < 0.3:  # about as long as helpers look for work before they sleep
            time.sleep(rng.random() * 2e-3)
    for team in teams:
        team.close()


def advance(x, row, begin, end):
    # A unit of row n finds n in its place; one that comes twice, or early, leaves less or more than the count.
    for i in range(begin, end):
        x[i] = x[i] + 1 if x[i] == row else -1000
