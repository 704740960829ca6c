"""Spans cost nothing and need nothing where they go nowhere."""

import importlib.util

import pytest

from app.settings import Settings, SettingsError
from app.telemetry import tracing


def test_without_an_endpoint_there_are_no_spans() -> None:
    tracing.configure(Settings(), "api")
    with tracing.span("request", None, method="GET"):
        assert tracing.traceparent() is None
    tracing.close()


@pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry.sdk") is not None, reason="the extra otel is installed"
)
def test_an_endpoint_without_the_extra_is_told() -> None:
    with pytest.raises(SettingsError, match=r"stowplan\[otel\]"):
        tracing.configure(Settings(otlp_endpoint="http://127.0.0.1:4318/v1/traces"), "api")
