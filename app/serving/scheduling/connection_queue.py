"""Connections that call a model with enough to do: they are read in turn.

A request that lies unread in the kernel takes no time from those that are served. One that is read and
refused takes almost as much as an answer of a small model, and its client has another one at once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

_UNREAD_SECONDS = 1.0  # what refused clients are told to wait
_SHARE = 0.5  # of a request's time limit that it may lie unread
_ENOUGH = 0.75  # of the requests that may wait: the others are for connections that have no turn
_LOOP_TURNS = 2  # of the event loop after that in which a connection is read, until its request is here
_FORGET = 1.05  # factor of the shortest time limit with each answer to a request that had a longer one


class ConnectionQueue:
    """Connections to one model, in the order in which they are read next.

    Args:
        most: requests that may wait for the model.
        waiting: number of those that do.
        seconds: time limit of a request that has none of its own.
    """

    def __init__(self, most: int, waiting: Callable[[], int], seconds: float) -> None:
        self._enough = max(1, int(most * _ENOUGH))
        self._waiting = waiting
        self._limit = seconds
        self._resume: OrderedDict[object, Callable[[], None]] = OrderedDict()
        self._called = 0  # connections so far
        self._arrived = 0  # of these, those whose request is here, or that have none

    def __len__(self) -> int:
        return len(self._resume)

    @property
    def is_needed(self) -> bool:
        """True while no connection is to be read out of turn."""
        return bool(self._resume) or self._waiting() >= self._enough

    @property
    def patience(self) -> float:
        """Seconds after which a connection is read though its turn has not come."""
        return min(_UNREAD_SECONDS, self._limit * _SHARE)

    def note_limit(self, seconds: float) -> None:
        """Note the time limit of a request: patience goes by the shortest of late."""
        self._limit = min(seconds, self._limit * _FORGET)

    def note_arrival(self) -> None:
        """Note a request: it may be of the connection that was called first."""
        self._arrived = min(self._arrived + 1, self._called)

    def add(self, connection: object, resume: Callable[[], None]) -> None:
        """Let a connection be the last one; `resume` is called when its turn comes."""
        self._resume[connection] = resume
        self.call()

    def remove(self, connection: object) -> None:
        """Take a connection out, where it is in."""
        self._resume.pop(connection, None)

    def call(self) -> None:
        """Call as many as the model has room for."""
        before = self._called
        while self._resume and self._waiting() + self._called - self._arrived < self._enough:
            self._called += 1
            self._resume.popitem(last=False)[1]()
        if self._called > before:
            asyncio.get_running_loop().call_soon(self._forget, self._called, _LOOP_TURNS)

    def _forget(self, count: int, turns: int) -> None:
        """Wait no longer for so many that were called first: they have no request."""
        if turns:
            asyncio.get_running_loop().call_soon(self._forget, count, turns - 1)
        elif count > self._arrived:
            self._arrived = count
            self.call()
