"""Keeps the processes of one service running: starts them, restarts those that die, stops them all."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from app.jobs.store.database import migrate
from app.jobs.worker.parent_death import enter
from app.settings import Settings, environment_of_jobs

WORKER = "app.jobs.worker.worker:run"
_SPAWN = multiprocessing.get_context("spawn")
_LOOK_SECONDS = 0.2
_STOP_SECONDS = 10.0
_RESTART_SECONDS = 1.0  # at least, between two starts of the same process
_MOST_SECONDS = 30.0  # between two starts of a process that ends at once, again and again
_SOUND_SECONDS = 60.0  # that such a process runs before it counts as sound again
_LISTING_SECONDS = 1.0  # between two looks at what else shall run
logger = logging.getLogger("stowplan.supervisor")


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of the service; `target`, "module:function", returns at SIGTERM.

    Only the process itself imports it. It takes the `argument`, by default the settings as JSON. One that is
    confined gets no variables of the environment but those that processes of jobs get.
    """

    name: str
    target: str
    argument: str | None = None
    confined: bool = False


Listing = Callable[[], Sequence[ProcessSpec]]


def service_processes(settings: Settings, api: str) -> list[ProcessSpec]:
    """The processes of a whole service on one machine."""
    return [
        ProcessSpec("api", api),
        *(ProcessSpec(f"worker {i}", WORKER) for i in range(settings.workers)),
    ]


def supervise(settings: Settings, processes: Sequence[ProcessSpec], more: Listing | None = None) -> None:
    """Run the processes until SIGINT or SIGTERM, and those that `more` lists, as long as it lists them."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    migrate(settings)  # once here, so that no two processes wait for each other
    running = {spec.name: _Running(spec, settings) for spec in processes}
    others: dict[str, _Running] = {}
    leaving: list[_Leaving] = []
    listed = 0.0
    while not stopping.wait(_LOOK_SECONDS):
        for each in running.values():
            each.look(_RESTART_SECONDS)
        if more is not None and time.monotonic() > listed + _LISTING_SECONDS:
            listed = time.monotonic()
            leaving += _follow(more(), others, settings)
        leaving = [each for each in leaving if each.is_alive()]
        for each in others.values():
            each.look(each.patience)
    # The API may still wait for the others.
    seconds = settings.drain_seconds + _STOP_SECONDS
    _stop([each.process for each in running.values()], seconds)
    _stop([*(each.process for each in others.values()), *(each.process for each in leaving)], seconds)


def _follow(
    wanted: Sequence[ProcessSpec], running: dict[str, "_Running"], settings: Settings
) -> list["_Leaving"]:
    """Start the processes that are new, and let those end that are gone: they answer what they have first."""
    names = {spec.name for spec in wanted}
    gone = [running.pop(name).process for name in list(running) if name not in names]
    for spec in wanted:
        if spec.name not in running:
            running[spec.name] = _Running(spec, settings)
    return [_Leaving(process, settings.infer_seconds + _STOP_SECONDS) for process in gone]


class _Leaving:
    """A process that was told to end, and is killed when it has not after some seconds."""

    def __init__(self, process: BaseProcess, seconds: float) -> None:
        self.process = process
        self._deadline = time.monotonic() + seconds
        process.terminate()

    def is_alive(self) -> bool:
        """Look whether it has ended."""
        if time.monotonic() > self._deadline:
            self.process.kill()
        return self.process.is_alive()


class _Running:
    """A process of the service, started again when it ends."""

    def __init__(self, spec: ProcessSpec, settings: Settings) -> None:
        self._spec = spec
        self._settings = settings
        self._failures = 0
        self._since = time.monotonic()
        self.process = _start(spec, settings)

    @property
    def patience(self) -> float:
        """Seconds between two starts: longer for what does not stay up."""
        return float(min(_MOST_SECONDS, _RESTART_SECONDS * 2**self._failures))

    def look(self, patience: float) -> None:
        """Start it again if it has ended, that many seconds after its last start or later."""
        now = time.monotonic()
        if self.process.is_alive() or now <= self._since + patience:
            return
        logger.warning("%s ended with code %s and is started again", self._spec.name, self.process.exitcode)
        self._failures = 0 if now > self._since + _SOUND_SECONDS else min(self._failures + 1, 10)
        self._since = now
        self.process = _start(self._spec, self._settings)


def _start(spec: ProcessSpec, settings: Settings) -> BaseProcess:
    argument = settings.to_json() if spec.argument is None else spec.argument
    process = _SPAWN.Process(target=enter, args=(os.getpid(), spec.target, argument), name=spec.name)
    with environment_of_jobs() if spec.confined else nullcontext():
        process.start()
    return process


def _stop(processes: Sequence[BaseProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            logger.warning("%s did not stop within %g s and is killed", process.name, seconds)
            process.kill()
            process.join()
