"""Ties a process to the life of its parent. Imports nothing heavy: it is the first thing a child does."""

import ctypes
import os
import sys
from collections.abc import Callable
from signal import SIGHUP

_PR_SET_PDEATHSIG = 1


def end_with(parent: int, signal: int) -> None:
    """Let the kernel send this process a signal when its parent, or the thread that started it, ends.

    Nothing happens where the kernel has no such request.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal)
    if os.getppid() != parent:  # it ended before the signal was asked for
        os._exit(1)


def enter(parent: int, work: Callable[[str], None], argument: str) -> None:
    """Work in a process of its own until the parent ends: nobody waits for it then, so it ends at once."""
    end_with(parent, SIGHUP)
    work(argument)
