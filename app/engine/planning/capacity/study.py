"""Programs and measured runs of one model, for as many instances, threads and requests as are looked at."""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.engine.planning.capacity import load
from app.engine.planning.capacity.configuration import Configuration, cores_of
from app.engine.planning.capacity.http import HttpCosts
from app.engine.planning.capacity.queueing import RunTimes, Seconds, arrivals
from app.engine.planning.capacity.run_times import Run
from app.engine.planning.heartbeat import resident_bytes, trim

RUN_SECONDS = 0.2  # of runs back to back
LOAD_SECONDS = 0.8  # of a load
LOAD = 0.75  # share of runs back to back that come in a load
MIN_REQUESTS = 40  # of a load
Shapes = Mapping[str, tuple[int, ...]]


class Runnable(load.Runnable, Protocol):
    """A program that tells its memory."""

    @property
    def own_bytes(self) -> int:
        """Bytes of its arena, inputs and outputs; weights, which instances share, are no part of it."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of its arena, which other programs of the instance use too."""

    def close(self) -> None:
        """Give its threads back."""


class Model(Protocol):
    """A model with programs of one number of threads, see `app.engine.entry.served_model.ServedModel`."""

    def programs(self, shapes: Shapes, cores: Sequence[Sequence[int]]) -> Sequence[Runnable]:
        """Instances of the program for inputs of these shapes, each on cores of its own."""

    def rows_of_outputs(self, shapes: Shapes, count: int) -> frozenset[str]:
        """Outputs in which so many requests lie one by one; an error where they cannot be together."""


@dataclass(slots=True)
class Study:
    """What was planned and measured so far.

    Attributes:
        model: the model, by threads of a program.
        shapes: of the inputs of one request.
        inputs: of one request, of its program.
        instances: most instances, by threads.
        end: moment, by the monotonic clock, after which nothing more is measured.
        packed: bytes of the packed weights, so far.
        planned: programs of all instances by threads and requests of a run.
        samples: measured seconds under load.
        slowed: time of a run of one request under load over that back to back, by instances and threads.
        costs: processor time of a request over HTTP; None where there is none.
        outside: seconds of requests outside of the process of the model, by instances and threads.
    """

    model: Callable[[int], Model]
    shapes: Shapes
    inputs: Callable[[Runnable], Mapping[str, object]]
    instances: Mapping[int, int]
    end: float
    packed: Callable[[], int] = lambda: 0
    planned: dict[tuple[int, int], list[Runnable]] = field(default_factory=dict)
    samples: dict[Run, Seconds] = field(default_factory=dict)
    slowed: dict[tuple[int, int], float] = field(default_factory=dict)
    costs: HttpCosts | None = None
    outside: dict[tuple[int, int], Seconds] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True when nothing more is measured."""
        return time.monotonic() > self.end

    def programs(self, threads: int, size: int) -> list[Runnable]:
        """Programs of runs of so many requests, one for each instance; planned when first asked for."""
        key = threads, size
        if key not in self.planned:
            shapes = dict(self.shapes)
            if size > 1:
                shapes = {name: (shape[0] * size, *shape[1:]) for name, shape in shapes.items()}
            cores = cores_of(self.instances[threads], threads)
            self.planned[key] = list(self.model(threads).programs(shapes, cores))
        return self.planned[key]

    def loaded(self, count: int, threads: int, sizes: Sequence[int]) -> list[load.Instance]:
        """So many instances with programs for runs of these numbers of requests."""
        inputs = self.inputs(self.programs(threads, 1)[0])
        programs = {size: self.programs(threads, size) for size in sizes}
        cores = cores_of(self.instances[threads], threads)
        return [
            load.Instance({size: found[i] for size, found in programs.items()}, inputs, cores[i])
            for i in range(count)
        ]

    def measure(self, run: Run) -> bool:
        """Measure a run; False where time is over before. The first one is measured in any case.

        Runs of one request are those of a load: threads wake for each, and what sends requests uses cores
        too. They may take half as long again as back to back. Runs of several requests, back to back, are
        scaled by what one instance loses so.
        """
        if run in self.samples or (self.samples and self.is_over):
            return run in self.samples
        count, threads, size = run
        instances = self.loaded(count, threads, (size,))
        found = load.back_to_back(instances, size, RUN_SECONDS)
        if size == 1:
            configuration = Configuration(count, threads)
            executor = 0.0 if self.costs is None else self.costs.executor
            times = RunTimes({1: found + executor}, costs=self.costs, cores=len(os.sched_getaffinity(0)))
            rate = min(LOAD * times.saturation(configuration), load.MAX_RATE)
            moments = arrivals(rate, max(MIN_REQUESTS, round(rate * LOAD_SECONDS)))
            offered = load.offered(instances, moments, configuration, self.costs)
            self.slowed[count, threads] = float(offered.runs[1].mean() / found.mean())
            self.samples[run] = offered.runs[1]
            self.outside[count, threads] = offered.outside
        else:
            self.samples[run] = found * self.slowed[1, threads]
        return True

    def other_bytes(self) -> int:
        """Resident bytes of this process besides packed weights and own bytes of programs.

        What planning leaves behind is part of it, as it is in the process of a deployment.
        """
        trim()
        ran: dict[tuple[int, int], set[int]] = {}
        for count, threads, size in self.samples:
            for index in range(count):
                ran.setdefault((threads, index), set()).add(size)
        own = sum(self._instance_bytes(threads, sorted(sizes)) for (threads, _), sizes in ran.items())
        return max(0, resident_bytes()[0] - own - self.packed())

    def own_bytes(self, configuration: Configuration) -> int:
        """Own bytes of all programs of a configuration."""
        return configuration.instances * self._instance_bytes(configuration.threads, configuration.sizes)

    def _instance_bytes(self, threads: int, sizes: Sequence[int]) -> int:
        """Own bytes of the programs of an instance; of sizes that have none, in proportion to the nearest.

        The program of one request is made first. The others, the largest first, share an arena, if they
        need more than it has.
        """
        arenas, others = {}, 0
        for size in sizes:
            near = min(self.planned, key=lambda key: (abs(key[1] - size), abs(key[0] - threads), key))
            program = self.planned[near][0]
            arenas[size] = program.arena_bytes * size // near[1]
            others += (program.own_bytes - program.arena_bytes) * size // near[1]
        first, most = arenas[sizes[0]], max(arenas.values())
        return others + first + (most if most > first else 0)

    def keep_only(self, configuration: Configuration) -> None:
        """End the programs that a configuration does not need."""
        for (threads, size), found in self.planned.items():
            needed = threads == configuration.threads and size in configuration.sizes
            kept = configuration.instances if needed else 0
            for program in found[kept:]:
                program.close()
            del found[kept:]
        self.planned = {key: found for key, found in self.planned.items() if found}
        gc.collect()  # graphs are cyclic
        trim()
