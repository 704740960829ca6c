"""Devices that stand in for a GPU: one only writes down what is asked of it, one simulates every kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.engine.runtime.cuda.device import ALIGNMENT, Array, Passed, Pointer
from app.engine.types.errors import CapacityError
from app.kernels.cuda.kernel import Kernel, Launch, Ref
from tests.kernels.cuda.simulator import simulate

START = 1 << 20  # where memory of a made-up device begins
UNDEFINED = 0xFF  # every floating-point type reads NaN


@dataclass
class Log:
    """What a device was asked for, in order: (verb, what)."""

    entries: list[tuple[str, Any]] = field(default_factory=list)

    def of(self, verb: str) -> list[Any]:
        return [what for said, what in self.entries if said == verb]


class FakeDevice:
    """Hands out addresses and writes down what is asked for; memory holds nothing."""

    name, sm = "fake", "sm_90"

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.log = Log()
        self._free, self._next = capacity, START
        self._sizes: dict[int, int] = {}
        self._recording: list[Callable[[], None]] | None = None

    def allocate(self, nbytes: int) -> int:
        if nbytes > self._free:
            raise CapacityError(f"{nbytes} byte", needed=nbytes, available=self._free)
        self._free -= nbytes
        address = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        self._sizes[address] = nbytes
        self.log.entries.append(("allocate", (address, nbytes)))
        return address

    def release(self, address: int) -> None:
        self._free += self._sizes.pop(address)
        self.log.entries.append(("release", address))

    def write(self, address: int, array: Array) -> None:
        self.log.entries.append(("write", (address, array.nbytes)))

    def read(self, address: int, array: Array) -> None:
        self.log.entries.append(("read", (address, array.nbytes)))
        array[...] = 0

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        self.log.entries.append(("fill", (address, nbytes)))

    def load(self, kernel: Kernel) -> "Bound":
        self.log.entries.append(("load", kernel))
        return Bound(self, kernel)

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], arguments: Sequence[Passed]) -> None:
        self.log.entries.append(("launch", (kernel.name, grid, tuple(arguments))))

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        before = len(self.log.entries)
        work()
        held = self.log.entries[before:]
        del self.log.entries[before:]
        self.log.entries.append(("record", [what for _, what in held]))

        def replay() -> None:
            self.log.entries.append(("replay", [what for _, what in held]))

        return replay

    def wait(self) -> None:
        self.log.entries.append(("wait", None))

    def timeline(self, works: Sequence[Callable[[], None]]) -> Callable[[], list[float]]:
        return lambda: self.elapsed(works)

    def elapsed(self, works: Sequence[Callable[[], None]]) -> list[float]:
        for work in works:
            work()
        return [1e-6] * len(works)

    def close(self) -> None:
        self.log.entries.append(("close", None))


@dataclass
class Bound:
    device: Any
    kernel: Kernel

    def bound(self, grid: tuple[int, int, int], arguments: Sequence[Passed]) -> Callable[[], None]:
        return lambda: self.device.launch(self.kernel, grid, arguments)


class SimulatedDevice(FakeDevice):
    """Runs every launch through the simulator, on memory that starts as NaN.

    A kernel that reads or writes past the end of what it was given is an error, as is a misaligned vector;
    where it is `watched`, also one that touches what another block of its launch wrote.
    """

    name = "simulated"

    def __init__(self, seed: int = 0, *, watched: bool = False) -> None:
        super().__init__()
        self._memory: dict[int, Array] = {}
        self._seed, self._watched = seed, watched

    def allocate(self, nbytes: int) -> int:
        address = super().allocate(nbytes)
        self._memory[address] = np.full(nbytes, UNDEFINED, np.uint8)
        return address

    def release(self, address: int) -> None:
        super().release(address)
        del self._memory[address]

    def _at(self, address: int) -> tuple[Array, int]:
        start = max(a for a in self._memory if a <= address)
        return self._memory[start], address - start

    def write(self, address: int, array: Array) -> None:
        memory, at = self._at(address)
        memory[at : at + array.nbytes] = array

    def read(self, address: int, array: Array) -> None:
        memory, at = self._at(address)
        array[...] = memory[at : at + array.nbytes]

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        memory, at = self._at(address)
        memory[at : at + nbytes] = byte

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], arguments: Sequence[Passed]) -> None:
        self.log.entries.append(("launch", (kernel.name, grid, ())))
        arrays, given = {}, []
        for i, argument in enumerate(arguments):
            if isinstance(argument, Pointer):
                memory, at = self._at(argument.address)
                arrays[f"a{i}"] = memory[: at + argument.nbytes]
                given.append(Ref(f"a{i}", at))
            else:
                given.append(argument)
        simulate(Launch(kernel, grid, tuple(given)), arrays, self._seed, watched=self._watched)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself: what is replayed is launched anew."""
        self.log.entries.append(("record", None))
        return work
