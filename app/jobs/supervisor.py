"""Keeps the processes of one service running: starts them, restarts those that die, stops them all."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from app.jobs.database import migrate
from app.jobs.lifeline import end_with
from app.jobs.worker import run as run_worker
from app.settings import Settings

_SPAWN = multiprocessing.get_context("spawn")
_LOOK_SECONDS = 0.2
_STOP_SECONDS = 10.0
_RESTART_SECONDS = 1.0  # at least, between two starts of the same part
logger = logging.getLogger("stowplan.supervisor")


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the service; `target` takes the settings as JSON and returns at SIGTERM."""

    name: str
    target: Callable[[str], None]


def parts(settings: Settings, api: Callable[[str], None]) -> list[Part]:
    """The processes of a whole service on one machine."""
    return [Part("api", api), *(Part(f"worker {i}", run_worker) for i in range(settings.workers))]


def supervise(settings: Settings, processes: Sequence[Part]) -> None:
    """Run the parts until SIGINT or SIGTERM."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    migrate(settings)  # once here, so that no two parts wait for each other
    running: dict[str, tuple[BaseProcess, float]] = {}
    for part in processes:
        running[part.name] = (_start(part, settings), time.monotonic())
    while not stopping.wait(_LOOK_SECONDS):
        for part in processes:
            process, since = running[part.name]
            if not process.is_alive() and time.monotonic() > since + _RESTART_SECONDS:
                logger.warning("%s ended with code %s and is started again", part.name, process.exitcode)
                running[part.name] = (_start(part, settings), time.monotonic())
    _stop([process for process, _ in running.values()], settings.drain_seconds + _STOP_SECONDS)


def _start(part: Part, settings: Settings) -> BaseProcess:
    arguments = (os.getpid(), part.target, settings.to_json())
    process = _SPAWN.Process(target=_enter, args=arguments, name=part.name)
    process.start()
    return process


def _enter(supervisor: int, target: Callable[[str], None], settings_json: str) -> None:
    end_with(supervisor, signal.SIGHUP)  # nobody waits for this process then: it ends at once
    target(settings_json)


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
