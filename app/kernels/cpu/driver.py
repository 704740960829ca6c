"""The compiled driver: walks the rows of a program, each a kernel address and its arguments.

One row is ROW int64 numbers: address, arity, takes_thread, units, offset of the first argument
in the argument table. The units of a row are shared evenly among the threads; a spin barrier
stands between rows. A kernel is called with its own number of arguments, chosen by a switch.
"""

import ctypes
import functools
import os
import platform
import threading
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ll
import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ROW = 5  # numbers a row
MAX_ARITY = 48  # arguments of a kernel, begin, end and thread not counted
SPINS = 4000  # before a waiting thread yields its core

_I64 = ll.IntType(64)


@intrinsic
def _call(_context, address, arity, takes_thread, arguments, offset, begin, end, thread):
    """Call the function at `address` with `arity` numbers of `arguments[offset:]`, begin, end[, thread]."""
    signature = types.void(
        types.int64,
        types.int64,
        types.int64,
        types.CPointer(types.int64),
        types.int64,
        types.int64,
        types.int64,
        types.int64,
    )

    def generate(context, builder, _signature, values):
        target, count, wants_thread, table, start, first, last, number = values
        block = builder.gep(table, [start])
        done = builder.append_basic_block("done")
        # Case 2n takes n arguments, case 2n + 1 takes n arguments and the thread.
        index = builder.add(builder.shl(count, ll.Constant(_I64, 1)), wants_thread)
        switch = builder.switch(index, done)
        for n in range(MAX_ARITY + 1):
            for tail in (0, 1):
                case = builder.append_basic_block(f"arity{n}_{tail}")
                switch.add_case(ll.Constant(_I64, 2 * n + tail), case)
                builder.position_at_end(case)
                passed = [builder.load(builder.gep(block, [ll.Constant(_I64, i)])) for i in range(n)]
                passed += [first, last] + ([number] if tail else [])
                prototype = ll.FunctionType(ll.VoidType(), [_I64] * len(passed))
                builder.call(builder.inttoptr(target, prototype.as_pointer()), passed)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _barrier(_context, state, threads):
    """Wait for all threads. `state`: int64[16], zero at first: arrivals in [0], generation in [8]."""
    signature = types.void(types.CPointer(types.int64), types.int64)

    def generate(context, builder, _signature, values):
        arrivals, expected = values
        generation = builder.gep(arrivals, [ll.Constant(_I64, 8)])  # on a cache line of its own
        give_way = cgutils.get_or_insert_function(
            builder.module, ll.FunctionType(ll.IntType(32), []), "sched_yield"
        )
        seen = builder.load_atomic(generation, "acquire", 8)
        before = builder.atomic_rmw("add", arrivals, ll.Constant(_I64, 1), "acq_rel")
        is_last = builder.icmp_unsigned("==", builder.add(before, ll.Constant(_I64, 1)), expected)
        release, spin, wait, relax, sleep, done = (
            builder.append_basic_block(n) for n in ("release", "spin", "wait", "relax", "sleep", "done")
        )
        entry = builder.block
        builder.cbranch(is_last, release, spin)
        builder.position_at_end(release)
        builder.store_atomic(ll.Constant(_I64, 0), arrivals, "monotonic", 8)
        builder.store_atomic(builder.add(seen, ll.Constant(_I64, 1)), generation, "release", 8)
        builder.branch(done)
        builder.position_at_end(spin)
        spins = builder.phi(_I64)
        spins.add_incoming(ll.Constant(_I64, 0), entry)
        now = builder.load_atomic(generation, "acquire", 8)
        builder.cbranch(builder.icmp_unsigned("!=", now, seen), done, wait)
        builder.position_at_end(wait)
        more = builder.add(spins, ll.Constant(_I64, 1))
        builder.cbranch(builder.icmp_unsigned(">", more, ll.Constant(_I64, SPINS)), sleep, relax)
        builder.position_at_end(relax)
        if platform.machine() in ("x86_64", "AMD64"):
            builder.call(
                cgutils.get_or_insert_function(
                    builder.module, ll.FunctionType(ll.VoidType(), []), "llvm.x86.sse2.pause"
                ),
                [],
            )
        builder.branch(spin)
        spins.add_incoming(more, relax)
        builder.position_at_end(sleep)
        builder.call(give_way, [])
        builder.branch(spin)
        spins.add_incoming(more, sleep)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _ticks(_context):
    """The processor's time stamp counter."""

    def generate(_context, builder, _signature, _values):
        counter = cgutils.get_or_insert_function(
            builder.module, ll.FunctionType(_I64, []), "llvm.readcyclecounter"
        )
        return builder.call(counter, [])

    return types.int64(), generate


_POINTER = types.CPointer(types.int64)
_SIGNATURE = types.void(
    _POINTER, _POINTER, types.int64, types.int64, types.int64, types.int64, _POINTER, _POINTER
)


def _walk(rows, arguments, first, last, thread, threads, barrier, ticks):
    if thread == 0:
        ticks[first] = _ticks()
    for row in range(first, last):
        base = row * ROW
        units = rows[base + 3]
        begin = units * thread // threads
        end = units * (thread + 1) // threads
        if begin < end:
            _call(rows[base], rows[base + 1], rows[base + 2], arguments, rows[base + 4], begin, end, thread)
        if threads > 1:
            _barrier(barrier, threads)
        if thread == 0:
            ticks[row + 1] = _ticks()


@functools.cache
def compile_walk() -> Any:
    """The driver as a ctypes function, one for the process. Calling it releases the GIL.

    Machine code is never given back: LLVM aborts now and then when many modules are removed.
    """
    compiled = numba.cfunc(_SIGNATURE, cache=True, error_model="numpy", boundscheck=False)(_walk)
    function: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)(compiled.address)
    function.keep = compiled
    return function


class Team:
    """Persistent threads, one a core, that run the same function at once.

    The calling thread is number 0. With one thread nothing is started and nothing is pinned.

    Args:
        threads: how many.
        cores: which cores to pin to, as the operating system numbers them; empty leaves it be.
    """

    def __init__(self, threads: int, cores: Sequence[int] = ()) -> None:
        self._work: Callable[[int], None] = lambda _thread: None
        self._go = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._done = threading.Semaphore(0)
        self._stopped = False
        self._cores = tuple(cores)
        self.threads = threads
        self._members = [
            threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(1, threads)
        ]
        for member in self._members:
            member.start()

    def _serve(self, number: int) -> None:
        if self._cores:
            os.sched_setaffinity(0, {self._cores[number % len(self._cores)]})
        while True:
            self._go[number - 1].acquire()
            if self._stopped:
                return
            self._work(number)
            self._done.release()

    def run(self, work: Callable[[int], None]) -> None:
        """Call `work(thread)` on every thread and wait for all."""
        self._work = work
        for gate in self._go:
            gate.release()
        work(0)
        for _ in self._go:
            self._done.acquire()

    def close(self) -> None:
        """End the threads."""
        self._stopped = True
        for gate in self._go:
            gate.release()
        for member in self._members:
            member.join()


class Stretch:
    """Consecutive kernel rows that run without returning to Python.

    Attributes:
        ticks: time stamp counter of the last run: [i] before row i, [i + 1] after it.
    """

    def __init__(self, walk: Any, rows: Sequence[tuple[int, bool, int, tuple[int, ...]]], team: Team) -> None:
        """`rows`: (address, takes_thread, units, arguments)."""
        table = np.zeros((max(len(rows), 1), ROW), np.int64)
        arguments: list[int] = []
        for i, (address, takes_thread, units, numbers) in enumerate(rows):
            if len(numbers) > MAX_ARITY:
                raise ValueError(f"a kernel takes at most {MAX_ARITY} arguments, found {len(numbers)}")
            table[i] = address, len(numbers), takes_thread, units, len(arguments)
            arguments.extend(numbers)
        self._walk = walk
        self._team = team
        self._count = len(rows)
        self._rows = table
        self._arguments = np.array(arguments or [0], np.int64)
        self._barrier = np.zeros(16, np.int64)
        self.ticks = np.zeros(len(rows) + 1, np.int64)
        self._addresses = (
            self._rows.ctypes.data,
            self._arguments.ctypes.data,
            self._barrier.ctypes.data,
            self.ticks.ctypes.data,
        )

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Run rows first..last, half-open."""
        rows, arguments, barrier, ticks = self._addresses
        end = self._count if last is None else last
        threads = self._team.threads
        if threads == 1:
            self._walk(rows, arguments, first, end, 0, 1, barrier, ticks)
        else:
            self._team.run(
                lambda thread: self._walk(rows, arguments, first, end, thread, threads, barrier, ticks)
            )
