"""An executor process: one deployed model, called through shared memory.

One thread reads requests, each instance has one that runs them in the order in which they came, another one
compiles. Beside the child of a job it is the other place where an uploaded model is parsed and run, and it
has limits of its own. A run that takes too long ends the process: nothing else could end it inside compiled
code. The supervisor starts it again.
"""

import contextlib
import faulthandler
import json
import logging
import math
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.engine.planning.capacity.configuration import SWITCH_SECONDS, cores_of
from app.jobs.worker import confinement
from app.jobs.worker.child_request import options_of
from app.jobs.worker.engine_protocol import ServedModel
from app.jobs.worker.parent_death import ORPHANED, end_with
from app.serving import channel, oip_codec
from app.serving.executor_config import ExecutorConfig
from app.serving.oip_codec import InferenceError
from app.serving.oip_forms import Forms
from app.serving.program_cache import Batch, Builder, Built, Programs, Shapes, key_of
from app.serving.scheduling.instance import Instance, RunLimit, refused
from app.serving.scheduling.requests import Client, Request
from app.serving.scheduling.run_queue import RunQueue
from app.settings import Settings, use_home
from app.telemetry import logs

_READER = -1  # the thread that reads requests, among those that `RunLimit` watches
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
    for folder in (Path(config.kernels), Path(config.weights), scratch):
        confinement.hand_over(folder)
    use_home(scratch)
    tempfile.tempdir = str(scratch)
    supervisor = os.getppid()
    measures = confinement.enter()
    end_with(supervisor, ORPHANED)  # a change of the user has ended it
    readable = (config.model, *config.external.values())
    writable = (config.kernels, config.weights, scratch)
    confinement.restrict_files(measures, readable, writable, config.data, ("app", config.engine))
    confinement.restrict_calls(measures)
    told = ", ".join(map(str, measures))
    logging.getLogger("stowplan.confinement").info("%s:%s is confined: %s", config.name, config.version, told)


class Executor:
    """The loop of one process; it ends soon after `stop` is readable."""

    def __init__(self, config: ExecutorConfig, stop: int, listener: socket.socket) -> None:
        self._config = config
        self._stop = stop
        self._stopping = False
        self._listener = listener
        self._poll = select.poll()
        self._clients: dict[int, Client] = {}
        cores = cores_of(config.instances, options_of(config.options).threads)
        self._queue = RunQueue(len(cores), config.batch_seconds if config.batches else 0.0)
        self._limit = RunLimit(config.infer_seconds)
        name = config.name, config.version
        self._instances = [Instance(i, name, self._queue, self._limit, c) for i, c in enumerate(cores)]
        # By the program that they wait for.
        self._waiting_requests: dict[Shapes, list[tuple[Request, oip_codec.Inference]]] = {}
        self._programs = Programs(config.programs, self._queue.drop)
        self._builder = Builder(config, cores)
        self._model: ServedModel | None = None
        self._forms = Forms((), (), {})
        self._state: dict[str, Any] = {"state": "loading", "detail": "", "programs": 0, "metadata": None}
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._builder.ready, select.POLLIN)
        self._poll.register(stop, select.POLLIN)

    def serve(self) -> None:
        """Answer requests until the process shall stop and no API process is connected any more."""
        while self._clients or not self._stopping:
            patience = self._queue.patience()
            for descriptor, _ in self._poll.poll(None if patience is None else math.ceil(patience * 1e3)):
                self._listen_to(descriptor)
            self._queue.expire()

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
            client = self._clients[connection.fileno()] = Client(connection)
            self._poll.register(connection, select.POLLIN)
            self._tell(client)

    def _read(self, client: Client) -> None:
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

    def _hear(self, client: Client, text: bytes, descriptors: list[int]) -> None:
        if text[:1] == b"Q":
            _, number, offset, capacity, nbytes, header, began, deadline = channel.REQUEST.unpack(text)
            now = time.monotonic()
            self._admit(Request(client, number, offset, capacity, nbytes, header, began, deadline, came=now))
        elif text[:1] == b"G":
            _, number, offset, capacity = channel.GRANT.unpack(text)
            request, answer, told = client.held.pop(number)
            if capacity:
                client.put(request, client.arena[offset : offset + capacity], answer, told)
        elif text[:1] == b"M":
            _, nbytes = channel.ARENA.unpack(text)
            client.map_arena(nbytes, descriptors[0])

    def _forget(self, client: Client) -> None:
        """An API process has ended: nobody waits for its requests."""
        self._poll.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        client.socket.close()
        self._queue.remove(lambda request: request.client is client)
        for shapes, requests in self._waiting_requests.items():
            self._waiting_requests[shapes] = [row for row in requests if row[0].client is not client]

    def _tell(self, *clients: Client) -> None:
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
        if built.request is None:
            self._begin(built)
        elif built.request[1] > 1:
            self._take_batch(built, *built.request)
        else:
            self._take_programs(built, built.request[0])
        self._state["programs"] = len(self._programs)
        self._tell(*self._clients.values())

    def _take_programs(self, built: Built, shapes: Shapes) -> None:
        waiting = self._waiting_requests.pop(shapes, [])
        if not built.programs:
            self._note_rejection(built, shapes)
            for request, _ in waiting:
                request.refuse(InferenceError(built.rejection, 503 if built.is_fault else 400))
            return
        self._programs.keep(shapes, built.programs)
        for request, inference in waiting:
            try:
                self._schedule(request, inference)
            except InferenceError as error:
                request.refuse(error)
        for count in () if built.early else reversed(self._config.batches):
            self._builder.want(shapes, count)  # those of fewer requests find room in the arena of the first
        if not self._config.batches:
            self._state["state"] = "ready"

    def _take_batch(self, built: Built, shapes: Shapes, count: int) -> None:
        """Programs that compute requests together; a model is not ready before its first ones."""
        if not built.programs:
            self._note_rejection(built, shapes)
            self._state["detail"] = built.rejection
            return
        self._queue.add_batch(self._programs.find(shapes), count, Batch(built.programs, built.rows))
        if count == self._config.batches[0] and self._state["state"] == "loading":
            self._state["state"] = "ready"

    def _note_rejection(self, built: Built, shapes: Shapes) -> None:
        if self._state["state"] == "ready":
            logger.warning("shapes %s: %s", dict(shapes), built.rejection)
        else:
            self._state |= {"state": "failed", "detail": built.rejection}

    def _begin(self, built: Built) -> None:
        """The model is loaded, or cannot be."""
        model, rejection = built.model, built.rejection
        if model is not None:
            rejection = oip_codec.unserved((*model.inputs, *model.outputs)) or ""
        if model is None or rejection:
            self._state |= {"state": "failed", "detail": rejection}
            return
        self._model = model
        self._forms = Forms(model.inputs, model.outputs, model.fixed)
        self._state["metadata"] = {
            "inputs": [oip_codec.metadata(p) for p in model.inputs],
            "outputs": [oip_codec.metadata(p) for p in model.outputs],
        }
        if model.first is None:
            self._state["state"] = "ready"
        else:
            self._builder.want(key_of(model.first))

    def _admit(self, request: Request) -> None:
        """Read a request, and let it wait for an instance or for its program."""
        try:
            if self._model is None:
                raise InferenceError("the model is not ready", 503, retry_after=1)  # noqa: TRY301
            self._limit.begin(_READER)
            try:
                inference = self._forms.parse(request.body, request.header_nbytes)
            finally:
                self._limit.end(_READER)
            if inference.seconds is not None:
                request.deadline = min(request.deadline, request.began + inference.seconds)
            self._schedule(request, inference)
        except Exception as error:  # the border of the process: whatever it was must be told
            request.refuse(refused(error))

    def _schedule(self, request: Request, inference: oip_codec.Inference) -> None:
        shapes = key_of(inference.shapes)
        ready = self._programs.find(shapes)
        if ready is not None:
            self._queue.put(request, inference, ready)
            return
        waiting = self._waiting_requests.setdefault(shapes, [])
        if not waiting:
            self._builder.want(shapes)
        waiting.append((request, inference))
        if inference.seconds is not None:
            self._queue.watch(request, InferenceError(channel.COMPILING, 503, retry_after=5))
        request.client.send(channel.BUILDING.pack(b"B", request.id))
