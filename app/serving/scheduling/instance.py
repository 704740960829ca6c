"""An instance of the programs of a model: a thread that runs one request after another, on its own cores."""

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from app.engine.types.errors import InputError
from app.serving import oip_answers
from app.serving.oip_codec import Inference, InferenceError
from app.serving.program_cache import Ready
from app.serving.scheduling.requests import Told
from app.serving.scheduling.run_queue import RunQueue, Task

_MOST_ANSWERS = 64  # of a program that are remembered
_GRACE_SECONDS = 1.0  # that the client's own clock is ahead of the one that ends the process
logger = logging.getLogger("stowplan.executor")


class RunLimit:
    """The clock that ends the process when anything runs too long, whatever holds it up: the kernel's."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds + _GRACE_SECONDS
        self._ends: dict[int, float] = {}  # by who runs
        self._lock = threading.Lock()

    def begin(self, number: int) -> None:
        """Let a run begin."""
        self._set(number, time.monotonic() + self._seconds)

    def end(self, number: int) -> None:
        """A run has ended."""
        self._set(number, None)

    def _set(self, number: int, end: float | None) -> None:
        with self._lock:
            if end is None:
                self._ends.pop(number, None)
            else:
                self._ends[number] = end
            first = min(self._ends.values(), default=None)
            signal.setitimer(
                signal.ITIMER_REAL, 0.0 if first is None else max(1e-3, first - time.monotonic())
            )


class Instance:
    """The thread of one instance.

    Attributes:
        number: among the instances of the model.
    """

    def __init__(
        self, number: int, name: tuple[str, str], queue: RunQueue, limit: RunLimit, cores: Sequence[int]
    ) -> None:
        self.number = number
        self._name = name  # of the model, and its version
        self._queue = queue
        self._limit = limit
        self._cores = cores
        threading.Thread(target=self._serve, name=f"instance {number}", daemon=True).start()

    def _serve(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)
        while True:
            tasks = self._queue.take()
            began = time.monotonic()
            self._limit.begin(self.number)
            seconds = None
            try:
                self._run(tasks, began)
                seconds = time.monotonic() - began
            except Exception as error:  # the border of the process: whatever it was must be told
                for task in tasks:
                    task.request.refuse(refused(error))
            finally:
                self._limit.end(self.number)
                self._queue.done(tasks, seconds)

    def _run(self, tasks: list[Task], began: float) -> None:
        if len(tasks) > 1:
            self._run_together(tasks, began)
            return
        request, inference, ready = tasks[0].request, tasks[0].inference, tasks[0].ready
        if request.is_answered:
            return
        program = ready.programs[self.number]
        program.lend(inference.inputs)
        program.step()
        answer = self._answer(ready, inference, request.region)
        request.answer(answer, Told(200, began - request.came, time.monotonic() - began))

    def _run_together(self, tasks: list[Task], began: float) -> None:
        """Compute the requests of a batch, one after the other along the first axis of inputs and outputs."""
        batch = tasks[0].ready.batches[len(tasks)]
        program = batch.programs[self.number]
        given = [task.inference.inputs for task in tasks]
        program.lend({name: np.concatenate([inputs[name] for inputs in given]) for name in given[0]})
        program.step()
        outputs = program.peek()
        for index, task in enumerate(tasks):
            own = {
                name: _part(value, index, len(tasks)) if name in batch.rows else value
                for name, value in outputs.items()
            }
            try:
                answer = oip_answers.answer(*self._name, task.inference, own)
            except InferenceError as error:  # of what this request wants of its outputs
                task.request.refuse(error)
            else:
                ran = time.monotonic() - began
                task.request.answer(answer, Told(200, began - task.request.came, ran))

    def _answer(self, ready: Ready, inference: Inference, region: memoryview) -> oip_answers.Answer:
        """Answer with the outputs; the same as before where the program has them in the same arrays.

        After a run little of this is in the caches: what need not be done again is waited for less.
        """
        outputs, form = ready.programs[self.number].peek(), inference.form
        remembered = ready.answers[self.number]
        known = None if form is None else remembered.get(form)
        if known is not None and known.is_of(inference, outputs):
            return known
        apart = _apart(outputs, region)
        answer = oip_answers.answer(*self._name, inference, apart)
        if form is not None and answer.is_of(inference, outputs):
            if len(remembered) >= _MOST_ANSWERS:
                remembered.clear()
            remembered[form] = answer
        return answer


def _part(value: object, index: int, count: int) -> np.ndarray[Any, Any]:
    """Rows of one request of a batch."""
    array = np.asarray(value)
    rows = len(array) // count
    return array[index * rows : (index + 1) * rows]


def refused(error: Exception) -> InferenceError:
    """An error as it is told to who sent the request."""
    if isinstance(error, InferenceError):
        return error
    if isinstance(error, InputError):
        return InferenceError(error.message)
    if isinstance(error, MemoryError):
        return InferenceError("the model ran out of memory", 503)
    logger.error("a request failed", exc_info=error)
    return InferenceError(f"{type(error).__name__}: {error}", 500)


def _apart(outputs: dict[str, object], region: memoryview) -> dict[str, object]:
    """Outputs of which none lies where the answer will: a model may hand an input on as it is."""
    place = np.frombuffer(region, np.uint8)
    return {
        name: np.array(v) if isinstance(v, np.ndarray) and np.may_share_memory(v, place) else v
        for name, v in outputs.items()
    }
