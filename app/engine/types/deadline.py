"""Time limits for Python code that offers none of its own, such as the reference evaluator.

The evaluator's slow operators are loops in Python: a trace function, which the interpreter calls at every
line in this thread, ends them. A thread could not be ended and would take a core from what is measured next;
a process would parse and hold the model a second time; a signal reaches the main thread only.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TimeUpError(Exception):
    """A time limit was reached."""


class _Stop(BaseException):  # what is stopped may catch any Exception
    pass


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End functions that the block calls at their first line after so many seconds.

    Raises:
        TimeUpError: the block was ended.
    """
    end, before = time.monotonic() + seconds, sys.gettrace()

    def look(_frame: FrameType, _event: str, _argument: object) -> Any:
        if time.monotonic() >= end:
            raise _Stop
        return look

    sys.settrace(look)
    try:
        yield
    except _Stop:
        raise TimeUpError(f"longer than {seconds:.0f} s") from None
    finally:
        sys.settrace(before)
