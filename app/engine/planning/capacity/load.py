"""Load on instances of a program in this process: back to back, and requests at random moments.

Instances are threads that keep to their cores, as those of an executor. A run lends the inputs, computes, and
copies the outputs. Client, HTTP, the socket between processes and headers of requests are no part of it, but
for the processor time that they take, where it is given.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from app.engine.planning.capacity.batching import count_to_take
from app.engine.planning.capacity.configuration import SWITCH_SECONDS, Configuration
from app.engine.planning.capacity.http import HttpCosts, HttpThreads, spend
from app.engine.planning.capacity.queueing import Seconds, nothing

MIN_RUNS = 4  # of each instance that runs back to back
MAX_RATE = 3000.0  # requests per second that a load can send from this process


class Runnable(Protocol):
    """A program for inputs of given shapes, see `app.engine.runtime.cpu.executor.Executor`."""

    def lend(self, inputs: Mapping[str, object]) -> None:
        """Read the inputs where they are, or copy them."""

    def step(self) -> None:
        """Compute the outputs."""

    def peek(self) -> dict[str, object]:
        """The outputs, until the next step."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Programs of one instance by number of requests, and the cores that its thread keeps to."""

    programs: Mapping[int, Runnable]
    inputs: Mapping[str, Any]  # of one request
    cores: Sequence[int]

    def run(self, count: int) -> None:
        """Compute so many requests."""
        program, inputs = self.programs[count], self.inputs
        if count > 1:
            inputs = {name: np.concatenate([array] * count) for name, array in inputs.items()}
        program.lend(inputs)
        program.step()
        for output in program.peek().values():
            np.array(output)


def back_to_back(instances: Sequence[Instance], count: int, seconds: float) -> Seconds:
    """Seconds of runs of so many requests while all instances run back to back, for a time at least."""
    barrier = threading.Barrier(len(instances))
    found: list[list[float]] = [[] for _ in instances]

    def runs(index: int) -> None:
        barrier.wait()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end or len(found[index]) < MIN_RUNS:
            instances[index].run(count)
            found[index].append(time.perf_counter() - began)

    for instance in instances:
        instance.run(count)
    _on_threads(instances, runs)
    return np.array([value for own in found for value in own])


class _Line:
    """Requests by number, in the order of their arrival, until no more come."""

    def __init__(self, came: Seconds, configuration: Configuration) -> None:
        self._came = came  # moment of each request that is here, by `time.perf_counter`
        self._left = len(came)  # requests that are to come
        self._configuration = configuration
        self._waiting: deque[int] = deque()
        self._changed = threading.Condition()

    def put(self, index: int) -> None:
        with self._changed:
            self._waiting.append(index)
            self._left -= 1
            self._changed.notify()
            if not self._left:
                self._changed.notify_all()

    def take(self) -> list[int]:
        """The requests of the next run, when there are any; none at the end."""
        with self._changed:
            while self._waiting or self._left:
                patience = None
                if self._waiting:
                    first = self._came[self._waiting[0]]
                    patience = first + self._configuration.delay - time.perf_counter()
                    size = count_to_take(len(self._waiting), patience, self._configuration.sizes)
                    if size:
                        taken = [self._waiting.popleft() for _ in range(size)]
                        if self._waiting:
                            self._changed.notify()
                        return taken
                self._changed.wait(patience)
            return []


@dataclass(frozen=True, slots=True)
class Offered:
    """Outcome of requests that were sent at given moments.

    Attributes:
        seconds: from the moment of each request to its answer, also where it was sent late.
        runs: by number of requests, seconds of runs from when they could begin.
        outside: part of `seconds` before the request was in the process of the model and after it had run.
    """

    seconds: Seconds
    runs: Mapping[int, Seconds]
    outside: Seconds = field(default_factory=nothing)


def offered(
    instances: Sequence[Instance],
    moments: Seconds,
    configuration: Configuration,
    costs: HttpCosts | None = None,
) -> Offered:
    """Send a request at each moment, and answer all; with `costs` as a client over HTTP would see it."""
    for instance in instances:
        for size in configuration.sizes:
            instance.run(size)
    came = time.perf_counter() + moments
    arrived, ran, answered = came.copy(), np.zeros(len(came)), np.zeros(len(came))
    line = _Line(arrived, configuration)
    runs: dict[int, list[float]] = {size: [] for size in configuration.sizes}

    def arrive(index: int) -> None:
        arrived[index] = time.perf_counter()
        line.put(index)

    def note(index: int) -> None:
        answered[index] = time.perf_counter()

    http = None if costs is None else HttpThreads(costs, arrive, note)

    def serve(index: int) -> None:
        free = came[0]
        while taken := line.take():
            # One that waited for others begins here; else what switching threads takes is part of it.
            began = time.perf_counter() if configuration.delay else max(free, arrived[taken[0]])
            if costs is not None:
                spend(costs.executor * len(taken))
            instances[index].run(len(taken))
            ran[taken] = free = time.perf_counter()
            runs[len(taken)].append(free - began)
            if http is not None:
                for number in taken:
                    http.answer(number)

    def send() -> None:
        for index, moment in enumerate(came):
            time.sleep(max(0.0, moment - time.perf_counter()))
            (line.put if http is None else http.send)(index)

    sender = threading.Thread(target=send, name="requests")
    sender.start()
    try:
        _on_threads(instances, serve)
    finally:
        sender.join()
        if http is not None:
            http.close()
    if http is None:
        answered = ran
    found = {size: np.array(seconds) for size, seconds in runs.items()}
    return Offered(answered - came, found, arrived - came + answered - ran)


def _on_threads(instances: Sequence[Instance], act: Callable[[int], None]) -> None:
    """Let each instance act on a thread of its own, until all have; an error of one is raised."""
    failures: list[BaseException] = []
    interval = sys.getswitchinterval()

    def begin(index: int) -> None:
        if instances[index].cores:
            os.sched_setaffinity(0, instances[index].cores)
        try:
            act(index)
        except BaseException as error:  # raised below, in the thread that waits
            failures.append(error)

    threads = [
        threading.Thread(target=begin, args=(index,), name=f"instance {index}")
        for index in range(len(instances))
    ]
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]
