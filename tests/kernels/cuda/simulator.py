"""Runs kernels in plain Python: every CUDA thread is a greenlet, every primitive has a Python twin.

Stricter than a GPU, so that what would only sometimes go wrong there is an error here:
indexes outside a buffer and misaligned vectors are refused; shared memory starts as NaN;
asynchronous copies land when they are waited for, not before; threads run in an order that `seed`
shuffles between barriers, blocks too; a barrier that only some threads reach is reported; and a
thread that touches shared memory which another one wrote or read without a barrier between is a race
(looked for in the block of each launch that runs first).
A simulation keeps all its state in itself: any number run in one process, one per OS thread at a time.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import CodeType
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from app.kernels.cuda.kernel import Launch, Launches, Ref

POISON = 0xFF  # of bytes: NaN in float32, bfloat16 and float16

DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.uint8,
}


class SimulationError(AssertionError):
    """What a kernel does that a GPU would not forgive."""


class Pointer:
    """A typed address in `memory` (bytes), `start` bytes into it."""

    __slots__ = ("array", "end", "floating", "memory", "size", "start")

    def __init__(self, memory: "Memory", start: int, dtype: Any) -> None:
        self.memory, self.start = memory, start
        kind = np.dtype(dtype)
        self.size, self.floating = kind.itemsize, kind.kind == "f"
        if start % self.size:
            raise SimulationError(f"'{memory.name}': {self.size}-byte elements at byte {start}")
        self.end = start + (len(memory.bytes) - start) // self.size * self.size
        self.array = memory.bytes[start : self.end].view(kind)

    def _check(self, index: int, count: int) -> int:
        i = int(index)
        if not 0 <= i <= len(self.array) - count:
            raise SimulationError(
                f"'{self.memory.name}': elements {i} to {i + count} of {len(self.array)} are outside"
            )
        return i

    def __getitem__(self, index: int) -> Any:
        i = self._check(index, 1)
        if self.memory.watched:
            self.memory.reads(self.start + i * self.size, self.size)
        value = self.array[i]
        return value if self.floating else int(value)

    def __setitem__(self, index: int, value: Any) -> None:
        i = self._check(index, 1)
        if self.memory.watched:
            self.memory.writes(self.start + i * self.size, self.size)
        self.array[i] = value

    def vector(self, index: int, nbytes: int, *, write: bool = False) -> np.ndarray:
        """`nbytes` at an element, as bytes, aligned to so many."""
        at = self.start + int(index) * self.size
        if at < self.start or at + nbytes > self.end:
            self._check(index, max(1, nbytes // self.size))
        if at % nbytes:
            raise SimulationError(f"'{self.memory.name}': {nbytes} bytes at byte {at}, which is not aligned")
        if self.memory.watched:
            (self.memory.writes if write else self.memory.reads)(at, nbytes)
        return self.memory.bytes[at : at + nbytes]


class Memory:
    """One buffer: a global one, or the shared memory of one block with a record of who touched what."""

    def __init__(
        self, name: str, content: np.ndarray, *, shared: bool = False, watched: bool = False
    ) -> None:
        self.name, self.bytes, self.shared, self.watched = name, content, shared, watched
        if watched:  # per 4-byte word: (block epoch, warp, warp epoch, lane) of the last write and reads
            self.written: dict[int, tuple[int, int, int, int]] = {}
            self.read: dict[int, tuple[int, int, int, int]] = {}

    def reads(self, at: int, nbytes: int) -> None:
        if nbytes < 4:
            return  # parts of a word may be several threads'
        me = getcurrent().stamp()
        epoch, written, read = me[0], self.written, self.read
        for word in range(at >> 2, (at + nbytes + 3) >> 2):
            other = written.get(word)
            if other is not None and other[0] == epoch and _unordered(me, other):
                self._race("reads", at, me, "wrote", other)
            last = read.get(word)
            # Of several readers since the last barrier keep one that no later writer can be equal to.
            if last is None or last[0] != epoch or last == me:
                read[word] = me
            else:
                read[word] = (epoch, -1 if last[1] != me[1] else me[1], me[2], -1)

    def writes(self, at: int, nbytes: int) -> None:
        if nbytes < 4:
            return
        me = getcurrent().stamp()
        epoch, written, read = me[0], self.written, self.read
        for word in range(at >> 2, (at + nbytes + 3) >> 2):
            other = written.get(word)
            if other is not None and other[0] == epoch and _unordered(me, other):
                self._race("writes", at, me, "wrote", other)
            other = read.get(word)
            if other is not None and other[0] == epoch and _unordered(me, other):
                self._race("writes", at, me, "read", other)
            written[word] = me

    def _race(self, verb: str, at: int, me: Any, other_verb: str, other: Any) -> None:
        raise SimulationError(
            f"race in shared memory: warp {me[1]} lane {me[3]} {verb} byte {at}, which warp {other[1]} lane "
            f"{other[3]} {other_verb} with no barrier between (-1: several)"
        )


def _unordered(me: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    """Whether no barrier stands between two accesses, neither of the block nor of the common warp."""
    if me[0] != other[0]:
        return False
    if me[1] != other[1]:
        return True
    return me[2] == other[2] and me[3] != other[3]


class Block:
    """What the threads of one block share."""

    def __init__(self, threads: int, shared_bytes: int, watched: bool) -> None:
        self.epoch = 0
        self.pointers: dict[tuple[str, int], Pointer] = {}  # to shared memory, by type and byte
        self.warps = [0] * -(-threads // 32)
        content = np.full(shared_bytes, POISON, np.uint8)
        self.shared = Memory("shared memory", content, shared=True, watched=watched)


class Thread(greenlet):
    """One CUDA thread."""

    def __init__(
        self, run: Callable[[], None], parent: Any, block: Block, number: int, position: Any, grid: Any
    ) -> None:
        greenlet.__init__(self, run, parent)
        self.gr_context = parent.gr_context  # where NumPy keeps that it need not warn
        self.block, self.number, self.lane, self.warp = block, number, number % 32, number // 32
        self.position, self.grid = position, grid
        self.copies: list[Callable[[], None]] = []  # of the group that is being collected
        self.groups: deque[list[Callable[[], None]]] = deque()

    def stamp(self) -> tuple[int, int, int, int]:
        return self.block.epoch, self.warp, self.block.warps[self.warp], self.lane

    def together(self, name: str, value: Any, combine: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Give a value, wait for the whole warp, take this lane's part of what `combine` makes of all."""
        return self.parent.switch((self.warp, name, value, combine))

    def sync(self) -> None:
        self.parent.switch((-1, "sync", None, None))


def _run_block(
    function: Callable[[], None], launch: Launch, position: Any, order: random.Random, watched: bool
) -> None:
    threads = launch.kernel.threads
    block = Block(threads, launch.kernel.shared_bytes, watched)
    me = getcurrent()
    everyone = [Thread(function, me, block, i, position, launch.grid) for i in range(threads)]
    ready: list[tuple[Thread, tuple[Any, ...]]] = [(thread, ()) for thread in everyone]
    parked: dict[int, list[tuple[Thread, str, Any, Any]]] = {}
    live = threads
    while ready:
        order.shuffle(ready)
        batch, ready = ready, []
        for thread, given in batch:
            try:
                request = thread.switch(*given)
            except Exception as error:
                error.add_note(
                    f"kernel '{launch.kernel.name}', block {tuple(position)}, thread {thread.number}"
                )
                raise
            if thread.dead:
                live -= 1
            else:
                key, name, value, combine = request
                parked.setdefault(key, []).append((thread, name, value, combine))
                if key >= 0 and len(parked[key]) == min(32, threads - 32 * key):
                    waiting = parked.pop(key)
                    if len({entry[1] for entry in waiting}) != 1:
                        raise SimulationError(
                            f"warp {key} diverges: its lanes wait at {sorted({entry[1] for entry in waiting})}"
                        )
                    waiting.sort(key=lambda entry: entry[0].lane)
                    block.warps[key] += 1
                    results = combine([entry[2] for entry in waiting])
                    ready += [(entry[0], (result,)) for entry, result in zip(waiting, results, strict=True)]
            if -1 in parked and len(parked[-1]) == live:
                block.epoch += 1
                ready += [(entry[0], (None,)) for entry in parked.pop(-1)]
    if parked:
        where = {
            ("block" if key < 0 else f"warp {key}"): [(entry[1], entry[0].number) for entry in waiting][:8]
            for key, waiting in parked.items()
        }
        for waiting in parked.values():
            for entry in waiting:
                entry[0].throw()
        raise SimulationError(
            f"deadlock in kernel '{launch.kernel.name}', block {tuple(position)}: threads wait at {where}"
        )


@cache
def _code(source: str, name: str) -> CodeType:
    return compile(source, f"<{name}>", "exec")


def simulate(
    launches: Launch | Launches | Sequence[Launch], arrays: Mapping[str, np.ndarray], seed: int = 0
) -> None:
    """Run launches in order on arrays by role, which are written in place.

    Arrays are C-contiguous; their element types need not be the kernel's. A role "workspace" that is
    not given is made, full of NaN.
    """
    from tests.kernels.cuda.twins import NAMES

    order = random.Random(seed)
    steps = (launches,) if isinstance(launches, Launch) else tuple(launches)
    memories = {}
    for role, array in arrays.items():
        if not array.flags.c_contiguous:
            raise SimulationError(f"array '{role}' is not contiguous")
        memories[role] = Memory(role, array.reshape(-1).view(np.uint8))
    if isinstance(launches, Launches) and launches.workspace and "workspace" not in memories:
        memories["workspace"] = Memory("workspace", np.full(launches.workspace, POISON, np.uint8))
    for launch in steps:
        kernel = launch.kernel
        namespace: dict[str, Any] = dict(NAMES)
        exec(_code(kernel.source, kernel.name), namespace)
        arguments = []
        for kind, argument in zip(kernel.signature, launch.arguments, strict=True):
            if isinstance(argument, Ref):
                arguments.append(Pointer(memories[argument.role], argument.offset, DTYPES[kind[:-1]]))
            else:
                arguments.append(NAMES[kind](argument))
        x, y, z = launch.grid
        positions = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        order.shuffle(positions)

        body = partial(namespace["kernel"], *arguments)
        with np.errstate(all="ignore"):
            for i, position in enumerate(positions):
                _run_block(body, launch, position, order, watched=i == 0)
