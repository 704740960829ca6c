"""The compiled driver: walks the rows of a program, each a kernel address and its arguments.

One row is ROW int64 numbers: address, arity, takes_thread, units, offset of the first argument
in the argument table. The units of a row are shared evenly among the threads; a spin barrier
stands between rows. A kernel is called with its own number of arguments, chosen by a switch.

Threads wait for work in machine code, without the GIL: they look at a mailbox, first spinning,
then giving way, and go to sleep on a semaphore only when nothing came for IDLE looks. A stretch
that follows soon therefore starts at once, and an idle program takes no time from others.
"""

import ctypes
import functools
import os
import platform
import threading
from collections.abc import Sequence
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
IDLE = 1000  # times that a thread without work yields before it sleeps: about half a millisecond

# The mailbox, int64: LINE numbers for all threads, then LINE for each. A line is a cache line, two
# because the hardware fetches pairs.
LINE = 16
POSTED = 0  # number of stretches posted so far
JOB = 1  # and the seven numbers after it: of the last one
ASLEEP, SEEN, WAKE = 0, 1, 2  # of a thread: sleeps; the last stretch it ran; must be woken for this one

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


def _give_way(builder: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ll.FunctionType(ll.IntType(32), []), "sched_yield")


def _relax(builder: Any) -> None:
    if platform.machine() in ("x86_64", "AMD64"):
        kind = ll.FunctionType(ll.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])


@intrinsic
def _barrier(_context, state, threads):
    """Wait for all threads. `state`: int64[16], zero at first: arrivals in [0], generation in [8]."""
    signature = types.void(types.CPointer(types.int64), types.int64)

    def generate(context, builder, _signature, values):
        arrivals, expected = values
        generation = builder.gep(arrivals, [ll.Constant(_I64, 8)])  # on a cache line of its own
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
        _relax(builder)
        builder.branch(spin)
        spins.add_incoming(more, relax)
        builder.position_at_end(sleep)
        builder.call(_give_way(builder), [])
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


@intrinsic
def _load(_context, pointer, index):
    """pointer[index], and all that was written before it."""

    def generate(_context, builder, _signature, values):
        return builder.load_atomic(builder.gep(values[0], [values[1]]), "seq_cst", 8)

    return types.int64(pointer, types.int64), generate


@intrinsic
def _swap(_context, pointer, index, value):
    """Put a value into pointer[index], after all that was written before; the old one."""

    def generate(_context, builder, _signature, values):
        place = builder.gep(values[0], [values[1]])
        return builder.atomic_rmw("xchg", place, values[2], "seq_cst")

    return types.int64(pointer, types.int64, types.int64), generate


@intrinsic
def _pause(_context):
    """Tell the core that this is a spinning loop."""

    def generate(context, builder, _signature, _values):
        _relax(builder)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield(_context):
    """Let another thread have the core."""

    def generate(context, builder, _signature, _values):
        builder.call(_give_way(builder), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def address(_context, pointer):
    """A pointer as a number."""

    def generate(_context, builder, _signature, values):
        return builder.ptrtoint(values[0], _I64)

    return types.int64(pointer), generate


@intrinsic
def pointer(_context, number):
    """A number as a pointer to int64."""

    def generate(_context, builder, _signature, values):
        return builder.inttoptr(values[0], _I64.as_pointer())

    return types.CPointer(types.int64)(number), generate


_POINTER = types.CPointer(types.int64)
_LEAD = types.int64(
    _POINTER, types.int64, types.int64, _POINTER, _POINTER, types.int64, types.int64, _POINTER, _POINTER
)
_ATTEND = types.void(_POINTER, types.int64, types.int64)


@numba.njit(error_model="numpy", boundscheck=False)
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


def _lead(mail, threads, post, rows, arguments, first, last, barrier, ticks):
    """Run rows first..last as thread 0; returns how many threads must be woken.

    With `post`, tell the others first; if any of them sleeps, nothing runs: it is to be called
    again without `post` once they are woken (WAKE of each tells which).
    """
    if first >= last:  # nobody would wait for the others
        return 0
    if post:
        mail[JOB] = address(rows)
        mail[JOB + 1] = address(arguments)
        mail[JOB + 2] = first
        mail[JOB + 3] = last
        mail[JOB + 4] = address(barrier)
        mail[JOB + 5] = address(ticks)
        _swap(mail, POSTED, mail[POSTED] + 1)
        sleeping = 0
        for thread in range(1, threads):
            own = thread * LINE
            mail[own + WAKE] = _swap(mail, own + ASLEEP, 0)
            sleeping += mail[own + WAKE]
        if sleeping:
            return sleeping
    _walk(rows, arguments, first, last, 0, threads, barrier, ticks)
    return 0


def _attend(mail, thread, threads):
    """Run what is posted, until nothing was for a while and this thread is marked as asleep."""
    own = thread * LINE
    looks = 0
    while True:
        if _load(mail, POSTED) == mail[own + SEEN]:
            looks += 1
            if looks <= SPINS:
                _pause()
            elif looks <= SPINS + IDLE:
                _yield()
            else:
                _swap(mail, own + ASLEEP, 1)
                # What was posted meanwhile is run at once, unless the leader has seen the mark and
                # will open the gate: that opening must then be taken.
                if _load(mail, POSTED) == mail[own + SEEN] or _swap(mail, own + ASLEEP, 0) == 0:
                    return
            continue
        mail[own + SEEN] += 1
        _walk(pointer(mail[JOB]), pointer(mail[JOB + 1]), mail[JOB + 2], mail[JOB + 3], thread, threads,
              pointer(mail[JOB + 4]), pointer(mail[JOB + 5]))  # fmt: skip
        looks = 0


def _compiled(function: Any, signature: Any) -> Any:
    """A ctypes function. Calling it releases the GIL.

    Machine code is never given back: LLVM aborts now and then when many modules are removed.
    """
    compiled = numba.cfunc(signature, cache=True, error_model="numpy", boundscheck=False)(function)
    result = None if signature.return_type == types.void else ctypes.c_int64
    found: Any = ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * len(signature.args))(compiled.address)
    found.keep = compiled
    return found


@functools.cache
def compile_walk() -> Any:
    """The driver of the calling thread, one for the process."""
    return _compiled(_lead, _LEAD)


@functools.cache
def _compile_attendance() -> Any:
    """What every other thread runs."""
    return _compiled(_attend, _ATTEND)


class Team:
    """Persistent threads, one a core, that run the same rows at once.

    The calling thread is number 0. With one thread nothing is started and nothing is pinned.

    Args:
        threads: how many.
        cores: which cores to pin to, as the operating system numbers them; empty leaves it be.
    """

    def __init__(self, threads: int, cores: Sequence[int] = ()) -> None:
        self.threads = threads
        self.mail = np.zeros(threads * LINE, np.int64)
        self.mail[ASLEEP::LINE] = 1
        self.mail[POSTED] = 0  # the first line is no thread's
        self._gates = [threading.Semaphore(0) for _ in range(threads)]
        self._stopped = False
        self._cores = tuple(cores)
        self._attend = _compile_attendance() if threads > 1 else None
        self._members = [
            threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(1, threads)
        ]
        for member in self._members:
            member.start()

    def _serve(self, number: int) -> None:
        assert self._attend is not None
        if self._cores:
            os.sched_setaffinity(0, {self._cores[number % len(self._cores)]})
        while True:
            self._gates[number].acquire()
            if self._stopped:
                return
            self._attend(self.mail.ctypes.data, number, self.threads)

    def wake(self) -> None:
        """Open the gates of the threads that the leader found asleep."""
        for number in range(1, self.threads):
            if self.mail[number * LINE + WAKE]:
                self._gates[number].release()

    def close(self) -> None:
        """End the threads."""
        self._stopped = True
        for gate in self._gates:
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
        for i, (target, takes_thread, units, numbers) in enumerate(rows):
            if len(numbers) > MAX_ARITY:
                raise ValueError(f"a kernel takes at most {MAX_ARITY} arguments, found {len(numbers)}")
            table[i] = target, len(numbers), takes_thread, units, len(arguments)
            arguments.extend(numbers)
        self._walk = walk
        self._team = team
        self._count = len(rows)
        self._rows = table
        self._arguments = np.array(arguments or [0], np.int64)
        self._barrier = np.zeros(16, np.int64)
        self.ticks = np.zeros(len(rows) + 1, np.int64)
        self._tables = (self._rows.ctypes.data, self._arguments.ctypes.data)
        self._shared = (self._barrier.ctypes.data, self.ticks.ctypes.data)
        self._team_numbers = (team.mail.ctypes.data, team.threads)

    def run(self, first: int = 0, last: int | None = None) -> None:
        """Run rows first..last, half-open."""
        end = self._count if last is None else last
        rest = (*self._tables, first, end, *self._shared)
        if self._walk(*self._team_numbers, self._team.threads > 1, *rest):
            self._team.wake()
            self._walk(*self._team_numbers, 0, *rest)
