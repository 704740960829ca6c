"""Runs kernels in plain Python: every CUDA thread is a greenlet, every primitive has a Python twin.

Stricter than a GPU, so that what would only sometimes go wrong there is an error here:
indexes outside a buffer and misaligned vectors are refused; shared memory starts as NaN;
asynchronous copies land when they are waited for, not before; threads run in an order that `seed`
shuffles between barriers, blocks too; a barrier that only some threads reach is reported; and a
thread that touches shared memory which another one wrote or read without a barrier between is a race
(looked for in the block of each launch that runs first; in global memory that several roles share, between all blocks).
A simulation keeps all its state in itself: any number run in one process, one per OS thread at a time.
"""

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType
from typing import Any, TypeAlias

import numpy as np
from greenlet import getcurrent, greenlet

from app.kernels.cuda.kernel import Launch, Launches, Ref

POISON = 0xFF  # of bytes: NaN in float32, bfloat16 and float16
# Who waits together: a warp by its number, the block, warpgroups from the last number downwards.
BLOCK, WARPGROUPS = -1, -2
WORD = 4  # bytes of shared memory that races are looked for in

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

    __slots__ = ("array", "dtype", "end", "floating", "length", "memory", "size", "start")

    def __init__(self, memory: "Memory", start: int, dtype: Any) -> None:
        self.memory, self.start = memory, start
        kind = np.dtype(dtype)
        self.size, self.floating = kind.itemsize, kind.kind == "f"
        if start % self.size:
            raise SimulationError(f"'{memory.name}': {self.size}-byte elements at byte {start}")
        self.end = start + (len(memory.bytes) - start) // self.size * self.size
        self.array = memory.bytes[start : self.end].view(kind)
        self.dtype = dtype
        self.length = len(self.array)

    def _check(self, index: int, count: int) -> int:
        i = int(index)
        if not 0 <= i <= self.length - count:
            raise SimulationError(
                f"'{self.memory.name}': elements {i} to {i + count} of {self.length} are outside"
            )
        return i

    def __getitem__(self, index: int) -> Any:
        i = self._check(index, 1)
        if self.memory.record is not None:
            self.memory.reads(self.start + i * self.size, self.size)
        return self.array[i] if self.floating else self.array.item(i)

    def __setitem__(self, index: int, value: Any) -> None:
        i = self._check(index, 1)
        if self.memory.record is not None:
            self.memory.writes(self.start + i * self.size, self.size)
        self.array[i] = value

    def advance(self, count: int) -> "Pointer":
        return self.memory.pointer(self.start + int(count) * self.size, self.dtype)

    def _at(self, index: int, nbytes: int, write: bool) -> int:
        """The byte at which `nbytes` at an element begin, aligned to so many."""
        at = self.start + int(index) * self.size
        if at < self.start or at + nbytes > self.end:
            self._check(index, max(1, nbytes // self.size))
        if at % nbytes:
            raise SimulationError(f"'{self.memory.name}': {nbytes} bytes at byte {at}, which is not aligned")
        if self.memory.record is not None:
            (self.memory.writes if write else self.memory.reads)(at, nbytes)
        return at

    def vector(self, index: int, nbytes: int, *, write: bool = False) -> np.ndarray:
        """`nbytes` at an element, as bytes."""
        at = self._at(index, nbytes, write)
        return self.memory.bytes[at : at + nbytes]

    def words(self, index: int, count: int, *, floating: bool, write: bool = False) -> np.ndarray:
        """`count` words of 4 bytes at an element, as float32 or uint32."""
        first = self._at(index, 4 * count, write) // 4
        return (self.memory.floats if floating else self.memory.words)[first : first + count]


# Who touched a byte: its block, how many barriers that had passed, its warp and the barriers of that, its
# lane; -1 stands for several.
Stamp: TypeAlias = tuple[int, int, int, int, int]


class Record:
    """Who touched what of a memory, `grain` bytes at a time: the last write, and the reads since.

    Accesses of less than a grain are not looked at: parts of it may be several threads'.
    """

    def __init__(self, grain: int) -> None:
        self.grain = grain
        self.written: dict[int, Stamp] = {}
        self.read: dict[int, Stamp] = {}

    def reads(self, name: str, at: int, nbytes: int) -> None:
        if nbytes < self.grain:
            return
        me, written, read = getcurrent().stamp(), self.written, self.read
        for unit in range(at // self.grain, -(-(at + nbytes) // self.grain)):
            other = written.get(unit)
            if other is not None and other is not me and _unordered(me, other):
                _race(name, "reads", me, "wrote", other)
            last = read.get(unit)
            # Of several readers keep one that no later writer can be equal to.
            if last is None or not _unordered(me, last):
                read[unit] = me
            elif last is not me and not _among(me, last):
                read[unit] = _several(me, last)

    def writes(self, name: str, at: int, nbytes: int) -> None:
        if nbytes < self.grain:
            return
        me, written, read = getcurrent().stamp(), self.written, self.read
        for unit in range(at // self.grain, -(-(at + nbytes) // self.grain)):
            other = written.get(unit)
            if other is not None and other is not me and _unordered(me, other):
                _race(name, "writes", me, "wrote", other)
            other = read.get(unit)
            if other is not None and other is not me and _unordered(me, other):
                _race(name, "writes", me, "read", other)
            written[unit] = me


def _unordered(me: Stamp, other: Stamp) -> bool:
    """Whether no barrier stands between two accesses: neither the launch's, the block's nor the warp's."""
    if me[0] != other[0]:
        return True
    if me[1] != other[1]:
        return False
    return me[2] != other[2] or (me[3] == other[3] and me[4] != other[4])


def _among(me: Stamp, several: Stamp) -> bool:
    """Whether a stamp of several readers, unordered with mine, stands for mine too."""
    return several[4] == -1 and several[2] in (-1, me[2]) and several[0] in (-1, me[0])


def _several(a: Stamp, b: Stamp) -> Stamp:
    return a[0] if a[0] == b[0] else -1, a[1], a[2] if a[2] == b[2] else -1, a[3], -1


def _race(name: str, verb: str, me: Stamp, other_verb: str, other: Stamp) -> None:
    raise SimulationError(
        f"race in {name}: block {me[0]} warp {me[2]} lane {me[4]} {verb} what block {other[0]} warp {other[2]} "
        f"lane {other[4]} {other_verb} with no barrier between (-1: several)"
    )


class Memory:
    """One buffer: a global one, or the shared memory of one block; with a record, or None.

    `base` is where it begins in what the record is of.
    """

    def __init__(
        self,
        name: str,
        content: np.ndarray,
        *,
        shared: bool = False,
        record: Record | None = None,
        base: int = 0,
    ) -> None:
        self.name, self.bytes, self.shared, self.record, self.base = name, content, shared, record, base
        whole = content[: len(content) // WORD * WORD]
        self.words, self.floats = whole.view(np.uint32), whole.view(np.float32)
        self._pointers: dict[tuple[int, Any], Pointer] = {}
        # Shared bytes that were copied, and not fenced by the thread that did.
        self.unfenced = np.zeros(len(content) if shared else 0, bool)

    def pointer(self, start: int, dtype: Any) -> Pointer:
        """Made once: kernels ask for the same ones over and over."""
        found = self._pointers.get((start, dtype))
        if found is None:
            found = self._pointers[start, dtype] = Pointer(self, start, dtype)
        return found

    def reads(self, at: int, nbytes: int) -> None:
        if self.record is not None:
            self.record.reads(self.name, self.base + at, nbytes)

    def writes(self, at: int, nbytes: int) -> None:
        if self.record is not None:
            self.record.writes(self.name, self.base + at, nbytes)


# An asynchronous copy under way: memory, byte and bytes that it goes to; memory, byte and number of bytes
# that it comes from.
Copy: TypeAlias = tuple[Memory, int, np.ndarray, Memory, int, int]


class Block:
    """What the threads of one block share."""

    def __init__(self, number: int, threads: int, shared_bytes: int) -> None:
        self.number, self.epoch = number, 0
        self.warps = [0] * -(-threads // 32)
        content = np.full(shared_bytes, POISON, np.uint8)
        record = None if number else Record(WORD)  # of the first block: the others do the same
        self.shared = Memory("shared memory", content, shared=True, record=record)


class Thread(greenlet):
    """One CUDA thread."""

    def __init__(
        self, run: Callable[[], None], parent: Any, block: Block, number: int, position: Any, grid: Any
    ) -> None:
        greenlet.__init__(self, run, parent)
        self.gr_context = parent.gr_context  # where NumPy keeps that it need not warn
        self.block, self.number, self.lane, self.warp = block, number, number % 32, number // 32
        self.position, self.grid = position, grid
        self._stamp: Stamp | None = None  # since the last barrier
        self.copies: list[Copy] = []  # of the group that is being collected
        self.groups: deque[list[Copy]] = deque()
        self.landed: list[slice] = []  # copies since the last fence
        self.multiplying: deque[Callable[[], None]] = deque()  # products of the warpgroup under way

    def stamp(self) -> Stamp:
        if self._stamp is None:
            block = self.block
            self._stamp = block.number, block.epoch, self.warp, block.warps[self.warp], self.lane
        return self._stamp

    def together(self, name: str, value: Any, combine: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Give a value, wait for the whole warp, take this lane's part of what `combine` makes of all."""
        self._stamp = None
        return self.parent.switch((self.warp, name, value, combine))

    def warpgroup(self, name: str, value: Any, combine: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """The same with four warps, which this is no barrier for."""
        return self.parent.switch((WARPGROUPS - self.warp // 4, name, value, combine))

    def sync(self) -> None:
        self._stamp = None
        self.parent.switch((BLOCK, "sync", None, None))


def _told(key: int) -> str:
    """Name of those that wait together."""
    if key == BLOCK:
        return "block"
    return f"warp {key}" if key >= 0 else f"warpgroup {WARPGROUPS - key}"


def _run_block(
    function: Callable[[], None], launch: Launch, number: int, position: Any, order: np.random.Generator
) -> None:
    threads = launch.kernel.threads
    block = Block(number, threads, launch.kernel.shared_bytes)
    me = getcurrent()
    everyone = [Thread(function, me, block, i, position, launch.grid) for i in range(threads)]
    ready: list[tuple[Thread, tuple[Any, ...]]] = [(thread, ()) for thread in everyone]
    suspended: dict[int, list[tuple[Thread, str, Any, Any]]] = {}
    live = threads
    while ready:
        batch, ready = ready, []
        for i in order.permutation(len(batch)).tolist():
            thread, given = batch[i]
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
                waiting = suspended.setdefault(key, [])
                waiting.append((thread, name, value, combine))
                if key != BLOCK and len(waiting) == (min(32, threads - 32 * key) if key >= 0 else 128):
                    del suspended[key]
                    if len({entry[1] for entry in waiting}) != 1:
                        raise SimulationError(
                            f"{_told(key)} diverges: its lanes wait at {sorted({entry[1] for entry in waiting})}"
                        )
                    waiting.sort(key=lambda entry: entry[0].number)
                    if key >= 0:
                        block.warps[key] += 1
                    results = combine([entry[2] for entry in waiting])
                    ready += [(entry[0], (result,)) for entry, result in zip(waiting, results, strict=True)]
            if BLOCK in suspended and len(suspended[BLOCK]) == live:
                block.epoch += 1
                ready += [(entry[0], (None,)) for entry in suspended.pop(BLOCK)]
    if suspended:
        where = {
            _told(key): [(entry[1], entry[0].number) for entry in waiting][:8]
            for key, waiting in suspended.items()
        }
        for waiting in suspended.values():
            for entry in waiting:
                entry[0].throw()
        raise SimulationError(
            f"deadlock in kernel '{launch.kernel.name}', block {tuple(position)}: threads wait at {where}"
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which so many greenlets would send through the whole process."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@cache
def _code(source: str, name: str) -> CodeType:
    return compile(source, f"<{name}>", "exec")


# Given (steps, arrays, workspace), launches them elsewhere if it can: see `gpu.py`.
Elsewhere: TypeAlias = Callable[[Sequence[Launch], Mapping[str, np.ndarray], int], bool]
_elsewhere: list[Elsewhere] = []


def launch_elsewhere(launch: Elsewhere) -> None:
    """From now on `simulate` gives launches to a function first, and returns if it has launched them."""
    _elsewhere.append(launch)


def simulate(
    launches: Launch | Launches | Sequence[Launch],
    arrays: Mapping[str, np.ndarray],
    seed: int = 0,
    *,
    watched: bool = True,
) -> None:
    """Run launches in order on arrays by role, which are written in place.

    Arrays are C-contiguous; their element types need not be the kernel's. A role "workspace" that is
    not given is made, full of NaN. Where two roles begin at the same byte, races are looked for in that memory
    too, unless it is not `watched`: a thread that touches what one of another block, or one without a barrier
    between, wrote in the same launch, or writes what it read. Atomic additions do not count.
    """
    from tests.kernels.cuda.twins import NAMES

    order = np.random.default_rng(seed)
    steps = (launches,) if isinstance(launches, Launch) else tuple(launches)
    workspace = launches.workspace if isinstance(launches, Launches) else 0
    if any(launch(steps, arrays, workspace) for launch in _elsewhere):
        return
    memories = {}
    for role, array in arrays.items():
        if not array.flags.c_contiguous:
            raise SimulationError(f"array '{role}' is not contiguous")
        content = array.reshape(-1).view(np.uint8)
        memories[role] = Memory(role, content, base=content.__array_interface__["data"][0])
    if workspace and "workspace" not in memories:
        memories["workspace"] = Memory("workspace", np.full(workspace, POISON, np.uint8))
    begins = Counter(memory.base for memory in memories.values())
    for launch in steps:
        kernel = launch.kernel
        if watched:
            record = Record(min(DTYPES[k[:-1]]().itemsize for k in kernel.signature if k.endswith("*")))
            for memory in memories.values():
                memory.record = record if begins[memory.base] > 1 else None
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
        with _uncollected(), np.errstate(all="ignore"):
            for i, position in enumerate(positions):
                _run_block(body, launch, i, position, order)
