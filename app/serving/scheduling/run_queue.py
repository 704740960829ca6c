"""Requests that wait for an instance, in the order in which they came, each with its deadline."""

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.engine.planning.capacity.batching import count_to_take
from app.serving.oip_codec import Inference, InferenceError
from app.serving.program_cache import Batch, Ready
from app.serving.scheduling.requests import Request

_MARGIN = 1.2  # of the time to an answer over its mean: runs differ, and a late one was for nothing
_NEW = 0.1  # share of a new sample in the mean time of runs
_SLACK = 64  # deadlines of answered requests that are kept without a look
# By which waits for others of a batch end late is followed as a quantile: up by a step where one ends later,
# down by a part of a step where it does not. One in 200 stays later.
_FIRST_LATE, _LATE_STEP, _MOST_LATE = 0.05, 0.02, 0.5  # of the delay
_LATE_DOWN = 1 / 200
LATE = "the request waited too long for its turn"
OVERDUE = "the request may take no longer than it took to come"


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A request with its tensors, the programs that it is for, and seconds of a run of them when it came."""

    request: Request
    inference: Inference
    ready: Ready
    seconds: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of requests that it may be computed together with, itself included."""
        if not self.ready.batches or any(type(a) is not np.ndarray for a in self.inference.inputs.values()):
            return (1,)
        return (1, *self.ready.batches)


class RunQueue:
    """Tasks in order of arrival, for as many threads as there are instances.

    A request that cannot be answered by its deadline, as long as runs took so far, is refused when it comes:
    the client can try elsewhere while there is time. One whose deadline passes is answered then, also while
    it runs.
    """

    def __init__(self, instances: int, batch_seconds: float = 0.0) -> None:
        self._instances = instances
        self._batch_seconds = batch_seconds  # that a request waits for others
        self._late = _FIRST_LATE * batch_seconds  # by which such a wait ends too late
        self._tasks: deque[Task] = deque()
        self._seconds = 0.0  # that the tasks will take, as far as known
        self._running = 0.0  # that those which run take
        self._idle = 0  # instances that wait for tasks
        self._idle_since = 0.0  # moment from which on there was one
        self._deadlines: list[tuple[float, int, Request, InferenceError]] = []  # a heap
        self._order = itertools.count()
        self._changed = threading.Condition()

    def put(self, request: Request, inference: Inference, ready: Ready) -> None:
        """Add a task.

        Raises:
            InferenceError: it could not be answered in time.
        """
        with self._changed:
            wait = (self._seconds + self._running / 2) / self._instances  # of a run half is left on average
            if time.monotonic() >= request.deadline:
                raise InferenceError(OVERDUE, 503, retry_after=max(1, math.ceil(wait)))
            # With nobody before it a request runs however long runs took: else one slow run would end all.
            if self._tasks and time.monotonic() + (wait + ready.seconds) * _MARGIN > request.deadline:
                raise InferenceError(
                    f"{len(self._tasks)} requests wait for the model, for about {wait:.3g} s: longer than "
                    "this one may take",
                    503,
                    retry_after=max(1, math.ceil(wait)),
                )
            self._watch(request, InferenceError(LATE, 504))
            ready.users += 1
            self._tasks.append(Task(request, inference, ready, ready.seconds))
            self._seconds += ready.seconds
            self._changed.notify()

    def watch(self, request: Request, error: InferenceError) -> None:
        """Answer a request with an error when its deadline passes."""
        with self._changed:
            self._watch(request, error)

    def _watch(self, request: Request, error: InferenceError) -> None:
        if len(self._deadlines) > 2 * (len(self._tasks) + self._instances + _SLACK):
            self._keep_deadlines(lambda found: not found.is_answered)
        heapq.heappush(self._deadlines, (request.deadline, next(self._order), request, error))

    def take(self) -> list[Task]:
        """The next tasks, when there are any; `done` follows. Several are computed together.

        A task waits for others of its programs until there are as many as the largest batch takes, for
        `batch_seconds` since it came at most; then it goes with as many as a batch takes. Threads wake late:
        it waits less by what they were late so far.
        """
        with self._changed:
            if not self._idle:
                self._idle_since = time.monotonic()
            self._idle += 1
            while True:
                while not self._tasks:
                    self._changed.wait()
                if self._is_hopeless(self._tasks[0]):
                    self._expire_first()
                    continue
                found, patience = self._next()
                if found:
                    break
                ends = time.monotonic() + patience
                if not self._changed.wait(patience):
                    self._note_late(time.monotonic() - ends)
            self._idle -= 1
            now = time.monotonic()
            for task in found:
                self._tasks.remove(task)
                self._left(task)
                self._running += task.seconds
                task.request.held = now - max(task.request.came, self._idle_since)
            if self._tasks:
                self._changed.notify()
            return found

    def _note_late(self, seconds: float) -> None:
        """Note by how much a wait ended late."""
        step = _LATE_STEP * self._batch_seconds
        found = self._late + (step if seconds > self._late else -step * _LATE_DOWN)
        self._late = min(max(found, 0.0), _MOST_LATE * self._batch_seconds)

    def _is_hopeless(self, task: Task) -> bool:
        """True if a task would be late, and another one could run instead."""
        late = time.monotonic() + task.ready.seconds > task.request.deadline
        return late and len(self._tasks) > 1

    def _expire_first(self) -> None:
        task = self._tasks.popleft()
        self._left(task)
        task.ready.users -= 1
        task.ready.close_unused()
        task.request.refuse(InferenceError(LATE, 504))

    def _next(self) -> tuple[list[Task], float]:
        """The first tasks that wait no longer for others, or seconds until some do not.

        Tasks of other programs do not wait for others of the first one's.
        """
        now, soonest = time.monotonic(), math.inf
        groups: dict[int, list[Task]] = {}
        for task in self._tasks:
            if len(task.sizes) == 1:
                groups[id(task)] = [task]
            else:
                groups.setdefault(id(task.ready), []).append(task)
        for found in groups.values():
            patience = found[0].request.came + self._batch_seconds - self._late - now
            if count := count_to_take(len(found), patience, found[0].sizes):
                return found[:count], 0.0
            soonest = min(soonest, patience)
        return [], soonest

    def done(self, tasks: list[Task], seconds: float | None) -> None:
        """Count a run of so many seconds; None where it failed. A program that was dropped meanwhile ends."""
        with self._changed:
            ready = tasks[0].ready
            self._running = max(0.0, self._running - sum(task.seconds for task in tasks))
            if seconds is not None:
                mean = seconds / len(tasks)
                ready.seconds += (mean - ready.seconds) * (_NEW if ready.seconds else 1.0)
            ready.users -= len(tasks)
            ready.close_unused()

    def add_batch(self, ready: Ready | None, count: int, batch: Batch) -> None:
        """Let requests of some programs be computed together from now on; None where they were dropped."""
        with self._changed:
            if ready is None:
                Ready((), {count: batch}, dropped=True).close_unused()
            else:
                ready.batches[count] = batch

    def drop(self, ready: Ready) -> None:
        """Let a program end when no task needs it any more."""
        with self._changed:
            ready.dropped = True
            ready.close_unused()

    def patience(self) -> float | None:
        """Seconds until the next deadline; None without any."""
        with self._changed:
            return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None

    def expire(self) -> None:
        """Answer requests whose deadline has passed."""
        now, late = time.monotonic(), []
        with self._changed:
            while self._deadlines and self._deadlines[0][0] <= now:
                late.append(heapq.heappop(self._deadlines)[2:])
        for request, error in late:
            request.refuse(error)
        if late:
            self.remove(lambda request: request.is_answered)

    def remove(self, forgotten: Callable[[Request], bool]) -> None:
        """Remove the tasks of requests that nobody waits for."""
        with self._changed:
            gone = [task for task in self._tasks if forgotten(task.request)]
            for task in gone:
                self._tasks.remove(task)
                self._left(task)
                task.ready.users -= 1
                task.ready.close_unused()
            self._keep_deadlines(lambda request: not forgotten(request))

    def _keep_deadlines(self, needed: Callable[[Request], bool]) -> None:
        self._deadlines = [row for row in self._deadlines if needed(row[2])]
        heapq.heapify(self._deadlines)

    def _left(self, task: Task) -> None:
        self._seconds = max(0.0, self._seconds - task.seconds) if self._tasks else 0.0
