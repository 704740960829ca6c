"""Headers of every answer, for browsers and with its id; a log line and a count for each."""

import logging
import secrets
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Metric
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.telemetry import logs, tracing

# What an answer says itself stands: pages and artifacts have policies of their own.
DEFAULTS = (
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
    ("cache-control", "private, no-cache"),
)
logger = logging.getLogger("stowplan.requests")


class HttpMetrics:
    """Counters of the requests that this process answered."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry(auto_describe=True)
        labels = ("method", "route", "status")
        self._requests = Counter(
            "stowplan_http_requests",
            "Requests that this process answered, by method, route and status.",
            labels,
            registry=registry,
        )
        self._seconds = Counter(
            "stowplan_http_request_seconds",
            "Time that this process took to answer them.",
            labels,
            registry=registry,
        )

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer that took so long; `route` is "-" for a request that no route was found for."""
        labels = (method if route != "-" else "-", route, str(status))
        self._requests.labels(*labels).inc()
        self._seconds.labels(*labels).inc(seconds)

    def collect(self) -> Iterable[Metric]:
        """Present values."""
        return self._registry.collect()


class AnswerHeaders:
    """Middleware around all others: it sees every answer as it goes out."""

    def __init__(self, app: ASGIApp, http_metrics: HttpMetrics) -> None:
        self._app = app
        self._http_metrics = http_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["request_id"] = secrets.token_hex(8)
        status = 499  # what others call an answer that nobody waited for
        began = time.monotonic()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                for name, value in DEFAULTS:
                    headers.setdefault(name, value)
            await send(message)

        parent = Headers(scope=scope).get("traceparent")
        with logs.about(request_id=request_id), tracing.span("request", parent, method=scope["method"]):
            try:
                await self._app(scope, receive, send_with_headers)
            except ClientDisconnect:
                pass  # the line below tells of it, and nobody waits for an answer
            finally:
                self._note(scope, status, time.monotonic() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", "-"))
        self._http_metrics.note(scope["method"], route, status, seconds)
        caller = scope.get("caller")
        what = {"status": status, "seconds": round(seconds, 4), "key": caller.key if caller else ""}
        logger.info("%s %s", scope["method"], scope["path"], extra=what)
