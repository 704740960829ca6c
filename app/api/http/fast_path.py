"""The short way of inferences whose heads are known: from the connection to the executor, and back.

The parser, the middleware and the routes were passed a moment ago by a request with the same head
(`app.api.http.head_cache`), and would come to the same. What they do besides is done here as well: the
request counts for its key, and in metrics and log. What a model cannot answer is left to the long way.
"""

import asyncio
import time
from contextlib import nullcontext
from functools import lru_cache

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.http import connection_limits, headers
from app.api.http.connection import Connection
from app.api.http.head_cache import Admitted
from app.api.routes.inference import answer_of
from app.api.service import Service
from app.jobs.store.auth_context import acting_for
from app.serving.executor_client import Call, Outcome, Reply
from app.serving.model_repository import Deployed
from app.serving.oip_codec import InferenceError
from app.telemetry import logs

_MOST_LINES = 256  # first lines of replies that are remembered
_DEFAULTS = "".join(f"{name}: {value}\r\n" for name, value in headers.DEFAULTS).encode()


class Express:
    """Takes inferences whose heads are known."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def enter(self, head: bytes, connection: Connection) -> "Inference | None":
        """Take a request; None when it must go the long way."""
        service = self._service
        admitted = service.heads.find(head)
        if admitted is None:
            return None
        if service.answering[admitted.caller.key] >= service.settings.max_requests_per_key:
            return None
        try:
            with acting_for(admitted.caller):
                deployed = service.deployed_models.find(admitted.name, admitted.version)
            call = deployed.client.reserve(admitted.nbytes, admitted.header_nbytes)
        except InferenceError:
            return None
        return Inference(service, admitted, deployed, call, connection)


class Inference:
    """One request.

    Attributes:
        place: where its body goes.
    """

    def __init__(
        self, service: Service, admitted: Admitted, deployed: Deployed, call: Call, connection: Connection
    ) -> None:
        self._service = service
        self._admitted = admitted
        self._deployed = deployed
        self._call = call
        self._connection: Connection | None = connection
        self._began = time.monotonic()
        self._alarm = asyncio.get_running_loop().call_later(deployed.client.seconds, self._expire)
        self._has_body = False
        self._request_id = ""
        self._guarded = connection_limits.current()
        if self._guarded is not None:
            self._guarded.begin()
        self.place = deployed.client.place(call, admitted.nbytes)
        service.answering[admitted.caller.key] += 1

    def go_on(self) -> None:
        """The body has come."""
        self._alarm.cancel()
        self._has_body = True
        client, admitted = self._deployed.client, self._admitted
        deadline = self._began + client.seconds
        try:
            client.submit(self._call, admitted.nbytes, admitted.header_nbytes, deadline, self._end)
        except InferenceError as error:
            self._end(error)
        else:
            self._request_id = headers.new_id()  # now, while nobody waits for this process

    def leave(self) -> None:
        """The client has left; an answer is counted when it comes."""
        self._connection = None
        if not self._has_body:
            self._give_up(InferenceError("the client is gone"))

    def _expire(self) -> None:
        self._give_up(self._deployed.client.late_body())

    def _give_up(self, error: InferenceError) -> None:
        self._alarm.cancel()
        self._deployed.client.release(self._call)
        self._end(error, close=True)

    def _end(self, outcome: Outcome, *, close: bool = False) -> None:
        self._service.answering[self._admitted.caller.key] -= 1
        seconds = time.monotonic() - self._began
        request_id = self._request_id or headers.new_id()
        self._note(outcome, seconds, request_id)
        if self._guarded is not None:
            self._guarded.end()
        if self._connection is not None:
            head, body = _told(outcome)
            own = f"x-request-id: {request_id}\r\n".encode()
            with nullcontext() if self._guarded is None else self._guarded.entered():
                self._connection.answer(b"".join((head, own, _DEFAULTS)), body, close=close)

    def _note(self, outcome: Outcome, seconds: float, request_id: str) -> None:
        admitted = self._admitted
        times = (outcome.waited, outcome.ran) if isinstance(outcome, Reply) else (None, None)
        self._deployed.metrics.note(outcome.status, seconds, *times)
        self._service.http_metrics.note("POST", admitted.route, outcome.status, seconds)
        with logs.about(request_id=request_id):
            headers.log("POST", admitted.path, outcome.status, seconds, admitted.caller.key)


def _told(outcome: Outcome) -> tuple[bytes, bytes]:
    """An outcome as the first lines of a head, and a body."""
    if isinstance(outcome, Reply):
        return _lines(outcome.status, len(outcome.body), outcome.header_nbytes), outcome.body
    response = answer_of(outcome)
    return _lines_of(response), bytes(response.body)


@lru_cache(maxsize=_MOST_LINES)
def _lines(status: int, nbytes: int, header_nbytes: int) -> bytes:
    """The first lines of a reply of such sizes: a model's replies have the same again and again."""
    return _lines_of(answer_of(Reply(status, bytes(nbytes), header_nbytes, None, None)))


def _lines_of(response: Response) -> bytes:
    lines = (b"%b: %b\r\n" % pair for pair in response.raw_headers)
    return b"".join((STATUS_LINE[response.status_code], *lines))
