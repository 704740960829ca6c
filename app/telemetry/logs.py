"""Logs for people or machines: every line carries the ids of the request and the job it is about."""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from app.settings import Settings

_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "about"}


@contextmanager
def about(**ids: str) -> Iterator[None]:
    """Let every line that is logged in this context carry ids."""
    token = _ABOUT.set({**_ABOUT.get(), **ids})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def configure(settings: Settings, part: str) -> None:
    """Log to standard error as the settings say; `part` names the process."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json(part) if settings.log_format == "json" else _Text())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("stowplan.confinement").setLevel(min(logging.INFO, logging.root.level))  # always told
    for chatty in ("httpx", "httpcore", "alembic", "dbos"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.root.level))
    show_topics(settings)


def show_topics(settings: Settings) -> None:
    """Log the details of the engine's topics that the settings name, in whatever process runs the engine."""
    if settings.log and not logging.root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Text())
        logging.root.addHandler(handler)
    for topic in settings.log:
        logging.getLogger(f"stowplan.{topic}").setLevel(logging.DEBUG)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """Fields of a log line besides its text."""
    return {k: v for k, v in vars(record).items() if k not in _KNOWN}


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(name)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        ids = "".join(f" {k}={v}" for k, v in {**_ABOUT.get(), **_extra(record)}.items())
        return super().formatMessage(record) + ids


class _Json(logging.Formatter):
    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "part": self._part,
            "logger": record.name,
            "message": record.getMessage(),
            **_ABOUT.get(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
