"""Spans of requests and jobs for OpenTelemetry, where the extra is installed and an endpoint is set.

A job carries the trace of the request that made it, so that its run, in another process and maybe
on another machine, joins it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.settings import PREFIX, Settings, SettingsError

_provider: Any = None  # of this process; None while spans go nowhere


def configure(settings: Settings, part: str) -> None:
    """Send spans to the endpoint of the settings, if there is one.

    Raises:
        SettingsError: there is one, but the extra `otel` is not installed.
    """
    global _provider
    if not settings.otlp_endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(
            f"{PREFIX}OTLP_ENDPOINT is set, but OpenTelemetry is not installed; install stowplan[otel]"
        ) from error
    _provider = TracerProvider(resource=Resource.create({"service.name": f"stowplan-{part}"}))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.otlp_endpoint)))


def close() -> None:
    """Send what was not sent yet: the process ends."""
    if _provider is not None:
        _provider.shutdown()


@contextmanager
def span(name: str, parent: str | None = None, **attributes: str) -> Iterator[None]:
    """A span until the context is left, below that of a W3C `traceparent`."""
    if _provider is None:
        yield
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent else None
    tracer = _provider.get_tracer("stowplan")
    with tracer.start_as_current_span(name, context=context, attributes=attributes):
        yield


def traceparent() -> str | None:
    """The W3C `traceparent` of the present span."""
    if _provider is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")
