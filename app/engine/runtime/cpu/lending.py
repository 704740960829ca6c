"""Inputs that kernels of a program read where the caller has them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from app.engine.core.calls import KernelCall
from app.engine.core.program import Program
from app.engine.runtime.cpu.memory import ALIGNMENT, Array
from app.engine.runtime.cpu.rows import Segment
from app.kernels.cpu.runtime.kernel_sequence import KernelSequence

# Bytes from which a copy takes longer than vectors that lie on two cache lines.
LARGE = 256 * 1024


@dataclass(slots=True)
class LentInput:
    """An input whose memory may be that of a caller.

    Attributes:
        place: memory of its own, which is read where nothing is lent.
        readers: arguments of kernels that are addresses in it: sequence, position, offset in bytes.
        lent: array that is read now; it stays as long as the program may read it.
    """

    place: Array
    readers: list[tuple[KernelSequence, int, int]] = field(default_factory=list)
    lent: Array | None = None

    def take(self, array: object) -> bool:
        """Read an array where it is; False where its memory does not lie as that of the program."""
        if (
            not isinstance(array, np.ndarray)
            or array.shape != self.place.shape
            or array.dtype != self.place.dtype
        ):
            return False
        address, multiple = array.__array_interface__["data"][0], ALIGNMENT
        if array.nbytes >= LARGE:
            multiple = array.itemsize
        if address % multiple or not array.flags.c_contiguous:
            return False
        self._point(address)
        self.lent = array
        return True

    def give_back(self) -> None:
        """Read the memory of its own again."""
        if self.lent is not None:
            self._point(self.place.__array_interface__["data"][0])
            self.lent = None

    def _point(self, address: int) -> None:
        for sequence, position, offset in self.readers:
            sequence.set_argument(position, address + offset)


def lent_inputs(
    program: Program, segments: Sequence[Segment], inputs: Iterable[tuple[ir.Value, Array | None]]
) -> dict[str, LentInput]:
    """Inputs by name that nothing but kernels reads, by their addresses, and nothing writes.

    They are numbers with a fraction: who lends memory may change it during a run, which then computes other
    numbers, but reads no index. `inputs` are dense ones with their memory of the program.
    """
    found = {v: LentInput(place) for v, place in inputs if place is not None and place.dtype.kind == "f"}
    values = program.placement.values
    for segment in segments:
        if segment.sequence is None:
            return {}
        position = 0
        for step in program.steps[segment.first : segment.last]:
            for value in step.group.outputs:
                if value in values and (root := values[value].root) is not None:
                    found.pop(root, None)
            for call in step.calls:
                if not isinstance(call, KernelCall):
                    return {}
                for at, argument in enumerate(call.arguments, start=position):
                    if isinstance(argument, ir.Value) and values[argument].space != "arena":
                        owner = values[argument].root or argument
                        if owner in found:
                            found[owner].readers.append((segment.sequence, at, values[argument].offset))
                position += len(call.arguments)
    return {v.name or "": lent for v, lent in found.items() if v not in program.compilation.graph.outputs}
