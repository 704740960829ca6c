"""Results of the kernels' generators: source text, and launches of it on buffers that have names.

A kernel's source is the text of one function `kernel`. It may use the names of
`primitives.py`, Python's operators, `if`, `for ... in range` and `while`; it imports nothing. The
compiler and the simulator of the tests each run it among their own versions of these names.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

LIMITS = {
    "threads": 1024,
    "shared_bytes": 232_448,
    "grid_yz": 65_535,
}  # sm_90; the driver tells a device's own
STATIC_SHARED = 49_152  # bytes; beyond, the launch must set the attribute of the function

WORKSPACE = "workspace"


class KernelError(Exception):
    """A kernel that cannot be made, compiled or launched as asked; the message tells the way out."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: everything that its machine code depends on.

    Args:
        name: symbol in the cubin, an identifier; says family and tile, for profiles and reports.
        source: text that defines `kernel`.
        signature: of its parameters, `float32*` and the like for addresses, else `uint32`, `int32`
            or `float32`. bfloat16 and float16 travel as `uint16*`.
        threads: in a block, one dimension.
        minimum_blocks: on one multiprocessor at a time, which limits registers.
        shared_bytes: of dynamic shared memory, which `shared_f32(offset)` and the like address.
        only: the one generation that has its instructions ("sm_90"); empty: all from sm_80 on.
    """

    name: str
    source: str
    signature: tuple[str, ...]
    threads: int
    minimum_blocks: int = 1
    shared_bytes: int = 0
    only: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"kernel '{self.name}': the name must be an identifier")
        if not 1 <= self.threads <= LIMITS["threads"]:
            raise ValueError(f"kernel '{self.name}': {self.threads} threads in a block, a GPU has 1 to 1024")
        if self.shared_bytes > LIMITS["shared_bytes"]:
            raise ValueError(
                f"kernel '{self.name}': {self.shared_bytes} byte of shared memory, "
                f"sm_90 has {LIMITS['shared_bytes']}"
            )


@dataclass(frozen=True, slots=True)
class Ref:
    """The address of a buffer, by the role that the launch's maker documents ("x", "w", "y" ...)."""

    role: str
    offset: int = 0  # bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: blocks of a kernel and its arguments in the order of the signature."""

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: tuple[Ref | int | float, ...]

    def __post_init__(self) -> None:
        if len(self.arguments) != len(self.kernel.signature):
            raise ValueError(
                f"kernel '{self.kernel.name}' takes {len(self.kernel.signature)} arguments, "
                f"found {len(self.arguments)}"
            )
        for kind, argument in zip(self.kernel.signature, self.arguments, strict=True):
            if kind.endswith("*") != isinstance(argument, Ref):
                raise ValueError(f"kernel '{self.kernel.name}': expected a {kind}, found {argument!r}")
        x, y, z = self.grid
        if not (0 < x < 2**31 and 0 < y <= LIMITS["grid_yz"] and 0 < z <= LIMITS["grid_yz"]):
            raise ValueError(
                f"kernel '{self.kernel.name}': a grid of {self.grid}, expected 1 to 2^31 - 1 blocks along x "
                f"and 1 to {LIMITS['grid_yz']} along y and z"
            )


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches that compute one operator, in order, each after the one before.

    `workspace` are the bytes behind the role "workspace", which nothing needs before or after;
    contents are undefined at first. Kernels that need zeros there write them.
    """

    steps: tuple[Launch, ...]
    workspace: int = 0

    @classmethod
    def of(cls, kernel: Kernel, blocks: int, roles: Iterable[str], *numbers: int) -> "Launches":
        """One launch, or none, of blocks along x: roles of the addresses, then numbers."""
        arguments: tuple[Ref | int, ...] = (*map(Ref, roles), *numbers)
        return cls((Launch(kernel, (blocks, 1, 1), arguments),) if blocks else ())

    def moved(self, places: Mapping[str, Ref]) -> "Launches":
        """The same with other addresses for some roles; offsets add up."""

        def moved(argument: Ref | int | float) -> Ref | int | float:
            if not isinstance(argument, Ref) or argument.role not in places:
                return argument
            place = places[argument.role]
            return Ref(place.role, place.offset + argument.offset)

        steps = (replace(step, arguments=tuple(map(moved, step.arguments))) for step in self.steps)
        return Launches(tuple(steps), self.workspace)

    def __iter__(self) -> Iterator[Launch]:
        return iter(self.steps)
