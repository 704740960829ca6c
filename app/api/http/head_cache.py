"""Heads of inferences that were answered a moment ago: the same bytes again need no second reading.

Clients of a model send one head with every request: the same address, key and sizes. What was found
when the first one went through all checks holds for the others as long as the gate lets what it knows
of the caller's key hold (`gate.Rule.seconds`).
"""

import time
from dataclasses import dataclass

from app.jobs.store.auth_context import Caller

_MOST = 256  # heads that are known at once
# What a request differs by from others, or wants of its connection, is not for those after it.
_OWN = (b"origin", b"traceparent", b"expect", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a head came to.

    Attributes:
        caller: who sent it.
        name: of the model that it is for.
        version: of that, None for the latest.
        nbytes: of the body that follows.
        header_nbytes: of the JSON at its start; None when all of it is.
        path: that it asks for.
        route: under which such requests are counted.
        until: when this ends, of the monotonic clock.
    """

    caller: Caller
    name: str
    version: str | None
    nbytes: int
    header_nbytes: int | None
    path: str
    route: str
    until: float


class Heads:
    """The heads that are known."""

    def __init__(self) -> None:
        self._known: dict[bytes, Admitted] = {}

    def find(self, head: bytes) -> Admitted | None:
        """What a head came to, if that still holds."""
        found = self._known.get(head)
        if found is None or time.monotonic() < found.until:
            return found
        del self._known[head]
        return None

    def keep(self, head: bytes, admitted: Admitted) -> None:
        """Let the same head come to the same, for a while."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[head] = admitted


def is_common(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether other requests may have the same head, and want no more than an answer."""
    return not any(name in _OWN for name, _ in headers)
