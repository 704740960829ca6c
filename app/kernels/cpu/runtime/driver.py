"""The compiled driver: walks the rows of a program, each a kernel address and its arguments.

One row is ROW int64 numbers: address, arity, units, offset of the first argument in the argument
table, shared. A kernel is called with its own number of arguments, chosen by a switch, and with the
number of the thread: the conventions of x86-64 and of 64-bit ARM let a function ignore its last
arguments, and half as many cases compile in half the time. A row of arity JUMP goes on elsewhere where an
int64 in memory, whose address is its argument, is as expected: displacement, JUMP, expected, offset of the
argument, 0.

The calling thread walks; it publishes the rows that are shared, and the other threads help. The
units of such a row are cut into one share a thread. Every thread takes its own share first and
then those that nobody has begun, so that a thread which the operating system has stopped, or
which still sleeps, delays nobody, and the same thread mostly meets the same data again. Helpers
look for work, and sleep when nothing has run for a while, in machine code: one that wakes never asks
for the GIL, which the calling thread may want back by then.

The mailbox, an array of int64, is all that the threads share. LINE numbers are one piece of it:

    SEQUENCE, ROW_AT, ARGUMENTS_AT    written by the caller alone: number and addresses of the published row
    DONE                              shares finished so far, of all rows; every thread adds to it
    RUNNING, STOPPED                  written by the caller alone
    CLAIM of each share               number of the last row of which a thread took this share
    ASLEEP of each thread             1 from before it sleeps until it is woken; its gate guards the sleep

A shared row goes through four states, and all that follows holds for any interleaving:

1. Publish. The caller writes the addresses, then SEQUENCE. Whoever reads a new SEQUENCE may read addresses
   that belong to this row or to a later one.
2. Claim. A thread owns a share of row n once it has exchanged its CLAIM, less than n, for n. So each share
   is run once, and a thread that is late, whose n is old, owns nothing, whatever addresses it has read.
3. Finish. After the last unit of its share a thread adds 1 to DONE.
4. Complete. The caller waits until DONE is threads * n. Only then does it publish row n + 1, so what a row
   wrote is seen by the next one, and the addresses of a row stay until its last share is claimed.

A helper may sleep only while RUNNING is 0: it sets ASLEEP, takes the mutex of its gate and waits while ASLEEP
is 1 and STOPPED 0. The caller sets RUNNING, then wakes those with ASLEEP, setting it back under the mutex, so
no wake-up is lost. A helper that read RUNNING before and sets ASLEEP after is missed by this run, which the
caller completes without it, and woken by the next. STOPPED is set before the last wake-up.

Helpers keep off the core of the calling thread. Operating systems do put a thread that is woken beside
the one that wakes it; there it would look, for hundreds of microseconds, for work that it keeps from
being made.
"""

import contextlib
import ctypes
import functools
import os
import platform
import threading
from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen.generator import at, outlined
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.instructions import typed
from app.kernels.cpu.codegen.machine_code import address_of
from app.kernels.cpu.codegen.pipeline import compile_callback

ROW = 5  # numbers a row
JUMP = -1  # arity of a row that goes on elsewhere
MAX_ARITY = 48  # arguments of a kernel, begin, end and thread not counted
SPINS = 4000  # before the calling thread, waiting for a helper, yields its core
# Looks of a helper for work before it sleeps while nothing runs, some 40 ns each. It never yields:
# on a busy machine a thread that does is hardly run again, one that is woken is.
IDLE = 12000

# The mailbox, int64, in pieces of LINE numbers: two cache lines, because hardware fetches pairs.
LINE = 16
SEQUENCE = 0  # number of the shared row that was published last; they are counted for ever
ROW_AT, ARGUMENTS_AT = 1, 2  # where this row and the argument table are
DONE = LINE  # shares finished so far, of all rows
RUNNING = 2 * LINE  # whether a stretch is on its way
STOPPED = 2 * LINE + 1  # whether the helpers shall end
THREADS = 3 * LINE  # from here on, a line for each thread:
ASLEEP, CLAIM = 0, 1  # sleeps or will soon; the last row whose share of this number was taken
# Behind these a gate for each thread, at which it sleeps, with room for the types of any system:
GATE = 32
MUTEX, CONDITION = 0, 16

_I64 = ll.IntType(64)


@intrinsic
def _call(_context, address, arity, arguments, offset, begin, end, thread):
    """Call the function at `address` with `arity` numbers of `arguments[offset:]`, begin, end, thread."""
    size = types.int64
    signature = types.void(size, size, types.CPointer(size), size, size, size, size)

    def write(builder, values):
        target, count, table, start, *units = values
        block = builder.gep(table, [start])
        done = builder.append_basic_block("done")
        switch = builder.switch(count, done)
        for n in range(MAX_ARITY + 1):
            case = builder.append_basic_block(f"arity{n}")
            switch.add_case(ll.Constant(_I64, n), case)
            builder.position_at_end(case)
            passed = [builder.load(builder.gep(block, [ll.Constant(_I64, i)])) for i in range(n)] + units
            prototype = ll.FunctionType(ll.VoidType(), [_I64] * len(passed))
            builder.call(builder.inttoptr(target, prototype.as_pointer()), passed)
            builder.branch(done)
        builder.position_at_end(done)
        builder.ret_void()

    return signature, outlined("call", write)


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
def _store(_context, pointer, index, value):
    """Put a value into pointer[index], after all that was written before."""

    def generate(context, builder, _signature, values):
        place = builder.gep(values[0], [values[1]])
        builder.store_atomic(values[2], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.int64), generate


@intrinsic
def _increment(_context, pointer, index):
    """Add 1 to pointer[index], after all that was written before."""

    def generate(context, builder, _signature, values):
        place = builder.gep(values[0], [values[1]])
        builder.atomic_rmw("add", place, ll.Constant(_I64, 1), "acq_rel")
        return context.get_dummy_value()

    return types.void(pointer, types.int64), generate


@intrinsic
def _exchange(_context, pointer, index, old, new):
    """Put `new` into pointer[index] if `old` is there; whether it was."""

    def generate(_context, builder, _signature, values):
        place = builder.gep(values[0], [values[1]])
        pair = builder.cmpxchg(place, values[2], values[3], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(pointer, types.int64, types.int64, types.int64), generate


@intrinsic
def _pause(_context):
    """Tell the core that this is a spinning loop."""

    def generate(context, builder, _signature, _values):
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ll.FunctionType(ll.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


def _system(name: str, arity: int) -> Any:
    """An intrinsic that calls a function of the C library with addresses."""

    def generate(context, builder, _signature, values):
        kind = ll.FunctionType(ll.IntType(32), [_I64] * arity)
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)
        return context.get_dummy_value()

    return typed(types.void(*[types.int64] * arity), generate)


_lock, _unlock, _signal = (
    _system(f"pthread_{name}", 1) for name in ("mutex_lock", "mutex_unlock", "cond_signal")
)
_wait = _system("pthread_cond_wait", 2)
_yield = _system("sched_yield", 0)  # lets another thread have the core


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
_RUN_ROWS = types.void(_POINTER)
_RUN_HELPER = types.void(_POINTER, types.int64, types.int64)
_inlined = njit(error_model="numpy", boundscheck=False)


@_inlined
def _run_share(row, arguments, share, shares, thread):
    units = row[2]
    begin = units * share // shares
    end = units * (share + 1) // shares
    if begin < end:
        _call(row[0], row[1], arguments, row[3], begin, end, thread)


@_inlined
def _take_shares(mailbox, row, arguments, number, thread, threads):
    """Run the shares of published row `number` that are left, the thread's own first.

    All of them were taken before another row can be published; one that comes late takes none.
    """
    for i in range(threads):
        share = (thread + i) % threads
        claim = THREADS + share * LINE + CLAIM
        last = _load(mailbox, claim)
        if last < number and _exchange(mailbox, claim, last, number):
            _run_share(row, arguments, share, threads, thread)
            _increment(mailbox, DONE)


@_inlined
def _gate(mailbox, thread, threads):
    return address(mailbox) + 8 * (THREADS + threads * LINE + thread * GATE)


@_inlined
def _sleep(mailbox, thread, threads):
    """Until somebody sets ASLEEP back, or STOPPED."""
    gate = _gate(mailbox, thread, threads)
    _lock(gate + 8 * MUTEX)
    while _load(mailbox, THREADS + thread * LINE + ASLEEP) and not _load(mailbox, STOPPED):
        _wait(gate + 8 * CONDITION, gate + 8 * MUTEX)
    _unlock(gate + 8 * MUTEX)


def _wake(mailbox, threads):
    """Have all threads look for work; one that goes to sleep just now is woken the next time."""
    for thread in range(1, threads):
        if _load(mailbox, THREADS + thread * LINE + ASLEEP):
            gate = _gate(mailbox, thread, threads)
            _lock(gate + 8 * MUTEX)
            _store(mailbox, THREADS + thread * LINE + ASLEEP, 0)
            _signal(gate + 8 * CONDITION)
            _unlock(gate + 8 * MUTEX)


_woken = _inlined(_wake)


def _run_leader(mailbox, threads, rows, arguments, first, last, ticks):
    """Run rows first..last as thread 0, and add what each takes to its ticks."""
    _store(mailbox, RUNNING, 1)
    _woken(mailbox, threads)
    index = first
    before = _ticks()
    while index < last:
        row = at(rows, index * ROW)
        if row[1] == JUMP:
            index += row[0] if pointer(arguments[row[3]])[0] == row[2] else 1
            continue
        if threads > 1 and row[4]:
            number = mailbox[SEQUENCE] + 1
            mailbox[ROW_AT] = address(row)
            mailbox[ARGUMENTS_AT] = address(arguments)
            _store(mailbox, SEQUENCE, number)
            _take_shares(mailbox, row, arguments, number, 0, threads)
            turn = 0
            while _load(mailbox, DONE) < number * threads:
                if turn < SPINS:
                    _pause()
                else:
                    _yield()
                turn += 1
        else:
            _run_share(row, arguments, 0, 1, 0)
        after = _ticks()
        ticks[index] += after - before
        before = after
        index += 1
    _store(mailbox, RUNNING, 0)


_led = _inlined(_run_leader)


def _run_rows(control):
    """`_run_leader` of the numbers in one array: ctypes takes a third of a microsecond for every argument."""
    mailbox, rows, arguments = pointer(control[0]), pointer(control[2]), pointer(control[3])
    _led(mailbox, control[1], rows, arguments, control[4], control[5], pointer(control[6]))


def _run_helper(mailbox, thread, threads):
    """Help with what is published; sleep when nothing ran for a while."""
    seen = 0
    turn = 0
    _sleep(mailbox, thread, threads)
    while not _load(mailbox, STOPPED):
        number = _load(mailbox, SEQUENCE)
        if number != seen:
            # Another row may be published meanwhile: nothing is left of this one then.
            row, arguments = pointer(mailbox[ROW_AT]), pointer(mailbox[ARGUMENTS_AT])
            _take_shares(mailbox, row, arguments, number, thread, threads)
            seen = number
            turn = 0
        elif turn > IDLE and not _load(mailbox, RUNNING):
            _store(mailbox, THREADS + thread * LINE + ASLEEP, 1)
            _sleep(mailbox, thread, threads)
            turn = 0
        else:
            _pause()
            turn += 1


_LEAD, _HELP, _WAKE = "stowplan_lead", "stowplan_help", "stowplan_wake"
# Functions of the driver by the symbols that the runtime of a library calls them by.
ENTRIES: dict[str, tuple[Any, Any]] = {
    _LEAD: (_RUN_ROWS, _run_rows),
    _HELP: (_RUN_HELPER, _run_helper),
    _WAKE: (types.void(_POINTER, types.int64), _wake),
}


@functools.cache
def _compiled(symbol: str) -> Any:
    """A ctypes function, one for the process. Calling it releases the GIL."""
    signature, function = ENTRIES[symbol]
    address = address_of(compile_callback(signature, function, symbol))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(signature.args))(address)


def compile_dispatch_loop() -> Any:
    """The driver of the calling thread."""
    return _compiled(_LEAD)


def _allowed() -> frozenset[int]:
    """Cores that this thread may run on; none where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


# The core that the calling thread runs on, without giving up the GIL; None where the system does not tell.
_core_of_caller = getattr(ctypes.PyDLL(None), "sched_getcpu", None) if os.name == "posix" else None


class Team:
    """Persistent threads, one a core, that run the same rows at once.

    The calling thread is number 0. With one thread nothing is started and nothing is pinned.

    Args:
        threads: how many.
        cores: which cores to pin helpers to, as the operating system numbers them. Where none are given
            they run on those that the thread which makes the team may have.
    """

    def __init__(self, threads: int, cores: Sequence[int] = ()) -> None:
        self.threads = threads
        self.mailbox = np.zeros(THREADS + threads * (LINE + GATE), np.int64)
        self.mailbox[THREADS + ASLEEP : THREADS + threads * LINE : LINE] = 1
        for gate in self.mailbox[THREADS + threads * LINE :].reshape(threads, GATE)[1:]:
            system = ctypes.CDLL(None)
            system.pthread_mutex_init(ctypes.c_void_p(gate[MUTEX:].ctypes.data), None)
            system.pthread_cond_init(ctypes.c_void_p(gate[CONDITION:].ctypes.data), None)
        self._cores = frozenset(cores) or _allowed()
        self._pins = bool(cores)
        self._led_from = -1
        self._run_helper: Any = _compiled(_HELP) if threads > 1 else None
        self._wake: Any = _compiled(_WAKE) if threads > 1 else None
        self._members = [
            threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(1, threads)
        ]
        for member in self._members:
            member.start()

    def _serve(self, number: int) -> None:
        self._run_helper(self.mailbox.ctypes.data, number, self.threads)

    def _move(self, core: int) -> None:
        """Keep the helpers off a core, and each to one of the others if they are pinned."""
        self._led_from = core
        others = sorted(self._cores - {core}, reverse=True)
        for number, member in enumerate(self._members if others else ()):
            assert member.native_id is not None
            # Where cores were taken away meanwhile, the system places threads alone.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(
                    member.native_id, {others[number % len(others)]} if self._pins else others
                )

    def make_way(self) -> None:
        """Keep the helpers off the core that the calling thread runs on now."""
        if _core_of_caller is not None:
            core = _core_of_caller()
            if core != self._led_from:
                self._move(core)

    def wake(self) -> None:
        """Wake helpers that sleep, which takes them tens of microseconds, before there is work for them."""
        if self.threads > 1:
            self.make_way()
            self._wake(self.mailbox.ctypes.data, self.threads)

    def close(self) -> None:
        """End the threads."""
        self.mailbox[STOPPED] = 1
        self.wake()
        for member in self._members:
            member.join()
