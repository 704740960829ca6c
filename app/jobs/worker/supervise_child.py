"""Carries out one request in one child, within limits: nothing that the child does holds the worker up."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.jobs.worker.benchmark_lock import WAITING
from app.jobs.worker.child_request import ChildRequest, Limits
from app.jobs.worker.prefork_pool import Child

_TICK = 0.1  # seconds between two looks at memory and clock
_START_SECONDS = 60.0  # for a process to start and import what it needs
_KILLED = (-signal.SIGKILL, 255)  # 255: the process that forked it died, and took it along
_ASK = 0.25  # seconds between two questions whether the job should go on


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: a result, or a failure with a code, or neither when it was stopped.

    `killed` says that someone else killed the process: its request may do better another time.
    """

    result: Any = None
    code: str | None = None
    detail: str | None = None
    pointer: str | None = None
    stopped: bool = False
    killed: bool = False


def carry_out(
    child: Child,
    request: ChildRequest,
    progress: Callable[[str, int, int], None],
    should_stop: Callable[[], bool],
) -> Outcome:
    """Let the child do what is asked, and kill it and its process group when it has answered.

    It is also killed when it takes longer or holds more memory than its limits allow, and soon after
    `should_stop` says so.
    """
    child.send(request.to_json())
    outcome: Outcome | None = None
    deadline = time.monotonic() + _START_SECONDS
    phase, looked = "starting", time.monotonic()
    ask, weigh = looked + _ASK, looked
    try:
        while outcome is None:
            message = child.receive(_TICK) or {}
            now = time.monotonic()
            if phase == WAITING:
                deadline += now - looked  # its own time has not begun
            looked = now
            if "ready" in message:
                deadline = time.monotonic() + request.limits.seconds
            if "progress" in message:
                phase, done, total = str(message["progress"][0]), *map(int, message["progress"][1:3])
                progress(phase, done, total)
            outcome = _answer(message)
            if outcome is None and now >= weigh:
                weigh = now + _TICK
                outcome = _breach(child, request.limits, deadline, phase)
            if outcome is None and now > ask:
                ask = now + _ASK
                outcome = Outcome(stopped=True) if should_stop() else None
    except EOFError:
        code = child.end()
        detail = f"the process {_ending(code)} in phase {phase!r}"
        return Outcome(code="child-crashed", detail=detail, killed=code in _KILLED)
    finally:
        child.kill()
    return outcome


def _answer(message: Mapping[str, Any]) -> Outcome | None:
    if "result" in message:
        return Outcome(result=message["result"])
    if "error" in message:
        code, detail, pointer = (str(message["error"][k]) for k in ("code", "detail", "pointer"))
        return Outcome(code=code, detail=detail, pointer=pointer)
    return None


def _breach(child: Child, limits: Limits, deadline: float, phase: str) -> Outcome | None:
    if time.monotonic() > deadline:
        return Outcome(
            code="time-limit", detail=f"the job exceeded its limit of {limits.seconds:g} s in phase {phase!r}"
        )
    held = child.resident_bytes()
    if held > limits.memory_bytes:
        return Outcome(
            code="memory-limit",
            detail=(
                f"the job held {held} byte of memory in phase {phase!r}, "
                f"its limit is {limits.memory_bytes} byte"
            ),
        )
    return None


def _ending(code: int | None) -> str:
    if code is None:
        return "ended without an answer"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
