"""Numbers beyond planned bounds, which kernels write and the executor reads after a run."""

import numpy as np

from app.engine.core.calls import Excess
from app.engine.runtime.cpu.memory import Array, Pool


class ExcessNumbers:
    """The `Excess` arguments of a program, in memory outside of its arena.

    Args:
        pool: where they lie.
        drawn: inputs are drawn to take times; none of the numbers is an error.
    """

    def __init__(self, pool: Pool, *, drawn: bool) -> None:
        self.drawn = drawn
        self._pool = pool
        self._numbers: dict[Excess, Array] = {}

    def address(self, excess: Excess) -> int:
        """Address of a number, which is zero."""
        if excess not in self._numbers:
            self._numbers[excess] = self._pool.take(8).view(np.int64)
        return int(self._numbers[excess].ctypes.data)

    def check(self) -> None:
        """Accept the last run or refuse it.

        Raises:
            InputError: a number is beyond its bound: a value stores more than the job declares of it, an axis
                is none.
        """
        for excess, number in self._numbers.items():
            if number[0] and excess.before and not self.drawn:
                found, number[0] = int(number[0]), 0
                raise excess.error(f"{excess.before}{found}{excess.after}", pointer=excess.pointer)
