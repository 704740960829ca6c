"""Time that streams may save at most, in parts of that of a plan: whether a race can be won.

A stream keeps near the core what its groups hand on, and they save at most what a copy of these images takes
where they lie, beyond a copy that stays near. Copies are measured once for a machine.
"""

import math
import time
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np

from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.core.streams.stream_group import StreamPart
from app.engine.cost.strips import predicted
from app.engine.planning.streams.proposals import Streams, consecutive
from app.engine.runtime.cpu.memory import Array, written

SIZES = tuple(2**k for k in range(15, 27, 2))  # byte of the copies that are measured
COPIED = 2**22  # byte of one sample
REPEATS = 7  # samples
# Kernels read tiles of an image, which takes longer than a copy: streams of squeezenet saved 1.9 % of its
# time on an AMD EPYC where copies save 1.0 %.
OF_COPY = 2.5


@dataclass(frozen=True, slots=True)
class Copies:
    """Seconds that a copy takes for each byte that it reads or writes, by the bytes of what is copied."""

    seconds: Mapping[int, float]

    @classmethod
    def measured(cls, table: MutableMapping[str, float]) -> "Copies":
        """Copies of this machine: those of the timings table, which is filled in."""
        keys = {nbytes: f"copy x1 {nbytes}" for nbytes in SIZES}
        if not all(key in table for key in keys.values()):
            place = written(2 * SIZES[-1])
            for nbytes, key in keys.items():
                table[key] = _seconds_of_copy(place[:nbytes], place[nbytes : 2 * nbytes]) / (2 * nbytes)
        return cls({nbytes: table[key] for nbytes, key in keys.items()})

    def far(self, nbytes: int) -> float:
        """Seconds that writing and reading an image take beyond those of one that stays near."""
        sizes = sorted(self.seconds)
        # A byte of fewer takes no longer: what was measured to is the load of the machine.
        known = [min(self.seconds[other] for other in sizes[at:]) for at in range(len(sizes))]
        each = np.interp(math.log(max(nbytes, 1)), [math.log(size) for size in sizes], known)
        return 2 * nbytes * float(each - known[0])


class Prospects:
    """Shares of the time of a plan without streams that streams may save at most."""

    def __init__(self, program: Program, copies: Copies) -> None:
        self._seconds = program.seconds
        self._machine = program.compilation.target, program.compilation.options.threads
        self._runs = consecutive(program)
        self._parts = {part.group.name: part for run in self._runs for part in run}
        readers: dict[str, set[str]] = {v.name or "": {""} for v in program.compilation.graph.outputs}
        for step in program.steps:
            for value in step.group.inputs:
                readers.setdefault(value.name or "", set()).add(step.group.name)
        self._readers, self._copies = readers, copies

    def best(self) -> float:
        """Share that no streams exceed, of any groups and strips."""
        return self._share(sum(self._saved(part.group.name for part in run) for run in self._runs))

    def of(self, streams: Streams) -> float:
        """Share that some streams save at most; what their strips are predicted to take longer is counted."""
        taken = 0.0
        for stream in streams:
            taken -= self._saved(stream.groups)
            for name, rows in zip(stream.groups, stream.rows, strict=True):
                part = self._parts[name]
                taken += predicted(part, _calls(part, rows), *self._machine) - part.choice.seconds
        return self._share(-taken)

    def _share(self, seconds: float) -> float:
        return seconds / self._seconds if self._seconds else 0.0

    def _saved(self, names: Iterable[str]) -> float:
        """Seconds that groups save at most whose images nothing else reads."""
        members = set(names)
        images = (v for name in members for v in self._parts[name].group.outputs)
        inner = (v for v in images if self._readers.get(v.name or "", {""}) <= members)
        return OF_COPY * sum(self._copies.far(graph.nbytes(v)) for v in inner)


def _calls(part: StreamPart, rows: int) -> int:
    """Strips of so many rows of what a group makes."""
    return -(-part.strips.lines(part.group)[0] // rows)


def _seconds_of_copy(source: Array, to: Array) -> float:
    """Least seconds of a copy; other load on the machine does not count."""
    times, best = max(COPIED // source.nbytes, 1), math.inf
    for _ in range(REPEATS):
        started = time.thread_time()
        for _ in range(times):
            np.copyto(to, source)
        best = min(best, (time.thread_time() - started) / times)
    return best
