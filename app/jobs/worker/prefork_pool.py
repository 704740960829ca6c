"""Child processes, started ahead by one thread and each given away once.

They are forked off a process of one thread that imported the engine and never saw a model: a child
costs a few milliseconds instead of the seconds that the imports take. That process ends with its
worker, and the children with it.
"""

import contextlib
import importlib
import json
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for_futures
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pebble import CONSTS, ProcessExpired, concurrent

from app.jobs.worker import child as child_process
from app.settings import environment_of_jobs

_FORKSERVER = multiprocessing.get_context("forkserver")
_MAX_MESSAGE = 64 << 20  # byte
# Between two looks of the library whether a waiting child's future was canceled, which none ever is; its own
# 0.1 s cost a worker 0.2 % of a core.
CONSTS.sleep_unit = 1.0
_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # waits between attempts to fork
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOWEST = 19  # nice value
_STOP_SECONDS = 0.5  # between two looks whether who waits for a child has to stop
_FIRST_SECONDS = 60.0  # for the process that forks to import what it needs
logger = logging.getLogger("stowplan.confinement")


class Child:
    """The parent's end of one child process."""

    def __init__(
        self,
        request_writer: Connection,
        events: Connection,
        future: "Future[None]",
        process: BaseProcess | None,
    ) -> None:
        self._request_writer = request_writer
        self._events = events
        self._future = future
        self._process = process
        self._killed = False
        self.pid: int | None = None

    @property
    def is_alive(self) -> bool:
        """True until the process has ended for the kernel: the library notices later."""
        try:
            return not self._future.done() and (
                self._process is None or not wait([self._process.sentinel], 0.0)
            )
        except (OSError, ValueError):
            return False

    def send(self, request: bytes) -> None:
        """Give the child its request; one that has died says so at the next `receive`."""
        try:
            self._request_writer.send_bytes(request)
        except OSError:
            return
        finally:
            self._request_writer.close()

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None when none comes in time.

        Raises:
            EOFError: the child has ended, or sent what is no message.
        """
        try:
            if not self._events.poll(seconds):
                return None
            # Numbers that JSON does not have (NaN, Infinity) become null here and stay so.
            message = json.loads(self._events.recv_bytes(_MAX_MESSAGE), parse_constant=lambda _: None)
        except (OSError, ValueError) as error:
            raise EOFError(str(error)) from error
        if not isinstance(message, dict):
            raise EOFError("a message is an object")  # noqa: TRY004  to the caller it is the end
        if self.pid is None and "pid" in message:
            self.pid = int(message["pid"])
        return message

    def lower_priority(self) -> None:
        """Let all other processes come first, also where the system shares cores out by session."""
        with contextlib.suppress(OSError, EOFError):
            if self.pid is None:
                self.receive(_FIRST_SECONDS)
            if self.pid is not None:
                os.setpriority(os.PRIO_PROCESS, self.pid, _LOWEST)
                Path(f"/proc/{self.pid}/autogroup").write_text(str(_LOWEST))

    def resident_bytes(self) -> int:
        """Memory that the process holds now; 0 when it is gone or has not said who it is."""
        if self.pid is None:
            return 0
        try:
            with open(f"/proc/{self.pid}/statm") as file:  # noqa: PTH123  read ten times a second
                return int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def end(self) -> int | None:
        """Kill the process and all it started, wait for its end, and return its exit code.

        The code is negative for a signal, None when it ended as it should.
        """
        self.kill()
        try:
            self._future.result(timeout=5.0)
        except ProcessExpired as error:
            return int(error.exitcode)
        except (FutureTimeoutError, OSError, EOFError):
            return None
        finally:
            self._events.close()
        return None

    def kill(self) -> None:
        """Kill the process and all it started, without waiting for their end."""
        if self.pid is None:
            if self._process is not None:
                self._process.kill()  # it leads no group yet, and has started nothing
        elif not self._killed:
            self._killed = True  # once: a group's number may be given out again
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _start_forkserver() -> None:
    """Start the process that forks children unless it runs, without what they must not know.

    The library starts it too, when it finds it dead, with all that this process knows: it ends at once then.
    """
    with environment_of_jobs():
        multiprocessing.forkserver.ensure_running()


class PreforkPool:
    """Starts children, and keeps `warm` of them ready."""

    def __init__(self, engine: str, warm: int) -> None:
        self._engine = engine
        modules = [
            "__main__",
            "app.jobs.worker.forkserver_preload",
            child_process.__name__,
            "app.jobs.worker.child_request",
            "app.jobs.worker.benchmark_lock",
            engine,
            *importlib.import_module(engine).PRELOAD,
        ]
        multiprocessing.set_forkserver_preload(modules)
        self._warm = warm
        self._told = False
        _start_forkserver()
        self._ready: deque[Child] = deque()
        self._requests: queue.SimpleQueue[Future[Child] | bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="prefork-pool", daemon=True)
        self._thread.start()

    def take(self, should_stop: Callable[[], bool]) -> Child | None:
        """A child that waits for its request; None when `should_stop` says so before there is one.

        The first child waits for seconds of imports.
        """
        request: Future[Child] = Future()
        self._requests.put(request)
        while not wait_for_futures([request], _STOP_SECONDS).done:
            if should_stop():
                request.add_done_callback(self._keep)
                return None
        return request.result()

    def replenish(self) -> None:
        """Start children until enough are ready, without waiting: best asked when no job is being timed."""
        self._requests.put(True)

    def close(self) -> None:
        """End all children that were not given away; those that still start end with this process."""
        self._requests.put(False)
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while True:
            request = self._requests.get()
            if isinstance(request, Future):
                try:
                    request.set_result(self._next())
                except (OSError, EOFError) as error:  # the job fails, the thread must not
                    request.set_exception(error)
            elif request:
                try:
                    while len(self._ready) < self._warm:
                        self._ready.append(self._launch())
                except (OSError, EOFError):
                    logger.exception("no process for the next job could be started; it starts with the job")
            else:
                for ready in self._ready:
                    ready.end()
                return

    def _next(self) -> Child:
        while self._ready:
            ready = self._ready.popleft()
            if ready.is_alive:
                return ready
        return self._launch()

    def _keep(self, request: "Future[Child]") -> None:
        """Keep a child that nobody waits for any more."""
        if request.exception() is None:
            self._ready.append(request.result())

    def _launch(self) -> Child:
        """A new child. The process that forks it is started again if someone killed it.

        One that is ending counts as running until the kernel lists its end, hence the waits: without them the
        library would start the next one, with all that this process knows.
        """
        for seconds in _RETRY_SECONDS:
            with contextlib.suppress(OSError, EOFError):
                return self._tell(self._fork())
            time.sleep(seconds)
            _start_forkserver()
        return self._tell(self._fork())

    def _tell(self, child: Child) -> Child:
        """Log how the first child is confined, as all are."""
        if not self._told:
            message = child.receive(_FIRST_SECONDS) or {}
            self._told = "measures" in message
            logger.info("processes of jobs are confined: %s", ", ".join(message.get("measures", ())))
        return child

    def _fork(self) -> Child:
        request_reader, request_writer = _FORKSERVER.Pipe(duplex=False)
        event_reader, event_writer = _FORKSERVER.Pipe(duplex=False)
        start = concurrent.process(daemon=True, context=_FORKSERVER)(child_process.serve_one)
        others = set(multiprocessing.active_children())
        future = start(self._engine, request_reader, event_writer)
        # The library does not say which process it started. Only this thread starts any, and this one
        # may have ended already.
        process = next(iter(set(multiprocessing.active_children()) - others), None)
        request_reader.close()
        event_writer.close()
        return Child(request_writer, event_reader, future, process)
