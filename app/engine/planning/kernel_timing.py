"""Seconds of kernel calls, run alone on memory of the right shapes."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.registry import PlanningContext
from app.engine.runtime.cpu.memory import ALIGNMENT, aligned
from app.engine.types.layout import Layout, plain
from app.engine.types.sparse_array import SparseArray
from app.engine.types.storage import SparseFormat, most_entries
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import Team, compile_dispatch_loop
from app.kernels.cpu.runtime.kernel_sequence import KernelRow, KernelSequence

Array = np.ndarray[Any, Any]

REPEATS = 5  # samples of each implementation
CLOSE = 1.15  # times the best seconds of a group, up to which an implementation is sampled further
MORE = 6  # samples of those that are this close
SAMPLE = 1e-3  # s of one sample, filled with as many runs as it takes
# Seconds of kernels that follow one another without Python, which takes a microsecond to start them: more
# than a small kernel lasts.
RUN = 2e-5
# In a run of a model its other constants pass through the caches before a kernel meets its own again. So
# runs of a sample take turns with copies of its constants, as large together as the other constants:
AROUND = (
    64 * 2**20
)  # byte at most. Few last caches still have the first then: one of 32 MiB has most of 34 MB
COPIES = 64  # at most: smaller constants hardly matter


def constant_arrays(calls: Sequence[KernelCall]) -> list[Array]:
    """Constants of the arguments, in order: one for each time that it is passed."""
    return [np.ascontiguousarray(a.array) for c in calls for a in c.arguments if isinstance(a, Constant)]


def least(samplers: Sequence[Callable[[], float]]) -> list[float]:
    """The least of several samples of each, taken in turn: other load on the machine hits all alike."""
    best = [float("inf")] * len(samplers)
    for turn in range(REPEATS + MORE):
        # Those that lost by far are left.
        close = [i for i, s in enumerate(best) if turn < REPEATS or s <= CLOSE * min(best)]
        if turn >= REPEATS and len(close) < 2:
            break
        for i in close:
            best[i] = min(best[i], samplers[i]())
    return best


class Places:
    """Memory that is taken again and again: to get its pages takes as long as to fill them."""

    def __init__(self) -> None:
        self._free: list[Array] = []
        self._taken: list[Array] = []

    def take(self, nbytes: int) -> Array:
        """Bytes as of `aligned`, which hold anything, until `free`."""
        large = [place for place in self._free if place.nbytes >= nbytes]
        if large:
            found = min(large, key=len)
        else:
            self._free = sorted(self._free, key=len)[:-1]  # makes room for the larger one
            found = aligned(nbytes)
        self._free = [place for place in self._free if place is not found]
        self._taken.append(found)
        return found[:nbytes]

    def free(self) -> None:
        """Let everything that was taken be taken again."""
        self._free += self._taken
        self._taken = []


class Operands:
    """Memory for the arguments of calls, which lives as long as this object; constants lie in `places`."""

    def __init__(
        self,
        layouts: Mapping[ir.Value, Layout],
        threads: int,
        formats: Mapping[ir.Value, SparseFormat],
        places: Places,
    ) -> None:
        self._layouts = layouts
        self._threads = threads
        self._formats = formats
        self._places = places
        self._random = np.random.default_rng(0)
        self._drawn = self._random.uniform(0.5, 1.0, 4096)
        self._kept: list[Array] = []
        self._addresses: dict[object, int] = {}  # by value, or identity of a workspace

    def copies(self, arrays: Sequence[Array], count: int) -> list[list[int]]:
        """Addresses of so many copies of arrays; one after another on cache lines, as a program has them."""
        starts = [0, *itertools.accumulate(-(-a.nbytes // ALIGNMENT) * ALIGNMENT for a in arrays)]
        place = self._places.take(count * starts[-1])
        rows = place.reshape(count, starts[-1])
        for start, array in zip(starts, arrays):
            rows[:, start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        first = int(place.ctypes.data)
        return [[first + starts[-1] * i + start for start in starts[:-1]] for i in range(count)]

    def arguments(self, call: KernelCall, constants: Iterator[int]) -> tuple[int, ...]:
        """Arguments of a call as the driver takes them; its constants lie at the next of these addresses."""
        return tuple(next(constants) if isinstance(a, Constant) else self._address(a) for a in call.arguments)

    def _address(self, argument: object) -> int:
        if isinstance(argument, int):
            return argument
        key = id(argument) if isinstance(argument, Workspace) else argument
        if key not in self._addresses:
            self._addresses[key] = self._held(self._array(argument))
        return self._addresses[key]

    def _array(self, argument: object) -> Array:
        if isinstance(argument, Workspace):
            copies = self._threads if argument.per_thread else 1
            return np.zeros(argument.nbytes * copies, np.uint8)
        assert isinstance(argument, ir.Value)
        fixed, shape = graph.constant(argument), graph.static_shape(argument)
        if fixed is not None:
            return fixed
        if argument in self._formats:
            return self._filled(self._formats[argument], shape, graph.element_type(argument))
        size = self._layouts.get(argument, plain(len(shape))).elements(shape)
        return np.resize(self._elements(graph.element_type(argument)), size)

    def _elements(self, kind: np.dtype[Any]) -> Array:
        """Some elements of a type: any integers of 8 bits, other numbers between a half and one."""
        if kind.kind in "iu" and kind.itemsize == 1:
            return self._random.integers(0, 256, self._drawn.size).astype(np.uint8).view(kind)
        return self._drawn.astype(kind)

    def _filled(self, form: SparseFormat, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """A sparse value that stores as much as it may, at places that are drawn."""
        entries = form.capacity * (form.columns if form.kind == "row_sparse" else 1)
        values, heads = np.resize(self._drawn.astype(kind), entries), None
        most = most_entries(form.kind, shape)
        places = np.sort(self._random.choice(most, form.capacity, replace=False, shuffle=False))
        if form.kind == "csr":
            rows, places = np.divmod(places, form.columns)
            heads = np.searchsorted(rows, np.arange(form.rows + 1))
        buffer = np.zeros(form.nbytes, np.uint8)
        SparseArray(form.kind, shape, values, places, heads).write(buffer, form)
        return buffer

    def _held(self, array: Array) -> int:
        place = aligned(array.nbytes)
        place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._kept.append(place)
        return int(place.ctypes.data)


def sampler(
    calls: Sequence[KernelCall],
    operands: "Operands",
    context: PlanningContext,
    compiler: Compiler,
    team: Team,
    around: int = 0,
) -> Callable[[], float]:
    """A function that measures the seconds of calls, alone: the mean of a sample of runs.

    Operands are in cache, but for constants where so many bytes `around` them are used between.
    """
    arrays = constant_arrays(calls)
    own = sum(a.nbytes for a in arrays)
    kernels = [compiler.compile(c.kernel, c.types, c.static, takes_thread=c.takes_thread) for c in calls]
    copies = []
    for addresses in operands.copies(arrays, min((around + own // 2) // own, COPIES) + 1 if own else 1):
        constants = iter(addresses)
        pairs = zip(kernels, calls, strict=True)
        copies.append([KernelRow(k.address, c.units, operands.arguments(c, constants)) for k, c in pairs])
    # The time of this thread alone, where it does all the work: other load does not count.
    clock = time.thread_time if context.threads == 1 else time.perf_counter

    def prepared(repeats: int) -> tuple[list[KernelSequence], float]:
        """Sequences of so many repeats for every copy of the constants, and the seconds of the last."""
        sequences = [KernelSequence(compile_dispatch_loop(), copy * repeats, team) for copy in copies]
        for sequence in (sequences[0], sequences[-1]):
            started = clock()
            sequence.run()
            once = clock() - started
        return sequences, max(once, 1e-7)

    sequences, once = prepared(1)
    repeats = max(int(RUN / once), 1)
    if repeats > 1:
        sequences, once = prepared(repeats)
    return _Sampler(operands, sequences, max(int(SAMPLE / once), 1), repeats, clock)


class _Sampler:
    """Mean seconds of calls over a sample of runs; holds the operands that the calls point at."""

    def __init__(
        self,
        operands: Operands,
        sequences: Sequence[KernelSequence],
        times: int,
        repeats: int,
        clock: Callable[[], float],
    ) -> None:
        self._operands = operands
        self._turns = itertools.cycle(sequences)
        self._times, self._repeats, self._clock = times, repeats, clock

    def __call__(self) -> float:
        started = self._clock()
        for _ in range(self._times):
            next(self._turns).run()
        return (self._clock() - started) / (self._times * self._repeats)
