"""Long polling: an answer that waits for its end, without holding a thread."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query
from pydantic import BeforeValidator
from starlette.concurrency import run_in_threadpool

from app.api.service import Service

POLL_SECONDS = 0.1
_QUICK_SECONDS, _SLOW_SECONDS = 0.02, 0.5
_PATIENCE = 0.05  # of the time that has passed: what an answer may come late
MAX_SECONDS = 60.0
T = TypeVar("T")


def _seconds(given: object) -> object:
    return given.removesuffix("s") if isinstance(given, str) else given


Wait = Annotated[
    Annotated[float, BeforeValidator(_seconds)] | None,
    Query(
        ge=0,
        le=MAX_SECONDS,
        description="Seconds (`20` or `20s`) to wait for the end before answering; at most 60.",
        json_schema_extra={"type": "number"},
        examples=[20],
    ),
]


async def until_done(service: Service, look: Callable[[], tuple[T, bool]], seconds: float | None) -> T:
    """Look again and again until it is done, the time is over, or the service stops."""
    began = time.monotonic()
    while True:
        answer, done = await run_in_threadpool(look)
        passed = time.monotonic() - began
        if done or passed >= (seconds or 0.0) or service.stopping.is_set():
            return answer
        await asyncio.sleep(min(max(_QUICK_SECONDS, _PATIENCE * passed), _SLOW_SECONDS))
