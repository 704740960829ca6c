"""Time limits for Python code that offers none of its own, such as the reference evaluator.

The evaluator's slow operators are loops in Python: a profile function, which the interpreter calls at
every call in this thread, ends them. A thread could not be ended and would take a core from what is
measured next; a process would parse and hold the model a second time; a signal reaches the main thread only.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeUpError(Exception):
    """A time limit was reached."""


class _Stop(BaseException):  # what is stopped may catch any Exception
    pass


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End the block at its first call of a function after so many seconds.

    Raises:
        TimeUpError: the block was ended.
    """
    end, before = time.monotonic() + seconds, sys.getprofile()

    def look(_frame: FrameType, _event: str, _argument: object) -> None:
        if time.monotonic() > end:
            raise _Stop

    sys.setprofile(look)
    try:
        yield
    except _Stop:
        raise TimeUpError(f"longer than {seconds:.0f} s") from None
    finally:
        sys.setprofile(before)
