"""Ties a process to the life of its parent. Imports nothing heavy: it is the first thing a child does."""

import ctypes
import importlib
import os
import signal
import sys

# Tells a part of the service that its supervisor has ended. Not SIGHUP: `nohup` has all parts ignore that,
# and a service that it protects must go on when the terminal closes.
ORPHANED = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: int) -> None:
    """Let the kernel send this process a signal when its parent, or the thread that started it, ends.

    Nothing happens where the kernel has no such request.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the signal was asked for
        os._exit(1)


def enter(parent: int, work: str, argument: str) -> None:
    """Work in a process of its own until the parent ends: nobody waits for it then, so it ends at once.

    `work` is "module:function", imported here: what it needs takes seconds, in which the parent may end too.
    """
    signal.signal(ORPHANED, signal.SIG_DFL)  # which ends the process
    end_with(parent, ORPHANED)
    module, _, function = work.partition(":")
    getattr(importlib.import_module(module), function)(argument)
