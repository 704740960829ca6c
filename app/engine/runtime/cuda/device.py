"""Interface of a GPU to the executor. The real one is `app.engine.runtime.cuda.driver`; tests bring others.

All work of a program goes to one stream: what is asked for later sees what was asked for earlier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from app.kernels.cuda.kernel import Kernel

Array: TypeAlias = np.ndarray[Any, Any]

ALIGNMENT = 256  # byte: what every tensor begins at, a multiple of the widest access


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address that a kernel is given: that of `nbytes` byte of elements of a kernel type.

    A kernel may touch no other byte through it.
    """

    address: int
    nbytes: int
    element: str  # as kernels name it: bfloat16 is carried as uint16


Passed: TypeAlias = Pointer | int | float


class Loaded(Protocol):
    """A kernel that the device has loaded."""

    def bound(self, grid: tuple[int, int, int], arguments: Sequence[Passed]) -> Callable[[], None]:
        """A function that launches it with this grid and these arguments."""


class Device(Protocol):
    """A GPU, or what stands in for one."""

    @property
    def name(self) -> str:
        """As its maker calls it."""

    @property
    def sm(self) -> str:
        """Its generation: `sm_90`."""

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, a multiple of ALIGNMENT; its bytes are undefined.

        Raises:
            CapacityError: there is not as much memory left.
        """

    def release(self, address: int) -> None:
        """Give memory back."""

    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous array to the device; it may change as soon as this returns."""

    def read(self, address: int, array: Array) -> None:
        """Copy from the device into a contiguous array, and wait for it."""

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set bytes."""

    def load(self, kernel: Kernel) -> Loaded:
        """A kernel made ready to be launched, compiled if need be.

        Raises:
            KernelError: it cannot be compiled for this device, or loaded.
        """

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that launches, in one call, all that `work` launches; `work` launches nothing else.

        `work` has run before: everything that it needs is loaded.
        """

    def wait(self) -> None:
        """Return when all work is done.

        Raises:
            KernelError: a kernel failed.
        """

    def timeline(self, works: Sequence[Callable[[], None]]) -> Callable[[], list[float]]:
        """Works recorded as one; a call runs them in turn and gives the seconds that each takes.

        The host's time for launches is not in them. As with `record`, all works have run before.
        """

    def elapsed(self, works: Sequence[Callable[[], None]]) -> list[float]:
        """Run works in turn; the seconds that each takes on the device, all having been sent beforehand.

        Works run again if the device was faster than the host, so running them twice must do no harm. Where
        a work waits for the device itself, the host's time is in its seconds.
        """

    def close(self) -> None:
        """Give everything back."""
