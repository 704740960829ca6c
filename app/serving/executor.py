"""An executor process: one deployed model, called through shared memory.

One thread runs requests in the order in which they came; another one compiles. Beside the child of a
job it is the other place where an uploaded model is parsed and run, and it has limits of its own. A run
that takes too long ends the process: nothing else could end it inside compiled code. The supervisor
starts it again.
"""

import contextlib
import faulthandler
import json
import logging
import mmap
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.types.errors import InputError
from app.jobs.worker import confinement
from app.jobs.worker.engine_protocol import ServedModel
from app.jobs.worker.parent_death import ORPHANED, end_with
from app.serving import channel, oip_answers, oip_codec
from app.serving.executor_config import ExecutorConfig
from app.serving.oip_codec import InferenceError
from app.serving.program_cache import Builder, Built, Programs, Ready, Shapes, key_of
from app.settings import Settings, use_home
from app.telemetry import logs

_MOST_ANSWERS = 64  # of a program that are remembered
SWITCH_SECONDS = 5e-4  # that a request waits for the thread that builds programs, each time it needs Python
_GRACE_SECONDS = 1.0  # that the client's own clock is ahead of the one that ends the process
logger = logging.getLogger("stowplan.executor")


def run(config_json: str) -> None:
    """Serve until the supervisor has ended, or until SIGTERM and the answers to requests sent before it."""
    config = ExecutorConfig.from_json(config_json)
    sys.setswitchinterval(SWITCH_SECONDS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the descriptor below tells of it
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # The loop may wait while another thread gets the signal.
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    logs.configure(Settings(log_format=config.log[0], log_level=config.log[1]), f"executor {config.name}")
    resource.setrlimit(resource.RLIMIT_DATA, (config.memory_bytes, config.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    listener = channel.listen(channel.socket_path(Path(config.data), config.id))
    _confine(config)
    Executor(config, told, listener).serve()
    os._exit(0)  # a thread may still compile


def _confine(config: ExecutorConfig) -> None:
    """Give up what is not needed, before the model is read; the supervisor's end ends the process still."""
    scratch = channel.folder_of(Path(config.data)) / config.id
    for folder in (Path(config.kernels), scratch):
        confinement.hand_over(folder)
    use_home(scratch)
    tempfile.tempdir = str(scratch)
    supervisor = os.getppid()
    measures = confinement.enter()
    end_with(supervisor, ORPHANED)  # a change of the user has ended it
    readable = (config.model, *config.external.values())
    writable = (config.kernels, scratch)
    confinement.restrict_files(measures, readable, writable, config.data, ("app", config.engine))
    confinement.restrict_calls(measures)
    told = ", ".join(map(str, measures))
    logging.getLogger("stowplan.confinement").info("%s:%s is confined: %s", config.name, config.version, told)


@dataclass(eq=False, slots=True)
class _Client:
    """An API process, and its arena."""

    socket: socket.socket
    arena: memoryview = field(default_factory=lambda: memoryview(b""))
    # Answers that did not fit, and how long they waited and ran.
    held: dict[int, tuple[oip_answers.Answer, tuple[float, float]]] = field(default_factory=dict)
    lost: bool = False

    def receive(self) -> tuple[bytes, list[int]]:
        """A message, and the descriptors that came with it: the arena's, with the first one."""
        if self.arena.nbytes:
            return self.socket.recv(channel.SHORT), []
        text, descriptors, _, _ = socket.recv_fds(self.socket, channel.SHORT, 1)
        return text, descriptors

    def send(self, message: bytes) -> None:
        try:
            self.socket.send(message)
        except OSError:
            self.lost = True


@dataclass(frozen=True, slots=True)
class _Request:
    client: _Client
    id: int
    offset: int
    capacity: int
    nbytes: int
    header_nbytes: int
    deadline: float  # of the monotonic clock, which is the same in all processes
    came: float

    @property
    def region(self) -> memoryview:
        """Where the answer goes."""
        return self.client.arena[self.offset : self.offset + self.capacity]


class Executor:
    """The loop of one process; it ends soon after `stop` is readable."""

    def __init__(self, config: ExecutorConfig, stop: int, listener: socket.socket) -> None:
        self._config = config
        self._stop = stop
        self._stopping = False
        self._listener = listener
        self._poll = select.poll()
        self._clients: dict[int, _Client] = {}
        self._queue: deque[_Request] = deque()
        self._waiting_requests: dict[Shapes, list[_Request]] = {}  # by the program that they wait for
        self._programs = Programs(config.programs)
        self._builder = Builder(config)
        self._model: ServedModel | None = None
        self._forms = oip_codec.Forms((), (), {})
        self._state: dict[str, Any] = {"state": "loading", "detail": "", "programs": 0, "metadata": None}
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._builder.ready, select.POLLIN)
        self._poll.register(stop, select.POLLIN)

    def serve(self) -> None:
        """Answer requests until the process shall stop and no API process is connected any more."""
        while self._clients or not self._stopping:
            for descriptor, _ in self._poll.poll(0 if self._queue else None):
                self._listen_to(descriptor)
            if self._queue:
                self._carry_out(self._queue.popleft())

    def _listen_to(self, descriptor: int) -> None:
        if descriptor == self._stop:
            self._leave()
        elif descriptor == self._listener.fileno():
            self._accept()
        elif descriptor == self._builder.ready:
            for built in self._builder.built():
                self._take(built)
        elif descriptor in self._clients:
            self._read(self._clients[descriptor])

    def _leave(self) -> None:
        """Take no more connections, and tell those that are there to close when they have their answers."""
        self._poll.unregister(self._stop)
        self._poll.unregister(self._listener)
        self._listener.close()
        self._stopping = True
        self._tell(*self._clients.values())

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)  # whoever takes no answers, far more than he may ask for, is lost
            client = self._clients[connection.fileno()] = _Client(connection)
            self._poll.register(connection, select.POLLIN)
            self._tell(client)

    def _read(self, client: _Client) -> None:
        """Take all messages that wait."""
        while not client.lost:
            try:
                text, descriptors = client.receive()
            except BlockingIOError:
                return
            except OSError:
                text, descriptors = b"", []
            if not text:
                client.lost = True
                break
            self._hear(client, text, descriptors)
        self._forget(client)

    def _hear(self, client: _Client, text: bytes, descriptors: list[int]) -> None:
        if text[:1] == b"Q":
            _, number, offset, capacity, nbytes, header, deadline = channel.REQUEST.unpack(text)
            came = time.monotonic()
            self._queue.append(_Request(client, number, offset, capacity, nbytes, header, deadline, came))
        elif text[:1] == b"G":
            _, number, offset, capacity = channel.GRANT.unpack(text)
            answer, times = client.held.pop(number)
            if capacity:
                self._put(_Request(client, number, offset, capacity, 0, 0, 0.0, 0.0), answer, 200, *times)
        elif text[:1] == b"M":
            _, nbytes = channel.ARENA.unpack(text)
            client.arena = memoryview(mmap.mmap(descriptors[0], nbytes))
            os.close(descriptors[0])

    def _forget(self, client: _Client) -> None:
        """An API process has ended: nobody waits for its requests."""
        self._poll.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        client.socket.close()
        self._queue = deque(r for r in self._queue if r.client is not client)
        for shapes, requests in self._waiting_requests.items():
            self._waiting_requests[shapes] = [r for r in requests if r.client is not client]

    def _tell(self, *clients: _Client) -> None:
        told = self._state | ({"state": channel.STOPPING} if self._stopping else {})
        text = channel.STATE + json.dumps(told).encode()
        if len(text) > channel.LARGEST:
            detail = "the model has too many inputs and outputs to tell of"
            told |= {"metadata": None} | ({} if self._stopping else {"state": "failed", "detail": detail})
            text = channel.STATE + json.dumps(told).encode()
        for client in clients:
            client.send(text)

    def _take(self, built: Built) -> None:
        """Something was built."""
        if built.shapes is None:
            self._begin(built)
        else:
            waiting = self._waiting_requests.pop(built.shapes, [])
            if built.program is not None:
                self._programs.keep(built.shapes, built.program)
                self._queue.extendleft(reversed(waiting))
                self._state["state"] = "ready"
            else:
                if self._state["state"] == "ready":
                    logger.warning("shapes %s: %s", dict(built.shapes), built.rejection)
                else:
                    self._state |= {"state": "failed", "detail": built.rejection}
                for request in waiting:
                    self._refuse(request, InferenceError(built.rejection, 503 if built.is_fault else 400))
        self._state["programs"] = len(self._programs)
        self._tell(*self._clients.values())

    def _begin(self, built: Built) -> None:
        """The model is loaded, or cannot be."""
        model, rejection = built.model, built.rejection
        if model is not None:
            rejection = oip_codec.unserved((*model.inputs, *model.outputs)) or ""
        if model is None or rejection:
            self._state |= {"state": "failed", "detail": rejection}
            return
        self._model = model
        self._forms = oip_codec.Forms(model.inputs, model.outputs, model.fixed)
        self._state["metadata"] = {
            "inputs": [oip_codec.metadata(p) for p in model.inputs],
            "outputs": [oip_codec.metadata(p) for p in model.outputs],
        }
        if model.first is None:
            self._state["state"] = "ready"
        else:
            self._builder.want(key_of(model.first))

    def _carry_out(self, request: _Request) -> None:
        """Answer a request, or let it wait for its program."""
        model, began = self._model, time.monotonic()
        try:
            if began > request.deadline:
                raise InferenceError("the request waited too long for its turn", 504)  # noqa: TRY301
            if model is None:
                raise InferenceError("the model is not ready", 503, retry_after=1)  # noqa: TRY301
            # Whatever hangs from here on is ended with the process, by the kernel.
            signal.setitimer(signal.ITIMER_REAL, self._config.infer_seconds + _GRACE_SECONDS)
            body = request.region[: request.nbytes]
            inference = self._forms.parse(body, request.header_nbytes)
            shapes = key_of(inference.shapes)
            ready = self._programs.find(shapes)
            if ready is None:
                self._await_program(request, shapes)
                return
            ready.program.feed(inference.inputs)
            ready.program.step()
            answer = self._answer(ready, inference, request.region)
        except Exception as error:  # the border of the process: whatever it was must be told
            self._refuse(request, _refusal(error))
            return
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        times = began - request.came, time.monotonic() - began
        if answer.nbytes > request.capacity:
            request.client.held[request.id] = answer.kept(), times
            request.client.send(channel.NEEDS.pack(b"N", request.id, answer.nbytes))
        else:
            self._put(request, answer, 200, *times)

    def _answer(self, ready: Ready, inference: oip_codec.Inference, region: memoryview) -> oip_answers.Answer:
        """Answer with the outputs; the same as before where the program has them in the same arrays.

        After a run little of this is in the caches: what need not be done again is waited for less.
        """
        outputs, form = ready.program.peek(), inference.form
        known = None if form is None else ready.answers.get(form)
        if known is not None and known.is_of(inference, outputs):
            return known
        apart = _apart(outputs, region)
        answer = oip_answers.answer(self._config.name, self._config.version, inference, apart)
        if form is not None and answer.is_of(inference, outputs):
            if len(ready.answers) >= _MOST_ANSWERS:
                ready.answers.clear()
            ready.answers[form] = answer
        return answer

    def _await_program(self, request: _Request, shapes: Shapes) -> None:
        waiting = self._waiting_requests.setdefault(shapes, [])
        if not waiting:
            self._builder.want(shapes)
        waiting.append(request)
        request.client.send(channel.BUILDING.pack(b"B", request.id))

    def _refuse(self, request: _Request, error: InferenceError) -> None:
        waited = time.monotonic() - request.came
        self._put(request, oip_answers.Answer(error.body(), ()), error.status, waited, 0.0)

    def _put(
        self, request: _Request, answer: oip_answers.Answer, status: int, waited: float, ran: float
    ) -> None:
        answer.write(request.region)
        header = answer.header_nbytes
        packed = channel.ANSWER.pack(b"A", request.id, status, answer.nbytes, header, waited, ran)
        request.client.send(packed)


def _refusal(error: Exception) -> InferenceError:
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
